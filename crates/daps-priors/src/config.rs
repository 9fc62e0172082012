//! The settings of closed-form priors, as they stand under `[prior]` in a configuration, and how each becomes a prior.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::mixture::Mixture;
use daps_core::tensors::to_f64;
use daps_core::{Full, RowCovariance};
use faer::Mat;
use serde::{Deserialize, Serialize};

use crate::{Empirical, Error, GaussianMixture, Result, read_array, read_images, read_pictures};

/// A number for all values of a sample, or one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
pub enum Values {
    /// The same everywhere.
    One(f64),
    /// One for each value of a sample, flattened.
    Each(Vec<f64>),
}

/// A number for all components, one for each, or a list for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, a list of numbers, or a list with an entry per component")]
pub enum PerComponent {
    /// The same for all components.
    One(f64),
    /// One entry per component.
    Each(Vec<Values>),
}

/// `kind = "gaussian"`: N(mean, std²) or N(mean, covariance).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussianConfig {
    /// The mean; 0 where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<Values>,
    /// The standard deviation; 1 where neither it nor a covariance is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std: Option<Values>,
    /// A file with the `d x d` covariance, in place of `std`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub covariance: Option<PathBuf>,
}

/// `kind = "mixture"`: Σ w_k N(m_k, C_k).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixtureConfig {
    /// Weights, not necessarily normalised; equal where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Vec<f64>>,
    /// One mean per component.
    pub means: Vec<Values>,
    /// Standard deviations; 1 where neither they nor covariances are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std: Option<PerComponent>,
    /// A file with covariances, `d x d` for all components or `k x d x d`, in place of `std`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub covariances: Option<PathBuf>,
}

/// `kind = "empirical"`: the points of a file or the pictures of a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmpiricalConfig {
    /// A `.npy` or `.safetensors` file with points `[n, shape…]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The tensor of a `.safetensors` file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// A folder of pictures, scaled to [-1, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Whether pictures of another size are resized.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resize: bool,
    /// Weights of the points, not necessarily normalised; equal where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Vec<f64>>,
}

impl Values {
    /// One number for each of `dim` values.
    fn expand(&self, what: &str, dim: usize) -> Result<Vec<f64>> {
        match self {
            Self::One(value) => Ok(vec![*value; dim]),
            Self::Each(values) if values.len() == dim => Ok(values.clone()),
            Self::Each(values) => {
                let expected = format!("one number or {dim}, one for each value of a sample");
                Err(daps_core::Error::invalid(what, expected, values.len()).into())
            }
        }
    }

    /// diag(std²).
    fn covariance(&self, dim: usize) -> Result<RowCovariance> {
        let positive = |std: f64| match std.is_finite() && std > 0.0 {
            true => Ok(std * std),
            false => Err(daps_core::Error::invalid("std of a prior", "a positive finite number", std)),
        };
        match self {
            Self::One(std) => Ok(RowCovariance::Scalar(positive(*std)?)),
            Self::Each(_) => {
                let std = self.expand("std of a prior", dim)?;
                let squares: daps_core::Result<Vec<f64>> = std.into_iter().map(positive).collect();
                Ok(RowCovariance::Diagonal(squares?))
            }
        }
    }
}

impl GaussianConfig {
    /// The prior over samples of a shape; file names are relative to `base`.
    pub fn build(&self, shape: &[usize], base: &Path) -> Result<GaussianMixture> {
        let dim = shape.iter().product();
        let covariance = match (&self.std, &self.covariance) {
            (Some(_), Some(_)) => return Err(Error::config("gaussian", "give std or covariance, not both")),
            (_, Some(file)) => covariances(&base.join(file), dim, 1)?.remove(0),
            (std, None) => std.as_ref().unwrap_or(&Values::One(1.0)).covariance(dim)?,
        };
        let mean = self.mean.as_ref().unwrap_or(&Values::One(0.0)).expand("mean of a prior", dim)?;
        Ok(GaussianMixture::gaussian(shape, mean, covariance)?)
    }
}

impl MixtureConfig {
    /// The prior over samples of a shape; file names are relative to `base`.
    pub fn build(&self, shape: &[usize], base: &Path) -> Result<GaussianMixture> {
        let (dim, k) = (shape.iter().product(), self.means.len());
        let log_weights = log_weights(self.weights.as_deref(), k)?;
        let means: Result<Vec<Vec<f64>>> =
            self.means.iter().map(|m| m.expand("mean of a component", dim)).collect();
        let covariances = match (&self.std, &self.covariances) {
            (Some(_), Some(_)) => return Err(Error::config("mixture", "give std or covariances, not both")),
            (_, Some(file)) => covariances(&base.join(file), dim, k)?,
            (None, None) => vec![RowCovariance::Scalar(1.0)],
            (Some(PerComponent::One(std)), None) => vec![Values::One(*std).covariance(dim)?],
            (Some(PerComponent::Each(stds)), None) if stds.len() == k => {
                stds.iter().map(|s| s.covariance(dim)).collect::<Result<_>>()?
            }
            (Some(PerComponent::Each(stds)), None) => {
                let expected = format!("one entry for each of {k} components");
                return Err(daps_core::Error::invalid("std of a mixture", expected, stds.len()).into());
            }
        };
        let mixture = Mixture::new(log_weights, means?.concat(), Arc::new(covariances))?;
        Ok(GaussianMixture::new(shape, mixture)?)
    }
}

impl EmpiricalConfig {
    /// The prior over samples of a shape; file names are relative to `base`.
    pub fn build(&self, shape: &[usize], base: &Path) -> Result<Empirical> {
        let points = match (&self.file, &self.folder) {
            (Some(file), None) if shape.len() == 3 => {
                read_pictures(&base.join(file), self.tensor.as_deref())?
            }
            (Some(file), None) => read_array(&base.join(file), self.tensor.as_deref())?,
            (None, Some(folder)) => read_images(&base.join(folder), shape, self.resize)?,
            _ => return Err(Error::config("empirical", "give either file or folder")),
        };
        daps_core::tensors::check_rows("points of a prior", &points, shape)?;
        let log_weights = log_weights(self.weights.as_deref(), points.dims()[0])?;
        Ok(Empirical::weighted(&points, log_weights)?)
    }
}

/// ln of given weights, or equal ones.
fn log_weights(weights: Option<&[f64]>, n: usize) -> Result<Vec<f64>> {
    let Some(weights) = weights else { return Ok(vec![0.0; n]) };
    if weights.len() != n {
        let expected = format!("one for each of {n} components or points");
        return Err(daps_core::Error::invalid("weights of a prior", expected, weights.len()).into());
    }
    if let Some(bad) = weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
        return Err(daps_core::Error::invalid("weights of a prior", "finite numbers from 0", bad).into());
    }
    Ok(weights.iter().map(|w| w.ln()).collect())
}

/// Full covariances from a file: `d x d`, or `k x d x d`.
fn covariances(path: &Path, dim: usize, k: usize) -> Result<Vec<RowCovariance>> {
    let tensor = read_array(path, None)?;
    let count = match *tensor.dims() {
        [a, b] if a == dim && b == dim => 1,
        [n, a, b] if n == k && a == dim && b == dim => n,
        _ => {
            let expected = format!("shape [{dim}, {dim}] or [{k}, {dim}, {dim}]");
            return Err(Error::file(path, format!("expected {expected}, got {:?}", tensor.dims())));
        }
    };
    let values = flat(&tensor)?;
    (0..count)
        .map(|i| {
            let at = |r: usize, c: usize| values[(i * dim + r) * dim + c];
            let scale = (0..dim).map(|r| at(r, r).abs()).fold(0.0, f64::max);
            if (0..dim).any(|r| (0..r).any(|c| (at(r, c) - at(c, r)).abs() > 1e-6 * scale)) {
                return Err(Error::file(path, "expected a symmetric matrix, got one that is not"));
            }
            let matrix = Mat::from_fn(dim, dim, |r, c| 0.5 * (at(r, c) + at(c, r)));
            let full = Full::new(matrix).map_err(|e| Error::file(path, e))?;
            Ok(RowCovariance::Full(full))
        })
        .collect()
}

fn flat(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(to_f64(tensor)?)
}
