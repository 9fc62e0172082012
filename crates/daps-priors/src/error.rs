//! What can go wrong when a prior is built from a configuration or a file.

use std::path::{Path, PathBuf};

/// The result of every call that reads configuration or files.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate; each reads as one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or does not hold what was expected.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A configuration that does not parse.
    #[error("prior '{kind}': {reason}")]
    Config {
        /// The prior's name.
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A checkpoint whose tensors are not those of the network.
    #[error("the tensors do not fit the network: {0}")]
    Keys(KeyMismatch),
    /// A layer that cannot be built or run.
    #[error(transparent)]
    Network(#[from] daps_nn::Error),
    /// A value that the mathematics refuses.
    #[error(transparent)]
    Core(#[from] daps_core::Error),
}

/// Everything in which a checkpoint differs from its network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyMismatch {
    /// Names and shapes that the network needs and the checkpoint lacks.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Names and shapes that the network does not know.
    pub extra: Vec<(String, Vec<usize>)>,
    /// Names with the expected and the found shape (or, of constants, values).
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Names of tensors with NaN or infinite values.
    pub not_finite: Vec<String>,
}

impl KeyMismatch {
    /// Whether checkpoint and network agree.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let fits = self.missing.is_empty() && self.extra.is_empty() && self.misshapen.is_empty();
        fits && self.not_finite.is_empty()
    }
}

impl std::fmt::Display for KeyMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |keys: &[(String, Vec<usize>)]| {
            keys.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect::<Vec<_>>().join(", ")
        };
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            parts.push(format!("{} missing ({})", self.missing.len(), list(&self.missing)));
        }
        if !self.misshapen.is_empty() {
            let each = |(name, expected, found): &(String, Vec<usize>, Vec<usize>)| {
                let values = if expected == found { " with other values" } else { "" };
                format!("{name}: expected {expected:?}, found {found:?}{values}")
            };
            let list: Vec<String> = self.misshapen.iter().map(each).collect();
            parts.push(format!("{} misshapen ({})", list.len(), list.join("; ")));
        }
        if !self.extra.is_empty() {
            parts.push(format!("{} extra ({})", self.extra.len(), list(&self.extra)));
        }
        if !self.not_finite.is_empty() {
            let (count, list) = (self.not_finite.len(), self.not_finite.join(", "));
            parts.push(format!("{count} with NaN or infinite values ({list})"));
        }
        f.write_str(&parts.join("; "))
    }
}

impl Error {
    /// The same error, naming the file where it came up.
    pub(crate) fn within(self, path: &Path) -> Self {
        match self {
            Self::Keys(mismatch) => {
                Self::file(path, format!("the tensors do not fit the network: {mismatch}"))
            }
            Self::Config { reason, .. } => Self::file(path, reason),
            other => other,
        }
    }

    pub(crate) fn file(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.to_owned(), reason: reason.to_string() }
    }

    pub(crate) fn config(kind: &'static str, reason: impl std::fmt::Display) -> Self {
        // Parsers add line breaks and pointers; the message stays one sentence.
        let reason = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Self::Config { kind, reason }
    }
}
