//! Posterior sampling with diffusion priors: tasks and methods become runs, and runs are validated.

mod config;
mod error;
pub mod files;
pub mod picture;
pub mod plot;
pub mod progress;
mod run;
pub mod train;
pub mod validate;

pub use config::{RunConfig, TaskConfig};
pub use error::{Error, Result};
pub use run::{Directory, Run, Summary};

pub use {
    daps_core as core, daps_methods as methods, daps_metrics as metrics, daps_nn as nn,
    daps_operators as operators, daps_priors as priors,
};
