//! What the loop knows of p(x0 | x_t): a Gaussian, a score, a mixture, weighted points, or a law for each token.

use candle_core::{DType, Tensor};
use rayon::prelude::*;

use crate::mixture::{Mixture, log_sum_exp};
use crate::tensors::{batched, combine, dot_rows, from_f64, to_f64};
use crate::{Covariance, Denoiser, Error, Result, Sigma};

/// An approximation of p(x0 | x_t), or the thing itself where the prior is analytic.
pub enum Approx<'a> {
    /// N(mean, covariance); chains start at `start` (the ODE's endpoint, often the mean itself).
    Gaussian {
        /// Centre.
        mean: Tensor,
        /// Spread.
        covariance: Covariance,
        /// Where chains start.
        start: Tensor,
    },
    /// ∇ log p(x0 | x_t) = (x_t - x0)/σ² + s(x0, score_sigma): diffusion-score estimation.
    Score {
        /// Where chains start.
        start: Tensor,
        /// The noisy state.
        x_t: Tensor,
        /// Its level.
        sigma: f64,
        /// The small level at which the prior's score is taken.
        score_sigma: f64,
        /// The prior.
        model: &'a dyn Denoiser,
    },
    /// One Gaussian mixture per row.
    Mixture {
        /// The mixtures.
        rows: Vec<Mixture>,
        /// Shape of one sample.
        shape: Vec<usize>,
    },
    /// Weighted points.
    Draws {
        /// `[1 or rows, points, shape…]`.
        points: Tensor,
        /// ln weights, `[rows][points]`, not necessarily normalised.
        log_weights: Vec<Vec<f64>>,
    },
    /// Tokens that are independent of each other.
    Sites {
        /// Where chains start.
        start: Tensor,
        /// ln p(x0_i = a | x_t): row by row, site by site, symbol by symbol.
        log_probs: Vec<f64>,
        /// The alphabet's size.
        symbols: usize,
    },
}

impl Approx<'_> {
    /// What the variant is called in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gaussian { .. } => "a Gaussian estimate",
            Self::Score { .. } => "diffusion-score estimation",
            Self::Mixture { .. } => "an exact mixture conditional",
            Self::Draws { .. } => "weighted draws",
            Self::Sites { .. } => "independent tokens",
        }
    }

    /// The state from which chains start and which traces show as x̂0: the ODE's endpoint or the mean.
    pub fn start(&self) -> Result<Tensor> {
        match self {
            Self::Gaussian { start, .. } | Self::Score { start, .. } | Self::Sites { start, .. } => {
                Ok(start.clone())
            }
            Self::Mixture { rows, shape } => {
                let means: Vec<f64> = rows.iter().flat_map(Mixture::mean).collect();
                from_f64(means, &batched(rows.len(), shape), DType::F64)
            }
            // Tokens have no mean.
            Self::Draws { points, log_weights } if points.dtype() == DType::U8 => {
                likeliest(points, log_weights)
            }
            Self::Draws { points, log_weights } => weighted_mean(points, log_weights),
        }
    }

    /// ∇ log p(x0 | x_t) at x, and the denoiser calls that it took.
    pub fn gradient(&self, x: &Tensor) -> Result<(Tensor, usize)> {
        match self {
            Self::Gaussian { mean, covariance, .. } => {
                Ok((covariance.solve(&combine(&[(&[1.0], mean), (&[-1.0], x)])?)?, 0))
            }
            Self::Score { x_t, sigma, score_sigma, model, .. } => {
                let denoised = model.denoise(x, &Sigma::Same(*score_sigma))?;
                let (a, b) = (sigma.powi(-2), score_sigma.powi(-2));
                Ok((combine(&[(&[a], x_t), (&[b], &denoised), (&[-a - b], x)])?, 1))
            }
            Self::Mixture { .. } | Self::Draws { .. } | Self::Sites { .. } => {
                Err(self.lacks("a gradient of log p(x0 | x_t)"))
            }
        }
    }

    /// ln p(x0 | x_t) at x per row, up to a constant.
    pub fn log_prob(&self, x: &Tensor) -> Result<Vec<f64>> {
        match self {
            Self::Gaussian { mean, covariance, .. } => {
                let r = combine(&[(&[1.0], x), (&[-1.0], mean)])?;
                Ok(dot_rows(&r, &covariance.solve(&r)?)?.iter().map(|q| -0.5 * q).collect())
            }
            Self::Mixture { rows, .. } => {
                let values = to_f64(x)?;
                let d = values.len() / rows.len().max(1);
                rows.par_iter().zip(values.par_chunks(d)).map(|(m, x)| m.log_prob(x)).collect()
            }
            Self::Sites { log_probs, symbols, .. } => {
                let tokens: Vec<u8> = x.flatten_all()?.to_vec1()?;
                let sites = tokens.len() / x.dims()[0].max(1);
                let each = tokens.iter().zip(log_probs.chunks(*symbols)).map(|(t, p)| p[usize::from(*t)]);
                let each: Vec<f64> = each.collect();
                Ok(each.chunks(sites.max(1)).map(|row| row.iter().sum()).collect())
            }
            Self::Score { .. } | Self::Draws { .. } => Err(self.lacks("a density p(x0 | x_t)")),
        }
    }

    /// The largest curvature of -log p(x0 | x_t), per row or one for all, where it is known.
    pub fn curvature(&self) -> Result<Vec<f64>> {
        match self {
            Self::Gaussian { covariance: Covariance::Scalar(c), .. } => {
                Ok(c.iter().map(|c| 1.0 / c).collect())
            }
            Self::Gaussian { covariance: Covariance::Diagonal(c), .. } => {
                let values = to_f64(c)?;
                let n = values.len() / c.dims()[0].max(1);
                let smallest = |row: &[f64]| row.iter().copied().fold(f64::INFINITY, f64::min);
                Ok(values.chunks(n).map(|row| 1.0 / smallest(row)).collect())
            }
            Self::Gaussian { covariance: Covariance::Frequency(c), .. } if c.local().is_none() => {
                let smallest = to_f64(c.variances())?.into_iter().fold(f64::INFINITY, f64::min);
                Ok(vec![1.0 / smallest])
            }
            Self::Score { sigma, score_sigma, .. } => Ok(vec![sigma.powi(-2) + score_sigma.powi(-2)]),
            _ => Err(self.lacks("a bound of its curvature")),
        }
    }

    fn lacks(&self, needs: &'static str) -> Error {
        Error::missing("the kernel", needs, self.name())
    }
}

/// The point of the largest weight, row by row.
fn likeliest(points: &Tensor, log_weights: &[Vec<f64>]) -> Result<Tensor> {
    let (shared, m) = (points.dims()[0] == 1, points.dims()[1]);
    let best = |(row, w): (usize, &Vec<f64>)| {
        let k = (0..m).max_by(|&a, &b| w[a].total_cmp(&w[b])).unwrap_or(0);
        (if shared { k } else { row * m + k }) as u32
    };
    let index: Vec<u32> = log_weights.iter().enumerate().map(best).collect();
    Ok(points.flatten(0, 1)?.index_select(&Tensor::new(index, points.device())?, 0)?)
}

fn weighted_mean(points: &Tensor, log_weights: &[Vec<f64>]) -> Result<Tensor> {
    let (shared, m) = (points.dims()[0] == 1, points.dims()[1]);
    let values = to_f64(points)?;
    let shape = &points.dims()[2..];
    let d: usize = shape.iter().product();
    let rows: Vec<Vec<f64>> = log_weights
        .par_iter()
        .enumerate()
        .map(|(i, w)| {
            let base = if shared { 0 } else { i * m * d };
            let norm = log_sum_exp(w);
            let mut mean = vec![0.0; d];
            for (k, w) in w.iter().enumerate() {
                let w = (w - norm).exp();
                mean.iter_mut().zip(&values[base + k * d..]).for_each(|(o, v)| *o += w * v);
            }
            mean
        })
        .collect();
    from_f64(rows.concat(), &batched(log_weights.len(), shape), points.dtype())
}
