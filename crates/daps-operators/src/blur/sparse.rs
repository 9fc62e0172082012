//! Blur by a sparse kernel: one shifted multiply-add per element, over a padded plane.

use rayon::prelude::*;

use super::padded::Padding;
use super::{BlurKernel, Border};
use crate::num::{Num, Values};
use crate::taps::weighted_sum;

/// Output rows that one task computes.
const ROWS: usize = 16;

/// The elements of a kernel as offsets into a padded plane.
#[derive(Clone, Debug)]
pub(crate) struct Sparse {
    padding: Padding,
    /// Offsets into the padded image.
    forward: Vec<usize>,
    /// Offsets into the measurement with a frame of zeros.
    backward: Vec<usize>,
    weight: Values,
    frame: (usize, usize),
}

impl Sparse {
    pub fn new(kernel: &BlurKernel, border: Border, height: usize, width: usize) -> Self {
        let padding = Padding::new(kernel, border, height, width);
        let frame = (kernel.height - 1, kernel.width - 1);
        let (padded, framed) = (width + frame.1, width + 2 * frame.1);
        let taps = kernel.taps();
        Self {
            forward: taps.iter().map(|(a, b, _)| a * padded + b).collect(),
            backward: taps.iter().map(|(a, b, _)| (frame.0 - a) * framed + frame.1 - b).collect(),
            weight: Values::new(taps.iter().map(|t| t.2).collect()),
            padding,
            frame,
        }
    }

    pub fn apply<T: Num>(&self, x: &[T], out: &mut [T]) {
        let stride = self.padding.columns.len();
        let mut padded = vec![T::default(); self.padding.rows.len() * stride];
        for (p, row) in padded.chunks_mut(stride).enumerate() {
            self.padding.fill(x, p, row);
        }
        shifted_sum(&padded, stride, &self.forward, T::values(&self.weight), self.padding.width, out);
    }

    pub fn adjoint<T: Num>(&self, r: &[T], out: &mut [T]) {
        let (height, width) = (self.padding.height, self.padding.width);
        let stride = width + 2 * self.frame.1;
        let mut framed = vec![T::default(); (height + 2 * self.frame.0) * stride];
        for (i, row) in r.chunks(width).enumerate() {
            framed[(i + self.frame.0) * stride + self.frame.1..][..width].copy_from_slice(row);
        }
        let columns = self.padding.columns.len();
        let mut spread = vec![T::default(); self.padding.rows.len() * columns];
        shifted_sum(&framed, stride, &self.backward, T::values(&self.weight), columns, &mut spread);
        self.padding.fold(&spread, columns, out);
    }
}

/// out[i, j] = Σ weight · x[i · stride + offset + j].
fn shifted_sum<T: Num>(
    x: &[T],
    stride: usize,
    offsets: &[usize],
    weights: &[T],
    width: usize,
    out: &mut [T],
) {
    let arch = pulp::Arch::new();
    out.par_chunks_mut(ROWS * width).enumerate().for_each(|(block, out)| {
        arch.dispatch(|| {
            for (i, out) in out.chunks_mut(width).enumerate() {
                let x = &x[(block * ROWS + i) * stride..];
                weighted_sum(x, offsets.iter().copied().zip(weights), out);
            }
        });
    });
}
