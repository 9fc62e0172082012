//! Denoising diffusion restoration: the reverse diffusion in the modes of the operator, each pinned to the measurement by
//! as much as its noise allows.
//!
//! Paper: Kawar, Elad, Ermon, Song, "Denoising Diffusion Restoration Models", NeurIPS 2022, equations 4 and 5, which are
//! written in the variance-exploding coordinates used here. With ȳ = Uᵀy/s and x̄ = Vᵀx, the step to level σ' draws
//!
//! - s = 0: N(D̄ + √(1-η²) σ' (x̄ - D̄)/σ, η²σ'²);
//! - σ' < β/s: N(D̄ + √(1-η²) σ' (ȳ - D̄)/(β/s), η²σ'²);
//! - σ' >= β/s: N((1-η_b) D̄ + η_b ȳ, σ'² - η_b²β²/s²).
//!
//! It starts at N(ȳ, σ² - β²/s²) in the modes where that is a variance, at N(0, σ²) elsewhere. Defaults: 20 steps of DDPM's
//! schedule, η = 0.85, η_b = 1. Deviations: small singular values are kept, where the released code takes those below 0.03 for zero.

use daps_core::candle::Tensor;
use daps_core::tensors::{combine, pick};
use daps_core::{
    Level, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, ScheduleRule, Sigma, State, Walk,
};
use serde::{Deserialize, Serialize};

use crate::checks::check_range;
use crate::modes;
use crate::rivals::{gaussian, one_beta, pure_noise, step_noise};

/// Settings of DDRM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ddrm {
    /// Noise levels.
    pub schedule: ScheduleRule,
    /// η: the share of fresh noise where the measurement says little.
    pub eta: f64,
    /// η_b: how far a well-measured mode moves to its measured value.
    pub eta_b: f64,
}

impl Default for Ddrm {
    fn default() -> Self {
        Self { schedule: ScheduleRule::Ddpm { levels: 20, first: 950, last: 0 }, eta: 0.85, eta_b: 1.0 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "ddrm",
    summary: "reverse diffusion mode by mode, each mode pinned to its measured value as its noise allows",
    paper: "Kawar et al., Denoising Diffusion Restoration Models, NeurIPS 2022",
};

impl Method for Ddrm {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::SpectralOperator]
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::falling("ddrm", &self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        check_range("ddrm.eta", self.eta, 0.0, 1.0)?;
        check_range("ddrm.eta_b", self.eta_b, 0.0, 1.0)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let (schedule, noise) = (walk.schedule, walk.noise);
        let (model, likelihood) = (&**task.denoiser("ddrm")?, gaussian("ddrm", task)?);
        let (operator, beta) = (modes::spectral("ddrm", likelihood)?, one_beta("ddrm", likelihood)?);
        let y = operator.u_t(&likelihood.y().to_dtype(model.dtype())?)?;
        let start = || {
            let (sigma, x) = (schedule.start(), pure_noise(model, noise, schedule.start())?);
            let change = modes::map(operator, [&operator.v_t(&x)?, &y], |row, s, [x, y]| {
                let spread = pick(beta, row) / s;
                let pinned = y / s + (1.0 - (spread / sigma).powi(2)).max(0.0).sqrt() * x;
                if s > 0.0 && sigma > spread { pinned - x } else { 0.0 }
            })?;
            Ok(State::start(combine(&[(&[1.0], &x), (&[1.0], &operator.v(&change)?)])?))
        };
        walk.run(start, |state, step| {
            let x0 = model.denoise(&state.x_t, &Sigma::Same(step.sigma))?;
            let (z, next) = (step_noise(model, noise, step)?, step.next);
            let keep = (1.0 - self.eta * self.eta).sqrt();
            // Everywhere as in the null space, then the modes are corrected.
            let drift = keep * next / step.sigma;
            let free = combine(&[(&[drift], &state.x_t), (&[1.0 - drift], &x0), (&[self.eta * next], &z)])?;
            let coefficients = |t: &Tensor| operator.v_t(t);
            let inputs = [&coefficients(&x0)?, &coefficients(&z)?, &coefficients(&free)?, &y];
            let change = modes::map(operator, inputs, |row, s, [x0, z, free, y]| {
                if s == 0.0 {
                    return 0.0;
                }
                let (spread, y) = (pick(beta, row) / s, y / s);
                let drawn = if next < spread {
                    x0 + keep * next * (y - x0) / spread + self.eta * next * z
                } else {
                    let variance = next * next - (self.eta_b * spread).powi(2);
                    (1.0 - self.eta_b) * x0 + self.eta_b * y + variance.max(0.0).sqrt() * z
                };
                drawn - free
            })?;
            state.x_t = combine(&[(&[1.0], &free), (&[1.0], &operator.v(&change)?)])?;
            Ok(Level::new(x0, state.x_t.clone(), 1, 4))
        })
    }
}
