//! A denoiser of large images within a limit of memory: it runs on overlapping tiles, which fade into one another.
//!
//! Everything else, noise and measurement above all, stays a matter of the whole image. Tiles lie where the network's own grid of
//! halved pixels lies, and count nowhere near their own borders, so that a network that sees only so far gives what it would give
//! for the whole image. One that sees everything, by attention or by norms over space, sees a tile instead.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::{Real, check_rows, with_slice};
use daps_core::{
    Cotangent, Denoiser, DifferentiableDenoiser, Error, LocalDenoiser, LocalFactor, Result, Sigma, Space,
    SpreadTable, with_real,
};

use super::grid::{Cut, Grid, Rule, Tile};
use crate::Memory;

/// Pixels over which a tile fades into the next.
const FADE: usize = 32;
/// The least overlap of two tiles.
const OVERLAP: usize = 64;

/// A denoiser that works at any size.
pub trait AnySize: Denoiser + Sized {
    /// The same denoiser for images of another size.
    fn at_size(&self, height: usize, width: usize) -> Result<Self>;
}

/// What decides how an image is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiling {
    /// What tiles start at multiples of: that by which the denoiser's own grid divides an image.
    pub align: usize,
    /// How many pixels away a change can change the answer; none where everything depends on everything.
    pub reach: Option<usize>,
    /// Bytes that a call takes for each pixel, and one whose derivative is asked for.
    pub bytes: [f64; 2],
    /// Bytes that a call may take.
    pub memory: Memory,
}

/// Which of the two [`Tiling::bytes`] counts.
#[derive(Clone, Copy)]
enum Call {
    Plain = 0,
    Taped = 1,
}

impl Tiling {
    /// The overlap of tiles of a length: twice what is seen, so that tiles agree where they meet, unless that were more than a quarter
    /// of the tile.
    fn overlap(&self, length: usize) -> usize {
        let most = (length / 4).max(OVERLAP);
        let enough = self.reach.map_or(most, |reach| 2 * reach + FADE);
        enough.clamp(OVERLAP, most).next_multiple_of(self.align)
    }

    /// The tiles of an image, and how many rows of a batch a call takes.
    fn plan(&self, size: [usize; 2], call: Call) -> Result<(Grid, usize)> {
        let align = self.align;
        let most = self.memory.bytes() as f64 / self.bytes[call as usize];
        let [height, width] = size.map(|side| side.next_multiple_of(align));
        let down = |pixels: f64| pixels as usize / align * align;
        let side = down(most.sqrt());
        let lengths = match (height <= side, width <= side) {
            _ if (height * width) as f64 <= most => [height, width],
            (true, _) => [height, down(most / height as f64)],
            (_, true) => [down(most / width as f64), width],
            _ => [side, side],
        };
        let least = 2 * OVERLAP.next_multiple_of(align);
        let least = [height.min(least), width.min(least)];
        if lengths[0] < least[0] || lengths[1] < least[1] {
            let bytes = (least[0] * least[1]) as f64 * self.bytes[call as usize];
            let what = ["a call of the network", "a derivative of the network"][call as usize];
            let at_least = Memory::rounded_up(bytes);
            let expected = format!("at least {at_least} for {what} on {}x{} pixels", least[0], least[1]);
            return Err(Error::invalid("memory", expected, self.memory));
        }
        let rule = |length| Rule { length, overlap: self.overlap(length), fade: FADE, align };
        let grid = Grid::new(size, lengths.map(rule));
        let [height, width] = grid.largest().map(|side| side.next_multiple_of(align));
        Ok((grid, ((most / (height * width) as f64) as usize).max(1)))
    }
}

/// How far a denoiser's call on tiles is, for whoever watches from another thread.
#[derive(Debug, Default)]
pub struct TileCount {
    done: AtomicUsize,
    of: AtomicUsize,
}

impl TileCount {
    /// Tiles that are done, and those of the whole call; none before the first call.
    #[must_use]
    pub fn now(&self) -> (usize, usize) {
        (self.done.load(Ordering::Relaxed), self.of.load(Ordering::Relaxed))
    }
}

/// A denoiser that takes no more memory than it may.
pub struct Tiled<D> {
    whole: D,
    tiling: Tiling,
    size: [usize; 2],
    grid: Grid,
    rows: usize,
    count: Arc<TileCount>,
}

impl<D: AnySize> Tiled<D> {
    /// A denoiser of images, cut as a tiling says.
    pub fn new(whole: D, tiling: Tiling) -> Result<Self> {
        let &[_, height, width] = whole.shape() else {
            return Err(Error::shape("tiles", &[1, 1, 1], whole.shape()));
        };
        let size = [height, width];
        let (grid, rows) = tiling.plan(size, Call::Plain)?;
        Ok(Self { whole, tiling, size, grid, rows, count: Arc::default() })
    }

    /// The tiles of a call.
    #[must_use]
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// How far the call under way is.
    #[must_use]
    pub fn count(&self) -> &Arc<TileCount> {
        &self.count
    }

    /// Where and how large the tiles are, for people and so that other tiles are told from these; none where an image is one tile.
    #[must_use]
    pub fn describe(&self) -> Option<String> {
        let words = |grid: &Grid| {
            let [height, width] = grid.largest();
            (grid.count() > 1).then(|| format!("{} tiles of {height}x{width}", grid.count()))
        };
        let taped = self.tiling.plan(self.size, Call::Taped).ok().and_then(|(grid, _)| words(&grid));
        match (words(&self.grid), taped) {
            (plain, None) => plain,
            (None, Some(taped)) => Some(format!("{taped} for derivatives")),
            (Some(plain), Some(taped)) => Some(format!("{plain}, {taped} for derivatives")),
        }
    }

    /// Whether a plan is one call with everything; of nothing it is.
    fn is_one((grid, rows): (&Grid, usize), batch: usize) -> bool {
        batch == 0 || (grid.count() == 1 && batch <= rows)
    }

    /// Runs over all tiles, some rows at a time. `f` has the denoiser of a tile's size, what of x it is to see, and a window for what else
    /// is to be cut out; its results are summed in a fixed order, each pixel with its weight where `faded` asks for that.
    fn collect(
        &self,
        (grid, rows): (&Grid, usize),
        x: &Tensor,
        faded: bool,
        f: impl Fn(&D, &Window) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        with_real!(self.whole.dtype(), T => {
            let mut sums: Vec<Vec<T>> = vec![];
            self.count.done.store(0, Ordering::Relaxed);
            self.count.of.store(grid.count() * x.dims()[0].div_ceil(rows), Ordering::Relaxed);
            for first in (0..x.dims()[0]).step_by(rows) {
                for tile in grid.tiles() {
                    let window = Window { rows: first..(first + rows).min(x.dims()[0]), tile };
                    let [height, width] = tile.size();
                    let found = f(&self.whole.at_size(height, width)?, &window)?;
                    sums.resize_with(found.len(), || vec![T::default(); x.elem_count()]);
                    for (sum, part) in sums.iter_mut().zip(&found) {
                        let part = part.to_dtype(self.whole.dtype())?;
                        with_slice(&part, |part: &[T]| window.add(part, faded, x.dims(), sum))?;
                    }
                    self.count.done.fetch_add(1, Ordering::Relaxed);
                }
            }
            sums.into_iter().map(|sum| Ok(Tensor::from_vec(sum, x.dims(), &Device::Cpu)?)).collect()
        })
    }

    /// D of all tiles, faded into one another.
    fn faded(&self, plan: (&Grid, usize), x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        let parts =
            |inner: &D, window: &Window| Ok(vec![inner.denoise(&window.of(x)?, &window.levels(sigma))?]);
        Ok(self.collect(plan, x, true, parts)?.remove(0))
    }

    /// Refuses a batch of other images.
    fn check(&self, x: &Tensor, sigma: &Sigma) -> Result<usize> {
        let batch = check_rows("images", x, self.whole.shape())?;
        match sigma {
            Sigma::Rows(levels) if levels.len() != batch => {
                Err(Error::invalid("sigma", format!("one for each of {batch} rows"), levels.len()))
            }
            _ => Ok(batch),
        }
    }
}

/// Some rows of a batch within a tile.
struct Window<'a> {
    rows: Range<usize>,
    tile: Tile<'a>,
}

impl Window<'_> {
    /// What it shows of a batch of images.
    fn of(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, columns) = (self.tile.rows.range(), self.tile.columns.range());
        let x = x.narrow(0, self.rows.start, self.rows.len())?;
        Ok(x.narrow(2, rows.start, rows.len())?.narrow(3, columns.start, columns.len())?.contiguous()?)
    }

    /// The levels of its rows.
    fn levels(&self, sigma: &Sigma) -> Sigma {
        match sigma {
            Sigma::Same(sigma) => Sigma::Same(*sigma),
            Sigma::Rows(levels) => Sigma::Rows(levels[self.rows.clone()].to_vec()),
        }
    }

    /// The same pixels with their weights.
    fn weighted(&self, x: &Tensor) -> Result<Tensor> {
        let [height, width] = self.tile.size();
        let weights =
            |cut: &Cut, shape| Tensor::from_slice(&cut.weights, shape, &Device::Cpu)?.to_dtype(x.dtype());
        let (down, across) = (weights(self.tile.rows, (height, 1))?, weights(self.tile.columns, (1, width))?);
        Ok(x.broadcast_mul(&down.broadcast_mul(&across)?)?)
    }

    /// Adds what was found for it to a batch of images of a shape.
    fn add<T: Real>(&self, part: &[T], faded: bool, shape: &[usize], sum: &mut [T]) {
        let (channels, height, width) = (shape[1], shape[2], shape[3]);
        let (rows, columns) = (self.tile.rows, self.tile.columns);
        let planes = sum.chunks_mut(height * width).skip(self.rows.start * channels);
        for (plane, part) in planes.zip(part.chunks(rows.weights.len() * columns.weights.len())) {
            for ((at, down), line) in rows.range().zip(&rows.weights).zip(part.chunks(columns.weights.len()))
            {
                let to = &mut plane[at * width..][columns.range()];
                for ((to, value), across) in to.iter_mut().zip(line).zip(&columns.weights) {
                    let weight = if faded { T::of(down * across) } else { T::of(1.0) };
                    *to += weight * *value;
                }
            }
        }
    }
}

impl<D: AnySize> Denoiser for Tiled<D> {
    fn shape(&self) -> &[usize] {
        self.whole.shape()
    }

    fn space(&self) -> Space {
        self.whole.space()
    }

    fn dtype(&self) -> DType {
        self.whole.dtype()
    }

    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        let plan = (&self.grid, self.rows);
        if Self::is_one(plan, self.check(x, sigma)?) {
            return self.whole.denoise(x, sigma);
        }
        self.faded(plan, x, sigma)
    }

    fn as_spread(&self) -> Option<&SpreadTable> {
        self.whole.as_spread()
    }

    fn as_local(&self) -> Option<&dyn LocalDenoiser> {
        self.whole.as_local().map(|_| self as &dyn LocalDenoiser)
    }

    fn as_differentiable(&self) -> Option<&dyn DifferentiableDenoiser> {
        self.whole.as_differentiable().map(|_| self as &dyn DifferentiableDenoiser)
    }
}

impl<D: AnySize> LocalDenoiser for Tiled<D> {
    fn denoise_local(&self, x: &Tensor, sigma: f64) -> Result<(Tensor, LocalFactor)> {
        let missing = || Error::missing("the estimate", "a local factor", "this prior");
        let whole = self.whole.as_local().ok_or_else(missing)?;
        let plan = (&self.grid, self.rows);
        if Self::is_one(plan, self.check(x, &Sigma::Same(sigma))?) {
            return whole.denoise_local(x, sigma);
        }
        let from = Cell::new(0.0);
        let parts = |inner: &D, window: &Window| {
            let inner = inner.as_local().ok_or_else(missing)?;
            let (denoised, factor) = inner.denoise_local(&window.of(x)?, sigma)?;
            from.set(factor.from);
            Ok(vec![denoised, factor.factor])
        };
        let mut found = self.collect(plan, x, true, parts)?;
        let (denoised, factor) = (found.remove(0), found.remove(0));
        Ok((denoised, LocalFactor { factor, from: from.get() }))
    }
}

impl<D: AnySize> DifferentiableDenoiser for Tiled<D> {
    /// The cotangent depends on all of D, so that more than one call takes a second pass, which keeps the history of one call at a time.
    fn denoise_vjp(&self, x: &Tensor, sigma: &Sigma, cotangent: &Cotangent) -> Result<(Tensor, Tensor)> {
        let missing = || Error::missing("a derivative of tiles", "a derivative", "this prior");
        let whole = self.whole.as_differentiable().ok_or_else(missing)?;
        let batch = self.check(x, sigma)?;
        let (grid, rows) = self.tiling.plan(self.size, Call::Taped)?;
        let plan = (&grid, rows);
        if Self::is_one(plan, batch) {
            return whole.denoise_vjp(x, sigma, cotangent);
        }
        let denoised = self.faded(plan, x, sigma)?;
        let v = cotangent(&denoised)?.to_dtype(self.whole.dtype())?;
        if check_rows("cotangent", &v, self.whole.shape())? != batch {
            return Err(Error::shape("cotangent", x.dims(), v.dims()));
        }
        let parts = |inner: &D, window: &Window| {
            let inner = inner.as_differentiable().ok_or_else(missing)?;
            let v = window.weighted(&window.of(&v)?)?;
            Ok(vec![inner.denoise_vjp(&window.of(x)?, &window.levels(sigma), &|_| Ok(v.clone()))?.1])
        };
        Ok((denoised, self.collect(plan, x, false, parts)?.remove(0)))
    }
}
