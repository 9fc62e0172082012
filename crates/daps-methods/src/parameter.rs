//! The free parameters of methods: what a search may change, and within which range.

/// How a range is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Evenly in the logarithm.
    Log,
    /// Whole numbers, evenly in the logarithm.
    Count,
}

/// A number that may be tuned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its place in the method's settings, with dots between tables.
    pub name: &'static str,
    /// Its default.
    pub default: f64,
    /// The range worth searching; settings outside it may be valid.
    pub range: (f64, f64),
    /// How the range is searched.
    pub scale: Scale,
}

impl Parameter {
    /// Searched evenly.
    #[must_use]
    pub const fn linear(name: &'static str, default: f64, low: f64, high: f64) -> Self {
        Self { name, default, range: (low, high), scale: Scale::Linear }
    }

    /// Searched evenly in the logarithm.
    #[must_use]
    pub const fn log(name: &'static str, default: f64, low: f64, high: f64) -> Self {
        Self { name, default, range: (low, high), scale: Scale::Log }
    }

    /// A whole number, searched evenly in the logarithm.
    #[must_use]
    pub const fn count(name: &'static str, default: f64, low: f64, high: f64) -> Self {
        Self { name, default, range: (low, high), scale: Scale::Count }
    }

    /// The value at a fraction 0..1 of the range.
    #[must_use]
    pub fn at(&self, fraction: f64) -> f64 {
        let (low, high) = self.range;
        match self.scale {
            Scale::Linear => low + fraction * (high - low),
            Scale::Log => low * (high / low).powf(fraction),
            Scale::Count => (low * (high / low).powf(fraction)).round(),
        }
    }

    /// Writes a value into a method's settings, making tables where there are none.
    pub fn set(&self, settings: &mut toml::Table, value: f64) {
        let mut table = settings;
        let mut parts: Vec<&str> = self.name.split('.').collect();
        let last = parts.pop().unwrap_or(self.name);
        for part in parts {
            let entry = table.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if !entry.is_table() {
                *entry = toml::Value::Table(toml::Table::new());
            }
            match entry {
                toml::Value::Table(inner) => table = inner,
                _ => return,
            }
        }
        let value = match self.scale {
            Scale::Count => toml::Value::Integer(value as i64),
            Scale::Linear | Scale::Log => toml::Value::Float(value),
        };
        table.insert(last.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_even_in_what_they_say() {
        assert!((Parameter::linear("a", 1.0, 0.0, 10.0).at(0.3) - 3.0).abs() < 1e-12);
        assert!((Parameter::log("a", 1.0, 0.01, 100.0).at(0.5) - 1.0).abs() < 1e-12);
        // 2 · 16^0.5 = 8, and a little further it is still a whole number.
        assert_eq!(Parameter::count("a", 1.0, 2.0, 32.0).at(0.51), 8.0);
    }
}
