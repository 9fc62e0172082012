//! Priors in closed form: Gaussians, Gaussian mixtures and point sets that denoise, differentiate, draw and know their own
//! posterior, in f64 and for samples of any shape.

mod algebra;
mod analytic;
mod config;
mod empirical;
mod error;
mod files;
mod gaussian;
mod mixture;
mod mixture_conditional;
mod plane;
mod registry;
mod spectrum;
mod spread;

pub use analytic::{Analytic, Posterior, posterior};
pub use config::{EmpiricalConfig, GaussianConfig, MixtureConfig, PerComponent, Values};
pub use empirical::Empirical;
pub use error::{Error, Result};
pub use files::{read_array, read_images};
pub use mixture::GaussianMixture;
pub use registry::{PriorInfo, build, registry};
pub use spread::spread_table;
