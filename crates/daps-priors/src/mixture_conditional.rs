//! p(x0 | x_t) of a Gaussian mixture prior: a mixture again, and its covariance in the form asked for.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use daps_core::linalg::times;
use daps_core::mixture::Mixture;
use daps_core::tensors::{batched, from_f64, to_f64};
use daps_core::{
    Approx, Covariance, CovarianceKind, Denoiser, DenoiserCovariance, ExactConditional, Full, Result,
    RowCovariance, Sigma,
};
use faer::Mat;
use rayon::prelude::*;

use crate::algebra::{NEGLIGIBLE, axpy, dot, map_rows_f64, minus, negligible};
use crate::mixture::{GaussianMixture, Level, Levels, Seen};
use crate::spectrum::Spectrum;

impl GaussianMixture {
    /// E[x0 | x_t, k] - E[x0 | x_t] in the coordinates of the samples.
    fn deviation(&self, level: &Level, seen: &Seen, k: usize) -> Vec<f64> {
        let mut deviation = self.spectra[self.group(k)].vector(self.step_of(level, seen, k));
        axpy(&mut deviation, -1.0, &seen.shift);
        deviation
    }

    /// Covariances of x0 given x_t within every distinct component.
    fn within(&self, level: &Level) -> Result<Arc<Vec<RowCovariance>>> {
        let parts = self.spectra.iter().zip(&level.spectra);
        Ok(Arc::new(parts.map(|(s, at)| s.conditional(at)).collect::<Result<_>>()?))
    }

    /// [`Self::within`] for every row, computed once where all share a level.
    fn within_rows(
        &self,
        levels: &Levels,
        sigma: &Sigma,
        rows: usize,
    ) -> Result<Vec<Arc<Vec<RowCovariance>>>> {
        match sigma {
            Sigma::Same(_) if rows > 0 => Ok(vec![self.within(&levels.row(0))?; rows]),
            _ => (0..rows).into_par_iter().map(|row| self.within(&levels.row(row))).collect(),
        }
    }

    /// Runs `f(row, level, seen)` over the rows in parallel.
    fn over_rows<T: Send>(
        &self,
        x: &Tensor,
        levels: &Levels,
        f: impl Fn(usize, &Level, &Seen, &[f64]) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let values = to_f64(x)?;
        let run = |(row, x): (usize, &[f64])| {
            let level = levels.row(row);
            f(row, &level, &self.see(&level, x), x)
        };
        values.par_chunks(self.dim()).enumerate().map(run).collect()
    }

    /// Cov[x0 | x_t] of a single Gaussian: it does not depend on x_t.
    fn gaussian_covariance(&self, x: &Tensor, levels: &Levels, sigma: &Sigma) -> Result<Covariance> {
        let rows = x.dims()[0];
        let within = self.within_rows(levels, sigma, rows)?;
        match within.first().map(|w| &w[0]) {
            Some(RowCovariance::Scalar(v)) if matches!(sigma, Sigma::Same(_)) => {
                Ok(Covariance::Scalar(vec![*v]))
            }
            Some(RowCovariance::Diagonal(_)) => {
                let one = |w: &Arc<Vec<RowCovariance>>| match &w[0] {
                    RowCovariance::Diagonal(v) => v.clone(),
                    _ => vec![],
                };
                let values = within.iter().flat_map(one).collect();
                Ok(Covariance::Diagonal(from_f64(values, x.dims(), DType::F64)?))
            }
            Some(RowCovariance::Scalar(_)) => Ok(Covariance::Scalar(
                within
                    .iter()
                    .map(|w| if let RowCovariance::Scalar(v) = w[0] { v } else { f64::NAN })
                    .collect(),
            )),
            _ => Ok(Covariance::Dense(within.iter().map(|w| w[0].clone()).collect())),
        }
    }

    /// σ²(C + σ²I)⁻¹ m_k where one covariance serves all components: E[x0 | x_t, k] without the part that x_t adds to
    /// all of them.
    fn pulled_means(&self, level: &Level) -> Option<Vec<f64>> {
        let (spectrum, at) = (&self.spectra[0], &level.spectra[0]);
        let each = (0..self.components()).map(|k| spectrum.pull(at, &self.mixture().mean_of(k)));
        (self.spectra.len() == 1).then(|| each.flatten().collect())
    }

    /// E[x0 | x_t, k].
    fn conditional_means(&self, level: &Level, seen: &Seen, x: &[f64]) -> Vec<f64> {
        let mut means = Vec::with_capacity(self.components() * x.len());
        for k in 0..self.components() {
            let step = self.spectra[self.group(k)].vector(self.step_of(level, seen, k));
            means.extend(x.iter().zip(&step).map(|(x, s)| x + s));
        }
        means
    }

    /// Whether Cov[x0 | x_t] is a multiple of the identity plus few directions.
    fn is_low_rank(&self) -> bool {
        self.spectra.iter().all(Spectrum::is_scalar)
    }

    /// a and F of Cov = aI + FᵀF where all components are scalar: one direction for every component that matters, or
    /// one for every dimension of the means' plane if these are fewer.
    fn low_rank(&self, level: &Level, seen: &Seen) -> (f64, Vec<f64>) {
        let weights: Vec<f64> = seen.log_weights.iter().map(|w| w.exp()).collect();
        let variance = |k: usize| level.spectra[self.group(k)].variance[0];
        let diagonal: f64 = weights.iter().enumerate().map(|(k, w)| w * variance(k)).sum();
        if let Some(plane) = &self.plane {
            let pull = level.spectra[0].pull[0];
            let alive = weights.iter().filter(|w| **w > 1e-18).count();
            if plane.rank() < alive {
                let mut factor = plane.factor(&seen.log_weights, NEGLIGIBLE * diagonal / (pull * pull));
                factor.iter_mut().for_each(|f| *f *= pull);
                return (diagonal, factor);
            }
        }
        let mut factor = Vec::new();
        for (k, weight) in weights.iter().enumerate() {
            if *weight == 0.0 {
                continue;
            }
            let deviation = self.deviation(level, seen, k);
            if !negligible(*weight, dot(&deviation, &deviation), diagonal) {
                factor.extend(deviation.iter().map(|r| weight.sqrt() * r));
            }
        }
        (diagonal, factor)
    }

    /// tr(Cov)/d: the trace is the same in all coordinates.
    fn mean_variance(&self, level: &Level, seen: &Seen) -> f64 {
        let d = self.dim() as f64;
        if self.is_low_rank() {
            let (diagonal, factor) = self.low_rank(level, seen);
            return diagonal + dot(&factor, &factor) / d;
        }
        let mut trace = 0.0;
        for (k, weight) in seen.log_weights.iter().map(|w| w.exp()).enumerate() {
            if weight != 0.0 {
                let deviation = self.deviation(level, seen, k);
                let within: f64 = level.spectra[self.group(k)].variance.iter().sum();
                trace += weight * (within + dot(&deviation, &deviation));
            }
        }
        trace / d
    }

    fn variances(&self, level: &Level, seen: &Seen, within: &[Vec<f64>], out: &mut [f64]) {
        if self.is_low_rank() {
            let (diagonal, factor) = self.low_rank(level, seen);
            out.fill(diagonal);
            let rows = factor.chunks(out.len());
            rows.for_each(|f| out.iter_mut().zip(f).for_each(|(o, f)| *o += f * f));
            return;
        }
        for (k, weight) in seen.log_weights.iter().map(|w| w.exp()).enumerate() {
            if weight != 0.0 {
                let deviation = self.deviation(level, seen, k);
                let parts = within[self.group(k)].iter().zip(&deviation);
                out.iter_mut().zip(parts).for_each(|(o, (v, r))| *o += weight * (v + r * r));
            }
        }
    }

    fn full(&self, level: &Level, seen: &Seen, within: &[Mat<f64>]) -> Result<RowCovariance> {
        let d = self.dim();
        let mut total = Mat::<f64>::zeros(d, d);
        let mut factor = Vec::new();
        for (k, weight) in seen.log_weights.iter().map(|w| w.exp()).enumerate() {
            if weight.is_nan() {
                // A row that left the finite numbers: its chain has diverged, and others go on.
                return Ok(RowCovariance::Scalar(f64::NAN));
            }
            if weight != 0.0 {
                let c = &within[self.group(k)];
                (0..d).for_each(|j| axpy(total.col_as_slice_mut(j), weight, c.col_as_slice(j)));
                factor.extend(self.deviation(level, seen, k).iter().map(|r| weight.sqrt() * r));
            }
        }
        let factor = Mat::from_fn(d, factor.len() / d, |i, k| factor[k * d + i]);
        total += times(factor.as_ref(), factor.transpose());
        Ok(RowCovariance::Full(Full::new(total)?))
    }
}

impl DenoiserCovariance for GaussianMixture {
    /// The full kind is low-rank where all component covariances are scalar (rank at most the number of components that
    /// matter), of the component's own form for a single Gaussian, and one dense matrix per row otherwise.
    fn covariance(&self, x: &Tensor, sigma: &Sigma, kind: CovarianceKind) -> Result<Covariance> {
        let levels = self.levels(x, sigma)?;
        match kind {
            CovarianceKind::Scalar => {
                let variance = self.over_rows(x, &levels, |_, l, s, _| Ok(self.mean_variance(l, s)))?;
                Ok(Covariance::Scalar(variance))
            }
            CovarianceKind::Diagonal => {
                let diagonals = |level: &Level| -> Vec<Vec<f64>> {
                    let parts = self.spectra.iter().zip(&level.spectra);
                    parts.map(|(s, at)| s.conditional_diagonal(at)).collect()
                };
                let shared = matches!(sigma, Sigma::Same(_)).then(|| diagonals(&levels.row(0)));
                let wide = x.to_dtype(DType::F64)?;
                Ok(Covariance::Diagonal(map_rows_f64(&wide, self.shape(), |row, x, out| {
                    let level = levels.row(row);
                    let own = if shared.is_some() { None } else { Some(diagonals(&level)) };
                    if let Some(within) = shared.as_ref().or(own.as_ref()) {
                        self.variances(&level, &self.see(&level, x), within, out);
                    }
                })?))
            }
            CovarianceKind::Full if self.components() == 1 => self.gaussian_covariance(x, &levels, sigma),
            CovarianceKind::Full if self.is_low_rank() => {
                let rows = self.over_rows(x, &levels, |_, level, seen, _| {
                    let (diagonal, factor) = self.low_rank(level, seen);
                    // A row that left the finite numbers: its chain has diverged, and others go on.
                    Ok(if diagonal.is_nan() {
                        RowCovariance::Scalar(f64::NAN)
                    } else {
                        RowCovariance::LowRank { diagonal, factor }
                    })
                })?;
                Ok(Covariance::Dense(rows))
            }
            CovarianceKind::Full => {
                let dense = |level: &Level| -> Result<Vec<Mat<f64>>> {
                    Ok(self.within(level)?.iter().map(|c| c.matrix(self.dim())).collect())
                };
                let shared = match sigma {
                    Sigma::Same(_) => Some(dense(&levels.row(0))?),
                    Sigma::Rows(_) => None,
                };
                let rows = self.over_rows(x, &levels, |_, level, seen, _| match &shared {
                    Some(within) => self.full(level, seen, within),
                    None => self.full(level, seen, &dense(level)?),
                })?;
                Ok(Covariance::Dense(rows))
            }
        }
    }
}

impl ExactConditional for GaussianMixture {
    /// A Gaussian for one component, a mixture for several.
    fn conditional(&self, x: &Tensor, sigma: &Sigma) -> Result<Approx<'_>> {
        let levels = self.levels(x, sigma)?;
        if self.components() == 1 {
            let mean = self.denoise(x, sigma)?;
            let covariance = self.gaussian_covariance(x, &levels, sigma)?;
            return Ok(Approx::Gaussian { start: mean.clone(), mean, covariance });
        }
        let within = self.within_rows(&levels, sigma, x.dims()[0])?;
        let shared = match sigma {
            Sigma::Same(_) if x.dims()[0] > 0 => self.pulled_means(&levels.row(0)).map(Arc::new),
            _ => None,
        };
        let rows = self.over_rows(x, &levels, |row, level, seen, x| {
            let own = || self.pulled_means(level).map(Arc::new);
            let (means, shift) = match shared.clone().or_else(own) {
                Some(means) => (means, Some(minus(x, &self.spectra[0].pull(&level.spectra[0], x)))),
                None => (Arc::new(self.conditional_means(level, seen, x)), None),
            };
            let (log_weights, covariances) = (seen.log_weights.clone(), Arc::clone(&within[row]));
            Ok(Mixture { log_weights, means, shift, covariances })
        })?;
        Ok(Approx::Mixture { rows, shape: self.shape().to_vec() })
    }
}

/// `[rows, shape…]` from rows of f64 values.
pub(crate) fn stack(rows: Vec<Vec<f64>>, shape: &[usize]) -> Result<Tensor> {
    from_f64(rows.concat(), &batched(rows.len(), shape), DType::F64)
}
