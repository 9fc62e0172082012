//! The weight gradient of a 3x3 convolution with stride 1 through Winograd's transforms.
#![allow(unsafe_code)]

use super::gemm::{self, TransposedProduct};
use super::winograd::{self, Grid, POINTS, Tiles};
use super::winograd_conv::{SHARED_BYTES, Source, transform_sources};
use super::winograd_weights;
use super::{round_up, scratch_stride};
use crate::buffer::Buffer;
use crate::par::{self, Shared};
use crate::simd::Isa;

/// The two factors of the weight gradient for a run of tiles: transformed input and transformed output gradient.
struct Factors<'a> {
    isa: Isa,
    grid: Grid,
    sources: &'a [Source<'a>],
    gradient: Source<'a>,
    c: usize,
    c_stride: usize,
    k_padded: usize,
    k_stride: usize,
}

impl Factors<'_> {
    /// Transforms tiles first..first + count into `v` and `d`, on all threads.
    ///
    /// # Safety
    /// The maps cover the grid, and the tiles are in it. `v` has 36 x `count` rows of `c_stride` floats, `d` of `k_stride`; no other
    /// thread touches them. `zeros` has as many floats as a pixel of any map.
    unsafe fn transform(&self, v: Shared, d: Shared, first: usize, count: usize, zeros: &[f32]) {
        par::chunks(count, 4, |start, end| {
            let part = |channels, stride| Tiles {
                grid: self.grid,
                first: first + start,
                count: end - start,
                channels,
                tile_stride: stride,
                point_stride: count * stride,
            };
            // SAFETY: the caller promises the maps and the rows; tiles start..end are this job's.
            unsafe {
                transform_sources(self.isa, self.sources, zeros, |channels, offset| {
                    (part(channels, self.c_stride), v.ptr().wrapping_add(start * self.c_stride + offset))
                });
                let block = d.at(start * self.k_stride);
                let t = part(self.gradient.channels, self.k_stride);
                let map = self.gradient.values.as_ptr();
                winograd::gradient_transform(self.isa, &t, map, zeros.as_ptr(), block);
            }
        });
    }

    /// The product of one point for input channels start..end, written to or added to `out`.
    ///
    /// # Safety
    /// `v` has 36 x `count` rows of `c_stride` floats, `d` of `k_stride`, and no other thread writes them. start..end are input channels.
    /// `out` is valid for reads and writes of `end - start` rows of `k_padded` floats, which no other thread touches.
    unsafe fn multiply(
        &self,
        (v, d, count): (Shared, Shared, usize),
        point: usize,
        (start, end): (usize, usize),
        out: *mut f32,
        accumulate: bool,
    ) {
        // SAFETY: the caller promises the rows, and `c` floats of a row of `v` and `k_padded` of `d` are within its stride.
        unsafe {
            let p = TransposedProduct {
                a: v.at(point * count * self.c_stride + start),
                lda: self.c_stride,
                m: end - start,
                inner: count,
                b: d.at(point * count * self.k_stride),
                ldb: self.k_stride,
                n: self.k_padded,
                c: out,
                ldc: self.k_padded,
                accumulate,
            };
            gemm::transposed_product(self.isa, &p);
        }
    }
}

/// The gradient of the weights (out x in x 3 x 3), given the gradient of the output.
pub(crate) fn weight_gradient(isa: Isa, grid: Grid, sources: &[Source], gradient: Source) -> Vec<f32> {
    let c: usize = sources.iter().map(|s| s.channels).sum();
    let k = gradient.channels;
    sources.iter().chain([&gradient]).for_each(|s| s.check(grid.batch * grid.height * grid.width));
    let (k_padded, c_stride) = (round_up(k, isa.nr()), scratch_stride(c));
    let k_stride = scratch_stride(k_padded);
    let factors = Factors { isa, grid, sources, gradient, c, c_stride, k_padded, k_stride };
    let zeros = Buffer::zeroed(scratch_stride(c.max(k)));
    let per_tile = POINTS * (c_stride + k_stride) * size_of::<f32>();
    let tiles = grid.tiles();
    // Blocks of a few hundred tiles, so that reading and writing the sums costs little beside the products.
    let block = (SHARED_BYTES / 2 / per_tile).clamp(64, 512);
    // Padding columns may hold anything: a column of the sum depends on its own column of the gradient only.
    let mut scratch = Buffer::take(POINTS * block.min(tiles) * (c_stride + k_stride));
    let mut out = vec![0f32; k * c * 9];
    if tiles <= block {
        let (v, d) = scratch.split_at_mut(POINTS * tiles * c_stride);
        let (v, d) = (Shared::new(v), Shared::new(d));
        // SAFETY: the maps were checked, `v` and `d` were made for `tiles` tiles and are this thread's own, and so is `out`.
        unsafe {
            factors.transform(v, d, 0, tiles, &zeros);
            sum_and_invert(&factors, (v, d, tiles), &mut out);
        }
        return out;
    }
    let mut sum = Buffer::take(POINTS * c * k_padded);
    let u = Shared::new(&mut sum);
    for first in (0..tiles).step_by(block) {
        let count = block.min(tiles - first);
        let (v, d) = scratch.split_at_mut(POINTS * count * c_stride);
        let (v, d) = (Shared::new(v), Shared::new(d));
        // SAFETY: the maps were checked, and `v` and `d` have room for `count` tiles and are this thread's own.
        unsafe { factors.transform(v, d, first, count, &zeros) };
        let rows = 64;
        let groups = c.div_ceil(rows);
        par::for_each(POINTS * groups, |i| {
            let (point, start) = (i / groups, i % groups * rows);
            // SAFETY: `sum` has `c` rows of `k_padded` floats for each point; these rows of this point are this job's. No job writes
            // `v` or `d`.
            unsafe {
                let out = u.at((point * c + start) * k_padded);
                factors.multiply((v, d, count), point, (start, (start + rows).min(c)), out, first > 0);
            }
        });
    }
    let shared = Shared::new(&mut out);
    par::chunks(c, winograd_weights::INVERSE_CHANNELS, |start, end| {
        // SAFETY: `sum` has `c` rows of `k_padded` floats for each point, and `out` k x c x 9; these input channels are this job's.
        unsafe {
            let from = u.at(start * k_padded);
            winograd_weights::inverse(isa, (from, c * k_padded), (k, c), (start, end), shared);
        }
    });
    out
}

/// With all tiles in one block the sums of a few input channels are complete at once and go straight back to 3x3:
/// the transformed gradient, four times the weights, is never in memory as a whole.
///
/// # Safety
/// `v` has 36 x `tiles` rows of `c_stride` floats, `d` of `k_stride`, and no other thread writes them. `out` has k x c x 9 floats.
unsafe fn sum_and_invert(f: &Factors, (v, d, tiles): (Shared, Shared, usize), out: &mut [f32]) {
    let rows = 2 * winograd_weights::INVERSE_CHANNELS;
    let (k, shared) = (f.gradient.channels, Shared::new(out));
    par::chunks(f.c, rows, |start, end| {
        let point_stride = rows * f.k_padded;
        let mut sum = Buffer::take(POINTS * point_stride);
        for point in 0..POINTS {
            // SAFETY: the caller promises `v` and `d`; `sum`, this job's own, has `rows` rows of `k_padded` floats for each point.
            unsafe {
                let to = sum.as_mut_ptr().add(point * point_stride);
                f.multiply((v, d, tiles), point, (start, end), to, false);
            }
        }
        for first in (start..end).step_by(winograd_weights::INVERSE_CHANNELS) {
            let last = (first + winograd_weights::INVERSE_CHANNELS).min(end);
            // SAFETY: `sum` has `rows` rows of `k_padded` floats for each point, the first for `start`; these input channels of `out`
            // are this job's.
            unsafe {
                let from = sum.as_ptr().add((first - start) * f.k_padded);
                winograd_weights::inverse(f.isa, (from, point_stride), (k, f.c), (first, last), shared);
            }
        }
    });
}
