//! Measures of samples, in f64: distances between sample sets, tests of calibration, image quality.

pub mod assignment;
pub mod calibration;
mod convnet;
pub mod fid;
pub mod image;
pub mod inception;
pub mod ks;
pub mod lpips;
pub mod moments;
pub mod special;
pub mod wasserstein;

pub use convnet::Weights;

use daps_core::{Error, Result};

/// The number of points in row-major values of `dim` numbers each.
pub(crate) fn count(what: &str, values: &[f64], dim: usize) -> Result<usize> {
    if dim == 0 || values.is_empty() || !values.len().is_multiple_of(dim) {
        let expected = format!("points of {dim} numbers each, at least one");
        return Err(Error::invalid(what, expected, format!("{} numbers", values.len())));
    }
    finite(what, values)?;
    Ok(values.len() / dim)
}

/// Refuses NaN and infinite values.
pub(crate) fn finite(what: &str, values: &[f64]) -> Result<()> {
    match values.iter().filter(|v| !v.is_finite()).count() {
        0 => Ok(()),
        bad => Err(Error::NonFinite { what: what.to_owned(), count: bad, of: values.len() }),
    }
}
