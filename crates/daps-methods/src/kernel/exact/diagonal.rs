//! Exact draw for a diagonal operator (masks): every value on its own.

use daps_core::candle::Tensor;
use daps_core::tensors::{BLOCK, Real, pick, with_slice};
use daps_core::{
    Address, Beta, ChainInfo, Covariance, Error, Gaussian, Noise, Purpose, Result, Step, with_real,
};
use rayon::prelude::*;

/// Values of a quantity that is one number per row, or one per value.
enum Field<T> {
    Rows(Vec<f64>),
    Values { values: Vec<T>, shared: bool },
}

impl<T: Real> Field<T> {
    fn of(tensor: &Tensor, like: &Tensor) -> Result<Self> {
        let values = tensor.to_dtype(like.dtype())?.flatten_all()?.to_vec1()?;
        Ok(Self::Values { values, shared: tensor.dims()[0] == 1 && like.dims()[0] != 1 })
    }

    #[inline]
    fn at(&self, row: usize, n: usize, k: usize) -> f64 {
        match self {
            Self::Rows(rows) => pick(rows, row),
            Self::Values { values, shared } => values[if *shared { k } else { row * n + k }].wide(),
        }
    }
}

pub(super) fn draw(
    mean: &Tensor,
    covariance: &Covariance,
    likelihood: &Gaussian,
    entries: &[Vec<f64>],
    noise: &Noise,
    step: &Step,
) -> Result<(Tensor, ChainInfo)> {
    let z = noise.normal(Address::new(step.index, Purpose::Kernel, 0), &mean.dims()[1..], mean.dtype())?;
    let x = with_real!(mean.dtype(), T => values::<T>(mean, covariance, likelihood, entries, &z))?;
    Ok((x, super::info(mean.dims()[0], 0)))
}

/// N(m, 1/h) with h = 1/c + a²/β², m = (mean/c + a y/β²)/h; where a = 0 the measurement is ignored.
fn values<T: Real>(
    mean: &Tensor,
    covariance: &Covariance,
    likelihood: &Gaussian,
    entries: &[Vec<f64>],
    z: &Tensor,
) -> Result<Tensor> {
    let variance = match covariance {
        Covariance::Scalar(c) => Field::<T>::Rows(c.clone()),
        Covariance::Diagonal(c) => Field::of(c, mean)?,
        Covariance::Dense(_) | Covariance::Frequency(_) => {
            return Err(Error::missing("the diagonal draw", "a scalar or diagonal spread", "this estimate"));
        }
    };
    let beta = match likelihood.beta() {
        Beta::Rows(b) => Field::<T>::Rows(b.clone()),
        Beta::Each(b) => Field::of(b, mean)?,
    };
    let y = likelihood.y().to_dtype(mean.dtype())?;
    let n = mean.elem_count() / mean.dims()[0].max(1);
    let mut out = vec![T::default(); mean.elem_count()];
    with_slice(mean, |mean: &[T]| {
        with_slice(&y, |y: &[T]| {
            with_slice(z, |z: &[T]| {
                for (row, out) in out.chunks_mut(n.max(1)).enumerate() {
                    let entries = if entries.len() == 1 { &entries[0] } else { &entries[row] };
                    out.par_chunks_mut(BLOCK).enumerate().for_each(|(block, out)| {
                        for (k, out) in (block * BLOCK..).zip(out) {
                            let at = row * n + k;
                            let (a, c) = (entries[k], variance.at(row, n, k));
                            let mean = mean[at].wide();
                            let (center, spread) = if a == 0.0 {
                                (mean, c.sqrt())
                            } else {
                                let b = beta.at(row, n, k);
                                let v = 1.0 / (1.0 / c + (a / b).powi(2));
                                (v * (mean / c + a * y[at].wide() / (b * b)), v.sqrt())
                            };
                            *out = T::of(center + spread * z[at].wide());
                        }
                    });
                }
            })
        })
    })???;
    Ok(Tensor::from_vec(out, mean.dims(), mean.device())?)
}
