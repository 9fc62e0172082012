//! DiffPIR: half-quadratic splitting inside the reverse diffusion, a proximal step of the likelihood after each denoising.
//!
//! Paper: Zhu, Zhang, Liang, Cao, Wen, Timofte, Van Gool, "Denoising Diffusion Models for Plug-and-Play Image Restoration",
//! CVPRW 2023, Algorithm 1: x̂0 = argmin ‖y - Ax‖² + ρ‖x - D(x_t, σ)‖² with ρ = λβ²/σ²; then with ε̂ = (x_t - x̂0)/σ the
//! next state is x̂0 + σ'(√(1-ζ) ε̂ + √ζ z).
//!
//! Their σ̄ = √(1-ᾱ)/√ᾱ is σ here, and dividing the variance-preserving step by √ᾱ' gives the line above. The minimiser is
//! the mean of N(D, σ²/λ) given y. Defaults: 100 steps of DDPM's schedule, λ = 0.25 and ζ = 0.1: a released
//! λ goes with a β that counts on images in [0, 1], half of the one here, so that theirs is four times ours. The released scripts
//! multiply by task: 7λ and 3ζ for deblurring (1.75 and 0.3 here), λ from 2 to 12 and ζ = 0.25 for super-resolution, ζ = 1 for
//! inpainting; both are free parameters here. Deviations: time steps are evenly spaced, where the released settings space them
//! quadratically; D is not clipped; the start is pure noise, not the noised measurement; and the last level takes its data step too,
//! as Algorithm 1 has it and the released code does not.

use daps_core::tensors::combine;
use daps_core::{
    Covariance, Level, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, ScheduleRule, Sigma,
    State, Walk,
};
use serde::{Deserialize, Serialize};

use crate::checks::{check_positive, check_range};
use crate::kernel::Exact;
use crate::rivals::{gaussian, pure_noise, step_noise};

/// Of the proximal point's equations, where conjugate gradients solve them. At the first levels ρ is 1e-7 and less: what is not
/// solved to this are parts of the image that the measurement does not show, and the level's own noise covers them.
const TOLERANCE: f64 = 1e-3;

/// Settings of DiffPIR.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiffPir {
    /// Noise levels.
    pub schedule: ScheduleRule,
    /// λ: weight of the denoised image against the measurement.
    pub lambda: f64,
    /// ζ: the share of fresh noise.
    pub zeta: f64,
}

impl Default for DiffPir {
    fn default() -> Self {
        Self { schedule: ScheduleRule::Ddpm { levels: 100, first: 999, last: 0 }, lambda: 0.25, zeta: 0.1 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "diffpir",
    summary: "denoise, take the proximal point of the measurement, step to the next level with part of the noise kept",
    paper: "Zhu et al., Denoising Diffusion Models for Plug-and-Play Image Restoration, CVPRW 2023",
};

impl Method for DiffPir {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::LinearOperator]
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::new(&self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        check_positive("diffpir.lambda", self.lambda)?;
        check_range("diffpir.zeta", self.zeta, 0.0, 1.0)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let (schedule, noise) = (walk.schedule, walk.noise);
        let (model, likelihood) = (&**task.denoiser("diffpir")?, gaussian("diffpir", task)?);
        let exact = Exact { tolerance: TOLERANCE, ..Exact::default() };
        let start = || Ok(State::start(pure_noise(model, noise, schedule.start())?));
        walk.run(start, |state, step| {
            let x0 = model.denoise(&state.x_t, &Sigma::Same(step.sigma))?;
            let variance = step.sigma.powi(2) / self.lambda;
            let (x0_y, mut info) = exact.mean(&x0, &Covariance::Scalar(vec![variance]), likelihood, step)?;
            let old = step.next / step.sigma * (1.0 - self.zeta).sqrt();
            let fresh = step.next * self.zeta.sqrt();
            let z = step_noise(model, noise, step)?;
            state.x_t = combine(&[(&[1.0 - old], &x0_y), (&[old], &state.x_t), (&[fresh], &z)])?;
            info.cost.nfe = 1;
            Ok(Level { x0_hat: x0, x0_y, info })
        })
    }
}
