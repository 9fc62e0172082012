//! Decoupled Annealing Posterior Sampling: the annealing loop with a schedule, an estimate and a kernel.
//!
//! Paper: Zhang, Chu, Berner, Meng, Anandkumar, Song, "Improving Diffusion Inverse Problem Solving with Decoupled Noise
//! Annealing", CVPR 2025, Algorithm 1.

use daps_core::{
    Continuous, Error, Estimate, Likelihood, Method, MethodInfo, Need, Problem, Result, Samples, Schedule,
    ScheduleRule, Walk, anneal,
};
use serde::{Deserialize, Serialize};

use crate::kernel::KernelConfig;
use crate::settings::{Partial, PartialKernel, to_table, void_budget};
use crate::{Facts, Preset};

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

/// What a file says of DAPS.
pub type DapsSettings = Partial<Estimate>;

impl DapsSettings {
    /// The settings for a measurement: those of a preset, or schedule, estimate and kernel spelled out. With a preset, `budget`
    /// and `kernel` choose among its settings, and `schedule`, `estimate`, `beta` or the settings of a kernel replace a part of it;
    /// the settings of a kernel without a kind change the preset's own.
    pub fn complete(&self, facts: &Facts) -> Result<Daps> {
        let kernel = self.kernel.clone().unwrap_or_default();
        let (budget, kind) = (self.budget.as_deref(), kernel.kind.as_deref());
        let daps = match (self.preset, &self.schedule, &self.estimate) {
            (None, Some(schedule), Some(estimate)) => {
                if budget.is_some() {
                    return Err(Error::invalid("daps.budget", "a preset beside it", "none"));
                }
                let Some(kind) = kind else {
                    let what = if self.kernel.is_some() { "a kind beside its settings" } else { "a kernel" };
                    return Err(Error::invalid("daps.kernel", what, "none"));
                };
                let base = KernelConfig::named(kind)?;
                let (schedule, estimate) = (schedule.clone(), estimate.clone());
                Daps { beta: self.beta, schedule, estimate, kernel: kernel.over(base)? }
            }
            (preset, schedule, estimate) => {
                let preset = preset.unwrap_or(Preset::Paper);
                // The budgets of the paper count the ODE's steps too, which an estimate holds.
                if budget.is_some() && schedule.is_some() && (estimate.is_some() || preset.is_ours()) {
                    return Err(void_budget("daps"));
                }
                let base = preset.settings_by(facts, budget, kind)?;
                Daps {
                    beta: self.beta.or(base.beta),
                    schedule: schedule.clone().unwrap_or(base.schedule),
                    estimate: estimate.clone().unwrap_or(base.estimate),
                    kernel: kernel.over(base.kernel)?,
                }
            }
        };
        daps.check_settings()?;
        Ok(daps)
    }
}

impl TryFrom<&Daps> for DapsSettings {
    type Error = Error;

    /// The same settings, all of them given.
    fn try_from(daps: &Daps) -> Result<Self> {
        Ok(Self {
            beta: daps.beta,
            schedule: Some(daps.schedule.clone()),
            estimate: Some(daps.estimate.clone()),
            kernel: Some(PartialKernel::of(&daps.kernel)?),
            ..Self::default()
        })
    }
}

impl Method for Daps {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn fingerprint(&self) -> Option<String> {
        Some(to_table(self).ok()?.to_string())
    }

    fn needs(&self) -> Vec<Need> {
        match (&self.estimate, &self.kernel) {
            // Weighted points take any likelihood.
            (Estimate::Draws { .. } | Estimate::Exact, KernelConfig::Exact(_)) => vec![],
            (_, kernel) => kernel.needs(),
        }
    }

    fn draws_parameters(&self) -> bool {
        true
    }

    fn check(&self, task: &Problem) -> Result<()> {
        self.check_needs(task)?;
        if self.beta.is_some() && task.likelihood.as_gaussian().is_none() {
            return Err(Error::missing("daps.beta", "Gaussian measurement noise", task.likelihood.name()));
        }
        Continuous::new(task.denoiser(INFO.name)?.clone(), self.estimate.clone(), self.levels()).map(|_| ())
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

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let prior =
            Continuous::new(task.denoiser(INFO.name)?.clone(), self.estimate.clone(), walk.schedule.len())?;
        let kernel = self.kernel.build()?;
        // A level that is drawn along is believed as it is drawn.
        let believed = match (self.beta, task.likelihood.as_gaussian(), task.likelihood.as_nuisance()) {
            (Some(beta), Some(gaussian), None) => Some(gaussian.with_beta(beta)),
            _ => None,
        };
        let likelihood: &dyn Likelihood = match &believed {
            Some(gaussian) => gaussian,
            None => &*task.likelihood,
        };
        anneal(&prior, likelihood, &*kernel, walk)
    }
}
