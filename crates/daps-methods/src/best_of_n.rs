//! Best of N: samples of the prior over tokens, of which the one that fits the measurement best is kept.
//!
//! The baseline of the paper's discrete table, with N = 20. Every chain of a run has its own N samples.

use daps_core::{
    Address, Level, Method, MethodInfo, Need, Problem, Purpose, Result, Samples, Schedule, ScheduleRule,
    State, Walk, candle::Tensor,
};
use serde::{Deserialize, Serialize};

use crate::checks::check_some;
use crate::rivals::{gather, largest};

/// Settings of best-of-N.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BestOfN {
    /// Levels of the reverse chain.
    pub schedule: ScheduleRule,
    /// N, samples to choose from.
    pub particles: usize,
}

impl Default for BestOfN {
    fn default() -> Self {
        Self { schedule: ScheduleRule::Geometric { levels: 50, max: 20.0, min: 0.01 }, particles: 20 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "best_of_n",
    summary: "draws N samples of the prior over tokens and keeps the one of the highest likelihood",
    paper: "the baseline of Zhang et al., CVPR 2025, Appendix C",
};

impl Method for BestOfN {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::Tokens]
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::falling("best_of_n", &self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        check_some("best_of_n.particles", self.particles)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let noise = walk.noise;
        let (model, count) = (task.tokens(INFO.name)?, self.particles);
        let chain = model.corruption();
        let start = || {
            let pure = |k| chain.pure(model.shape(), noise, Address::new(0, Purpose::Init, k));
            let crowd = (0..count).map(pure).collect::<Result<Vec<_>>>()?;
            let mut state = State::start(crowd[0].clone());
            state.memory = vec![Tensor::stack(&crowd, 1)?];
            Ok(state)
        };
        walk.run(start, |state, step| {
            let crowd = state.memory(0)?;
            let mut moved = Vec::with_capacity(count);
            for k in 0..count {
                let x = crowd.narrow(1, k, 1)?.squeeze(1)?.contiguous()?;
                let marginals = model.marginals(&x, step.sigma)?;
                let at = Address::new(step.index, Purpose::Estimate, k);
                moved.push(chain.reverse_draw(&x, &marginals, (step.sigma, step.next), noise, at)?);
            }
            state.x_t = moved[0].clone();
            let mut operator_calls = 0;
            if step.next == 0.0 {
                let fits =
                    moved.iter().map(|x| task.likelihood.log_prob(x)).collect::<Result<Vec<Vec<f64>>>>()?;
                let of_row = |row: usize| largest(&fits.iter().map(|f| f[row]).collect::<Vec<_>>());
                state.x_t = gather(&moved, &(0..noise.len()).map(of_row).collect::<Vec<_>>())?;
                operator_calls = count;
            }
            state.memory = vec![Tensor::stack(&moved, 1)?];
            Ok(Level::new(state.x_t.clone(), state.x_t.clone(), count, operator_calls))
        })
    }
}
