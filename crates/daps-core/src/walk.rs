//! The way through the levels of a schedule, from a start or from a saved state. Every method takes it.

use candle_core::Tensor;

use crate::{ChainInfo, Cost, Noise, Observer, Result, Samples, Schedule, State, Step};

/// What a level tells those who watch; the level itself has moved the state.
pub struct Level {
    /// The estimate of x0 before the measurement was heard.
    pub x0_hat: Tensor,
    /// The same after it.
    pub x0_y: Tensor,
    /// Work and diagnostics.
    pub info: ChainInfo,
}

impl Level {
    /// A level that cannot diverge other than by leaving the finite numbers.
    #[must_use]
    pub fn new(x0_hat: Tensor, x0_y: Tensor, nfe: usize, operator_calls: usize) -> Self {
        let diverged = vec![false; x0_hat.dims()[0]];
        let info = ChainInfo { diverged, cost: Cost { nfe, operator_calls }, ..ChainInfo::default() };
        Self { x0_hat, x0_y, info }
    }
}

/// A walk to be taken: which levels, with which noise, from where, and who watches.
pub struct Walk<'a> {
    /// The levels.
    pub schedule: &'a Schedule,
    /// The noise of every row.
    pub noise: &'a Noise,
    /// The state of an interrupted walk.
    pub from: Option<State>,
    /// Who watches.
    pub observer: &'a mut dyn Observer,
}

impl Walk<'_> {
    /// Runs `level` on the state for every step that is left.
    pub fn run(
        self,
        start: impl FnOnce() -> Result<State>,
        mut level: impl FnMut(&mut State, &Step) -> Result<Level>,
    ) -> Result<Samples> {
        let mut state = self.from.map_or_else(start, Ok)?;
        for step in self.schedule.steps().skip(state.level) {
            let told = level(&mut state, &step)?;
            state.complete(step, &told, self.observer)?;
        }
        Ok(state.into_samples())
    }
}
