//! Phase retrieval: magnitudes of the Fourier transform of a zero-padded image, y = |F P (x/2 + 1/2)|, channel by channel.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{Device, Tensor, WithDType};
use daps_core::tensors::{Real, batched, check_rows, map_rows, with_slice, zip_rows};
use daps_core::{Differentiable, Error, Magnitudes, Operator, Result, Shown, with_real};
use rayon::prelude::*;
use realfft::num_complex::Complex;
use serde::{Deserialize, Serialize};

use crate::example::{Example, registered};
use crate::fft::Plans;
use crate::num::Num;
use crate::params::{Params, last_three};
use crate::registry;
use crate::rows::image_shape;

/// Centred orthonormal Fourier magnitudes of padded `[channels, height, width]` images.
#[derive(Debug)]
pub struct PhaseRetrieval {
    input: Vec<usize>,
    output: Vec<usize>,
    plans: Arc<Plans>,
    rows: Centred,
    columns: Centred,
}

/// Where the frequencies of one side stand in the centred spectrum.
#[derive(Debug)]
struct Centred {
    /// Place of frequency k.
    at: Vec<usize>,
    /// Place of frequency -k.
    mirror: Vec<usize>,
}

impl Centred {
    fn new(n: usize) -> Self {
        let at = |k: usize| (k + n / 2) % n;
        Self { at: (0..n).map(at).collect(), mirror: (0..n).map(|k| at((n - k) % n)).collect() }
    }
}

/// A side with its padding.
fn padded(side: usize, oversample: f64) -> usize {
    side + 2 * (oversample / 8.0 * side as f64) as usize
}

/// The half spectra of a batch's planes.
type Spectra<T> = Vec<Vec<Complex<T>>>;

impl PhaseRetrieval {
    /// Pads `oversample / 8` of each side (rounded down) before and after it; `oversample` may be 0.
    pub fn new(shape: &[usize], oversample: f64) -> Result<Self> {
        let (c, h, w) = image_shape("phase_retrieval", shape)?;
        if !(0.0..=64.0).contains(&oversample) {
            return Err(Error::invalid(
                "phase_retrieval oversample",
                "a number from 0 to 64 (eighths of the side)",
                oversample,
            ));
        }
        let [h, w] = [h, w].map(|side| padded(side, oversample));
        Ok(Self {
            input: shape.to_vec(),
            output: vec![c, h, w],
            plans: Plans::new(h, w),
            rows: Centred::new(h),
            columns: Centred::new(w),
        })
    }

    /// The half spectra of the padded, shifted planes. Where the padding puts an image within its plane changes phases
    /// only, so it is put first and the rows below it are known to be zero.
    fn spectra<T: Num>(&self, x: &Tensor) -> Result<Spectra<T>> {
        check_rows(self.name(), x, &self.input)?;
        let (h, w, half) = (self.input[1], self.input[2], T::of(0.5));
        let fft = T::fft(&self.plans);
        let spectrum = |x: &[T]| {
            fft.forward(0..h, |i, row| {
                for (out, &x) in row.iter_mut().zip(&x[i * w..(i + 1) * w]) {
                    *out = half * x + half;
                }
                row[w..].fill(T::default());
            })
        };
        with_slice(x, |x: &[T]| x.par_chunks(h * w).map(spectrum).collect())
    }

    /// The whole planes of magnitudes.
    fn magnitudes<T: Num>(&self, spectra: &Spectra<T>) -> Result<Tensor> {
        let [c, h, w] = self.output[..] else { unreachable!("checked when built") };
        let (half, scale) = (T::fft(&self.plans).half, self.scale::<T>());
        let mut out = vec![T::default(); spectra.len() * h * w];
        out.par_chunks_mut(h * w).zip(spectra).for_each(|(out, spectrum)| {
            let lengths: Vec<T> = spectrum.iter().map(|z| scale * magnitude(*z)).collect();
            out.par_chunks_mut(w).enumerate().for_each(|(row, out)| {
                // The spectrum of a real plane at -k is the conjugate of that at k: half of it serves all of `out`.
                let ky = (row + h - h / 2) % h;
                let minus = (h - ky) % h;
                for kx in 0..half {
                    out[self.columns.at[kx]] = lengths[kx * h + ky];
                }
                for kx in half..w {
                    out[self.columns.at[kx]] = lengths[(w - kx) * h + minus];
                }
            });
        });
        Ok(Tensor::from_vec(out, batched(spectra.len() / c, &self.output), &Device::Cpu)?)
    }

    /// Pulls `r` back through the magnitudes and the transform.
    /// Where a Fourier coefficient is zero, its magnitude has no derivative; zero, the mean of the directions, stands in.
    fn pull<T: Num>(&self, mut spectra: Spectra<T>, r: &Tensor) -> Result<Tensor> {
        let [c, h, w] = self.output[..] else { unreachable!("checked when built") };
        let (iw, plane) = (self.input[2], self.input[1] * self.input[2]);
        let batch = spectra.len() / c;
        if check_rows(self.name(), r, &self.output)? != batch {
            return Err(Error::shape(self.name(), &batched(batch, &self.output), r.dims()));
        }
        // Only the part of r that is even in the frequency reaches a real plane.
        let (fft, quarter) = (T::fft(&self.plans), T::of(0.25) * self.scale::<T>());
        let mut out = vec![T::default(); spectra.len() * plane];
        with_slice(&r.to_dtype(<T as WithDType>::DTYPE)?, |r: &[T]| {
            let planes = out.par_chunks_mut(plane).zip(&mut spectra).zip(r.par_chunks(h * w));
            planes.for_each(|((out, spectrum), r)| {
                spectrum.par_chunks_mut(h).enumerate().for_each(|(kx, column)| {
                    let (here, there) = (self.columns.at[kx], self.columns.mirror[kx]);
                    for ((z, row), minus) in column.iter_mut().zip(&self.rows.at).zip(&self.rows.mirror) {
                        let even = r[row * w + here] + r[minus * w + there];
                        let length = magnitude(*z);
                        let factor =
                            if length > T::default() { quarter * even / length } else { T::default() };
                        *z = Complex::new(z.re * factor, z.im * factor);
                    }
                });
                fft.inverse(spectrum, self.input[1], out, |_, row, out| out.copy_from_slice(&row[..iw]));
            });
        })?;
        Ok(Tensor::from_vec(out, batched(batch, &self.input), &Device::Cpu)?)
    }

    fn scale<T: Num>(&self) -> T {
        T::of(1.0 / ((self.output[1] * self.output[2]) as f64).sqrt())
    }
}

fn magnitude<T: Num>(z: Complex<T>) -> T {
    num_traits::Float::sqrt(z.re * z.re + z.im * z.im)
}

impl Operator for PhaseRetrieval {
    fn name(&self) -> &str {
        "phase_retrieval"
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    /// A shift or a half turn keeps all magnitudes.
    fn is_ambiguous(&self) -> bool {
        true
    }

    fn is_measured_as_picture(&self) -> bool {
        false
    }

    fn shown(&self) -> Shown {
        Shown::LogMagnitudes
    }

    fn input_shape(&self) -> &[usize] {
        &self.input
    }

    fn output_shape(&self) -> &[usize] {
        &self.output
    }

    fn factors(&self) -> usize {
        self.input[0]
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        with_real!(x.dtype(), T => self.magnitudes(&self.spectra::<T>(x)?))
    }

    fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }

    fn as_differentiable(&self) -> Option<&dyn Differentiable> {
        Some(self)
    }

    fn as_magnitudes(&self) -> Option<&dyn Magnitudes> {
        Some(self)
    }
}

/// The image lies in the plane's first rows and columns: where it lies changes phases only.
impl Magnitudes for PhaseRetrieval {
    fn embed(&self, x: &Tensor) -> Result<Tensor> {
        let (&[_, h, w], &[_, ih, iw]) = (&self.output[..], &self.input[..]) else {
            unreachable!("checked when built")
        };
        with_real!(x.dtype(), T => map_rows::<T>(self.name(), x, &self.input, &self.output, |_, x, out| {
            for (x, out) in x.chunks(ih * iw).zip(out.chunks_mut(h * w)) {
                for (x, out) in x.chunks(iw).zip(out.chunks_mut(w)) {
                    out.iter_mut().zip(x).for_each(|(o, &x)| *o = T::of(0.5) * x + T::of(0.5));
                }
            }
        }))
    }

    fn crop(&self, g: &Tensor) -> Result<Tensor> {
        let (&[_, h, w], &[_, ih, iw]) = (&self.output[..], &self.input[..]) else {
            unreachable!("checked when built")
        };
        with_real!(g.dtype(), T => map_rows::<T>(self.name(), g, &self.output, &self.input, |_, g, out| {
            for (g, out) in g.chunks(h * w).zip(out.chunks_mut(ih * iw)) {
                for (g, out) in g.chunks(w).zip(out.chunks_mut(iw)) {
                    out.iter_mut().zip(g).for_each(|(o, &g)| *o = T::of(2.0) * g - T::of(1.0));
                }
            }
        }))
    }

    fn project(&self, g: &Tensor, y: &Tensor) -> Result<Tensor> {
        let [_, h, w] = self.output[..] else { unreachable!("checked when built") };
        let (plane, y) = ((g, self.output_shape()), (y, self.output_shape()));
        with_real!(g.dtype(), T => zip_rows::<T>(self.name(), plane, y, &self.output, |_, g, y, out| {
            out.par_chunks_mut(h * w).zip(g.par_chunks(h * w)).zip(y.par_chunks(h * w)).for_each(|((out, g), y)| {
                let fft = T::fft(&self.plans);
                let mut spectrum = fft.forward(0..h, |i, row| row.copy_from_slice(&g[i * w..(i + 1) * w]));
                // A real plane has equal magnitudes at k and -k, so the nearest one takes the mean of the two. The
                // transforms are not normalised: one of them carries the factor of both.
                let scale = T::of(0.5) * self.scale::<T>();
                let positive = |v: T| if v > T::default() { v } else { T::default() };
                spectrum.par_chunks_mut(h).enumerate().for_each(|(kx, column)| {
                    let (here, there) = (self.columns.at[kx], self.columns.mirror[kx]);
                    for ((z, row), minus) in column.iter_mut().zip(&self.rows.at).zip(&self.rows.mirror) {
                        let target = scale * (positive(y[row * w + here]) + positive(y[minus * w + there]));
                        let length = magnitude(*z);
                        *z = if length > T::default() {
                            Complex::new(z.re * target / length, z.im * target / length)
                        } else {
                            Complex::new(target, T::default())
                        };
                    }
                });
                fft.inverse(&mut spectrum, h, out, |_, row, out| out.copy_from_slice(&row[..w]));
            });
        }))
    }
}

impl Differentiable for PhaseRetrieval {
    fn vjp(&self, x: &Tensor, r: &Tensor) -> Result<Tensor> {
        with_real!(x.dtype(), T => self.pull(self.spectra::<T>(x)?, r))
    }

    /// Magnitudes and derivative come from the same spectrum.
    fn vjp_of(&self, x: &Tensor, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        with_real!(x.dtype(), T => {
            let spectra = self.spectra::<T>(x)?;
            let r = f(&self.magnitudes(&spectra)?)?;
            self.pull(spectra, &r)
        })
    }

    /// The transform and the padding keep lengths, a magnitude never grows faster than its argument, and the affine map
    /// halves.
    fn lipschitz_squared(&self) -> Option<Vec<f64>> {
        Some(vec![0.25])
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PhaseParams {
    /// Eighths of the side that are padded on each side.
    oversample: f64,
}

impl Default for PhaseParams {
    fn default() -> Self {
        Self { oversample: 2.0 }
    }
}

impl Params for PhaseParams {
    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        let Some([c, h, w]) = last_three(measured) else { return Ok(None) };
        let side = |side: usize| {
            let found = (1..=side).find(|&n| padded(n, self.oversample) >= side);
            found.filter(|&n| padded(n, self.oversample) == side).ok_or_else(|| {
                let expected = format!("a side that padding by {} eighths gives", self.oversample);
                Error::invalid("phase_retrieval measurement", expected, side)
            })
        };
        Ok(Some(vec![c, side(h)?, side(w)?]))
    }

    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        Ok(Arc::new(PhaseRetrieval::new(shape, self.oversample)?))
    }
}

pub(crate) fn example(size: [usize; 3], seed: u64) -> Result<Example> {
    let params = format!("oversample = {}.0", seed % 5);
    registered("phase_retrieval", &params, &size, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn a_constant_image_has_one_coefficient_at_the_centre() {
        let op = PhaseRetrieval::new(&[1, 4, 6], 0.0).unwrap();
        let x = Tensor::ones((1, 1, 4, 6), DType::F64, &Device::Cpu).unwrap();
        let y = daps_core::tensors::to_f64(&op.apply(&x).unwrap()).unwrap();
        for (i, v) in y.iter().enumerate() {
            let expected = if i == 2 * 6 + 3 { 24f64.sqrt() } else { 0.0 };
            assert!((v - expected).abs() < 1e-12, "{i}: {v}");
        }
    }

    #[test]
    fn projections_have_the_measured_magnitudes_and_keep_a_plane_that_has_them() {
        let op = PhaseRetrieval::new(&[1, 4, 6], 4.0).unwrap();
        let values = |n: usize, f: f64| (0..n).map(|i| (i as f64 * f).sin() * 0.8).collect::<Vec<f64>>();
        let x = Tensor::from_vec(values(24, 0.7), (1, 1, 4, 6), &Device::Cpu).unwrap();
        let other = Tensor::from_vec(values(24, 1.3), (1, 1, 4, 6), &Device::Cpu).unwrap();
        let y = op.apply(&x).unwrap();
        let close = |a: &Tensor, b: &Tensor| {
            let (a, b) = (daps_core::tensors::to_f64(a).unwrap(), daps_core::tensors::to_f64(b).unwrap());
            a.iter().zip(&b).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{a} vs {b}"));
        };
        let g = op.embed(&x).unwrap();
        close(&op.crop(&g).unwrap(), &x);
        close(&op.project(&g, &y).unwrap(), &g);
        // The projection of another plane lives on the whole plane: an operator without padding measures it.
        let whole = PhaseRetrieval::new(&op.output, 0.0).unwrap();
        let projected = op.project(&op.embed(&other).unwrap(), &y).unwrap();
        close(&whole.apply(&whole.crop(&projected).unwrap()).unwrap(), &y);
    }

    #[test]
    fn the_gradient_is_defined_where_nothing_is_seen() {
        let op = PhaseRetrieval::new(&[1, 4, 4], 2.0).unwrap();
        let x = Tensor::full(-1f32, (1, 1, 4, 4), &Device::Cpu).unwrap();
        let r = Tensor::ones((1, 1, 6, 6), DType::F32, &Device::Cpu).unwrap();
        let g = daps_core::tensors::to_f64(&op.vjp(&x, &r).unwrap()).unwrap();
        assert!(g.iter().all(|v| *v == 0.0), "{g:?}");
        assert!(PhaseRetrieval::new(&[1, 4, 4], -1.0).is_err());
    }
}
