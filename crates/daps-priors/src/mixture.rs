//! A Gaussian mixture prior: denoiser and derivatives; a Gaussian is a mixture of one.

use std::borrow::Cow;

use candle_core::{DType, Tensor};
use daps_core::mixture::Mixture;
use daps_core::tensors::{check_rows, to_f64};
use daps_core::{
    Address, Cotangent, Denoiser, DenoiserCovariance, DifferentiableDenoiser, Error, ExactConditional,
    Likelihood, Noise, Result, Sigma,
};

use crate::algebra::{axpy, check_sigma, dot, map_rows_f64, normalize, weighted_squared_distance};
use crate::analytic::{Analytic, Posterior, draw_mixture, posterior};
use crate::plane::Plane;
use crate::spectrum::{AtLevel, Spectrum};

/// p(x0) = Σ_k w_k N(m_k, C_k) with scalar, diagonal or full C_k, one for all components or one for each.
#[derive(Clone, Debug)]
pub struct GaussianMixture {
    shape: Vec<usize>,
    mixture: Mixture,
    /// One for every distinct covariance: one for all components, or one for each.
    pub(crate) spectra: Vec<Spectrum>,
    /// m_k in the coordinates of its covariance, `k x d`.
    means: Vec<f64>,
    /// The plane of the means, where one scalar covariance serves all components.
    pub(crate) plane: Option<Plane>,
}

/// What depends on the noise level only: one entry for every distinct covariance.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) spectra: Vec<AtLevel>,
}

/// The levels of a batch: computed once where all rows share one.
pub(crate) struct Levels<'a> {
    prior: &'a GaussianMixture,
    sigma: &'a Sigma,
    same: Option<Level>,
}

impl Levels<'_> {
    pub(crate) fn row(&self, row: usize) -> Cow<'_, Level> {
        match &self.same {
            Some(level) => Cow::Borrowed(level),
            None => Cow::Owned(self.prior.level(self.sigma.row(row))),
        }
    }
}

/// One row's x_t seen by the mixture.
pub(crate) struct Seen<'a> {
    /// x_t in the coordinates of every distinct covariance.
    coordinates: Vec<Cow<'a, [f64]>>,
    /// ln p(k | x_t), normalised.
    pub(crate) log_weights: Vec<f64>,
    /// D(x_t) - x_t.
    pub(crate) shift: Vec<f64>,
}

impl GaussianMixture {
    /// A prior over samples of the given shape.
    pub fn new(shape: &[usize], mixture: Mixture) -> Result<Self> {
        let dim: usize = shape.iter().product();
        if dim == 0 || mixture.dim() != dim {
            return Err(Error::invalid(
                "mixture prior",
                format!("means of {dim} values for the shape {shape:?}"),
                mixture.dim(),
            ));
        }
        if let Some(bad) = mixture.means.iter().find(|m| !m.is_finite()) {
            return Err(Error::invalid("mixture prior", "finite means", bad));
        }
        let spectra: Vec<Spectrum> =
            mixture.covariances.iter().map(|c| Spectrum::new(c, dim)).collect::<Result<_>>()?;
        let group = |k| if spectra.len() == 1 { 0 } else { k };
        let plane = (spectra.len() == 1 && spectra[0].is_scalar()).then(|| Plane::new(&mixture));
        let means =
            (0..mixture.len()).flat_map(|k| spectra[group(k)].coordinates(&mixture.mean_of(k)).into_owned());
        Ok(Self { shape: shape.to_vec(), means: means.collect(), plane, spectra, mixture })
    }

    /// The mixture itself.
    #[must_use]
    pub fn mixture(&self) -> &Mixture {
        &self.mixture
    }

    pub(crate) fn dim(&self) -> usize {
        self.mixture.dim()
    }

    /// Number of components.
    #[must_use]
    pub fn components(&self) -> usize {
        self.mixture.len()
    }

    /// The index of a component's covariance.
    pub(crate) fn group(&self, k: usize) -> usize {
        if self.spectra.len() == 1 { 0 } else { k }
    }

    /// The components that have a covariance.
    fn members(&self, group: usize) -> std::ops::Range<usize> {
        if self.spectra.len() == 1 { 0..self.components() } else { group..group + 1 }
    }

    /// m_k in the coordinates of its covariance.
    fn mean_in_basis(&self, k: usize) -> &[f64] {
        &self.means[k * self.dim()..(k + 1) * self.dim()]
    }

    fn level(&self, sigma: f64) -> Level {
        Level { spectra: self.spectra.iter().map(|s| s.at(sigma)).collect() }
    }

    /// Checks a batch and prepares its levels.
    pub(crate) fn levels<'a>(&'a self, x: &Tensor, sigma: &'a Sigma) -> Result<Levels<'a>> {
        check_sigma(sigma, check_rows("x_t", x, &self.shape)?)?;
        let same = match sigma {
            Sigma::Same(sigma) => Some(self.level(*sigma)),
            Sigma::Rows(_) => None,
        };
        Ok(Levels { prior: self, sigma, same })
    }

    /// Responsibilities in logs, and the step to the conditional mean.
    pub(crate) fn see<'a>(&self, level: &Level, x: &'a [f64]) -> Seen<'a> {
        let coordinates: Vec<_> = self.spectra.iter().map(|s| s.coordinates(x)).collect();
        if let Some(plane) = &self.plane {
            let at = &level.spectra[0];
            let log_weights = plane.log_weights(x, at.precision[0]);
            let shift = plane.shift(x, &log_weights, at.pull[0]);
            return Seen { coordinates, log_weights, shift };
        }
        let mut log_weights: Vec<f64> = (0..self.components())
            .map(|k| {
                let at = &level.spectra[self.group(k)];
                let c = &coordinates[self.group(k)];
                let quad = weighted_squared_distance(&at.precision, c, self.mean_in_basis(k));
                self.mixture.log_weights[k] - 0.5 * (quad + at.log_det)
            })
            .collect();
        normalize(&mut log_weights);
        let shift = self.shift(level, &coordinates, &log_weights);
        Seen { coordinates, log_weights, shift }
    }

    /// Σ_k r_k σ²(C_k + σ²I)⁻¹(m_k - x).
    fn shift(&self, level: &Level, coordinates: &[Cow<[f64]>], log_weights: &[f64]) -> Vec<f64> {
        let dim = self.dim();
        let mut total = vec![0.0; dim];
        for (g, spectrum) in self.spectra.iter().enumerate() {
            let members = self.members(g);
            let mut mean = vec![0.0; dim];
            let mut mass = 0.0;
            for k in members {
                let weight = log_weights[k].exp();
                if weight != 0.0 {
                    axpy(&mut mean, weight, self.mean_in_basis(k));
                    mass += weight;
                }
            }
            let pulled = mean.iter().zip(coordinates[g].iter()).zip(&level.spectra[g].pull);
            let part = spectrum.vector(pulled.map(|((m, x), pull)| pull * (m - mass * x)).collect());
            axpy(&mut total, 1.0, &part);
        }
        total
    }

    /// E[x0 | x_t, k] - x_t in the coordinates of the component's covariance.
    pub(crate) fn step_of(&self, level: &Level, seen: &Seen, k: usize) -> Vec<f64> {
        let g = self.group(k);
        let to_mean = self.mean_in_basis(k).iter().zip(seen.coordinates[g].iter());
        to_mean.zip(&level.spectra[g].pull).map(|((m, x), pull)| pull * (m - x)).collect()
    }

    /// Cov[x0 | x_t] v: the spread within components and that between them.
    pub(crate) fn covariance_times(&self, level: &Level, seen: &Seen, v: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; v.len()];
        if let Some(plane) = &self.plane {
            let at = &level.spectra[0];
            axpy(&mut out, at.variance[0], v);
            plane.add_between(&mut out, at.pull[0].powi(2), &seen.log_weights, v);
            return out;
        }
        for (g, spectrum) in self.spectra.iter().enumerate() {
            let members = self.members(g);
            let (v, shift) = (spectrum.coordinates(v), spectrum.coordinates(&seen.shift));
            let mut part = vec![0.0; v.len()];
            for k in members {
                let weight = seen.log_weights[k].exp();
                if weight == 0.0 {
                    continue;
                }
                let mut deviation = self.step_of(level, seen, k);
                axpy(&mut deviation, -1.0, &shift);
                axpy(&mut part, weight * dot(&deviation, &v), &deviation);
                let within = part.iter_mut().zip(&level.spectra[g].variance).zip(v.iter());
                within.for_each(|((p, variance), v)| *p += weight * variance * v);
            }
            axpy(&mut out, 1.0, &spectrum.vector(part));
        }
        out
    }
}

impl Denoiser for GaussianMixture {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn dtype(&self) -> DType {
        DType::F64
    }

    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        let levels = self.levels(x, sigma)?;
        map_rows_f64(x, &self.shape, |row, x, out| {
            let seen = self.see(&levels.row(row), x);
            out.copy_from_slice(x);
            axpy(out, 1.0, &seen.shift);
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

impl DifferentiableDenoiser for GaussianMixture {
    /// ∂D/∂x = Cov[x0 | x_t]/σ², which is symmetric.
    fn denoise_vjp(&self, x: &Tensor, sigma: &Sigma, cotangent: &Cotangent) -> Result<(Tensor, Tensor)> {
        let denoised = self.denoise(x, sigma)?;
        let v = cotangent(&denoised)?;
        if v.dims() != x.dims() {
            return Err(Error::shape("cotangent", x.dims(), v.dims()));
        }
        let (levels, v) = (self.levels(x, sigma)?, to_f64(&v)?);
        let pulled = map_rows_f64(x, &self.shape, |row, x, out| {
            let level = levels.row(row);
            let seen = self.see(&level, x);
            let product = self.covariance_times(&level, &seen, &v[row * x.len()..(row + 1) * x.len()]);
            axpy(out, sigma.row(row).powi(-2), &product);
        })?;
        Ok((denoised, pulled))
    }
}

impl Analytic for GaussianMixture {
    fn draw(&self, noise: &Noise, at: Address) -> Result<Tensor> {
        draw_mixture(&self.mixture, &self.shape, noise, at)
    }

    fn posterior(&self, likelihood: &dyn Likelihood, row: usize) -> Result<Posterior> {
        let gaussian = likelihood.as_gaussian().ok_or_else(|| {
            Error::missing(
                "the exact posterior of a mixture",
                "Gaussian measurement noise",
                likelihood.name(),
            )
        })?;
        Ok(Posterior::Mixture {
            mixture: posterior(&self.mixture, gaussian, row)?,
            shape: self.shape.clone(),
        })
    }
}
