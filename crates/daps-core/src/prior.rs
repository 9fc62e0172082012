//! What the annealing loop asks of a prior.

use candle_core::Tensor;

use crate::{Approx, Noise, Result, Step};

/// An estimate of p(x0 | x_t) and what it cost.
pub struct Estimated<'a> {
    /// p(x0 | x_t), approximately.
    pub approx: Approx<'a>,
    /// Denoiser calls per row.
    pub nfe: usize,
}

/// A prior in the loop: how to start, how to estimate x0 from x_t, how to put noise back.
pub trait Prior: Send + Sync {
    /// x_T at the schedule's first level.
    fn init(&self, sigma: f64, noise: &Noise) -> Result<Tensor>;

    /// ≈ p(x0 | x_t).
    fn estimate(&self, x_t: &Tensor, step: &Step, noise: &Noise) -> Result<Estimated<'_>>;

    /// x_t at the next level from x0|y.
    fn renoise(&self, x0_y: &Tensor, step: &Step, noise: &Noise) -> Result<Tensor>;
}
