//! Small instances of operators for the laws; some have parameters that differ from row to row. Each operator has its own.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use daps_core::{Address, Noise, Operator, Purpose, Result};
use toml::Table;

use crate::registry::build;

/// An operator with inputs that it accepts, for tests.
pub struct Example {
    /// The operator.
    pub operator: Arc<dyn Operator>,
    /// Inputs in f64; as many rows as the operator has parameters for, or a few.
    pub x: Tensor,
}

/// Rows of an example whose operator serves any number.
pub(crate) const ROWS: usize = 3;

pub(crate) fn normal(seed: u64, rows: usize, shape: &[usize]) -> Result<Tensor> {
    let at = Address::new(0, Purpose::Instance, 100);
    Noise::chains(seed, rows).normal(at, shape, DType::F64)
}

pub(crate) fn with_input(operator: Arc<dyn Operator>, seed: u64) -> Result<Example> {
    let x = normal(seed, operator.rows().unwrap_or(ROWS), operator.input_shape())?;
    Ok(Example { operator, x: (x * 0.5)? })
}

pub(crate) fn registered(name: &str, params: &str, shape: &[usize], seed: u64) -> Result<Example> {
    let params: Table = params.parse().unwrap_or_default();
    with_input(build(name, &params, shape, seed)?, seed)
}
