//! 3x3 convolution with stride 1 through Winograd's transforms: output and input gradient.
#![allow(unsafe_code)]

use super::gemm::{self, Product};
use super::winograd::{self, Finish, Grid, POINTS, Tiles};
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

impl Source<'_> {
    /// Asserts that it has as many pixels.
    pub(crate) fn check(&self, pixels: usize) {
        assert_eq!(self.values.len(), pixels * self.channels, "a map of {pixels} pixels");
    }
}

/// A map that is written, with its channels and what is done to it last.
pub(crate) struct Target<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) channels: usize,
    pub(crate) finish: Finish<'a>,
}

impl Target<'_> {
    /// Asserts that it has as many pixels in each sample, and so has what is added to it.
    pub(crate) fn check(&self, batch: usize, pixels: usize) {
        assert_eq!(self.values.len(), batch * pixels * self.channels, "{batch} maps of {pixels} pixels");
        self.finish.check(batch, pixels, self.channels);
    }
}

/// Transformed weights up to this size stay in a core's cache, and each block of tiles runs through all 36 products;
/// larger ones are read once per call instead, by many tiles at a time.
const CACHED_WEIGHTS: usize = 3 << 20;
/// Bytes of scratch that one block of tiles may use when it stays in one core's cache.
const BLOCK_BYTES: usize = 600 << 10;
/// Bytes of scratch when the threads share one large block.
pub(super) const SHARED_BYTES: usize = 16 << 20;

struct Shape {
    grid: Grid,
    c: usize,
    c_stride: usize,
    k: usize,
    k_padded: usize,
    k_stride: usize,
}

/// Convolves the concatenated `sources` with `weights` (from [`super::winograd_weights::transform`]) into `targets`, whose
/// channels follow one another in the weights' output.
pub(crate) fn convolve(isa: Isa, grid: Grid, sources: &[Source], weights: &[f32], targets: &mut [Target]) {
    let c: usize = sources.iter().map(|s| s.channels).sum();
    let k: usize = targets.iter().map(|t| t.channels).sum();
    let k_padded = round_up(k, isa.nr());
    let shape =
        Shape { grid, c, c_stride: scratch_stride(c), k, k_padded, k_stride: scratch_stride(k_padded) };
    let pixels = grid.height * grid.width;
    sources.iter().for_each(|s| s.check(grid.batch * pixels));
    targets.iter().for_each(|t| t.check(grid.batch, pixels));
    assert_eq!(weights.len(), POINTS * c * k_padded, "weights of these channels");
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

/// A convolution whose maps and weights were checked: sources and outputs cover the grid, weights 36 x c x k_padded, `zeros`
/// `c_stride`.
struct Job<'a> {
    isa: Isa,
    shape: &'a Shape,
    sources: &'a [Source<'a>],
    weights: &'a [f32],
    outputs: &'a [(Shared<'a>, usize, Finish<'a>)],
    zeros: &'a [f32],
}

impl Job<'_> {
    /// Transform, products and inverse transform of a few tiles on this thread. No other thread may have the same tiles.
    fn run_block(&self, first: usize, count: usize) {
        let s = self.shape;
        let mut scratch = Buffer::take(POINTS * count * (s.c_stride + s.k_stride));
        let (v, m) = scratch.split_at_mut(POINTS * count * s.c_stride);
        let (v, m) = (Shared::new(v), Shared::new(m));
        let order = Order { tiles: count, by_point: false };
        // SAFETY: `v` and `m` have room for `count` tiles and are this thread's own; these tiles' pixels are this job's.
        unsafe {
            self.transform_in(v, first, (0, count), order);
            for point in 0..POINTS {
                self.multiply(v, m, point, (0, s.k_padded), order);
            }
            self.transform_out(m, first, (0, count), order);
        }
    }

    /// The same three steps for many tiles, each step on all threads.
    fn run_shared(&self, first: usize, count: usize) {
        let s = self.shape;
        let mut scratch = Buffer::take(POINTS * count * (s.c_stride + s.k_stride));
        let (v, m) = scratch.split_at_mut(POINTS * count * s.c_stride);
        let (v, m) = (Shared::new(v), Shared::new(m));
        let order = Order { tiles: count, by_point: true };
        par::chunks(count, 2, |start, end| {
            // SAFETY: `v` has room for `count` tiles; start..end of them are this job's.
            unsafe { self.transform_in(v, first, (start, end), order) };
        });
        let columns = 4 * self.isa.nr();
        let groups = s.k_padded.div_ceil(columns);
        par::for_each(POINTS * groups, |i| {
            let (point, group) = (i / groups, i % groups);
            let range = (group * columns, ((group + 1) * columns).min(s.k_padded));
            // SAFETY: `v` and `m` have room for `count` tiles; these columns of this point of `m` are this job's, and no job writes `v`.
            unsafe { self.multiply(v, m, point, range, order) };
        });
        par::chunks(count, 2, |start, end| {
            // SAFETY: no job writes `m`; the pixels of tiles start..end are this job's.
            unsafe { self.transform_out(m, first, (start, end), order) };
        });
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

    /// Transforms tiles of the sources into `v`.
    ///
    /// # Safety
    /// `v` has 36 rows of `c_stride` floats for each tile of the block, in this order. `range` is inside the block, the block inside
    /// the grid. No other thread touches the tiles of `range` in `v`.
    unsafe fn transform_in(&self, v: Shared, first: usize, range: (usize, usize), order: Order) {
        let stride = self.shape.c_stride;
        // SAFETY: `Job` says that the sources cover the grid and `zeros` a pixel; the caller promises the rows in `v`, whose stride
        // leaves 16 floats after the last channel.
        unsafe {
            transform_sources(self.isa, self.sources, self.zeros, |channels, offset| {
                let t = self.tiles(channels, stride, first, range, order);
                (t, v.ptr().wrapping_add(range.0 * order.tile(stride) + offset))
            });
        }
    }

    /// The product of one point, for the output channels from..to.
    ///
    /// # Safety
    /// `v` has 36 rows of `c_stride` floats for each tile of the block, `m` of `k_stride`, in this order. from..to are whole panels of
    /// `k_padded`. No other thread writes `v`, or touches these columns of this point in `m`.
    unsafe fn multiply(&self, v: Shared, m: Shared, point: usize, (from, to): (usize, usize), order: Order) {
        let s = self.shape;
        // SAFETY: the caller promises the rows of `v` and `m`, and `Job` the weights: 36 points of panels of `c` rows.
        unsafe {
            let p = Product {
                a: v.at(point * order.point(s.c_stride)),
                lda: order.tile(s.c_stride),
                rows: order.tiles,
                inner: s.c,
                b: self.weights.as_ptr().add(point * s.c * s.k_padded + from * s.c),
                n: to.min(s.k) - from,
                c: m.at(point * order.point(s.k_stride) + from),
                ldc: order.tile(s.k_stride),
            };
            gemm::product(self.isa, &p);
        }
    }

    /// Transforms tiles of `m` into the outputs.
    ///
    /// # Safety
    /// `m` has 36 rows of `k_stride` floats for each tile of the block, in this order. `range` is inside the block, the block inside
    /// the grid. No other thread writes the tiles of `range` in `m`, or touches their pixels.
    unsafe fn transform_out(&self, m: Shared, first: usize, range: (usize, usize), order: Order) {
        let stride = self.shape.k_stride;
        let mut offset = 0;
        for (output, channels, finish) in self.outputs {
            let t = self.tiles(*channels, stride, first, range, order);
            // SAFETY: `Job` says that outputs and `finish` cover the grid; the caller promises the rest. `k_stride` leaves 16 floats after
            // the last channel.
            unsafe {
                let block = m.at(range.0 * order.tile(stride) + offset);
                winograd::output_transform(self.isa, &t, block, output.ptr(), finish);
            }
            offset += channels;
        }
        debug_assert_eq!(offset, self.shape.k);
    }
}

/// Transforms the tiles of each source, one after the other: the vector that the first may write beyond its last
/// channel is overwritten by the second, and the second's falls into the row's slack.
///
/// # Safety
/// The sources cover the grid, and `zeros` a pixel of each. `place(channels, offset)` gives tiles of the grid and a block for them that
/// is valid for writes ([`winograd::input_transform`]), `offset` floats into rows with 16 floats to spare after the channels of all
/// sources. No other thread touches these rows.
pub(super) unsafe fn transform_sources(
    isa: Isa,
    sources: &[Source],
    zeros: &[f32],
    place: impl Fn(usize, usize) -> (Tiles, *mut f32),
) {
    let mut offset = 0;
    for source in sources {
        let (tiles, block) = place(source.channels, offset);
        // SAFETY: the caller promises all of it.
        unsafe { winograd::input_transform(isa, &tiles, source.values.as_ptr(), zeros.as_ptr(), block) };
        offset += source.channels;
    }
}
