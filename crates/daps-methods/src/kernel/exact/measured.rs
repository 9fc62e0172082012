//! Exact draw for clean measurements: perturb-and-MAP, solved for the measured numbers in f64.
//!
//! With x' and y' - A x' as in [`conjugate_gradient`](super::conjugate_gradient), x' + C Aᵀ w is the draw, where
//! (A C Aᵀ + β²) w = y' - A x'. This matrix stays regular as β falls: what the measurement fixes is fixed by C, and not by 1/β².
//! It also says when to stop. With r the residual of w, the error of the draw has the square rᵀr/β² - rᵀe in the metric of the
//! conditional's precision, e being the error of w, and so at most ‖r‖²/β².
//!
//! Preconditioners: where every number is measured by itself, the inverse of C + β² cut to what is seen; for blurs that waves of
//! mirrored images pass unchanged, one number for each of these waves. Both take β from 1e-2 to 1e-4 with hardly more iterations.

use daps_core::candle::{DType, Tensor};
use daps_core::tensors::{batched, combine, combine_dot, from_f64, pick, scale_each, to_f64};
use daps_core::{
    Address, ChainInfo, Cost, Covariance, Frequency, Gaussian, Linear, MirroredWaves, Noise, Purpose, Result,
    Smooth, Step,
};

use super::Exact;
use super::conjugate_gradient::{Until, measured_residual, only, solve};

/// The prior's mean variance times ‖A‖²/β² from which a measurement counts as clean. Below it f32 and the coordinates of the prior do
/// well; at 1,000 these take ten times the iterations of this way.
const CLEAN: f64 = 200.0;

/// Rows whose measurement is clean.
pub(super) fn clean_rows(covariance: &Covariance, likelihood: &Gaussian, rows: usize) -> Result<Vec<bool>> {
    let variance = match covariance {
        Covariance::Scalar(variances) => variances.clone(),
        Covariance::Frequency(c) => {
            let variances = to_f64(c.variances())?;
            vec![variances.iter().sum::<f64>() / variances.len() as f64]
        }
        Covariance::Diagonal(_) | Covariance::Dense(_) => return Ok(vec![false; rows]),
    };
    let curvature = likelihood.curvature().unwrap_or_else(|| vec![0.0]);
    Ok((0..rows).map(|row| pick(&curvature, row) * pick(&variance, row) >= CLEAN).collect())
}

/// About (A C Aᵀ + β²)⁻¹.
pub(super) enum Near<'a> {
    /// The identity: good enough where fewer numbers are measured than there are.
    Few,
    /// Of a mask.
    Mask {
        prior: &'a Frequency,
        /// One where a value is seen.
        seen: Tensor,
        /// 1/β² where none is.
        hidden: Tensor,
        /// v/(v + β²).
        shrink: Tensor,
    },
    /// Of a blur with mirrored borders: 1/(λ²v + β²) for every wave.
    Waves { prior: &'a Frequency, waves: MirroredWaves, inverse: Tensor },
}

impl<'a> Near<'a> {
    /// None where nothing good is known.
    pub fn of(
        covariance: &'a Covariance,
        likelihood: &Gaussian,
        operator: &dyn Linear,
    ) -> Result<Option<Self>> {
        let size = |shape: &[usize]| shape.iter().product::<usize>();
        if size(operator.output_shape()) < size(operator.input_shape()) {
            return Ok(Some(Self::Few));
        }
        let (Covariance::Frequency(prior), Some(beta)) = (covariance, likelihood.beta_rows()) else {
            return Ok(None);
        };
        let shape = operator.input_shape();
        let variances = to_f64(prior.variances())?;
        let noise: Vec<f64> = beta.iter().map(|b| b * b).collect();
        // One list for each pair of a row's own numbers and its noise, or one for all rows.
        let of_rows = |count: usize, f: &dyn Fn(usize, usize, f64) -> f64| {
            let rows = count.max(noise.len());
            let row = |row: usize| (0..variances.len()).map(move |k| (row, k));
            let values = (0..rows).flat_map(row).map(|(row, k)| f(row, k, pick(&noise, row))).collect();
            from_f64(values, &batched(rows, shape), DType::F64)
        };
        if let Some(entries) = operator.diagonal() {
            if entries.iter().flatten().any(|a| *a != 0.0 && *a != 1.0) {
                return Ok(None);
            }
            let entry =
                |row: usize, k: usize| if entries.len() == 1 { entries[0][k] } else { entries[row][k] };
            return Ok(Some(Self::Mask {
                prior,
                seen: of_rows(entries.len(), &|row, k, _| entry(row, k))?,
                hidden: of_rows(entries.len(), &|row, k, noise| (1.0 - entry(row, k)) / noise)?,
                shrink: of_rows(1, &|_, k, noise| variances[k] / (variances[k] + noise))?,
            }));
        }
        let Some(gains) = operator.wave_gains() else { return Ok(None) };
        let gain = |row: usize, k: usize| {
            let gains = if gains.len() == 1 { &gains[0] } else { &gains[row] };
            gains[k % gains.len()]
        };
        let inverse =
            of_rows(gains.len(), &|row, k, noise| 1.0 / (gain(row, k).powi(2) * variances[k] + noise))?;
        Ok(Some(Self::Waves { prior, waves: MirroredWaves::new(shape)?, inverse }))
    }

    fn apply(&self, r: &Tensor) -> Result<Tensor> {
        match self {
            Self::Few => Ok(r.clone()),
            Self::Mask { prior, seen, hidden, shrink } => {
                let root = scale_each(&prior.about_root_inverse(&scale_each(r, seen)?)?, shrink)?;
                let inside = scale_each(&prior.about_root_inverse_transposed(&root)?, seen)?;
                combine(&[(&[1.0], &inside), (&[1.0], &scale_each(r, hidden)?)])
            }
            Self::Waves { prior, waves, inverse } => {
                let c = scale_each(&prior.along(&waves.coefficients(r)?)?, inverse)?;
                waves.coefficients_transposed(&prior.along_back(&c)?)
            }
        }
    }
}

/// Draws the given rows; others are left at what the prior alone says.
pub(super) fn draw(
    settings: &Exact,
    (mean, covariance): (&Tensor, &Covariance),
    likelihood: &Gaussian,
    operator: &dyn Linear,
    near: &Near,
    (noise, step): (&Noise, &Step),
    rows: &[bool],
) -> Result<(Tensor, ChainInfo)> {
    let (dtype, shape) = (mean.dtype(), &mean.dims()[1..]);
    let z = covariance.sample(noise, Address::new(step.index, Purpose::Kernel, 0), shape, DType::F64)?;
    let start = combine(&[(&[1.0], &mean.to_dtype(DType::F64)?), (&[1.0], &z)])?;
    let residual = only(measured_residual(&start, likelihood, operator, noise, step)?, rows)?;
    let pull = |w: &Tensor| covariance.apply(&operator.adjoint(w)?);
    let matrix = |w: &Tensor| {
        let data = operator.apply(&pull(w)?)?;
        combine_dot(&[(&[1.0], &data), (&[1.0], &likelihood.scale_by_variance(w)?)], Some(w))
    };
    let until = Until::Misfit { likelihood, bound: settings.error };
    let (w, iterations) = solve(settings, &residual, None, &matrix, Some(&|r| near.apply(r)), &until)?;
    let x = combine(&[(&[1.0], &start), (&[1.0], &pull(&w)?)])?.to_dtype(dtype)?;
    let mut info = super::info(mean.dims()[0], 0);
    info.cost = Cost { nfe: 0, operator_calls: 2 + 2 * iterations };
    info.iterations = Some(iterations);
    Ok((x, info))
}
