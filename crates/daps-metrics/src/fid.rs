//! The Fréchet distance between two sets of features, each taken as a Gaussian.
//!
//! Heusel, Ramsauer, Unterthiner, Nessler, Hochreiter, "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash
//! Equilibrium", NeurIPS 2017: ‖m - m'‖² + tr(C + C' - 2(C C')^{1/2}). The trace of the root is the sum of the singular values
//! of X X'ᵀ for centred, scaled feature matrices C = XᵀX, C' = X'ᵀX', which needs no root of a singular matrix.

use daps_core::{Error, Result};
use faer::Mat;

use crate::count;

/// The distance of two sets of row-major points with `dim` numbers each; each set needs two points at least.
pub fn frechet_distance(a: &[f64], b: &[f64], dim: usize) -> Result<f64> {
    let (xa, xb) = (Centred::new(a, dim)?, Centred::new(b, dim)?);
    let means: f64 = xa.mean.iter().zip(&xb.mean).map(|(a, b)| (a - b) * (a - b)).sum();
    let squares = |x: &Centred| x.points.col_iter().map(|c| c.squared_norm_l2()).sum::<f64>();
    let product = &xa.points * xb.points.transpose();
    let singular = product.singular_values().map_err(|_| {
        Error::invalid("features", "a matrix whose singular values converge", "one whose do not")
    })?;
    Ok(means + squares(&xa) + squares(&xb) - 2.0 * singular.iter().sum::<f64>())
}

/// Points without their mean, divided by √(n - 1), so that XᵀX is the sample covariance.
struct Centred {
    mean: Vec<f64>,
    points: Mat<f64>,
}

impl Centred {
    fn new(values: &[f64], dim: usize) -> Result<Self> {
        let n = count("features", values, dim)?;
        if n < 2 {
            return Err(Error::invalid("features of a Fréchet distance", "at least 2 images", n));
        }
        let mean: Vec<f64> =
            (0..dim).map(|k| values.iter().skip(k).step_by(dim).sum::<f64>() / n as f64).collect();
        let scale = 1.0 / ((n - 1) as f64).sqrt();
        let points = Mat::from_fn(n, dim, |i, k| (values[i * dim + k] - mean[k]) * scale);
        Ok(Self { mean, points })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points ±a on each axis have diagonal covariances, for which the distance is Σ (m - m')² + (s - s')².
    #[test]
    fn diagonal_gaussians_have_a_closed_form() {
        let cross = |s: [f64; 2], m: [f64; 2]| -> Vec<f64> {
            let scale = (3f64 / 2.0).sqrt();
            let (a, b) = (s[0] * scale, s[1] * scale);
            [[a, 0.0], [-a, 0.0], [0.0, b], [0.0, -b]]
                .iter()
                .flat_map(|p| [p[0] + m[0], p[1] + m[1]])
                .collect()
        };
        let (x, y) = (cross([1.0, 2.0], [0.0, 1.0]), cross([0.5, 3.0], [2.0, 0.0]));
        let found = frechet_distance(&x, &y, 2).unwrap();
        assert!((found - (4.0 + 1.0 + 0.25 + 1.0)).abs() < 1e-12, "{found}");
        assert!(frechet_distance(&x, &x, 2).unwrap().abs() < 1e-12);
        assert!(frechet_distance(&x[..2], &y, 2).is_err());
    }

    /// Fewer points than numbers each, as 100 images in 2048 numbers are: of sets that vary in directions of their own nothing is
    /// shared, and what lies in a plane of a larger space has the distance that it has in the plane.
    #[test]
    fn fewer_points_than_dimensions_have_it_too() {
        const DIM: usize = 9;
        let place = |points: &[[f64; 2]], axes: [usize; 2]| -> Vec<f64> {
            let one = |p: &[f64; 2]| {
                let mut x = [0.0; DIM];
                (x[axes[0]], x[axes[1]]) = (p[0], p[1]);
                x
            };
            points.iter().flat_map(one).collect()
        };
        // Three points with variances of 3 and 1 around (1, 0), three with 12 and 4 around (0, 0).
        let (x, y) = ([[3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [[4.0, 0.0], [-2.0, 2.0], [-2.0, -2.0]]);
        let of = |axes| frechet_distance(&place(&x, [0, 1]), &place(&y, axes), DIM).unwrap();
        assert!((of([4, 7]) - (1.0 + 4.0 + 16.0)).abs() < 1e-12, "{}", of([4, 7]));
        // In one plane the deviations are √3 and 1 beside √12 and 2.
        let expected = 1.0 + 3.0 + 1.0;
        assert!((of([0, 1]) - expected).abs() < 1e-12, "{}", of([0, 1]));
    }
}
