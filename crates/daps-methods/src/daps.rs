//! Decoupled Annealing Posterior Sampling: the annealing loop with a schedule, an estimate and a kernel.
//!
//! Paper: Zhang, Chu, Berner, Meng, Anandkumar, Song, "Improving Diffusion Inverse Problem Solving with Decoupled Noise
//! Annealing", CVPR 2025, Algorithm 1.

use daps_core::{
    Error, Estimate, Likelihood, Method, MethodInfo, Need, Pixel, Result, Samples, Schedule, ScheduleRule,
    Task, Walk, anneal,
};
use serde::{Deserialize, Serialize};

use crate::kernel::KernelConfig;

/// All settings of a DAPS run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daps {
    /// The noise level that the kernel believes the measurement to have; absent: the task's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// Annealing levels.
    pub schedule: ScheduleRule,
    /// How p(x0 | x_t) is estimated.
    pub estimate: Estimate,
    /// How x0|y is drawn.
    pub kernel: KernelConfig,
}

static INFO: MethodInfo = MethodInfo {
    name: "daps",
    summary: "decoupled annealing: estimate x0, draw x0 given y, renoise to the next level",
    paper: "Zhang et al., Improving Diffusion Inverse Problem Solving with Decoupled Noise Annealing, CVPR 2025",
};

impl Method for Daps {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        match (&self.estimate, &self.kernel) {
            // Weighted points take any likelihood.
            (Estimate::Draws { .. } | Estimate::Exact, KernelConfig::Exact(_)) => vec![],
            (_, kernel) => kernel.needs(),
        }
    }

    fn check(&self, task: &Task) -> Result<()> {
        self.check_needs(task)?;
        Pixel::new(task.denoiser(INFO.name)?.clone(), self.estimate.clone(), self.levels()).map(|_| ())
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::new(&self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        self.kernel.build()?;
        match self.beta {
            Some(beta) if !(beta.is_finite() && beta > 0.0) => {
                Err(Error::invalid("daps.beta", "a positive finite number", beta))
            }
            _ => Ok(()),
        }
    }

    fn run(&self, task: &Task, walk: Walk) -> Result<Samples> {
        let prior =
            Pixel::new(task.denoiser(INFO.name)?.clone(), self.estimate.clone(), walk.schedule.len())?;
        let kernel = self.kernel.build()?;
        let believed = match (self.beta, task.likelihood.as_gaussian()) {
            (Some(beta), Some(gaussian)) => Some(gaussian.with_beta(beta)),
            _ => None,
        };
        let likelihood: &dyn Likelihood = match &believed {
            Some(gaussian) => gaussian,
            None => &*task.likelihood,
        };
        anneal(&prior, likelihood, &*kernel, walk)
    }
}
