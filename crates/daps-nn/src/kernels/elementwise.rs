//! Layout changes, sums, activations and resampling: loops bound by memory.
#![allow(unsafe_code)]

use crate::buffer::Buffer;
use crate::feature_map::Dims;
use crate::par::{self, Shared};
use crate::simd::{Isa, math, simd_fn};

/// Floats per job: large enough to pay for the hand-over, small enough to share.
const CHUNK: usize = 1 << 15;

/// Makes a buffer of `len` floats from parts: `fill(start, part)`.
pub(crate) fn build(len: usize, chunk: usize, fill: impl Fn(usize, &mut [f32]) + Send + Sync) -> Buffer {
    let mut out = Buffer::take(len);
    let shared = Shared::new(&mut out);
    par::chunks(len, chunk, |start, end| {
        // SAFETY: start..end is inside the buffer and belongs to this job.
        fill(start, unsafe { shared.slice(start, end - start) });
    });
    out
}

/// sum += x
pub(crate) fn add_assign(sum: &mut [f32], x: &[f32]) {
    let len = x.len().min(sum.len());
    let shared = Shared::new(sum);
    par::chunks(len, CHUNK, |start, end| {
        // SAFETY: start..end is inside the shorter of both and belongs to this job.
        let part = unsafe { shared.slice(start, end - start) };
        part.iter_mut().zip(&x[start..end]).for_each(|(s, x)| *s += x);
    });
}

/// a x + b y
pub(crate) fn combine(x: &[f32], a: f32, y: &[f32], b: f32) -> Buffer {
    build(x.len(), CHUNK, |start, out| {
        for ((o, x), y) in out.iter_mut().zip(&x[start..]).zip(&y[start..]) {
            *o = a * x + b * y;
        }
    })
}

/// a x
pub(crate) fn scaled(x: &[f32], a: f32) -> Buffer {
    build(x.len(), CHUNK, |start, out| out.iter_mut().zip(&x[start..]).for_each(|(o, x)| *o = a * x))
}

/// x y, element by element.
pub(crate) fn product(x: &[f32], y: &[f32]) -> Buffer {
    build(x.len(), CHUNK, |start, out| {
        for ((o, x), y) in out.iter_mut().zip(&x[start..]).zip(&y[start..]) {
            *o = x * y;
        }
    })
}

simd_fn! {
    /// y <- silu(x)
    ///
    /// # Safety
    /// `x` is valid for reads and `y` for writes of `n` floats.
    unsafe fn silu_part<S>(x: *const f32, y: *mut f32, n: usize) {
        let mut i = 0;
        while i < n {
            S::store_up_to(y.add(i), math::silu::<S>(S::load_up_to(x.add(i), n - i)), n - i);
            i += S::LANES;
        }
    }
}

simd_fn! {
    /// g <- g silu'(x)
    ///
    /// # Safety
    /// `x` is valid for reads and `g` for reads and writes of `n` floats; they do not overlap.
    unsafe fn silu_gradient_part<S>(x: *const f32, g: *mut f32, n: usize) {
        let mut i = 0;
        while i < n {
            let slope = math::silu_slope::<S>(S::load_up_to(x.add(i), n - i));
            S::store_up_to(g.add(i), S::mul(slope, S::load_up_to(g.add(i), n - i)), n - i);
            i += S::LANES;
        }
    }
}

/// x sigmoid(x)
pub(crate) fn silu(isa: Isa, x: &[f32]) -> Buffer {
    build(x.len(), CHUNK, |start, out| {
        let x = &x[start..][..out.len()];
        // SAFETY: both have as many floats.
        unsafe { silu_part(isa, x.as_ptr(), out.as_mut_ptr(), out.len()) }
    })
}

/// Turns the gradient of `silu(x)` into that of `x`, in place.
pub(crate) fn silu_gradient(isa: Isa, x: &[f32], gradient: &mut [f32]) {
    assert_eq!(x.len(), gradient.len(), "a gradient is as long as its input");
    let shared = Shared::new(gradient);
    par::chunks(x.len(), CHUNK, |start, end| {
        // SAFETY: start..end is inside both, and of the gradient belongs to this job.
        unsafe { silu_gradient_part(isa, x.as_ptr().add(start), shared.at(start), end - start) }
    });
}

/// Channels second to channels innermost.
pub(crate) fn nchw_to_nhwc(x: &[f32], d: Dims) -> Buffer {
    let (pixels, c) = (d.pixels(), d.channels);
    let mut out = Buffer::take(d.len());
    let shared = Shared::new(&mut out);
    let block = 64;
    let blocks = pixels.div_ceil(block);
    par::for_each(d.batch * blocks, |job| {
        let (n, start) = (job / blocks, job % blocks * block);
        let end = (start + block).min(pixels);
        // SAFETY: these pixels of this sample are inside `out` and belong to this job.
        let part = unsafe { shared.slice((n * pixels + start) * c, (end - start) * c) };
        for channel in 0..c {
            let from = &x[(n * c + channel) * pixels + start..][..end - start];
            for (i, value) in from.iter().enumerate() {
                part[i * c + channel] = *value;
            }
        }
    });
    out
}

/// Channels innermost to channels second.
pub(crate) fn nhwc_to_nchw(x: &[f32], d: Dims) -> Vec<f32> {
    let (pixels, c) = (d.pixels(), d.channels);
    let mut out = vec![0f32; d.len()];
    let shared = Shared::new(&mut out);
    let block = 16;
    let blocks = c.div_ceil(block);
    par::for_each(d.batch * blocks, |job| {
        let (n, start) = (job / blocks, job % blocks * block);
        for channel in start..(start + block).min(c) {
            // SAFETY: this channel of this sample is inside `out` and belongs to this job.
            let part = unsafe { shared.slice((n * c + channel) * pixels, pixels) };
            for (i, value) in part.iter_mut().enumerate() {
                *value = x[(n * pixels + i) * c + channel];
            }
        }
    });
    out
}

/// Every pixel twice in both directions, times `scale`.
pub(crate) fn upsample(x: &[f32], d: Dims, scale: f32) -> Buffer {
    let (w, c) = (d.width, d.channels);
    build(4 * d.len(), 2 * w * c, |start, out| {
        // One output row per job: row r of all samples' rows.
        let row = start / (2 * w * c);
        let (n, y) = (row / (2 * d.height), row % (2 * d.height) / 2);
        let from = &x[(n * d.height + y) * w * c..][..w * c];
        for (pixel, pair) in from.chunks_exact(c).zip(out.chunks_exact_mut(2 * c)) {
            let (left, right) = pair.split_at_mut(c);
            for ((l, r), x) in left.iter_mut().zip(right).zip(pixel) {
                *l = scale * x;
                *r = *l;
            }
        }
    })
}

/// Sums of 2x2 squares, times `scale`: the average pool with 1/4, the gradient of [`upsample`] with its scale.
/// `d` has even sides.
pub(crate) fn sum_squares(x: &[f32], d: Dims, scale: f32) -> Buffer {
    let (h, w, c) = (d.height / 2, d.width / 2, d.channels);
    build(d.batch * h * w * c, w * c, |start, out| {
        let row = start / (w * c);
        let (n, y) = (row / h, row % h);
        let top = &x[(n * d.height + 2 * y) * d.width * c..][..d.width * c];
        let bottom = &x[(n * d.height + 2 * y + 1) * d.width * c..][..d.width * c];
        for (i, pixel) in out.chunks_exact_mut(c).enumerate() {
            let (t, b) = (&top[2 * i * c..][..2 * c], &bottom[2 * i * c..][..2 * c]);
            for (j, o) in pixel.iter_mut().enumerate() {
                *o = scale * ((t[j] + t[c + j]) + (b[j] + b[c + j]));
            }
        }
    })
}

/// Channels start..start + count of every pixel.
pub(crate) fn narrow(x: &[f32], d: Dims, start: usize, count: usize) -> Buffer {
    build(d.batch * d.pixels() * count, 512 * count, |at, out| {
        for (i, pixel) in out.chunks_exact_mut(count).enumerate() {
            pixel.copy_from_slice(&x[(at / count + i) * d.channels + start..][..count]);
        }
    })
}

/// The channels of both maps, one after the other.
pub(crate) fn concat(x: &[f32], cx: usize, y: &[f32], cy: usize) -> Buffer {
    let c = cx + cy;
    build(x.len() + y.len(), 512 * c, |at, out| {
        for (i, pixel) in out.chunks_exact_mut(c).enumerate() {
            let p = at / c + i;
            pixel[..cx].copy_from_slice(&x[p * cx..][..cx]);
            pixel[cx..].copy_from_slice(&y[p * cy..][..cy]);
        }
    })
}

simd_fn! {
    /// The sum of each column of a matrix.
    ///
    /// # Safety
    /// `x` is valid for reads of `rows * columns` floats, `out` for writes of `columns`; they do not overlap.
    unsafe fn column_sums<S>(x: *const f32, rows: usize, columns: usize, out: *mut f32) {
        let mut i = 0;
        while i < columns {
            let n = columns - i;
            let quads = rows / 4 * 4;
            let mut sum = [S::splat(0.0); 4];
            for r in (0..quads).step_by(4) {
                for (j, sum) in sum.iter_mut().enumerate() {
                    *sum = S::add(*sum, S::load_up_to(x.add((r + j) * columns + i), n));
                }
            }
            for r in quads..rows {
                sum[0] = S::add(sum[0], S::load_up_to(x.add(r * columns + i), n));
            }
            S::store_up_to(out.add(i), S::add(S::add(sum[0], sum[1]), S::add(sum[2], sum[3])), n);
            i += S::LANES;
        }
    }
}

/// Sums over the pixels of each sample, [N][C].
pub(crate) fn channel_sums(isa: Isa, x: &[f32], d: Dims) -> Vec<f32> {
    let (pixels, c) = (d.pixels(), d.channels);
    let chunk = 256;
    let chunks = pixels.div_ceil(chunk);
    let partial = build(d.batch * chunks * c, c, |at, out| {
        let (n, part) = (at / c / chunks, at / c % chunks);
        let rows = &x[(n * pixels + part * chunk) * c..(n * pixels + ((part + 1) * chunk).min(pixels)) * c];
        // SAFETY: `rows` is whole pixels of `c` floats, and `out`, a buffer of its own, one of them.
        unsafe { column_sums(isa, rows.as_ptr(), rows.len() / c, c, out.as_mut_ptr()) }
    });
    let mut sums = vec![0f32; d.batch * c];
    for (n, row) in sums.chunks_exact_mut(c).enumerate() {
        for (channel, sum) in row.iter_mut().enumerate() {
            let of = |part: usize| f64::from(partial[(n * chunks + part) * c + channel]);
            *sum = (0..chunks).map(of).sum::<f64>() as f32;
        }
    }
    sums
}
