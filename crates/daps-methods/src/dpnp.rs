//! DPnP: a proximal consistency sampler alternates with a denoising diffusion sampler, at a coupling η_k that is annealed.
//!
//! Paper: Xu, Chi, "Provably Robust Score-Based Diffusion Posterior Sampling for Plug-and-Play Image Reconstruction",
//! NeurIPS 2024, Algorithm 1: x_{k+½} ~ p(y | x) exp(-‖x - x_k‖²/(2η_k²)), exactly where A is linear and by
//! Metropolis-adjusted Langevin otherwise; x_{k+1} ~ p(x) exp(-‖x - x_{k+½}‖²/(2η_k²)), by the stochastic sampler
//! ("DDS-DDPM"), which is reverse diffusion from x_{k+½} taken as a state of level η_k.
//!
//! The paper asks for η_k that decreases to a small value: here, as in the released code, it stays at η_0 for `hold` iterations after the first
//! and then falls geometrically to η_min. Deviations: without the release's warm start by another method η_0 has to be larger (3
//! for their 0.4); the deterministic sampler ("DDS-DDIM") is left out; D is not clipped to [-1, 1].

use daps_core::{Error, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, Walk};
use serde::{Deserialize, Serialize};

use crate::checks::check_positive;
use crate::kernel::{KernelConfig, Mala};
use crate::{Reverse, split};

/// Settings of DPnP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dpnp {
    /// Iterations.
    pub iterations: usize,
    /// Iterations at η_0 after the first, before it falls.
    pub hold: usize,
    /// η_0.
    pub eta: f64,
    /// η of the last iteration.
    pub eta_min: f64,
    /// The denoising diffusion sampler.
    pub reverse: Reverse,
    /// How the consistency step is drawn where the operator is neither linear nor pixelwise.
    pub nonlinear: KernelConfig,
}

impl Default for Dpnp {
    fn default() -> Self {
        Self {
            iterations: 60,
            hold: 10,
            eta: 3.0,
            eta_min: 0.1,
            reverse: Reverse::default(),
            nonlinear: KernelConfig::Mala(Mala::default()),
        }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "dpnp",
    summary: "a proximal consistency sampler alternates with a denoising diffusion sampler, their coupling annealed",
    paper: "Xu and Chi, Provably Robust Score-Based Diffusion Posterior Sampling for Plug-and-Play Image Reconstruction, NeurIPS 2024",
};

impl Method for Dpnp {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::SmoothLikelihood]
    }

    fn schedule(&self) -> Result<Schedule> {
        let falls = self.iterations.saturating_sub(self.hold + 1).max(1);
        let eta = |k: usize| {
            let t = k.saturating_sub(self.hold) as f64 / falls as f64;
            self.eta * (self.eta_min / self.eta).powf(t)
        };
        Schedule::from_levels((0..self.iterations).map(eta).chain([0.0]).collect())
    }

    fn check_settings(&self) -> Result<()> {
        check_positive("dpnp.eta", self.eta)?;
        check_positive("dpnp.eta_min", self.eta_min)?;
        self.reverse.check("dpnp")?;
        self.nonlinear.build()?;
        if self.iterations < self.hold + 2 {
            let expected = format!("at least hold + 2 ({}), so that the coupling can fall", self.hold + 2);
            return Err(Error::invalid("dpnp.iterations", expected, self.iterations));
        }
        Ok(())
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        split::run(&self.reverse, &self.nonlinear, task, walk)
    }
}
