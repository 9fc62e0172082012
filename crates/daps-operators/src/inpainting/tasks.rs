//! Inpainting as tasks: a hidden square, hidden pixels at random, a mask of a file.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::{Operator, Result};
use daps_files::is_picture;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::{Inpainting, box_mask, random_mask};
use crate::example::{Example, ROWS, registered, with_input};
use crate::files::{read, with_rank};
use crate::params::{Params, required, same_shape, side};
use crate::registry::{FileParameter, FromFile};
use crate::rows::image_shape;

/// The option of `daps solve` that gives a mask, and the operator that takes it.
const SUPPLY: &str = "--mask FILE";
const FROM_FILE: Option<FromFile> = Some(FromFile { operator: "inpaint", parameter: "mask" });

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BoxParams {
    /// Side of the hidden square; half the image's.
    size: Option<usize>,
    /// Distance that it keeps from the border; an eighth of the image's side.
    margin: Option<usize>,
}

impl Params for BoxParams {
    const SUPPLY: &'static str = SUPPLY;
    const FROM_FILE: Option<FromFile> = FROM_FILE;

    fn complete(self, shape: &[usize]) -> Self {
        let side = side(shape);
        Self { size: self.size.or(Some(side / 2)), margin: self.margin.or(Some(side / 8)) }
    }

    fn drawn(&self) -> Option<&'static str> {
        Some("the place of its box")
    }

    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        same_shape(measured)
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
    const SUPPLY: &'static str = SUPPLY;
    const FROM_FILE: Option<FromFile> = FROM_FILE;

    /// Half of the pixels, as in the paper.
    fn over_tokens() -> Table {
        [("fraction".to_owned(), 0.5.into())].into_iter().collect()
    }

    fn drawn(&self) -> Option<&'static str> {
        Some("its mask")
    }

    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        same_shape(measured)
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
    const FILES: &'static [FileParameter] = &[required(
        "mask",
        "--mask FILE",
        "an image (white = kept), or an array of zeros and ones [height, width]",
    )];
    const WITHOUT_FILE: Option<&'static str> = Some("inpaint_random");

    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        same_shape(measured)
    }

    fn operator(self, name: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        let mut mask = with_rank(&read(&self.mask, "mask")?, 4)?;
        if is_picture(&self.mask) {
            mask = mask.ge(0.5)?;
        }
        Ok(Arc::new(Inpainting::named(name, shape, &mask)?))
    }
}

pub(crate) fn box_example(size: [usize; 3], seed: u64) -> Result<Example> {
    registered("inpaint_box", "", &size.map(|n| n.max(2)), seed)
}

pub(crate) fn random_example(size: [usize; 3], seed: u64) -> Result<Example> {
    registered("inpaint_random", "", &size, seed)
}

/// A mask per row and channel.
pub(crate) fn example([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let masks =
        (0..(ROWS * c) as u64).map(|k| random_mask(h, w, 0.4, seed + k)).collect::<Result<Vec<_>>>()?;
    let mask = Tensor::cat(&masks, 0)?.reshape((ROWS, c, h, w))?;
    with_input(Arc::new(Inpainting::new(&[c, h, w], &mask)?), seed)
}
