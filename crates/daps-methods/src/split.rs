//! Split Gibbs sampling, which DPnP and PnP-DM share: a draw given the measurement, then a draw given the prior.
//!
//! The target is p(x) exp(-‖x - z‖²/(2ρ²)) p(y | z). z is drawn from N(z; x, ρ²) p(y | z), x by reverse diffusion from z at
//! level ρ, and ρ falls from level to level. Linear and pixelwise operators are drawn from exactly, others by a kernel.

use daps_core::{
    Approx, Conditional, Covariance, Kernel, Level, Need, Problem, Result, Samples, Schedule, Walk,
};

use crate::Reverse;
use crate::kernel::{Exact, KernelConfig};
use crate::rivals::zero_start;

/// Runs the alternation at every level of the walk.
pub(crate) fn run(
    reverse: &Reverse,
    nonlinear: &KernelConfig,
    task: &Problem,
    walk: Walk,
) -> Result<Samples> {
    let noise = walk.noise;
    let model = &**task.denoiser("a split method")?;
    let kernel = if Need::ConjugateOperator.met_by(task) {
        KernelConfig::Exact(Exact::default()).build()?
    } else {
        nonlinear.build()?
    };
    let start = || zero_start(model, noise);
    walk.run(start, |state, step| {
        let x = state.x_t.clone();
        let covariance = Covariance::Scalar(vec![step.sigma.powi(2)]);
        let approx = Approx::Gaussian { mean: x.clone(), covariance, start: x };
        let target = Conditional { approx: &approx, likelihood: &*task.likelihood };
        // Inside the thread pool, as the annealing loop does it.
        let (z, mut info) = rayon::scope(|_| Kernel::draw(&*kernel, &target, noise, step))?;
        let (x, nfe) = reverse.draw(model, &z, step.sigma, noise, step.index)?;
        state.x_t = x.clone();
        info.cost.nfe += nfe;
        Ok(Level { x0_hat: x, x0_y: z, info })
    })
}

/// max(ρ_min, ρ_0 decayᵏ) for `count` iterations.
pub(crate) fn decaying(count: usize, first: f64, decay: f64, min: f64) -> Result<Schedule> {
    let levels = (0..count).map(|k| (first * decay.powi(k as i32)).max(min));
    Schedule::from_levels(levels.chain([0.0]).collect())
}
