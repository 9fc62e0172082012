//! Errors of the façade: what the parts below say, and what can go wrong with files and configurations.

use std::path::{Path, PathBuf};

/// The result of every fallible call here.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The sampler or one of its parts refused.
    #[error(transparent)]
    Core(#[from] daps_core::Error),
    /// A prior could not be built.
    #[error(transparent)]
    Prior(#[from] daps_priors::Error),
    /// A file that could not be read or written.
    #[error("{}: {what}: {said}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said. The message has it, so it is no `source`: who prints the chain would print it twice.
        said: std::io::Error,
    },
    /// A file whose content is not what it should be.
    #[error("{}: {what}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A configuration that cannot be used.
    #[error("{0}")]
    Config(String),
}

impl Error {
    /// Whether somebody asked for the end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(
            self,
            Self::Core(daps_core::Error::Cancelled { .. })
                | Self::Prior(daps_priors::Error::Core(daps_core::Error::Cancelled { .. }))
        )
    }

    /// For `map_err`: what the system says of a file, with what could not be done.
    pub fn file(path: &Path, what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |said| Self::File { path, what, said }
    }

    /// A file or folder whose content is not what it should be, and why.
    pub fn content(path: &Path, what: impl std::fmt::Display) -> Self {
        Self::Content { path: path.to_path_buf(), what: what.to_string() }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Core(error.into())
    }
}
