//! Decoupled Annealing Posterior Sampling: the annealing loop with a schedule, an estimate and a kernel.
//!
//! Paper: Zhang, Chu, Berner, Meng, Anandkumar, Song, "Improving Diffusion Inverse Problem Solving with Decoupled Noise
//! Annealing", CVPR 2025, Algorithm 1.

use daps_core::{
    Error, Estimate, Likelihood, Method, MethodInfo, Need, Pixel, Problem, Result, Samples, Schedule,
    ScheduleRule, Walk, anneal,
};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::Facts;
use crate::kernel::KernelConfig;
use crate::settings::{read, text, to_table, to_value, void_budget};

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

impl Daps {
    /// DAPS from a preset, or from schedule, estimate and kernel spelled out. With a preset, `budget` and `kernel` choose
    /// among its settings, and `schedule`, `estimate`, `beta` or the settings in a kernel's table replace a part of it; a
    /// kernel's table without a kind changes the preset's own.
    pub(crate) fn from_table(table: &Table, facts: &Facts) -> Result<Self> {
        let mut table = table.clone();
        let preset = text("daps", &mut table, "preset")?;
        let budget = text("daps", &mut table, "budget")?;
        let (kind, kernel) = kernel_of(&mut table)?;
        let (schedule, estimate) = (table.contains_key("schedule"), table.contains_key("estimate"));
        let mut complete = match preset {
            None if schedule && estimate => {
                if budget.is_some() {
                    return Err(Error::invalid("daps.budget", "a preset beside it", "none"));
                }
                let mut base = Table::new();
                match kind {
                    Some(kind) => _ = base.insert("kernel".into(), to_value(&KernelConfig::named(&kind)?)?),
                    None if kernel.is_empty() => {}
                    None => return Err(Error::invalid("daps.kernel", "a kind beside its settings", "none")),
                }
                base
            }
            preset => {
                let preset = crate::Preset::named(preset.as_deref().unwrap_or("paper"))?;
                // The budgets of the paper count the ODE's steps too, which an estimate holds.
                if budget.is_some() && schedule && (estimate || preset.is_ours()) {
                    return Err(void_budget("daps"));
                }
                to_table(&preset.settings_by(facts, budget.as_deref(), kind.as_deref())?)?
            }
        };
        complete.extend(table);
        if let Some(Value::Table(base)) = complete.get_mut("kernel") {
            replace_parts(base, kernel);
        }
        let daps: Self = read("daps", &complete)?;
        daps.check_settings()?;
        Ok(daps)
    }
}

/// The kind of a kernel that is given by its name or as a table, and the table's other settings. What a preset chooses by the
/// kind is the same either way.
fn kernel_of(table: &mut Table) -> Result<(Option<String>, Table)> {
    let mut settings = match table.remove("kernel") {
        None => return Ok((None, Table::new())),
        Some(Value::String(kind)) => return Ok((Some(kind), Table::new())),
        Some(Value::Table(settings)) => settings,
        Some(other) => return Err(Error::invalid("daps.kernel", "a name in quotes or a table", other)),
    };
    Ok((text("daps.kernel", &mut settings, "kind")?, settings))
}

/// Puts settings over others of the same kernel. A step size that names its rule replaces the other one; without a rule it
/// changes the numbers that it names.
fn replace_parts(base: &mut Table, parts: Table) {
    for (key, part) in parts {
        match (base.get_mut(&key), part) {
            (Some(Value::Table(base)), Value::Table(part)) if !part.contains_key("rule") => base.extend(part),
            (_, part) => _ = base.insert(key, part),
        }
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

    fn check(&self, task: &Problem) -> Result<()> {
        self.check_needs(task)?;
        if self.beta.is_some() && task.likelihood.as_gaussian().is_none() {
            return Err(Error::missing("daps.beta", "Gaussian measurement noise", task.likelihood.name()));
        }
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

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let prior =
            Pixel::new(task.denoiser(INFO.name)?.clone(), self.estimate.clone(), walk.schedule.len())?;
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
