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
    /// A value that the mathematics refuses.
    #[error(transparent)]
    Core(#[from] daps_core::Error),
}

impl Error {
    pub(crate) fn file(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.to_owned(), reason: reason.to_string() }
    }

    pub(crate) fn config(kind: &'static str, reason: impl std::fmt::Display) -> Self {
        // Parsers add line breaks and pointers; the message stays one sentence.
        let reason = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Self::Config { kind, reason }
    }
}
