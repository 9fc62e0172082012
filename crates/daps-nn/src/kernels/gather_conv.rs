//! Convolution of any stride by gathering the taps of a few pixels into rows of one matrix product.
//!
//! The same loop computes an output and, one residue class of pixels at a time, an input's gradient.
#![allow(unsafe_code)]

use super::gemm::{self, Product, TransposedProduct};
use super::winograd::Finish;
use super::winograd_conv::{Source, Target};
use super::{round_up, scratch_stride};
use crate::buffer::Buffer;
use crate::par::{self, Shared};
use crate::simd::{Isa, simd_fn};

/// Sizes of a convolution with square kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) input: (usize, usize),
    pub(crate) output: (usize, usize),
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    /// Zeros before the first row and column.
    pub(crate) padding: usize,
}

/// Weights packed for each class of pixels.
pub(crate) struct Packed {
    classes: Vec<(Class, Buffer)>,
}

impl Packed {
    pub(crate) fn bytes(&self) -> usize {
        self.classes.iter().map(|(_, panels)| size_of_val(&panels[..])).sum()
    }
}

/// The pixels `step * i + start` of the target, and the taps of the source that reach them.
struct Class {
    start: (usize, usize),
    target_step: usize,
    source_step: usize,
    /// Index in the kernel, and offset of the source pixel.
    taps: Vec<(usize, isize, isize)>,
}

fn forward_class(g: &Geometry) -> Class {
    let pad = g.padding as isize;
    let taps = (0..g.kernel * g.kernel)
        .map(|tap| (tap, (tap / g.kernel) as isize - pad, (tap % g.kernel) as isize - pad))
        .collect();
    Class { start: (0, 0), target_step: 1, source_step: g.stride, taps }
}

fn backward_classes(g: &Geometry) -> Vec<Class> {
    let (stride, pad) = (g.stride as isize, g.padding as isize);
    // Output row o and tap r reach input row o * stride + r - pad.
    let reach = |residue: usize, r: usize| {
        let distance = residue as isize + pad - r as isize;
        (distance.rem_euclid(stride) == 0).then(|| distance.div_euclid(stride))
    };
    let classes = (0..g.stride * g.stride).map(|class| {
        let start = (class / g.stride, class % g.stride);
        let taps = (0..g.kernel * g.kernel)
            .filter_map(|tap| Some((tap, reach(start.0, tap / g.kernel)?, reach(start.1, tap % g.kernel)?)))
            .collect();
        Class { start, target_step: g.stride, source_step: 1, taps }
    });
    classes.collect()
}

/// Packs `weight` (out x in x kernel x kernel) for [`convolve`].
pub(crate) fn pack_forward(isa: Isa, g: &Geometry, weight: &[f32], c_out: usize, c_in: usize) -> Packed {
    let area = g.kernel * g.kernel;
    let class = forward_class(g);
    let packed =
        gemm::pack(isa, (area, c_in), c_out, |tap, c, o| weight[(o * c_in + c) * area + class.taps[tap].0]);
    Packed { classes: vec![(class, packed)] }
}

/// Packs `weight` (out x in x kernel x kernel) for the gradient of the input.
pub(crate) fn pack_backward(isa: Isa, g: &Geometry, weight: &[f32], c_out: usize, c_in: usize) -> Packed {
    let area = g.kernel * g.kernel;
    let pack = |class: Class| {
        let element = |tap: usize, o: usize, c: usize| weight[(o * c_in + c) * area + class.taps[tap].0];
        let packed = gemm::pack(isa, (class.taps.len(), c_out), c_in, element);
        (class, packed)
    };
    Packed { classes: backward_classes(g).into_iter().map(pack).collect() }
}

/// One class of pixels with the sizes of both sides.
struct Pass<'a> {
    isa: Isa,
    class: &'a Class,
    sources: &'a [Source<'a>],
    source_size: (usize, usize),
    /// Pixels of the class in one sample.
    size: (usize, usize),
    c: usize,
    batch: usize,
}

impl Pass<'_> {
    fn inner(&self) -> usize {
        self.class.taps.len() * self.c
    }
    fn pixels(&self) -> usize {
        self.batch * self.size.0 * self.size.1
    }
    /// Sample, row and column of a pixel of the class.
    fn place(&self, pixel: usize) -> (usize, usize, usize) {
        let (h, w) = self.size;
        (pixel / (h * w), pixel / w % h, pixel % w)
    }
    /// Whether the rows of the product are the source's pixels as they lie in memory.
    fn is_plain(&self) -> bool {
        let c = self.class;
        c.taps.len() == 1
            && (c.taps[0].1, c.taps[0].2) == (0, 0)
            && c.source_step == 1
            && c.target_step == 1
            && self.sources.len() == 1
            && self.size == self.source_size
    }
    /// Writes the taps of pixels first..first + rows as rows of a matrix.
    fn gather(&self, first: usize, rows: usize, out: &mut [f32], stride: usize) {
        let (h, w) = self.source_size;
        for i in 0..rows {
            let (sample, row, column) = self.place(first + i);
            let mut at = i * stride;
            for &(_, dy, dx) in &self.class.taps {
                let y = (row * self.class.source_step) as isize + dy;
                let x = (column * self.class.source_step) as isize + dx;
                let inside = y >= 0 && x >= 0 && (y as usize) < h && (x as usize) < w;
                for source in self.sources {
                    let to = &mut out[at..at + source.channels];
                    if inside {
                        let pixel = (sample * h + y as usize) * w + x as usize;
                        to.copy_from_slice(&source.values[pixel * source.channels..][..source.channels]);
                    } else {
                        to.fill(0.0);
                    }
                    at += source.channels;
                }
            }
        }
    }
}

/// Pixels per block: a multiple of the micro-kernel's rows whose taps stay in a core's cache.
fn block_rows(isa: Isa, inner: usize) -> usize {
    let rows = (384 << 10) / (inner.max(1) * size_of::<f32>());
    (rows / isa.mr()).clamp(2, 8) * isa.mr()
}

/// Convolves the concatenated `sources` into `targets`, whose channels follow one another in the weights' output.
/// `source_size` and `target_size` are rows and columns; `packed` says which way it goes.
pub(crate) fn convolve(
    isa: Isa,
    batch: usize,
    (sources, source_size): (&[Source], (usize, usize)),
    packed: &Packed,
    (targets, target_size): (&mut [Target], (usize, usize)),
) {
    let c: usize = sources.iter().map(|s| s.channels).sum();
    let k: usize = targets.iter().map(|t| t.channels).sum();
    sources.iter().for_each(|s| s.check(batch * source_size.0 * source_size.1));
    targets.iter().for_each(|t| t.check(batch, target_size.0 * target_size.1));
    let outputs: Vec<(Shared, usize, Finish)> =
        targets.iter_mut().map(|t| (Shared::new(t.values), t.channels, t.finish)).collect();
    for (class, weights) in &packed.classes {
        let count = |size: usize, start: usize| size.saturating_sub(start).div_ceil(class.target_step);
        let size = (count(target_size.0, class.start.0), count(target_size.1, class.start.1));
        let pass = Pass { isa, class, sources, source_size, size, c, batch };
        assert_eq!(weights.len(), pass.inner() * round_up(k, isa.nr()), "weights of these channels");
        if pass.pixels() > 0 {
            // SAFETY: the maps and the weights were just checked, and the targets are borrowed mutably.
            unsafe { run_pass(&pass, weights, &outputs, target_size) };
        }
    }
}

/// # Safety
/// Sources and outputs cover `batch` maps of their size, with what is added to them ([`Finish::check`]), and the weights are packed
/// for the channels of both. The pixels of the class are inside `target_size`, and no other thread touches them.
unsafe fn run_pass(
    pass: &Pass,
    weights: &[f32],
    outputs: &[(Shared, usize, Finish)],
    target_size: (usize, usize),
) {
    let (isa, inner, pixels) = (pass.isa, pass.inner(), pass.pixels());
    let k: usize = outputs.iter().map(|o| o.1).sum();
    let nr = isa.nr();
    let panels = k.div_ceil(nr);
    let block = block_rows(isa, inner);
    let blocks = pixels.div_ceil(block);
    // With few pixels the threads share the output channels too.
    let groups = if blocks >= 8 { 1 } else { (16 / blocks).clamp(1, panels) };
    let group_panels = panels.div_ceil(groups);
    par::for_each(blocks * groups, |job| {
        let (first, from) = (job / groups * block, job % groups * group_panels * nr);
        let to = (from + group_panels * nr).min(k);
        if from >= to {
            return;
        }
        let rows = block.min(pixels - first);
        let (lda, ldc) = (scratch_stride(inner), scratch_stride(group_panels * nr));
        let mut gathered = None;
        let (a, lda) = if pass.is_plain() {
            (pass.sources[0].values[first * pass.c..].as_ptr(), pass.c)
        } else {
            let rows_of_taps = gathered.insert(Buffer::take(rows * lda));
            pass.gather(first, rows, rows_of_taps, lda);
            (rows_of_taps.as_ptr(), lda)
        };
        let mut sums = Buffer::take(rows * ldc);
        // SAFETY: A is `rows` gathered rows, or as many pixels of a source that covers its map; the weights have `inner` floats for each
        // column of whole panels; a row of `sums`, this job's own, has room for the panels from..to.
        unsafe {
            let b = weights.as_ptr().add(from * inner);
            let n = to - from;
            gemm::product(isa, &Product { a, lda, rows, inner, b, n, c: sums.as_mut_ptr(), ldc });
        }
        // SAFETY: the caller promises the outputs; these channels of these pixels are this job's.
        unsafe { scatter(pass, &sums, ldc, (first, rows), (from, to), outputs, target_size) };
    });
}

/// Writes the sums of output channels from..to to their pixels and finishes them.
///
/// # Safety
/// The outputs cover maps of this size, with what is added to them. Pixels first..first + rows of the class are inside them, and
/// no other thread touches these channels of theirs.
unsafe fn scatter(
    pass: &Pass,
    sums: &[f32],
    ldc: usize,
    (first, rows): (usize, usize),
    (from, to): (usize, usize),
    outputs: &[(Shared, usize, Finish)],
    (h, w): (usize, usize),
) {
    let mut offset = 0;
    for (output, channels, finish) in outputs {
        let (low, high) = (from.max(offset), to.min(offset + channels));
        if low < high {
            for i in 0..rows {
                let (sample, row, column) = pass.place(first + i);
                let y = row * pass.class.target_step + pass.class.start.0;
                let x = column * pass.class.target_step + pass.class.start.1;
                let at = ((sample * h + y) * w + x) * channels + low - offset;
                let bias_at = sample * finish.bias_stride + low - offset;
                let sum = &sums[i * ldc + low - from..][..high - low];
                // SAFETY: the caller promises these channels of this pixel, in the output and in what is added to it.
                unsafe {
                    finish_row(pass.isa, sum.as_ptr(), output.ptr(), (at, bias_at, high - low), finish);
                }
            }
        }
        offset += channels;
    }
}

simd_fn! {
    /// out[at..] = (sum + bias[bias_at..] + residual[at..]) * scale for `n` channels.
    ///
    /// # Safety
    /// With `place` = (at, bias_at, n): `sum` is valid for reads of `n` floats, `out` for writes of `n` floats from `at` on, and bias
    /// and residual, if there are any, are long enough. Nothing overlaps `out`, and no other thread touches these floats of it.
    unsafe fn finish_row<S>(sum: *const f32, out: *mut f32, place: (usize, usize, usize), f: &Finish) {
        let (at, bias_at, n) = place;
        let (bias, residual) = (f.bias_ptr(), f.residual_ptr());
        let mut i = 0;
        while i < n {
            let left = n - i;
            let mut y = S::load_up_to(sum.add(i), left);
            if !bias.is_null() {
                y = S::add(y, S::load_up_to(bias.add(bias_at + i), left));
            }
            if !residual.is_null() {
                y = S::add(y, S::load_up_to(residual.add(at + i), left));
            }
            S::store_up_to(out.add(at + i), S::mul(y, S::splat(f.scale)), left);
            i += S::LANES;
        }
    }
}

/// The gradient of the weights (out x in x kernel x kernel), given the gradient of the output.
pub(crate) fn weight_gradient(isa: Isa, g: &Geometry, sources: &[Source], gradient: Source) -> Vec<f32> {
    let c: usize = sources.iter().map(|s| s.channels).sum();
    let (k, area) = (gradient.channels, g.kernel * g.kernel);
    let class = forward_class(g);
    let pass = Pass { isa, class: &class, sources, source_size: g.input, size: g.output, c, batch: g.batch };
    let (inner, pixels, k_padded) = (pass.inner(), pass.pixels(), round_up(k, isa.nr()));
    let (a_stride, b_stride) = (scratch_stride(inner), scratch_stride(k_padded));
    // The size of a block is part of the result's rounding, so it depends on nothing but the layer's shape.
    let block = ((4 << 20) / ((a_stride + b_stride) * size_of::<f32>())).clamp(64, 1024);
    let mut sum = Buffer::take(inner * k_padded);
    // Padding columns may hold anything: a column of the sum depends on its own column of the gradient only.
    let mut scratch = Buffer::take(block.min(pixels) * (a_stride + b_stride));
    for first in (0..pixels).step_by(block) {
        let rows = block.min(pixels - first);
        let (a, b) = scratch.split_at_mut(rows * a_stride);
        let (a, b, u) = (Shared::new(a), Shared::new(b), Shared::new(&mut sum));
        par::chunks(rows, 16, |start, end| {
            // SAFETY: `a` and `b` have room for `rows` rows; start..end of them are this job's.
            let (a, b) = unsafe {
                (
                    a.slice(start * a_stride, (end - start) * a_stride),
                    b.slice(start * b_stride, (end - start) * b_stride),
                )
            };
            pass.gather(first + start, end - start, a, a_stride);
            for i in start..end {
                let from = &gradient.values[(first + i) * k..][..k];
                b[(i - start) * b_stride..][..k].copy_from_slice(from);
            }
        });
        let group = 32;
        par::chunks(inner, group, |start, end| {
            // SAFETY: `a` and `b`, which no job writes, have `rows` rows of at least `inner` and `k_padded` floats; `sum` has `inner` of
            // `k_padded`, and start..end of them are this job's.
            unsafe {
                let p = TransposedProduct {
                    a: a.at(start),
                    lda: a_stride,
                    m: end - start,
                    inner: rows,
                    b: b.ptr(),
                    ldb: b_stride,
                    n: k_padded,
                    c: u.at(start * k_padded),
                    ldc: k_padded,
                    accumulate: first > 0,
                };
                gemm::transposed_product(isa, &p);
            }
        });
    }
    to_oihw(&sum, (k, k_padded), c, area)
}

/// From rows of taps and channels, columns of output channels, to out x in x kernel x kernel.
fn to_oihw(sum: &[f32], (k, k_padded): (usize, usize), c: usize, area: usize) -> Vec<f32> {
    let inner = c * area;
    let mut out = vec![0f32; k * inner];
    let shared = Shared::new(&mut out);
    par::chunks(k, 8, |start, end| {
        // SAFETY: `out` has `inner` floats for each output channel; start..end are this job's.
        let part = unsafe { shared.slice(start * inner, (end - start) * inner) };
        for (o, kernels) in part.chunks_exact_mut(inner).enumerate() {
            for (channel, taps) in kernels.chunks_exact_mut(area).enumerate() {
                for (tap, value) in taps.iter_mut().enumerate() {
                    *value = sum[(tap * c + channel) * k_padded + start + o];
                }
            }
        }
    });
    out
}
