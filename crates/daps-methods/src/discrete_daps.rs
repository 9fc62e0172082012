//! DAPS over tokens: the annealing loop with a discrete prior and a kernel over tokens.
//!
//! Paper: Zhang, Chu, Berner, Meng, Anandkumar, Song, "Improving Diffusion Inverse Problem Solving with Decoupled Noise
//! Annealing", CVPR 2025, Algorithm 3. Its box has the sign of the Hamming distance wrong; the text has it right.
//!
//! Ours (the default) takes each token's own law Π p(x0_i | x_t) for p(x0 | x_t), which the model gives in one call, and draws
//! x0|y exactly where the measurement falls into small groups of tokens. The paper's setting is [`DiscreteDaps::paper`].

use daps_core::{
    Error, Method, MethodInfo, Need, Problem, Result, ReverseChain, Samples, Schedule, ScheduleRule,
    TokenEstimate, Tokens, Walk, anneal,
};
use serde::{Deserialize, Serialize};

use crate::Preset;
use crate::kernel::{Exact, Flips, KernelConfig, check_groups};
use crate::settings::{Partial, PartialKernel, void_budget};

/// All settings of a discrete DAPS run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiscreteDaps {
    /// Annealing levels; σ is the total noise, a token being redrawn with probability 1 - e^-σ.
    pub schedule: ScheduleRule,
    /// How p(x0 | x_t) is estimated.
    pub estimate: TokenEstimate,
    /// How x0|y is drawn: flips or exact.
    pub kernel: KernelConfig,
}

impl Default for DiscreteDaps {
    fn default() -> Self {
        Self {
            schedule: ScheduleRule::Geometric { levels: 100, max: 20.0, min: 0.01 },
            estimate: TokenEstimate::Marginals,
            kernel: KernelConfig::Exact(Exact::default()),
        }
    }
}

/// What a file says of discrete DAPS.
pub type DiscreteSettings = Partial<TokenEstimate>;

impl DiscreteSettings {
    /// The settings of a preset, parts of which are replaced; `budget` is a number of levels.
    pub fn complete(&self) -> Result<DiscreteDaps> {
        let name = INFO.name;
        if self.budget.is_some() && self.schedule.is_some() {
            return Err(void_budget(name));
        }
        if let Some(beta) = self.beta {
            return Err(Error::invalid(
                format!("{name}.beta"),
                "none: tokens have no such noise level",
                beta,
            ));
        }
        let mut base = DiscreteDaps::preset(self.preset.unwrap_or(Preset::Best))?;
        if let Some(levels) = &self.budget {
            let wrong = || Error::invalid(format!("{name}.budget"), "a number of levels from 2", levels);
            base = base.with_levels(levels.parse().ok().filter(|n| *n > 1).ok_or_else(wrong)?);
        }
        let kernel = self.kernel.clone().unwrap_or_default();
        let own = kernel.kind.as_deref().map_or(Ok(base.kernel), KernelConfig::named)?;
        let settings = DiscreteDaps {
            schedule: self.schedule.clone().unwrap_or(base.schedule),
            estimate: self.estimate.unwrap_or(base.estimate),
            kernel: kernel.over(own)?,
        };
        settings.check_settings()?;
        Ok(settings)
    }
}

impl TryFrom<&DiscreteDaps> for DiscreteSettings {
    type Error = Error;

    /// The same settings, all of them given.
    fn try_from(daps: &DiscreteDaps) -> Result<Self> {
        Ok(Self {
            schedule: Some(daps.schedule.clone()),
            estimate: Some(daps.estimate),
            kernel: Some(PartialKernel::of(&daps.kernel)?),
            ..Self::default()
        })
    }
}

impl DiscreteDaps {
    /// Algorithm 3: the Hamming law around the end of a reverse chain, Metropolis over single flips. The last level is so low
    /// that the Hamming law's stray tokens, a share (1 - e^-σ)(1 - 1/S) of those that are not measured, are none.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            schedule: ScheduleRule::Geometric { levels: 50, max: 20.0, min: 0.001 },
            estimate: TokenEstimate::Hamming(ReverseChain::default()),
            kernel: KernelConfig::Flips(Flips::default()),
        }
    }

    /// The same with another number of levels, where they have a constant ratio.
    #[must_use]
    pub fn with_levels(mut self, count: usize) -> Self {
        if let ScheduleRule::Geometric { levels, .. } = &mut self.schedule {
            *levels = count;
        }
        self
    }

    /// The settings of a preset: ours with 100 or 50 levels, or the paper's.
    pub fn preset(preset: Preset) -> Result<Self> {
        match preset {
            Preset::Best => Ok(Self::default()),
            Preset::Fast => Ok(Self::default().with_levels(50)),
            Preset::Paper => Ok(Self::paper()),
            Preset::Legacy | Preset::Official => {
                Err(Error::unknown("preset of discrete_daps", preset.name(), ["paper", "fast", "best"]))
            }
        }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "discrete_daps",
    summary: "decoupled annealing of tokens: run the reverse chain, draw x0 given y, corrupt to the next level",
    paper: "Zhang et al., Improving Diffusion Inverse Problem Solving with Decoupled Noise Annealing, CVPR 2025, Algorithm 3",
};

impl Method for DiscreteDaps {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::Tokens]
    }

    fn check(&self, task: &Problem) -> Result<()> {
        self.check_needs(task)?;
        let model = task.tokens(INFO.name)?;
        Tokens::new(model.clone(), self.estimate)?;
        if matches!(self.kernel, KernelConfig::Exact(_)) && self.estimate != TokenEstimate::Exact {
            let (sites, symbols) = (model.shape().iter().product(), model.corruption().symbols());
            check_groups(&*task.likelihood, sites, symbols)?;
        }
        Ok(())
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::new(&self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        let kernel = self.kernel.build()?;
        match self.kernel {
            KernelConfig::Flips(_) if self.estimate == TokenEstimate::Exact => {
                Err(Error::invalid("discrete_daps.kernel", "exact, beside the exact estimate", "flips"))
            }
            KernelConfig::Flips(_) | KernelConfig::Exact(_) => Ok(()),
            _ => Err(Error::invalid("discrete_daps.kernel", "flips or exact", kernel.name())),
        }
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let prior = Tokens::new(task.tokens(INFO.name)?.clone(), self.estimate)?;
        anneal(&prior, &*task.likelihood, &*self.kernel.build()?, walk)
    }
}
