//! The orthonormal cosine transform (DCT-II) of lines of one length: fast, or by its matrix where few coefficients are wanted.

use std::fmt;
use std::sync::{Arc, OnceLock};

use faer::{MatMut, MatRef};
use rayon::prelude::*;
use rustdct::{DctNum, DctPlanner, TransformType2And3};

use crate::linalg::{Factor, product};
use crate::tensors::Real;

/// Lines that one task transforms: gathered side by side from a plane, they share its cache lines.
const LINES: usize = 16;

/// The same for products with the matrix, which are efficient only when they are large.
const PRODUCT_LINES: usize = 64;

/// The matrix is used for up to so many coefficients times log₂ of the length. A fast transform takes about 2.5 n log₂ n operations one
/// by one; a product with p rows takes p n multiply-adds, about five of them in the time of one such operation.
const FEW: f64 = 12.0;

/// Lines of one length.
pub(crate) struct Line {
    length: usize,
    /// Coefficients up to which the matrix is used.
    few: usize,
    single: OnceLock<Tools<f32>>,
    double: OnceLock<Tools<f64>>,
}

/// What transforms take in a number type, made when it is first used.
pub(crate) struct Tools<T> {
    fast: Arc<dyn TransformType2And3<T>>,
    /// The first rows of the matrix, row-major: row k is the cosine of frequency k.
    matrix: OnceLock<Vec<T>>,
}

pub(crate) trait Number: Factor + DctNum {
    /// The tools in this type.
    fn tools(line: &Line) -> &Tools<Self>;
}

macro_rules! number {
    ($t:ty, $field:ident) => {
        impl Number for $t {
            fn tools(line: &Line) -> &Tools<Self> {
                let plan =
                    || Tools { fast: DctPlanner::new().plan_dct2(line.length), matrix: OnceLock::new() };
                line.$field.get_or_init(plan)
            }
        }
    };
}
number!(f32, single);
number!(f64, double);

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({})", self.length)
    }
}

impl Line {
    pub fn new(length: usize) -> Self {
        let few = (FEW * (length as f64).log2()) as usize;
        Self { length, few: few.min(length), single: OnceLock::new(), double: OnceLock::new() }
    }

    /// `[from][lines]` to `[lines][to]`: every line transformed and laid down, so that a plane transformed twice stands as before.
    /// Forward `from` is the length, back `to` is; the other is how many of the first coefficients there are.
    pub fn turn<T: Number>(&self, x: &[T], from: usize, out: &mut [T], to: usize, back: bool) {
        if from.min(to) <= self.few {
            self.by_matrix(x, from, out, to, back);
        } else {
            self.fast(x, from, out, to, back);
        }
    }

    fn fast<T: Number>(&self, x: &[T], from: usize, out: &mut [T], to: usize, back: bool) {
        let (n, lines, transform) = (self.length, x.len() / from, &T::tools(self).fast);
        let norm = |of: f64| T::of((of / n as f64).sqrt());
        // Back, the transform takes half of the first coefficient.
        let (first, others) = (norm(if back { 4.0 } else { 1.0 }), norm(2.0));
        let scale = |line: &mut [T]| {
            line[0] *= first;
            line[1..].iter_mut().for_each(|v| *v *= others);
        };
        each_line(x, lines, n, out, to, transform.get_scratch_len(), |line, scratch| {
            if back {
                scale(line);
                transform.process_dct3_with_scratch(line, scratch);
            } else {
                transform.process_dct2_with_scratch(line, scratch);
                scale(line);
            }
        });
    }

    fn by_matrix<T: Number>(&self, x: &[T], from: usize, out: &mut [T], to: usize, back: bool) {
        let (n, lines, few) = (self.length, x.len() / from, from.min(to));
        let make = || (0..self.few * n).map(|at| T::of(cosine(n, at / n, at % n))).collect();
        let rows = &T::tools(self).matrix.get_or_init(make)[..few * n];
        let rows = MatRef::from_row_major_slice(rows, few, n);
        let right = if back { rows } else { rows.transpose() };
        let x = MatRef::from_row_major_slice(x, from, lines).transpose();
        out.par_chunks_mut(PRODUCT_LINES * to).enumerate().for_each(|(block, out)| {
            let count = out.len() / to;
            let x = x.subrows(block * PRODUCT_LINES, count);
            product(MatMut::from_row_major_slice_mut(out, count, to), x, right);
        });
    }
}

/// Changes the columns of `x`, `lines` of them, each filled up with zeros to `n` values, and lays down the first `to` values of each.
pub(crate) fn each_line<T: Real>(
    x: &[T],
    lines: usize,
    n: usize,
    out: &mut [T],
    to: usize,
    scratch: usize,
    change: impl Fn(&mut [T], &mut [T]) + Sync,
) {
    out.par_chunks_mut(LINES * to).enumerate().for_each(|(block, out)| {
        let (start, count) = (block * LINES, out.len() / to);
        let mut gathered = vec![T::default(); count * n];
        for (i, row) in x.chunks(lines).enumerate() {
            for (line, v) in row[start..start + count].iter().enumerate() {
                gathered[line * n + i] = *v;
            }
        }
        let mut scratch = vec![T::default(); scratch];
        for (line, out) in gathered.chunks_mut(n).zip(out.chunks_mut(to)) {
            change(line, &mut scratch);
            out.copy_from_slice(&line[..to]);
        }
    });
}

/// An entry of the matrix.
fn cosine(n: usize, k: usize, i: usize) -> f64 {
    let norm = if k == 0 { 1.0 } else { 2.0f64 };
    (norm / n as f64).sqrt() * (std::f64::consts::PI * k as f64 * (2 * i + 1) as f64 / (2 * n) as f64).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fast transform is its matrix, in both directions, of all coefficients and of the first of them, for lengths of every kind.
    #[test]
    fn both_ways_agree() {
        fn check<T: Number>(tolerance: f64) {
            for n in [1, 2, 3, 7, 16, 31, 64, 100, 257] {
                let line = Line { few: n, ..Line::new(n) };
                let lines = 37;
                let values =
                    |count: usize| -> Vec<T> { (0..count).map(|i| T::of((i as f64 * 1.7).sin())).collect() };
                for first in [1, n / 2, n].into_iter().filter(|p| *p > 0) {
                    for (from, to, back) in [(n, first, false), (first, n, true)] {
                        let x = values(from * lines);
                        let mut out = [(); 2].map(|()| vec![T::default(); lines * to]);
                        line.by_matrix(&x, from, &mut out[0], to, back);
                        line.fast(&x, from, &mut out[1], to, back);
                        let far = out[0].iter().zip(&out[1]).map(|(a, b)| (a.wide() - b.wide()).abs());
                        let far = far.fold(0.0, f64::max);
                        assert!(far < tolerance, "{n}, {first}, {back}: {far}");
                    }
                }
            }
        }
        check::<f64>(1e-13);
        check::<f32>(1e-5);
    }

    /// Few coefficients are taken by the matrix at any length, all of a long line by the fast transform.
    #[test]
    fn the_cheaper_way_is_taken() {
        let (short, long) = (Line::new(64), Line::new(4000));
        assert_eq!(short.few, 64);
        assert!((100..200).contains(&long.few));
    }
}
