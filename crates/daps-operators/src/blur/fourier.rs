//! Blur by Fourier transforms: on a padded plane for any border, and on the plane itself where it is periodic, which also
//! gives the periodic blur its singular value decomposition.

use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use realfft::num_complex::Complex;

use super::padded::Padding;
use super::{BlurKernel, Border};
use crate::fft::{Plans, fast_length};
use crate::num::{Num, Spectrum};

/// A kernel's spectrum and the padding that makes a periodic convolution the one that is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Fourier {
    padding: Padding,
    plans: Arc<Plans>,
    /// Half spectrum of the correlation, transposed as [`crate::fft::Fft2`] keeps it, divided by the number of values.
    symbol: Spectrum,
    /// The symbol's phase over the whole grid, made when modes are first asked for.
    phase: OnceLock<Spectrum>,
}

impl Fourier {
    /// With reflect padding on a plane large enough that nothing wraps; without any where the border is circular.
    pub fn new(kernel: &BlurKernel, border: Border, height: usize, width: usize) -> Self {
        match border {
            Border::Circular => Self::periodic(kernel, Plans::new(height, width), height, width),
            Border::Reflect => {
                let padding = Padding::new(kernel, border, height, width);
                let plans = Plans::new(fast_length(padding.rows.len()), fast_length(padding.columns.len()));
                let symbol = symbol(kernel, &plans, (0, 0));
                Self { padding, plans, symbol, phase: OnceLock::new() }
            }
        }
    }

    /// The periodic blur on the image's own grid.
    pub fn periodic(kernel: &BlurKernel, plans: Arc<Plans>, height: usize, width: usize) -> Self {
        let symbol = symbol(kernel, &plans, (kernel.above, kernel.left));
        Self { padding: Padding::none(height, width), plans, symbol, phase: OnceLock::new() }
    }

    pub fn apply<T: Num>(&self, x: &[T], out: &mut [T]) {
        let width = self.padding.width;
        T::fft(&self.plans).put_rows(&self.blurred(x), self.padding.height, out, |_, row, out| {
            out.copy_from_slice(&row[..width]);
        });
    }

    /// The padded plane after the blur, but for the last transforms.
    fn blurred<T: Num>(&self, x: &[T]) -> Vec<Complex<T>> {
        let (fft, symbol) = (T::fft(&self.plans), T::spectrum(&self.symbol));
        let (rows, columns) = (self.padding.rows.len(), self.padding.columns.len());
        let lines = fft.rows(0..rows, |p, row| {
            self.padding.fill(x, p, row);
            row[columns..].fill(T::default());
        });
        fft.filtered(&lines, 0..rows, |first, spectrum| {
            spectrum.iter_mut().zip(&symbol[first * fft.height..]).for_each(|(z, &k)| *z *= k);
        })
    }

    pub fn adjoint<T: Num>(&self, r: &[T], out: &mut [T]) {
        let (height, width) = (self.padding.height, self.padding.width);
        let lines = T::fft(&self.plans).rows(0..height, |i, row| {
            row[..width].copy_from_slice(&r[i * width..(i + 1) * width]);
            row[width..].fill(T::default());
        });
        self.blurred_back(&lines, out);
    }

    /// [`Fourier::apply`] and [`Fourier::adjoint`]: the measurement between them exists line by line only.
    pub fn gram<T: Num>(&self, x: &[T], out: &mut [T]) {
        let (height, width) = (self.padding.height, self.padding.width);
        self.blurred_back(&T::fft(&self.plans).crop_rows(&self.blurred(x), height, width), out);
    }

    /// The transpose of blur and padding, from the measurement's transformed rows.
    fn blurred_back<T: Num>(&self, lines: &[Complex<T>], out: &mut [T]) {
        let (fft, symbol) = (T::fft(&self.plans), T::spectrum(&self.symbol));
        let plane = fft.filtered(lines, 0..self.padding.height, |first, spectrum| {
            spectrum.iter_mut().zip(&symbol[first * fft.height..]).for_each(|(z, k)| *z *= k.conj());
        });
        let (rows, columns) = (self.padding.rows.len(), self.padding.columns.len());
        let mut spread = vec![T::default(); rows * columns];
        fft.put_rows(&plane, rows, &mut spread, |_, row, out| out.copy_from_slice(&row[..columns]));
        self.padding.fold(&spread, columns, out);
    }

    /// The largest squared magnitude of the symbol: the squared norm of the periodic convolution.
    pub fn largest_squared(&self) -> f64 {
        let n = self.values();
        self.symbol.wide().iter().map(|k| (k * n).norm_sqr()).fold(0.0, f64::max)
    }

    fn values(&self) -> f64 {
        let fft = self.plans.double();
        (fft.height * fft.width) as f64
    }

    /// f(λ) at every eigenvalue λ = |k|² of the periodic AᵀA, applied to one plane.
    pub fn spectral_map<T: Num>(&self, f: &(dyn Fn(f64) -> f64 + Sync), x: &[T], out: &mut [T]) {
        let fft = T::fft(&self.plans);
        let (n, width) = (self.values(), fft.width);
        let (live, symbol) = (0..fft.height, self.symbol.wide());
        let lines = fft.rows(live.clone(), |i, row| row.copy_from_slice(&x[i * width..(i + 1) * width]));
        let plane = fft.filtered(&lines, live, |first, spectrum| {
            for (z, k) in spectrum.iter_mut().zip(&symbol[first * fft.height..]) {
                let factor = T::of(f((k * n).norm_sqr()) / n);
                *z = Complex::new(z.re * factor, z.im * factor);
            }
        });
        fft.put_rows(&plane, fft.height, out, |_, row, out| out.copy_from_slice(row));
    }

    /// Magnitudes of the symbol over the whole grid: the singular values, in the order of [`Fourier::hartley`].
    pub fn singular(&self) -> Vec<f64> {
        let (h, w, n) = (self.padding.height, self.padding.width, self.values());
        (0..h * w).map(|i| self.symbol_at(i / w, i % w).norm() * n).collect()
    }

    /// The symbol at a frequency of the whole grid.
    fn symbol_at(&self, ky: usize, kx: usize) -> Complex<f64> {
        let (h, w) = (self.padding.height, self.padding.width);
        let symbol = self.symbol.wide();
        if kx <= w / 2 { symbol[kx * h + ky] } else { symbol[(w - kx) * h + (h - ky) % h].conj() }
    }

    /// The orthonormal Hartley transform, Re - Im of the Fourier transform: real, symmetric, its own inverse.
    pub fn hartley<T: Num>(&self, x: &[T], out: &mut [T]) {
        let fft = T::fft(&self.plans);
        let (h, w) = (fft.height, fft.width);
        let scale = T::of(1.0 / self.values().sqrt());
        let spectrum = fft.forward(0..h, |i, row| row.copy_from_slice(&x[i * w..(i + 1) * w]));
        out.par_chunks_mut(w).enumerate().for_each(|(ky, out)| {
            let minus = (h - ky) % h;
            for (kx, out) in out.iter_mut().enumerate() {
                *out = if kx <= w / 2 {
                    let z = spectrum[kx * h + ky];
                    scale * (z.re - z.im)
                } else {
                    let z = spectrum[(w - kx) * h + minus];
                    scale * (z.re + z.im)
                };
            }
        });
    }

    /// Turns Hartley coefficients by the symbol's phase, `sign` = 1 from V's modes to U's, -1 back: frequency k mixes with
    /// -k only, as a rotation.
    pub fn rotate<T: Num>(&self, sign: f64, c: &[T], out: &mut [T]) {
        let (h, w) = (self.padding.height, self.padding.width);
        let phase = T::spectrum(self.phase.get_or_init(|| self.phases()));
        let sign = T::of(sign);
        out.par_chunks_mut(w).enumerate().for_each(|(ky, out)| {
            let here = &c[ky * w..][..w];
            let minus = &c[(h - ky) % h * w..][..w];
            for ((kx, out), p) in out.iter_mut().enumerate().zip(&phase[ky * w..]) {
                *out = p.re * here[kx] - sign * p.im * minus[(w - kx) % w];
            }
        });
    }

    /// The symbol's phase over the whole grid. A frequency that is its own negative has a real symbol: its phase is a sign,
    /// whatever rounding left behind.
    fn phases(&self) -> Spectrum {
        let (h, w) = (self.padding.height, self.padding.width);
        let phase = |i: usize| {
            let (ky, kx) = (i / w, i % w);
            let k = self.symbol_at(ky, kx);
            if (2 * ky).is_multiple_of(h) && (2 * kx).is_multiple_of(w) {
                Complex::new(if k.re < 0.0 { -1.0 } else { 1.0 }, 0.0)
            } else if k.norm() == 0.0 {
                Complex::new(1.0, 0.0)
            } else {
                k / k.norm()
            }
        };
        Spectrum::new((0..h * w).map(phase).collect())
    }
}

/// The spectrum that turns x into Σ k[a, b] x[i + a - above, j + b - left], divided by the number of values.
fn symbol(kernel: &BlurKernel, plans: &Plans, (above, left): (usize, usize)) -> Spectrum {
    let fft = plans.double();
    let (h, w) = (fft.height, fft.width);
    let mut plane = vec![0.0; h * w];
    for (a, b, weight) in kernel.taps() {
        let place = |k: usize, center: usize, n: usize| {
            (k as isize - center as isize).rem_euclid(n as isize) as usize
        };
        plane[place(a, above, h) * w + place(b, left, w)] += weight;
    }
    let spectrum = fft.forward(0..h, |i, row| row.copy_from_slice(&plane[i * w..(i + 1) * w]));
    // A correlation multiplies by the conjugate.
    Spectrum::new(spectrum.into_iter().map(|z| z.conj() / (h * w) as f64).collect())
}
