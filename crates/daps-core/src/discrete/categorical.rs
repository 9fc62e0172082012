//! A prior over tokens, seen through p(x0_i | x_t), the law of each clean token given the whole corrupted sample.
//!
//! The concrete score follows from it, p_t(x with x_i = b) / p_t(x) = Σ_a p(b | a; σ) / p(x_i | a; σ) · p(x0_i = a | x_t),
//! but the way back is a division by almost nothing where σ is large, so the marginals are what models give.

use candle_core::Tensor;

use super::Corruption;
use crate::{Approx, Result, Space};

/// A network or a formula that gives p(x0_i | x_t).
pub trait Categorical: Send + Sync {
    /// Shape of one sample.
    fn shape(&self) -> &[usize];

    /// The space of its samples.
    fn space(&self) -> Space {
        Space::tokens(self.shape(), self.corruption().symbols())
    }

    /// A short text of what defines it, where it comes from no file: a run in a directory resumes only where it is the same.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// The chain that corrupts its samples.
    fn corruption(&self) -> &Corruption;

    /// p(x0_i = a | x_t) for corrupted tokens at level σ: row by row, site by site, symbol by symbol.
    fn marginals(&self, x_t: &Tensor, sigma: f64) -> Result<Vec<f64>>;

    /// All samples with their weights.
    fn as_enumerable(&self) -> Option<&dyn Enumerable> {
        None
    }
}

/// A prior over so few samples that they can be listed.
pub trait Enumerable: Categorical {
    /// p(x0 | x_t) over whole samples, as [`Approx::Draws`].
    fn conditional(&self, x_t: &Tensor, sigma: f64) -> Result<Approx<'_>>;
}
