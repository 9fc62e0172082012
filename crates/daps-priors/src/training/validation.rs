//! How good a denoiser is on images that it has not seen, and what its samples look like.

use std::ops::Range;

use candle_core::{DType, Tensor};
use daps_core::{Address, Denoiser, Noise, Ode, OdeEnd, OdeOrder, OdeSteps, Purpose, RHO, SpreadTable, Step};

use crate::Result;
use crate::spread::spread_table;

/// Levels of the denoising table in a model card.
pub const DENOISING_LEVELS: [f64; 7] = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// Peak signal-to-noise ratio in dB of images in [-1, 1] whose RMS error is `r`.
#[must_use]
pub fn psnr(r: f64) -> f64 {
    20.0 * (2.0 / r).log10()
}

/// r(σ) on held-out images, with noise that depends on the seed alone.
pub fn measure_spread(
    model: &dyn Denoiser,
    held_out: &Tensor,
    sigmas: &[f64],
    seed: u64,
) -> Result<SpreadTable> {
    let rows = held_out.dims().first().copied().unwrap_or(0);
    Ok(spread_table(model, held_out, sigmas, &Noise::chains(seed, rows))?)
}

/// Samples of the prior: EDM's deterministic sampler, Heun's method with `steps` steps from σ = 80.
pub fn draw_samples(model: &dyn Denoiser, count: usize, steps: usize, seed: u64) -> Result<Tensor> {
    draw_rows(model, 0..count, steps, seed)
}

/// Some of those samples, by their numbers: a few at a time are the same as all at once.
pub fn draw_rows(model: &dyn Denoiser, rows: Range<usize>, steps: usize, seed: u64) -> Result<Tensor> {
    const START: f64 = 80.0;
    let ode =
        Ode { steps: OdeSteps::Fixed(steps), min: 0.002, rho: RHO, end: OdeEnd::Zero, order: OdeOrder::Heun };
    let noise = Noise::chains(seed, rows.end).select(&rows.collect::<Vec<_>>());
    let z = noise.normal(Address::new(0, Purpose::Init, 0), model.shape(), DType::F32)?;
    let x_t = (z * START).map_err(daps_core::Error::from)?;
    let step = Step { index: 0, of: 1, start: START, sigma: START, next: 0.0 };
    Ok(ode.solve(model, &x_t, &step)?.0)
}
