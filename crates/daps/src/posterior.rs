//! The samples of a run in memory.

use candle_core::{DType, Tensor};
use daps_core::tensors::{batched, from_f64};

use crate::outcome::Outcome;
use crate::run::Run;
use crate::{Result, Summary};

/// Samples of the posterior of every measurement, and what they say.
pub struct Posterior {
    /// `[measurements, chains, shape…]`: for tokens the symbols, else numbers in the type of the prior. A chain that diverged has
    /// what it left behind.
    pub samples: Tensor,
    /// The mean over the kept chains, `[measurements, shape…]`; for tokens the mean of their grey values.
    pub mean: Tensor,
    /// The standard deviation over the kept chains, where there are at least two; NaN for a measurement that has fewer.
    pub std: Option<Tensor>,
    /// Which chains diverged, `[measurements · chains]`.
    pub diverged: Vec<bool>,
    /// Diagnostics of every measurement.
    pub summary: Summary,
}

impl Posterior {
    pub(crate) fn new(run: &Run, outcome: Outcome) -> Result<Self> {
        let (n, shape) = (run.names.len(), run.space.shape());
        let std = spreads(&outcome.std, run.space.size());
        Ok(Self {
            samples: outcome.samples.reshape(batched(n, &batched(run.samples, shape)))?,
            mean: from_f64(outcome.mean.concat(), &batched(n, shape), DType::F64)?,
            std: std.map(|s| from_f64(s, &batched(n, shape), DType::F64)).transpose()?,
            diverged: outcome.diverged,
            summary: outcome.summary,
        })
    }
}

/// Standard deviations of all measurements, where any has some: NaN for those of which fewer than two chains are left.
pub(crate) fn spreads(stds: &[Option<Vec<f64>>], d: usize) -> Option<Vec<f64>> {
    let row = |std: &Option<Vec<f64>>| std.clone().unwrap_or_else(|| vec![f64::NAN; d]);
    stds.iter().any(Option::is_some).then(|| stds.iter().flat_map(row).collect())
}
