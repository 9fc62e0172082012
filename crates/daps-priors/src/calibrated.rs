//! A denoiser together with its measured r(σ).

use candle_core::{DType, Tensor};
use daps_core::{
    Denoiser, DenoiserCovariance, DifferentiableDenoiser, ExactConditional, Result, Sigma, SpreadTable,
};

/// A prior that knows the RMS error of its own Tweedie mean.
pub struct Calibrated<D> {
    model: D,
    spread: SpreadTable,
}

impl<D: Denoiser> Calibrated<D> {
    /// Checks the table.
    pub fn new(model: D, spread: SpreadTable) -> Result<Self> {
        spread.check()?;
        Ok(Self { model, spread })
    }
}

/// An upper bound of r(σ) for any data of standard deviation `data_std`, for priors that nobody has measured: the error of
/// the best linear denoiser, which is that of independent Gaussian values.
pub fn spread_bound(data_std: f64) -> SpreadTable {
    let sigma: Vec<f64> = (-16..=16).map(|i| 10f64.powf(f64::from(i) / 8.0)).collect();
    let r = sigma.iter().map(|s| s * data_std / s.hypot(data_std)).collect();
    SpreadTable { sigma, r, data_std }
}

impl<D: Denoiser> Denoiser for Calibrated<D> {
    fn shape(&self) -> &[usize] {
        self.model.shape()
    }

    fn dtype(&self) -> DType {
        self.model.dtype()
    }

    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        self.model.denoise(x, sigma)
    }

    fn as_spread(&self) -> Option<&SpreadTable> {
        Some(&self.spread)
    }

    fn as_differentiable(&self) -> Option<&dyn DifferentiableDenoiser> {
        self.model.as_differentiable()
    }

    fn as_covariance(&self) -> Option<&dyn DenoiserCovariance> {
        self.model.as_covariance()
    }

    fn as_conditional(&self) -> Option<&dyn ExactConditional> {
        self.model.as_conditional()
    }
}
