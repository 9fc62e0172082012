//! Small instances of every operator for the laws; some have parameters that differ from row to row.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use daps_core::{Address, Noise, Operator, Purpose, Result};
use toml::Table;

use super::{Example, build};
use crate::blur::{Blur, Border, Kernel, motion_kernel};
use crate::{Dense, Inpainting, random_mask};

/// Rows of an example whose operator serves any number.
const ROWS: usize = 3;

fn normal(seed: u64, rows: usize, shape: &[usize]) -> Result<Tensor> {
    let at = Address::new(0, Purpose::Instance, 100);
    Noise::chains(seed, rows).normal(at, shape, DType::F64)
}

fn with_input(operator: Arc<dyn Operator>, seed: u64) -> Result<Example> {
    let x = normal(seed, operator.rows().unwrap_or(ROWS), operator.input_shape())?;
    Ok(Example { operator, x: (x * 0.5)? })
}

fn registered(name: &str, params: &str, shape: &[usize], seed: u64) -> Result<Example> {
    let params: Table = params.parse().unwrap_or_default();
    with_input(build(name, &params, shape, seed)?, seed)
}

pub(super) fn super_resolution([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let factor = 2 + seed as usize % 3;
    let shape = [c, h.div_ceil(factor) * factor, w.div_ceil(factor) * factor];
    registered("super_resolution", &format!("factor = {factor}"), &shape, seed)
}

pub(super) fn inpaint_box(size: [usize; 3], seed: u64) -> Result<Example> {
    registered("inpaint_box", "", &size.map(|n| n.max(2)), seed)
}

pub(super) fn inpaint_random(size: [usize; 3], seed: u64) -> Result<Example> {
    registered("inpaint_random", "", &size, seed)
}

/// A mask per row and channel.
pub(super) fn inpaint([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let masks =
        (0..(ROWS * c) as u64).map(|k| random_mask(h, w, 0.4, seed + k)).collect::<Result<Vec<_>>>()?;
    let mask = Tensor::cat(&masks, 0)?.reshape((ROWS, c, h, w))?;
    with_input(Arc::new(Inpainting::new(&[c, h, w], &mask)?), seed)
}

/// Odd seeds: periodic.
fn border(seed: u64) -> Border {
    if seed % 2 == 1 { Border::Circular } else { Border::Reflect }
}

pub(super) fn gaussian_blur([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let params = match border(seed) {
        Border::Reflect => "size = 5\nstd = 0.8",
        Border::Circular => "size = 5\nstd = 0.8\nborder = 'circular'",
    };
    registered("gaussian_blur", params, &[c, h.max(3), w.max(3)], seed)
}

pub(super) fn motion_blur([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    registered("motion_blur", "size = 7", &[c, h.max(5), w.max(5)], seed)
}

/// A kernel per row: a shake, an even-sided one of both signs, and an outer product.
pub(super) fn blur([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let mixed = [0.2, -0.1, 0.4, 0.0, 0.3, 0.1, 0.05, -0.2];
    let outer = [0.1, 0.2, 0.1, 0.3, 0.6, 0.3];
    let kernels = [motion_kernel(5, 0.5, seed, 1)?, Kernel::new(&mixed, 4, 2)?, Kernel::new(&outer, 2, 3)?];
    let shape = [c, h.max(5), w.max(5)];
    with_input(Arc::new(Blur::new(&shape, &kernels, border(seed))?), seed)
}

pub(super) fn phase_retrieval(size: [usize; 3], seed: u64) -> Result<Example> {
    let params = format!("oversample = {}.0", seed % 5);
    registered("phase_retrieval", &params, &size, seed)
}

pub(super) fn nonlinear_blur([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    registered("nonlinear_blur", "size = 7", &[c, h.max(5), w.max(5)], seed)
}

pub(super) fn hdr(size: [usize; 3], seed: u64) -> Result<Example> {
    registered("hdr", "", &size, seed)
}

pub(super) fn mri([_, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    registered("mri", "coils = 3\nacceleration = 2.0", &[2, h, w], seed)
}

pub(super) fn xor(size: [usize; 3], seed: u64) -> Result<Example> {
    pairs("xor", size, seed)
}

pub(super) fn and(size: [usize; 3], seed: u64) -> Result<Example> {
    pairs("and", size, seed)
}

fn pairs(name: &str, size: [usize; 3], seed: u64) -> Result<Example> {
    let example = registered(name, "", &size.map(|n| n.max(2)), seed)?;
    let x = example.x.ge(0.0)?.to_dtype(DType::F64)?;
    Ok(Example { x, ..example })
}

pub(super) fn toy2d(_: [usize; 3], seed: u64) -> Result<Example> {
    registered("toy2d", "", &[2], seed)
}

/// A wide or tall matrix per row.
pub(super) fn dense([_, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let matrix = normal(seed + 1, ROWS, &[h, w])?;
    with_input(Arc::new(Dense::new(&[w], &matrix)?), seed)
}
