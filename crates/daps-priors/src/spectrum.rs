//! A covariance in the coordinates where it is diagonal, so that (C + σ²I)⁻¹ is cheap at every noise level.

use std::borrow::Cow;

use daps_core::linalg::{self, times};
use daps_core::{Error, Full, Result, RowCovariance};
use faer::Mat;

use crate::algebra::{axpy, dot};

/// C = V diag(λ) Vᵀ; `basis` is V, absent where C is diagonal already.
#[derive(Clone, Debug)]
pub(crate) struct Spectrum {
    values: Vec<f64>,
    basis: Option<Mat<f64>>,
    scalar: bool,
}

impl Spectrum {
    /// Decomposes a covariance of `dim` values; refuses one that is not positive definite.
    pub(crate) fn new(covariance: &RowCovariance, dim: usize) -> Result<Self> {
        let spectrum = match covariance {
            RowCovariance::Scalar(c) => Self { values: vec![*c; dim], basis: None, scalar: true },
            RowCovariance::Diagonal(c) if c.len() == dim => {
                Self { values: c.clone(), basis: None, scalar: false }
            }
            RowCovariance::Diagonal(c) => {
                return Err(Error::invalid("covariance", format!("{dim} variances"), c.len()));
            }
            RowCovariance::LowRank { .. } => Self::decompose(&covariance.matrix(dim))?,
            RowCovariance::Full(full) if full.matrix().nrows() == dim => Self::decompose(full.matrix())?,
            RowCovariance::Full(full) => {
                let n = full.matrix().nrows();
                return Err(Error::shape("covariance", &[dim, dim], &[n, n]));
            }
        };
        match spectrum.values.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
            Some(bad) => Err(Error::invalid("covariance", "positive finite variances", bad)),
            None => Ok(spectrum),
        }
    }

    fn decompose(matrix: &Mat<f64>) -> Result<Self> {
        match linalg::eigen(matrix) {
            Some((values, basis)) => Ok(Self { values, basis: Some(basis), scalar: false }),
            None => Err(Error::invalid("covariance", "a matrix with an eigendecomposition", "none")),
        }
    }

    /// Whether C = c I.
    pub(crate) fn is_scalar(&self) -> bool {
        self.scalar
    }

    /// tr(C)/d.
    pub(crate) fn mean_value(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }

    /// Vᵀ x.
    pub(crate) fn coordinates<'a>(&self, x: &'a [f64]) -> Cow<'a, [f64]> {
        match &self.basis {
            None => Cow::Borrowed(x),
            Some(v) => Cow::Owned((0..x.len()).map(|j| dot(v.col_as_slice(j), x)).collect()),
        }
    }

    /// V c.
    pub(crate) fn vector(&self, c: Vec<f64>) -> Vec<f64> {
        match &self.basis {
            None => c,
            Some(v) => {
                let mut x = vec![0.0; c.len()];
                c.iter().enumerate().for_each(|(j, c)| axpy(&mut x, *c, v.col_as_slice(j)));
                x
            }
        }
    }

    /// What depends on the noise level only.
    pub(crate) fn at(&self, sigma: f64) -> AtLevel {
        let noise = sigma * sigma;
        let precision: Vec<f64> = self.values.iter().map(|v| 1.0 / (v + noise)).collect();
        AtLevel {
            pull: precision.iter().map(|p| noise * p).collect(),
            variance: self.values.iter().zip(&precision).map(|(v, p)| v * noise * p).collect(),
            log_det: self.values.iter().map(|v| (v + noise).ln()).sum(),
            precision,
        }
    }

    /// σ²(C + σ²I)⁻¹ v.
    pub(crate) fn pull(&self, level: &AtLevel, v: &[f64]) -> Vec<f64> {
        let pulled = self.coordinates(v).iter().zip(&level.pull).map(|(v, p)| v * p).collect();
        self.vector(pulled)
    }

    /// The covariance of x0 within this component, given x_t.
    pub(crate) fn conditional(&self, level: &AtLevel) -> Result<RowCovariance> {
        match &self.basis {
            _ if self.scalar => Ok(RowCovariance::Scalar(level.variance[0])),
            None => Ok(RowCovariance::Diagonal(level.variance.clone())),
            Some(v) => {
                let scaled = Mat::from_fn(v.nrows(), v.ncols(), |i, j| v[(i, j)] * level.variance[j]);
                Ok(RowCovariance::Full(Full::new(times(scaled.as_ref(), v.transpose()))?))
            }
        }
    }

    /// The diagonal of [`Self::conditional`].
    pub(crate) fn conditional_diagonal(&self, level: &AtLevel) -> Vec<f64> {
        match &self.basis {
            None => level.variance.clone(),
            Some(v) => (0..v.nrows())
                .map(|i| (0..v.ncols()).map(|j| v[(i, j)] * v[(i, j)] * level.variance[j]).sum())
                .collect(),
        }
    }
}

/// A [`Spectrum`] at one noise level, in its own coordinates.
#[derive(Clone, Debug)]
pub(crate) struct AtLevel {
    /// 1/(λ + σ²).
    pub(crate) precision: Vec<f64>,
    /// σ²/(λ + σ²): how far the estimate is pulled from x_t to the component's mean.
    pub(crate) pull: Vec<f64>,
    /// λσ²/(λ + σ²): variance of x0 given x_t.
    pub(crate) variance: Vec<f64>,
    /// ln det(C + σ²I).
    pub(crate) log_det: f64,
}
