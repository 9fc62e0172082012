//! Typed slices of tensors: the few helpers through which formulas written for `&[T]` meet candle's tensors.

use candle_core::{DType, Device, Storage, Tensor, WithDType};
use rayon::prelude::*;

use crate::{Error, Result};

/// The two floating-point types that formulas run in: f32 for images, f64 for closed forms.
pub trait Real:
    WithDType + num_traits::Float + Default + Send + Sync + std::iter::Sum + std::fmt::Debug
{
    /// From f64, rounding.
    fn of(value: f64) -> Self;
    /// To f64, exactly.
    fn wide(self) -> f64;
}

impl Real for f32 {
    #[inline]
    fn of(value: f64) -> Self {
        value as f32
    }
    #[inline]
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    #[inline]
    fn of(value: f64) -> Self {
        value
    }
    #[inline]
    fn wide(self) -> f64 {
        self
    }
}

/// Runs an expression with `$T` bound to the tensor's floating-point type: `with_real!(x.dtype(), T => f::<T>(x))`.
#[macro_export]
macro_rules! with_real {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::candle::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::candle::DType::F64 => {
                type $T = f64;
                $body
            }
            other => Err($crate::Error::invalid("tensor", "type f32 or f64", format!("{other:?}")).into()),
        }
    };
}

/// Lends the values of a tensor, without a copy where it is contiguous and on the CPU.
pub fn with_slice<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::invalid("tensor", "CPU storage", "another device"));
    };
    let start = layout.start_offset();
    Ok(f(&storage.as_slice::<T>()?[start..start + layout.shape().elem_count()]))
}

/// The values of a tensor in f64, whatever its type.
pub fn to_f64(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

/// A tensor of the given floating-point type from f64 values.
pub fn from_f64(values: Vec<f64>, shape: &[usize], dtype: DType) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?)
}

/// `[batch, shape…]`.
#[must_use]
pub fn batched(batch: usize, shape: &[usize]) -> Vec<usize> {
    std::iter::once(batch).chain(shape.iter().copied()).collect()
}

/// The batch size of `x`, after checking that every row has the given shape.
pub fn check_rows(what: &str, x: &Tensor, shape: &[usize]) -> Result<usize> {
    match x.dims().split_first() {
        Some((&batch, rest)) if rest == shape => Ok(batch),
        Some((&batch, _)) => Err(Error::shape(what, &batched(batch, shape), x.dims())),
        None => Err(Error::shape(what, &batched(1, shape), x.dims())),
    }
}

/// Refuses NaN and infinite values; tokens have none.
pub fn check_finite(what: &str, x: &Tensor) -> Result<()> {
    if x.dtype() == DType::U8 {
        return Ok(());
    }
    let count = with_real!(x.dtype(), T => with_slice(x, |x: &[T]| x.iter().filter(|v| !num_traits::Float::is_finite(**v)).count()))?;
    match count {
        0 => Ok(()),
        _ => Err(Error::NonFinite { what: what.to_owned(), count, of: x.elem_count() }),
    }
}

/// Applies `f(row index, input row, output row)` to every row of a batch, rows in parallel.
pub fn map_rows<T: Real>(
    what: &str,
    x: &Tensor,
    input: &[usize],
    output: &[usize],
    f: impl Fn(usize, &[T], &mut [T]) + Send + Sync,
) -> Result<Tensor> {
    let batch = check_rows(what, x, input)?;
    let (n, m) = (input.iter().product::<usize>(), output.iter().product::<usize>());
    let mut out = vec![T::default(); batch * m];
    with_slice(x, |x: &[T]| {
        out.par_chunks_mut(m.max(1)).enumerate().for_each(|(b, out)| f(b, &x[b * n..(b + 1) * n], out));
    })?;
    Ok(Tensor::from_vec(out, batched(batch, output), &Device::Cpu)?)
}

/// Every value times its factor, `[1 or rows, …]`. Within loops this takes the place of products of tensors, whose own threads
/// wait by spinning and so take the cores from ours: on two of them an exact draw of a masked image took half as long again.
pub fn scale_each(x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let shape = &x.dims()[1..];
    check_rows("factors", factors, shape)?;
    let factors = factors.to_dtype(x.dtype())?;
    with_real!(x.dtype(), T => with_slice(&factors, |factors: &[T]| {
        map_rows::<T>("values", x, shape, shape, |row, x, out| {
            let factors = &factors[row * x.len() % factors.len()..];
            for ((out, x), factor) in out.iter_mut().zip(x).zip(factors) {
                *out = *x * *factor;
            }
        })
    })?)
}

/// Applies `f(row index, row of a, row of b, output row)` to every row of two batches, rows in parallel.
pub fn zip_rows<T: Real>(
    what: &str,
    (a, a_shape): (&Tensor, &[usize]),
    (b, b_shape): (&Tensor, &[usize]),
    output: &[usize],
    f: impl Fn(usize, &[T], &[T], &mut [T]) + Send + Sync,
) -> Result<Tensor> {
    let batch = check_rows(what, a, a_shape)?;
    if check_rows(what, b, b_shape)? != batch {
        return Err(Error::shape(what, &batched(batch, b_shape), b.dims()));
    }
    let b = b.to_dtype(a.dtype())?;
    let (n, k) = (a_shape.iter().product::<usize>(), b_shape.iter().product::<usize>());
    let m = output.iter().product::<usize>();
    let mut out = vec![T::default(); batch * m];
    with_slice(a, |a: &[T]| {
        with_slice(&b, |b: &[T]| {
            out.par_chunks_mut(m.max(1))
                .enumerate()
                .for_each(|(i, out)| f(i, &a[i * n..(i + 1) * n], &b[i * k..(i + 1) * k], out));
        })
    })??;
    Ok(Tensor::from_vec(out, batched(batch, output), &Device::Cpu)?)
}

/// Values that one block of a parallel elementwise loop or reduction covers; fixed, so that no result depends on the thread count.
pub const BLOCK: usize = 4096;

/// Per row, the f64 sum of `f(a, b)` over the values of two equal-shaped batches; the order of addition is fixed.
pub fn sum_rows<T: Real>(a: &Tensor, b: &Tensor, f: impl Fn(T, T) -> f64 + Send + Sync) -> Result<Vec<f64>> {
    let batch = check_rows("rows to sum", b, &a.dims()[1..])?;
    let n = a.elem_count() / batch.max(1);
    with_slice(a, |a: &[T]| {
        with_slice(b, |b: &[T]| {
            (0..batch)
                .map(|i| {
                    let (a, b) = (&a[i * n..(i + 1) * n], &b[i * n..(i + 1) * n]);
                    let parts: Vec<f64> = a
                        .par_chunks(BLOCK)
                        .zip(b.par_chunks(BLOCK))
                        .map(|(a, b)| block_sum(a, b, &f))
                        .collect();
                    parts.iter().sum()
                })
                .collect()
        })
    })?
}

/// Σ f(a, b) over one block, in eight partial sums, so that no addition waits for the one before it.
pub(crate) fn block_sum<T: Real>(a: &[T], b: &[T], f: impl Fn(T, T) -> f64) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(&a, &b)| f(a, b)).sum();
    for (a, b) in a.zip(b) {
        for k in 0..LANES {
            sums[k] += f(a[k], b[k]);
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// Per row, the inner product of two equal-shaped batches, in f64.
pub fn dot_rows(a: &Tensor, b: &Tensor) -> Result<Vec<f64>> {
    with_real!(a.dtype(), T => sum_rows::<T>(a, b, |a, b| a.wide() * b.wide()))
}

/// Per row, the squared distance between two equal-shaped batches, in f64.
pub fn squared_distance(a: &Tensor, b: &Tensor) -> Result<Vec<f64>> {
    let b = b.to_dtype(a.dtype())?;
    with_real!(a.dtype(), T => sum_rows::<T>(a, &b, |a, b| { let d = a.wide() - b.wide(); d * d }))
}

/// `Σ coefficient[row] · term` over equal-shaped batches in one pass; a coefficient list has one entry or one per row.
pub fn combine(terms: &[(&[f64], &Tensor)]) -> Result<Tensor> {
    let Some((_, first)) = terms.first() else {
        return Err(Error::invalid("linear combination", "at least one term", "none"));
    };
    with_real!(first.dtype(), T => Ok(combine_typed::<T, ()>(first, terms, |_, _| ())?.0))
}

/// [`combine`], and per row the f64 inner product of the result with a batch (with itself if there is none), in one pass.
pub fn combine_dot(terms: &[(&[f64], &Tensor)], with: Option<&Tensor>) -> Result<(Tensor, Vec<f64>)> {
    let Some((_, first)) = terms.first() else {
        return Err(Error::invalid("linear combination", "at least one term", "none"));
    };
    let with = with.map(|t| t.to_dtype(first.dtype())).transpose()?;
    check_rows("inner product", with.as_ref().unwrap_or(first), &first.dims()[1..])?;
    let (out, parts) = with_real!(first.dtype(), T => match with {
        None => combine_typed::<T, f64>(first, terms, |_, out| block_sum(out, out, |a, b| a.wide() * b.wide())),
        Some(with) => with_slice(&with, |with: &[T]| {
            combine_typed::<T, f64>(first, terms, |start, out| {
                block_sum(&with[start..start + out.len()], out, |a, b| a.wide() * b.wide())
            })
        })?,
    })?;
    Ok((out, parts.iter().map(|blocks| blocks.iter().sum()).collect()))
}

/// The combination, and what `finish(position, values)` says of every block, row by row.
fn combine_typed<T: Real, S: Send>(
    first: &Tensor,
    terms: &[(&[f64], &Tensor)],
    finish: impl Fn(usize, &[T]) -> S + Send + Sync,
) -> Result<(Tensor, Vec<Vec<S>>)> {
    let batch = check_rows("linear combination", first, &first.dims()[1..])?;
    let n = first.elem_count() / batch.max(1);
    let mut tensors = Vec::with_capacity(terms.len());
    for (_, term) in terms {
        if term.dims() != first.dims() {
            return Err(Error::shape("linear combination", first.dims(), term.dims()));
        }
        tensors.push(term.to_dtype(first.dtype())?.to_device(&Device::Cpu)?.contiguous()?);
    }
    let guards: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut slices: Vec<&[T]> = Vec::with_capacity(guards.len());
    for (storage, layout) in &guards {
        let Storage::Cpu(storage) = &**storage else {
            return Err(Error::invalid("tensor", "CPU storage", "another device"));
        };
        slices.push(&storage.as_slice::<T>()?[layout.start_offset()..][..batch * n]);
    }
    let mut out = vec![T::default(); batch * n];
    let mut finished = Vec::with_capacity(batch);
    for (i, row) in out.chunks_mut(n.max(1)).enumerate() {
        let blocks = row.par_chunks_mut(BLOCK).enumerate().map(|(block, out)| {
            let start = i * n + block * BLOCK;
            let parts: Vec<(T, &[T])> = terms
                .iter()
                .zip(&slices)
                .map(|((c, _), slice)| (T::of(pick(c, i)), &slice[start..start + out.len()]))
                .collect();
            add_terms(out, &parts);
            finish(start, out)
        });
        finished.push(blocks.collect());
    }
    drop(guards);
    Ok((Tensor::from_vec(out, first.dims(), &Device::Cpu)?, finished))
}

/// out = Σ c · t, added from left to right. Up to four terms are summed before anything is stored, which saves a store and a
/// load of the output for every further term.
fn add_terms<T: Real>(out: &mut [T], terms: &[(T, &[T])]) {
    let n = out.len();
    match *terms {
        [] => {}
        [(a, x)] => (0..n).zip(x).for_each(|(k, &x)| out[k] = a * x),
        [(a, x), (b, y)] => {
            let (x, y) = (&x[..n], &y[..n]);
            (0..n).for_each(|k| out[k] = a * x[k] + b * y[k]);
        }
        [(a, x), (b, y), (c, z)] => {
            let (x, y, z) = (&x[..n], &y[..n], &z[..n]);
            (0..n).for_each(|k| out[k] = a * x[k] + b * y[k] + c * z[k]);
        }
        [(a, x), (b, y), (c, z), (d, w), ref rest @ ..] => {
            let (x, y, z, w) = (&x[..n], &y[..n], &z[..n], &w[..n]);
            (0..n).for_each(|k| out[k] = a * x[k] + b * y[k] + c * z[k] + d * w[k]);
            for (c, t) in rest {
                out.iter_mut().zip(*t).for_each(|(o, &t)| *o += *c * t);
            }
        }
    }
}

/// The entry for a row of a list that has one entry for all rows or one per row.
#[inline]
#[must_use]
pub fn pick<T: Copy>(values: &[T], row: usize) -> T {
    if values.len() == 1 { values[0] } else { values[row] }
}

/// Rows of a batch that are finite throughout; tokens always are.
pub fn finite_rows(x: &Tensor) -> Result<Vec<bool>> {
    if x.dtype() == DType::U8 {
        return Ok(vec![true; x.dims()[0]]);
    }
    let n = x.elem_count() / x.dims()[0].max(1);
    with_real!(x.dtype(), T => with_slice(x, |x: &[T]| {
        x.chunks(n.max(1)).map(|row| row.iter().all(|v| num_traits::Float::is_finite(*v))).collect()
    }))
}
