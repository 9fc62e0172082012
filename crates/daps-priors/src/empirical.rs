//! The uniform or weighted measure on given points as a prior: the paper's 1000 points, or any data set in memory.

use candle_core::{DType, Tensor};
use daps_core::linalg::times;
use daps_core::tensors::{check_finite, check_rows, from_f64, to_f64};
use daps_core::{
    Address, Approx, Cotangent, Covariance, CovarianceKind, Denoiser, DenoiserCovariance,
    DifferentiableDenoiser, Error, ExactConditional, Full, Likelihood, Noise, Result, RowCovariance, Sigma,
};
use faer::Mat;
use rayon::prelude::*;

use crate::algebra::{axpy, check_sigma, dot, map_rows_f64, minus, negligible, normalize, squared_distance};
use crate::analytic::{Analytic, DTYPE, Posterior, draw_points, has_mass};

/// Points whose likelihood is taken at once.
const CHUNK: usize = 256;

/// Share of min(σ², the prior's variance) + tr(Cov)/d that is added to every variance of Cov[x0 | x_t]. A measure on points
/// has no density: near one point its covariance is 0, and a Gaussian estimate with it could not be factorised.
const FLOOR: f64 = 1e-8;

/// p(x0) = Σ_i w_i δ(x0 - x_i).
#[derive(Clone, Debug)]
pub struct Empirical {
    shape: Vec<usize>,
    points: Vec<f64>,
    tensor: Tensor,
    log_weights: Vec<f64>,
    /// tr(Cov[x0])/d.
    variance: f64,
}

impl Empirical {
    /// Points `[n, shape…]` of equal weight.
    pub fn new(points: &Tensor) -> Result<Self> {
        let n = points.dims().first().copied().unwrap_or(0);
        Self::weighted(points, vec![0.0; n])
    }

    /// Points `[n, shape…]` with the logarithms of their weights, which need not be normalised.
    pub fn weighted(points: &Tensor, mut log_weights: Vec<f64>) -> Result<Self> {
        let tensor = points.to_dtype(DTYPE)?.contiguous()?;
        let Some((&n, shape)) = tensor.dims().split_first() else {
            return Err(Error::shape("points of a prior", &[1, 1], tensor.dims()));
        };
        if tensor.elem_count() == 0 || shape.is_empty() {
            return Err(Error::shape("points of a prior", &[1, 1], tensor.dims()));
        }
        if log_weights.len() != n || !has_mass(&log_weights) {
            let expected = format!("{n} weights with a positive finite sum");
            return Err(Error::invalid(
                "points of a prior",
                expected,
                format!("{} weights", log_weights.len()),
            ));
        }
        check_finite("points of a prior", &tensor)?;
        normalize(&mut log_weights);
        let (shape, points) = (shape.to_vec(), to_f64(&tensor)?);
        let mut prior = Self { shape, points, log_weights, tensor, variance: 0.0 };
        prior.variance = average(&prior.variances(&prior.log_weights));
        Ok(prior)
    }

    /// The points, `[n, shape…]`.
    #[must_use]
    pub fn points(&self) -> &Tensor {
        &self.tensor
    }

    /// ln w_i, normalised.
    #[must_use]
    pub fn log_weights(&self) -> &[f64] {
        &self.log_weights
    }

    fn dim(&self) -> usize {
        self.shape.iter().product()
    }

    /// ln p(i | x_t), normalised.
    fn log_responsibilities(&self, x: &[f64], sigma: f64) -> Vec<f64> {
        let precision = sigma.powi(-2);
        let points = self.points.chunks(self.dim()).zip(&self.log_weights);
        let mut logs: Vec<f64> = points.map(|(p, w)| w - 0.5 * precision * squared_distance(x, p)).collect();
        normalize(&mut logs);
        logs
    }

    /// p(i | x_t) and points, without those of no weight.
    fn weights<'a>(&'a self, logs: &'a [f64]) -> impl Iterator<Item = (f64, &'a [f64])> {
        let weights = logs.iter().map(|w| w.exp()).zip(self.points.chunks(self.dim()));
        weights.filter(|(w, _)| *w != 0.0)
    }

    /// What is added to all of the given variances at a level: positive, and negligible beside them.
    fn floor(&self, variances: &[f64], sigma: f64) -> f64 {
        let noise = sigma * sigma;
        // A prior of one point has no variance of its own.
        let cap = if self.variance > 0.0 { noise.min(self.variance) } else { noise };
        FLOOR * (cap + average(variances))
    }

    fn mean(&self, logs: &[f64]) -> Vec<f64> {
        let mut mean = vec![0.0; self.dim()];
        self.weights(logs).for_each(|(w, p)| axpy(&mut mean, w, p));
        mean
    }

    /// The diagonal of Cov[x0 | x_t], without the floor.
    fn variances(&self, logs: &[f64]) -> Vec<f64> {
        let mean = self.mean(logs);
        let mut out = vec![0.0; mean.len()];
        for (w, p) in self.weights(logs) {
            out.iter_mut().zip(p).zip(&mean).for_each(|((o, p), m)| *o += w * (p - m) * (p - m));
        }
        out
    }

    /// Cov[x0 | x_t] + floor · I, low-rank where fewer points than values matter.
    fn full(&self, x: &[f64], sigma: f64) -> Result<RowCovariance> {
        let (logs, d) = (self.log_responsibilities(x, sigma), self.dim());
        let mean = self.mean(&logs);
        let floor = self.floor(&self.variances(&logs), sigma);
        if !floor.is_finite() {
            return Ok(RowCovariance::Scalar(f64::NAN));
        }
        let mut factor = Vec::new();
        for (w, p) in self.weights(&logs) {
            let deviation = minus(p, &mean);
            if !negligible(w, dot(&deviation, &deviation), floor) {
                factor.extend(deviation.iter().map(|r| w.sqrt() * r));
            }
        }
        let rank = factor.len() / d;
        if rank < d {
            return Ok(RowCovariance::LowRank { diagonal: floor, factor });
        }
        let factor = Mat::from_fn(d, rank, |i, k| factor[k * d + i]);
        let c = times(factor.as_ref(), factor.transpose());
        let lifted = Mat::from_fn(d, d, |i, j| c[(i, j)] + if i == j { floor } else { 0.0 });
        Ok(RowCovariance::Full(Full::new(lifted)?))
    }

    fn check(&self, x: &Tensor, sigma: &Sigma) -> Result<usize> {
        let rows = check_rows("x_t", x, &self.shape)?;
        check_sigma(sigma, rows)?;
        Ok(rows)
    }
}

fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

impl Denoiser for Empirical {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn dtype(&self) -> DType {
        DTYPE
    }

    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        self.check(x, sigma)?;
        map_rows_f64(x, &self.shape, |row, x, out| {
            out.copy_from_slice(&self.mean(&self.log_responsibilities(x, sigma.row(row))));
        })
    }

    fn as_differentiable(&self) -> Option<&dyn DifferentiableDenoiser> {
        Some(self)
    }

    fn as_covariance(&self) -> Option<&dyn DenoiserCovariance> {
        Some(self)
    }

    fn as_conditional(&self) -> Option<&dyn ExactConditional> {
        Some(self)
    }
}

impl DifferentiableDenoiser for Empirical {
    /// ∂D/∂x = Cov[x0 | x_t]/σ², without the floor of [`Empirical::covariance`].
    fn denoise_vjp(&self, x: &Tensor, sigma: &Sigma, cotangent: &Cotangent) -> Result<(Tensor, Tensor)> {
        let denoised = self.denoise(x, sigma)?;
        let v = cotangent(&denoised)?;
        if v.dims() != x.dims() {
            return Err(Error::shape("cotangent", x.dims(), v.dims()));
        }
        let v = to_f64(&v)?;
        let pulled = map_rows_f64(x, &self.shape, |row, x, out| {
            let (v, sigma) = (&v[row * x.len()..(row + 1) * x.len()], sigma.row(row));
            let logs = self.log_responsibilities(x, sigma);
            let mean = self.mean(&logs);
            for (w, p) in self.weights(&logs) {
                let deviation = minus(p, &mean);
                axpy(out, w * dot(&deviation, v) / (sigma * sigma), &deviation);
            }
        })?;
        Ok((denoised, pulled))
    }
}

impl DenoiserCovariance for Empirical {
    /// A positive floor of 1e-8 (min(σ², the prior's variance) + tr(Cov)/d) is added to every variance: the covariance of a
    /// measure on points is singular wherever fewer points than values matter.
    fn covariance(&self, x: &Tensor, sigma: &Sigma, kind: CovarianceKind) -> Result<Covariance> {
        self.check(x, sigma)?;
        let (values, d) = (to_f64(x)?, self.dim());
        let rows = values.par_chunks(d).enumerate();
        let lifted = |row: usize, x: &[f64]| -> Vec<f64> {
            let mut v = self.variances(&self.log_responsibilities(x, sigma.row(row)));
            let floor = self.floor(&v, sigma.row(row));
            v.iter_mut().for_each(|v| *v += floor);
            v
        };
        match kind {
            CovarianceKind::Scalar => {
                Ok(Covariance::Scalar(rows.map(|(row, x)| average(&lifted(row, x))).collect()))
            }
            CovarianceKind::Diagonal => {
                let all: Vec<Vec<f64>> = rows.map(|(row, x)| lifted(row, x)).collect();
                Ok(Covariance::Diagonal(from_f64(all.concat(), x.dims(), DTYPE)?))
            }
            CovarianceKind::Full => Ok(Covariance::Dense(
                rows.map(|(row, x)| self.full(x, sigma.row(row))).collect::<Result<_>>()?,
            )),
        }
    }
}

impl ExactConditional for Empirical {
    fn conditional(&self, x: &Tensor, sigma: &Sigma) -> Result<Approx<'_>> {
        self.check(x, sigma)?;
        let values = to_f64(x)?;
        let rows = values.par_chunks(self.dim()).enumerate();
        let log_weights = rows.map(|(row, x)| self.log_responsibilities(x, sigma.row(row))).collect();
        Ok(Approx::Draws { points: self.tensor.unsqueeze(0)?, log_weights })
    }
}

impl Analytic for Empirical {
    fn draw(&self, noise: &Noise, at: Address) -> Result<Tensor> {
        draw_points(&self.points, &self.shape, &self.log_weights, noise, at)
    }

    /// By enumeration, for any likelihood: w_i p(y | x_i).
    fn posterior(&self, likelihood: &dyn Likelihood, row: usize) -> Result<Posterior> {
        if likelihood.input_shape() != self.shape {
            return Err(Error::shape("the likelihood's input", &self.shape, likelihood.input_shape()));
        }
        let n = self.log_weights.len();
        let mut log_weights = self.log_weights.clone();
        for first in (0..n).step_by(CHUNK) {
            let count = CHUNK.min(n - first);
            let served = likelihood.select(&vec![row; count])?;
            let logs = served.log_prob(&self.tensor.narrow(0, first, count)?)?;
            log_weights[first..].iter_mut().zip(logs).for_each(|(w, l)| *w += l);
        }
        if !has_mass(&log_weights) {
            let got = "a likelihood of zero or NaN at all of them";
            return Err(Error::invalid("posterior", "a point that the measurement allows", got));
        }
        normalize(&mut log_weights);
        Ok(Posterior::Points { points: self.tensor.clone(), log_weights })
    }
}
