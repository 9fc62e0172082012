//! Magnetic resonance imaging as a task: synthetic coils and a random mask, or those of files.

use std::path::PathBuf;
use std::sync::Arc;

use daps_core::{Error, Operator, Result};
use serde::{Deserialize, Serialize};

use super::{Mri, coil_maps, line_mask};
use crate::example::{Example, registered};
use crate::files::{read, with_rank};
use crate::params::{Params, beside, optional};
use crate::registry::FileParameter;
use crate::rows::image_shape;

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
    const SUPPLY: &'static str = "--set maps=FILE and --set mask=FILE";
    const FILES: &'static [FileParameter] = &[
        optional(
            "maps",
            "--set maps=FILE",
            "an array [coils, 2, height, width] of the coils' sensitivities, real and imaginary part",
        ),
        optional(
            "mask",
            "--mask FILE",
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

    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        Ok(measured.last_chunk().map(|[h, w]| vec![2, *h, *w]))
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

pub(crate) fn example([_, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    registered("mri", "coils = 3\nacceleration = 2.0", &[2, h, w], seed)
}
