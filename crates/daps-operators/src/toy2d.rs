//! The paper's two-dimensional toy: y = exp(-|x|² / s) + exp(-|x - (1/2, 1/2)|² / s) with s = 0.05.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::tensors::{map_rows, zip_rows};
use daps_core::{Differentiable, Error, Operator, Result, with_real};
use serde::{Deserialize, Serialize};

use crate::example::{Example, registered};
use crate::num::Num;
use crate::params::Params;
use crate::registry;

/// The squared width of each bump.
const WIDTH: f64 = 0.05;
/// Centres of the bumps.
const CENTERS: [[f64; 2]; 2] = [[0.0, 0.0], [0.5, 0.5]];

/// Two bumps over the plane.
#[derive(Debug, Default)]
pub struct Toy2d;

impl Toy2d {
    /// For the input shape `[2]`, the only one there is.
    pub fn new(shape: &[usize]) -> Result<Self> {
        match shape {
            [2] => Ok(Self),
            _ => Err(Error::shape("input of toy2d", &[2], shape)),
        }
    }
}

/// The bump around a centre and its gradient.
fn bump<T: Num>(x: &[T], center: [f64; 2]) -> (T, [T; 2]) {
    let d = [x[0] - T::of(center[0]), x[1] - T::of(center[1])];
    let value = num_traits::Float::exp((d[0] * d[0] + d[1] * d[1]) * T::of(-1.0 / WIDTH));
    (value, d.map(|d| d * value * T::of(-2.0 / WIDTH)))
}

impl Operator for Toy2d {
    fn name(&self) -> &str {
        "toy2d"
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    fn input_shape(&self) -> &[usize] {
        &[2]
    }

    fn output_shape(&self) -> &[usize] {
        &[1]
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        with_real!(x.dtype(), T => map_rows::<T>(self.name(), x, &[2], &[1], |_, x, out| {
            out[0] = bump(x, CENTERS[0]).0 + bump(x, CENTERS[1]).0;
        }))
    }

    fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }

    fn as_differentiable(&self) -> Option<&dyn Differentiable> {
        Some(self)
    }
}

impl Differentiable for Toy2d {
    fn vjp(&self, x: &Tensor, r: &Tensor) -> Result<Tensor> {
        with_real!(x.dtype(), T => zip_rows::<T>(self.name(), (x, &[2]), (r, &[1]), &[2], |_, x, r, out| {
            let (_, a) = bump(x, CENTERS[0]);
            let (_, b) = bump(x, CENTERS[1]);
            out[0] = r[0] * (a[0] + b[0]);
            out[1] = r[0] * (a[1] + b[1]);
        }))
    }

    /// One bump is steepest at √(s/2) from its centre, with slope √(2/s) e^(-1/2). There and anywhere else the other one,
    /// √½ away, adds less than 3 %.
    fn lipschitz_squared(&self) -> Option<Vec<f64>> {
        let steepest = (2.0 / WIDTH).sqrt() * (-0.5f64).exp();
        Some(vec![(1.03 * steepest).powi(2)])
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

pub(crate) fn example(_: [usize; 3], seed: u64) -> Result<Example> {
    registered("toy2d", "", &[2], seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_bound_holds_on_a_grid_and_is_tight() {
        let bound = Toy2d.lipschitz_squared().unwrap()[0];
        let mut steepest = 0.0f64;
        for i in -100..=200 {
            for j in -100..=200 {
                let x = [f64::from(i) * 0.005, f64::from(j) * 0.005];
                let (a, b) = (bump(&x, CENTERS[0]).1, bump(&x, CENTERS[1]).1);
                steepest = steepest.max((a[0] + b[0]).powi(2) + (a[1] + b[1]).powi(2));
            }
        }
        assert!(steepest <= bound && bound < 1.1 * steepest, "{steepest} {bound}");
    }

    #[test]
    fn the_second_bump_is_where_the_paper_puts_it() {
        let x = Tensor::new(&[[0.5f64, 0.5], [0.0, 0.0]], &candle_core::Device::Cpu).unwrap();
        let y = Toy2d.apply(&x).unwrap().to_vec2::<f64>().unwrap();
        let expected = 1.0 + (-10.0f64).exp();
        assert!((y[0][0] - expected).abs() < 1e-12 && (y[1][0] - expected).abs() < 1e-12);
    }
}
