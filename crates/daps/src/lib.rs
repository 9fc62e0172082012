//! Posterior sampling with diffusion priors: tasks and methods become runs, and runs are validated.

pub mod assets;
pub mod bundled;
pub mod canvas;
mod choose;
mod config;
pub mod demo;
mod directory;
mod error;
pub mod experiment;
pub mod files;
pub mod fit;
pub mod font;
mod inputs;
pub mod load;
mod measure;
mod output;
pub mod picture;
pub mod plot;
pub mod prior;
pub mod progress;
pub mod quality;
mod record;
pub mod report;
mod run;
mod summary;
pub mod task;
mod tokens;
pub mod train;
pub mod tune;
mod tuned;
pub mod validate;

pub use config::{RunConfig, TaskConfig};
pub use error::{Error, Result};
pub use run::{Directory, Run};
pub use summary::{Measurement, Summary};

pub use {
    daps_core as core, daps_methods as methods, daps_metrics as metrics, daps_nn as nn,
    daps_operators as operators, daps_priors as priors,
};
