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

use daps_core::real::{Real, finite_rows, with_slice};
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

/// A kernel with its settings; `kind` in a configuration file names the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum KernelConfig {
    /// Unadjusted Langevin steps.
    Langevin(Langevin),
    /// Damped Hamiltonian steps, as shipped.
    Hmc(Hmc),
    /// Random-walk Metropolis, whole-image or in blocks.
    Metropolis(Metropolis),
    /// Metropolis-adjusted Langevin with an adapted step.
    Mala(Mala),
    /// Langevin dynamics with momentum, preconditioned.
    Underdamped(Underdamped),
    /// The law of N Langevin steps, drawn at once.
    Replay(Replay),
    /// A draw of the conditional itself.
    Exact(Exact),
    /// Metropolis over tokens.
    Flips(Flips),
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

/// All kernels.
pub const KERNELS: &[KernelInfo] = &[
    KernelInfo {
        name: "langevin",
        summary: "N unadjusted Langevin steps from the estimate (the paper's default)",
        default: || KernelConfig::Langevin(Langevin::default()),
    },
    KernelInfo {
        name: "hmc",
        summary: "N damped Hamiltonian steps with a velocity drawn once per level, no accept step (as shipped)",
        default: || KernelConfig::Hmc(Hmc::default()),
    },
    KernelInfo {
        name: "metropolis",
        summary: "random-walk Metropolis; one accept per image (as shipped, blocks = 1) or block by block",
        default: || KernelConfig::Metropolis(Metropolis::default()),
    },
    KernelInfo {
        name: "mala",
        summary: "Metropolis-adjusted Langevin, step bounded by the operator and adapted in a warm-up, then frozen",
        default: || KernelConfig::Mala(Mala::default()),
    },
    KernelInfo {
        name: "underdamped",
        summary: "Langevin dynamics with momentum, masses from the prior's variances and the operator's bound; no accept step",
        default: || KernelConfig::Underdamped(Underdamped::default()),
    },
    KernelInfo {
        name: "replay",
        summary: "the exact law of N Langevin steps for a linear operator with a fast SVD, without the loop",
        default: || KernelConfig::Replay(Replay::default()),
    },
    KernelInfo {
        name: "exact",
        summary: "an exact draw of the conditional: diagonal, SVD, FFT or conjugate gradients; pixelwise for HDR; by groups for tokens",
        default: || KernelConfig::Exact(Exact::default()),
    },
    KernelInfo {
        name: "flips",
        summary: "Metropolis over tokens, one at a time or those behind one measured token together",
        default: || KernelConfig::Flips(Flips::default()),
    },
];

impl KernelConfig {
    /// The default settings of a named kernel.
    pub fn named(name: &str) -> Result<Self> {
        KERNELS
            .iter()
            .find(|k| k.name == name)
            .map(|k| (k.default)())
            .ok_or_else(|| Error::unknown("kernel", name, KERNELS.iter().map(|k| k.name)))
    }

    /// Checks the settings and builds the kernel.
    pub fn build(&self) -> Result<Arc<dyn Kernel>> {
        Ok(match self {
            Self::Langevin(k) => Arc::new(k.checked()?),
            Self::Hmc(k) => Arc::new(k.checked()?),
            Self::Metropolis(k) => Arc::new(k.checked()?),
            Self::Mala(k) => Arc::new(k.checked()?),
            Self::Underdamped(k) => Arc::new(k.checked()?),
            Self::Replay(k) => Arc::new(k.checked()?),
            Self::Exact(k) => Arc::new(k.checked()?),
            Self::Flips(k) => Arc::new(k.checked()?),
        })
    }

    /// What it asks of a task when p(x0 | x_t) is a Gaussian.
    #[must_use]
    pub fn needs(&self) -> Vec<Need> {
        match self {
            Self::Langevin(_) | Self::Hmc(_) | Self::Mala(_) | Self::Underdamped(_) => {
                vec![Need::SmoothLikelihood]
            }
            Self::Metropolis(_) => vec![],
            Self::Replay(_) => vec![Need::SpectralOperator],
            Self::Exact(_) => vec![Need::ConjugateOperator],
            Self::Flips(_) => vec![Need::Tokens],
        }
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
