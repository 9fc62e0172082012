//! Borders as a linear map: padding a plane by its border rule, and folding a padded plane back (the transpose).

use super::{BlurKernel, Border};
use crate::num::Num;

/// Source rows and columns of a padded plane.
#[derive(Clone, Debug)]
pub(crate) struct Padding {
    pub height: usize,
    pub width: usize,
    pub rows: Vec<usize>,
    pub columns: Vec<usize>,
    above: usize,
    left: usize,
}

impl Padding {
    /// As far as the kernel reaches.
    pub fn new(kernel: &BlurKernel, border: Border, height: usize, width: usize) -> Self {
        Self {
            height,
            width,
            rows: border.sources(height, kernel.above, kernel.below()),
            columns: border.sources(width, kernel.left, kernel.right()),
            above: kernel.above,
            left: kernel.left,
        }
    }

    /// None: for transforms that are periodic themselves.
    pub fn none(height: usize, width: usize) -> Self {
        let (rows, columns) = ((0..height).collect(), (0..width).collect());
        Self { height, width, rows, columns, above: 0, left: 0 }
    }

    /// Row `p` of the padded plane.
    pub fn fill<T: Num>(&self, x: &[T], p: usize, out: &mut [T]) {
        let row = &x[self.rows[p] * self.width..][..self.width];
        let inner = self.left..self.left + self.width;
        out[inner.clone()].copy_from_slice(row);
        for q in (0..inner.start).chain(inner.end..self.columns.len()) {
            out[q] = row[self.columns[q]];
        }
    }

    /// The transpose of padding: adds every padded value to its source.
    pub fn fold<T: Num>(&self, padded: &[T], stride: usize, out: &mut [T]) {
        let inner = self.left..self.left + self.width;
        let add = |out: &mut [T], row: &[T]| {
            out.iter_mut().zip(&row[inner.clone()]).for_each(|(o, &v)| *o += v);
            for q in (0..inner.start).chain(inner.end..self.columns.len()) {
                out[self.columns[q]] += row[q];
            }
        };
        out.fill(T::default());
        for (p, &source) in self.rows.iter().enumerate() {
            add(&mut out[source * self.width..][..self.width], &padded[p * stride..]);
        }
        debug_assert!(self.above + self.height <= self.rows.len());
    }

    /// The largest number of padded positions that one pixel stands at: the squared norm of padding.
    pub fn multiplicity(&self) -> usize {
        let most = |sources: &[usize], n: usize| {
            let mut count = vec![0usize; n];
            sources.iter().for_each(|&s| count[s] += 1);
            count.into_iter().max().unwrap_or(0)
        };
        most(&self.rows, self.height) * most(&self.columns, self.width)
    }
}
