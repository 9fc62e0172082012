//! Two-dimensional Fourier transforms of real planes: planned once per operator, parallel over rows and columns.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use num_traits::Zero;
use rayon::prelude::*;
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftNum, FftPlanner};

/// Rows or columns that one task transforms; fixed, though any number gives the same bits.
const LINES: usize = 8;

/// The transforms of one plane size in both number types, each planned when first used.
#[derive(Debug)]
pub(crate) struct Plans {
    height: usize,
    width: usize,
    single: OnceLock<Fft2<f32>>,
    double: OnceLock<Fft2<f64>>,
}

impl Plans {
    pub fn new(height: usize, width: usize) -> Arc<Self> {
        Arc::new(Self { height, width, single: OnceLock::new(), double: OnceLock::new() })
    }

    pub fn single(&self) -> &Fft2<f32> {
        self.single.get_or_init(|| Fft2::new(self.height, self.width))
    }

    pub fn double(&self) -> &Fft2<f64> {
        self.double.get_or_init(|| Fft2::new(self.height, self.width))
    }
}

/// Unnormalised transforms of `height x width` planes. The half spectrum of a real plane is kept transposed,
/// `[width / 2 + 1][height]`, so that the second pass runs over contiguous lines.
pub(crate) struct Fft2<T: FftNum> {
    pub height: usize,
    pub width: usize,
    pub half: usize,
    real_forward: Arc<dyn RealToComplex<T>>,
    real_inverse: Arc<dyn ComplexToReal<T>>,
    /// Complex transforms along a row, for planes that are complex to begin with.
    pub row_forward: Arc<dyn Fft<T>>,
    pub row_inverse: Arc<dyn Fft<T>>,
    /// Complex transforms along a column.
    pub column_forward: Arc<dyn Fft<T>>,
    pub column_inverse: Arc<dyn Fft<T>>,
}

impl<T: FftNum> std::fmt::Debug for Fft2<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fft2({} x {})", self.height, self.width)
    }
}

impl<T: FftNum> Fft2<T> {
    fn new(height: usize, width: usize) -> Self {
        let (mut real, mut complex) = (RealFftPlanner::new(), FftPlanner::new());
        Self {
            height,
            width,
            half: width / 2 + 1,
            real_forward: real.plan_fft_forward(width),
            real_inverse: real.plan_fft_inverse(width),
            row_forward: complex.plan_fft_forward(width),
            row_inverse: complex.plan_fft_inverse(width),
            column_forward: complex.plan_fft_forward(height),
            column_inverse: complex.plan_fft_inverse(height),
        }
    }

    /// The half spectrum of a plane whose rows outside `live` are zero; `fill(row, buffer)` writes a live row.
    pub fn forward(&self, live: Range<usize>, fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<Complex<T>> {
        self.columns(&self.rows(live.clone(), fill), live, |_, columns, scratch| {
            self.column_forward.process_with_scratch(columns, scratch);
        })
    }

    /// A plane filtered: `weigh(first, spectrum)` changes the half spectrum in place, some columns at a time, from number
    /// `first` on (`height` values each). Gives the plane before the last transforms, for [`Fft2::put_rows`] or
    /// [`Fft2::crop_rows`], times the number of values.
    pub fn filtered(
        &self,
        rows: &[Complex<T>],
        live: Range<usize>,
        weigh: impl Fn(usize, &mut [Complex<T>]) + Sync,
    ) -> Vec<Complex<T>> {
        self.columns(rows, live, |first, columns, scratch| {
            self.column_forward.process_with_scratch(columns, scratch);
            weigh(first, columns);
            self.column_inverse.process_with_scratch(columns, scratch);
        })
    }

    /// The first pass: transforms of the rows in `live`, which `fill(row, buffer)` writes.
    pub fn rows(&self, live: Range<usize>, fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<Complex<T>> {
        let mut rows = vec![Complex::zero(); live.len() * self.half];
        rows.par_chunks_mut(LINES * self.half).enumerate().for_each(|(block, rows)| {
            let mut input = vec![T::zero(); self.width];
            let mut scratch = self.real_forward.make_scratch_vec();
            for (i, row) in rows.chunks_mut(self.half).enumerate() {
                fill(live.start + block * LINES + i, &mut input);
                let done = self.real_forward.process_with_scratch(&mut input, row, &mut scratch);
                debug_assert!(done.is_ok(), "buffers have the planned lengths");
            }
        });
        rows
    }

    /// The second pass: `change(first, columns, scratch)` gets the columns of `rows`, some at a time from number `first` on,
    /// with zeros where no row is live.
    fn columns(
        &self,
        rows: &[Complex<T>],
        live: Range<usize>,
        change: impl Fn(usize, &mut [Complex<T>], &mut [Complex<T>]) + Sync,
    ) -> Vec<Complex<T>> {
        let needed = |fft: &dyn Fft<T>| fft.get_inplace_scratch_len();
        let scratch = needed(&*self.column_forward).max(needed(&*self.column_inverse));
        let mut spectrum = vec![Complex::zero(); self.half * self.height];
        spectrum.par_chunks_mut(LINES * self.height).enumerate().for_each(|(block, columns)| {
            let first = block * LINES;
            let count = columns.len() / self.height;
            for (i, row) in rows.chunks(self.half).enumerate() {
                for (c, &v) in row[first..first + count].iter().enumerate() {
                    columns[c * self.height + live.start + i] = v;
                }
            }
            change(first, columns, &mut vec![Complex::zero(); scratch]);
        });
        spectrum
    }

    /// The real plane of a half spectrum, which is used up; `put(row, values)` takes each row in `live`.
    pub fn inverse(
        &self,
        spectrum: &mut [Complex<T>],
        live: usize,
        out: &mut [T],
        put: impl Fn(usize, &[T], &mut [T]) + Sync,
    ) {
        spectrum.par_chunks_mut(LINES * self.height).for_each(|columns| self.column_inverse.process(columns));
        self.put_rows(spectrum, live, out, put);
    }

    /// The last pass: the real rows of a plane whose columns are transformed back already.
    pub fn put_rows(
        &self,
        plane: &[Complex<T>],
        live: usize,
        out: &mut [T],
        put: impl Fn(usize, &[T], &mut [T]) + Sync,
    ) {
        let each = out.len() / live.max(1);
        out.par_chunks_mut((LINES * each).max(1)).enumerate().for_each(|(block, out)| {
            let first = block * LINES;
            let count = out.len() / each;
            let mut lines = vec![Complex::zero(); count * self.half];
            self.gather(plane, first, &mut lines);
            let mut row = vec![T::zero(); self.width];
            let mut scratch = self.real_inverse.make_scratch_vec();
            for (i, (line, out)) in lines.chunks_mut(self.half).zip(out.chunks_mut(each)).enumerate() {
                self.inverse_row(line, &mut row, &mut scratch);
                put(first + i, &row, out);
            }
        });
    }

    /// The last pass and the first of what comes next: transformed rows of the plane's first `rows x columns` values with
    /// zeros beside them.
    pub fn crop_rows(&self, plane: &[Complex<T>], rows: usize, columns: usize) -> Vec<Complex<T>> {
        let mut lines = vec![Complex::zero(); rows * self.half];
        lines.par_chunks_mut(LINES * self.half).enumerate().for_each(|(block, lines)| {
            self.gather(plane, block * LINES, lines);
            let mut row = vec![T::zero(); self.width];
            let mut back = self.real_inverse.make_scratch_vec();
            let mut forth = self.real_forward.make_scratch_vec();
            for line in lines.chunks_mut(self.half) {
                self.inverse_row(line, &mut row, &mut back);
                row[columns..].fill(T::zero());
                let done = self.real_forward.process_with_scratch(&mut row, line, &mut forth);
                debug_assert!(done.is_ok(), "buffers have the planned lengths");
            }
        });
        lines
    }

    /// Lines from `first` on, out of the transposed plane.
    fn gather(&self, spectrum: &[Complex<T>], first: usize, lines: &mut [Complex<T>]) {
        let count = lines.len() / self.half;
        for (c, column) in spectrum.chunks(self.height).enumerate() {
            for (i, &v) in column[first..first + count].iter().enumerate() {
                lines[i * self.half + c] = v;
            }
        }
    }

    fn inverse_row(&self, line: &mut [Complex<T>], row: &mut [T], scratch: &mut [Complex<T>]) {
        // A real plane has a real first (and, for even widths, last) column here; rounding leaves a trace.
        line[0].im = T::zero();
        if self.width.is_multiple_of(2) {
            line[self.half - 1].im = T::zero();
        }
        let done = self.real_inverse.process_with_scratch(line, row, scratch);
        debug_assert!(done.is_ok(), "buffers have the planned lengths");
    }
}

/// The smallest even length of at least `n` whose only prime factors are 2, 3 and 5, where transforms are fast.
pub(crate) fn fast_length(n: usize) -> usize {
    let smooth = |mut m: usize| {
        for p in [2, 3, 5] {
            while m.is_multiple_of(p) {
                m /= p;
            }
        }
        m == 1
    };
    (n.max(2)..).find(|&m| m.is_multiple_of(2) && smooth(m)).unwrap_or(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_is_the_number_of_values_times_the_plane() {
        for (h, w) in [(1, 1), (5, 7), (8, 6), (40, 33)] {
            let plane: Vec<f64> = (0..h * w).map(|i| ((i * i) as f64).sin()).collect();
            let fft = Fft2::<f64>::new(h, w);
            let mut spectrum = fft.forward(0..h, |i, row| row.copy_from_slice(&plane[i * w..(i + 1) * w]));
            let mut back = vec![0.0; h * w];
            fft.inverse(&mut spectrum, h, &mut back, |_, row, out| out.copy_from_slice(row));
            for (a, b) in back.iter().zip(&plane) {
                assert!((a / (h * w) as f64 - b).abs() < 1e-13, "{h}x{w}");
            }
        }
    }

    #[test]
    fn a_spectrum_is_the_sum_over_the_plane() {
        let (h, w) = (4, 5);
        let plane: Vec<f64> = (0..h * w).map(|i| (i as f64 * 0.7).cos()).collect();
        let fft = Fft2::<f64>::new(h, w);
        let spectrum = fft.forward(0..h, |i, row| row.copy_from_slice(&plane[i * w..(i + 1) * w]));
        for kx in 0..fft.half {
            for ky in 0..h {
                let term = |i: usize| {
                    let turn = (ky * (i / w)) as f64 / h as f64 + (kx * (i % w)) as f64 / w as f64;
                    Complex::from_polar(plane[i], -std::f64::consts::TAU * turn)
                };
                let sum: Complex<f64> = (0..h * w).map(term).sum();
                assert!((sum - spectrum[kx * h + ky]).norm() < 1e-12);
            }
        }
    }

    #[test]
    fn fast_lengths_are_even_and_smooth() {
        assert_eq!([2, 17, 316, 384].map(fast_length), [2, 18, 320, 384]);
    }
}
