//! The list of methods, and how one is built from a configuration table.
//!
//! Not here yet: PSLD and ReSample, which come with latent priors; ScoreMRI and CSGM, which come with trained MRI priors.

use std::sync::Arc;

use daps_core::{Error, Likelihood, Method, Result};
use toml::Table;

use crate::settings::{read, to_table};
use crate::{
    BestOfN, Bicubic, Daps, Dcdp, Ddnm, Ddrm, DiffPir, DiscreteDaps, Dpnp, Dps, Facts, FpsSmc, Harmonic, Hio,
    Parameter, PnpDm, PseudoInverse, RedDiff, SvddPm, Tv, Wiener,
};

/// An entry of the registry.
pub struct Entry {
    /// Name in configurations.
    pub name: &'static str,
    /// Settings as a table, to a method; presets depend on what is known of the measurement.
    pub build: fn(&Table, &Facts) -> Result<Arc<dyn Method>>,
    /// The settings with every default and preset spelled out.
    pub resolve: fn(&Table, &Facts) -> Result<Table>,
    /// A complete configuration that works, for documentation and tests.
    pub example: &'static str,
    /// What a search may tune.
    pub parameters: &'static [Parameter],
}

/// An entry for a method whose settings are a table with defaults.
macro_rules! entry {
    ($name:literal, $method:ty, $example:literal, [$($parameter:expr),*]) => {
        Entry {
            name: $name,
            build: |table, _| {
                let method: $method = read($name, table)?;
                method.check_settings()?;
                Ok(Arc::new(method))
            },
            resolve: |table, _| to_table(&read::<$method>($name, table)?),
            example: $example,
            parameters: &[$($parameter),*],
        }
    };
}

/// All methods.
pub const METHODS: &[Entry] = &[
    Entry {
        name: "daps",
        build: |table, facts| Ok(Arc::new(Daps::from_table(table, facts)?)),
        resolve: |table, facts| to_table(&Daps::from_table(table, facts)?),
        example: r#"
preset = "paper"
budget = "100"
kernel = "langevin"
"#,
        parameters: &[
            Parameter::log("beta", 0.01, 0.002, 0.2),
            Parameter::log("kernel.step_size.eta0", 1e-4, 1e-5, 3e-3),
        ],
    },
    entry!(
        "dps",
        Dps,
        r#"
schedule = { rule = "ddpm", levels = 1000, first = 999 }
dynamics = "sde"
guidance = { norm = { zeta = 1.0 } }
"#,
        [Parameter::log("guidance.norm.zeta", 1.0, 0.03, 10.0)]
    ),
    entry!(
        "ddrm",
        Ddrm,
        r#"
schedule = { rule = "ddpm", levels = 20, first = 950 }
eta = 0.85
eta_b = 1.0
"#,
        [Parameter::linear("eta", 0.85, 0.0, 1.0), Parameter::linear("eta_b", 1.0, 0.0, 1.0)]
    ),
    entry!(
        "ddnm",
        Ddnm,
        r#"
schedule = { rule = "ddpm", levels = 100, first = 990 }
eta = 0.85
"#,
        [Parameter::linear("eta", 0.85, 0.0, 1.0)]
    ),
    entry!(
        "diffpir",
        DiffPir,
        r#"
schedule = { rule = "ddpm", levels = 100 }
lambda = 0.25
zeta = 0.1
"#,
        [Parameter::log("lambda", 0.25, 0.01, 10.0), Parameter::linear("zeta", 0.1, 0.0, 1.0)]
    ),
    entry!(
        "red_diff",
        RedDiff,
        r#"
schedule = { rule = "ddpm", levels = 1000 }
lambda = 0.25
rate = 0.5
"#,
        [Parameter::log("lambda", 0.25, 0.01, 10.0), Parameter::log("rate", 0.5, 0.005, 1.0)]
    ),
    entry!(
        "dcdp",
        Dcdp,
        r#"
schedule = { rule = "ddpm", levels = 10, first = 399 }
steps = 100
rate = 0.01
momentum = 0.9
ode = { steps = 20 }
"#,
        [
            Parameter::log("rate", 0.01, 0.001, 2.0),
            Parameter::linear("momentum", 0.9, 0.0, 0.95),
            Parameter::count("ode.steps", 20.0, 1.0, 20.0)
        ]
    ),
    entry!(
        "fps_smc",
        FpsSmc,
        r#"
schedule = { rule = "ddpm", levels = 1000 }
particles = 20
fresh = 0.95
"#,
        [Parameter::linear("fresh", 0.95, 0.2, 1.0)]
    ),
    entry!(
        "dpnp",
        Dpnp,
        r#"
iterations = 60
hold = 10
eta = 3.0
eta_min = 0.1
reverse = { steps = 100 }
"#,
        [Parameter::log("eta", 3.0, 0.3, 30.0), Parameter::log("eta_min", 0.1, 0.02, 0.5)]
    ),
    entry!(
        "pnp_dm",
        PnpDm,
        r#"
iterations = 100
rho = 10.0
decay = 0.9
rho_min = 0.3
reverse = { steps = 100 }
"#,
        [
            Parameter::log("rho", 10.0, 1.0, 30.0),
            Parameter::linear("decay", 0.9, 0.7, 0.95),
            Parameter::log("rho_min", 0.3, 0.02, 0.5)
        ]
    ),
    entry!(
        "hio",
        Hio,
        r#"
iterations = 1000
feedback = 0.9
"#,
        [Parameter::linear("feedback", 0.9, 0.1, 1.0)]
    ),
    entry!("pseudo_inverse", PseudoInverse, "cutoff = 0.01", [Parameter::log("cutoff", 0.01, 1e-4, 1.0)]),
    entry!("wiener", Wiener, "std = 0.5", [Parameter::log("std", 0.5, 0.05, 2.0)]),
    entry!(
        "tv",
        Tv,
        r#"
lambda = 10.0
iterations = 500
"#,
        [Parameter::log("lambda", 10.0, 0.5, 200.0)]
    ),
    entry!(
        "harmonic",
        Harmonic,
        r#"
gamma = 0.1
iterations = 500
"#,
        [Parameter::log("gamma", 0.1, 0.005, 1.0)]
    ),
    entry!("bicubic", Bicubic, "", []),
    Entry {
        name: "discrete_daps",
        build: |table, _| Ok(Arc::new(DiscreteDaps::from_table(table)?)),
        resolve: |table, _| to_table(&DiscreteDaps::from_table(table)?),
        example: r#"
preset = "best"
"#,
        parameters: &[],
    },
    entry!(
        "svdd_pm",
        SvddPm,
        r#"
schedule = { rule = "geometric", levels = 50, max = 20.0, min = 0.01 }
particles = 20
alpha = 1.0
"#,
        [Parameter::log("alpha", 1.0, 0.01, 10.0)]
    ),
    entry!(
        "best_of_n",
        BestOfN,
        r#"
schedule = { rule = "geometric", levels = 50, max = 20.0, min = 0.01 }
particles = 20
"#,
        []
    ),
];

/// The method of a name.
pub fn entry(name: &str) -> Result<&'static Entry> {
    let entry = METHODS.iter().find(|m| m.name == name);
    entry.ok_or_else(|| Error::unknown("method", name, METHODS.iter().map(|m| m.name)))
}

/// Builds a method for a measurement from its name and settings.
pub fn build(name: &str, table: &Table, likelihood: &dyn Likelihood) -> Result<Arc<dyn Method>> {
    (entry(name)?.build)(table, &Facts::of(likelihood))
}

/// The settings with every default and preset spelled out, so that a file of them means the same for ever.
pub fn resolve(name: &str, table: &Table, likelihood: &dyn Likelihood) -> Result<Table> {
    resolve_by(name, table, &Facts::of(likelihood))
}

/// The same, where no measurement is there but its facts are known.
pub fn resolve_by(name: &str, table: &Table, facts: &Facts) -> Result<Table> {
    let entry = entry(name)?;
    (entry.build)(table, facts)?;
    (entry.resolve)(table, facts)
}

/// Refuses a name or settings that fit no measurement, before there is one.
pub fn check(name: &str, table: &Table) -> Result<()> {
    let entry = entry(name)?;
    let mut first = Ok(());
    for facts in Facts::kinds() {
        match (entry.build)(table, &facts) {
            Ok(_) => return Ok(()),
            Err(error) => first = first.and(Err(error)),
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(task: &str) -> Facts {
        Facts::of_task(task).unwrap()
    }

    fn resolve(name: &str, table: &Table, task: &str) -> Result<Table> {
        resolve_by(name, table, &facts(task))
    }

    fn build(name: &str, table: &Table, task: &str) -> Result<Arc<dyn Method>> {
        (entry(name)?.build)(table, &facts(task))
    }

    #[test]
    fn every_method_has_a_paper_a_summary_and_an_example_that_builds() {
        for entry in METHODS {
            let table: Table = entry.example.parse().unwrap();
            let method = (entry.build)(&table, &facts("super_resolution")).unwrap();
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
                        (entry.build)(&table, &facts("super_resolution")).is_ok(),
                        "{}.{}",
                        entry.name,
                        parameter.name
                    );
                }
                let resolved = resolve(entry.name, &Table::new(), "super_resolution").unwrap();
                let spelled = parameter
                    .name
                    .split('.')
                    .try_fold(&toml::Value::Table(resolved), |v, k| v.get(k))
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
        expected["kernel"]["steps"] = toml::Value::Integer(7);
        assert_eq!(resolved("official", "{ kind = 'hmc', steps = 7 }", "hdr"), expected);
    }

    /// Without a kind it is the preset's own kernel, and without a rule its own step size.
    #[test]
    fn single_numbers_of_a_presets_kernel_can_be_changed() {
        let resolved = |text: &str, task: &str| resolve("daps", &text.parse().unwrap(), task);
        let mut expected = resolved("preset = 'official'", "hdr").unwrap();
        expected["kernel"]["steps"] = toml::Value::Integer(7);
        expected["kernel"]["step_size"]["eta0"] = toml::Value::Float(3e-4);
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
