//! SVDD-PM over tokens: at every step of the reverse chain several proposals, one of which is kept by its value.
//!
//! Paper: Li, Zhao, Wang, Scalia, Eraslan, Nair, Biancalani, Ji, Regev, Levine, Uehara, "Derivative-Free Guidance in Continuous and
//! Discrete Diffusion Models with Soft Value-Based Decoding", 2024. From x_t, M draws of the reverse step; one is kept with
//! probability ∝ exp(v/α), where the value v of a proposal is the reward at its estimate of x0 (the posterior mean, PM).
//!
//! Here the reward is log p(y | x0), so that α = 1 aims at the posterior; α = 0 keeps the best. Tokens have no mean, and the
//! likelihood takes tokens only, so x0 is estimated by each token's most likely value.

use daps_core::mixture::choose;
use daps_core::{
    Address, Categorical, Level, Method, MethodInfo, Need, Problem, Purpose, Result, Samples, Schedule,
    ScheduleRule, State, Walk,
    candle::{Device, Tensor},
};
use serde::{Deserialize, Serialize};

use crate::checks::{check_range, check_some};
use crate::rivals::{gather, largest};

/// Settings of SVDD-PM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SvddPm {
    /// Levels of the reverse chain.
    pub schedule: ScheduleRule,
    /// M, proposals of a step.
    pub particles: usize,
    /// α, the temperature of the choice; 0 keeps the best.
    pub alpha: f64,
}

impl Default for SvddPm {
    fn default() -> Self {
        Self {
            schedule: ScheduleRule::Geometric { levels: 50, max: 20.0, min: 0.01 },
            particles: 20,
            alpha: 1.0,
        }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "svdd_pm",
    summary: "several proposals of each reverse step over tokens, one kept by the likelihood of its estimate of x0",
    paper: "Li et al., Derivative-Free Guidance in Continuous and Discrete Diffusion Models with Soft Value-Based Decoding, 2024",
};

/// Each token's most likely value.
fn mode(model: &dyn Categorical, x_t: &Tensor, sigma: f64) -> Result<Tensor> {
    let marginals = model.marginals(x_t, sigma)?;
    let tokens: Vec<u8> = marginals.chunks(model.corruption().symbols()).map(|p| largest(p) as u8).collect();
    Ok(Tensor::from_vec(tokens, x_t.dims(), &Device::Cpu)?)
}

impl Method for SvddPm {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::Tokens]
    }

    fn schedule(&self) -> Result<Schedule> {
        Schedule::falling("svdd_pm", &self.schedule)
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        check_range("svdd_pm.alpha", self.alpha, 0.0, f64::INFINITY)?;
        check_some("svdd_pm.particles", self.particles)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let noise = walk.noise;
        let (model, count) = (task.tokens(INFO.name)?, self.particles);
        let chain = model.corruption();
        let start =
            || Ok(State::start(chain.pure(model.shape(), noise, Address::new(0, Purpose::Init, 0))?));
        walk.run(start, |state, step| {
            let marginals = model.marginals(&state.x_t, step.sigma)?;
            let (mut moved, mut estimates, mut values) = (vec![], vec![], vec![]);
            for k in 0..count {
                let at = Address::new(step.index, Purpose::Estimate, k);
                let x = chain.reverse_draw(&state.x_t, &marginals, (step.sigma, step.next), noise, at)?;
                let x0 = if step.next > 0.0 { mode(&**model, &x, step.next)? } else { x.clone() };
                values.push(task.likelihood.log_prob(&x0)?);
                estimates.push(x0);
                moved.push(x);
            }
            let u = noise.uniform(Address::new(step.index, Purpose::Choice, 0));
            let of_row = |row: usize| {
                let values: Vec<f64> = values.iter().map(|v| v[row]).collect();
                if self.alpha == 0.0 {
                    return largest(&values);
                }
                choose(&values.iter().map(|v| v / self.alpha).collect::<Vec<_>>(), u[row])
            };
            let chosen: Vec<usize> = (0..noise.len()).map(of_row).collect();
            state.x_t = gather(&moved, &chosen)?;
            let nfe = if step.next > 0.0 { 1 + count } else { 1 };
            Ok(Level::new(estimates[0].clone(), gather(&estimates, &chosen)?, nfe, count))
        })
    }
}
