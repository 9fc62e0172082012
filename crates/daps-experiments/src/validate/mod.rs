//! Validation that anyone can rerun: samplers against posteriors that are known in closed form.

pub mod discrete;
pub mod gaussian;
pub mod gmm;
pub mod network;
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

/// An orthonormal basis of what the rows span, in their order: Gram–Schmidt, twice for accuracy.
fn orthonormal(rows: &[impl AsRef<[f64]>]) -> Vec<Vec<f64>> {
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for row in rows {
        let mut v = row.as_ref().to_vec();
        for _ in 0..2 {
            for b in &basis {
                let overlap: f64 = v.iter().zip(b).map(|(v, b)| v * b).sum();
                v.iter_mut().zip(b).for_each(|(v, b)| *v -= overlap * b);
            }
        }
        let norm = v.iter().map(|v| v * v).sum::<f64>().sqrt();
        basis.push(v.iter().map(|v| v / norm).collect());
    }
    basis
}
