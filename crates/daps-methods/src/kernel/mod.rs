//! Kernels that draw x0|y, one file each, and the registry that builds them from a configuration.

mod exact;
mod flips;
mod hmc;
mod langevin;
mod mala;
mod metropolis;
mod replay;
mod step_size;
mod underdamped;

use std::sync::Arc;

use daps_core::tensors::{Real, finite_rows, with_slice};
use daps_core::{Error, Kernel, Likelihood, Need, Result, Smooth, candle::Tensor, with_real};
use serde::{Deserialize, Serialize};

pub(crate) use exact::check_groups;
pub use exact::{Exact, Way};
pub use flips::Flips;
pub use hmc::Hmc;
pub use langevin::Langevin;
pub use mala::Mala;
pub use metropolis::Metropolis;
pub use replay::{Recursion, Replay};
pub(crate) use step_size::default_delta;
pub use step_size::{DecayBy, StepSize};
pub use underdamped::Underdamped;

/// What a kernel's settings say beside how it draws.
pub(crate) trait Registered: Kernel + Clone + Default + 'static {
    /// What it asks of a task when p(x0 | x_t) is a Gaussian.
    const NEEDS: &'static [Need];

    /// Refuses settings that no chain can have.
    fn check(&self) -> Result<()>;
}

/// An entry of the registry.
pub struct KernelInfo {
    /// Name in configurations.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The kernel with its default settings.
    pub default: fn() -> KernelConfig,
}

/// The registry: for every kernel its type, its name and one sentence.
macro_rules! kernels {
    ($($kernel:ident $name:literal $summary:literal;)*) => {
        /// A kernel with its settings; `kind` in a configuration file names the variant.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind")]
        pub enum KernelConfig {
            $(#[doc = $summary] #[serde(rename = $name)] $kernel($kernel),)*
        }

        /// All kernels.
        pub const KERNELS: &[KernelInfo] = &[$(KernelInfo {
            name: $name,
            summary: $summary,
            default: || KernelConfig::$kernel($kernel::default()),
        }),*];

        impl KernelConfig {
            /// Checks the settings and builds the kernel.
            pub fn build(&self) -> Result<Arc<dyn Kernel>> {
                match self {
                    $(Self::$kernel(k) => { k.check()?; Ok(Arc::new(k.clone())) })*
                }
            }

            /// What it asks of a task when p(x0 | x_t) is a Gaussian.
            #[must_use]
            pub fn needs(&self) -> Vec<Need> {
                match self {
                    $(Self::$kernel(_) => $kernel::NEEDS.to_vec(),)*
                }
            }
        }
    };
}

kernels! {
    Langevin "langevin" "N unadjusted Langevin steps from the estimate (the paper's default)";
    Hmc "hmc" "N damped Hamiltonian steps with a velocity drawn once per level, no accept step (as shipped)";
    Metropolis "metropolis" "random-walk Metropolis; one accept per image (as shipped, blocks = 1) or block by block";
    Mala "mala" "Metropolis-adjusted Langevin, step bounded by the operator and adapted in a warm-up, then frozen";
    Underdamped "underdamped"
        "Langevin dynamics with momentum, masses from the prior's variances and the operator's bound; no accept step";
    Replay "replay" "the exact law of N Langevin steps for a linear operator with a fast SVD, without the loop";
    Exact "exact"
        "an exact draw of the conditional: diagonal, SVD, FFT or conjugate gradients; pixelwise for HDR; by groups for tokens";
    Flips "flips" "Metropolis over tokens, one at a time or those behind one measured token together";
}

impl KernelConfig {
    /// The default settings of a named kernel.
    pub fn named(name: &str) -> Result<Self> {
        KERNELS
            .iter()
            .find(|k| k.name == name)
            .map(|k| (k.default)())
            .ok_or_else(|| Error::unknown("kernel", name, KERNELS.iter().map(|k| k.name)))
    }
}

/// A value beyond this, in units where data are of order 1 to 100, is a chain that blew up before it left the finite numbers.
const BLOWN_UP: f64 = 1e6;

/// Rows that left the finite numbers or grew beyond anything data can be.
fn diverged_rows(x: &Tensor) -> Result<Vec<bool>> {
    let n = x.elem_count() / x.dims()[0].max(1);
    let finite = finite_rows(x)?;
    let large: Vec<bool> = with_real!(x.dtype(), T => with_slice(x, |x: &[T]| {
        x.chunks(n.max(1)).map(|row| row.iter().any(|v| v.wide().abs() > BLOWN_UP)).collect()
    }))?;
    Ok(finite.iter().zip(large).map(|(finite, large)| !finite || large).collect())
}

fn smooth<'a>(who: &'static str, likelihood: &'a dyn Likelihood) -> Result<&'a dyn Smooth> {
    likelihood
        .as_smooth()
        .ok_or_else(|| Error::missing(who, "a differentiable likelihood", likelihood.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_kernel_builds_and_reads_back_under_its_own_name() {
        for info in KERNELS {
            let config = (info.default)();
            assert_eq!(config.build().unwrap().name(), info.name);
            let text = toml::to_string(&config).unwrap();
            assert!(text.contains(&format!("kind = \"{}\"", info.name)), "{text}");
            assert_eq!(toml::from_str::<KernelConfig>(&text).unwrap(), config);
        }
        let error = KernelConfig::named("gibbs").unwrap_err().to_string();
        assert!(error.contains("unknown kernel 'gibbs'") && error.contains("langevin"), "{error}");
    }
}
