//! DAPS over tokens: the annealing loop with a discrete prior and a kernel over tokens.
//!
//! Paper: Zhang, Chu, Berner, Meng, Anandkumar, Song, "Improving Diffusion Inverse Problem Solving with Decoupled Noise
//! Annealing", CVPR 2025, Algorithm 3. Its box has the sign of the Hamming distance wrong; the text has it right.

use daps_core::{
    Error, Method, MethodInfo, Need, Noise, Observer, Result, Samples, Schedule, ScheduleRule, State, Task,
    TokenEstimate, Tokens, anneal,
};
use serde::{Deserialize, Serialize};

use crate::kernel::{Flips, KernelConfig};

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
            schedule: ScheduleRule::Geometric { levels: 50, max: 20.0, min: 0.01 },
            estimate: TokenEstimate::default(),
            kernel: KernelConfig::Flips(Flips::default()),
        }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "discrete_daps",
    summary: "decoupled annealing of tokens: run the reverse chain, draw x0 given y, corrupt to the next level",
    paper: "Zhang et al., Improving Diffusion Inverse Problem Solving with Decoupled Noise Annealing, CVPR 2025, Algorithm 3",
};

impl DiscreteDaps {
    /// Checks everything that can be checked without a task.
    pub fn check_settings(&self) -> Result<()> {
        Schedule::new(&self.schedule)?;
        let kernel = self.kernel.build()?;
        match self.kernel {
            KernelConfig::Flips(_) | KernelConfig::Exact(_) => Ok(()),
            _ => Err(Error::invalid("discrete_daps.kernel", "flips or exact", kernel.name())),
        }
    }
}

impl Method for DiscreteDaps {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::Tokens]
    }

    fn check(&self, task: &Task) -> Result<()> {
        self.check_needs(task)?;
        Tokens::new(task.tokens(INFO.name)?.clone(), self.estimate).map(|_| ())
    }

    fn levels(&self) -> usize {
        Schedule::new(&self.schedule).map_or(0, |s| s.len())
    }

    fn sample(
        &self,
        task: &Task,
        noise: &Noise,
        from: Option<State>,
        observer: &mut dyn Observer,
    ) -> Result<Samples> {
        self.check(task)?;
        self.check_settings()?;
        let prior = Tokens::new(task.tokens(INFO.name)?.clone(), self.estimate)?;
        let (schedule, kernel) = (Schedule::new(&self.schedule)?, self.kernel.build()?);
        anneal(&prior, &*task.likelihood, &*kernel, &schedule, noise, from, observer)
    }
}
