//! The list of methods, and how one is built from a configuration table.

use std::sync::Arc;

use daps_core::{Error, Method, Result};
use toml::Table;

use crate::{Daps, Dps};

/// An entry of the registry.
pub struct Entry {
    /// Name in configurations.
    pub name: &'static str,
    /// Settings as a table, to a method; `task` is the operator's name, which presets depend on.
    pub build: fn(&Table, task: &str) -> Result<Arc<dyn Method>>,
    /// A complete configuration that works, for documentation and tests.
    pub example: &'static str,
}

/// All methods.
pub const METHODS: &[Entry] = &[
    Entry {
        name: "daps",
        build: daps,
        example: r#"
preset = "paper"
budget = "100"
kernel = "langevin"
"#,
    },
    Entry {
        name: "dps",
        build: |table, _| {
            let dps: Dps = read("dps", table)?;
            dps.check_settings()?;
            Ok(Arc::new(dps))
        },
        example: r#"
schedule = { rule = "poly", levels = 100, max = 100.0, min = 0.01 }
dynamics = "sde"
guidance = { norm = { zeta = 1.0 } }
"#,
    },
];

/// Builds a method from its name and settings.
pub fn build(name: &str, table: &Table, task: &str) -> Result<Arc<dyn Method>> {
    let entry = METHODS.iter().find(|m| m.name == name);
    let entry = entry.ok_or_else(|| Error::unknown("method", name, METHODS.iter().map(|m| m.name)))?;
    (entry.build)(table, task)
}

/// DAPS from a preset, or from schedule, estimate and kernel spelled out. With a preset, `budget` and `kernel` choose
/// among its settings, and `schedule`, `estimate`, `beta` or a kernel table replace a part of it.
fn daps(table: &Table, task: &str) -> Result<Arc<dyn Method>> {
    Ok(Arc::new(daps_settings(table, task)?))
}

/// The settings with every default and preset spelled out, so that a file of them means the same for ever.
pub fn resolve(name: &str, table: &Table, task: &str) -> Result<Table> {
    match (name, build(name, table, task)?) {
        ("daps", _) => match to_value(&daps_settings(table, task)?)? {
            toml::Value::Table(complete) => Ok(complete),
            _ => Ok(table.clone()),
        },
        _ => Ok(table.clone()),
    }
}

fn daps_settings(table: &Table, task: &str) -> Result<Daps> {
    let mut table = table.clone();
    let preset = text(&mut table, "preset")?;
    let budget = text(&mut table, "budget")?;
    let named = match table.get("kernel") {
        Some(toml::Value::String(_)) => text(&mut table, "kernel")?,
        _ => None,
    };
    let daps: Daps = match preset {
        None if table.contains_key("schedule") && table.contains_key("estimate") => {
            if budget.is_some() {
                return Err(Error::invalid("daps.budget", "a preset beside it", "none"));
            }
            if let Some(name) = named {
                let kernel = crate::kernel::KernelConfig::named(&name)?;
                table.insert("kernel".into(), to_value(&kernel)?);
            }
            read("daps", &table)?
        }
        preset => {
            let preset = crate::Preset::named(preset.as_deref().unwrap_or("paper"))?;
            let base = preset.settings(task, budget.as_deref(), named.as_deref())?;
            let toml::Value::Table(mut complete) = to_value(&base)? else {
                return Err(Error::invalid("daps", "a table", "something else"));
            };
            complete.extend(table);
            read("daps", &complete)?
        }
    };
    daps.check_settings()?;
    Ok(daps)
}

fn to_value(value: &impl serde::Serialize) -> Result<toml::Value> {
    toml::Value::try_from(value).map_err(|e| Error::invalid("settings", "values that TOML can hold", e))
}

fn text(table: &mut Table, key: &str) -> Result<Option<String>> {
    match table.remove(key) {
        None => Ok(None),
        Some(toml::Value::String(s)) => Ok(Some(s)),
        Some(other) => Err(Error::invalid(format!("daps.{key}"), "a name in quotes", other)),
    }
}

fn read<T: serde::de::DeserializeOwned>(method: &str, table: &Table) -> Result<T> {
    table.clone().try_into().map_err(|e: toml::de::Error| {
        Error::invalid(format!("settings of {method}"), "a valid table", e.message().trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_a_paper_a_summary_and_an_example_that_builds() {
        for entry in METHODS {
            let table: Table = entry.example.parse().unwrap();
            let method = (entry.build)(&table, "super_resolution").unwrap();
            let info = method.info();
            assert_eq!(info.name, entry.name);
            assert!(!info.summary.is_empty() && info.paper.contains("20"), "{info:?}");
            assert!(method.levels() > 0);
        }
    }

    #[test]
    fn daps_takes_presets_parts_of_presets_and_complete_settings() {
        let build = |text: &str| build("daps", &text.parse().unwrap(), "hdr");
        assert_eq!(build("").unwrap().levels(), 400);
        assert_eq!(build("budget = 'daps-50'").unwrap().levels(), 25);
        assert_eq!(build("schedule = { rule = 'geometric', levels = 7 }").unwrap().levels(), 7);
        assert!(build("kernel = 'exact'").is_ok());
        let resolved = resolve("daps", &"preset = 'fast'".parse().unwrap(), "hdr").unwrap();
        assert!(!resolved.contains_key("preset") && resolved["kernel"]["kind"].as_str() == Some("exact"));
        assert_eq!(super::resolve("daps", &resolved, "hdr").unwrap(), resolved);
        assert!(build("kernel = { kind = 'mala', steps = 5 }").is_ok());
        let error = |text: &str| build(text).err().unwrap().to_string();
        assert!(error("presset = 'paper'").contains("presset"), "{}", error("presset = 'paper'"));
        assert!(error("kernel = 'gibbs'").contains("unknown kernel 'gibbs'"));
        assert!(error("schedule = { rule = 'levels', sigmas = [1.0, 0.5] }").contains("last level of 0"));
        assert!(super::build("dsp", &Table::new(), "hdr").is_err());
    }
}
