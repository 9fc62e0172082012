//! The tile transforms of Winograd's F(4x4, 3x3): a 3x3 convolution as 36 small matrix products.
//!
//! Tile t of a map is its 4x4 pixel square in row-major order, samples one after the other. A transformed block is
//! laid out as [36][tiles][stride], with channels innermost.
#![allow(unsafe_code)]
// Rows and columns of small matrices: indices say it best.
#![allow(clippy::needless_range_loop)]

use crate::simd::{Simd, simd_fn};

/// Products per tile.
pub(crate) const POINTS: usize = 36;

/// The grid of tiles over a batch of maps.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) batch: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

impl Grid {
    fn rows(&self) -> usize {
        self.height.div_ceil(4)
    }
    fn columns(&self) -> usize {
        self.width.div_ceil(4)
    }
    pub(crate) fn tiles(&self) -> usize {
        self.batch * self.rows() * self.columns()
    }
    /// Sample, first row and first column of a tile.
    #[inline(always)]
    fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (rows, columns) = (self.rows(), self.columns());
        (tile / (rows * columns), tile / columns % rows * 4, tile % columns * 4)
    }
}

/// A run of tiles of one map between pixels and transformed block.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    pub(crate) grid: Grid,
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Channels of the map.
    pub(crate) channels: usize,
    /// Floats between two tiles and between two of the 36 points of the block.
    pub(crate) tile_stride: usize,
    pub(crate) point_stride: usize,
}

/// What is added to and multiplied with a convolution's sum: (sum + bias[sample][k] + residual) * scale.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    /// Per sample and channel.
    pub(crate) bias: Option<&'a [f32]>,
    /// Floats between two samples' biases; zero if they share one.
    pub(crate) bias_stride: usize,
    /// A map like the output.
    pub(crate) residual: Option<&'a [f32]>,
    pub(crate) scale: f32,
}

impl Finish<'_> {
    pub(crate) const NONE: Self = Self { bias: None, bias_stride: 0, residual: None, scale: 1.0 };

    /// Asserts that bias and residual cover an output of `batch` samples of `pixels` pixels.
    pub(crate) fn check(&self, batch: usize, pixels: usize, channels: usize) {
        if batch > 0 {
            let bias = (batch - 1) * self.bias_stride + channels;
            assert!(self.bias.is_none_or(|b| b.len() >= bias), "the bias has a number for every channel");
        }
        let map = batch * pixels * channels;
        assert!(self.residual.is_none_or(|r| r.len() >= map), "the residual is as large as the output");
    }
    /// The bias, or null.
    #[inline(always)]
    pub(crate) fn bias_ptr(&self) -> *const f32 {
        self.bias.map_or(std::ptr::null(), <[f32]>::as_ptr)
    }
    /// The residual, or null.
    #[inline(always)]
    pub(crate) fn residual_ptr(&self) -> *const f32 {
        self.residual.map_or(std::ptr::null(), <[f32]>::as_ptr)
    }
}

/// B^T d, one dimension of the input transform.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn input_1d<S: Simd>(d: [S::F; 6]) -> [S::F; 6] {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        let (two, four, five) = (S::splat(2.0), S::splat(4.0), S::splat(5.0));
        let a = S::fnma(four, d[2], d[4]);
        let b = S::fnma(four, d[1], d[3]);
        let e = S::sub(d[4], d[2]);
        let f = S::mul(two, S::sub(d[3], d[1]));
        [
            S::fma(four, d[0], S::fnma(five, d[2], d[4])),
            S::add(a, b),
            S::sub(a, b),
            S::add(e, f),
            S::sub(e, f),
            S::fma(four, d[1], S::fnma(five, d[3], d[5])),
        ]
    }
}

/// A^T m, one dimension of the output transform.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn output_1d<S: Simd>(m: [S::F; 6]) -> [S::F; 4] {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        let (s12, d12) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        let (s34, d34) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
        [
            S::add(S::add(m[0], s12), s34),
            S::fma(S::splat(2.0), d34, d12),
            S::fma(S::splat(4.0), s34, s12),
            S::add(S::fma(S::splat(8.0), d34, d12), m[5]),
        ]
    }
}

/// A y, one dimension of the transform of an output's gradient.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn gradient_1d<S: Simd>(y: [S::F; 4]) -> [S::F; 6] {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        let (even, odd) = (S::add(y[0], y[2]), S::add(y[1], y[3]));
        let even2 = S::fma(S::splat(4.0), y[2], y[0]);
        let odd2 = S::fma(S::splat(8.0), y[3], S::mul(S::splat(2.0), y[1]));
        [y[0], S::add(even, odd), S::sub(even, odd), S::add(even2, odd2), S::sub(even2, odd2), y[3]]
    }
}

/// A whole vector, or its first `n` lanes.
///
/// # Safety
/// The machine has the instruction set; `p` is valid for reads of `LANES` floats if `WHOLE`, else of `n`, which are fewer.
#[inline(always)]
unsafe fn load<S: Simd, const WHOLE: bool>(p: *const f32, n: usize) -> S::F {
    // SAFETY: the caller promises the floats and the instruction set.
    unsafe { if WHOLE { S::load(p) } else { S::load_part(p, n) } }
}

/// One vector of channels of a 6x6 patch.
///
/// # Safety
/// The machine has the instruction set. Every `pixel`, from channel `ch` on, is valid for reads of `LANES` floats if `WHOLE`,
/// else of `n`, which are fewer. `out` is valid for writes of `LANES` floats at each of 36 points, `point_stride` apart.
#[inline(always)]
unsafe fn input_vector<S: Simd, const WHOLE: bool>(
    pixel: &[*const f32; POINTS],
    ch: usize,
    n: usize,
    out: *mut f32,
    point_stride: usize,
) {
    // SAFETY: the caller promises every pixel, every point and the instruction set.
    unsafe {
        let mut rows = [[S::splat(0.0); 6]; 6];
        for s in 0..6 {
            let mut d = [S::splat(0.0); 6];
            for r in 0..6 {
                d[r] = load::<S, WHOLE>(pixel[r * 6 + s].add(ch), n);
            }
            let d = input_1d::<S>(d);
            for r in 0..6 {
                rows[r][s] = d[r];
            }
        }
        for r in 0..6 {
            let d = input_1d::<S>(rows[r]);
            for s in 0..6 {
                S::store(out.add((r * 6 + s) * point_stride), d[s]);
            }
        }
    }
}

simd_fn! {
    /// Transforms 6x6 input patches (padded with zeros outside the map) of `map` into `block`, channel 0 first.
    ///
    /// # Safety
    /// Tiles `first..first + count` are in the grid. `map` is valid for reads of the grid's pixels of `channels` floats, `zeros` of one
    /// pixel. `block` is valid for writes of `round_up(channels, LANES)` floats at each of 36 points of each tile, the strides of `t`
    /// apart; it overlaps neither, and no other thread touches it.
    pub(crate) unsafe fn input_transform<S>(t: &Tiles, map: *const f32, zeros: *const f32, block: *mut f32) {
        let (h, w, c) = (t.grid.height as isize, t.grid.width as isize, t.channels);
        for i in 0..t.count {
            let (sample, top, left) = t.grid.place(t.first + i);
            let base = map.add(sample * t.grid.height * t.grid.width * c);
            let mut pixel = [zeros; POINTS];
            for r in 0..6 {
                for s in 0..6 {
                    let (y, x) = (top as isize + r as isize - 1, left as isize + s as isize - 1);
                    if y >= 0 && x >= 0 && y < h && x < w {
                        pixel[r * 6 + s] = base.add((y * w + x) as usize * c);
                    }
                }
            }
            let out = block.add(i * t.tile_stride);
            let mut ch = 0;
            while ch + S::LANES <= c {
                input_vector::<S, true>(&pixel, ch, 0, out.add(ch), t.point_stride);
                ch += S::LANES;
            }
            if ch < c {
                input_vector::<S, false>(&pixel, ch, c - ch, out.add(ch), t.point_stride);
            }
        }
    }
}

/// Where a 4x4 output square goes: floats from the map's start, between its rows and between its pixels.
struct Square<V> {
    origin: usize,
    row: usize,
    pixel: usize,
    ny: usize,
    nx: usize,
    bias: *const f32,
    scale: V,
}

/// One vector of channels (from `ch`, its first `n` lanes if not whole) of a 4x4 output square.
///
/// # Safety
/// The machine has the instruction set. `source`, from channel `ch` on, is valid for reads of `LANES` floats at each of 36 points,
/// `point_stride` apart. Of the pixels of `square` (`ny` rows of `nx`), `map` is valid for writes and `residual`, unless null, for reads of
/// `LANES` floats from channel `ch` on if `WHOLE`, else of `n`, which are fewer; so is `square.bias`, unless null, for reads.
#[inline(always)]
unsafe fn output_vector<S: Simd, const WHOLE: bool>(
    source: *const f32,
    point_stride: usize,
    square: &Square<S::F>,
    (ch, n): (usize, usize),
    map: *mut f32,
    residual: *const f32,
) {
    // SAFETY: the caller promises every point, every pixel of the square and the instruction set.
    unsafe {
        let bias =
            if square.bias.is_null() { S::splat(0.0) } else { load::<S, WHOLE>(square.bias.add(ch), n) };
        let mut rows = [[S::splat(0.0); 6]; 4];
        for s in 0..6 {
            let mut m = [S::splat(0.0); 6];
            for r in 0..6 {
                m[r] = S::load(source.add((r * 6 + s) * point_stride + ch));
            }
            let m = output_1d::<S>(m);
            for r in 0..4 {
                rows[r][s] = m[r];
            }
        }
        for r in 0..4 {
            if r >= square.ny {
                break;
            }
            let y = output_1d::<S>(rows[r]);
            for s in 0..4 {
                if s >= square.nx {
                    break;
                }
                let at = square.origin + r * square.row + s * square.pixel + ch;
                let mut v = S::add(y[s], bias);
                if !residual.is_null() {
                    v = S::add(v, load::<S, WHOLE>(residual.add(at), n));
                }
                let v = S::mul(v, square.scale);
                if WHOLE { S::store(map.add(at), v) } else { S::store_part(map.add(at), v, n) }
            }
        }
    }
}

simd_fn! {
    /// Transforms the products in `block` (from its channel 0) into 4x4 output squares of `map`, and finishes them.
    ///
    /// # Safety
    /// Tiles `first..first + count` are in the grid, and `f` covers it ([`Finish::check`]). `block` is valid for reads of
    /// `round_up(channels, LANES)` floats at each of 36 points of each tile, the strides of `t` apart. `map` is valid for writes of the
    /// pixels of these tiles; it overlaps nothing else, and no other thread touches these pixels.
    pub(crate) unsafe fn output_transform<S>(t: &Tiles, block: *const f32, map: *mut f32, f: &Finish) {
        let (w, k) = (t.grid.width, t.channels);
        let (bias, residual, scale) = (f.bias_ptr(), f.residual_ptr(), S::splat(f.scale));
        for i in 0..t.count {
            let (sample, top, left) = t.grid.place(t.first + i);
            let (ny, nx) = ((t.grid.height - top).min(4), (w - left).min(4));
            let origin = ((sample * t.grid.height + top) * w + left) * k;
            let mut square = Square { origin, row: w * k, pixel: k, ny, nx, bias, scale };
            if !bias.is_null() {
                square.bias = bias.add(sample * f.bias_stride);
            }
            let source = block.add(i * t.tile_stride);
            let mut ch = 0;
            while ch + S::LANES <= k {
                output_vector::<S, true>(source, t.point_stride, &square, (ch, 0), map, residual);
                ch += S::LANES;
            }
            if ch < k {
                output_vector::<S, false>(source, t.point_stride, &square, (ch, k - ch), map, residual);
            }
        }
    }
}

/// One vector of channels of a 4x4 square of an output's gradient.
///
/// # Safety
/// As for [`input_vector`].
#[inline(always)]
unsafe fn gradient_vector<S: Simd, const WHOLE: bool>(
    pixel: &[*const f32; 16],
    ch: usize,
    n: usize,
    out: *mut f32,
    point_stride: usize,
) {
    // SAFETY: the caller promises every pixel, every point and the instruction set.
    unsafe {
        let mut rows = [[S::splat(0.0); 4]; 6];
        for s in 0..4 {
            let mut y = [S::splat(0.0); 4];
            for r in 0..4 {
                y[r] = load::<S, WHOLE>(pixel[r * 4 + s].add(ch), n);
            }
            let y = gradient_1d::<S>(y);
            for r in 0..6 {
                rows[r][s] = y[r];
            }
        }
        for r in 0..6 {
            let y = gradient_1d::<S>(rows[r]);
            for s in 0..6 {
                S::store(out.add((r * 6 + s) * point_stride), y[s]);
            }
        }
    }
}

simd_fn! {
    /// Transforms 4x4 squares of an output's gradient (zeros outside the map) into `block`: the left factor's
    /// partner in the weight gradient.
    ///
    /// # Safety
    /// As for [`input_transform`].
    pub(crate) unsafe fn gradient_transform<S>(t: &Tiles, map: *const f32, zeros: *const f32, block: *mut f32) {
        let (w, k) = (t.grid.width, t.channels);
        for i in 0..t.count {
            let (sample, top, left) = t.grid.place(t.first + i);
            let (ny, nx) = ((t.grid.height - top).min(4), (w - left).min(4));
            let base = map.add(((sample * t.grid.height + top) * w + left) * k);
            let mut pixel = [zeros; 16];
            for r in 0..ny {
                for s in 0..nx {
                    pixel[r * 4 + s] = base.add((r * w + s) * k);
                }
            }
            let out = block.add(i * t.tile_stride);
            let mut ch = 0;
            while ch + S::LANES <= k {
                gradient_vector::<S, true>(&pixel, ch, 0, out.add(ch), t.point_stride);
                ch += S::LANES;
            }
            if ch < k {
                gradient_vector::<S, false>(&pixel, ch, k - ch, out.add(ch), t.point_stride);
            }
        }
    }
}
