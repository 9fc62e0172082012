//! The settings under `[method]` in a configuration, typed: one variant for every method in the registry.

use std::sync::Arc;

use daps_core::{Error, Method, Result};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::{Table, Value};

use crate::registry::{MethodConfig, entry};
use crate::settings::{read, to_table};
use crate::{DapsSettings, DiscreteSettings, Facts, Preset};

/// What becomes a method once the measurement is known.
pub(crate) trait Settings {
    /// The method, its settings checked.
    fn build(&self, facts: &Facts) -> Result<Arc<dyn Method>>;

    /// The settings that were given, by name.
    fn table(&self) -> Result<Table>;
}

/// Most methods are their settings, whatever is measured.
impl<M: Method + Clone + Serialize + 'static> Settings for M {
    fn build(&self, _: &Facts) -> Result<Arc<dyn Method>> {
        self.check_settings()?;
        Ok(Arc::new(self.clone()))
    }

    fn table(&self) -> Result<Table> {
        to_table(self)
    }
}

impl Settings for DapsSettings {
    fn build(&self, facts: &Facts) -> Result<Arc<dyn Method>> {
        Ok(Arc::new(self.complete(facts)?))
    }

    fn table(&self) -> Result<Table> {
        to_table(self)
    }
}

impl Settings for DiscreteSettings {
    fn build(&self, _: &Facts) -> Result<Arc<dyn Method>> {
        Ok(Arc::new(self.complete()?))
    }

    fn table(&self) -> Result<Table> {
        to_table(self)
    }
}

impl Default for MethodConfig {
    fn default() -> Self {
        Self::Unnamed(DapsSettings::default())
    }
}

impl From<Preset> for MethodConfig {
    fn from(preset: Preset) -> Self {
        Self::Unnamed(preset.into())
    }
}

impl MethodConfig {
    /// A method with its default settings.
    pub fn named(name: &str) -> Result<Self> {
        Self::new(name, Table::new())
    }

    /// A method by its name, with the settings of a table.
    pub fn new(name: &str, settings: Table) -> Result<Self> {
        (entry(name)?.parse)(settings)
    }

    /// From the table of a file.
    pub fn from_table(mut table: Table) -> Result<Self> {
        match table.remove("name") {
            None => Ok(Self::Unnamed(read("daps", table)?)),
            Some(Value::String(name)) => Self::new(&name, table),
            Some(other) => Err(Error::invalid("method.name", "a name in quotes", other)),
        }
    }

    /// The table for a file.
    pub fn to_table(&self) -> Result<Table> {
        let mut table = self.settings().table()?;
        if let Some(name) = self.name() {
            table.insert("name".into(), name.into());
        }
        Ok(table)
    }

    /// With a name: what was not named depends on whether the prior is one over tokens.
    pub fn over(self, tokens: bool) -> Result<Self> {
        match self {
            Self::Unnamed(settings) if !tokens => Ok(Self::Daps(settings)),
            Self::Unnamed(DapsSettings { estimate: Some(_), .. }) => {
                Err(Error::invalid("method", "name = \"discrete_daps\" beside an estimate", "no name"))
            }
            Self::Unnamed(DapsSettings { preset, budget, beta, schedule, estimate: None, kernel }) => {
                let estimate = None;
                Ok(Self::DiscreteDaps(DiscreteSettings { preset, budget, beta, schedule, estimate, kernel }))
            }
            named => Ok(named),
        }
    }

    /// Refuses settings that fit no measurement, before there is one.
    pub fn check(&self) -> Result<()> {
        let mut first = Ok(());
        for facts in Facts::kinds() {
            match self.build(&facts) {
                Ok(_) => return Ok(()),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }

    /// The method for a measurement; presets depend on what is known of it.
    pub fn build(&self, facts: &Facts) -> Result<Arc<dyn Method>> {
        self.settings().build(facts)
    }

    /// The same with every default and preset spelled out, so that a file of it means the same for ever.
    pub fn resolved(&self, facts: &Facts) -> Result<Self> {
        Ok(match self {
            Self::Unnamed(settings) | Self::Daps(settings) => {
                Self::Daps((&settings.complete(facts)?).try_into()?)
            }
            Self::DiscreteDaps(settings) => Self::DiscreteDaps((&settings.complete()?).try_into()?),
            other => {
                other.build(facts)?;
                other.clone()
            }
        })
    }
}

impl Serialize for MethodConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.to_table().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MethodConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Self::from_table(Table::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::METHODS;

    fn facts(task: &str) -> Facts {
        Facts::of_task(task).unwrap()
    }

    fn resolve(name: &str, table: &Table, task: &str) -> Result<Table> {
        MethodConfig::new(name, table.clone())?.resolved(&facts(task))?.settings().table()
    }

    fn build(name: &str, table: &Table, task: &str) -> Result<Arc<dyn Method>> {
        MethodConfig::new(name, table.clone())?.build(&facts(task))
    }

    fn check(name: &str, table: &Table) -> Result<()> {
        MethodConfig::new(name, table.clone())?.check()
    }

    #[test]
    fn every_method_has_a_paper_a_summary_and_an_example_that_builds() {
        for entry in METHODS {
            let table: Table = entry.example.parse().unwrap();
            let method = build(entry.name, &table, "super_resolution").unwrap();
            let info = method.info();
            assert_eq!(info.name, entry.name);
            let is_year = |word: &str| word.parse().is_ok_and(|year: u32| (1900..2100).contains(&year));
            let has_year = info.paper.split(|c: char| !c.is_ascii_digit()).any(is_year);
            assert!(!info.summary.is_empty() && has_year, "{info:?}");
            assert!(method.levels() > 0);
            // What is spelled out means the same and is complete: spelled out again it stays, and no default is left to change.
            let resolved = resolve(entry.name, &table, "super_resolution").unwrap();
            assert_eq!(
                resolve(entry.name, &resolved, "super_resolution").unwrap(),
                resolved,
                "{}",
                entry.name
            );
            // An example shows the defaults; that of DAPS shows one of its presets.
            let bare = resolve(entry.name, &Table::new(), "super_resolution").unwrap();
            if entry.name == "daps" {
                assert!(bare.keys().eq(resolved.keys()), "{resolved:?}");
            } else {
                assert_eq!(bare, resolved, "{}", entry.name);
            }
        }
    }

    /// What a search would do: every declared parameter is read from where it says it is, over its whole range.
    #[test]
    fn declared_parameters_are_settings_with_these_defaults() {
        for entry in METHODS {
            for parameter in entry.parameters {
                let (low, high) = parameter.range;
                assert!(
                    low < high && (low..=high).contains(&parameter.default),
                    "{}.{}",
                    entry.name,
                    parameter.name
                );
                assert!(
                    (parameter.at(0.0) - low).abs() < 1e-12 && (parameter.at(1.0) - high).abs() < 1e-9 * high
                );
                for value in [low, parameter.default, high, parameter.at(0.5)] {
                    let mut table: Table = entry.example.parse().unwrap();
                    parameter.set(&mut table, value);
                    assert!(
                        build(entry.name, &table, "super_resolution").is_ok(),
                        "{}.{}",
                        entry.name,
                        parameter.name
                    );
                }
                let resolved = resolve(entry.name, &Table::new(), "super_resolution").unwrap();
                let spelled = parameter
                    .name
                    .split('.')
                    .try_fold(&Value::Table(resolved), |v, k| v.get(k))
                    .and_then(|v| v.as_float().or(v.as_integer().map(|i| i as f64)));
                assert_eq!(spelled, Some(parameter.default), "{}.{}", entry.name, parameter.name);
            }
        }
    }

    #[test]
    fn daps_takes_presets_parts_of_presets_and_complete_settings() {
        let build = |text: &str| build("daps", &text.parse().unwrap(), "hdr");
        assert_eq!(build("").unwrap().levels(), 400);
        assert_eq!(build("budget = 'daps-50'").unwrap().levels(), 25);
        assert_eq!(build("budget = 100").unwrap().levels(), build("budget = '100'").unwrap().levels());
        assert_eq!(build("schedule = { rule = 'geometric', levels = 7 }").unwrap().levels(), 7);
        assert!(build("kernel = 'exact'").is_ok());
        let resolved = resolve("daps", &"preset = 'fast'".parse().unwrap(), "hdr").unwrap();
        assert!(
            !resolved.contains_key("preset") && resolved["kernel"]["kind"].as_str() == Some("underdamped")
        );
        assert_eq!(resolve("daps", &resolved, "hdr").unwrap(), resolved);
        assert!(build("kernel = { kind = 'mala', steps = 5 }").is_ok());
        let error = |text: &str| build(text).err().unwrap().to_string();
        assert!(error("presset = 'paper'").contains("presset"), "{}", error("presset = 'paper'"));
        assert!(error("kernel = 'gibbs'").contains("unknown kernel 'gibbs'"));
        assert!(error("schedule = { rule = 'levels', sigmas = [1.0, 0.5] }").contains("last level of 0"));
        assert!(check("dsp", &Table::new()).is_err());
    }

    /// What some measurement accepts passes, what none does is refused, before any is there.
    #[test]
    fn settings_are_checked_before_there_is_a_measurement() {
        let check = |name: &str, text: &str| check(name, &text.parse().unwrap());
        // The exact draw of linear operators has no such step, the dynamics of the others do.
        check("daps", "preset = 'fast'\nkernel = { steps = 7 }").unwrap();
        check("daps", "preset = 'best'").unwrap();
        check("pnp_dm", "iterations = 3").unwrap();
        let error = |name: &str, text: &str| check(name, text).unwrap_err().to_string();
        assert!(error("daps", "presset = 'fast'").contains("presset"));
        assert!(error("daps", "preset = 'quick'").contains("unknown preset 'quick'"));
        assert!(error("daps", "kernel = 'gibbs'").contains("unknown kernel 'gibbs'"));
        assert!(error("daps", "budget = '7k'").contains("unknown budget '7k'"));
        assert!(error("pnp_dm", "iteratoins = 3").contains("iteratoins"));
    }

    /// Estimate and believed noise follow the kernel's kind, whichever way it is given.
    #[test]
    fn a_kernel_given_as_a_table_is_the_one_of_that_name_with_some_settings_replaced() {
        let resolved = |preset: &str, kernel: &str, task: &str| {
            let text = format!("preset = '{preset}'\nkernel = {kernel}");
            resolve("daps", &text.parse().unwrap(), task).unwrap()
        };
        for (preset, kind, task) in [
            ("fast", "exact", "hdr"),
            ("fast", "underdamped", "super_resolution"),
            ("best", "mala", "phase_retrieval"),
            ("official", "metropolis", "super_resolution"),
            ("paper", "hmc", "gaussian_blur"),
        ] {
            let by_name = resolved(preset, &format!("'{kind}'"), task);
            let by_table = resolved(preset, &format!("{{ kind = '{kind}' }}"), task);
            assert_eq!(by_table, by_name, "{preset}, {kind}, {task}");
        }
        let mut expected = resolved("official", "'hmc'", "hdr");
        expected["kernel"]["steps"] = Value::Integer(7);
        assert_eq!(resolved("official", "{ kind = 'hmc', steps = 7 }", "hdr"), expected);
    }

    /// Without a kind it is the preset's own kernel, and without a rule its own step size.
    #[test]
    fn single_numbers_of_a_presets_kernel_can_be_changed() {
        let resolved = |text: &str, task: &str| resolve("daps", &text.parse().unwrap(), task);
        let mut expected = resolved("preset = 'official'", "hdr").unwrap();
        expected["kernel"]["steps"] = Value::Integer(7);
        expected["kernel"]["step_size"]["eta0"] = Value::Float(3e-4);
        let changed = "preset = 'official'\nkernel = { steps = 7, step_size = { eta0 = 3e-4 } }";
        assert_eq!(resolved(changed, "hdr").unwrap(), expected);
        let other = resolved("kernel = { step_size = { rule = 'curvature', factor = 0.5 } }", "hdr").unwrap();
        assert_eq!(other["kernel"]["step_size"].as_table().unwrap().len(), 2, "{other:?}");
        // An exact draw has no step, and where nothing chooses a kernel its settings say nothing.
        assert!(
            resolved("preset = 'fast'\nkernel = { step_size = { eta0 = 3e-4 } }", "gaussian_blur").is_err()
        );
        let bare = "schedule = { rule = 'geometric', levels = 7 }\nkernel = { steps = 7 }\n\
                    estimate = { kind = 'gaussian', center = 'tweedie', spread = 'prior' }";
        let error = resolved(bare, "hdr").unwrap_err().to_string();
        assert_eq!(error, "daps.kernel: expected a kind beside its settings, got none");
    }

    #[test]
    fn a_budget_that_a_schedule_makes_void_is_refused() {
        let schedule = "budget = '100'\nschedule = { rule = 'geometric', levels = 7 }\n";
        let build = |method: &str, more: &str| {
            build(method, &format!("{schedule}{more}").parse().unwrap(), "super_resolution")
        };
        let estimate = "estimate = { kind = 'gaussian', center = 'tweedie', spread = 'prior' }";
        let spelled_out = format!("preset = 'paper'\n{estimate}");
        for (method, more) in [
            ("daps", "preset = 'fast'"),
            ("daps", "preset = 'best'"),
            ("daps", spelled_out.as_str()),
            ("discrete_daps", ""),
        ] {
            let error = build(method, more).err().unwrap().to_string();
            let expected = "budget: expected no schedule beside it, got one that makes it void";
            assert_eq!(error, format!("{method}.{expected}"), "{more}");
        }
        // The paper's budgets also say how many steps the ODE takes.
        assert_eq!(build("daps", "preset = 'paper'").unwrap().levels(), 7);
    }
}
