//! FPS-SMC: filtering along the reverse diffusion with a noised copy of the measurement at every level, by particles.
//!
//! Paper: Dou, Song, "Diffusion Posterior Sampling for Linear Inverse Problem Solving: A Filtering Perspective", ICLR 2024,
//! Algorithms 1 and 2. The measurement is diffused with the noise of x seen through A, y_σ = y + σ A n, a chain drawn
//! backwards from its first level; p(y_σ | x_σ) = N(A x_σ, β²). From particles at σ, ancestors are resampled with weights
//! p(y_σ' | x_σ) = N(A μ, β² + v AAᵀ), and each moves by the exact draw of N(μ, v) N(y_σ'; A x, β²), where N(μ, v) is DDIM's
//! step to σ' with the share c of fresh noise: μ = D + √(1-c) (σ'/σ)(x - D), v = cσ'². One particle is kept at the end.
//!
//! Dividing their variance-preserving chain by √ᾱ gives these lines: c_k²σ_y² becomes β². Defaults: M = 20 particles, 1000
//! levels of DDPM's schedule, c = 0.95 as released. Deviations: ancestors are chosen before they move, which has the same law
//! with less noise; the first particles are drawn without regard to the measurement; D is not clipped to [-1, 1].
//! It asks for a singular value decomposition, which motion blur has none of; the authors run it there with a separable blur in
//! the place of the true one.

use std::sync::Arc;

use daps_core::candle::{Device, Tensor};
use daps_core::mixture::choose;
use daps_core::tensors::{batched, combine, pick, to_f64};
use daps_core::{
    Address, Error, Level, Method, MethodInfo, Need, Problem, Purpose, Result, Samples, Schedule,
    ScheduleRule, Sigma, State, Walk, open01,
};
use serde::{Deserialize, Serialize};

use crate::checks::{check_range, check_some};
use crate::modes;
use crate::rivals::{gaussian, one_beta};

/// Settings of FPS-SMC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FpsSmc {
    /// Noise levels.
    pub schedule: ScheduleRule,
    /// M, particles per sample.
    pub particles: usize,
    /// c: the share of fresh noise in a step.
    pub fresh: f64,
}

impl Default for FpsSmc {
    fn default() -> Self {
        let schedule = ScheduleRule::Ddpm { levels: 1000, first: 999, last: 0 };
        Self { schedule, particles: 20, fresh: 0.95 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "fps_smc",
    summary: "particles filtered along the reverse diffusion against a noised copy of the measurement at every level",
    paper: "Dou and Song, Diffusion Posterior Sampling for Linear Inverse Problem Solving: A Filtering Perspective, ICLR 2024",
};

/// `[rows, …]` with every row `count` times: `[rows · count, …]`.
fn repeat(t: &Tensor, count: usize) -> Result<Tensor> {
    let (rows, rest) = (t.dims()[0], &t.dims()[1..]);
    let wide = t.unsqueeze(1)?.broadcast_as(batched(rows, &batched(count, rest)))?.contiguous()?;
    Ok(wide.reshape(batched(rows * count, rest))?)
}

/// How well a particle foresees a mode's next measurement: log N(y; s c, β² + (spread s)²) but for what all particles share.
fn foresight(y: f64, s: f64, c: f64, spread: f64, beta: f64) -> f64 {
    match s {
        0.0 => 0.0,
        _ => -0.5 * (y - s * c).powi(2) / (beta.powi(2) + (spread * s).powi(2)),
    }
}

impl Method for FpsSmc {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::SpectralOperator]
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::falling("fps_smc", &self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        check_range("fps_smc.fresh", self.fresh, 0.0, 1.0)?;
        check_some("fps_smc.particles", self.particles)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let (schedule, noise, count) = (walk.schedule, walk.noise, self.particles);
        let rows = noise.len();
        let (model, likelihood) = (&**task.denoiser("fps_smc")?, gaussian("fps_smc", task)?);
        let (single, beta) = (modes::spectral("fps_smc", likelihood)?, one_beta("fps_smc", likelihood)?);
        let each: Vec<usize> = (0..rows * count).map(|i| i / count).collect();
        let crowd = Arc::clone(likelihood.operator()).select(&each)?;
        let Some(operator) = crowd.as_spectral() else {
            return Err(Error::missing("fps_smc", "a singular value decomposition", crowd.name()));
        };
        let (shape, dtype) = (model.shape(), model.dtype());
        let (flat, grouped) = (batched(rows * count, shape), batched(rows, &batched(count, shape)));
        let y = likelihood.y().to_dtype(dtype)?;
        let crowd_noise = |at: Address, shape: &[usize]| -> Result<Tensor> {
            Ok(noise.normal(at, &batched(count, shape), dtype)?.reshape(batched(rows * count, shape))?)
        };
        // A n for the measurement's own noise at a level.
        let seen = |at: Address| single.apply(&noise.normal(at, shape, dtype)?);
        let first = |particles: &Tensor| -> Result<Tensor> {
            Ok(particles.reshape(grouped.as_slice())?.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?)
        };
        let start = || {
            let z = crowd_noise(Address::new(0, Purpose::Init, 0), shape)?;
            let particles = combine(&[(&[schedule.start()], &z)])?;
            let drift = combine(&[(&[schedule.start()], &seen(Address::new(0, Purpose::Init, 1))?)])?;
            let mut state = State::start(first(&particles)?);
            state.memory = vec![particles.reshape(grouped.as_slice())?, drift];
            Ok(state)
        };
        walk.run(start, |state, step| {
            let keep = (1.0 - self.fresh).sqrt() * step.next / step.sigma;
            let spread = self.fresh.sqrt() * step.next;
            let at = |purpose| Address::new(step.index, purpose, 0);
            // The measurement at the next level.
            let drift = combine(&[(&[keep], state.memory(1)?), (&[spread], &seen(at(Purpose::Diffusion))?)])?;
            let y = repeat(&single.u_t(&combine(&[(&[1.0], &y), (&[1.0], &drift)])?)?, count)?;
            // The step of every particle, and how well each foresees that measurement.
            let x = state.memory(0)?.reshape(flat.as_slice())?;
            let x0 = model.denoise(&x, &Sigma::Same(step.sigma))?;
            let mean = combine(&[(&[keep], &x), (&[1.0 - keep], &x0)])?;
            let beta_of = |i: usize| pick(beta, i / count);
            let foresight = modes::map(operator, [&operator.v_t(&mean)?, &y], |i, s, [c, y]| {
                foresight(y, s, c, spread, beta_of(i))
            })?;
            let modes_each = foresight.dims()[1];
            let weights: Vec<f64> =
                to_f64(&foresight)?.chunks(modes_each).map(|row| row.iter().sum()).collect();
            let mut ancestors = Vec::with_capacity(rows * count);
            for (row, weights) in weights.chunks(count).enumerate() {
                let mut rng = noise.stream(row, at(Purpose::Choice));
                for _ in 0..count {
                    ancestors.push((row * count + choose(weights, open01(&mut rng))) as u32);
                }
            }
            let ancestors = Tensor::new(ancestors, &Device::Cpu)?;
            // The exact draw given that measurement (Matheron's rule, mode by mode).
            let z = crowd_noise(at(Purpose::Kernel), shape)?;
            let drawn = combine(&[(&[1.0], &mean.index_select(&ancestors, 0)?), (&[spread], &z)])?;
            let e = crowd_noise(at(Purpose::Perturbation), &[modes_each])?;
            let change = modes::map(operator, [&operator.v_t(&drawn)?, &y, &e], |i, s, [c, y, e]| {
                let (v, b) = (spread * spread, beta_of(i));
                v * s / (v * s * s + b * b) * (y - b * e - s * c)
            })?;
            let moved = combine(&[(&[1.0], &drawn), (&[1.0], &operator.v(&change)?)])?;
            state.x_t = first(&moved)?;
            state.memory = vec![moved.reshape(grouped.as_slice())?, drift];
            Ok(Level::new(first(&x0)?, state.x_t.clone(), count, 4 * count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of many levels hardly tells weights with a part of the variance from the right ones.
    #[test]
    fn particles_are_weighed_by_the_measurements_whole_variance() {
        // (1 - 2 · 0.2)²/2 = 0.18, over 0.09 + (0.5 · 2)².
        assert!((foresight(1.0, 2.0, 0.2, 0.5, 0.3) + 0.18 / 1.09).abs() < 1e-12);
        assert_eq!(foresight(1.0, 0.0, 0.2, 0.5, 0.3), 0.0);
    }
}
