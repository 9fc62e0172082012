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
    /// Settings that cannot be read: the whole sentence.
    #[error("{0}")]
    Settings(String),
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

    /// Settings that a parser refuses: whose settings, and its message.
    pub fn settings(what: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self::Settings(format!("{what}: {}", with_suggestion(&message.to_string())))
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
#[must_use]
pub fn suggestion<S: AsRef<str>>(name: &str, known: &[S]) -> String {
    let nearest = known.iter().map(|k| (edits(name, k.as_ref()), k.as_ref())).min_by_key(|(edits, _)| *edits);
    match nearest {
        Some((edits, near)) if edits <= (near.chars().count() / 3).max(1) => {
            format!("; did you mean '{near}'?")
        }
        _ => String::new(),
    }
}

/// A parser's message. If it names an unknown field or variant ("unknown field `x`, expected `y` or `z`"), the nearest
/// known name is added.
#[must_use]
pub fn with_suggestion(message: &str) -> String {
    let message = message.trim();
    let suggestion = unknown_name(message).map_or_else(String::new, |(name, known)| suggestion(name, &known));
    // An inner part may have added it.
    if message.contains(&suggestion) { message.to_owned() } else { format!("{message}{suggestion}") }
}

/// The unknown name of such a message, and the known names.
fn unknown_name(message: &str) -> Option<(&str, Vec<&str>)> {
    let after = |start: &str| message.split_once(start).map(|(_, rest)| rest);
    let rest = after("unknown field `").or_else(|| after("unknown variant `"))?;
    let (name, rest) = rest.split_once("`, expected ")?;
    let mut rest = rest.strip_prefix("one of ").unwrap_or(rest);
    let mut known = vec![];
    while let Some((word, after)) = rest.strip_prefix('`').and_then(|rest| rest.split_once('`')) {
        known.push(word);
        rest = after.strip_prefix(", ").or_else(|| after.strip_prefix(" or ")).unwrap_or("");
    }
    Some((name, known))
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
    fn a_parsers_message_gets_the_nearest_name() {
        for (message, near) in [
            ("unknown field `fctor`, expected `factor`", Some("factor")),
            ("line 3: unknown field `samlpe`, expected `sample` or `samples`\n", Some("sample")),
            (
                "unknown variant `poison`, expected one of `gaussian`, `poisson`, `unknown` in `noise`",
                Some("poisson"),
            ),
            ("unknown field `colour`, expected one of `size`, `std`, `border`", None),
            ("unknown field `a`, there are no fields", None),
            ("missing field `means`", None),
        ] {
            let told = near.map_or(String::new(), |near| format!("; did you mean '{near}'?"));
            let expected = format!("{}{told}", message.trim());
            assert_eq!(with_suggestion(message), expected);
            assert_eq!(with_suggestion(&expected), expected, "it is said once");
        }
        let error = Error::settings("parameters of hdr", "unknown field `scal`, expected `scale`");
        assert!(error.to_string().starts_with("parameters of hdr: unknown field `scal`"), "{error}");
        assert!(error.to_string().ends_with("expected `scale`; did you mean 'scale'?"), "{error}");
    }

    #[test]
    fn an_error_from_outside_keeps_its_source() {
        let error = Error::foreign("my operator", std::io::Error::other("no detector"));
        assert_eq!(error.to_string(), "my operator: no detector");
        assert!(std::error::Error::source(&error).is_some());
    }
}
