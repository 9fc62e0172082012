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
    #[error("unknown {kind} '{name}'; known: {}{}", known.join(", "), suggestion(name, known))]
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
    /// A part from outside failed: its own error is the source.
    #[error("{what}: {source}")]
    Foreign {
        /// Which part.
        what: String,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
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

    /// A part from outside that failed.
    pub fn foreign(
        what: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Foreign { what: what.into(), source: source.into() }
    }

    /// A power that is asked for and not there.
    pub fn missing(who: impl Into<String>, needs: &'static str, whom: impl Into<String>) -> Self {
        Self::Missing { who: who.into(), needs, whom: whom.into() }
    }
}

/// "; did you mean 'x'?", where a known name is close.
fn suggestion(name: &str, known: &[String]) -> String {
    let nearest = known.iter().map(|k| (edits(name, k), k)).min_by_key(|(edits, _)| *edits);
    match nearest {
        Some((edits, near)) if edits <= (near.chars().count() / 3).max(1) => {
            format!("; did you mean '{near}'?")
        }
        _ => String::new(),
    }
}

/// How many letters have to be put in, left out or replaced to make one word of another.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.to_lowercase().chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(before + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_is_suggested() {
        let said = |name: &str| Error::unknown("operator", name, ["hdr", "gaussian_blur"]).to_string();
        assert!(said("gausian_blur").ends_with("known: hdr, gaussian_blur; did you mean 'gaussian_blur'?"));
        assert!(said("hdt").ends_with("did you mean 'hdr'?"));
        assert!(said("fourier").ends_with("known: hdr, gaussian_blur"));
        assert_eq!([edits("abc", "abc"), edits("", "ab"), edits("kitten", "sitting")], [0, 2, 3]);
    }

    #[test]
    fn an_error_from_outside_keeps_its_source() {
        let error = Error::foreign("my operator", std::io::Error::other("no detector"));
        assert_eq!(error.to_string(), "my operator: no detector");
        assert!(std::error::Error::source(&error).is_some());
    }
}
