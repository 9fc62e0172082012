//! Mean and covariance of a sample set with their Monte-Carlo errors, and the comparison with a closed form.

use daps_core::{Error, Result};
use rayon::prelude::*;

use crate::count;
use crate::special::max_z_bound;

/// First and second moments of independent samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// Number of samples.
    pub count: usize,
    /// Numbers per sample.
    pub dim: usize,
    /// The mean.
    pub mean: Vec<f64>,
    /// Its standard error.
    pub mean_error: Vec<f64>,
    /// The covariance (unbiased), `dim x dim`, row-major.
    pub covariance: Vec<f64>,
    /// Its standard error, from the samples' own fourth moments, so that it holds for any distribution.
    pub covariance_error: Vec<f64>,
}

/// How far moments are from a closed form, in standard errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Largest |z| of the mean.
    pub mean_z: f64,
    /// Largest |z| of the covariance.
    pub covariance_z: f64,
    /// Numbers that were compared.
    pub count: usize,
}

impl Comparison {
    /// Whether no |z| exceeds what the largest of so many exceeds by chance with probability `p`.
    #[must_use]
    pub fn agrees(&self, p: f64) -> bool {
        let bound = max_z_bound(self.count, p);
        self.mean_z <= bound && self.covariance_z <= bound
    }
}

impl Moments {
    /// Moments of row-major samples of `dim` numbers each, at least three.
    pub fn new(samples: &[f64], dim: usize) -> Result<Self> {
        let n = count("samples", samples, dim)?;
        if n < 3 {
            return Err(Error::invalid("samples for moments", "at least three", n));
        }
        let total = n as f64;
        let mut mean = vec![0.0; dim];
        for x in samples.chunks(dim) {
            mean.iter_mut().zip(x).for_each(|(m, x)| *m += x / total);
        }
        let centred: Vec<f64> =
            samples.chunks(dim).flat_map(|x| x.iter().zip(&mean).map(|(x, m)| x - m)).collect();
        let rows: Vec<(Vec<f64>, Vec<f64>)> =
            (0..dim).into_par_iter().map(|i| covariance_row(&centred, dim, i)).collect();
        let covariance: Vec<f64> = rows.iter().flat_map(|r| r.0.iter().copied()).collect();
        let covariance_error = rows.into_iter().flat_map(|r| r.1).collect();
        let mean_error = (0..dim).map(|i| (covariance[i * dim + i] / total).sqrt()).collect();
        Ok(Self { count: n, dim, mean, mean_error, covariance, covariance_error })
    }

    /// Compares with a mean and a covariance (`dim x dim`) in closed form. A number that has no Monte-Carlo error must
    /// match to 1e-9 of the covariance's scale.
    pub fn compare(&self, mean: &[f64], covariance: &[f64]) -> Result<Comparison> {
        if mean.len() != self.dim || covariance.len() != self.dim * self.dim {
            let got = format!("{} and {} numbers", mean.len(), covariance.len());
            let expected = format!("a mean of {0} and a covariance of {0} x {0} numbers", self.dim);
            return Err(Error::invalid("closed form", expected, got));
        }
        let scale = covariance.iter().chain(mean).fold(0.0f64, |m, v| m.max(v.abs()));
        let worst = |got: &[f64], error: &[f64], exact: &[f64]| {
            let z = got
                .iter()
                .zip(error)
                .zip(exact)
                .map(|((g, e), x)| if g == x { 0.0 } else { (g - x).abs() / (e + 1e-9 * scale) });
            z.fold(0.0, |m: f64, z| if z.is_nan() { f64::INFINITY } else { m.max(z) })
        };
        Ok(Comparison {
            mean_z: worst(&self.mean, &self.mean_error, mean),
            covariance_z: worst(&self.covariance, &self.covariance_error, covariance),
            count: self.dim + self.dim * (self.dim + 1) / 2,
        })
    }
}

/// Row i of the covariance and of its standard errors.
fn covariance_row(centred: &[f64], dim: usize, i: usize) -> (Vec<f64>, Vec<f64>) {
    let n = (centred.len() / dim) as f64;
    let (mut first, mut second) = (vec![0.0; dim], vec![0.0; dim]);
    for x in centred.chunks(dim) {
        for (j, xj) in x.iter().enumerate() {
            let product = x[i] * xj;
            first[j] += product;
            second[j] += product * product;
        }
    }
    let error = |(s, q): (&f64, &f64)| ((q / n - (s / n).powi(2)).max(0.0) / (n - 1.0)).sqrt();
    let errors = first.iter().zip(&second).map(error).collect();
    (first.iter().map(|s| s / (n - 1.0)).collect(), errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::{Address, Noise, Purpose, candle::DType, tensors::to_f64};

    #[test]
    fn moments_have_hand_computed_values() {
        let m = Moments::new(&[1.0, 0.0, 3.0, 2.0, 5.0, 1.0], 2).unwrap();
        assert_eq!(m.mean, [3.0, 1.0]);
        assert_eq!(m.covariance, [4.0, 1.0, 1.0, 1.0]);
        assert!((m.mean_error[0] - (4.0f64 / 3.0).sqrt()).abs() < 1e-15);
        // Products of the first value with itself: 4, 0, 4; variance 32/9, over n - 1 = 2.
        assert!((m.covariance_error[0] - (16.0f64 / 9.0).sqrt()).abs() < 1e-12);
    }

    /// Where nothing varies and all is zero there is no scale to measure a difference by, and none is there.
    #[test]
    fn what_is_zero_agrees_with_zero_alone() {
        let zeros = Moments::new(&[0.0; 6], 2).unwrap();
        assert!(zeros.compare(&[0.0; 2], &[0.0; 4]).unwrap().agrees(1e-4));
        assert!(!zeros.compare(&[1e-6, 0.0], &[0.0; 4]).unwrap().agrees(1e-4));
        let damaged = Moments { mean: vec![f64::NAN, 0.0], ..zeros };
        assert!(!damaged.compare(&[0.0; 2], &[0.0; 4]).unwrap().agrees(1e-4));
    }

    /// x = (z1, z1 + z2): agreement with the truth, and a 3 % wrong covariance is seen.
    #[test]
    fn comparison_sees_what_is_wrong_and_nothing_else() {
        let n = 100_000;
        let at = Address::new(0, Purpose::Reference, 0);
        let z = to_f64(&Noise::chains(5, n).normal(at, &[2], DType::F64).unwrap()).unwrap();
        let x: Vec<f64> = z.chunks(2).flat_map(|z| [z[0], z[0] + z[1]]).collect();
        let m = Moments::new(&x, 2).unwrap();
        assert!(m.compare(&[0.0, 0.0], &[1.0, 1.0, 1.0, 2.0]).unwrap().agrees(1e-4));
        assert!(!m.compare(&[0.0, 0.0], &[1.03, 1.0, 1.0, 2.0]).unwrap().agrees(1e-4));
        assert!(!m.compare(&[0.0, 0.03], &[1.0, 1.0, 1.0, 2.0]).unwrap().agrees(1e-4));
        // Error of a variance of a Gaussian: √(2/n) σ².
        assert!((m.covariance_error[3] / (2.0 * (2.0 / n as f64).sqrt()) - 1.0).abs() < 0.03);
    }
}
