//! Sums over long vectors in a fixed order, and small checks that all closed forms share.

use candle_core::{DType, Tensor};
use daps_core::mixture::log_sum_exp;
use daps_core::tensors::map_rows;
use daps_core::{Error, Result, Sigma};

/// Partial sums that run side by side; a fixed number, so that the order of addition is the same everywhere.
const LANES: usize = 8;

/// Adds `term` over the indices of three slices of equal length.
#[inline(always)]
fn lane_sum(a: &[f64], b: &[f64], c: &[f64], term: impl Fn(f64, f64, f64) -> f64) -> f64 {
    let mut sums = [0.0; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (c, c_rest) = c.as_chunks::<LANES>();
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for i in 0..LANES {
            sums[i] += term(a[i], b[i], c[i]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).zip(c_rest).map(|((a, b), c)| term(*a, *b, *c)).sum();
    sums.iter().sum::<f64>() + rest
}

/// a · b.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    lane_sum(a, b, a, |a, b, _| a * b)
}

/// ‖a - b‖².
pub(crate) fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    lane_sum(a, b, a, |a, b, _| (a - b) * (a - b))
}

/// Σ w (a - b)².
pub(crate) fn weighted_squared_distance(w: &[f64], a: &[f64], b: &[f64]) -> f64 {
    lane_sum(w, a, b, |w, a, b| w * (a - b) * (a - b))
}

/// out += c · v.
pub(crate) fn axpy(out: &mut [f64], c: f64, v: &[f64]) {
    out.iter_mut().zip(v).for_each(|(o, v)| *o += c * v);
}

/// a - b.
pub(crate) fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Subtracts ln Σ exp, so that the weights sum to one.
pub(crate) fn normalize(log_weights: &mut [f64]) {
    let norm = log_sum_exp(log_weights);
    log_weights.iter_mut().for_each(|w| *w -= norm);
}

/// Variances below this share of another are lost in rounding beside it.
pub(crate) const NEGLIGIBLE: f64 = 1e-18;

/// A weight and deviation whose outer product is below rounding beside `scale` may be left out of a covariance.
pub(crate) fn negligible(weight: f64, squared_norm: f64, scale: f64) -> bool {
    weight * squared_norm <= NEGLIGIBLE * scale
}

/// Refuses levels that are not positive and finite, or not as many as there are rows.
pub(crate) fn check_sigma(sigma: &Sigma, rows: usize) -> Result<()> {
    let bad = |s: &f64| !(s.is_finite() && *s > 0.0);
    let levels: &[f64] = match sigma {
        Sigma::Same(sigma) => std::slice::from_ref(sigma),
        Sigma::Rows(sigmas) if sigmas.len() == rows => sigmas,
        Sigma::Rows(sigmas) => {
            return Err(Error::invalid(
                "noise levels of a batch",
                format!("one for each of {rows} rows"),
                sigmas.len(),
            ));
        }
    };
    match levels.iter().find(|s| bad(s)) {
        Some(s) => Err(Error::invalid("noise level sigma", "a positive finite number", s)),
        None => Ok(()),
    }
}

/// Applies `f(row index, row, output row)` to every row in f64, and gives the result in the type of `x`.
pub(crate) fn map_rows_f64(
    x: &Tensor,
    shape: &[usize],
    f: impl Fn(usize, &[f64], &mut [f64]) + Send + Sync,
) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F64)?;
    Ok(map_rows::<f64>("x_t", &wide, shape, shape, f)?.to_dtype(x.dtype())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_agree_with_plain_loops_at_any_length() {
        for n in [0, 1, 7, 8, 9, 31] {
            let a: Vec<f64> = (0..n).map(|i| (f64::from(i) * 0.7).sin()).collect();
            let b: Vec<f64> = (0..n).map(|i| (f64::from(i) * 0.3).cos()).collect();
            let plain = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(&b).map(|(a, b)| f(*a, *b)).sum::<f64>();
            assert!((dot(&a, &b) - plain(&|a, b| a * b)).abs() < 1e-14);
            assert!((squared_distance(&a, &b) - plain(&|a, b| (a - b).powi(2))).abs() < 1e-14);
            let weighted = plain(&|a, b| a * (a - b).powi(2));
            assert!((weighted_squared_distance(&a, &a, &b) - weighted).abs() < 1e-14);
        }
    }

    #[test]
    fn levels_are_checked() {
        assert!(check_sigma(&Sigma::Same(0.0), 1).is_err());
        assert!(check_sigma(&Sigma::Same(f64::NAN), 1).is_err());
        assert!(check_sigma(&Sigma::Rows(vec![1.0]), 2).is_err());
        assert!(check_sigma(&Sigma::Rows(vec![1.0, 2.0]), 2).is_ok());
    }
}
