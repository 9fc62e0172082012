//! Random-walk Metropolis: x' = x + √η ε, accepted by the ratio of the target's densities.
//!
//! This is the authors' code; the paper's text proposes with the deviation η and centres the prior's term on x_t instead of x̂0. Its
//! comparison counts 50,000 calls of the forward function, where the presets make 1,000 proposals a level.
//!
//! One accept for a whole image (`blocks = 1`, as shipped) hardly ever moves in high dimension; with more blocks, step j
//! proposes a change of one block only, in turns, so that the acceptance rate does not collapse. The steps of Langevin, which the
//! presets take, are too long once the chain fits the measurement: with a `warmup`, η is adapted to 23 % acceptance first and then
//! frozen. No gradient is used.

use daps_core::candle::{Device, Tensor};
use daps_core::tensors::{Real, pick, with_slice};
use daps_core::{
    Address, Approx, ChainInfo, Conditional, Cost, Kernel, Likelihood, Need, Noise, Purpose, Result, Step,
    with_real,
};
use serde::{Deserialize, Serialize};

use super::step_size::adapt;
use super::{Registered, StepSize, diverged_rows};
use crate::checks::check_some;

/// N Metropolis proposals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metropolis {
    /// N, proposals after the warm-up.
    pub steps: usize,
    /// Proposals in which η is adapted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warmup: usize,
    /// η, the variance of a proposal's values.
    pub step_size: StepSize,
    /// Into how many runs of consecutive values a sample is cut, at most; proposals take turns.
    #[serde(default = "one")]
    pub blocks: usize,
}

fn one() -> usize {
    1
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// The acceptance at which a random walk moves fastest in high dimension (Roberts, Gelman and Gilks).
const BEST_ACCEPTANCE: f64 = 0.234;

impl Default for Metropolis {
    fn default() -> Self {
        Self { steps: 1000, warmup: 0, step_size: StepSize::decay(1e-4), blocks: 1 }
    }
}

impl Metropolis {
    /// x with √η z added to the values of the block whose turn proposal j is.
    fn propose(&self, x: &Tensor, z: &Tensor, eta: &[f64], j: usize) -> Result<Tensor> {
        let n = x.elem_count() / x.dims()[0].max(1);
        // Rounding the size up may leave fewer blocks than were asked for; an empty one would always be accepted.
        let size = n.div_ceil(self.blocks);
        let low = (j % n.div_ceil(size)) * size;
        let high = (low + size).min(n);
        with_real!(x.dtype(), T => {
            let mut out: Vec<T> = x.flatten_all()?.to_vec1()?;
            with_slice(z, |z: &[T]| {
                for (i, row) in out.chunks_mut(n).enumerate() {
                    let scale = T::of(pick(eta, i).sqrt());
                    row[low..high].iter_mut().zip(&z[i * n + low..]).for_each(|(o, &z)| *o += scale * z);
                }
            })?;
            Ok(Tensor::from_vec(out, x.dims(), &Device::Cpu)?)
        })
    }
}

/// ln p(x0 | x_t) p(y | x0) per row.
fn log_target(approx: &Approx, likelihood: &dyn Likelihood, x: &Tensor) -> Result<Vec<f64>> {
    Ok(approx.log_prob(x)?.iter().zip(likelihood.log_prob(x)?).map(|(a, b)| a + b).collect())
}

/// Row by row, `new` where accepted and `old` elsewhere.
pub(super) fn keep_accepted(old: &Tensor, new: &Tensor, accepted: &[bool]) -> Result<Tensor> {
    let n = old.elem_count() / accepted.len().max(1);
    with_real!(old.dtype(), T => {
        let values = with_slice(old, |old: &[T]| with_slice(new, |new: &[T]| {
            let row = |(i, accepted): (usize, &bool)| if *accepted { &new[i * n..(i + 1) * n] } else { &old[i * n..(i + 1) * n] };
            accepted.iter().enumerate().map(row).collect::<Vec<_>>().concat()
        }))??;
        Ok(Tensor::from_vec(values, old.dims(), &Device::Cpu)?)
    })
}

impl Registered for Metropolis {
    const NEEDS: &'static [Need] = &[];

    fn check(&self) -> Result<()> {
        check_some("metropolis.steps", self.steps)?;
        self.step_size.check("metropolis")?;
        check_some("metropolis.blocks", self.blocks)?;
        Ok(())
    }
}

impl Kernel for Metropolis {
    fn name(&self) -> &'static str {
        "metropolis"
    }

    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let eta = self.step_size.at(step, target.approx, target.likelihood)?;
        let mut x = target.approx.start()?;
        let shape = x.dims()[1..].to_vec();
        let mut current = log_target(target.approx, target.likelihood, &x)?;
        let mut eta: Vec<f64> = (0..current.len()).map(|i| pick(&eta, i)).collect();
        let mut accepted = vec![0usize; current.len()];
        for j in 0..self.warmup + self.steps {
            let z = noise.normal(Address::new(step.index, Purpose::Kernel, j), &shape, x.dtype())?;
            let proposal = self.propose(&x, &z, &eta, j)?;
            let proposed = log_target(target.approx, target.likelihood, &proposal)?;
            let u = noise.uniform(Address::new(step.index, Purpose::Accept, j));
            let accept: Vec<bool> = (0..u.len()).map(|i| u[i].ln() < proposed[i] - current[i]).collect();
            if j < self.warmup {
                for (i, eta) in eta.iter_mut().enumerate() {
                    *eta *= adapt(proposed[i] - current[i], j, BEST_ACCEPTANCE);
                }
            }
            x = keep_accepted(&x, &proposal, &accept)?;
            for i in (0..accept.len()).filter(|i| accept[*i]) {
                current[i] = proposed[i];
                accepted[i] += usize::from(j >= self.warmup);
            }
        }
        let info = ChainInfo {
            acceptance: Some(accepted.iter().map(|a| *a as f64 / self.steps as f64).collect()),
            diverged: diverged_rows(&x)?,
            cost: Cost { nfe: 0, operator_calls: self.warmup + self.steps + 1 },
            iterations: None,
        };
        Ok((x, info))
    }
}
