//! Sparse one-dimensional maps (resampling, blur with borders folded in) and their separable application to planes.

use faer::Mat;
use rayon::prelude::*;

use crate::num::{Num, Values};

/// Output rows that one task computes.
const ROWS: usize = 16;
/// Values accumulated side by side in registers.
const LANES: usize = 32;

/// A sparse matrix in compressed rows.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    inputs: usize,
    start: Vec<usize>,
    index: Vec<usize>,
    weight: Values,
}

impl Taps {
    /// From `(input, weight)` lists, one per output; weights of the same input add up.
    pub fn new(inputs: usize, outputs: impl IntoIterator<Item = Vec<(usize, f64)>>) -> Self {
        let (mut start, mut index, mut weight) = (vec![0], Vec::new(), Vec::<f64>::new());
        for mut taps in outputs {
            taps.sort_by_key(|&(i, _)| i);
            let first = index.len();
            for (i, w) in taps {
                if index.len() > first && index.last() == Some(&i) {
                    *weight.last_mut().expect("as many weights as indices") += w;
                } else if w != 0.0 {
                    index.push(i);
                    weight.push(w);
                }
            }
            start.push(index.len());
        }
        Self { inputs, start, index, weight: Values::new(weight) }
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.start.len() - 1
    }

    fn row(&self, output: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let range = self.start[output]..self.start[output + 1];
        self.index[range.clone()].iter().copied().zip(self.weight.wide()[range].iter().copied())
    }

    pub fn transpose(&self) -> Self {
        let mut columns = vec![Vec::new(); self.inputs];
        for output in 0..self.outputs() {
            for (input, w) in self.row(output) {
                columns[input].push((output, w));
            }
        }
        Self::new(self.outputs(), columns)
    }

    /// The dense matrix, outputs x inputs.
    pub fn dense(&self) -> Mat<f64> {
        let mut matrix = Mat::zeros(self.outputs(), self.inputs);
        for output in 0..self.outputs() {
            for (input, w) in self.row(output) {
                matrix[(output, input)] = w;
            }
        }
        matrix
    }

    /// Applies the map down the rows of a plane: `out` row i is Σ weight · row of `x`, each `width` long.
    pub fn down<T: Num>(&self, x: &[T], width: usize, out: &mut [T]) {
        let weights = T::values(&self.weight);
        let arch = pulp::Arch::new();
        out.par_chunks_mut(ROWS * width).enumerate().for_each(|(block, out)| {
            arch.dispatch(|| {
                for (i, out) in out.chunks_mut(width).enumerate() {
                    let range = self.start[block * ROWS + i]..self.start[block * ROWS + i + 1];
                    let taps = self.index[range.clone()].iter().map(|&r| r * width).zip(&weights[range]);
                    weighted_sum(x, taps, out);
                }
            });
        });
    }
}

/// `out[j] = Σ weight · x[offset + j]`, added in the order of the taps.
#[inline(always)]
pub(crate) fn weighted_sum<'a, T: Num>(
    x: &[T],
    taps: impl Iterator<Item = (usize, &'a T)> + Clone,
    out: &mut [T],
) {
    let mut first = 0;
    let mut chunks = out.chunks_exact_mut(LANES);
    for out in &mut chunks {
        let mut sum = [T::default(); LANES];
        for (offset, &w) in taps.clone() {
            let x: &[T; LANES] = x[offset + first..][..LANES].try_into().expect("LANES values");
            for (sum, &x) in sum.iter_mut().zip(x) {
                *sum += w * x;
            }
        }
        out.copy_from_slice(&sum);
        first += LANES;
    }
    let rest = chunks.into_remainder();
    rest.fill(T::default());
    for (offset, &w) in taps {
        for (out, &x) in rest.iter_mut().zip(&x[offset + first..]) {
            *out += w * x;
        }
    }
}

/// The transpose of a `rows x columns` plane.
pub(crate) fn transpose<T: Num>(x: &[T], rows: usize, columns: usize, out: &mut [T]) {
    const TILE: usize = 16;
    out.par_chunks_mut(TILE * rows).enumerate().for_each(|(block, out)| {
        let first = block * TILE;
        let count = out.len() / rows;
        for r0 in (0..rows).step_by(TILE) {
            for r in r0..(r0 + TILE).min(rows) {
                let x = &x[r * columns + first..][..count];
                for (c, &v) in x.iter().enumerate() {
                    out[c * rows + r] = v;
                }
            }
        }
    });
}

/// One map along the height and one along the width, with their transposes.
#[derive(Clone, Debug)]
pub(crate) struct Separable {
    height: Taps,
    width: Taps,
    height_t: Taps,
    width_t: Taps,
}

impl Separable {
    pub fn new(height: Taps, width: Taps) -> Self {
        let (height_t, width_t) = (height.transpose(), width.transpose());
        Self { height, width, height_t, width_t }
    }

    pub fn height(&self) -> &Taps {
        &self.height
    }

    pub fn width(&self) -> &Taps {
        &self.width
    }

    /// H X Wᵀ of one plane.
    pub fn apply<T: Num>(&self, x: &[T], out: &mut [T]) {
        both(&self.height, &self.width, x, out);
    }

    /// Hᵀ Y W of one plane.
    pub fn adjoint<T: Num>(&self, y: &[T], out: &mut [T]) {
        both(&self.height_t, &self.width_t, y, out);
    }
}

/// Down the rows, then down the rows of the transpose: both passes run over contiguous lines.
fn both<T: Num>(height: &Taps, width: &Taps, x: &[T], out: &mut [T]) {
    let (rows, columns) = (height.outputs(), width.inputs());
    let mut down = vec![T::default(); rows * columns];
    height.down(x, columns, &mut down);
    let mut turned = vec![T::default(); rows * columns];
    transpose(&down, rows, columns, &mut turned);
    let mut across = vec![T::default(); rows * width.outputs()];
    width.down(&turned, rows, &mut across);
    transpose(&across, width.outputs(), rows, out);
}
