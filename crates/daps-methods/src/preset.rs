//! Presets: the numerics of the paper and of both official code bases, for every task and budget, and our own.

use daps_core::{
    BandSpread, Center, Error, Estimate, Likelihood, Ode, OdeEnd, OdeOrder, OdeSteps, RHO, Result,
    ScheduleRule, Spread,
};
use serde::{Deserialize, Serialize};

use crate::Daps;
use crate::kernel::{
    DecayBy, Exact, Hmc, KernelConfig, Langevin, Metropolis, Replay, StepSize, Underdamped, default_delta,
};
use crate::tuned::{Facts, LINEAR_BUDGET, NONLINEAR_BUDGET};

/// Whose numerics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Preset {
    /// The paper's text and table; its step falls linearly in the level's index, which made the paper's numbers, and not in σ,
    /// which its text can be read as.
    Paper,
    /// The code of 2024.
    Legacy,
    /// The code of 2025.
    Official,
    /// Ours, with as few denoiser calls as it needs.
    Fast,
    /// Ours, with more of them.
    Best,
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
    PresetInfo {
        name: "fast",
        summary: "ours: Tweedie mean, the prior's own covariance by frequency and channel, exact draws (dynamics with momentum for nonlinear operators), the true noise; few levels",
        preset: Preset::Fast,
    },
    PresetInfo {
        name: "best",
        summary: "ours, calibrated: as fast with more levels, and with the prior's knowledge of where in an image its error is larger",
        preset: Preset::Best,
    },
];

/// The numbers of one of our own presets.
struct Own {
    /// Where the operator is linear and the noise Gaussian: exact draws.
    linear: Plan,
    /// Elsewhere: dynamics with momentum.
    others: Plan,
    /// Steps of these dynamics at most.
    steps: usize,
}

/// Levels, and what is used of the prior's error; a level takes one denoiser call.
struct Plan {
    levels: usize,
    max: f64,
    min: f64,
    /// By how much the variances that were measured on noisy images are widened for what a sampler denoises. With it samples vary
    /// as they should and residuals have the size of the noise, at the price of the PSNR of one sample.
    wider: f64,
    /// Whether the local factor is used. It makes samples sharper and an exact draw longer; dynamics become too slow by it.
    local: bool,
    /// The widening for a prior that knows its error by frequency alone.
    plain: f64,
}

const FAST: Own = Own {
    linear: Plan { levels: 32, max: 7.0, min: 0.02, wider: 1.9, local: false, plain: 1.2 },
    others: Plan { levels: 32, max: 50.0, min: 0.02, wider: 1.2, local: false, plain: 1.2 },
    steps: 36,
};
const BEST: Own = Own {
    linear: Plan { levels: 40, max: 10.0, min: 0.02, wider: 1.8, local: true, plain: 1.4 },
    others: Plan { levels: 100, max: 100.0, min: 0.01, wider: 1.2, local: false, plain: 1.4 },
    steps: 80,
};

impl Own {
    /// Tweedie's mean, the prior's covariance by frequency, and the exact draw or dynamics; `budget` is a number of levels.
    fn daps(&self, facts: &Facts, budget: Option<&str>, kernel: Option<&str>) -> Result<Daps> {
        let Plan { levels, max, min, wider, local, plain } =
            if facts.is_linear { &self.linear } else { &self.others };
        let levels = budget.map_or(Ok(*levels), levels_of)?;
        let schedule = ScheduleRule::Poly { levels, max: *max, min: *min, rho: RHO };
        let kernel = match kernel {
            None if facts.is_linear => KernelConfig::Exact(Exact::default()),
            None | Some("underdamped") => {
                KernelConfig::Underdamped(Underdamped { steps: self.steps, ..Underdamped::default() })
            }
            Some(name) => KernelConfig::named(name)?,
        };
        let bands = BandSpread { wider: *wider, channels: true, local: *local, plain: Some(*plain) };
        // HDR's own exact draw is pixel by pixel, and the other kernels' steps are as short as the smallest variance.
        let spread = match &kernel {
            KernelConfig::Exact(_) if facts.is_linear => Spread::Bands(bands),
            KernelConfig::Underdamped(_) => Spread::Bands(bands),
            _ => Spread::Prior,
        };
        let estimate = Estimate::Gaussian { center: Center::Tweedie, spread };
        Ok(Daps { beta: None, schedule, estimate, kernel })
    }
}

/// "100" or "1k".
fn levels_of(budget: &str) -> Result<usize> {
    let text = budget.trim_start_matches("daps-").to_lowercase();
    let (digits, unit) = text.strip_suffix('k').map_or((text.as_str(), 1), |digits| (digits, 1000));
    match digits.parse::<usize>() {
        Ok(n) if n > 0 && n <= 100_000 => Ok(n * unit),
        _ => Err(Error::invalid(
            "budget",
            "a number of denoiser calls, such as 100 or 1k",
            format!("'{budget}'"),
        )),
    }
}

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

/// The step outside the paper's table, in inverse curvatures: the table's mean over the levels for random inpainting, where
/// ‖A‖ = 1 and η0/β² falls from 1 to 0.01.
const STEP_IN_CURVATURES: f64 = 0.5;

/// N and μ of HMC outside the table; μ is about the middle of the tuned ones.
const HMC_OUTSIDE: (usize, f64) = (100, 0.5);

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

    /// Its name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Legacy => "legacy",
            Self::Official => "official",
            Self::Fast => "fast",
            Self::Best => "best",
        }
    }

    /// Whether it is one of ours, not a reproduction.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Fast | Self::Best)
    }

    /// The complete settings for a measurement. The paper's and the official presets default to the paper's budget (1K
    /// linear, 4K nonlinear) and to the kernel langevin; its settings, and those of hmc, metropolis and replay, are the paper's
    /// where its table holds, and elsewhere their steps follow the curvature. Another kernel comes with its own defaults. Our own
    /// presets draw exactly where the operator is linear and the noise Gaussian, and by dynamics elsewhere, where no kernel
    /// is named.
    pub fn settings(
        self,
        likelihood: &dyn Likelihood,
        budget: Option<&str>,
        kernel: Option<&str>,
    ) -> Result<Daps> {
        self.settings_by(&Facts::of(likelihood), budget, kernel)
    }

    /// The same, where the facts are known.
    pub fn settings_by(self, facts: &Facts, budget: Option<&str>, kernel: Option<&str>) -> Result<Daps> {
        match (self, kernel) {
            (Self::Fast, _) => FAST.daps(facts, budget, kernel),
            (Self::Best, _) => BEST.daps(facts, budget, kernel),
            (_, None) => self.daps(facts, budget, "langevin"),
            (_, Some(tuned @ ("langevin" | "hmc" | "metropolis" | "replay"))) => {
                self.daps(facts, budget, tuned)
            }
            (_, Some(other)) => {
                Ok(Daps { kernel: KernelConfig::named(other)?, ..self.daps(facts, budget, "langevin")? })
            }
        }
    }

    /// The paper's and the official presets with one of their tuned kernels: langevin, hmc, metropolis, replay; ours with any.
    pub fn daps(self, facts: &Facts, budget: Option<&str>, kernel: &str) -> Result<Daps> {
        if self.is_ours() {
            return self.settings_by(facts, budget, Some(kernel));
        }
        let usual = if facts.is_linear { LINEAR_BUDGET } else { NONLINEAR_BUDGET };
        let name = budget.unwrap_or(facts.tuned.map_or(usual, |row| row.budget));
        let budget = BUDGETS
            .iter()
            .find(|b| b.name.eq_ignore_ascii_case(name.trim_start_matches("daps-")))
            .ok_or_else(|| Error::unknown("budget", name, BUDGETS.iter().map(|b| b.name)))?;
        let (levels, max, min, rho) = (budget.levels, 100.0, 0.1, RHO);
        let poly = ScheduleRule::Poly { levels, max, min, rho };
        let (schedule, ode_min, end) = match self {
            Self::Official => (ScheduleRule::PolyCut { levels, max, min, rho }, 0.01, OdeEnd::Min),
            Self::Legacy => (poly, 0.01, OdeEnd::Zero),
            _ => (poly, 0.02, OdeEnd::Zero),
        };
        let ode =
            Ode { steps: OdeSteps::Fixed(budget.ode_steps), min: ode_min, rho, end, order: OdeOrder::Euler };
        let kernel = self.kernel(facts, kernel)?;
        // The 2025 code's gradient misses the ½ of the likelihood, its Metropolis ratio does not.
        let beta = match (self, &kernel) {
            (Self::Official, KernelConfig::Metropolis(_)) => BELIEVED_BETA,
            (Self::Official, _) => BELIEVED_BETA / std::f64::consts::SQRT_2,
            _ => BELIEVED_BETA,
        };
        // Noise that is not Gaussian has no level to believe in.
        let beta = facts.is_gaussian.then_some(beta);
        let estimate = Estimate::Gaussian { center: Center::Ode(ode), spread: Spread::Sigma };
        Ok(Daps { beta, schedule, estimate, kernel })
    }

    fn kernel(self, facts: &Facts, kernel: &str) -> Result<KernelConfig> {
        let by = match self {
            Self::Official => DecayBy::IndexPlusOne,
            _ => DecayBy::Index,
        };
        let decay = |eta0, delta| StepSize::Decay { eta0, delta, by, cut: None };
        let follow = StepSize::Curvature { factor: STEP_IN_CURVATURES };
        let (steps, step_size) = match facts.tuned {
            Some(row) => {
                let papers = (LANGEVIN_STEPS, row.langevin_eta0);
                let (steps, eta0) = row.code.filter(|_| self != Self::Paper).unwrap_or(papers);
                (steps, decay(eta0, default_delta()))
            }
            None => (LANGEVIN_STEPS, follow.clone()),
        };
        Ok(match kernel {
            "langevin" => KernelConfig::Langevin(Langevin { steps, step_size }),
            "replay" => KernelConfig::Replay(Replay { steps, step_size }),
            // It alone works without a gradient, and then without a curvature.
            "metropolis" if facts.tuned.is_none() && !facts.is_smooth => {
                KernelConfig::Metropolis(Metropolis::default())
            }
            "metropolis" => KernelConfig::Metropolis(Metropolis { step_size, ..Metropolis::default() }),
            "hmc" => {
                let (steps, step_size, momentum) = match facts.tuned.map(|row| row.hmc) {
                    Some((steps, eta0, delta, momentum)) => (steps, decay(eta0, delta), momentum),
                    None => (HMC_OUTSIDE.0, follow, HMC_OUTSIDE.1),
                };
                KernelConfig::Hmc(Hmc { steps, step_size, momentum })
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

impl TryFrom<String> for Preset {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::named(&name)
    }
}

impl From<Preset> for String {
    fn from(preset: Preset) -> Self {
        preset.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TASKS;
    use daps_core::{Method, Schedule};

    fn facts(task: &str) -> Facts {
        Facts::of_task(task).unwrap()
    }

    #[test]
    fn every_preset_task_budget_and_kernel_builds() {
        for info in PRESETS {
            assert_eq!(Preset::named(info.name).unwrap(), info.preset);
            assert_eq!(info.preset.name(), info.name);
            if info.preset.is_ours() {
                continue;
            }
            for task in TASKS {
                for budget in BUDGETS {
                    for kernel in ["langevin", "hmc", "metropolis", "replay"] {
                        let daps = info.preset.daps(&facts(task.task), Some(budget.name), kernel).unwrap();
                        daps.check_settings().unwrap();
                        assert_eq!(Schedule::new(&daps.schedule).unwrap().len(), budget.levels);
                    }
                }
            }
        }
        assert!(Preset::named("mine").is_err());
        assert!(Preset::Paper.daps(&facts("hdr"), Some("7k"), "hmc").is_err());
    }

    /// The names are the numbers of denoiser calls, and the pairs are those of the paper's table of budgets.
    #[test]
    fn budgets_are_the_papers() {
        let pairs: Vec<(&str, usize, usize)> =
            BUDGETS.iter().map(|b| (b.name, b.ode_steps, b.levels)).collect();
        let paper = [("50", 2, 25), ("100", 2, 50), ("200", 2, 100), ("400", 4, 100)];
        assert_eq!(pairs[..4], paper);
        assert_eq!(pairs[4..], [("1k", 5, 200), ("2k", 8, 250), ("4k", 10, 400)]);
        for b in BUDGETS {
            assert_eq!(b.ode_steps * b.levels, levels_of(b.name).unwrap(), "{}", b.name);
        }
    }

    /// What `kernel = "hmc"` means without a preset.
    #[test]
    fn the_default_of_hmc_is_the_papers_for_super_resolution() {
        let tuned = Preset::Paper.daps(&facts("super_resolution"), None, "hmc").unwrap().kernel;
        assert_eq!(KernelConfig::Hmc(Hmc::default()), tuned);
    }

    #[test]
    fn our_presets_draw_exactly_where_that_is_possible() {
        for preset in [Preset::Fast, Preset::Best] {
            for task in TASKS {
                let daps = preset.settings_by(&facts(task.task), None, None).unwrap();
                daps.check_settings().unwrap();
                let exact = matches!(daps.kernel, KernelConfig::Exact(_));
                assert_eq!(exact, task.budget == "1k", "{}", task.task);
                assert_eq!(daps.beta, None, "the true noise");
            }
            let levels = |budget| {
                Schedule::new(&preset.settings_by(&facts("hdr"), Some(budget), None)?.schedule)
                    .map(|s| s.len())
            };
            assert_eq!((levels("80").unwrap(), levels("1k").unwrap()), (80, 1000));
            assert!(levels("0").is_err() && levels("many").is_err());
            assert!(preset.settings_by(&facts("hdr"), None, Some("gibbs")).is_err());
            // To name what is chosen anyway changes nothing.
            for (task, kernel) in [("hdr", "underdamped"), ("gaussian_blur", "exact")] {
                let named = preset.settings_by(&facts(task), None, Some(kernel)).unwrap();
                assert_eq!(named, preset.settings_by(&facts(task), None, None).unwrap());
            }
            let usual = preset.settings_by(&facts("hdr"), None, Some("exact")).unwrap();
            assert_eq!(preset.daps(&facts("hdr"), None, "exact").unwrap(), usual);
        }
    }

    /// The numbers of the paper's table of settings and of the official code, written out once more.
    #[test]
    fn presets_have_the_numbers_of_the_paper_and_of_the_code() {
        let decay = |eta0, delta, by| StepSize::Decay { eta0, delta, by, cut: None };
        let langevin =
            |preset: Preset, task: &str| preset.daps(&facts(task), Some("1k"), "langevin").unwrap();
        for (task, eta0, hmc) in [
            ("super_resolution", 1e-4, (12, 1.04e-4, 0.012, 0.90)),
            ("inpaint_box", 5e-5, (84, 1.15e-5, 0.014, 0.003)),
            ("inpaint_random", 1e-4, (11, 3.56e-5, 0.015, 0.80)),
            ("gaussian_blur", 1e-4, (82, 4.04e-5, 0.011, 0.10)),
            ("motion_blur", 5e-5, (96, 3.69e-5, 0.010, 0.11)),
            ("phase_retrieval", 5e-5, (62, 9.75e-6, 0.019, 0.73)),
            ("nonlinear_blur", 5e-5, (85, 1.2e-5, 0.012, 0.46)),
            ("hdr", 2e-5, (100, 2.18e-5, 0.013, 0.23)),
        ] {
            for (preset, by) in [
                (Preset::Paper, DecayBy::Index),
                (Preset::Legacy, DecayBy::Index),
                (Preset::Official, DecayBy::IndexPlusOne),
            ] {
                let of_code = preset != Preset::Paper && task == "nonlinear_blur";
                let (steps, eta0) = if of_code { (200, 1e-5) } else { (100, eta0) };
                let step_size = decay(eta0, 0.01, by);
                let expected = KernelConfig::Langevin(Langevin { steps, step_size });
                assert_eq!(langevin(preset, task).kernel, expected, "{preset:?}, {task}");
                let (steps, eta0, delta, momentum) = hmc;
                let expected = KernelConfig::Hmc(Hmc { steps, step_size: decay(eta0, delta, by), momentum });
                assert_eq!(
                    preset.daps(&facts(task), None, "hmc").unwrap().kernel,
                    expected,
                    "{preset:?}, {task}"
                );
            }
        }
        let ode = |min, end| Estimate::Gaussian {
            center: Center::Ode(Ode {
                steps: OdeSteps::Fixed(5),
                min,
                rho: 7.0,
                end,
                order: OdeOrder::Euler,
            }),
            spread: Spread::Sigma,
        };
        let poly = ScheduleRule::Poly { levels: 200, max: 100.0, min: 0.1, rho: 7.0 };
        let cut = ScheduleRule::PolyCut { levels: 200, max: 100.0, min: 0.1, rho: 7.0 };
        for (preset, beta, schedule, estimate) in [
            (Preset::Paper, 0.01, &poly, ode(0.02, OdeEnd::Zero)),
            (Preset::Legacy, 0.01, &poly, ode(0.01, OdeEnd::Zero)),
            (Preset::Official, 0.01 / 2.0f64.sqrt(), &cut, ode(0.01, OdeEnd::Min)),
        ] {
            let daps = langevin(preset, "hdr");
            assert_eq!(
                (daps.beta, &daps.schedule, &daps.estimate),
                (Some(beta), schedule, &estimate),
                "{preset:?}"
            );
        }
        // Its Metropolis ratio has the half that its gradient lacks.
        assert_eq!(Preset::Official.daps(&facts("hdr"), None, "metropolis").unwrap().beta, Some(0.01));
    }

    #[test]
    fn the_budget_defaults_to_the_papers_table() {
        let levels = |task| {
            Schedule::new(&Preset::Paper.daps(&facts(task), None, "langevin").unwrap().schedule)
                .unwrap()
                .len()
        };
        assert_eq!(levels("super_resolution"), 200);
        assert_eq!(levels("phase_retrieval"), 400);
        assert_eq!(levels("mri"), 200);
    }

    /// An operator outside the paper's table, and noise that is not Gaussian, get no step that was tuned for another.
    #[test]
    fn outside_the_table_steps_follow_the_curvature() {
        let outside = Facts { tuned: None, is_gaussian: true, is_linear: false, is_smooth: true };
        let follow = StepSize::Curvature { factor: 0.5 };
        for preset in [Preset::Paper, Preset::Legacy, Preset::Official] {
            let of = |kernel: &str| preset.daps(&outside, None, kernel).unwrap().kernel;
            let steps = [
                match of("langevin") {
                    KernelConfig::Langevin(k) => k.step_size,
                    other => panic!("{other:?}"),
                },
                match of("replay") {
                    KernelConfig::Replay(k) => k.step_size,
                    other => panic!("{other:?}"),
                },
                match of("metropolis") {
                    KernelConfig::Metropolis(k) => k.step_size,
                    other => panic!("{other:?}"),
                },
                match of("hmc") {
                    KernelConfig::Hmc(k) => k.step_size,
                    other => panic!("{other:?}"),
                },
            ];
            assert!(steps.iter().all(|s| *s == follow), "{steps:?}");
            let levels = |facts: &Facts| preset.daps(facts, None, "langevin").unwrap().levels();
            assert_eq!(levels(&outside), 400);
            assert_eq!(levels(&Facts { is_linear: true, ..outside }), 200);
            assert!(preset.daps(&outside, None, "langevin").unwrap().beta.is_some());
            let counts = Facts { is_gaussian: false, ..outside };
            assert_eq!(preset.daps(&counts, None, "langevin").unwrap().beta, None);
            let rough = Facts { is_smooth: false, ..outside };
            let kernel = preset.daps(&rough, None, "metropolis").unwrap().kernel;
            assert_eq!(kernel, KernelConfig::Metropolis(Metropolis::default()));
        }
    }
}
