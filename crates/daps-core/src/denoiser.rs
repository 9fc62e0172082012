//! A prior seen as a denoiser, always in the EDM convention: x = x0 + σ n in, E[x0 | x] out.

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::{Approx, Covariance, LocalFactor, Result, Space, SpreadTable};

/// The noise level of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Sigma {
    /// The same for all rows.
    Same(f64),
    /// One per row.
    Rows(Vec<f64>),
}

impl Sigma {
    /// The level of a row.
    #[must_use]
    pub fn row(&self, row: usize) -> f64 {
        match self {
            Self::Same(sigma) => *sigma,
            Self::Rows(sigmas) => sigmas[row],
        }
    }
}

impl From<f64> for Sigma {
    fn from(sigma: f64) -> Self {
        Self::Same(sigma)
    }
}

/// A network or a formula that gives E[x0 | x0 + σ n = x].
pub trait Denoiser: Send + Sync {
    /// Shape of one sample.
    fn shape(&self) -> &[usize];

    /// The space of its samples: what its shape suggests, where it does not say.
    fn space(&self) -> Space {
        Space::of_shape(self.shape())
    }

    /// A short text of what defines it: a run in a directory resumes only where it is the same. If it does not say, the text is a
    /// checksum of what it makes of fixed noise.
    fn fingerprint(&self) -> Option<String> {
        crate::fingerprint::of_denoiser(self)
    }

    /// The type it computes in: f32 for networks, f64 for closed forms.
    fn dtype(&self) -> DType {
        DType::F32
    }

    /// D(x, σ), row by row.
    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor>;

    /// Vector-Jacobian products (DPS needs them).
    fn as_differentiable(&self) -> Option<&dyn DifferentiableDenoiser> {
        None
    }

    /// r(σ), the RMS error of the Tweedie mean, where it was measured.
    fn as_spread(&self) -> Option<&SpreadTable> {
        None
    }

    /// Where in an image it errs more than usual.
    fn as_local(&self) -> Option<&dyn LocalDenoiser> {
        None
    }

    /// Cov[x0 | x_t].
    fn as_covariance(&self) -> Option<&dyn DenoiserCovariance> {
        None
    }

    /// p(x0 | x_t) itself.
    fn as_conditional(&self) -> Option<&dyn ExactConditional> {
        None
    }
}

/// Maps D(x, σ) to the vector that is pulled back through D.
pub type Cotangent<'a> = dyn Fn(&Tensor) -> Result<Tensor> + 'a;

/// A denoiser with derivatives.
pub trait DifferentiableDenoiser: Denoiser {
    /// D(x, σ) and (∂D/∂x)ᵀ v, where v = `cotangent(D(x, σ))`, from one forward pass.
    fn denoise_vjp(&self, x: &Tensor, sigma: &Sigma, cotangent: &Cotangent) -> Result<(Tensor, Tensor)>;
}

/// A denoiser that predicts where in an image it errs more than usual.
pub trait LocalDenoiser: Denoiser {
    /// D(x, σ), and the local factor of the spread of x0 around it, from one call.
    fn denoise_local(&self, x: &Tensor, sigma: f64) -> Result<(Tensor, LocalFactor)>;
}

/// How much of Cov[x0 | x_t] to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CovarianceKind {
    /// tr(Cov)/d · I.
    Scalar,
    /// The diagonal.
    Diagonal,
    /// All of it.
    Full,
}

/// A denoiser that knows the spread of x0 around its estimate.
pub trait DenoiserCovariance: Denoiser {
    /// Cov[x0 | x_t], or the part of it asked for.
    fn covariance(&self, x: &Tensor, sigma: &Sigma, kind: CovarianceKind) -> Result<Covariance>;
}

/// A prior that knows p(x0 | x_t) in closed form: a Gaussian mixture or weighted points.
pub trait ExactConditional: Denoiser {
    /// p(x0 | x_t) as [`Approx::Gaussian`], [`Approx::Mixture`] or [`Approx::Draws`].
    fn conditional(&self, x: &Tensor, sigma: &Sigma) -> Result<Approx<'_>>;
}
