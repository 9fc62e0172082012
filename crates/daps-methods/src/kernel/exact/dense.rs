//! Exact draws with dense algebra in f64: full covariances and mixtures, for problems small enough to write A down.

use std::sync::Arc;

use daps_core::candle::{DType, Tensor};
use daps_core::mixture::{LinearMeasurement, Mixture};
use daps_core::tensors::{batched, from_f64, to_f64};
use daps_core::{
    Address, ChainInfo, Covariance, Error, Gaussian, Noise, Purpose, Result, Step, linear_measurement,
};
use rayon::prelude::*;

/// The largest sample for which A is written down.
const MAX_DIM: usize = 8192;

pub(super) fn draw_gaussian(
    mean: &Tensor,
    covariance: &Covariance,
    likelihood: &Gaussian,
    noise: &Noise,
    step: &Step,
) -> Result<(Tensor, ChainInfo)> {
    let d = mean.elem_count() / mean.dims()[0].max(1);
    let mixtures = to_f64(mean)?
        .chunks(d)
        .enumerate()
        .map(|(i, mean)| Mixture::new(vec![0.0], mean.to_vec(), Arc::new(vec![covariance.row(i)?])))
        .collect::<Result<Vec<_>>>()?;
    let (x, info) = draw_mixture(&mixtures, &mean.dims()[1..], likelihood, noise, step)?;
    Ok((x.to_dtype(mean.dtype())?, info))
}

pub(super) fn draw_mixture(
    rows: &[Mixture],
    shape: &[usize],
    likelihood: &Gaussian,
    noise: &Noise,
    step: &Step,
) -> Result<(Tensor, ChainInfo)> {
    let measurements = measurements(likelihood, rows.len())?;
    let y = to_f64(likelihood.y())?;
    let m = y.len() / rows.len().max(1);
    // Rows that share their covariances and their measurement share the gain.
    let shared_covariances = rows.windows(2).all(|w| Arc::ptr_eq(&w[0].covariances, &w[1].covariances));
    let shared = match (shared_covariances && measurements.len() == 1, rows.first()) {
        (true, Some(first)) => Some(first.gain(&measurements[0])?),
        _ => None,
    };
    let at = Address::new(step.index, Purpose::Kernel, 0);
    let draw = |i: usize| -> Result<Vec<f64>> {
        let measurement = if measurements.len() == 1 { &measurements[0] } else { &measurements[i] };
        let (mut rng, y) = (noise.stream(i, at), &y[i * m..(i + 1) * m]);
        match &shared {
            Some(gain) => rows[i].sample_given(measurement, gain, y, &mut rng),
            None => rows[i].sample_given(measurement, &rows[i].gain(measurement)?, y, &mut rng),
        }
    };
    let values: Vec<Vec<f64>> = (0..rows.len()).into_par_iter().map(draw).collect::<Result<_>>()?;
    let x = from_f64(values.concat(), &batched(rows.len(), shape), DType::F64)?;
    Ok((x, super::info(rows.len(), 1)))
}

/// A and β² for every row, or one for all where operator and noise are shared.
fn measurements(likelihood: &Gaussian, rows: usize) -> Result<Vec<LinearMeasurement>> {
    let d: usize = likelihood.operator().input_shape().iter().product();
    if d > MAX_DIM {
        return Err(Error::invalid(
            "a dense conditional draw",
            format!("at most {MAX_DIM} values a sample"),
            d,
        ));
    }
    (0..if likelihood.is_shared() { 1 } else { rows })
        .map(|row| Ok(linear_measurement(likelihood, row)?.0))
        .collect()
}
