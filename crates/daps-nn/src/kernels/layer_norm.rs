//! Normalisation over the channels of each pixel, and softmax over them.
#![allow(unsafe_code)]

use crate::buffer::Buffer;
use crate::kernels::elementwise::build;
use crate::par::{self, Shared};
use crate::simd::{Isa, math, simd_fn};

/// Pixels per job; a fixed number, because the parameters' gradients are added up per job.
const CHUNK: usize = 64;

/// Mean and reciprocal standard deviation of one pixel's channels.
fn moments(x: &[f32], epsilon: f64) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

/// (x - mean) rstd weight + bias per pixel.
pub(crate) fn forward(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f64) -> Buffer {
    let c = weight.len();
    build(x.len(), CHUNK * c, |start, out| {
        for (row, y) in x[start..].chunks_exact(c).zip(out.chunks_exact_mut(c)) {
            let (mean, rstd) = moments(row, epsilon);
            let (mean, rstd) = (mean as f32, rstd as f32);
            for (i, y) in y.iter_mut().enumerate() {
                *y = (row[i] - mean) * rstd * weight[i] + bias[i];
            }
        }
    })
}

/// Gradients of input, weight and bias.
pub(crate) fn backward(x: &[f32], weight: &[f32], g: &[f32], epsilon: f64) -> (Buffer, Vec<f32>, Vec<f32>) {
    let c = weight.len();
    let pixels = x.len() / c;
    let jobs = pixels.div_ceil(CHUNK);
    let mut dx = Buffer::take(x.len());
    let mut partial = Buffer::zeroed(jobs * 2 * c);
    let (dx_shared, partial_shared) = (Shared::new(&mut dx), Shared::new(&mut partial));
    par::for_each(jobs, |job| {
        let (first, end) = (job * CHUNK, ((job + 1) * CHUNK).min(pixels));
        // SAFETY: `dx` has all pixels, `partial` sums for every job; these pixels and these sums are this job's.
        let (dx, sums) = unsafe {
            (dx_shared.slice(first * c, (end - first) * c), partial_shared.slice(job * 2 * c, 2 * c))
        };
        let (dw, db) = sums.split_at_mut(c);
        for p in first..end {
            let (row, g) = (&x[p * c..][..c], &g[p * c..][..c]);
            let (mean, rstd) = moments(row, epsilon);
            let (mean, rstd) = (mean as f32, rstd as f32);
            let (mut plain, mut normalised) = (0f64, 0f64);
            for i in 0..c {
                let xhat = (row[i] - mean) * rstd;
                dw[i] += g[i] * xhat;
                db[i] += g[i];
                plain += f64::from(g[i] * weight[i]);
                normalised += f64::from(g[i] * weight[i] * xhat);
            }
            let (plain, normalised) = ((plain / c as f64) as f32, (normalised / c as f64) as f32);
            for (i, dx) in dx[(p - first) * c..][..c].iter_mut().enumerate() {
                let xhat = (row[i] - mean) * rstd;
                *dx = rstd * (g[i] * weight[i] - plain - xhat * normalised);
            }
        }
    });
    let total = |offset: usize| {
        let sum = |i: usize| (0..jobs).map(|job| f64::from(partial[job * 2 * c + offset + i])).sum::<f64>();
        (0..c).map(|i| sum(i) as f32).collect::<Vec<f32>>()
    };
    let (dw, db) = (total(0), total(c));
    (dx, dw, db)
}

simd_fn! {
    /// Replaces a row by exp(scale (x - max)) and gives the largest element and the sum: `out` = [max, sum].
    ///
    /// # Safety
    /// `row` is valid for reads and writes of `n` floats.
    pub(crate) unsafe fn exp_row<S>(row: *mut f32, n: usize, scale: f32, out: &mut [f32; 2]) {
        let full = n / S::LANES * S::LANES;
        let mut largest = f32::NEG_INFINITY;
        if full > 0 {
            let mut m = S::load(row);
            let mut i = S::LANES;
            while i < full {
                m = S::max(m, S::load(row.add(i)));
                i += S::LANES;
            }
            largest = S::max_lane(m);
        }
        for i in full..n {
            largest = largest.max(*row.add(i));
        }
        let (shift, factor) = (S::splat(-largest * scale), S::splat(scale));
        let mut sum = S::splat(0.0);
        let mut i = 0;
        while i < full {
            let e = math::exp::<S>(S::fma(S::load(row.add(i)), factor, shift));
            sum = S::add(sum, e);
            S::store(row.add(i), e);
            i += S::LANES;
        }
        let mut total = S::sum(sum);
        if full < n {
            let e = math::exp::<S>(S::fma(S::load_part(row.add(full), n - full), factor, shift));
            S::store_part(row.add(full), e, n - full);
            for j in full..n {
                total += *row.add(j);
            }
        }
        *out = [largest, total];
    }
}

/// Softmax over the channels of each pixel.
pub(crate) fn softmax(isa: Isa, x: &[f32], c: usize) -> Buffer {
    build(x.len(), CHUNK * c, |start, out| {
        out.copy_from_slice(&x[start..][..out.len()]);
        for row in out.chunks_exact_mut(c) {
            let mut stats = [0f32; 2];
            // SAFETY: the row has `c` floats.
            unsafe { exp_row(isa, row.as_mut_ptr(), c, 1.0, &mut stats) };
            row.iter_mut().for_each(|v| *v /= stats[1]);
        }
    })
}

/// The gradient of the softmax's input from its output `y`: y (g - sum g y).
pub(crate) fn softmax_backward(y: &[f32], g: &[f32], c: usize) -> Buffer {
    build(y.len(), CHUNK * c, |start, out| {
        let rows = y[start..].chunks_exact(c).zip(g[start..].chunks_exact(c));
        for (out, (y, g)) in out.chunks_exact_mut(c).zip(rows) {
            let dot: f64 = y.iter().zip(g).map(|(y, g)| f64::from(*y) * f64::from(*g)).sum();
            for (i, out) in out.iter_mut().enumerate() {
                *out = y[i] * (g[i] - dot as f32);
            }
        }
    })
}
