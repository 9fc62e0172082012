//! The singular value decomposition of a separable map, from two small ones: A = (U_h ⊗ U_w)(S_h ⊗ S_w)(V_h ⊗ V_w)ᵀ.

use daps_core::linalg::{product, thin_svd};
use daps_core::{Error, Result};
use faer::{Mat, MatMut, MatRef};
use rayon::prelude::*;

use crate::num::{Num, Values};
use crate::taps::Separable;

/// Rows of the result that one task computes; fixed, so that no sum depends on the thread count.
const ROWS: usize = 64;

/// A thin singular value decomposition in f64, its factors kept in both number types.
#[derive(Clone, Debug)]
pub(crate) struct Svd {
    pub outputs: usize,
    pub inputs: usize,
    pub singular: Vec<f64>,
    /// `outputs x modes`, row-major.
    pub u: Values,
    /// `inputs x modes`, row-major.
    pub v: Values,
}

impl Svd {
    pub fn new(matrix: &Mat<f64>) -> Result<Self> {
        let Some((u, singular, v)) = thin_svd(matrix) else {
            return Err(Error::invalid("matrix", "one whose singular values converge", "one whose do not"));
        };
        let modes = singular.len();
        let rows = |m: Mat<f64>| {
            let values = (0..m.nrows()).flat_map(|i| (0..modes).map(move |j| (i, j))).map(|(i, j)| m[(i, j)]);
            Values::new(values.collect())
        };
        Ok(Self { outputs: matrix.nrows(), inputs: matrix.ncols(), singular, u: rows(u), v: rows(v) })
    }

    pub fn modes(&self) -> usize {
        self.singular.len()
    }

    pub fn u_mat<T: Num>(&self) -> MatRef<'_, T> {
        MatRef::from_row_major_slice(T::values(&self.u), self.outputs, self.modes())
    }

    pub fn v_mat<T: Num>(&self) -> MatRef<'_, T> {
        MatRef::from_row_major_slice(T::values(&self.v), self.inputs, self.modes())
    }
}

/// The decomposition of one plane's separable map.
#[derive(Clone, Debug)]
pub(crate) struct Kronecker {
    height: Svd,
    width: Svd,
}

impl Kronecker {
    pub fn new(map: &Separable) -> Result<Self> {
        Ok(Self { height: Svd::new(&map.height().dense())?, width: Svd::new(&map.width().dense())? })
    }

    /// Modes of one plane.
    pub fn modes(&self) -> usize {
        self.height.modes() * self.width.modes()
    }

    /// Singular values of `planes` planes, each in the order of a `modes_h x modes_w` grid.
    pub fn singular(&self, planes: usize) -> Vec<f64> {
        let grid = self.height.singular.iter().flat_map(|a| self.width.singular.iter().map(move |b| a * b));
        let grid: Vec<f64> = grid.collect();
        grid.repeat(planes)
    }

    /// The largest singular value.
    pub fn largest(&self) -> f64 {
        let first = |svd: &Svd| svd.singular.first().copied().unwrap_or(0.0);
        first(&self.height) * first(&self.width)
    }

    /// f(λ) at every eigenvalue λ of AᵀA, for a square map, whose modes span the whole space.
    pub fn spectral_map<T: Num>(&self, f: &(dyn Fn(f64) -> f64 + Sync), x: &[T], out: &mut [T]) {
        debug_assert_eq!(self.modes(), x.len());
        let mut modes = vec![T::default(); self.modes()];
        self.v_t(x, &mut modes);
        for (row, a) in modes.chunks_mut(self.width.modes()).zip(&self.height.singular) {
            for (c, b) in row.iter_mut().zip(&self.width.singular) {
                *c *= T::of(f((a * b).powi(2)));
            }
        }
        self.v(&modes, out);
    }

    pub fn v_t<T: Num>(&self, x: &[T], out: &mut [T]) {
        sandwich(self.height.v_mat().transpose(), x, self.width.v_mat(), out);
    }

    pub fn v<T: Num>(&self, c: &[T], out: &mut [T]) {
        sandwich(self.height.v_mat(), c, self.width.v_mat().transpose(), out);
    }

    pub fn u_t<T: Num>(&self, y: &[T], out: &mut [T]) {
        sandwich(self.height.u_mat().transpose(), y, self.width.u_mat(), out);
    }

    pub fn u<T: Num>(&self, c: &[T], out: &mut [T]) {
        sandwich(self.height.u_mat(), c, self.width.u_mat().transpose(), out);
    }
}

/// out = L X R, a block of rows per task.
fn sandwich<T: Num>(left: MatRef<'_, T>, x: &[T], right: MatRef<'_, T>, out: &mut [T]) {
    let x = MatRef::from_row_major_slice(x, left.ncols(), right.nrows());
    out.par_chunks_mut(ROWS * right.ncols()).enumerate().for_each(|(block, out)| {
        let count = out.len() / right.ncols();
        let mut half = vec![T::default(); count * right.nrows()];
        let left = left.subrows(block * ROWS, count);
        let mut half = MatMut::from_row_major_slice_mut(&mut half, count, right.nrows());
        let out = MatMut::from_row_major_slice_mut(out, count, right.ncols());
        product(half.as_mut(), left, x);
        product(out, half.as_ref(), right);
    });
}
