//! A Gaussian prior: a mixture of one, with r(σ) in closed form.

use std::sync::Arc;

use daps_core::mixture::Mixture;
use daps_core::{Error, Result, RowCovariance, SpreadTable};

use crate::mixture::GaussianMixture;

impl GaussianMixture {
    /// N(mean, covariance) over samples of the given shape.
    pub fn gaussian(shape: &[usize], mean: Vec<f64>, covariance: RowCovariance) -> Result<Self> {
        Self::new(shape, Mixture::new(vec![0.0], mean, Arc::new(vec![covariance]))?)
    }

    /// r(σ) with r² = E‖x0 - D(x0 + σn)‖²/d = tr(C σ²(C + σ²I)⁻¹)/d, for a prior of one component.
    pub fn gaussian_spread(&self, sigmas: &[f64]) -> Result<SpreadTable> {
        if self.components() != 1 {
            let got = format!("{} components", self.components());
            return Err(Error::invalid("the spread in closed form", "a prior of one component", got));
        }
        let r = |sigma: &f64| {
            let variance = self.spectra[0].at(*sigma).variance;
            (variance.iter().sum::<f64>() / variance.len() as f64).sqrt()
        };
        let table = SpreadTable {
            sigma: sigmas.to_vec(),
            r: sigmas.iter().map(r).collect(),
            data_std: self.spectra[0].mean_value().sqrt(),
            bands: None,
        };
        table.check()?;
        Ok(table)
    }
}
