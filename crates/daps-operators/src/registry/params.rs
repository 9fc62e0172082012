//! The parameters of every operator: serde structs whose defaults are the paper's values, scaled with the image's side.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use daps_core::real::to_f64;
use daps_core::{Error, Operator, Result};
use daps_files::is_picture;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::FileParameter;
use crate::blur::{Blur, Border, Kernel, gaussian_kernel, motion_kernel};
use crate::files::{read, with_rank};
use crate::mri::{Mri, coil_maps, line_mask};
use crate::rows::image_shape;
use crate::{
    Dense, Gate, Hdr, Inpainting, NonlinearBlur, Pairs, PhaseRetrieval, SuperResolution, Toy2d, box_mask,
    overlapping_pairs, random_mask, random_pairs,
};

/// Parameters that build an operator.
pub(crate) trait Params: Serialize + DeserializeOwned {
    /// Parameters that are files.
    const FILES: &'static [FileParameter] = &[];

    /// What is drawn from the seed.
    fn drawn(&self) -> Option<&'static str> {
        None
    }

    /// Fills what was not given with the defaults for images of this shape.
    fn complete(self, shape: &[usize]) -> Self {
        let _ = shape;
        self
    }

    /// Builds the operator; `self` is complete.
    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>>;

    /// Reads and completes a table.
    fn read(name: &str, table: &Table, shape: &[usize]) -> Result<Self> {
        let params: Self = table.clone().try_into().map_err(|error: toml::de::Error| {
            let message = error.to_string().trim().replace('\n', " ");
            Error::invalid(format!("parameters of {name}"), "known names with values of their type", message)
        })?;
        Ok(params.complete(shape))
    }

    /// The same table with every default for images of a shape spelled out.
    fn completed(name: &str, table: &Table, shape: &[usize]) -> Result<Table> {
        Table::try_from(Self::read(name, table, shape)?)
            .map_err(|e| Error::invalid(format!("parameters of {name}"), "values that TOML can hold", e))
    }

    /// The defaults for images of a shape; empty if some parameter is required.
    fn default_table(shape: &[usize]) -> Table {
        let params: std::result::Result<Self, _> = Table::new().try_into();
        params.ok().and_then(|p: Self| Table::try_from(p.complete(shape)).ok()).unwrap_or_default()
    }
}

const fn required(name: &'static str, holds: &'static str) -> FileParameter {
    FileParameter { name, holds, required: true }
}

const fn optional(name: &'static str, holds: &'static str) -> FileParameter {
    FileParameter { name, holds, required: false }
}

/// Refuses settings of what a file says.
fn beside(operator: &str, file: &str, given: &[(&str, bool)]) -> Result<()> {
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(Error::invalid(operator, format!("either {file} or {name}"), "both")),
        None => Ok(()),
    }
}

/// The shorter side of an image.
fn side(shape: &[usize]) -> usize {
    shape.iter().skip(1).copied().min().unwrap_or(1)
}

/// The paper's 61 at a side of 256, in proportion, rounded to an odd number of at least 3.
fn kernel_size(shape: &[usize]) -> usize {
    let size = (61 * side(shape)) as f64 / 256.0;
    (2 * ((size - 1.0) / 2.0).round() as usize + 1).max(3)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SuperResolutionParams {
    /// How many times smaller each side becomes.
    factor: usize,
}

impl Default for SuperResolutionParams {
    fn default() -> Self {
        Self { factor: 4 }
    }
}

impl Params for SuperResolutionParams {
    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        Ok(Arc::new(SuperResolution::new(shape, self.factor)?))
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BoxParams {
    /// Side of the hidden square; half the image's.
    size: Option<usize>,
    /// Distance that it keeps from the border; an eighth of the image's side.
    margin: Option<usize>,
}

impl Params for BoxParams {
    fn complete(self, shape: &[usize]) -> Self {
        let side = side(shape);
        Self { size: self.size.or(Some(side / 2)), margin: self.margin.or(Some(side / 8)) }
    }

    fn drawn(&self) -> Option<&'static str> {
        Some("the place of its box")
    }

    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>> {
        let (_, h, w) = image_shape(name, shape)?;
        let mask = box_mask(h, w, self.size.unwrap_or(0), self.margin.unwrap_or(0), seed)?;
        Ok(Arc::new(Inpainting::named(name, shape, &mask)?))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RandomParams {
    /// Fraction of the pixels that is hidden.
    fraction: f64,
}

impl Default for RandomParams {
    fn default() -> Self {
        Self { fraction: 0.7 }
    }
}

impl Params for RandomParams {
    fn drawn(&self) -> Option<&'static str> {
        Some("its mask")
    }

    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>> {
        let (_, h, w) = image_shape(name, shape)?;
        Ok(Arc::new(Inpainting::named(name, shape, &random_mask(h, w, self.fraction, seed)?)?))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MaskParams {
    /// A picture (white = kept), or a `.npy` or `.safetensors` array of zeros and ones.
    mask: PathBuf,
}

impl Params for MaskParams {
    const FILES: &'static [FileParameter] =
        &[required("mask", "a picture (white = kept), or an array of zeros and ones [height, width]")];

    fn operator(self, name: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        let mut mask = with_rank(&read(&self.mask, "mask")?, 4)?;
        if is_picture(&self.mask) {
            mask = mask.ge(0.5)?;
        }
        Ok(Arc::new(Inpainting::named(name, shape, &mask)?))
    }
}

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
    fn complete(self, shape: &[usize]) -> Self {
        let std = 3.0 * (side(shape) as f64 / 256.0).sqrt();
        Self { size: self.size.or(Some(kernel_size(shape))), std: self.std.or(Some(std)), ..self }
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
    fn complete(self, shape: &[usize]) -> Self {
        Self { size: self.size.or(Some(kernel_size(shape))), ..self }
    }

    fn drawn(&self) -> Option<&'static str> {
        Some("its kernel")
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
fn kernels(file: &Path, normalize: bool) -> Result<Vec<Kernel>> {
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
        Kernel::new(&values.iter().map(|v| v * scale).collect::<Vec<_>>(), h, w)
    };
    to_f64(&array)?.chunks(h * w).map(one).collect()
}

const KERNEL_FILE: &str = "a picture (scaled to sum 1), or an array [height, width]";

impl Params for BlurParams {
    const FILES: &'static [FileParameter] = &[required("kernel", KERNEL_FILE)];

    fn operator(self, name: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        let kernels = kernels(&self.kernel, self.normalize)?;
        Ok(Arc::new(Blur::build(name, shape, &kernels, self.border, None)?))
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
    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        Ok(Arc::new(PhaseRetrieval::new(shape, self.oversample)?))
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
    const FILES: &'static [FileParameter] = &[optional("kernel", KERNEL_FILE)];

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
                match (kernels.pop(), kernels.is_empty()) {
                    (Some(kernel), true) => kernel,
                    _ => return Err(Error::invalid("kernel of nonlinear_blur", "one kernel", "several")),
                }
            }
        };
        Ok(Arc::new(NonlinearBlur::new(shape, kernel, self.border, self.contrast, self.knee)?))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HdrParams {
    /// Exposure.
    scale: f64,
}

impl Default for HdrParams {
    fn default() -> Self {
        Self { scale: 2.0 }
    }
}

impl Params for HdrParams {
    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        Ok(Arc::new(Hdr::new(shape, self.scale)?))
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MriParams {
    /// Number of synthetic coils, where no maps are given; 4.
    coils: Option<usize>,
    /// One of how many columns is sampled, where no mask is given; 4.
    acceleration: Option<f64>,
    /// Fraction of the columns, around frequency 0, that is then always sampled; 0.08 at acceleration 4, 0.04 at 8.
    center: Option<f64>,
    /// `.npy` or `.safetensors` maps `[coils, 2, height, width]` instead of synthetic ones.
    maps: Option<PathBuf>,
    /// `.npy` or `.safetensors` mask `[width]` or `[height, width]` instead of a random one.
    mask: Option<PathBuf>,
}

impl Params for MriParams {
    const FILES: &'static [FileParameter] = &[
        optional(
            "maps",
            "an array [coils, 2, height, width] of the coils' sensitivities, real and imaginary part",
        ),
        optional(
            "mask",
            "an array [width] or [height, width] of zeros and ones: what was sampled, frequency 0 in the middle",
        ),
    ];

    fn complete(mut self, _: &[usize]) -> Self {
        if self.maps.is_none() {
            self.coils = self.coils.or(Some(4));
        }
        if self.mask.is_none() {
            let acceleration = self.acceleration.unwrap_or(4.0);
            self.acceleration = Some(acceleration);
            self.center = self.center.or(Some((0.32 / acceleration).min(1.0)));
        }
        self
    }

    fn drawn(&self) -> Option<&'static str> {
        match (&self.maps, &self.mask) {
            (None, None) => Some("its coil maps and mask"),
            (None, Some(_)) => Some("its coil maps"),
            (Some(_), None) => Some("its mask"),
            (Some(_), Some(_)) => None,
        }
    }

    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>> {
        let (h, w) = match image_shape(name, shape)? {
            (2, h, w) => (h, w),
            (_, h, w) => {
                return Err(Error::shape("image of mri (real and imaginary part)", &[2, h, w], shape));
            }
        };
        let maps = match &self.maps {
            Some(path) => {
                beside(name, "maps", &[("coils", self.coils.is_some())])?;
                with_rank(&read(path, "maps")?, 5)?
            }
            None => coil_maps(self.coils.unwrap_or(0), h, w, seed)?,
        };
        let mask = match &self.mask {
            Some(path) => {
                let given =
                    [("acceleration", self.acceleration.is_some()), ("center", self.center.is_some())];
                beside(name, "mask", &given)?;
                with_rank(&read(path, "mask")?, 3)?
            }
            None => line_mask(w, self.acceleration.unwrap_or(0.0), self.center.unwrap_or(0.0), seed)?,
        };
        let operator = Mri::new(&maps, &mask)?;
        if operator.input_shape() != shape {
            return Err(Error::shape("coil maps of mri", shape, operator.input_shape()));
        }
        Ok(Arc::new(operator))
    }
}

/// A number of random pairs, or pairs of positions in the flattened image.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PairsOf {
    Count(usize),
    List(Vec<[usize; 2]>),
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PairParams {
    /// How many pairs to draw, or which there are; half as many as pixels.
    pairs: Option<PairsOf>,
    /// Whether each pair is drawn without regard to the others, so that a pixel may be in several or in none; otherwise each is
    /// in as few as possible.
    overlapping: Option<bool>,
}

impl Params for PairParams {
    fn complete(self, shape: &[usize]) -> Self {
        let half = PairsOf::Count(shape.iter().product::<usize>() / 2);
        Self { pairs: self.pairs.or(Some(half)), overlapping: self.overlapping.or(Some(false)) }
    }

    fn drawn(&self) -> Option<&'static str> {
        (!matches!(self.pairs, Some(PairsOf::List(_)))).then_some("its pairs")
    }

    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>> {
        let pairs = match self.pairs {
            Some(PairsOf::List(pairs)) => pairs,
            Some(PairsOf::Count(count)) => {
                let draw = if self.overlapping == Some(true) { overlapping_pairs } else { random_pairs };
                draw(shape.iter().product(), count, seed)?
            }
            None => vec![],
        };
        let gate = if name == "and" { Gate::And } else { Gate::Xor };
        Ok(Arc::new(Pairs::new(gate, shape, &pairs)?))
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ToyParams {}

impl Params for ToyParams {
    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        Ok(Arc::new(Toy2d::new(shape)?))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DenseParams {
    /// A `.npy` or `.safetensors` matrix `[outputs, inputs]` or `[rows, outputs, inputs]`.
    matrix: PathBuf,
}

impl Params for DenseParams {
    const FILES: &'static [FileParameter] =
        &[required("matrix", "an array [outputs, inputs], inputs in the order of the flattened sample")];

    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        let matrix = with_rank(&read(&self.matrix, "matrix")?, 3)?;
        Ok(Arc::new(Dense::new(shape, &matrix)?))
    }
}
