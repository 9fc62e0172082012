//! What can be wrong with a file.

/// The result of every fallible call here.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong; each reads on after the file's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is not there.
    #[error("no such file")]
    Missing,
    /// The system cannot read it.
    #[error("cannot be read ({0})")]
    Io(std::io::Error),
    /// It holds something else.
    #[error("expected {expected}, got {got}")]
    Content {
        /// What it should hold.
        expected: String,
        /// What it holds.
        got: String,
    },
    /// It holds several tensors, and none was named.
    #[error("holds {} tensors; name one of: {}", .0.len(), .0.join(", "))]
    Several(Vec<String>),
    /// The tensor that was named is not there.
    #[error("has no tensor '{name}'; it has: {}", known.join(", "))]
    NoTensor {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// A folder without any.
    #[error("holds no images ({})", crate::ENDINGS.join(", "))]
    NoPictures,
    /// It is of no format that is known.
    #[error("is not an image in a known format")]
    UnknownFormat,
    /// A picture that cannot be decoded.
    #[error("cannot be read as an image ({0})")]
    Picture(String),
    /// More bytes than are read.
    #[error("is {found} MB; the limit is {most} MB")]
    Long {
        /// Its size in megabytes.
        found: u64,
        /// The limit in megabytes.
        most: u64,
    },
    /// More pixels than are decoded.
    #[error("is {width}x{height}; the limit is {most} megapixels")]
    Large {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// The limit in megapixels.
        most: u64,
    },
}

impl Error {
    pub(crate) fn content(expected: impl Into<String>, got: impl std::fmt::Display) -> Self {
        Self::Content { expected: expected.into(), got: first_line(&got) }
    }

    pub(crate) fn picture(reason: &dyn std::fmt::Display) -> Self {
        Self::Picture(first_line(reason))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound { Self::Missing } else { Self::Io(error) }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::content("a readable tensor", error)
    }
}

/// Libraries add backtraces below the first line of a message.
fn first_line(message: &(impl std::fmt::Display + ?Sized)) -> String {
    message.to_string().lines().next().unwrap_or("unreadable").to_owned()
}
