//! The settings of DAPS as a file gives them: a preset, and what replaces parts of it. What they mean depends on the measurement.

use daps_core::{Error, Result, ScheduleRule};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::{Table, Value};

use crate::Preset;
use crate::kernel::KernelConfig;

/// A preset and the parts of it that are replaced; `E` estimates p(x0 | x_t).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, bound(serialize = "E: Serialize", deserialize = "E: DeserializeOwned"))]
pub struct Partial<E> {
    /// Whose numerics; absent: the method's default preset, or none where schedule, estimate and kernel are all given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// A name or a number of denoiser calls.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "budget")]
    pub budget: Option<String>,
    /// The noise level that the kernel believes the measurement to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// Annealing levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleRule>,
    /// How p(x0 | x_t) is estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<E>,
    /// How x0|y is drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PartialKernel>,
}

impl<E> Default for Partial<E> {
    fn default() -> Self {
        Self { preset: None, budget: None, beta: None, schedule: None, estimate: None, kernel: None }
    }
}

impl<E> From<Preset> for Partial<E> {
    fn from(preset: Preset) -> Self {
        Self { preset: Some(preset), ..Self::default() }
    }
}

/// A kernel by its name, and some of its settings. Without a name they change those of the preset's own kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartialKernel {
    /// The kernel's name.
    pub kind: Option<String>,
    /// Settings by name. They stay a table: which ones there are depends on the kernel, which a preset may choose.
    pub settings: Table,
}

impl PartialKernel {
    /// A kernel with the settings that a preset has for it, or its defaults.
    #[must_use]
    pub fn named(kind: &str) -> Self {
        Self { kind: Some(kind.to_owned()), settings: Table::new() }
    }

    /// All settings of a kernel.
    pub(crate) fn of(kernel: &KernelConfig) -> Result<Self> {
        Self::from_value(Value::Table(to_table(kernel)?))
    }

    /// These settings put over those of a kernel.
    pub(crate) fn over(&self, base: KernelConfig) -> Result<KernelConfig> {
        if self.settings.is_empty() {
            return Ok(base);
        }
        let mut table = to_table(&base)?;
        replace_parts(&mut table, self.settings.clone());
        read("kernel", table)
    }

    fn from_value(value: Value) -> Result<Self> {
        let wrong = |key: &str, what: &str, other: Value| Err(Error::invalid(key, what, other));
        let mut settings = match value {
            Value::String(kind) => return Ok(Self { kind: Some(kind), settings: Table::new() }),
            Value::Table(settings) => settings,
            other => return wrong("kernel", "a name in quotes or a table", other),
        };
        let kind = match settings.remove("kind") {
            None => None,
            Some(Value::String(kind)) => Some(kind),
            Some(other) => return wrong("kernel.kind", "a name in quotes", other),
        };
        Ok(Self { kind, settings })
    }
}

impl Serialize for PartialKernel {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut table = self.settings.clone();
        if let Some(kind) = &self.kind {
            table.insert("kind".into(), kind.as_str().into());
        }
        table.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PartialKernel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Puts settings over others of the same kernel. A step size that names its rule replaces the other one; without a rule it
/// changes the numbers that it names.
fn replace_parts(base: &mut Table, parts: Table) {
    for (key, part) in parts {
        match (base.get_mut(&key), part) {
            (Some(Value::Table(base)), Value::Table(part)) if !part.contains_key("rule") => base.extend(part),
            (_, part) => _ = base.insert(key, part),
        }
    }
}

/// A budget is a name that may look like a number.
fn budget<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(name) => Ok(Some(name)),
        Value::Integer(number) => Ok(Some(number.to_string())),
        other => Err(D::Error::custom(format!("budget: expected a name in quotes, got {other}"))),
    }
}

/// A budget beside a schedule that leaves nothing for it to say.
pub(crate) fn void_budget(method: &str) -> Error {
    Error::invalid(format!("{method}.budget"), "no schedule beside it", "one that makes it void")
}

/// As a table.
pub(crate) fn to_table(value: &impl Serialize) -> Result<Table> {
    Table::try_from(value).map_err(|e| Error::invalid("settings", "a table that TOML can hold", e))
}

/// The settings of a part from a table.
pub(crate) fn read<T: DeserializeOwned>(part: &str, table: Table) -> Result<T> {
    table.try_into().map_err(|e: toml::de::Error| Error::settings(format!("settings of {part}"), e.message()))
}
