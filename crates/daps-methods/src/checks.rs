//! Checks of settings, with the same sentence for the same mistake everywhere.

use daps_core::{Error, Result};

/// Refuses a setting outside its range.
pub(crate) fn check_range(what: &str, value: f64, low: f64, high: f64) -> Result<()> {
    if value.is_finite() && value >= low && value <= high {
        return Ok(());
    }
    let expected = if high.is_finite() {
        format!("a number from {low} to {high}")
    } else {
        format!("a number from {low}")
    };
    Err(Error::invalid(what, expected, value))
}

/// Refuses a setting that is not positive.
pub(crate) fn check_positive(what: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(Error::invalid(what, "a positive number", value))
    }
}

/// Refuses a number of things that is none.
pub(crate) fn check_some(what: &str, count: usize) -> Result<()> {
    match count {
        0 => Err(Error::invalid(what, "at least 1", 0)),
        _ => Ok(()),
    }
}
