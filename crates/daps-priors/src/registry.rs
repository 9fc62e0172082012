//! The kinds of priors that a configuration can name.

use serde::de::DeserializeOwned;
use toml::Table;

use crate::{Error, PriorConfig, Result, TrainedConfig};

/// A kind of prior.
pub struct PriorInfo {
    /// The value of `kind`.
    pub name: &'static str,
    /// What it is, in one sentence.
    pub summary: &'static str,
    /// A working configuration.
    pub example: &'static str,
    /// The settings beside `kind`, typed.
    pub(crate) parse: fn(Table) -> Result<PriorConfig>,
}

/// All kinds, in the order of the variants of [`PriorConfig`].
#[must_use]
pub fn registry() -> &'static [PriorInfo] {
    &[
        PriorInfo {
            name: "gaussian",
            summary: "A Gaussian with a scalar, diagonal or full covariance.",
            example: "kind = \"gaussian\"\nmean = 0.0\nstd = 0.5\n",
            parse: |table| parse("gaussian", table).map(PriorConfig::Gaussian),
        },
        PriorInfo {
            name: "mixture",
            summary: "A mixture of Gaussians with scalar, diagonal or full covariances.",
            example: "kind = \"mixture\"\nweights = [0.5, 0.5]\nmeans = [-1.0, 1.0]\nstd = 0.2\n",
            parse: |table| parse("mixture", table).map(PriorConfig::Mixture),
        },
        PriorInfo {
            name: "empirical",
            summary: "The points of a file or the images of a folder, each with its weight.",
            example: "kind = \"empirical\"\nfile = \"points.npy\"\n",
            parse: |table| parse("empirical", table).map(PriorConfig::Empirical),
        },
        PriorInfo {
            name: "network",
            summary: "A diffusion network from a checkpoint (file), or a known one (name).",
            example: "kind = \"network\"\nfile = \"ffhq_10m.pt\"   # or name = \"faces\"\nconfig = \"ffhq256\"      # where the file carries none\n",
            parse: |table| parse("network", table).and_then(TrainedConfig::checked).map(PriorConfig::Network),
        },
    ]
}

fn parse<T: DeserializeOwned>(kind: &'static str, table: Table) -> Result<T> {
    table
        .try_into()
        .map_err(|e: toml::de::Error| Error::config(kind, daps_core::with_suggestion(&e.to_string())))
}
