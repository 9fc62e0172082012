//! A draw of p(x0 | x_σ) by reverse diffusion: ancestral steps from σ down to 0.
//!
//! Each step from σ to σ' is the bridge N(κ x + (1 - κ) D(x, σ), σ'²(1 - κ)) with κ = σ'²/σ², which is exact where D is
//! constant over the step; the last one, to 0, is D itself.

use daps_core::candle::Tensor;
use daps_core::tensors::combine;
use daps_core::{Address, Denoiser, Error, Noise, Purpose, RHO, Result, Sigma, poly_grid};
use serde::{Deserialize, Serialize};

/// The grid of a reverse diffusion: EDM's, of which the part below σ is used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reverse {
    /// Points of the whole grid.
    pub steps: usize,
    /// Its largest level.
    pub max: f64,
    /// Its smallest level above zero.
    pub min: f64,
}

impl Default for Reverse {
    /// 100 points from 80 to 0.002, as PnP-DM's released settings have it.
    fn default() -> Self {
        Self { steps: 100, max: 80.0, min: 0.002 }
    }
}

impl Reverse {
    pub(crate) fn check(&self, who: &str) -> Result<()> {
        if self.steps > 0 && self.min > 0.0 && self.min < self.max && self.max.is_finite() {
            return Ok(());
        }
        let got = format!("{} from {} to {}", self.steps, self.max, self.min);
        Err(Error::invalid(format!("{who}.reverse"), "at least 1 step and 0 < min < max", got))
    }

    /// The levels from σ to 0.
    #[must_use]
    pub fn levels(&self, sigma: f64) -> Vec<f64> {
        let below = poly_grid(self.steps, self.max, self.min, RHO).into_iter().filter(|s| *s < sigma);
        std::iter::once(sigma).chain(below).chain([0.0]).collect()
    }

    /// x0 from x at level σ, and the denoiser calls that it took; `level` addresses the noise.
    pub(crate) fn draw(
        &self,
        model: &dyn Denoiser,
        x: &Tensor,
        sigma: f64,
        noise: &Noise,
        level: usize,
    ) -> Result<(Tensor, usize)> {
        let levels = self.levels(sigma);
        let mut x = x.clone();
        for (j, w) in levels.windows(2).enumerate() {
            let (keep, spread) = bridge(w[0], w[1]);
            let denoised = model.denoise(&x, &Sigma::Same(w[0]))?;
            let z = noise.normal(Address::new(level, Purpose::Estimate, j), model.shape(), model.dtype())?;
            x = combine(&[(&[keep], &x), (&[1.0 - keep], &denoised), (&[spread], &z)])?;
        }
        Ok((x, levels.len() - 1))
    }
}

/// κ and the standard deviation of the bridge from σ to `next`.
pub(crate) fn bridge(sigma: f64, next: f64) -> (f64, f64) {
    let keep = (next / sigma).powi(2);
    (keep, next * (1.0 - keep).max(0.0).sqrt())
}
