//! Nonlinear blur: a camera shakes while light falls on the sensor, and stores what it caught through its tone curve.
//!
//! y = θ⁻¹(K θ(x)): θ takes picture values to light, K is a blur by a random shake, θ⁻¹ takes light back to picture values.
//! A sharp exposure (K = 1) and an even surface stay as they are; elsewhere bright light wins over dark, as it does when frames
//! are averaged before the camera's response. The curve is half a hyperbola,
//! θ(x) = x + κ (√(1 + c²x²) - 1)/c, whose slope rises smoothly from 1 - κ in the dark to 1 + κ in the light, for values
//! beyond [-1, 1] too, so that the map and its derivative are smooth and bounded everywhere.
//!
//! This is a model of our own for the paper's nonlinear deblurring, whose operator is a trained network (KernelWizard) that
//! has to be downloaded; the two share the task (undo a motion blur under an unknown-looking, smooth nonlinearity), not numbers.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::tensors::{BLOCK, Real, map_rows, zip_rows};
use daps_core::{Differentiable, Error, Linear, Operator, Result, with_real};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::blur::tasks::{KERNEL_FILE, SUPPLY, kernels};
use crate::blur::{Blur, BlurKernel, Border, motion_kernel};
use crate::example::{Example, registered};
use crate::params::{Params, beside, kernel_size, optional, same_shape};
use crate::registry::{self, FileParameter};

/// A blur between a tone curve and its inverse, on `[channels, height, width]` images.
#[derive(Debug)]
pub struct NonlinearBlur {
    blur: Blur,
    curve: Curve,
}

/// The tone curve.
#[derive(Clone, Copy, Debug)]
struct Curve {
    /// κ: how far the slope departs from 1.
    contrast: f64,
    /// c: how fast it does so around 0.
    knee: f64,
}

impl Curve {
    /// θ(x).
    fn light(self, x: f64) -> f64 {
        let t = self.knee * x;
        (t + self.contrast * ((1.0 + t * t).sqrt() - 1.0)) / self.knee
    }

    /// θ'(x), between 1 - κ and 1 + κ.
    fn slope(self, x: f64) -> f64 {
        let t = self.knee * x;
        1.0 + self.contrast * t / (1.0 + t * t).sqrt()
    }

    /// θ⁻¹(u): the root of a quadratic.
    fn tone(self, u: f64) -> f64 {
        let (k, w) = (self.contrast, self.knee * u + self.contrast);
        (w - k * (w * w + 1.0 - k * k).sqrt()) / ((1.0 - k * k) * self.knee)
    }
}

impl NonlinearBlur {
    /// With one kernel for all rows; `contrast` is κ from 0 (a linear blur) to below 1, `knee` is c, positive.
    pub fn new(
        shape: &[usize],
        kernel: BlurKernel,
        border: Border,
        contrast: f64,
        knee: f64,
    ) -> Result<Self> {
        if !(0.0..=0.95).contains(&contrast) {
            return Err(Error::invalid("nonlinear_blur contrast", "a number from 0 to 0.95", contrast));
        }
        if !(knee.is_finite() && knee > 0.0) {
            return Err(Error::invalid("nonlinear_blur knee", "a positive finite number", knee));
        }
        let blur = Blur::build("nonlinear_blur", shape, &[kernel], border, None)?;
        Ok(Self { blur, curve: Curve { contrast, knee } })
    }

    fn shape(&self) -> &[usize] {
        self.blur.input_shape()
    }

    /// `f` of every value; curves are computed in f64.
    fn each(&self, x: &Tensor, f: impl Fn(f64) -> f64 + Sync) -> Result<Tensor> {
        with_real!(x.dtype(), T => map_rows::<T>(self.name(), x, self.shape(), self.shape(), |_, x, out| {
            out.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK)).for_each(|(out, x)| {
                out.iter_mut().zip(x).for_each(|(out, x)| *out = T::of(f(x.wide())));
            });
        }))
    }

    /// `f` of every pair of values.
    fn pairs(&self, a: &Tensor, b: &Tensor, f: impl Fn(f64, f64) -> f64 + Sync) -> Result<Tensor> {
        let (a, b) = ((a, self.shape()), (b, self.shape()));
        with_real!(a.0.dtype(), T => zip_rows::<T>(self.name(), a, b, self.shape(), |_, a, b, out| {
            out.par_chunks_mut(BLOCK).zip(a.par_chunks(BLOCK)).zip(b.par_chunks(BLOCK)).for_each(|((out, a), b)| {
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = T::of(f(a.wide(), b.wide()));
                }
            });
        }))
    }
}

impl Operator for NonlinearBlur {
    fn name(&self) -> &str {
        "nonlinear_blur"
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    fn input_shape(&self) -> &[usize] {
        self.shape()
    }

    fn output_shape(&self) -> &[usize] {
        self.shape()
    }

    fn factors(&self) -> usize {
        self.shape()[0]
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let light = self.each(x, |x| self.curve.light(x))?;
        self.each(&self.blur.apply(&light)?, |u| self.curve.tone(u))
    }

    fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }

    fn as_differentiable(&self) -> Option<&dyn Differentiable> {
        Some(self)
    }
}

impl Differentiable for NonlinearBlur {
    fn vjp(&self, x: &Tensor, r: &Tensor) -> Result<Tensor> {
        self.vjp_of(x, &mut |_| Ok(r.clone()))
    }

    /// θ'(x) Kᵀ (r / θ'(y)): the inverse curve's slope at K θ(x) is one over the curve's slope at y.
    fn vjp_of(&self, x: &Tensor, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let y = self.apply(x)?;
        let weighed = self.pairs(&y, &f(&y)?, |y, r| r / self.curve.slope(y))?;
        self.pairs(x, &self.blur.adjoint(&weighed)?, |x, g| self.curve.slope(x) * g)
    }

    fn lipschitz_squared(&self) -> Option<Vec<f64>> {
        let k = self.curve.contrast;
        let norms = self.blur.norm_squared()?;
        Some(norms.iter().map(|norm| ((1.0 + k) / (1.0 - k)).powi(2) * norm).collect())
    }

    /// The bound is for dark points that are blurred into the brightest light; in pictures both are much alike.
    fn bound_is_loose(&self) -> bool {
        true
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NonlinearParams {
    /// Side of the kernel; 61 at a side of 256, in proportion.
    size: Option<usize>,
    /// Of the shake, from 0 (a straight line) to 1 (a wild one).
    intensity: Option<f64>,
    /// Of the tone curve, from 0 (a linear blur) to 0.95: its slope lies between one minus and one plus this.
    contrast: f64,
    /// How fast the curve's slope changes around the middle grey.
    knee: f64,
    /// `reflect` or `circular`.
    border: Border,
    /// The kernel of a file instead of a random shake.
    kernel: Option<PathBuf>,
}

impl Default for NonlinearParams {
    fn default() -> Self {
        Self { size: None, intensity: None, contrast: 0.8, knee: 2.0, border: Border::Reflect, kernel: None }
    }
}

impl Params for NonlinearParams {
    const FILES: &'static [FileParameter] = &[optional("kernel", "--kernel-file FILE", KERNEL_FILE)];
    const SUPPLY: &'static str = SUPPLY;

    fn complete(self, shape: &[usize]) -> Self {
        if self.kernel.is_some() {
            return self;
        }
        let (size, intensity) = (self.size.or(Some(kernel_size(shape))), self.intensity.or(Some(0.5)));
        Self { size, intensity, ..self }
    }

    fn drawn(&self) -> Option<&'static str> {
        self.kernel.is_none().then_some("its kernel")
    }

    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        same_shape(measured)
    }

    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>> {
        let kernel = match &self.kernel {
            None => motion_kernel(self.size.unwrap_or(0), self.intensity.unwrap_or(0.0), seed, 0)?,
            Some(file) => {
                beside(
                    name,
                    "kernel",
                    &[("size", self.size.is_some()), ("intensity", self.intensity.is_some())],
                )?;
                let mut kernels = kernels(file, false)?;
                match (kernels.len(), kernels.pop()) {
                    (1, Some(kernel)) => kernel,
                    (n, _) => return Err(Error::invalid("kernel of nonlinear_blur", "one kernel", n)),
                }
            }
        };
        Ok(Arc::new(NonlinearBlur::new(shape, kernel, self.border, self.contrast, self.knee)?))
    }
}

pub(crate) fn example([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    registered("nonlinear_blur", "size = 7", &[c, h.max(5), w.max(5)], seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::motion_kernel;
    use candle_core::{DType, Device};
    use daps_core::tensors::to_f64;
    use daps_core::{Gaussian, Smooth};

    #[test]
    fn the_curve_and_its_inverse_undo_each_other_and_the_slope_is_its_derivative() {
        for curve in [Curve { contrast: 0.8, knee: 2.0 }, Curve { contrast: 0.0, knee: 1.0 }] {
            for i in -40..=40 {
                let x = f64::from(i) * 0.1;
                assert!((curve.tone(curve.light(x)) - x).abs() < 1e-12, "{x}");
                let slope = (curve.light(x + 1e-6) - curve.light(x - 1e-6)) / 2e-6;
                assert!((slope - curve.slope(x)).abs() < 1e-8, "{x}");
            }
        }
    }

    /// Against the largest eigenvalue of JᵀJ/β², J column by column and row by row.
    #[test]
    fn the_curvature_around_a_picture_is_found() {
        let shape = [1, 10, 10];
        let operator =
            NonlinearBlur::new(&shape, motion_kernel(5, 0.5, 3, 0).unwrap(), Border::Reflect, 0.6, 2.0)
                .unwrap();
        let noise = daps_core::Noise::chains(4, 3);
        let at = |index| daps_core::Address::new(0, daps_core::Purpose::Instance, index);
        let x = (noise.normal(at(0), &shape, DType::F64).unwrap() * 0.4).unwrap();
        let beta = 0.1;
        let unit = |k: usize| {
            let mut e = vec![0.0; 100];
            e[k] = 1.0;
            Tensor::from_vec(e, (1, 1, 10, 10), &Device::Cpu).unwrap().repeat((3, 1, 1, 1)).unwrap()
        };
        // Row k of J for each of the three pictures.
        let rows: Vec<Vec<f64>> =
            (0..100).map(|k| to_f64(&operator.vjp(&x, &unit(k)).unwrap()).unwrap()).collect();
        let largest = |picture: usize| {
            let mut v = vec![1.0; 100];
            let mut norm = 0.0;
            for _ in 0..500 {
                let jv: Vec<f64> = rows
                    .iter()
                    .map(|r| r[picture * 100..][..100].iter().zip(&v).map(|(a, b)| a * b).sum())
                    .collect();
                let next: Vec<f64> = (0..100)
                    .map(|i| rows.iter().zip(&jv).map(|(r, y)| r[picture * 100 + i] * y).sum())
                    .collect();
                norm = next.iter().map(|x| x * x).sum::<f64>().sqrt();
                v = next.iter().map(|x| x / norm).collect();
            }
            norm / (beta * beta)
        };
        let y = operator.apply(&x).unwrap();
        let likelihood = Gaussian::new(Arc::new(operator), y, beta).unwrap();
        let found = likelihood.curvature_at(&x).unwrap();
        for (picture, found) in found.iter().enumerate() {
            let ratio = found / largest(picture);
            // Five turns come near from below, the margin lifts them.
            assert!((0.9..=1.2).contains(&ratio), "picture {picture}: {ratio}");
            assert!(*found < 0.7 * likelihood.curvature().unwrap()[0]);
        }
    }

    #[test]
    fn flat_pictures_stay_bright_points_spread_more_than_dark_ones_and_no_contrast_is_a_linear_blur() {
        let kernel = || motion_kernel(7, 0.5, 3, 0).unwrap();
        let build =
            |contrast| NonlinearBlur::new(&[1, 16, 16], kernel(), Border::Reflect, contrast, 2.0).unwrap();
        let flat = Tensor::full(0.4f64, (1, 1, 16, 16), &Device::Cpu).unwrap();
        for v in to_f64(&build(0.8).apply(&flat).unwrap()).unwrap() {
            assert!((v - 0.4).abs() < 1e-12, "{v}");
        }
        let point = |background: f64, value: f64| {
            let mut values = vec![background; 256];
            values[8 * 16 + 8] = value;
            Tensor::from_vec(values, (1, 1, 16, 16), &Device::Cpu).unwrap()
        };
        let moved = |operator: &NonlinearBlur, x: &Tensor, background: f64| -> f64 {
            let y = to_f64(&operator.apply(x).unwrap()).unwrap();
            y.iter().map(|v| (v - background).abs()).sum()
        };
        let curved = build(0.8);
        let (light, dark) = (moved(&curved, &point(-0.8, 0.8), -0.8), moved(&curved, &point(0.8, -0.8), 0.8));
        assert!(light > 1.5 * dark, "{light} {dark}");
        let x = point(-0.2, 0.7);
        let blur = Blur::new(&[1, 16, 16], &[kernel()], Border::Reflect).unwrap();
        let difference =
            crate::laws::relative_difference(&build(0.0).apply(&x).unwrap(), &blur.apply(&x).unwrap());
        assert!(difference.unwrap() < 1e-12);
        assert_eq!(x.dtype(), DType::F64);
        for (contrast, knee) in [(-0.1, 1.0), (1.0, 1.0), (f64::NAN, 1.0), (0.5, 0.0)] {
            assert!(NonlinearBlur::new(&[1, 16, 16], kernel(), Border::Reflect, contrast, knee).is_err());
        }
    }
}
