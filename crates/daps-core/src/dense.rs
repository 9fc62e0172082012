//! The dense matrix behind one row of a linear likelihood, found by applying the operator to unit vectors.

use std::sync::Arc;

use crate::mixture::LinearMeasurement;
use crate::tensors::{batched, check_rows, pick, to_f64};
use crate::{Beta, Error, Gaussian, Operator, Result};
use candle_core::{DType, Device, Tensor};

/// Unit vectors that go through the operator at once.
const CHUNK: usize = 256;

/// A and the noise variances of one row as dense numbers, and that row's y.
pub fn linear_measurement(likelihood: &Gaussian, row: usize) -> Result<(LinearMeasurement, Vec<f64>)> {
    let operator = likelihood.operator();
    let rows = check_rows("measurement", likelihood.y(), operator.output_shape())?;
    if row >= rows {
        return Err(Error::invalid("row of the measurement", format!("less than {rows}"), row));
    }
    let y = to_f64(&likelihood.y().get(row)?)?;
    let variance = match likelihood.beta() {
        Beta::Rows(beta) => vec![pick(beta, row).powi(2); y.len()],
        Beta::Each(beta) => {
            let beta = to_f64(&beta.get(if beta.dims()[0] == 1 { 0 } else { row })?)?;
            beta.iter().map(|b| b * b).collect()
        }
    };
    Ok((LinearMeasurement { matrix: dense(operator, row)?, variance }, y))
}

/// A, row-major `m x d`: from Aᵀ on measurement space or A on sample space, whichever is smaller.
fn dense(operator: &Arc<dyn Operator>, row: usize) -> Result<Vec<f64>> {
    let d: usize = operator.input_shape().iter().product();
    let m: usize = operator.output_shape().iter().product();
    let from_outputs = m < d;
    let (count, shape) =
        if from_outputs { (m, operator.output_shape()) } else { (d, operator.input_shape()) };
    let mut columns = Vec::with_capacity(m * d);
    for first in (0..count).step_by(CHUNK) {
        let n = CHUNK.min(count - first);
        let serving = match operator.rows() {
            Some(_) => Arc::clone(operator).select(&vec![row; n])?,
            None => Arc::clone(operator),
        };
        let Some(linear) = serving.as_linear() else {
            return Err(Error::missing("dense algebra", "a linear operator", operator.name()));
        };
        let units = units(first, n, count, shape)?;
        columns.extend(to_f64(&if from_outputs {
            linear.adjoint(&units)?
        } else {
            serving.apply(&units)?
        })?);
    }
    if from_outputs {
        return Ok(columns);
    }
    Ok((0..m * d).map(|i| columns[(i % d) * m + i / d]).collect())
}

/// Unit vectors first..first + n of a space of `count` values.
fn units(first: usize, n: usize, count: usize, shape: &[usize]) -> Result<Tensor> {
    let mut values = vec![0.0; n * count];
    (0..n).for_each(|i| values[i * count + first + i] = 1.0);
    Ok(Tensor::from_vec(values, batched(n, shape), &Device::Cpu)?.to_dtype(DType::F64)?)
}
