//! Blurring as tasks: by a Gaussian, by a random shake, by a kernel of a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use daps_core::tensors::to_f64;
use daps_core::{Error, Operator, Result};
use daps_files::is_picture;
use serde::{Deserialize, Serialize};

use super::{Blur, BlurKernel, Border, gaussian_kernel, motion_kernel};
use crate::example::{Example, registered, with_input};
use crate::files::read;
use crate::params::{Params, kernel_size, required, same_shape, side};
use crate::registry::{FileParameter, FromFile};

/// The option of `daps solve` that gives a kernel, and the operator that takes it.
pub(crate) const SUPPLY: &str = "--kernel-file FILE";
const FROM_FILE: Option<FromFile> = Some(FromFile { operator: "blur", parameter: "kernel" });

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GaussianParams {
    /// Side of the kernel; 61 at a side of 256, in proportion.
    size: Option<usize>,
    /// Standard deviation in pixels; 3 at a side of 256, in proportion to the side's root (1.5 at 64).
    std: Option<f64>,
    /// `reflect` or `circular`.
    border: Border,
}

impl Params for GaussianParams {
    const FROM_FILE: Option<FromFile> = FROM_FILE;

    fn complete(self, shape: &[usize]) -> Self {
        let std = 3.0 * (side(shape) as f64 / 256.0).sqrt();
        Self { size: self.size.or(Some(kernel_size(shape))), std: self.std.or(Some(std)), ..self }
    }

    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        same_shape(measured)
    }

    fn operator(self, name: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        let kernel = gaussian_kernel(self.size.unwrap_or(0), self.std.unwrap_or(0.0))?;
        Ok(Arc::new(Blur::build(name, shape, &[kernel], self.border, None)?))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MotionParams {
    /// Side of the kernel; 61 at a side of 256, in proportion.
    size: Option<usize>,
    /// From 0 (a straight line) to 1 (a wild shake).
    intensity: f64,
    /// `reflect` or `circular`.
    border: Border,
}

impl Default for MotionParams {
    fn default() -> Self {
        Self { size: None, intensity: 0.5, border: Border::Reflect }
    }
}

impl Params for MotionParams {
    const SUPPLY: &'static str = SUPPLY;
    const FROM_FILE: Option<FromFile> = FROM_FILE;

    fn complete(self, shape: &[usize]) -> Self {
        Self { size: self.size.or(Some(kernel_size(shape))), ..self }
    }

    fn drawn(&self) -> Option<&'static str> {
        Some("its kernel")
    }

    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        same_shape(measured)
    }

    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>> {
        let kernel = motion_kernel(self.size.unwrap_or(0), self.intensity, seed, 0)?;
        Ok(Arc::new(Blur::build(name, shape, &[kernel], self.border, None)?))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlurParams {
    /// A picture (scaled to sum 1), or a `.npy` or `.safetensors` array `[height, width]` or `[rows, height, width]`.
    kernel: PathBuf,
    /// Whether to scale each kernel to sum 1.
    #[serde(default)]
    normalize: bool,
    /// `reflect` or `circular`.
    #[serde(default)]
    border: Border,
}

/// The kernels of a file; those of a picture are scaled to sum 1.
pub(crate) fn kernels(file: &Path, normalize: bool) -> Result<Vec<BlurKernel>> {
    let array = read(file, "kernel")?;
    let (h, w) = match *array.dims() {
        [h, w] | [_, h, w] if h * w > 0 => (h, w),
        ref other => {
            let expected = "shape [height, width] or [rows, height, width]";
            return Err(Error::invalid("blur kernel", expected, format!("{other:?}")));
        }
    };
    let scaled = normalize || is_picture(file);
    let one = |values: &[f64]| {
        let sum: f64 = values.iter().sum();
        if scaled && !(sum.abs() > 0.0 && sum.is_finite()) {
            return Err(Error::invalid("blur kernel", "a sum that can be scaled to 1", sum));
        }
        let scale = if scaled { 1.0 / sum } else { 1.0 };
        BlurKernel::new(&values.iter().map(|v| v * scale).collect::<Vec<_>>(), h, w)
    };
    to_f64(&array)?.chunks(h * w).map(one).collect()
}

pub(crate) const KERNEL_FILE: &str = "an image (scaled to sum 1), or an array [height, width]";

impl Params for BlurParams {
    const FILES: &'static [FileParameter] = &[required("kernel", "--kernel-file FILE", KERNEL_FILE)];

    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        same_shape(measured)
    }

    fn operator(self, name: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        let kernels = kernels(&self.kernel, self.normalize)?;
        Ok(Arc::new(Blur::build(name, shape, &kernels, self.border, None)?))
    }
}

/// Odd seeds: periodic.
fn border(seed: u64) -> Border {
    if seed % 2 == 1 { Border::Circular } else { Border::Reflect }
}

pub(crate) fn gaussian_example([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let params = match border(seed) {
        Border::Reflect => "size = 5\nstd = 0.8",
        Border::Circular => "size = 5\nstd = 0.8\nborder = 'circular'",
    };
    registered("gaussian_blur", params, &[c, h.max(3), w.max(3)], seed)
}

pub(crate) fn motion_example([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    registered("motion_blur", "size = 7", &[c, h.max(5), w.max(5)], seed)
}

/// A kernel per row: a shake, an even-sided one of both signs, and an outer product.
pub(crate) fn example([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let mixed = [0.2, -0.1, 0.4, 0.0, 0.3, 0.1, 0.05, -0.2];
    let outer = [0.1, 0.2, 0.1, 0.3, 0.6, 0.3];
    let kernels =
        [motion_kernel(5, 0.5, seed, 1)?, BlurKernel::new(&mixed, 4, 2)?, BlurKernel::new(&outer, 2, 3)?];
    let shape = [c, h.max(5), w.max(5)];
    with_input(Arc::new(Blur::new(&shape, &kernels, border(seed))?), seed)
}
