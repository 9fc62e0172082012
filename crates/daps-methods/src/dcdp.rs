//! DCDP: gradient steps towards the measurement, then purification: noise to a level and the probability-flow ODE back.
//!
//! Paper: Li, Kwon, Alkhouri, Ravishankar, Qu, "Decoupled Data Consistency with Diffusion Purification for Image
//! Restoration", 2024, Algorithm 1: v_k takes `steps` momentum steps b ← μb + ∇, v ← v - ηb on ½‖A(v) - y‖² from x_k;
//! x_{k+1} is the ODE's endpoint from v_k + σ_k z; σ_k falls linearly in DDPM's time.
//!
//! Defaults: 10 levels from time step 400 to 1, 100 gradient steps, momentum 0.9, 20 ODE steps, as released for
//! super-resolution (inpainting: 20 levels from step 700 with 50 gradient steps; phase retrieval and nonlinear deblurring: 200
//! levels from step 1000 to 20 and 50; deblurring: rate 1). Deviations: the rate counts in units of 1/‖A‖² (of the derivative
//! at x_k where A is nonlinear and no bound is tight), so that it does not depend on the image's size; 0.01 is their 1000 for
//! the mean squared error of 64x64 colour measurements. The ODE runs on a poly-7 grid, where theirs is even in time, and its end
//! is not clipped to [-1, 1]. One ODE step is Tweedie's mean: purification that returns a mean instead of a sample.

use daps_core::candle::Tensor;
use daps_core::tensors::combine;
use daps_core::{
    Gaussian, Level, Method, MethodInfo, Need, Ode, Problem, Result, Samples, Schedule, ScheduleRule, Smooth,
    Walk,
};
use serde::{Deserialize, Serialize};

use crate::checks::{check_positive, check_range, check_some};
use crate::rivals::{differentiable, gaussian, step_noise, zero_start};

/// Settings of DCDP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dcdp {
    /// Levels of purification.
    pub schedule: ScheduleRule,
    /// Gradient steps before each purification.
    pub steps: usize,
    /// η ‖A‖².
    pub rate: f64,
    /// μ.
    pub momentum: f64,
    /// The way back from a level.
    pub ode: Ode,
}

impl Default for Dcdp {
    fn default() -> Self {
        Self {
            schedule: ScheduleRule::Ddpm { levels: 10, first: 399, last: 0 },
            steps: 100,
            rate: 0.01,
            momentum: 0.9,
            ode: Ode::paper(20),
        }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "dcdp",
    summary: "gradient steps on the measurement's misfit alternate with purification (noise, then the ODE back)",
    paper: "Li et al., Decoupled Data Consistency with Diffusion Purification for Image Restoration, 2024",
};

impl Dcdp {
    /// Momentum steps on ½‖A(x) - y‖².
    fn descend(&self, likelihood: &Gaussian, x: &Tensor) -> Result<Tensor> {
        let map = differentiable("dcdp", likelihood)?;
        // A row that sees nothing has no gradient to follow, at any rate.
        let eta = |norm: f64| -self.rate / if norm > 0.0 { norm } else { 1.0 };
        let eta: Vec<f64> = likelihood.with_beta(1.0).curvature_at(x)?.into_iter().map(eta).collect();
        let (mut x, mut b) = (x.clone(), x.zeros_like()?);
        for _ in 0..self.steps {
            let gradient = map.vjp_of(&x, &mut |seen| likelihood.residual_of(seen))?;
            b = combine(&[(&[self.momentum], &b), (&[1.0], &gradient)])?;
            x = combine(&[(&[1.0], &x), (&eta, &b)])?;
        }
        Ok(x)
    }
}

impl Method for Dcdp {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::SmoothLikelihood]
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::new(&self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.ode.check(self.schedule()?.len())?;
        check_positive("dcdp.rate", self.rate)?;
        check_range("dcdp.momentum", self.momentum, 0.0, 0.999)?;
        check_some("dcdp.steps", self.steps)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let noise = walk.noise;
        let (model, likelihood) = (&**task.denoiser("dcdp")?, gaussian("dcdp", task)?);
        let start = || zero_start(model, noise);
        walk.run(start, |state, step| {
            let x0_y = self.descend(likelihood, &state.x_t)?;
            let z = step_noise(model, noise, step)?;
            let noisy = combine(&[(&[1.0], &x0_y), (&[step.sigma], &z)])?;
            let (purified, nfe) = self.ode.solve(model, &noisy, step)?;
            state.x_t = purified.clone();
            Ok(Level::new(purified, x0_y, nfe, 2 * self.steps))
        })
    }
}
