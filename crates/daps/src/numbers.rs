//! Numbers in JSON, which has null where one is not finite.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `#[serde(with = "numbers::one")]`: a number, NaN where null stands.
pub(crate) mod one {
    use super::*;

    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
    }
}

/// `#[serde(with = "numbers::list")]`: a list of them.
pub(crate) mod list {
    use super::*;

    pub fn serialize<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
        values.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        let list = Vec::<Option<f64>>::deserialize(from)?;
        Ok(list.into_iter().map(|v| v.unwrap_or(f64::NAN)).collect())
    }
}

/// `#[serde(with = "numbers::some_list")]`: such a list, where there is one.
pub(crate) mod some_list {
    use super::*;

    pub fn serialize<S: Serializer>(values: &Option<Vec<f64>>, to: S) -> Result<S::Ok, S::Error> {
        values.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<f64>>, D::Error> {
        let list = Option::<Vec<Option<f64>>>::deserialize(from)?;
        Ok(list.map(|l| l.into_iter().map(|v| v.unwrap_or(f64::NAN)).collect()))
    }
}
