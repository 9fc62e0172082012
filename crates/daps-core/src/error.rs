//! The one error type of the core: every variant says what was expected and what came.

use std::fmt;
use std::path::PathBuf;

/// The result of every fallible call in the core.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong. A diverged chain is not among these: it is data, see [`crate::ChainInfo`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor of another shape than the receiver works on.
    #[error("{what}: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// What had the wrong shape.
        what: String,
        /// The shape that was needed.
        expected: Vec<usize>,
        /// The shape that came.
        got: Vec<usize>,
    },
    /// An input with NaN or infinite values.
    #[error("{what}: {count} of {of} values are NaN or infinite; all must be finite")]
    NonFinite {
        /// What held the values.
        what: String,
        /// How many are not finite.
        count: usize,
        /// How many there are.
        of: usize,
    },
    /// A parameter outside its range.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// The parameter.
        what: String,
        /// The range or form that is accepted.
        expected: String,
        /// What came.
        got: String,
    },
    /// A file that does not hold what something was to be built from.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A name that no registry knows.
    #[error("unknown {kind} '{name}'; known: {}", known.join(", "))]
    Unknown {
        /// The registry: operator, kernel, method, …
        kind: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// Two parts that do not fit: one needs a power that the other lacks.
    #[error("{who} needs {needs}; {whom} has none")]
    Missing {
        /// Who asks.
        who: String,
        /// The power: "a singular value decomposition", …
        needs: &'static str,
        /// Who lacks it.
        whom: String,
    },
    /// An iterative solver that did not reach its tolerance.
    #[error(
        "{what} stopped after {iterations} iterations at relative residual {residual:.2e}, above {tolerance:.0e}"
    )]
    NotConverged {
        /// The solver.
        what: &'static str,
        /// Iterations done.
        iterations: usize,
        /// Residual reached.
        residual: f64,
        /// Residual asked for.
        tolerance: f64,
    },
    /// All chains of a run diverged: there is no sample to give.
    #[error(
        "all {chains} chains diverged by level {level} (sigma {sigma}); the kernel's step is too large for this likelihood"
    )]
    AllDiverged {
        /// How many chains there were.
        chains: usize,
        /// The level at which the last one went.
        level: usize,
        /// Its noise level.
        sigma: f64,
    },
    /// An observer asked to stop.
    #[error("stopped on request at level {level} of {of}")]
    Cancelled {
        /// Levels done.
        level: usize,
        /// Levels in all.
        of: usize,
    },
    /// The tensor library refused.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl Error {
    /// A parameter outside its range.
    pub fn invalid(what: impl Into<String>, expected: impl Into<String>, got: impl fmt::Display) -> Self {
        Self::Invalid { what: what.into(), expected: expected.into(), got: got.to_string() }
    }

    /// A tensor of the wrong shape.
    pub fn shape(what: impl Into<String>, expected: &[usize], got: &[usize]) -> Self {
        Self::Shape { what: what.into(), expected: expected.to_vec(), got: got.to_vec() }
    }

    /// A name that is in no registry.
    pub fn unknown<S: AsRef<str>>(
        kind: &'static str,
        name: &str,
        known: impl IntoIterator<Item = S>,
    ) -> Self {
        let known = known.into_iter().map(|k| k.as_ref().to_owned()).collect();
        Self::Unknown { kind, name: name.to_owned(), known }
    }

    /// A power that is asked for and not there.
    pub fn missing(who: impl Into<String>, needs: &'static str, whom: impl Into<String>) -> Self {
        Self::Missing { who: who.into(), needs, whom: whom.into() }
    }
}
