//! The loop of Algorithm 1. There is one: DAPS over pixels and over tokens hand it different priors and kernels.

use std::sync::Arc;

use candle_core::Tensor;

use crate::tensors::{check_finite, finite_rows};
use crate::{
    Address, Conditional, Cost, Error, Event, Kernel, Level, Likelihood, Observer, Prior, Purpose, Result,
    State, Step, Walk,
};

/// What a run gives.
#[derive(Clone, Debug)]
pub struct Samples {
    /// One sample per row.
    pub x: Tensor,
    /// Rows whose chain diverged; their values are what the chain left behind, never zeros.
    pub diverged: Vec<bool>,
    /// Work done per row.
    pub cost: Cost,
    /// What the method carried along to its end; parameters of the likelihood that were drawn with the samples come first.
    pub memory: Vec<Tensor>,
}

/// Draws samples of p(x0 | y) by decoupled noise annealing, from the start or from a state.
pub fn anneal(
    prior: &dyn Prior,
    likelihood: &dyn Likelihood,
    kernel: &dyn Kernel,
    walk: Walk,
) -> Result<Samples> {
    let (schedule, noise) = (walk.schedule, walk.noise);
    let start = || {
        let mut state = State::start(prior.init(schedule.start(), noise)?);
        if let Some(nuisance) = likelihood.as_nuisance() {
            state.memory.push(nuisance.init(noise)?);
        }
        Ok(state)
    };
    walk.run(start, |state, step| {
        let known = state.likelihood(likelihood)?;
        // 1. Estimate p(x0 | x_t).
        let estimated = prior.estimate(&state.x_t, step, noise)?;
        let x0_hat = estimated.approx.start()?;

        // 2. Condition on y: x0|y ~ p(x0 | x_t) p(y | x0).
        let target =
            Conditional { approx: &estimated.approx, likelihood: known.as_deref().unwrap_or(likelihood) };
        // Inside the thread pool: handing each of a kernel's many short passes over from outside costs more than the pass.
        let (x0_y, mut info) = rayon::scope(|_| kernel.draw(&target, noise, step))?;
        info.cost.nfe += estimated.nfe;
        if let Some(nuisance) = likelihood.as_nuisance() {
            let at = Address::new(step.index, Purpose::Nuisance, 0);
            state.memory[0] = nuisance.draw(state.memory(0)?, &x0_y, noise, at)?;
        }

        // 3. Renoise to the next level.
        state.x_t = prior.renoise(&x0_y, step, noise)?;
        Ok(Level { x0_hat, x0_y, info })
    })
}

impl State {
    /// The state before the first level.
    #[must_use]
    pub fn start(x_t: Tensor) -> Self {
        let rows = x_t.dims()[0];
        Self { level: 0, x_t, diverged: vec![false; rows], cost: Cost::default(), memory: vec![] }
    }

    /// The likelihood with its own parameters as they stand, where it has any: the loop keeps them first in its memory.
    pub fn likelihood(&self, of: &dyn Likelihood) -> Result<Option<Arc<dyn Likelihood>>> {
        of.as_nuisance().map(|nuisance| nuisance.with(self.memory(0)?)).transpose()
    }

    /// One of the tensors that a method carries along; a state saved by another method may lack it.
    pub fn memory(&self, index: usize) -> Result<&Tensor> {
        self.memory.get(index).ok_or_else(|| {
            Error::invalid(
                "saved state",
                "what this method carries along",
                format!("{} tensors", self.memory.len()),
            )
        })
    }

    /// Books a level after `x_t` was moved to the next one: counts, marks diverged chains, tells the observer.
    pub fn complete(&mut self, step: Step, level: &Level, observer: &mut dyn Observer) -> Result<()> {
        let Level { x0_hat, x0_y, info } = level;
        self.level = step.index + 1;
        self.cost += info.cost;
        let finite = finite_rows(&self.x_t)?;
        for ((all, here), finite) in self.diverged.iter_mut().zip(&info.diverged).zip(finite) {
            *all |= *here || !finite;
        }
        if self.diverged.iter().all(|d| *d) {
            let chains = self.diverged.len();
            return Err(Error::AllDiverged { chains, level: step.index, sigma: step.sigma });
        }
        let event = Event::Level { step, x0_hat, x0_y, info, state: self };
        if observer.event(&event).is_break() && self.level < step.of {
            return Err(Error::Cancelled { level: self.level, of: step.of });
        }
        Ok(())
    }

    /// The samples of a run whose last level is done.
    #[must_use]
    pub fn into_samples(self) -> Samples {
        Samples { x: self.x_t, diverged: self.diverged, cost: self.cost, memory: self.memory }
    }

    /// Checks that a state read from a file fits a run.
    pub fn check(&self, rows: usize, shape: &[usize], levels: usize) -> Result<()> {
        let expected = crate::tensors::batched(rows, shape);
        if self.x_t.dims() != expected || self.diverged.len() != rows {
            return Err(Error::shape("saved state", &expected, self.x_t.dims()));
        }
        if self.level > levels {
            return Err(Error::invalid("saved state", format!("a level up to {levels}"), self.level));
        }
        if self.diverged.iter().any(|d| *d) { Ok(()) } else { check_finite("saved state", &self.x_t) }
    }
}
