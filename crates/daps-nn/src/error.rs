//! What can go wrong in a layer.

/// Errors of this crate; each says what was expected and what came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has the wrong shape.
    #[error("{what}: expected shape {expected}, got {got:?}")]
    Shape {
        /// Which tensor.
        what: &'static str,
        /// The shape that fits, in words.
        expected: String,
        /// The shape that came.
        got: Vec<usize>,
    },
    /// A tensor has the wrong element type.
    #[error("{what}: expected dtype F32, got {got:?}")]
    DType {
        /// Which tensor.
        what: &'static str,
        /// The element type that came.
        got: candle_core::DType,
    },
    /// A number is out of the range that an operation supports.
    #[error("{what}: expected {expected}, got {got}")]
    Value {
        /// Which number.
        what: &'static str,
        /// What is supported.
        expected: String,
        /// What came.
        got: usize,
    },
    /// Two feature maps live on different devices.
    #[error("{what}: expected both feature maps on one device")]
    Device {
        /// Which operation.
        what: &'static str,
    },
    /// An error of the tensor library.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(inner) => inner,
            other => candle_core::Error::wrap(other),
        }
    }
}

/// The result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
