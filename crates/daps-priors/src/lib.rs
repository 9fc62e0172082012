//! Priors: Gaussians, Gaussian mixtures and point sets in closed form, which denoise, differentiate, draw and know their own
//! posterior, in f64 and for samples of any shape; and diffusion networks with their checkpoints, in f32.

mod algebra;
mod analytic;
pub mod checkpoint;
mod classifier;
mod config;
mod empirical;
mod error;
mod files;
mod gaussian;
mod listed;
mod local;
mod memory;
mod mixture;
mod mixture_conditional;
pub mod network;
mod plane;
mod registry;
mod settings;
mod source;
mod spectrum;
mod spread;
pub mod training;

pub use analytic::{Analytic, Posterior, posterior};
pub use classifier::Classifier;
pub use config::{EmpiricalConfig, GaussianConfig, MixtureConfig, PerComponent, Values};
pub use empirical::Empirical;
pub use error::{Error, KeyMismatch, Result};
pub use files::{read_array, read_images, read_pictures};
pub use listed::Listed;
pub use local::LocalHead;
pub use memory::Memory;
pub use mixture::GaussianMixture;
pub use network::{NetworkConfig, NetworkPrior, TokenPrior};
pub use registry::{PriorInfo, registry};
pub use settings::{PriorConfig, TrainedConfig};
pub use source::{Built, Source};
pub use spread::{spread_bound, spread_table};
