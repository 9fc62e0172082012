//! Exact draw for any linear operator where p(x0 | x_t) has its variances by frequency: perturb-and-MAP as in
//! [`conjugate_gradient`], in the coordinates of the frequencies, where the prior's precision is diagonal and the data's
//! nearly so for blurs.
//!
//! The preconditioner is the inverse of that diagonal. Of masks with holes of several pixels it knows nothing about what
//! lives in a hole, which only the prior determines; there the prior's covariance, cut to the hole, is added. On a hole of
//! 32x32 in 64x64 that made 13 iterations of 128.

use daps_core::candle::{DType, Tensor};
use daps_core::real::{batched, combine, combine_dot, from_f64, scale_each};
use daps_core::{ChainInfo, Cost, Covariance, Frequency, Gaussian, Linear, Noise, Result, Step};

use super::Exact;
use super::conjugate_gradient::{Until, perturbed, solve};

pub(super) fn draw(
    settings: &Exact,
    mean: &Tensor,
    frequency: &Frequency,
    likelihood: &Gaussian,
    operator: &dyn Linear,
    noise: &Noise,
    step: &Step,
) -> Result<(Tensor, ChainInfo)> {
    let (cosines, dtype) = (frequency.cosines(), mean.dtype());
    let covariance = Covariance::Frequency(frequency.clone());
    let (prior, residual) = perturbed(mean, &covariance, likelihood, operator, noise, step)?;
    let precision = frequency.variances().recip()?;
    let diagonal = likelihood.gains(cosines)?.broadcast_add(&precision)?;
    let hidden = holes(operator, dtype)?;
    // What the next level adds hides errors below it.
    let seen = (diagonal.recip()? + step.next.powi(2))?.recip()?.to_dtype(dtype)?;
    let (precision, inverse) = (precision.to_dtype(dtype)?, diagonal.recip()?.to_dtype(dtype)?);

    let matrix = |v: &Tensor| {
        let measured = operator.apply(&cosines.back(v)?)?;
        let data = cosines.forward(&operator.adjoint(&likelihood.weigh(&measured)?)?)?;
        combine_dot(&[(&[1.0], &data), (&[1.0], &scale_each(v, &precision)?)], Some(v))
    };
    let precondition = |v: &Tensor| {
        let by_frequency = scale_each(v, &inverse)?;
        let Some(hidden) = &hidden else { return Ok(by_frequency) };
        let inside = scale_each(&cosines.back(v)?, hidden)?;
        let spread = scale_each(&covariance.apply(&inside)?, hidden)?;
        combine(&[(&[1.0], &by_frequency), (&[1.0], &cosines.forward(&spread)?)])
    };
    let right = cosines.forward(&operator.adjoint(&likelihood.weigh(&residual)?)?)?;
    let until = Until::Error { precision: &seen, bound: settings.error };
    let (change, iterations) = solve(settings, &right, None, &matrix, Some(&precondition), &until)?;
    let x = combine(&[(&[1.0], &prior), (&[1.0], &cosines.back(&change)?)])?;
    let mut info = super::info(mean.dims()[0], 0);
    info.cost = Cost { nfe: 0, operator_calls: 2 + 2 * iterations };
    info.iterations = Some(iterations);
    Ok((x, info))
}

/// One where a mask hides a value and zero elsewhere, `[1 or rows, shape…]`, for rows most of whose hidden values have only
/// hidden ones beside them; scattered ones need no care.
fn holes(operator: &dyn Linear, dtype: DType) -> Result<Option<Tensor>> {
    let (Some(entries), &[_, height, width]) = (operator.diagonal(), operator.input_shape()) else {
        return Ok(None);
    };
    let hidden = |row: &Vec<f64>| -> Vec<f64> {
        let hides = |at: usize| row[at] == 0.0;
        let inner = |at: usize| {
            let (y, x) = (at / width % height, at % width);
            (y == 0 || hides(at - width))
                && (y + 1 == height || hides(at + width))
                && (x == 0 || hides(at - 1))
                && (x + 1 == width || hides(at + 1))
        };
        let within = (0..row.len()).filter(|at| hides(*at) && inner(*at)).count();
        let holed = 2 * within > row.iter().filter(|entry| **entry == 0.0).count();
        row.iter().map(|entry| f64::from(u8::from(holed && *entry == 0.0))).collect()
    };
    let hidden: Vec<f64> = entries.iter().flat_map(hidden).collect();
    if hidden.iter().all(|h| *h == 0.0) {
        return Ok(None);
    }
    from_f64(hidden, &batched(entries.len(), operator.input_shape()), dtype).map(Some)
}
