//! Damped Hamiltonian steps as the official code has them: v ← μ v + √η ∇log p + √(2(1-μ)) ε; x ← x + √η v.
//!
//! The velocity is drawn once per level and there is no accept step; μ = 0 is Langevin. The paper writes μ = 1 - γη.

use daps_core::candle::Tensor;
use daps_core::tensors::combine;
use daps_core::{Address, ChainInfo, Conditional, Cost, Kernel, Need, Noise, Purpose, Result, Step};
use serde::{Deserialize, Serialize};

use super::langevin::target_gradient;
use super::{DecayBy, Registered, StepSize, diverged_rows};
use crate::TASKS;
use crate::checks::{check_range, check_some};

/// N damped Hamiltonian steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hmc {
    /// N.
    pub steps: usize,
    /// η, the square of the time step.
    pub step_size: StepSize,
    /// μ, the share of the velocity that a step keeps.
    pub momentum: f64,
}

impl Default for Hmc {
    /// The official super-resolution setting, the first of the table.
    fn default() -> Self {
        let (steps, eta0, delta, momentum) = TASKS[0].hmc;
        let step_size = StepSize::Decay { eta0, delta, by: DecayBy::Index, cut: None };
        Self { steps, step_size, momentum }
    }
}

impl Registered for Hmc {
    const NEEDS: &'static [Need] = &[Need::SmoothLikelihood];

    fn check(&self) -> Result<()> {
        check_some("hmc.steps", self.steps)?;
        self.step_size.check("hmc")?;
        check_range("hmc.momentum", self.momentum, 0.0, 1.0)?;
        Ok(())
    }
}

impl Kernel for Hmc {
    fn name(&self) -> &'static str {
        "hmc"
    }

    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let eta = self.step_size.at(step, target.approx, target.likelihood)?;
        let root: Vec<f64> = eta.iter().map(|e| e.sqrt()).collect();
        let (keep, refresh) = (self.momentum, (2.0 * (1.0 - self.momentum)).sqrt());
        let mut x = target.approx.start()?;
        let shape = x.dims()[1..].to_vec();
        let mut v = noise.normal(Address::new(step.index, Purpose::Velocity, 0), &shape, x.dtype())?;
        let mut cost = Cost::default();
        for j in 0..self.steps {
            let (gradient, spent) = target_gradient(target, &x)?;
            cost += spent;
            let z = noise.normal(Address::new(step.index, Purpose::Kernel, j), &shape, x.dtype())?;
            v = combine(&[(&[keep], &v), (&root, &gradient), (&[refresh], &z)])?;
            x = combine(&[(&[1.0], &x), (&root, &v)])?;
        }
        let info = ChainInfo { diverged: diverged_rows(&x)?, cost, ..ChainInfo::default() };
        Ok((x, info))
    }
}
