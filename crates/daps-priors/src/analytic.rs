//! What every closed-form prior can do beyond denoising: draw itself, and give its exact posterior.

use candle_core::{DType, Tensor};
use daps_core::mixture::{Mixture, choose, log_sum_exp};
use daps_core::tensors::to_f64;
use daps_core::{Address, Denoiser, Gaussian, Likelihood, Noise, Result, linear_measurement, open01};
use rayon::prelude::*;

use crate::mixture_conditional::stack;

/// A prior in closed form.
pub trait Analytic: Denoiser {
    /// An exact sample of the prior for every row of the noise.
    fn draw(&self, noise: &Noise, at: Address) -> Result<Tensor>;

    /// p(x0 | y) for the measurement of one row.
    fn posterior(&self, likelihood: &dyn Likelihood, row: usize) -> Result<Posterior>;
}

/// p(x0 | y), exactly.
#[derive(Clone, Debug)]
pub enum Posterior {
    /// A Gaussian mixture.
    Mixture {
        /// The mixture.
        mixture: Mixture,
        /// Shape of a sample.
        shape: Vec<usize>,
    },
    /// Weighted points.
    Points {
        /// `[points, shape…]`.
        points: Tensor,
        /// ln weights, normalised.
        log_weights: Vec<f64>,
    },
}

impl Posterior {
    /// E[x0 | y], flattened.
    pub fn mean(&self) -> Result<Vec<f64>> {
        match self {
            Self::Mixture { mixture, .. } => Ok(mixture.mean()),
            Self::Points { points, log_weights } => {
                let values = to_f64(points)?;
                let dim = values.len() / log_weights.len();
                let mut mean = vec![0.0; dim];
                for (w, point) in log_weights.iter().zip(values.chunks(dim)) {
                    crate::algebra::axpy(&mut mean, w.exp(), point);
                }
                Ok(mean)
            }
        }
    }

    /// An exact sample for every row of the noise.
    pub fn draw(&self, noise: &Noise, at: Address) -> Result<Tensor> {
        match self {
            Self::Mixture { mixture, shape } => draw_mixture(mixture, shape, noise, at),
            Self::Points { points, log_weights } => {
                draw_points(&to_f64(points)?, &points.dims()[1..], log_weights, noise, at)
            }
        }
    }
}

/// p(x0 | y) of a mixture prior and a linear operator with Gaussian noise, for the measurement of one row.
pub fn posterior(prior: &Mixture, likelihood: &Gaussian, row: usize) -> Result<Mixture> {
    let (at, y) = linear_measurement(likelihood, row)?;
    prior.posterior(&at, &y)
}

pub(crate) fn draw_mixture(mixture: &Mixture, shape: &[usize], noise: &Noise, at: Address) -> Result<Tensor> {
    let draw = |row: usize| mixture.sample(&mut noise.stream(row, at));
    stack((0..noise.len()).into_par_iter().map(draw).collect(), shape)
}

pub(crate) fn draw_points(
    points: &[f64],
    shape: &[usize],
    log_weights: &[f64],
    noise: &Noise,
    at: Address,
) -> Result<Tensor> {
    let dim: usize = shape.iter().product();
    let draw = |row: usize| {
        let k = choose(log_weights, open01(&mut noise.stream(row, at)));
        points[k * dim..(k + 1) * dim].to_vec()
    };
    stack((0..noise.len()).into_par_iter().map(draw).collect(), shape)
}

/// The dtype of all closed forms.
pub(crate) const DTYPE: DType = DType::F64;

/// Whether weights can be normalised.
pub(crate) fn has_mass(log_weights: &[f64]) -> bool {
    log_sum_exp(log_weights).is_finite()
}
