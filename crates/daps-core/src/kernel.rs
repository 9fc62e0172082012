//! Kernels move a batch of chains in lockstep to x0|y ~ p(x0 | x_t) p(y | x0).

use candle_core::Tensor;

use crate::{Approx, Cost, Likelihood, Noise, Result, Step};

/// The target of a kernel: an approximation of p(x0 | x_t) times the likelihood.
pub struct Conditional<'a> {
    /// p(x0 | x_t).
    pub approx: &'a Approx<'a>,
    /// p(y | x0).
    pub likelihood: &'a dyn Likelihood,
}

/// Diagnostics of one draw; they never feed back into a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainInfo {
    /// Share of accepted proposals per row, where proposals are accepted or not.
    pub acceptance: Option<Vec<f64>>,
    /// Rows whose state left the finite numbers, or whose recursion is unstable.
    pub diverged: Vec<bool>,
    /// Denoiser and operator calls of this draw.
    pub cost: Cost,
    /// Iterations of a linear solver, where one ran.
    pub iterations: Option<usize>,
}

/// A transition towards the target. Decisions are taken row by row and never depend on neighbours in the batch.
pub trait Kernel: Send + Sync {
    /// The name in the registry.
    fn name(&self) -> &'static str;

    /// Draws x0|y for every row.
    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)>;
}
