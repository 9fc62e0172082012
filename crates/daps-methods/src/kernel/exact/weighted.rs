//! Weighted draws: of several points of p(x0 | x_t), one is kept with probability proportional to its likelihood.

use daps_core::candle::Tensor;
use daps_core::mixture::choose;
use daps_core::tensors::{batched, from_f64, to_f64};
use daps_core::{Address, ChainInfo, Error, Likelihood, Noise, Purpose, Result, Step};

pub(super) fn draw(
    points: &Tensor,
    log_weights: &[Vec<f64>],
    likelihood: &dyn Likelihood,
    noise: &Noise,
    step: &Step,
) -> Result<(Tensor, ChainInfo)> {
    let (rows, shared, count) = (log_weights.len(), points.dims()[0] == 1, points.dims()[1]);
    let mut weights = log_weights.to_vec();
    for k in 0..count {
        let point = points.narrow(1, k, 1)?.squeeze(1)?;
        let point =
            if shared { point.broadcast_as(batched(rows, &point.dims()[1..]))?.contiguous()? } else { point };
        for (row, value) in likelihood.log_prob(&point)?.into_iter().enumerate() {
            weights[row][k] += value;
        }
    }
    let values = to_f64(points)?;
    let shape = &points.dims()[2..];
    let d: usize = shape.iter().product();
    let u = noise.uniform(Address::new(step.index, Purpose::Choice, 0));
    let mut out = Vec::with_capacity(rows * d);
    for (row, (weights, u)) in weights.iter().zip(u).enumerate() {
        if weights.iter().all(|w| !w.is_finite()) {
            return Err(Error::invalid("weighted draws", "at least one point of finite likelihood", "none"));
        }
        let at = choose(weights, u) + if shared { 0 } else { row * count };
        out.extend_from_slice(&values[at * d..(at + 1) * d]);
    }
    let x = from_f64(out, &batched(rows, shape), points.dtype())?;
    Ok((x, super::info(rows, count)))
}
