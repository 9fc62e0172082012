//! Group normalisation with its affine map, scale-shift and SiLU in one pass, and its gradient in two.
//!
//! Moments are taken per channel about a shift (the sample's first pixel), in f32 within 256 pixels and in f64
//! beyond, then combined per group in f64: a mean far from zero costs no digits.
#![allow(unsafe_code)]
// Sums stay in registers only when the loop over them unrolls, which plain indices make sure of.
#![allow(clippy::needless_range_loop)]

use super::winograd_conv::Source;
use crate::buffer::Buffer;
use crate::feature_map::Dims;
use crate::par::{self, Shared};
use crate::simd::{Isa, math, simd_fn};

/// Pixels whose sums are added up in f32; a fixed number, because it decides the rounding.
const CHUNK: usize = 256;

/// Rows of pixels of one source beside rows of the concatenated map.
#[derive(Clone, Copy)]
struct Rows {
    pixels: usize,
    channels: usize,
    /// Channels of the concatenated map.
    stride: usize,
    silu: bool,
}

simd_fn! {
    /// Sums of x - shift and of its square per channel: out is [2][channels].
    ///
    /// # Safety
    /// `x` is valid for reads of `pixels * channels` floats, `shift` of `channels`; `out` is valid for writes of `2 * channels` and overlaps
    /// neither.
    unsafe fn moments<S>(rows: &Rows, x: *const f32, shift: *const f32, out: *mut f32) {
        let c = rows.channels;
        let mut ch = 0;
        while ch < c {
            let n = c - ch;
            let s = S::load_up_to(shift.add(ch), n);
            // Four sums each, so that one addition need not wait for the last.
            let (mut sum, mut square) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
            let quads = rows.pixels / 4 * 4;
            for p in (0..quads).step_by(4) {
                for i in 0..4 {
                    let v = S::sub(S::load_up_to(x.add((p + i) * c + ch), n), s);
                    sum[i] = S::add(sum[i], v);
                    square[i] = S::fma(v, v, square[i]);
                }
            }
            for p in quads..rows.pixels {
                let v = S::sub(S::load_up_to(x.add(p * c + ch), n), s);
                sum[0] = S::add(sum[0], v);
                square[0] = S::fma(v, v, square[0]);
            }
            let sum = S::add(S::add(sum[0], sum[1]), S::add(sum[2], sum[3]));
            let square = S::add(S::add(square[0], square[1]), S::add(square[2], square[3]));
            S::store_up_to(out.add(ch), sum, n);
            S::store_up_to(out.add(c + ch), square, n);
            ch += S::LANES;
        }
    }
}

simd_fn! {
    /// y = act(x a + b) per channel.
    ///
    /// # Safety
    /// `x` is valid for reads of `pixels * channels` floats, `a` and `b` of `channels`. `y`, the source's first channel in the concatenated
    /// map, is valid for writes of `channels` floats at each of `pixels` pixels, `stride` apart; nothing overlaps them, and no other
    /// thread touches them.
    unsafe fn apply<S>(rows: &Rows, x: *const f32, a: *const f32, b: *const f32, y: *mut f32) {
        let c = rows.channels;
        for p in 0..rows.pixels {
            let mut ch = 0;
            while ch < c {
                let n = c - ch;
                let v = S::load_up_to(x.add(p * c + ch), n);
                let v = S::fma(v, S::load_up_to(a.add(ch), n), S::load_up_to(b.add(ch), n));
                let v = if rows.silu { math::silu::<S>(v) } else { v };
                S::store_up_to(y.add(p * rows.stride + ch), v, n);
                ch += S::LANES;
            }
        }
    }
}

simd_fn! {
    /// Replaces g by the gradient before the activation, g act'(x a + b), and adds up, per channel, that and its
    /// product with x - shift: out is [2][channels].
    ///
    /// # Safety
    /// `x` is valid for reads of `pixels * channels` floats, each of `coefficients` of `channels`. `g`, the source's first channel in the
    /// concatenated map, is valid for reads and writes of `channels` floats at each of `pixels` pixels, `stride` apart; `out` is valid
    /// for writes of `2 * channels`. Nothing overlaps these two, and no other thread touches them.
    unsafe fn gradient_sums<S>(rows: &Rows, x: *const f32, coefficients: [*const f32; 3], g: *mut f32, out: *mut f32) {
        let [a, b, shift] = coefficients;
        let c = rows.channels;
        let mut ch = 0;
        while ch < c {
            let n = c - ch;
            let (av, bv) = (S::load_up_to(a.add(ch), n), S::load_up_to(b.add(ch), n));
            let s = S::load_up_to(shift.add(ch), n);
            let (mut sum, mut product) = (S::splat(0.0), S::splat(0.0));
            for p in 0..rows.pixels {
                let v = S::load_up_to(x.add(p * c + ch), n);
                let at = g.add(p * rows.stride + ch);
                let mut gradient = S::load_up_to(at, n);
                if rows.silu {
                    gradient = S::mul(gradient, math::silu_slope::<S>(S::fma(v, av, bv)));
                    S::store_up_to(at, gradient, n);
                }
                sum = S::add(sum, gradient);
                product = S::fma(gradient, S::sub(v, s), product);
            }
            S::store_up_to(out.add(ch), sum, n);
            S::store_up_to(out.add(c + ch), product, n);
            ch += S::LANES;
        }
    }
}

simd_fn! {
    /// dx = g e + (x - shift) p + q per channel.
    ///
    /// # Safety
    /// `x` is valid for reads of `pixels * channels` floats, each of `coefficients` of `channels`. `g`, the source's first channel in the
    /// concatenated map, is valid for reads of `channels` floats at each of `pixels` pixels, `stride` apart. `dx` is valid for writes of
    /// `pixels * channels`; nothing overlaps it, and no other thread touches it.
    unsafe fn gradient_apply<S>(rows: &Rows, x: *const f32, g: *const f32, coefficients: [*const f32; 4], dx: *mut f32) {
        let [e, p, q, shift] = coefficients;
        let c = rows.channels;
        for row in 0..rows.pixels {
            let mut ch = 0;
            while ch < c {
                let n = c - ch;
                let v = S::sub(S::load_up_to(x.add(row * c + ch), n), S::load_up_to(shift.add(ch), n));
                let v = S::fma(v, S::load_up_to(p.add(ch), n), S::load_up_to(q.add(ch), n));
                let gradient = S::load_up_to(g.add(row * rows.stride + ch), n);
                S::store_up_to(dx.add(row * c + ch), S::fma(gradient, S::load_up_to(e.add(ch), n), v), n);
                ch += S::LANES;
            }
        }
    }
}

/// Mean and reciprocal standard deviation of each sample's groups, [N][groups].
#[derive(Clone)]
pub(crate) struct Stats {
    pub(crate) mean: Vec<f64>,
    pub(crate) rstd: Vec<f64>,
    pub(crate) groups: usize,
}

/// Per sample and channel: the affine map from input to pre-activation.
pub(crate) struct Affine {
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
}

/// Asserts that the sources make up a map of these dimensions.
fn check(d: Dims, sources: &[Source]) {
    assert_eq!(sources.iter().map(|s| s.channels).sum::<usize>(), d.channels, "channels of the sources");
    sources.iter().for_each(|s| s.check(d.batch * d.pixels()));
}

/// Adds up two sums per channel over all pixels, in f64: [N][2][C] of the concatenated map. `part(source, its first channel, sample,
/// pixels, out)` gives those of one source over a few pixels, as [2][channels]; no two calls have the same pixels of a source.
fn reduce(
    d: Dims,
    sources: &[Source],
    part: impl Fn(&Source, usize, usize, (usize, usize), &mut [f32]) + Sync,
) -> Vec<f64> {
    let (pixels, c) = (d.pixels(), d.channels);
    let chunks = pixels.div_ceil(CHUNK);
    let mut sums = vec![0f64; d.batch * 2 * c];
    let mut offset = 0;
    for source in sources {
        let width = 2 * source.channels;
        let mut partial = Buffer::take(d.batch * chunks * width);
        let shared = Shared::new(&mut partial);
        par::for_each(d.batch * chunks, |job| {
            let (n, first) = (job / chunks, job % chunks * CHUNK);
            // SAFETY: `partial` has `width` floats for every chunk, and this one is this job's.
            let out = unsafe { shared.slice(job * width, width) };
            part(source, offset, n, (first, (first + CHUNK).min(pixels)), out);
        });
        for (job, row) in partial.chunks_exact(width).enumerate() {
            let sum = &mut sums[job / chunks * 2 * c..][..2 * c];
            for (i, value) in row.iter().enumerate() {
                sum[i / source.channels * c + offset + i % source.channels] += f64::from(*value);
            }
        }
        offset += source.channels;
    }
    sums
}

/// Moments of every group of the concatenated sources.
pub(crate) fn statistics(isa: Isa, d: Dims, sources: &[Source], groups: usize, epsilon: f64) -> Stats {
    check(d, sources);
    let (pixels, c) = (d.pixels(), d.channels);
    let sums = reduce(d, sources, |source, _, n, (first, end), out| {
        let sample = &source.values[n * pixels * source.channels..][..pixels * source.channels];
        let rows = Rows { pixels: end - first, channels: source.channels, stride: c, silu: false };
        let x = &sample[first * source.channels..end * source.channels];
        // SAFETY: `x` is these pixels, the sample begins with one pixel, the shift, and `out` has two of them.
        unsafe { moments(isa, &rows, x.as_ptr(), sample.as_ptr(), out.as_mut_ptr()) }
    });
    let shifts = shifts(d, sources);
    let per_group = c / groups;
    let (mut mean, mut rstd) = (vec![0f64; d.batch * groups], vec![0f64; d.batch * groups]);
    let count = pixels as f64;
    for n in 0..d.batch {
        let (sum, square) = sums[n * 2 * c..][..2 * c].split_at(c);
        for g in 0..groups {
            let channels = g * per_group..(g + 1) * per_group;
            let channel_mean = |ch: usize| f64::from(shifts[n * c + ch]) + sum[ch] / count;
            let m = channels.clone().map(channel_mean).sum::<f64>() / per_group as f64;
            let spread = |ch: usize| {
                let within = square[ch] / count - (sum[ch] / count).powi(2);
                within.max(0.0) + (channel_mean(ch) - m).powi(2)
            };
            let variance = channels.map(spread).sum::<f64>() / per_group as f64;
            mean[n * groups + g] = m;
            rstd[n * groups + g] = 1.0 / (variance + epsilon).sqrt();
        }
    }
    Stats { mean, rstd, groups }
}

/// The first pixel of each sample, [N][C].
fn shifts(d: Dims, sources: &[Source]) -> Vec<f32> {
    let mut shifts = Vec::with_capacity(d.batch * d.channels);
    for n in 0..d.batch {
        for source in sources {
            shifts.extend_from_slice(&source.values[n * d.pixels() * source.channels..][..source.channels]);
        }
    }
    shifts
}

/// Normalises and activates.
pub(crate) fn forward(isa: Isa, d: Dims, sources: &[Source], affine: &Affine, silu: bool) -> Buffer {
    check(d, sources);
    let (pixels, c) = (d.pixels(), d.channels);
    assert!(affine.a.len() >= d.batch * c && affine.b.len() >= d.batch * c, "coefficients of every channel");
    let mut out = Buffer::take(d.len());
    let shared = Shared::new(&mut out);
    let chunks = pixels.div_ceil(CHUNK);
    par::for_each(d.batch * chunks, |job| {
        let (n, first) = (job / chunks, job % chunks * CHUNK);
        let mut offset = 0;
        for source in sources {
            let rows = Rows { pixels: CHUNK.min(pixels - first), channels: source.channels, stride: c, silu };
            let pixel = n * pixels + first;
            let (a, b) = (&affine.a[n * c + offset..], &affine.b[n * c + offset..]);
            let x = &source.values[pixel * source.channels..];
            // SAFETY: sources and coefficients were checked, and `out` has the same pixels of `c` channels; these are this job's.
            unsafe { apply(isa, &rows, x.as_ptr(), a.as_ptr(), b.as_ptr(), shared.at(pixel * c + offset)) };
            offset += source.channels;
        }
    });
    out
}

/// The sums that every gradient of the layer is made of, [N][C] each: of the gradient before the activation, and
/// of its product with the normalised input.
pub(crate) struct GradientSums {
    pub(crate) plain: Vec<f64>,
    pub(crate) normalised: Vec<f64>,
}

/// First pass of the gradient; turns `gradient` into the gradient before the activation.
pub(crate) fn backward_sums(
    isa: Isa,
    d: Dims,
    sources: &[Source],
    (stats, affine, silu): (&Stats, &Affine, bool),
    gradient: &mut [f32],
) -> GradientSums {
    check(d, sources);
    let (pixels, c) = (d.pixels(), d.channels);
    assert!(affine.a.len() >= d.batch * c && affine.b.len() >= d.batch * c, "coefficients of every channel");
    assert_eq!(gradient.len(), d.len(), "a gradient is as large as its map");
    let shifts = shifts(d, sources);
    let shared = Shared::new(gradient);
    let sums = reduce(d, sources, |source, offset, n, (first, end), out| {
        let rows = Rows { pixels: end - first, channels: source.channels, stride: c, silu };
        let (pixel, at) = (n * pixels + first, n * c + offset);
        let coefficients = [affine.a[at..].as_ptr(), affine.b[at..].as_ptr(), shifts[at..].as_ptr()];
        let x = &source.values[pixel * source.channels..];
        // SAFETY: sources, coefficients and gradient were checked; these pixels and channels of the gradient are this job's, and
        // `out` has two numbers for each channel.
        unsafe {
            let g = shared.at(pixel * c + offset);
            gradient_sums(isa, &rows, x.as_ptr(), coefficients, g, out.as_mut_ptr());
        }
    });
    let per_group = c / stats.groups;
    let (mut plain, mut normalised) = (vec![0f64; d.batch * c], vec![0f64; d.batch * c]);
    for i in 0..d.batch * c {
        let (n, ch) = (i / c, i % c);
        let g = n * stats.groups + ch / per_group;
        plain[i] = sums[n * 2 * c + ch];
        let about_mean = sums[n * 2 * c + c + ch] + (f64::from(shifts[i]) - stats.mean[g]) * plain[i];
        normalised[i] = about_mean * stats.rstd[g];
    }
    GradientSums { plain, normalised }
}

/// Second pass: the gradients of the sources. `gain` is d(pre-activation) / d(normalised input), [N][C].
pub(crate) fn backward_input(
    isa: Isa,
    d: Dims,
    sources: &[Source],
    (stats, sums, gain): (&Stats, &GradientSums, &[f64]),
    gradient: &[f32],
) -> Vec<Buffer> {
    check(d, sources);
    let (pixels, c) = (d.pixels(), d.channels);
    assert_eq!(gradient.len(), d.len(), "a gradient is as large as its map");
    let shifts = shifts(d, sources);
    let per_group = c / stats.groups;
    let count = (pixels * per_group) as f64;
    let (mut e, mut p, mut q) = (vec![0f32; d.batch * c], vec![0f32; d.batch * c], vec![0f32; d.batch * c]);
    for group in 0..d.batch * stats.groups {
        let channels = group * per_group..(group + 1) * per_group;
        let mean_plain = channels.clone().map(|i| gain[i] * sums.plain[i]).sum::<f64>() / count;
        let mean_normalised = channels.clone().map(|i| gain[i] * sums.normalised[i]).sum::<f64>() / count;
        let (mean, rstd) = (stats.mean[group], stats.rstd[group]);
        for i in channels {
            e[i] = (rstd * gain[i]) as f32;
            p[i] = (-rstd * rstd * mean_normalised) as f32;
            q[i] =
                (-rstd * mean_plain + (mean - f64::from(shifts[i])) * rstd * rstd * mean_normalised) as f32;
        }
    }
    let mut offset = 0;
    let mut out = Vec::new();
    for source in sources {
        let mut dx = Buffer::take(source.values.len());
        let shared = Shared::new(&mut dx);
        let chunks = pixels.div_ceil(CHUNK);
        par::for_each(d.batch * chunks, |job| {
            let (n, first) = (job / chunks, job % chunks * CHUNK);
            let rows =
                Rows { pixels: CHUNK.min(pixels - first), channels: source.channels, stride: c, silu: false };
            let (pixel, at) = (n * pixels + first, n * c + offset);
            let coefficients = [e[at..].as_ptr(), p[at..].as_ptr(), q[at..].as_ptr(), shifts[at..].as_ptr()];
            let (x, g) = (&source.values[pixel * source.channels..], &gradient[pixel * c + offset..]);
            // SAFETY: sources and gradient were checked, the coefficients have a number for every channel of every sample, and `dx`
            // is as large as its source; these pixels of it are this job's.
            unsafe {
                let dx = shared.at(pixel * source.channels);
                gradient_apply(isa, &rows, x.as_ptr(), g.as_ptr(), coefficients, dx);
            }
        });
        offset += source.channels;
        out.push(dx);
    }
    out
}
