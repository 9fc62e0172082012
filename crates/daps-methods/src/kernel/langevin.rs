//! Unadjusted Langevin dynamics: x ← x + η ∇log p + √(2η) ε, N steps from the estimate.

use daps_core::candle::Tensor;
use daps_core::tensors::combine;
use daps_core::{Address, Approx, ChainInfo, Conditional, Cost, Kernel, Need, Noise, Purpose, Result, Step};
use serde::{Deserialize, Serialize};

use super::{Registered, StepSize, diverged_rows, smooth};
use crate::checks::check_some;

/// N Langevin steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Langevin {
    /// N.
    pub steps: usize,
    /// η.
    pub step_size: StepSize,
}

impl Default for Langevin {
    /// The paper's table: N = 100, η0 = 1e-4, δ = 0.01.
    fn default() -> Self {
        Self { steps: 100, step_size: StepSize::decay(1e-4) }
    }
}

/// ∇log p(x0 | x_t) + ∇log p(y | x0) at x, with its cost.
pub(super) fn target_gradient(target: &Conditional, x: &Tensor) -> Result<(Tensor, Cost)> {
    let likelihood = smooth("a Langevin step", target.likelihood)?.gradient(x)?;
    let (prior, nfe) = target.approx.gradient(x)?;
    Ok((combine(&[(&[1.0], &prior), (&[1.0], &likelihood)])?, Cost { nfe, operator_calls: 2 }))
}

impl Registered for Langevin {
    const NEEDS: &'static [Need] = &[Need::SmoothLikelihood];

    fn check(&self) -> Result<()> {
        check_some("langevin.steps", self.steps)?;
        self.step_size.check("langevin")?;
        Ok(())
    }
}

impl Kernel for Langevin {
    fn name(&self) -> &'static str {
        "langevin"
    }

    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let likelihood = smooth(self.name(), target.likelihood)?;
        let eta = self.step_size.at(step, target.approx, target.likelihood)?;
        let spread: Vec<f64> = eta.iter().map(|e| (2.0 * e).sqrt()).collect();
        let mut x = target.approx.start()?;
        let shape = x.dims()[1..].to_vec();
        let mut cost = Cost::default();
        for j in 0..self.steps {
            let data = likelihood.gradient(&x)?;
            cost += Cost { nfe: 0, operator_calls: 2 };
            let z = noise.normal(Address::new(step.index, Purpose::Kernel, j), &shape, x.dtype())?;
            // The common case in one pass: x (1 - η/r²) + mean η/r² + η g + √(2η) z.
            x = if let Approx::Gaussian { mean, covariance: daps_core::Covariance::Scalar(c), .. } =
                target.approx
            {
                let rows = c.len().max(eta.len());
                let pull: Vec<f64> = (0..rows)
                    .map(|i| daps_core::tensors::pick(&eta, i) / daps_core::tensors::pick(c, i))
                    .collect();
                let keep: Vec<f64> = pull.iter().map(|p| 1.0 - p).collect();
                combine(&[(&keep, &x), (&pull, mean), (&eta, &data), (&spread, &z)])?
            } else {
                let (prior, nfe) = target.approx.gradient(&x)?;
                cost += Cost { nfe, operator_calls: 0 };
                combine(&[(&[1.0], &x), (&eta, &prior), (&eta, &data), (&spread, &z)])?
            };
        }
        let info = ChainInfo { diverged: diverged_rows(&x)?, cost, ..ChainInfo::default() };
        Ok((x, info))
    }
}
