//! Denoising diffusion null-space models: x̂0 keeps its null-space part and takes its range-space part from the
//! measurement, by as much as the noise allows (the variant "DDNM+" for noisy measurements).
//!
//! Paper: Wang, Yu, Zhang, "Zero-Shot Image Restoration Using Denoising Diffusion Null-Space Model", ICLR 2023, equations
//! 17 to 19, with the DDIM parameter η of the authors' code. With x̂0 = D + V Λ Vᵀ A†(y - A D) the next state is
//! x̂0 plus noise, mode by mode: where σ' >= β/s, λ = 1 and the noise has variance σ'² - β²/s²; where σ' < β/s,
//! λ = s σ' √(1-η²)/β and the noise is η σ' z; in the null space it is σ'(η z + √(1-η²)(x - D)/σ).
//!
//! From the variance-preserving form every quantity is divided by √ᾱ': √(1-ᾱ')/√ᾱ' is σ', a σ_y/s becomes β/s. Defaults:
//! 100 steps of DDPM's schedule, η = 0.85. Deviations: no time travel (their default repeats nothing either).

use daps_core::tensors::{combine, pick};
use daps_core::{
    Level, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, ScheduleRule, Sigma, State, Walk,
};
use serde::{Deserialize, Serialize};

use crate::checks::check_range;
use crate::modes;
use crate::rivals::{gaussian, one_beta, pure_noise, step_noise};

/// Settings of DDNM+.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ddnm {
    /// Noise levels.
    pub schedule: ScheduleRule,
    /// η: the share of fresh noise in the null space.
    pub eta: f64,
}

impl Default for Ddnm {
    fn default() -> Self {
        Self { schedule: ScheduleRule::Ddpm { levels: 100, first: 990, last: 0 }, eta: 0.85 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "ddnm",
    summary: "reverse diffusion whose estimate takes its range-space part from the measurement (DDNM+)",
    paper: "Wang et al., Zero-Shot Image Restoration Using Denoising Diffusion Null-Space Model, ICLR 2023",
};

impl Method for Ddnm {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::SpectralOperator]
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::falling("ddnm", &self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        check_range("ddnm.eta", self.eta, 0.0, 1.0)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let (schedule, noise) = (walk.schedule, walk.noise);
        let (model, likelihood) = (&**task.denoiser("ddnm")?, gaussian("ddnm", task)?);
        let (operator, beta) = (modes::spectral("ddnm", likelihood)?, one_beta("ddnm", likelihood)?);
        let y = operator.u_t(&likelihood.y().to_dtype(model.dtype())?)?;
        let keep = (1.0 - self.eta * self.eta).sqrt();
        let start = || Ok(State::start(pure_noise(model, noise, schedule.start())?));
        walk.run(start, |state, step| {
            let next = step.next;
            let x0 = model.denoise(&state.x_t, &Sigma::Same(step.sigma))?;
            // Range space: Λ A†(y - A D).
            let change = modes::map(operator, [&operator.v_t(&x0)?, &y], |row, s, [x0, y]| {
                let spread = pick(beta, row) / s;
                match s {
                    0.0 => 0.0,
                    _ if next >= spread => y / s - x0,
                    _ => keep * next / spread * (y / s - x0),
                }
            })?;
            let x0_y = combine(&[(&[1.0], &x0), (&[1.0], &operator.v(&change)?)])?;
            // Noise as in the null space, then corrected in the modes.
            let z = step_noise(model, noise, step)?;
            let (fresh, old) = (self.eta * next, keep * next / step.sigma);
            let free = combine(&[(&[fresh], &z), (&[old], &state.x_t), (&[-old], &x0)])?;
            let inputs = [&operator.v_t(&z)?, &operator.v_t(&free)?];
            let change = modes::map(operator, inputs, |row, s, [z, free]| {
                let spread = pick(beta, row) / s;
                match s {
                    0.0 => 0.0,
                    _ if next >= spread => (next * next - spread * spread).max(0.0).sqrt() * z - free,
                    _ => fresh * z - free,
                }
            })?;
            state.x_t = combine(&[(&[1.0], &x0_y), (&[1.0], &free), (&[1.0], &operator.v(&change)?)])?;
            Ok(Level::new(x0, x0_y, 1, 5))
        })
    }
}
