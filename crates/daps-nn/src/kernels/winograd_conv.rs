//! 3x3 convolution with stride 1 through Winograd's transforms: output, input gradient and weight gradient.
#![allow(unsafe_code)]

use super::gemm::{self, Product, TransposedProduct};
use super::winograd::{self, Finish, Grid, POINTS, Tiles};
use super::winograd_weights;
use super::{round_up, scratch_stride};
use crate::buffer::Buffer;
use crate::par::{self, Shared};
use crate::simd::Isa;

/// A map that is read, with its channels.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) channels: usize,
}

/// A map that is written, with its channels and what is done to it last.
pub(crate) struct Target<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) channels: usize,
    pub(crate) finish: Finish,
}

/// Transformed weights up to this size stay in a core's cache, and each block of tiles runs through all 36 products;
/// larger ones are read once per call instead, by many tiles at a time.
const CACHED_WEIGHTS: usize = 3 << 20;
/// Bytes of scratch that one block of tiles may use when it stays in one core's cache.
const BLOCK_BYTES: usize = 600 << 10;
/// Bytes of scratch when the threads share one large block.
const SHARED_BYTES: usize = 16 << 20;

struct Shape {
    grid: Grid,
    c: usize,
    c_stride: usize,
    k: usize,
    k_padded: usize,
    k_stride: usize,
}

/// Convolves the concatenated `sources` with `weights` (from [`winograd_weights::transform`]) into `targets`, whose
/// channels follow one another in the weights' output.
pub(crate) fn convolve(isa: Isa, grid: Grid, sources: &[Source], weights: &[f32], targets: &mut [Target]) {
    let c: usize = sources.iter().map(|s| s.channels).sum();
    let k: usize = targets.iter().map(|t| t.channels).sum();
    let k_padded = round_up(k, isa.nr());
    let shape =
        Shape { grid, c, c_stride: scratch_stride(c), k, k_padded, k_stride: scratch_stride(k_padded) };
    debug_assert_eq!(weights.len(), POINTS * c * k_padded);
    let zeros = Buffer::zeroed(scratch_stride(c));
    let outputs: Vec<(Shared, usize, Finish)> =
        targets.iter_mut().map(|t| (Shared::new(t.values), t.channels, t.finish)).collect();
    let per_tile = POINTS * (shape.c_stride + shape.k_stride) * size_of::<f32>();
    let job = Job { isa, shape: &shape, sources, weights, outputs: &outputs, zeros: &zeros };
    let (tiles, mr) = (grid.tiles(), isa.mr());
    let block = (BLOCK_BYTES / per_tile / mr).clamp(1, 4) * mr;
    if size_of_val(weights) <= CACHED_WEIGHTS && tiles >= 4 * block.min(mr) {
        // With few tiles, smaller blocks, so that the threads get equal shares.
        let block = if tiles >= 8 * block { block } else { mr };
        par::chunks(tiles, block, |first, end| job.run_block(first, end - first));
    } else {
        let block = round_up((SHARED_BYTES / per_tile).max(4 * mr), mr);
        for first in (0..tiles).step_by(block) {
            job.run_shared(first, block.min(tiles - first));
        }
    }
}

/// How the tiles of a block and the 36 points of a tile lie in scratch memory.
#[derive(Clone, Copy)]
struct Order {
    tiles: usize,
    /// Point by point (large blocks: a product reads adjacent rows) or tile by tile (small blocks in a core's cache:
    /// the transforms read and write adjacent memory).
    by_point: bool,
}

impl Order {
    /// Floats from one tile to the next, for rows of `stride` floats.
    fn tile(self, stride: usize) -> usize {
        if self.by_point { stride } else { POINTS * stride }
    }
    /// Floats from one point to the next.
    fn point(self, stride: usize) -> usize {
        if self.by_point { self.tiles * stride } else { stride }
    }
}

struct Job<'a> {
    isa: Isa,
    shape: &'a Shape,
    sources: &'a [Source<'a>],
    weights: &'a [f32],
    outputs: &'a [(Shared, usize, Finish)],
    zeros: &'a [f32],
}

impl Job<'_> {
    /// Transform, products and inverse transform of a few tiles on this thread.
    fn run_block(&self, first: usize, count: usize) {
        let s = self.shape;
        let mut scratch = Buffer::take(POINTS * count * (s.c_stride + s.k_stride));
        let (v, m) = scratch.split_at_mut(POINTS * count * s.c_stride);
        let (v, m) = (Shared::new(v), Shared::new(m));
        let order = Order { tiles: count, by_point: false };
        self.transform_in(v, first, (0, count), order);
        for point in 0..POINTS {
            self.multiply(v, m, point, (0, s.k_padded), order);
        }
        self.transform_out(m, first, (0, count), order);
    }

    /// The same three steps for many tiles, each step on all threads.
    fn run_shared(&self, first: usize, count: usize) {
        let s = self.shape;
        let mut scratch = Buffer::take(POINTS * count * (s.c_stride + s.k_stride));
        let (v, m) = scratch.split_at_mut(POINTS * count * s.c_stride);
        let (v, m) = (Shared::new(v), Shared::new(m));
        let order = Order { tiles: count, by_point: true };
        par::chunks(count, 2, |start, end| self.transform_in(v, first, (start, end), order));
        let columns = 4 * self.isa.nr();
        let groups = s.k_padded.div_ceil(columns);
        par::for_each(POINTS * groups, |i| {
            let (point, group) = (i / groups, i % groups);
            let range = (group * columns, ((group + 1) * columns).min(s.k_padded));
            self.multiply(v, m, point, range, order);
        });
        par::chunks(count, 2, |start, end| self.transform_out(m, first, (start, end), order));
    }

    /// Tiles start..end of the block that begins with tile `first` of the maps.
    fn tiles(
        &self,
        channels: usize,
        stride: usize,
        first: usize,
        range: (usize, usize),
        order: Order,
    ) -> Tiles {
        Tiles {
            grid: self.shape.grid,
            first: first + range.0,
            count: range.1 - range.0,
            channels,
            tile_stride: order.tile(stride),
            point_stride: order.point(stride),
        }
    }

    fn transform_in(&self, v: Shared, first: usize, range: (usize, usize), order: Order) {
        let stride = self.shape.c_stride;
        transform_sources(self.isa, self.sources, self.zeros, |channels, offset| {
            let t = self.tiles(channels, stride, first, range, order);
            // SAFETY: the tiles of `range` belong to this job.
            (t, unsafe { v.ptr().add(range.0 * order.tile(stride) + offset) })
        });
    }

    /// The product of one point, for the output channels from..to.
    fn multiply(&self, v: Shared, m: Shared, point: usize, (from, to): (usize, usize), order: Order) {
        let s = self.shape;
        // SAFETY: the block of this point and these channels belongs to this job, and both blocks have its shape.
        unsafe {
            let p = Product {
                a: v.ptr().add(point * order.point(s.c_stride)),
                lda: order.tile(s.c_stride),
                rows: order.tiles,
                inner: s.c,
                b: self.weights.as_ptr().add(point * s.c * s.k_padded + from * s.c),
                n: to.min(s.k) - from,
                c: m.ptr().add(point * order.point(s.k_stride) + from),
                ldc: order.tile(s.k_stride),
            };
            gemm::product(self.isa, &p);
        }
    }

    fn transform_out(&self, m: Shared, first: usize, range: (usize, usize), order: Order) {
        let stride = self.shape.k_stride;
        let mut offset = 0;
        for (output, channels, finish) in self.outputs {
            let t = self.tiles(*channels, stride, first, range, order);
            // SAFETY: these tiles' pixels belong to this job.
            unsafe {
                let block = m.ptr().add(range.0 * order.tile(stride) + offset);
                winograd::output_transform(self.isa, &t, block, output.ptr(), finish);
            }
            offset += channels;
        }
        debug_assert_eq!(offset, self.shape.k);
    }
}

/// Transforms the tiles of each source, one after the other: the vector that the first may write beyond its last
/// channel is overwritten by the second, and the second's falls into the row's slack.
fn transform_sources(
    isa: Isa,
    sources: &[Source],
    zeros: &[f32],
    place: impl Fn(usize, usize) -> (Tiles, *mut f32),
) {
    let mut offset = 0;
    for source in sources {
        let (tiles, block) = place(source.channels, offset);
        // SAFETY: the source covers the grid, and `place` gives a block with slack after its channels.
        unsafe { winograd::input_transform(isa, &tiles, source.values.as_ptr(), zeros.as_ptr(), block) };
        offset += source.channels;
    }
}

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
    fn transform(&self, v: Shared, d: Shared, first: usize, count: usize, zeros: &[f32]) {
        par::chunks(count, 4, |start, end| {
            let part = |channels, stride| Tiles {
                grid: self.grid,
                first: first + start,
                count: end - start,
                channels,
                tile_stride: stride,
                point_stride: count * stride,
            };
            transform_sources(self.isa, self.sources, zeros, |channels, offset| {
                // SAFETY: tiles start..end of the block belong to this job.
                (part(channels, self.c_stride), unsafe { v.ptr().add(start * self.c_stride + offset) })
            });
            // SAFETY: as above; the gradient covers the grid.
            unsafe {
                let block = d.ptr().add(start * self.k_stride);
                let t = part(self.gradient.channels, self.k_stride);
                let map = self.gradient.values.as_ptr();
                winograd::gradient_transform(self.isa, &t, map, zeros.as_ptr(), block);
            }
        });
    }

    /// The product of one point for input channels start..end, written to or added to `out`.
    ///
    /// # Safety
    /// `v` and `d` are blocks of `count` tiles; `out` has a row of padded output channels for each input channel
    /// and belongs to this thread.
    unsafe fn multiply(
        &self,
        (v, d, count): (Shared, Shared, usize),
        point: usize,
        (start, end): (usize, usize),
        out: *mut f32,
        accumulate: bool,
    ) {
        // SAFETY: promised by the caller.
        unsafe {
            let p = TransposedProduct {
                a: v.ptr().add(point * count * self.c_stride + start),
                lda: self.c_stride,
                m: end - start,
                inner: count,
                b: d.ptr().add(point * count * self.k_stride),
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
        factors.transform(v, d, 0, tiles, &zeros);
        sum_and_invert(&factors, (v, d, tiles), &mut out);
        return out;
    }
    let mut sum = Buffer::take(POINTS * c * k_padded);
    let u = Shared::new(&mut sum);
    for first in (0..tiles).step_by(block) {
        let count = block.min(tiles - first);
        let (v, d) = scratch.split_at_mut(POINTS * count * c_stride);
        let (v, d) = (Shared::new(v), Shared::new(d));
        factors.transform(v, d, first, count, &zeros);
        let rows = 64;
        let groups = c.div_ceil(rows);
        par::for_each(POINTS * groups, |i| {
            let (point, start) = (i / groups, i % groups * rows);
            // SAFETY: these rows of this point's sum belong to this job.
            unsafe {
                let out = u.ptr().add((point * c + start) * k_padded);
                factors.multiply((v, d, count), point, (start, (start + rows).min(c)), out, first > 0);
            }
        });
    }
    let shared = Shared::new(&mut out);
    par::chunks(c, winograd_weights::INVERSE_CHANNELS, |start, end| {
        // SAFETY: these input channels belong to this job, and the sums have this shape.
        unsafe {
            let from = u.ptr().add(start * k_padded);
            winograd_weights::inverse(isa, (from, c * k_padded), (k, c), (start, end), shared);
        }
    });
    out
}

/// With all tiles in one block the sums of a few input channels are complete at once and go straight back to 3x3:
/// the transformed gradient, four times the weights, is never in memory as a whole.
fn sum_and_invert(f: &Factors, (v, d, tiles): (Shared, Shared, usize), out: &mut [f32]) {
    let rows = 2 * winograd_weights::INVERSE_CHANNELS;
    let (k, shared) = (f.gradient.channels, Shared::new(out));
    par::chunks(f.c, rows, |start, end| {
        let point_stride = rows * f.k_padded;
        let mut sum = Buffer::take(POINTS * point_stride);
        for point in 0..POINTS {
            // SAFETY: `sum` is this job's own and has a row for each channel at each point.
            unsafe {
                let to = sum.as_mut_ptr().add(point * point_stride);
                f.multiply((v, d, tiles), point, (start, end), to, false);
            }
        }
        for first in (start..end).step_by(winograd_weights::INVERSE_CHANNELS) {
            let last = (first + winograd_weights::INVERSE_CHANNELS).min(end);
            // SAFETY: these input channels belong to this job, and `sum` has this shape.
            unsafe {
                let from = sum.as_ptr().add((first - start) * f.k_padded);
                winograd_weights::inverse(f.isa, (from, point_stride), (k, f.c), (first, last), shared);
            }
        }
    });
}
