//! A limit of memory as people write it: `4GB`, `1.5GiB`, `512MB`, or a number of bytes.

use std::fmt;
use std::str::FromStr;

use daps_core::Error;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that something may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Memory(u64);

/// Units with their bytes; limits are shown in the first ones, which are powers of ten.
const UNITS: [(&str, u64); 9] = [
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl Memory {
    /// From bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Whole megabytes that are no less, for people.
    #[must_use]
    pub(crate) fn rounded_up(bytes: f64) -> Self {
        Self((bytes / 1e6).ceil() as u64 * 1_000_000)
    }
}

impl Default for Memory {
    /// 4 GB.
    fn default() -> Self {
        Self(4_000_000_000)
    }
}

impl FromStr for Memory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || {
            Error::invalid("memory", "a size such as 4GB, 512MB or a number of bytes", format!("'{text}'"))
        };
        let text = text.trim();
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = (text[..digits].parse::<f64>().map_err(|_| bad())?, text[digits..].trim());
        let known = |(name, _): &&(&str, u64)| name.eq_ignore_ascii_case(unit);
        let (_, scale) =
            UNITS.iter().find(known).or(UNITS.get(4).filter(|_| unit.is_empty())).ok_or_else(bad)?;
        let bytes = number * *scale as f64;
        // Beyond 2⁵³ not every number of bytes is one that f64 has.
        if (1.0..9e15).contains(&bytes) { Ok(Self(bytes.round() as u64)) } else { Err(bad()) }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS[..4].iter().find(|(_, scale)| self.0 > 0 && self.0.is_multiple_of(*scale));
        let (name, scale) = whole.unwrap_or(&UNITS[4]);
        write!(f, "{}{name}", self.0 / scale)
    }
}

impl Serialize for Memory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl Visitor<'_> for Written {
            type Value = Memory;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"4GB\", \"512MB\" or a number of bytes")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Memory, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Memory, E> {
                bytes.to_string().parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<Memory, E> {
                bytes.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them_and_written_so_that_they_read_the_same() {
        for (text, bytes, shown) in [
            ("4GB", 4_000_000_000, "4GB"),
            ("512 mb", 512_000_000, "512MB"),
            ("1.5GB", 1_500_000_000, "1500MB"),
            ("2GiB", 2 << 30, "2147483648B"),
            ("64kib", 65536, "65536B"),
            ("123456789", 123_456_789, "123456789B"),
            ("8000B", 8000, "8kB"),
        ] {
            let memory: Memory = text.parse().unwrap();
            assert_eq!((memory.bytes(), memory.to_string().as_str()), (bytes, shown), "{text}");
            assert_eq!(shown.parse::<Memory>().unwrap(), memory);
        }
        for text in ["", "GB", "4 apples", "-1GB", "0", "1e9", "4.4.4GB", "99999999TB"] {
            let error = text.parse::<Memory>().unwrap_err().to_string();
            let expected = format!("expected a size such as 4GB, 512MB or a number of bytes, got '{text}'");
            assert!(error.contains(&expected), "{error}");
        }
        assert_eq!(Memory::default(), Memory::new(4_000_000_000));
        assert_eq!(Memory::rounded_up(1_000_001.0).to_string(), "2MB");
    }

    #[test]
    fn a_setting_is_a_text_or_a_number_of_bytes() {
        #[derive(Serialize, Deserialize)]
        struct Settings {
            memory: Memory,
        }
        let read = |text: &str| toml::from_str::<Settings>(text).map(|s| s.memory);
        assert_eq!(read("memory = '2GB'").unwrap(), Memory::new(2_000_000_000));
        assert_eq!(read("memory = 2000").unwrap(), Memory::new(2000));
        for bad in ["memory = 'much'", "memory = -1", "memory = true"] {
            assert!(read(bad).err().unwrap().to_string().contains("such as"), "{bad}");
        }
        let text = toml::to_string(&Settings { memory: Memory::default() }).unwrap();
        assert_eq!(text, "memory = \"4GB\"\n");
    }
}
