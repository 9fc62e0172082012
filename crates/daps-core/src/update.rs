//! A batch updated in its own memory, for solvers that touch the same few vectors in every iteration.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp2, Layout, Tensor};
use rayon::prelude::*;

use crate::tensors::{BLOCK, Real, block_sum, pick};
use crate::{Error, Result};

/// x ← a x + b y, written where x is, so that clones of x change with it. A coefficient list has one entry or one per row; y
/// must have memory of its own.
pub fn update(x: &Tensor, a: &[f64], y: &Tensor, b: &[f64]) -> Result<()> {
    run(x, a, y, b, false).map(|_| ())
}

/// [`update`], and per row the f64 inner product of the new x with itself, in one pass.
pub fn update_dot(x: &Tensor, a: &[f64], y: &Tensor, b: &[f64]) -> Result<Vec<f64>> {
    run(x, a, y, b, true)
}

fn run(x: &Tensor, a: &[f64], y: &Tensor, b: &[f64], square: bool) -> Result<Vec<f64>> {
    if x.dims() != y.dims() {
        return Err(Error::shape("update", x.dims(), y.dims()));
    }
    let y = y.to_dtype(x.dtype())?.contiguous()?;
    let op = Update { rows: x.dims()[0], a, b, square, squares: RefCell::default() };
    x.inplace_op2(&y, &op)?;
    Ok(op.squares.into_inner())
}

struct Update<'a> {
    rows: usize,
    a: &'a [f64],
    b: &'a [f64],
    square: bool,
    squares: RefCell<Vec<f64>>,
}

impl Update<'_> {
    fn rows<T: Real>(&self, x: &mut [T], y: &[T]) {
        let n = (x.len() / self.rows.max(1)).max(1);
        let square = self.square;
        let rows = x.chunks_mut(n).zip(y.chunks(n)).enumerate().map(|(i, (x, y))| {
            let (a, b) = (T::of(pick(self.a, i)), T::of(pick(self.b, i)));
            let parts = x.par_chunks_mut(BLOCK).zip(y.par_chunks(BLOCK)).map(|(x, y)| {
                x.iter_mut().zip(y).for_each(|(x, &y)| *x = a * *x + b * y);
                if square { block_sum(x, x, |a, b| a.wide() * b.wide()) } else { 0.0 }
            });
            parts.collect::<Vec<f64>>().iter().sum()
        });
        *self.squares.borrow_mut() = rows.collect();
    }
}

impl InplaceOp2 for Update<'_> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        y: &CpuStorage,
        y_layout: &Layout,
    ) -> candle_core::Result<()> {
        let (Some((x0, x1)), Some((y0, y1))) = (x_layout.contiguous_offsets(), y_layout.contiguous_offsets())
        else {
            return Err(candle_core::Error::Msg("an update of values that are not contiguous".to_owned()));
        };
        match (x, y) {
            (CpuStorage::F32(x), CpuStorage::F32(y)) => self.rows(&mut x[x0..x1], &y[y0..y1]),
            (CpuStorage::F64(x), CpuStorage::F64(y)) => self.rows(&mut x[x0..x1], &y[y0..y1]),
            _ => {
                return Err(candle_core::Error::Msg(
                    "an update of values that are not f32 or f64".to_owned(),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::tensors::{combine, combine_dot, to_f64};

    #[test]
    fn updates_are_combinations_to_the_bit() {
        for dtype in [DType::F32, DType::F64] {
            let x = Tensor::randn(0.0, 1.0, (2, 3, 1500), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let y = Tensor::randn(0.0, 1.0, (2, 3, 1500), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let (a, b) = ([1.0], [0.3, -0.7]);
            let (expected, squares) = combine_dot(&[(&a, &x), (&b, &y)], None).unwrap();
            let twice = combine(&[(&b, &expected), (&a, &y)]).unwrap();
            assert_eq!(update_dot(&x, &a, &y, &b).unwrap(), squares);
            assert_eq!(to_f64(&x).unwrap(), to_f64(&expected).unwrap());
            update(&x, &b, &y, &a).unwrap();
            assert_eq!(to_f64(&x).unwrap(), to_f64(&twice).unwrap());
        }
    }

    #[test]
    fn what_cannot_be_updated_is_refused() {
        let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        assert!(update(&x, &[1.0], &x, &[1.0]).is_err());
        assert!(update(&x, &[1.0], &x.narrow(1, 0, 2).unwrap(), &[1.0]).is_err());
        let turned = x.t().unwrap();
        assert!(update(&turned, &[1.0], &turned.zeros_like().unwrap(), &[1.0]).is_err());
    }
}
