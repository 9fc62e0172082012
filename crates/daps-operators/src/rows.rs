//! Parameters that one row or all rows of a batch share, and the checks and loops that every operator needs.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use daps_core::tensors::{batched, check_rows};
use daps_core::{Address, Error, Noise, Purpose, Result, Row};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::num::Num;

/// One parameter set for all rows, or one per row.
#[derive(Debug)]
pub(crate) struct PerRow<T> {
    items: Vec<Arc<T>>,
}

impl<T> Clone for PerRow<T> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone() }
    }
}

impl<T> PerRow<T> {
    /// One item serves every row of any batch; several serve one row each.
    pub fn new(items: Vec<T>) -> Self {
        Self { items: items.into_iter().map(Arc::new).collect() }
    }

    pub fn get(&self, row: usize) -> &T {
        if self.items.len() == 1 { &self.items[0] } else { &self.items[row] }
    }

    pub fn rows(&self) -> Option<usize> {
        (self.items.len() != 1).then_some(self.items.len())
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|item| &**item)
    }

    /// The parameters of some rows; a shared set stays shared.
    pub fn select(&self, rows: &[usize]) -> Result<Self> {
        if self.items.len() == 1 {
            return Ok(self.clone());
        }
        let pick = |&row: &usize| match self.items.get(row) {
            Some(item) => Ok(Arc::clone(item)),
            None => Err(Error::invalid("selected row", format!("below {}", self.items.len()), row)),
        };
        Ok(Self { items: rows.iter().map(pick).collect::<Result<_>>()? })
    }
}

/// The batch size of `x`, after checking the shape of its rows and that an operator with per-row parameters has one for each.
pub(crate) fn check_batch(what: &str, x: &Tensor, shape: &[usize], rows: Option<usize>) -> Result<usize> {
    let batch = check_rows(what, x, shape)?;
    match rows {
        Some(n) if n != batch => Err(Error::shape(what, &batched(n, shape), x.dims())),
        _ => Ok(batch),
    }
}

/// Checks that a shape is `[channels, height, width]` with nothing empty, and gives the three.
pub(crate) fn image_shape(what: &str, shape: &[usize]) -> Result<(usize, usize, usize)> {
    match *shape {
        [c, h, w] if c * h * w > 0 => Ok((c, h, w)),
        _ => Err(Error::invalid(
            format!("image shape of {what}"),
            "[channels, height, width], none of them 0",
            format!("{shape:?}"),
        )),
    }
}

/// `f(plane index, input plane, output plane)` for every plane, in parallel.
pub(crate) fn each_plane<T: Num>(
    x: &[T],
    inputs: usize,
    out: &mut [T],
    outputs: usize,
    f: impl Fn(usize, &[T], &mut [T]) + Sync,
) {
    out.par_chunks_mut(outputs)
        .zip(x.par_chunks(inputs))
        .enumerate()
        .for_each(|(plane, (out, x))| f(plane, x, out));
}

/// The values of a tensor with the first dimension split off: `(rows, values of all rows)`, checked to be finite.
pub(crate) fn finite_values(what: &str, tensor: &Tensor) -> Result<Vec<f64>> {
    let tensor = tensor.to_dtype(DType::F64)?;
    daps_core::tensors::check_finite(what, &tensor)?;
    daps_core::tensors::to_f64(&tensor)
}

/// The random stream for masks, kernels and other data of problem `row` under `seed`.
pub(crate) fn instance_stream(seed: u64, row: u64, index: usize) -> ChaCha8Rng {
    let noise = Noise::new(seed, vec![Row { measurement: row, chain: 0 }]);
    noise.stream(0, Address::new(0, Purpose::Instance, index))
}

/// A uniform integer below `n`.
pub(crate) fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((daps_core::open01(rng) * n as f64) as usize).min(n.saturating_sub(1))
}

/// `count` distinct numbers below `n`, in random order (a partial Fisher–Yates shuffle).
pub(crate) fn choose_distinct(rng: &mut ChaCha8Rng, n: usize, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    for i in 0..count {
        let j = i + below(rng, n - i);
        all.swap(i, j);
    }
    all.truncate(count);
    all
}
