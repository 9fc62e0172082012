//! Downsampling by an integer factor: antialiased bicubic as MATLAB's `imresize` defines it, with mirrored borders. Where the factor
//! does not divide a side, the side is rounded up and the image's middle stays in the middle, as in the official resizer.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::tensors::map_rows;
use daps_core::{Error, Linear, Operator, Result, Spectral, with_real};
use serde::{Deserialize, Serialize};

use crate::example::{Example, registered};
use crate::kronecker::Kronecker;
use crate::params::{Params, last_three};
use crate::registry;
use crate::rows::{each_plane, image_shape};
use crate::taps::{Separable, Taps};

/// Bicubic downsampling of `[channels, height, width]` images.
#[derive(Debug)]
pub struct SuperResolution {
    input: Vec<usize>,
    output: Vec<usize>,
    modes: Vec<usize>,
    map: Separable,
    svd: Kronecker,
    singular: Vec<Vec<f64>>,
}

impl SuperResolution {
    /// For images of the given shape, neither side of which is below the factor.
    pub fn new(shape: &[usize], factor: usize) -> Result<Self> {
        let (c, h, w) = image_shape("super_resolution", shape)?;
        if factor == 0 || factor > h.min(w) {
            let expected = format!("a whole number from 1 to the image's shorter side {}", h.min(w));
            return Err(Error::invalid("super_resolution factor", expected, factor));
        }
        let map = Separable::new(bicubic(h, factor), bicubic(w, factor));
        let svd = Kronecker::new(&map)?;
        Ok(Self {
            input: shape.to_vec(),
            output: vec![c, h.div_ceil(factor), w.div_ceil(factor)],
            modes: vec![c * svd.modes()],
            singular: vec![svd.singular(c)],
            map,
            svd,
        })
    }

    fn sizes(&self) -> (usize, usize) {
        (self.input[1] * self.input[2], self.output[1] * self.output[2])
    }
}

/// Catmull-Rom's cubic, a = -1/2.
fn cubic(x: f64) -> f64 {
    let x = x.abs();
    if x <= 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else if x <= 2.0 {
        ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    } else {
        0.0
    }
}

/// Weights that shrink a line of `n` values by `factor`: the cubic is widened by the factor, so that it averages.
fn bicubic(n: usize, factor: usize) -> Taps {
    let (f, outputs) = (factor as f64, n.div_ceil(factor));
    // What the rounded side reaches beyond the line, half of it at each end.
    let beyond = (outputs * factor - n) as f64 / 2.0;
    let mirrored = |i: isize| {
        let i = i.rem_euclid(2 * n as isize) as usize;
        if i < n { i } else { 2 * n - 1 - i }
    };
    let output = |o: usize| {
        let center = (o as f64 + 0.5) * f - 0.5 - beyond;
        let first = (center - 2.0 * f).ceil() as isize;
        let last = (center + 2.0 * f).floor() as isize;
        let weights: Vec<f64> = (first..=last).map(|i| cubic((i as f64 - center) / f)).collect();
        let sum: f64 = weights.iter().sum();
        (first..=last).zip(weights).map(|(i, w)| (mirrored(i), w / sum)).collect()
    };
    Taps::new(n, (0..outputs).map(output))
}

impl Operator for SuperResolution {
    fn name(&self) -> &str {
        "super_resolution"
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
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
        let (n, m) = self.sizes();
        with_real!(x.dtype(), T => map_rows::<T>(self.name(), x, &self.input, &self.output, |_, x, out| {
            each_plane(x, n, out, m, |_, x, out| self.map.apply(x, out));
        }))
    }

    fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }

    fn as_linear(&self) -> Option<&dyn Linear> {
        Some(self)
    }

    fn as_spectral(&self) -> Option<&dyn Spectral> {
        Some(self)
    }
}

impl Linear for SuperResolution {
    fn adjoint(&self, r: &Tensor) -> Result<Tensor> {
        let (n, m) = self.sizes();
        with_real!(r.dtype(), T => map_rows::<T>(self.name(), r, &self.output, &self.input, |_, r, out| {
            each_plane(r, m, out, n, |_, r, out| self.map.adjoint(r, out));
        }))
    }

    fn norm_squared(&self) -> Option<Vec<f64>> {
        Some(vec![self.svd.largest().powi(2)])
    }
}

impl Spectral for SuperResolution {
    fn singular(&self) -> &[Vec<f64>] {
        &self.singular
    }

    fn v_t(&self, x: &Tensor) -> Result<Tensor> {
        let (n, k) = (self.sizes().0, self.svd.modes());
        with_real!(x.dtype(), T => map_rows::<T>(self.name(), x, &self.input, &self.modes, |_, x, out| {
            each_plane(x, n, out, k, |_, x, out| self.svd.v_t(x, out));
        }))
    }

    fn v(&self, c: &Tensor) -> Result<Tensor> {
        let (n, k) = (self.sizes().0, self.svd.modes());
        with_real!(c.dtype(), T => map_rows::<T>(self.name(), c, &self.modes, &self.input, |_, c, out| {
            each_plane(c, k, out, n, |_, c, out| self.svd.v(c, out));
        }))
    }

    fn u_t(&self, y: &Tensor) -> Result<Tensor> {
        let (m, k) = (self.sizes().1, self.svd.modes());
        with_real!(y.dtype(), T => map_rows::<T>(self.name(), y, &self.output, &self.modes, |_, y, out| {
            each_plane(y, m, out, k, |_, y, out| self.svd.u_t(y, out));
        }))
    }

    fn u(&self, c: &Tensor) -> Result<Tensor> {
        let (m, k) = (self.sizes().1, self.svd.modes());
        with_real!(c.dtype(), T => map_rows::<T>(self.name(), c, &self.modes, &self.output, |_, c, out| {
            each_plane(c, k, out, m, |_, c, out| self.svd.u(c, out));
        }))
    }
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
    /// Several sizes are rounded up to one; this is the one that is not rounded.
    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        Ok(last_three(measured)
            .map(|[c, h, w]| vec![c, h.saturating_mul(self.factor), w.saturating_mul(self.factor)]))
    }

    fn operator(self, _: &'static str, shape: &[usize], _: u64) -> Result<Arc<dyn Operator>> {
        Ok(Arc::new(SuperResolution::new(shape, self.factor)?))
    }
}

pub(crate) fn example([c, h, w]: [usize; 3], seed: u64) -> Result<Example> {
    let factor = 2 + seed as usize % 3;
    registered("super_resolution", &format!("factor = {factor}"), &[c, h.max(factor), w.max(factor)], seed)
}
