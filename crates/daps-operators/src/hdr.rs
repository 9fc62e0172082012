//! High dynamic range: a bright exposure clips what it cannot hold, y = clip(scale · x, -1, 1).

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::tensors::{BLOCK, Real, map_rows, zip_rows};
use daps_core::{Differentiable, Error, Operator, Piece, Pixelwise, Result, with_real};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::example::{Example, registered};
use crate::params::{Params, same_shape};
use crate::registry;

/// Scales and clips every value; any shape.
#[derive(Debug)]
pub struct Hdr {
    shape: Vec<usize>,
    scale: f64,
    pieces: [Piece; 3],
}

impl Hdr {
    /// For inputs of the given shape; the scale is positive.
    pub fn new(shape: &[usize], scale: f64) -> Result<Self> {
        if !(scale.is_finite() && scale > 0.0) {
            return Err(Error::invalid("hdr scale", "a positive finite number", scale));
        }
        let edge = 1.0 / scale;
        let piece = |low, high, slope, offset| Piece { low, high, slope, offset };
        let pieces = [
            piece(f64::NEG_INFINITY, -edge, 0.0, -1.0),
            piece(-edge, edge, scale, 0.0),
            piece(edge, f64::INFINITY, 0.0, 1.0),
        ];
        Ok(Self { shape: shape.to_vec(), scale, pieces })
    }
}

impl Operator for Hdr {
    fn name(&self) -> &str {
        "hdr"
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    fn input_shape(&self) -> &[usize] {
        &self.shape
    }

    fn output_shape(&self) -> &[usize] {
        &self.shape
    }

    fn factors(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        with_real!(x.dtype(), T => map_rows::<T>(self.name(), x, &self.shape, &self.shape, |_, x, out| {
            let (scale, one) = (T::of(self.scale), T::of(1.0));
            out.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK)).for_each(|(out, x)| {
                for (out, &x) in out.iter_mut().zip(x) {
                    // Comparisons, not min and max: a NaN must stay one.
                    let v = scale * x;
                    *out = if v > one { one } else if v < -one { -one } else { v };
                }
            });
        }))
    }

    fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }

    fn as_differentiable(&self) -> Option<&dyn Differentiable> {
        Some(self)
    }

    fn as_pixelwise(&self) -> Option<&dyn Pixelwise> {
        Some(self)
    }
}

impl Differentiable for Hdr {
    /// At a kink, the derivative is that of the inner piece.
    fn vjp(&self, x: &Tensor, r: &Tensor) -> Result<Tensor> {
        let (x, r) = ((x, self.input_shape()), (r, self.output_shape()));
        with_real!(x.0.dtype(), T => zip_rows::<T>(self.name(), x, r, &self.shape, |_, x, r, out| {
            let (scale, one) = (T::of(self.scale), T::of(1.0));
            out.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK)).zip(r.par_chunks(BLOCK)).for_each(|((out, x), r)| {
                for ((out, &x), &r) in out.iter_mut().zip(x).zip(r) {
                    // A slope and a product, not a branch: which values are clipped is too random to predict.
                    let v = scale * x;
                    let slope = if (v > one) | (v < -one) { T::default() } else { scale };
                    *out = slope * r;
                }
            });
        }))
    }

    fn lipschitz_squared(&self) -> Option<Vec<f64>> {
        Some(vec![self.scale * self.scale])
    }
}

impl Pixelwise for Hdr {
    fn pieces(&self) -> &[Piece] {
        &self.pieces
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
    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        same_shape(measured)
    }

    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        Ok(Arc::new(Hdr::new(shape, self.scale)?))
    }
}

pub(crate) fn example(size: [usize; 3], seed: u64) -> Result<Example> {
    registered("hdr", "", &size, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_pieces_are_the_function() {
        let hdr = Hdr::new(&[7], 2.5).unwrap();
        let x = [-3.0, -0.4, -0.39, 0.0, 0.2, 0.4, 0.9];
        let y = hdr.apply(&Tensor::new(&[x], &Device::Cpu).unwrap()).unwrap().to_vec2::<f64>().unwrap();
        for (x, y) in x.iter().zip(&y[0]) {
            let piece = hdr.pieces().iter().find(|p| p.low <= *x && *x < p.high).unwrap();
            assert!((piece.slope * x + piece.offset - y).abs() < 1e-15, "{x}: {y}");
        }
        assert!(Hdr::new(&[1], 0.0).is_err() && Hdr::new(&[1], f64::NAN).is_err());
    }
}
