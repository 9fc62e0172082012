//! Posterior sampling with diffusion priors: tasks and methods become runs, and runs are validated.

pub mod assets;
mod config;
mod error;
pub mod files;
pub mod fit;
pub mod picture;
pub mod plot;
pub mod progress;
pub mod quality;
mod run;
pub mod validate;

pub use config::{RunConfig, TaskConfig};
pub use error::{Error, Result};
pub use run::{Directory, Run, Summary};

pub use {
    daps_core as core, daps_methods as methods, daps_metrics as metrics, daps_operators as operators,
    daps_priors as priors,
};
