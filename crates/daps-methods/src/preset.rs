//! Presets: the numerics of the paper and of both official code bases, for every task and budget.

use daps_core::{
    Center, Error, Estimate, Ode, OdeEnd, OdeOrder, OdeSteps, RHO, Result, ScheduleRule, Spread,
};
use serde::{Deserialize, Serialize};

use crate::Daps;
use crate::kernel::{DecayBy, Hmc, KernelConfig, Langevin, Metropolis, Replay, StepSize};

/// Whose numerics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The paper's text and table.
    Paper,
    /// The code of 2024.
    Legacy,
    /// The code of 2025.
    Official,
}

/// What a preset is, beside its name.
pub struct PresetInfo {
    /// Name in configurations.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The preset.
    pub preset: Preset,
}

/// All presets.
pub const PRESETS: &[PresetInfo] = &[
    PresetInfo {
        name: "paper",
        summary: "levels 100 to 0.1, then 0; ODE grid to 0.02, then 0; believed noise 0.01",
        preset: Preset::Paper,
    },
    PresetInfo {
        name: "legacy",
        summary: "the 2024 code: as the paper, with the ODE grid to 0.01, then 0",
        preset: Preset::Legacy,
    },
    PresetInfo {
        name: "official",
        summary: "the 2025 code: 0.1 itself is never used, the ODE stops at 0.01, believed noise 0.01/√2",
        preset: Preset::Official,
    },
];

/// ODE steps and annealing levels of a named budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Name: the number of denoiser calls.
    pub name: &'static str,
    /// ODE steps per level.
    pub ode_steps: usize,
    /// Annealing levels.
    pub levels: usize,
}

/// DAPS-50 … DAPS-4K.
pub const BUDGETS: &[Budget] = &[
    Budget { name: "50", ode_steps: 2, levels: 25 },
    Budget { name: "100", ode_steps: 2, levels: 50 },
    Budget { name: "200", ode_steps: 2, levels: 100 },
    Budget { name: "400", ode_steps: 4, levels: 100 },
    Budget { name: "1k", ode_steps: 5, levels: 200 },
    Budget { name: "2k", ode_steps: 8, levels: 250 },
    Budget { name: "4k", ode_steps: 10, levels: 400 },
];

/// The tuned settings of one task.
#[derive(Clone, Copy, Debug)]
pub struct TaskSettings {
    /// The operator's name.
    pub task: &'static str,
    /// Langevin η0; N = 100 and δ = 0.01 throughout.
    pub langevin_eta0: f64,
    /// HMC: N, η0, δ, μ.
    pub hmc: (usize, f64, f64, f64),
    /// Nonlinear tasks get the 4K budget in the paper.
    pub nonlinear: bool,
}

/// The paper's table of settings; HMC's come from the official configuration files.
pub const TASKS: &[TaskSettings] = &[
    TaskSettings {
        task: "super_resolution",
        langevin_eta0: 1e-4,
        hmc: (12, 1.04e-4, 0.012, 0.90),
        nonlinear: false,
    },
    TaskSettings {
        task: "inpaint_box",
        langevin_eta0: 5e-5,
        hmc: (84, 1.15e-5, 0.014, 0.003),
        nonlinear: false,
    },
    TaskSettings {
        task: "inpaint_random",
        langevin_eta0: 1e-4,
        hmc: (11, 3.56e-5, 0.015, 0.80),
        nonlinear: false,
    },
    TaskSettings {
        task: "gaussian_blur",
        langevin_eta0: 1e-4,
        hmc: (82, 4.04e-5, 0.011, 0.10),
        nonlinear: false,
    },
    TaskSettings {
        task: "motion_blur",
        langevin_eta0: 5e-5,
        hmc: (96, 3.69e-5, 0.010, 0.11),
        nonlinear: false,
    },
    TaskSettings {
        task: "phase_retrieval",
        langevin_eta0: 5e-5,
        hmc: (62, 9.75e-6, 0.019, 0.73),
        nonlinear: true,
    },
    TaskSettings {
        task: "nonlinear_blur",
        langevin_eta0: 5e-5,
        hmc: (85, 1.2e-5, 0.012, 0.46),
        nonlinear: true,
    },
    TaskSettings { task: "hdr", langevin_eta0: 2e-5, hmc: (100, 2.18e-5, 0.013, 0.23), nonlinear: true },
];

/// Tasks outside the paper's table take the settings of the task that is most like them.
fn settings(task: &str) -> TaskSettings {
    let like = match task {
        "inpaint" => "inpaint_random",
        "blur" | "mri" => "motion_blur",
        other => other,
    };
    let find = |name: &str| TASKS.iter().find(|t| t.task == name).copied();
    find(like).unwrap_or(TASKS[0])
}

/// N of Langevin in every image task.
const LANGEVIN_STEPS: usize = 100;

/// The noise level that DAPS believes in: over-confident by design.
const BELIEVED_BETA: f64 = 0.01;

impl Preset {
    /// The preset of a name.
    pub fn named(name: &str) -> Result<Self> {
        PRESETS
            .iter()
            .find(|p| p.name == name)
            .map(|p| p.preset)
            .ok_or_else(|| Error::unknown("preset", name, PRESETS.iter().map(|p| p.name)))
    }

    /// The complete settings for a task; the budget defaults to the paper's (1K linear, 4K nonlinear) and the kernel to
    /// Langevin. Kernels: langevin, hmc, metropolis, replay.
    pub fn daps(self, task: &str, budget: Option<&str>, kernel: &str) -> Result<Daps> {
        let settings = settings(task);
        let name = budget.unwrap_or(if settings.nonlinear { "4k" } else { "1k" });
        let budget = BUDGETS
            .iter()
            .find(|b| b.name.eq_ignore_ascii_case(name.trim_start_matches("daps-")))
            .ok_or_else(|| Error::unknown("budget", name, BUDGETS.iter().map(|b| b.name)))?;
        let (levels, max, min, rho) = (budget.levels, 100.0, 0.1, RHO);
        let schedule = match self {
            Self::Paper | Self::Legacy => ScheduleRule::Poly { levels, max, min, rho },
            Self::Official => ScheduleRule::PolyCut { levels, max, min, rho },
        };
        let (ode_min, end) = match self {
            Self::Paper => (0.02, OdeEnd::Zero),
            Self::Legacy => (0.01, OdeEnd::Zero),
            Self::Official => (0.01, OdeEnd::Min),
        };
        let ode =
            Ode { steps: OdeSteps::Fixed(budget.ode_steps), min: ode_min, rho, end, order: OdeOrder::Euler };
        let kernel = self.kernel(&settings, kernel)?;
        // The 2025 code's gradient misses the ½ of the likelihood, its Metropolis ratio does not.
        let beta = match (self, &kernel) {
            (Self::Official, KernelConfig::Metropolis(_)) => BELIEVED_BETA,
            (Self::Official, _) => BELIEVED_BETA / std::f64::consts::SQRT_2,
            _ => BELIEVED_BETA,
        };
        let estimate = Estimate::Gaussian { center: Center::Ode(ode), spread: Spread::Sigma };
        Ok(Daps { beta: Some(beta), schedule, estimate, kernel })
    }

    fn kernel(self, task: &TaskSettings, kernel: &str) -> Result<KernelConfig> {
        let by = match self {
            Self::Official => DecayBy::IndexPlusOne,
            Self::Paper | Self::Legacy => DecayBy::Index,
        };
        let decay = |eta0, delta| StepSize::Decay { eta0, delta, by, cut: None };
        // The 2024 and 2025 code runs nonlinear deblurring with 200 steps of 1e-5.
        let (steps, eta0) = match (self, task.task) {
            (Self::Official | Self::Legacy, "nonlinear_blur") => (200, 1e-5),
            _ => (LANGEVIN_STEPS, task.langevin_eta0),
        };
        let step_size = decay(eta0, 0.01);
        Ok(match kernel {
            "langevin" => KernelConfig::Langevin(Langevin { steps, step_size }),
            "replay" => KernelConfig::Replay(Replay { steps, step_size }),
            "metropolis" => KernelConfig::Metropolis(Metropolis { steps: 1000, step_size, blocks: 1 }),
            "hmc" => {
                let (steps, eta0, delta, momentum) = task.hmc;
                KernelConfig::Hmc(Hmc { steps, step_size: decay(eta0, delta), momentum })
            }
            other => {
                return Err(Error::unknown(
                    "kernel of a preset",
                    other,
                    ["langevin", "hmc", "metropolis", "replay"],
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::Schedule;

    #[test]
    fn every_preset_task_budget_and_kernel_builds() {
        for info in PRESETS {
            assert_eq!(Preset::named(info.name).unwrap(), info.preset);
            for task in TASKS {
                for budget in BUDGETS {
                    for kernel in ["langevin", "hmc", "metropolis", "replay"] {
                        let daps = info.preset.daps(task.task, Some(budget.name), kernel).unwrap();
                        daps.check_settings().unwrap();
                        assert_eq!(Schedule::new(&daps.schedule).unwrap().len(), budget.levels);
                    }
                }
            }
        }
        assert!(Preset::named("mine").is_err());
        assert!(Preset::Paper.daps("hdr", Some("7k"), "hmc").is_err());
    }

    #[test]
    fn the_budget_defaults_to_the_papers_table() {
        let levels = |task| {
            Schedule::new(&Preset::Paper.daps(task, None, "langevin").unwrap().schedule).unwrap().len()
        };
        assert_eq!(levels("super_resolution"), 200);
        assert_eq!(levels("phase_retrieval"), 400);
    }
}
