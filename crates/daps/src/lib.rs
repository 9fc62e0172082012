//! Posterior sampling with diffusion priors: tasks and methods become runs.

mod answer;
pub mod assets;
pub mod bundled;
pub mod canvas;
mod choose;
mod config;
mod configured;
pub mod demo;
pub mod directory;
mod error;
pub mod event;
pub mod files;
pub mod fit;
pub mod font;
mod format;
pub mod inputs;
mod ledger;
pub mod library;
pub mod load;
pub mod manifest;
mod measure;
mod numbers;
mod outcome;
mod output;
mod parts;
pub mod picture;
pub mod plot;
mod posterior;
pub mod prior;
pub mod progress;
pub mod quality;
mod record;
pub mod report;
mod rounding;
mod run;
mod shapes;
mod summary;
pub mod task;
mod tokens;
pub mod train;

pub use answer::{Answer, Answers};
pub use config::{RunConfig, TaskConfig};
pub use error::{Error, Result};
pub use event::{RunEvent, RunObserver};
pub use format::Format;
pub use ledger::Ledger;
pub use measure::Truths;
pub use outcome::Outcome;
pub use parts::{Chosen, Parts};
pub use posterior::Posterior;
pub use run::{Directory, Run};
pub use shapes::Runs;
pub use summary::{Measurement, Summary};

/// The README's library example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

pub use {
    daps_core as core, daps_methods as methods, daps_metrics as metrics, daps_nn as nn,
    daps_operators as operators, daps_priors as priors,
};
