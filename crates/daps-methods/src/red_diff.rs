//! RED-diff: one point, moved by Adam on the measurement's misfit and on a regulariser by denoising at falling levels.
//!
//! Paper: Mardani, Song, Kautz, Vahdat, "A Variational Perspective on Solving Inverse Problems with Diffusion Models",
//! ICLR 2024, Algorithm 1: at every level ε is drawn, x_t = μ + σ ε is denoised, and μ takes an Adam step along the gradient
//! of ½ mean (A(μ) - y)² + w mean (ε̂ - ε)μ with ε̂ = (x_t - D)/σ held fixed and w = λσ (the inverse signal-to-noise ratio).
//! Since ε̂ - ε = (μ - D)/σ, the regulariser's gradient is λ(μ - D)/d.
//!
//! Defaults: 1000 steps of DDPM's schedule, Adam with decay 0.9 and 0.99; λ = 0.25, rate 0.5 and a start at random noise as in
//! the DAPS paper's comparison (the authors start at the pseudo-inverse with rate 0.1). Deviations: the released
//! code adds noise of 0.0001 to μ before it is renoised; here there is none.

use daps_core::candle::Tensor;
use daps_core::tensors::{Real, combine, with_slice};
use daps_core::{
    Gaussian, Level, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, ScheduleRule, Sigma,
    State, Walk, with_real,
};
use serde::{Deserialize, Serialize};

use crate::checks::{check_positive, check_range};
use crate::rivals::{differentiable, gaussian, pure_noise, step_noise};

/// Settings of RED-diff.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RedDiff {
    /// Noise levels, one Adam step at each.
    pub schedule: ScheduleRule,
    /// λ: weight of the regulariser.
    pub lambda: f64,
    /// Adam's rate.
    pub rate: f64,
}

impl Default for RedDiff {
    fn default() -> Self {
        Self { schedule: ScheduleRule::Ddpm { levels: 1000, first: 999, last: 0 }, lambda: 0.25, rate: 0.5 }
    }
}

/// Adam's decay of the first and second moment, and what keeps its division defined.
const ADAM: (f64, f64, f64) = (0.9, 0.99, 1e-8);

static INFO: MethodInfo = MethodInfo {
    name: "red_diff",
    summary: "Adam on the measurement's misfit plus a denoising regulariser at falling noise levels; one mode, no sample",
    paper: "Mardani et al., A Variational Perspective on Solving Inverse Problems with Diffusion Models, ICLR 2024",
};

/// Numbers that are measured, per row or for all: a mask hides the others.
fn measured(likelihood: &Gaussian) -> Vec<f64> {
    likelihood.measured().iter().map(|m| (*m).max(1) as f64).collect()
}

/// ∇ ½‖A(μ) - y‖²/m.
fn misfit_gradient(likelihood: &Gaussian, mu: &Tensor, measured: &[f64]) -> Result<Tensor> {
    let scale: Vec<f64> = measured.iter().map(|m| 1.0 / m).collect();
    differentiable("red_diff", likelihood)?
        .vjp_of(mu, &mut |seen| combine(&[(&scale, &likelihood.residual_of(seen)?)]))
}

/// rate · m̂/(√v̂ + ε), elementwise.
fn adam_step<T: Real>(m: &Tensor, v: &Tensor, rate: f64, count: usize) -> Result<Tensor> {
    let corrected = |decay: f64| 1.0 - decay.powi(count as i32);
    let (c1, c2) = (corrected(ADAM.0), corrected(ADAM.1));
    let step = with_slice(m, |m: &[T]| {
        with_slice(v, |v: &[T]| {
            let each = m.iter().zip(v);
            each.map(|(m, v)| T::of(rate * (m.wide() / c1) / ((v.wide() / c2).sqrt() + ADAM.2)))
                .collect::<Vec<T>>()
        })
    })??;
    Ok(Tensor::from_vec(step, m.dims(), m.device())?)
}

impl Method for RedDiff {
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
        self.schedule()?;
        check_range("red_diff.lambda", self.lambda, 0.0, f64::INFINITY)?;
        check_positive("red_diff.rate", self.rate)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let noise = walk.noise;
        let (model, likelihood) = (&**task.denoiser("red_diff")?, gaussian("red_diff", task)?);
        let measured = measured(likelihood);
        let d = model.shape().iter().product::<usize>() as f64;
        let start = || {
            let mut state = State::start(pure_noise(model, noise, 1.0)?);
            state.memory = vec![state.x_t.zeros_like()?, state.x_t.zeros_like()?];
            Ok(state)
        };
        walk.run(start, |state, step| {
            let mu = &state.x_t;
            let z = step_noise(model, noise, step)?;
            let x_t = combine(&[(&[1.0], mu), (&[step.sigma], &z)])?;
            let x0 = model.denoise(&x_t, &Sigma::Same(step.sigma))?;
            let pull = self.lambda / d;
            let data = misfit_gradient(likelihood, mu, &measured)?;
            let gradient = combine(&[(&[1.0], &data), (&[pull], mu), (&[-pull], &x0)])?;
            let m = combine(&[(&[ADAM.0], state.memory(0)?), (&[1.0 - ADAM.0], &gradient)])?;
            let squares = (&gradient * &gradient)?;
            let v = combine(&[(&[ADAM.1], state.memory(1)?), (&[1.0 - ADAM.1], &squares)])?;
            let back = with_real!(mu.dtype(), T => adam_step::<T>(&m, &v, self.rate, step.index + 1))?;
            state.x_t = combine(&[(&[1.0], mu), (&[-1.0], &back)])?;
            state.memory = vec![m, v];
            Ok(Level::new(x0, state.x_t.clone(), 1, 2))
        })
    }
}
