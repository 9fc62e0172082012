//! What a run tells those who watch. Observers cannot change a sample; they can only ask to stop.

use std::ops::ControlFlow;

use candle_core::Tensor;

use crate::{ChainInfo, Step};

/// Where a run stands: enough to go on from, bit for bit.
#[derive(Clone, Debug)]
pub struct State {
    /// The next level to run.
    pub level: usize,
    /// x_t at that level.
    pub x_t: Tensor,
    /// Chains that have diverged so far.
    pub diverged: Vec<bool>,
    /// Cost so far.
    pub cost: Cost,
    /// What else a method carries from level to level (optimiser moments, dual variables, particles), rows first.
    pub memory: Vec<Tensor>,
}

/// Work done, counted per row of the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Evaluations of the denoiser.
    pub nfe: usize,
    /// Applications of A, Aᵀ or J(x)ᵀ.
    pub operator_calls: usize,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.nfe += other.nfe;
        self.operator_calls += other.operator_calls;
    }
}

/// One message of the stream.
#[non_exhaustive]
pub enum Event<'a> {
    /// A level is done.
    Level {
        /// Which one.
        step: Step,
        /// The centre of the estimate of p(x0 | x_t), where the method has one.
        x0_hat: &'a Tensor,
        /// The conditional draw x0|y.
        x0_y: &'a Tensor,
        /// The kernel's diagnostics.
        info: &'a ChainInfo,
        /// The state from which the next level starts.
        state: &'a State,
    },
}

/// Someone who watches a run.
pub trait Observer {
    /// Takes a message; `Break` ends the run after this level.
    fn event(&mut self, event: &Event) -> ControlFlow<()>;
}

/// Nobody watches.
impl Observer for () {
    fn event(&mut self, _: &Event) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(&Event) -> ControlFlow<()>> Observer for F {
    fn event(&mut self, event: &Event) -> ControlFlow<()> {
        self(event)
    }
}
