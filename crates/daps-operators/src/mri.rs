//! Multi-coil Cartesian magnetic resonance imaging: y_c = P F (S_c x), with complex values as two channels.

mod instance;
pub(crate) mod task;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use candle_core::Tensor;
use daps_core::tensors::{Real, map_rows, pick};
use daps_core::{Error, Linear, Operator, Result, Shown, with_real};
use num_traits::Zero;
use rayon::prelude::*;
use realfft::num_complex::Complex;

pub use instance::{coil_maps, line_mask};

use crate::fft::{Fft2, Plans};
use crate::num::{Num, Spectrum, Values};
use crate::registry;
use crate::rows::{PerRow, check_batch, finite_values};

/// What the coils' variation adds to small eigenvalues, as a fraction of the largest one: a wave that is not sampled is
/// still seen where coils differ. Measured: 0.1 to 0.3 save conjugate gradients a sixth of the iterations, 0 costs as many.
const SPREAD_SHIFT: f64 = 0.2;

/// Coils that see a complex image `[2, height, width]` (real, imaginary). The measurement is `[coils, 2, height, width]`, the
/// centred orthonormal spectrum of each coil's image, zero where it is not sampled; there, as in the hole of an inpainting
/// mask, a noisy measurement carries no information.
#[derive(Debug)]
pub struct Mri {
    input: Vec<usize>,
    output: Vec<usize>,
    maps: PerRow<Spectrum>,
    masks: PerRow<Mask>,
    plans: Arc<Plans>,
    norm_squared: Vec<f64>,
    /// Per row, the diagonal of AᵀA in the Fourier basis, for preconditioning.
    diagonal: OnceLock<PerRow<Values>>,
}

/// Sampled positions of the centred spectrum, and the columns that have any.
#[derive(Debug)]
struct Mask {
    sampled: Vec<bool>,
    columns: Vec<usize>,
}

impl Mri {
    /// From coil maps `[1 or rows, coils, 2, height, width]` and a mask `[1 or rows, 1 or height, width]` of ones (sampled)
    /// and zeros; a mask of height 1 is a line mask: it samples whole columns of the centred spectrum.
    pub fn new(maps: &Tensor, mask: &Tensor) -> Result<Self> {
        let [map_rows, coils, h, w] = match *maps.dims() {
            [rows, coils, 2, h, w] if rows * coils * h * w > 0 => [rows, coils, h, w],
            ref other => {
                let expected = "shape [1 or rows, coils, 2, height, width]";
                return Err(Error::invalid("coil maps of mri", expected, format!("{other:?}")));
            }
        };
        let mask_rows = match *mask.dims() {
            [rows, mh, mw] if rows > 0 && (mh == 1 || mh == h) && mw == w => rows,
            ref other => {
                let expected = format!("shape [1 or rows, 1 or {h}, {w}]");
                return Err(Error::invalid("mask of mri", expected, format!("{other:?}")));
            }
        };
        if map_rows != 1 && mask_rows != 1 && map_rows != mask_rows {
            return Err(Error::invalid("mask of mri", format!("1 or {map_rows} rows"), mask_rows));
        }
        let maps = finite_values("coil maps of mri", maps)?;
        let maps = maps.chunks(maps.len() / map_rows).map(|row| complex_planes(row, h * w)).collect();
        let mask = daps_core::tensors::to_f64(mask)?;
        if let Some(bad) = mask.iter().find(|v| **v != 0.0 && **v != 1.0) {
            return Err(Error::invalid("mask of mri", "only zeros and ones", bad));
        }
        let masks = mask.chunks(mask.len() / mask_rows).map(|row| Mask::new(row, h, w)).collect();
        let (input, output) = (vec![2, h, w], vec![coils, 2, h, w]);
        Ok(Self::from_parts(input, output, PerRow::new(maps), PerRow::new(masks), Plans::new(h, w)))
    }

    fn from_parts(
        input: Vec<usize>,
        output: Vec<usize>,
        maps: PerRow<Spectrum>,
        masks: PerRow<Mask>,
        plans: Arc<Plans>,
    ) -> Self {
        let pixels = input[1] * input[2];
        // ‖A x‖² <= Σ_c ‖S_c x‖², with equality where everything is sampled.
        let energy = |maps: &Spectrum| {
            let at = |p: usize| maps.wide().iter().skip(p).step_by(pixels).map(Complex::norm_sqr).sum();
            (0..pixels).map(at).fold(0.0, f64::max)
        };
        let norm_squared = maps.iter().map(energy).collect();
        Self { input, output, maps, masks, plans, norm_squared, diagonal: OnceLock::new() }
    }

    /// The centred orthonormal transform of one coil's image, at the sampled positions.
    fn measure<T: Num>(&self, mask: &Mask, map: &[Complex<T>], x: &[T], out: &mut [T]) {
        let fft = T::fft(&self.plans);
        let (h, w) = (fft.height, fft.width);
        let (re, im) = x.split_at(h * w);
        let mut rows = vec![Complex::zero(); h * w];
        for (i, row) in rows.chunks_mut(w).enumerate() {
            let source = (i + h / 2) % h * w;
            for (j, z) in row.iter_mut().enumerate() {
                let p = source + (j + w / 2) % w;
                *z = map[p] * Complex::new(re[p], im[p]);
            }
        }
        fft.row_forward.process(&mut rows);
        let (re, im) = out.split_at_mut(h * w);
        let scale = T::of(1.0 / ((h * w) as f64).sqrt());
        let mut scratch = vec![Complex::zero(); fft.column_forward.get_inplace_scratch_len()];
        let mut column = vec![Complex::zero(); h];
        for &k in &mask.columns {
            let source = (k + w - w / 2) % w;
            for (z, row) in column.iter_mut().zip(rows.chunks(w)) {
                *z = row[source];
            }
            fft.column_forward.process_with_scratch(&mut column, &mut scratch);
            for (i, z) in column.iter().enumerate() {
                let p = (i + h / 2) % h * w + k;
                if mask.sampled[p] {
                    re[p] = scale * z.re;
                    im[p] = scale * z.im;
                }
            }
        }
    }

    /// conj(S_c) times the inverse transform of the sampled positions, for one coil.
    fn pull_back<T: Num>(&self, mask: &Mask, map: &[Complex<T>], r: &[T]) -> Vec<Complex<T>> {
        let fft = T::fft(&self.plans);
        let (h, w) = (fft.height, fft.width);
        let (re, im) = r.split_at(h * w);
        let mut rows = vec![Complex::zero(); h * w];
        let mut scratch = vec![Complex::zero(); fft.column_inverse.get_inplace_scratch_len()];
        let mut column = vec![Complex::zero(); h];
        for &k in &mask.columns {
            for (i, z) in column.iter_mut().enumerate() {
                let p = (i + h / 2) % h * w + k;
                *z = if mask.sampled[p] { Complex::new(re[p], im[p]) } else { Complex::zero() };
            }
            fft.column_inverse.process_with_scratch(&mut column, &mut scratch);
            let target = (k + w - w / 2) % w;
            for (z, row) in column.iter().zip(rows.chunks_mut(w)) {
                row[target] = *z;
            }
        }
        fft.row_inverse.process(&mut rows);
        let scale = T::of(1.0 / ((h * w) as f64).sqrt());
        let mut out = vec![Complex::zero(); h * w];
        for (i, row) in rows.chunks(w).enumerate() {
            let target = (i + h / 2) % h * w;
            for (j, &z) in row.iter().enumerate() {
                let p = target + (j + w / 2) % w;
                out[p] = map[p].conj() * z * scale;
            }
        }
        out
    }

    fn pixels(&self) -> usize {
        self.input[1] * self.input[2]
    }
}

impl Mask {
    fn new(mask: &[f64], h: usize, w: usize) -> Self {
        let sampled: Vec<bool> = (0..h * w).map(|p| mask[p % mask.len()] == 1.0).collect();
        let columns = (0..w).filter(|k| (0..h).any(|i| sampled[i * w + k])).collect();
        Self { sampled, columns }
    }
}

/// `[planes, 2, pixels]` as complex planes.
fn complex_planes(values: &[f64], pixels: usize) -> Spectrum {
    let plane = |plane: &[f64]| -> Vec<_> {
        let (re, im) = plane.split_at(pixels);
        re.iter().zip(im).map(|(&re, &im)| Complex::new(re, im)).collect()
    };
    Spectrum::new(values.chunks(2 * pixels).flat_map(plane).collect())
}

/// The diagonal of F AᵀA Fᴴ, in the transform's own order, not centred: for each frequency the share of every coil's energy
/// that a wave of it leaves at sampled positions. Among all maps that are diagonal in the Fourier basis, it is the nearest
/// to AᵀA.
fn fourier_diagonal(fft: &Fft2<f64>, maps: &[Complex<f64>], mask: &Mask) -> Values {
    let (h, w) = (fft.height, fft.width);
    let n = (h * w) as f64;
    let energy = maps.par_chunks(h * w).map(|map| {
        let mut z = map.to_vec();
        transform(fft, &mut z, false);
        z.iter().map(|z| z.norm_sqr() / (n * n)).collect::<Vec<f64>>()
    });
    let energy: Vec<Vec<f64>> = energy.collect();
    let total = |p: usize| energy.iter().map(|e| e[p]).sum::<f64>();
    // Σ over sampled q of |S(q - k)|²: a correlation, by the convolution theorem.
    let mut spread: Vec<Complex<f64>> = (0..h * w).map(|p| Complex::new(total(p), 0.0)).collect();
    let mut sampled: Vec<Complex<f64>> = (0..h * w)
        .map(|p| {
            let centered = (p / w + h / 2) % h * w + (p % w + w / 2) % w;
            Complex::new(f64::from(u8::from(mask.sampled[centered])), 0.0)
        })
        .collect();
    transform(fft, &mut spread, false);
    transform(fft, &mut sampled, false);
    let mut product: Vec<Complex<f64>> = spread.iter().zip(&sampled).map(|(s, m)| s.conj() * m).collect();
    transform(fft, &mut product, true);
    Values::new(product.iter().map(|z| (z.re / n).max(0.0)).collect())
}

/// The unnormalised two-dimensional transform of a complex plane, in place.
fn transform<T: Num>(fft: &Fft2<T>, z: &mut [Complex<T>], inverse: bool) {
    let (h, w) = (fft.height, fft.width);
    let (row, column) = if inverse {
        (&fft.row_inverse, &fft.column_inverse)
    } else {
        (&fft.row_forward, &fft.column_forward)
    };
    row.process(z);
    let mut turned = vec![Complex::zero(); h * w];
    for (i, row) in z.chunks(w).enumerate() {
        for (j, &v) in row.iter().enumerate() {
            turned[j * h + i] = v;
        }
    }
    column.process(&mut turned);
    for (j, line) in turned.chunks(h).enumerate() {
        for (i, &v) in line.iter().enumerate() {
            z[i * w + j] = v;
        }
    }
}

impl Operator for Mri {
    fn name(&self) -> &str {
        "mri"
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    fn is_measured_as_picture(&self) -> bool {
        false
    }

    fn domain(&self) -> Option<daps_core::Kind> {
        Some(daps_core::Kind::Complex)
    }

    fn shown(&self) -> Shown {
        Shown::CoilSpectra
    }

    fn input_shape(&self) -> &[usize] {
        &self.input
    }

    fn output_shape(&self) -> &[usize] {
        &self.output
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        check_batch(self.name(), x, &self.input, self.rows())?;
        let n = self.pixels();
        with_real!(x.dtype(), T => map_rows::<T>(self.name(), x, &self.input, &self.output, |row, x, out| {
            let (maps, mask) = (T::spectrum(self.maps.get(row)), self.masks.get(row));
            out.par_chunks_mut(2 * n).zip(maps.par_chunks(n)).for_each(|(out, map)| self.measure(mask, map, x, out));
        }))
    }

    /// Every coil sees the real and imaginary parts of what is sampled.
    fn visible(&self) -> Option<Vec<Vec<bool>>> {
        let planes = 2 * self.output[0];
        Some(self.masks.iter().map(|mask| mask.sampled.repeat(planes)).collect())
    }

    fn rows(&self) -> Option<usize> {
        self.maps.rows().or(self.masks.rows())
    }

    fn select(self: Arc<Self>, rows: &[usize]) -> Result<Arc<dyn Operator>> {
        if self.rows().is_none() {
            return Ok(self);
        }
        let (maps, masks) = (self.maps.select(rows)?, self.masks.select(rows)?);
        let (input, output) = (self.input.clone(), self.output.clone());
        Ok(Arc::new(Self::from_parts(input, output, maps, masks, Arc::clone(&self.plans))))
    }

    fn as_linear(&self) -> Option<&dyn Linear> {
        Some(self)
    }
}

impl Linear for Mri {
    fn adjoint(&self, r: &Tensor) -> Result<Tensor> {
        check_batch(self.name(), r, &self.output, self.rows())?;
        let n = self.pixels();
        with_real!(r.dtype(), T => map_rows::<T>(self.name(), r, &self.output, &self.input, |row, r, out| {
            let (maps, mask) = (T::spectrum(self.maps.get(row)), self.masks.get(row));
            let coils: Vec<Vec<Complex<T>>> =
                r.par_chunks(2 * n).zip(maps.par_chunks(n)).map(|(r, map)| self.pull_back(mask, map, r)).collect();
            let (re, im) = out.split_at_mut(n);
            for coil in &coils {
                for ((re, im), z) in re.iter_mut().zip(im.iter_mut()).zip(coil) {
                    *re += z.re;
                    *im += z.im;
                }
            }
        }))
    }

    fn norm_squared(&self) -> Option<Vec<f64>> {
        Some(self.norm_squared.clone())
    }

    /// f at the diagonal of AᵀA in the Fourier basis.
    fn approx_spectral_map(
        &self,
        f: &(dyn Fn(usize, f64) -> f64 + Sync),
        v: &Tensor,
    ) -> Option<Result<Tensor>> {
        if let Err(error) = check_batch(self.name(), v, &self.input, self.rows()) {
            return Some(Err(error));
        }
        let n = self.pixels();
        // Computed before it is put there: a thread that waits for parts of it may take up work that asks for it, too.
        let diagonal = match self.diagonal.get() {
            Some(diagonal) => diagonal,
            None => {
                let rows = 0..self.rows().unwrap_or(1);
                let one = |row| {
                    fourier_diagonal(self.plans.double(), self.maps.get(row).wide(), self.masks.get(row))
                };
                let computed = PerRow::new(rows.map(one).collect());
                self.diagonal.get_or_init(|| computed)
            }
        };
        Some(
            with_real!(v.dtype(), T => map_rows::<T>(self.name(), v, &self.input, &self.input, |row, v, out| {
                let (fft, shift) = (T::fft(&self.plans), SPREAD_SHIFT * pick(&self.norm_squared, row));
                let (re, im) = v.split_at(n);
                let mut z: Vec<Complex<T>> = re.iter().zip(im).map(|(&re, &im)| Complex::new(re, im)).collect();
                transform(fft, &mut z, false);
                for (z, &eigenvalue) in z.iter_mut().zip(diagonal.get(row).wide()) {
                    *z *= T::of(f(row, eigenvalue + shift) / n as f64);
                }
                transform(fft, &mut z, true);
                let (re, im) = out.split_at_mut(n);
                for ((re, im), z) in re.iter_mut().zip(im).zip(&z) {
                    (*re, *im) = (z.re, z.im);
                }
            })),
        )
    }
}
