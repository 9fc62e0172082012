//! Noise models by name: what a setting such as `0.05` or `poisson:peak=30` stands for, how it draws measurements, and which
//! likelihood it makes of them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use serde::de::{self, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::tensors::{combine, from_f64, to_f64};
use crate::{
    Address, CountRate, Error, Gaussian, Likelihood, Mismatch, Noise, Operator, Poisson, Result, Space,
    UnknownNoise,
};

/// How measurements scatter around A(x).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NoiseModel {
    /// One number: the standard deviation of Gaussian noise. Over tokens it is β: a measured token is wrong e^(1/β²) times less
    /// often than right.
    Level(f64),
    /// Counts: y ~ Poisson(peak · (A(x) + 1)/2 + background).
    Poisson {
        /// Counts of the brightest value.
        peak: f64,
        /// Counts without light.
        background: f64,
    },
    /// Gaussian noise whose standard deviation is drawn along with the sample.
    Unknown {
        /// About how large it is thought to be; measurements that are drawn have it.
        level: f64,
        /// How many measured numbers this guess is worth.
        weight: f64,
    },
}

/// What a noise model is, beside its name.
#[derive(Debug)]
pub struct NoiseModelInfo {
    /// The name in settings.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// A setting.
    pub example: &'static str,
}

/// All noise models.
pub const NOISE_MODELS: &[NoiseModelInfo] = &[
    NoiseModelInfo {
        name: "gaussian",
        summary: "Gaussian noise of one standard deviation, for values from -1 to 1; a plain number means this",
        example: "0.05",
    },
    NoiseModelInfo {
        name: "poisson",
        summary: "counts: y ~ Poisson(peak (A(x) + 1)/2 + background)",
        example: "poisson:peak=30",
    },
    NoiseModelInfo {
        name: "unknown",
        summary: "Gaussian noise of an unknown standard deviation, which is drawn along with the sample",
        example: "unknown:level=0.05",
    },
];

/// How much a guessed level weighs where nothing is said: almost nothing.
const WEIGHT: f64 = 1.0;

/// Levels that the arithmetic carries, for values of about one. Samples in f32 are rounded by 6e-8 of themselves, which is 1 % of the
/// least level and what comes of it in a sum of squares far less; far above the largest nothing is seen of any image.
const LEVELS: [f64; 2] = [1e-5, 100.0];

/// The same for counts of the brightest value: their noise is 2/√peak of the values' unit.
const PEAKS: [f64; 2] = [1e-3, 1e10];

impl NoiseModel {
    /// Refuses numbers that no noise can have, or that the arithmetic cannot carry.
    pub fn check(&self) -> Result<()> {
        let within = |what: &str, v: f64, [low, high]: [f64; 2]| match v >= low && v <= high {
            true => Ok(()),
            false => {
                Err(Error::invalid(what, format!("a number from {low:?} to {high:?}"), format!("{v:?}")))
            }
        };
        match *self {
            Self::Level(level) => within("task.noise", level, LEVELS),
            Self::Poisson { peak, background } => {
                CountRate { gain: peak, background }.check()?;
                within("noise: peak", peak, PEAKS)?;
                within("noise: background", background, [0.0, PEAKS[1]])
            }
            Self::Unknown { level, weight } => {
                within("noise: level", level, LEVELS)?;
                match weight.is_finite() && weight > 0.0 {
                    true => Ok(()),
                    false => Err(Error::invalid("noise: weight", "a positive finite number", weight)),
                }
            }
        }
    }

    /// Its name in settings.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Level(_) => "gaussian",
            Self::Poisson { .. } => "poisson",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Measures clean samples.
    pub fn measure(
        &self,
        operator: &dyn Operator,
        x0: &Tensor,
        space: &Space,
        noise: &Noise,
        at: Address,
    ) -> Result<Tensor> {
        self.check()?;
        let gaussian = |level: f64| {
            let z = noise.normal(at, operator.output_shape(), DType::F64)?;
            combine(&[(&[1.0], &operator.apply(x0)?), (&[level], &z)])
        };
        match (self, space.symbols()) {
            (Self::Level(beta), Some(symbols)) => {
                Mismatch::measure(operator, x0, (symbols, *beta), noise, at)
            }
            (other, Some(_)) => Err(other.refuse_tokens()),
            (Self::Level(level) | Self::Unknown { level, .. }, None) => gaussian(*level),
            (Self::Poisson { peak, background }, None) => {
                let rate = CountRate { gain: *peak, background: *background };
                rate.draw(&operator.apply(x0)?, noise, at)
            }
        }
    }

    /// The likelihood of a measurement of samples that are computed in a type.
    pub fn likelihood(
        &self,
        operator: Arc<dyn Operator>,
        y: &Tensor,
        space: &Space,
        dtype: DType,
    ) -> Result<Arc<dyn Likelihood>> {
        self.check()?;
        if space.symbols().is_some() {
            return match self {
                Self::Level(beta) => Ok(Arc::new(Mismatch::new(operator, y, *beta)?)),
                other => Err(other.refuse_tokens()),
            };
        }
        let y = only_visible(&y.to_dtype(dtype)?, &*operator)?;
        Ok(match *self {
            Self::Level(beta) => Arc::new(Gaussian::new(operator, y, beta)?),
            Self::Poisson { peak, background } => Arc::new(Poisson::new(operator, &y, peak, background)?),
            Self::Unknown { level, weight } => Arc::new(UnknownNoise::new(operator, y, level, weight)?),
        })
    }

    fn refuse_tokens(&self) -> Error {
        Error::missing(format!("{} noise", self.name()), "continuous samples", "a prior over tokens")
    }
}

/// A measurement with zeros where it says nothing: a painted hole is no answer, and noise there is no misfit.
fn only_visible(y: &Tensor, operator: &dyn Operator) -> Result<Tensor> {
    let Some(visible) = operator.visible() else { return Ok(y.clone()) };
    let n = y.elem_count() / y.dims()[0].max(1);
    let keep = |(k, v): (usize, f64)| {
        let row = if visible.len() == 1 { 0 } else { k / n };
        if visible[row][k % n] { v } else { 0.0 }
    };
    from_f64(to_f64(y)?.into_iter().enumerate().map(keep).collect(), y.dims(), y.dtype())
}

/// As in a setting: `0.05`, `poisson:peak=30`, `poisson:peak=30,background=2`.
impl fmt::Display for NoiseModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level(level) => write!(f, "{level}"),
            Self::Poisson { peak, background: 0.0 } => write!(f, "poisson:peak={peak}"),
            Self::Poisson { peak, background } => write!(f, "poisson:peak={peak},background={background}"),
            Self::Unknown { level, weight: WEIGHT } => write!(f, "unknown:level={level}"),
            Self::Unknown { level, weight } => write!(f, "unknown:level={level},weight={weight}"),
        }
    }
}

/// The settings of a model as a table has them.
#[derive(Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case", deny_unknown_fields)]
enum Tagged {
    Gaussian {
        std: f64,
    },
    Poisson {
        peak: f64,
        #[serde(default)]
        background: f64,
    },
    Unknown {
        level: f64,
        #[serde(default = "default_weight")]
        weight: f64,
    },
}

fn default_weight() -> f64 {
    WEIGHT
}

impl From<Tagged> for NoiseModel {
    fn from(tagged: Tagged) -> Self {
        match tagged {
            Tagged::Gaussian { std } => Self::Level(std),
            Tagged::Poisson { peak, background } => Self::Poisson { peak, background },
            Tagged::Unknown { level, weight } => Self::Unknown { level, weight },
        }
    }
}

impl FromStr for NoiseModel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            let known: Vec<&str> = NOISE_MODELS.iter().map(|m| m.example).collect();
            Error::invalid("noise", format!("a setting such as {}", known.join(" or ")), format!("'{text}'"))
        };
        if let Ok(level) = text.trim().parse() {
            return Ok(Self::Level(level));
        }
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        if NOISE_MODELS.iter().all(|m| m.name != name.trim()) {
            return Err(match name.trim().starts_with(char::is_alphabetic) {
                true => Error::unknown("noise model", name.trim(), NOISE_MODELS.iter().map(|m| m.name)),
                false => wrong(),
            });
        }
        let mut pairs: Vec<(String, Setting)> = vec![("model".into(), Setting::Name(name.trim().into()))];
        for pair in settings.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            let value = value.trim().parse().map_err(|_| wrong())?;
            pairs.push((key.trim().to_owned(), Setting::Number(value)));
        }
        let map = de::value::MapDeserializer::<_, de::value::Error>::new(pairs.into_iter());
        let tagged = Tagged::deserialize(map).map_err(|e| Error::settings(format!("noise '{text}'"), e))?;
        Ok(tagged.into())
    }
}

/// A value of a setting in one line of text.
enum Setting {
    Name(String),
    Number(f64),
}

impl<'de> IntoDeserializer<'de, de::value::Error> for Setting {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Setting {
    type Error = de::value::Error;

    fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> std::result::Result<V::Value, Self::Error> {
        match self {
            Self::Name(name) => visitor.visit_string(name),
            Self::Number(number) => visitor.visit_f64(number),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl Serialize for NoiseModel {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match *self {
            Self::Level(level) => serializer.serialize_f64(level),
            Self::Poisson { peak, background } => Tagged::Poisson { peak, background }.serialize(serializer),
            Self::Unknown { level, weight } => Tagged::Unknown { level, weight }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for NoiseModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Any;
        impl<'de> de::Visitor<'de> for Any {
            type Value = NoiseModel;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number, a text such as \"poisson:peak=30\", or a table with a model")
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> std::result::Result<NoiseModel, E> {
                Ok(NoiseModel::Level(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> std::result::Result<NoiseModel, E> {
                Ok(NoiseModel::Level(v as f64))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> std::result::Result<NoiseModel, E> {
                Ok(NoiseModel::Level(v as f64))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> std::result::Result<NoiseModel, E> {
                v.parse().map_err(E::custom)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> std::result::Result<NoiseModel, A::Error> {
                Tagged::deserialize(de::value::MapAccessDeserializer::new(map)).map(Into::into)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_written_alike() {
        for (text, model) in [
            ("0.05", NoiseModel::Level(0.05)),
            ("gaussian:std=0.05", NoiseModel::Level(0.05)),
            ("poisson:peak=30", NoiseModel::Poisson { peak: 30.0, background: 0.0 }),
            ("poisson:peak=30,background=2", NoiseModel::Poisson { peak: 30.0, background: 2.0 }),
            ("unknown:level=0.1", NoiseModel::Unknown { level: 0.1, weight: WEIGHT }),
        ] {
            assert_eq!(text.parse::<NoiseModel>().unwrap(), model, "{text}");
            assert_eq!(model.to_string().parse::<NoiseModel>().unwrap(), model);
            assert!(model.check().is_ok() && NOISE_MODELS.iter().any(|m| m.name == model.name()));
        }
        for info in NOISE_MODELS {
            assert_eq!(info.example.parse::<NoiseModel>().unwrap().name(), info.name);
        }
    }

    #[test]
    fn mistakes_are_told_in_one_sentence() {
        let error = |text: &str| text.parse::<NoiseModel>().unwrap_err().to_string();
        assert_eq!(
            error("poison:peak=3"),
            "unknown noise model 'poison'; known: gaussian, poisson, unknown; did you mean 'poisson'?"
        );
        assert_eq!(
            error("poisson:peek=3"),
            "noise 'poisson:peek=3': unknown field `peek`, expected `peak` or `background`; did you mean 'peak'?"
        );
        assert!(error("poisson").contains("peak"), "{}", error("poisson"));
        assert!(error("0.05x").contains("0.05 or poisson:peak=30"), "{}", error("0.05x"));
        assert!(NoiseModel::Poisson { peak: -1.0, background: 0.0 }.check().is_err());
        assert!(NoiseModel::Level(f64::NAN).check().is_err());
        let told = |model: NoiseModel| model.check().unwrap_err().to_string();
        assert_eq!(
            told(NoiseModel::Level(1e-30)),
            "task.noise: expected a number from 1e-5 to 100.0, got 1e-30"
        );
        assert_eq!(
            told(NoiseModel::Level(1e30)),
            "task.noise: expected a number from 1e-5 to 100.0, got 1e30"
        );
        let peak = NoiseModel::Poisson { peak: 1e30, background: 0.0 };
        assert_eq!(told(peak), "noise: peak: expected a number from 0.001 to 10000000000.0, got 1e30");
        assert!(NoiseModel::Unknown { level: 1e-9, weight: 1.0 }.check().is_err());
        for level in LEVELS.into_iter().chain([1e-4, 1.0]) {
            assert!(NoiseModel::Level(level).check().is_ok());
            assert!(NoiseModel::Unknown { level, weight: 1.0 }.check().is_ok());
        }
    }
}
