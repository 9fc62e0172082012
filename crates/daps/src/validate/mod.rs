//! Validation that anyone can rerun: samplers against posteriors that are known in closed form.

pub mod gaussian;
pub mod gmm;
pub mod toy;

/// Mean and standard error of the mean.
#[must_use]
pub fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, f64::NAN);
    }
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}
