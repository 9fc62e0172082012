//! The list of methods.
//!
//! Not here yet: PSLD and ReSample, which come with latent priors; ScoreMRI and CSGM, which come with trained MRI priors.

use daps_core::{Error, Result};
use toml::Table;

use crate::config::Settings;
use crate::settings::read;
use crate::{
    BestOfN, Bicubic, DapsSettings, Dcdp, Ddnm, Ddrm, DiffPir, DiscreteSettings, Dpnp, Dps, FpsSmc, Harmonic,
    Hio, Parameter, PnpDm, PseudoInverse, RedDiff, SvddPm, Tv, Wiener,
};

/// An entry of the registry.
pub struct Entry {
    /// Name in configurations.
    pub name: &'static str,
    /// Reads its settings.
    pub(crate) parse: fn(Table) -> Result<MethodConfig>,
    /// A complete configuration that works, for documentation and tests.
    pub example: &'static str,
    /// What a search may tune.
    pub parameters: &'static [Parameter],
}

impl Entry {
    /// The method with the settings of the example.
    pub fn example(&self) -> Result<MethodConfig> {
        let table = self.example.parse().map_err(|e| Error::invalid(self.name, "an example in TOML", e))?;
        (self.parse)(table)
    }
}

/// The registry: for every method its settings, its name, an example and what a search may tune.
macro_rules! methods {
    ($($method:ident($settings:ty) $name:literal $example:literal [$($parameter:expr),*];)*) => {
        /// A `[method]` table: `name` and the settings of that method, as they were given.
        #[derive(Clone, Debug, PartialEq)]
        pub enum MethodConfig {
            /// Without a name: DAPS, or discrete DAPS where the prior is one over tokens.
            Unnamed(DapsSettings),
            $(#[doc = concat!("`name = \"", $name, "\"`.")] $method($settings),)*
        }

        /// All methods.
        pub const METHODS: &[Entry] = &[$(Entry {
            name: $name,
            parse: |table| Ok(MethodConfig::$method(read($name, table)?)),
            example: $example,
            parameters: &[$($parameter),*],
        }),*];

        impl MethodConfig {
            /// Its name, where it was given.
            #[must_use]
            pub fn name(&self) -> Option<&'static str> {
                match self {
                    Self::Unnamed(_) => None,
                    $(Self::$method(_) => Some($name),)*
                }
            }

            pub(crate) fn settings(&self) -> &dyn Settings {
                match self {
                    Self::Unnamed(settings) => settings,
                    $(Self::$method(settings) => settings,)*
                }
            }
        }
    };
}

methods! {
    Daps(DapsSettings) "daps"
    r#"
preset = "paper"
budget = "100"
kernel = "langevin"
"#
    [Parameter::log("beta", 0.01, 0.002, 0.2), Parameter::log("kernel.step_size.eta0", 1e-4, 1e-5, 3e-3)];
    Dps(Dps) "dps"
    r#"
schedule = { rule = "ddpm", levels = 1000, first = 999 }
dynamics = "sde"
guidance = { norm = { zeta = 1.0 } }
"#
    [Parameter::log("guidance.norm.zeta", 1.0, 0.03, 10.0)];
    Ddrm(Ddrm) "ddrm"
    r#"
schedule = { rule = "ddpm", levels = 20, first = 950 }
eta = 0.85
eta_b = 1.0
"#
    [Parameter::linear("eta", 0.85, 0.0, 1.0), Parameter::linear("eta_b", 1.0, 0.0, 1.0)];
    Ddnm(Ddnm) "ddnm"
    r#"
schedule = { rule = "ddpm", levels = 100, first = 990 }
eta = 0.85
"#
    [Parameter::linear("eta", 0.85, 0.0, 1.0)];
    DiffPir(DiffPir) "diffpir"
    r#"
schedule = { rule = "ddpm", levels = 100 }
lambda = 0.25
zeta = 0.1
"#
    [Parameter::log("lambda", 0.25, 0.01, 10.0), Parameter::linear("zeta", 0.1, 0.0, 1.0)];
    RedDiff(RedDiff) "red_diff"
    r#"
schedule = { rule = "ddpm", levels = 1000 }
lambda = 0.25
rate = 0.5
"#
    [Parameter::log("lambda", 0.25, 0.01, 10.0), Parameter::log("rate", 0.5, 0.005, 1.0)];
    Dcdp(Dcdp) "dcdp"
    r#"
schedule = { rule = "ddpm", levels = 10, first = 399 }
steps = 100
rate = 0.01
momentum = 0.9
ode = { steps = 20 }
"#
    [Parameter::log("rate", 0.01, 0.001, 2.0), Parameter::linear("momentum", 0.9, 0.0, 0.95), Parameter::count("ode.steps", 20.0, 1.0, 20.0)];
    FpsSmc(FpsSmc) "fps_smc"
    r#"
schedule = { rule = "ddpm", levels = 1000 }
particles = 20
fresh = 0.95
"#
    [Parameter::linear("fresh", 0.95, 0.2, 1.0)];
    Dpnp(Dpnp) "dpnp"
    r#"
iterations = 60
hold = 10
eta = 3.0
eta_min = 0.1
reverse = { steps = 100 }
"#
    [Parameter::log("eta", 3.0, 0.3, 30.0), Parameter::log("eta_min", 0.1, 0.02, 0.5)];
    PnpDm(PnpDm) "pnp_dm"
    r#"
iterations = 100
rho = 10.0
decay = 0.9
rho_min = 0.3
reverse = { steps = 100 }
"#
    [Parameter::log("rho", 10.0, 1.0, 30.0), Parameter::linear("decay", 0.9, 0.7, 0.95), Parameter::log("rho_min", 0.3, 0.02, 0.5)];
    Hio(Hio) "hio"
    r#"
iterations = 1000
feedback = 0.9
"#
    [Parameter::linear("feedback", 0.9, 0.1, 1.0)];
    PseudoInverse(PseudoInverse) "pseudo_inverse"
    "cutoff = 0.01"
    [Parameter::log("cutoff", 0.01, 1e-4, 1.0)];
    Wiener(Wiener) "wiener"
    "std = 0.5"
    [Parameter::log("std", 0.5, 0.05, 2.0)];
    Tv(Tv) "tv"
    r#"
lambda = 10.0
iterations = 500
"#
    [Parameter::log("lambda", 10.0, 0.5, 200.0)];
    Harmonic(Harmonic) "harmonic"
    r#"
gamma = 0.1
iterations = 500
"#
    [Parameter::log("gamma", 0.1, 0.005, 1.0)];
    Bicubic(Bicubic) "bicubic"
    ""
    [];
    DiscreteDaps(DiscreteSettings) "discrete_daps"
    r#"
preset = "best"
"#
    [];
    SvddPm(SvddPm) "svdd_pm"
    r#"
schedule = { rule = "geometric", levels = 50, max = 20.0, min = 0.01 }
particles = 20
alpha = 1.0
"#
    [Parameter::log("alpha", 1.0, 0.01, 10.0)];
    BestOfN(BestOfN) "best_of_n"
    r#"
schedule = { rule = "geometric", levels = 50, max = 20.0, min = 0.01 }
particles = 20
"#
    [];
}

/// The method of a name.
pub fn entry(name: &str) -> Result<&'static Entry> {
    let entry = METHODS.iter().find(|m| m.name == name);
    entry.ok_or_else(|| Error::unknown("method", name, METHODS.iter().map(|m| m.name)))
}
