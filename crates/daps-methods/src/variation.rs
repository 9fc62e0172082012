//! Total variation and harmonic restoration: the image whose gradient is small and that fits the measurement.
//!
//! Papers: Rudin, Osher, Fatemi, "Nonlinear total variation based noise removal algorithms", Physica D 1992; Chambolle, Pock,
//! "A first-order primal-dual algorithm for convex problems with applications to imaging", JMIV 2011, Algorithm 1. It minimises
//! ‖Ax - y‖²/(2β²) + G(∇x), with G = λ Σ |∇x| (`tv`) or Σ |∇x|²/(2γ²) (`harmonic`, which solves Laplace's equation where
//! nothing is measured); ∇ are forward differences and |·| joins directions and channels. One iteration is
//! p ← prox_{sG*}(p + s∇x̄), x' = prox_{tF}(x - t∇ᵀp), x̄ = 2x' - x, where prox_{tF} is the mean of N(·, t) given y.
//!
//! Defaults: λ = 10, γ = 0.1, 500 iterations, for images on [-1, 1].

use daps_core::candle::{Device, Tensor};
use daps_core::tensors::{Real, batched, combine, map_rows};
use daps_core::{
    Covariance, Error, Level, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, Walk, with_real,
};
use serde::{Deserialize, Serialize};

use crate::checks::check_positive;
use crate::kernel::Exact;
use crate::rivals::{gaussian, iterations, zero_start};

/// Settings of total variation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tv {
    /// λ, the weight of the gradient's length.
    pub lambda: f64,
    /// Primal-dual iterations.
    pub iterations: usize,
}

impl Default for Tv {
    fn default() -> Self {
        Self { lambda: 10.0, iterations: 500 }
    }
}

/// Settings of the harmonic restoration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Harmonic {
    /// γ, the expected size of a gradient.
    pub gamma: f64,
    /// Primal-dual iterations.
    pub iterations: usize,
}

impl Default for Harmonic {
    fn default() -> Self {
        Self { gamma: 0.1, iterations: 500 }
    }
}

static TV: MethodInfo = MethodInfo {
    name: "tv",
    summary: "total variation: the image of least gradient length that fits the measurement",
    paper: "Rudin, Osher, Fatemi, Nonlinear total variation based noise removal algorithms, 1992; Chambolle, Pock, 2011",
};

static HARMONIC: MethodInfo = MethodInfo {
    name: "harmonic",
    summary: "the smoothest image that fits the measurement: harmonic where nothing is measured",
    paper: "Laplace's equation as an inpainting; solved by Chambolle, Pock, A first-order primal-dual algorithm, 2011",
};

/// The penalty of a gradient field.
#[derive(Clone, Copy)]
enum Penalty {
    Length { lambda: f64 },
    Square { gamma: f64 },
}

/// ‖∇‖² of forward differences in two directions.
const GRADIENT_NORM_SQUARED: f64 = 8.0;

/// Forward differences, `[c, h, w]` to `[2, c, h, w]`; zero across the last border.
fn gradient<T: Real>(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let (&[_, h, w], output) = (shape, batched(2, shape)) else {
        return Err(Error::shape("image", &[0, 0, 0], shape));
    };
    map_rows::<T>("image", x, shape, &output, |_, x, out| {
        let (down, across) = out.split_at_mut(x.len());
        for k in 0..x.len() {
            let (i, j) = (k / w % h, k % w);
            down[k] = if i + 1 < h { x[k + w] - x[k] } else { T::default() };
            across[k] = if j + 1 < w { x[k + 1] - x[k] } else { T::default() };
        }
    })
}

/// ∇ᵀ, the negative divergence.
fn gradient_transposed<T: Real>(p: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let (&[_, h, w], input) = (shape, batched(2, shape)) else {
        return Err(Error::shape("image", &[0, 0, 0], shape));
    };
    map_rows::<T>("gradient", p, &input, shape, |_, p, out| {
        let (down, across) = p.split_at(out.len());
        for (k, out) in out.iter_mut().enumerate() {
            let (i, j) = (k / w % h, k % w);
            let mut sum = T::default();
            if i > 0 {
                sum += down[k - w];
            }
            if i + 1 < h {
                sum -= down[k];
            }
            if j > 0 {
                sum += across[k - 1];
            }
            if j + 1 < w {
                sum -= across[k];
            }
            *out = sum;
        }
    })
}

impl Penalty {
    /// The size of a dual variable, which balances the two step lengths.
    fn scale(self) -> f64 {
        match self {
            Self::Length { lambda } => lambda,
            Self::Square { gamma } => 1.0 / gamma,
        }
    }

    /// prox of step · G*: a projection onto |p| <= λ, or p/(1 + step γ²).
    fn dual<T: Real>(self, p: &Tensor, shape: &[usize], step: f64) -> Result<Tensor> {
        let field = batched(2, shape);
        let plane = shape[1] * shape[2];
        map_rows::<T>("gradient", p, &field, &field, |_, p, out| match self {
            Self::Square { gamma } => {
                let factor = T::of(1.0 / (1.0 + step * gamma * gamma));
                out.iter_mut().zip(p).for_each(|(o, &p)| *o = factor * p);
            }
            Self::Length { lambda } => {
                for k in 0..plane {
                    let square = p[k..].iter().step_by(plane).map(|p| p.wide().powi(2)).sum::<f64>();
                    let factor = T::of(1.0 / (square.sqrt() / lambda).max(1.0));
                    for at in (k..p.len()).step_by(plane) {
                        out[at] = factor * p[at];
                    }
                }
            }
        })
    }

    fn minimise(self, who: &'static str, task: &Problem, walk: Walk) -> Result<Samples> {
        let noise = walk.noise;
        let (model, likelihood, exact) = (&**task.denoiser(who)?, gaussian(who, task)?, Exact::default());
        let shape = model.shape();
        let length = GRADIENT_NORM_SQUARED.sqrt() * self.scale();
        let (primal, dual) = (1.0 / length, self.scale().powi(2) / length);
        let start = || {
            let mut state = zero_start(model, noise)?;
            let field = batched(noise.len(), &batched(2, shape));
            state.memory = vec![Tensor::zeros(field, model.dtype(), &Device::Cpu)?, state.x_t.clone()];
            Ok(state)
        };
        walk.run(start, |state, step| {
            let p = with_real!(state.x_t.dtype(), T => {
                let along = gradient::<T>(state.memory(1)?, shape)?;
                self.dual::<T>(&combine(&[(&[1.0], state.memory(0)?), (&[dual], &along)])?, shape, dual)
            })?;
            let back = with_real!(p.dtype(), T => gradient_transposed::<T>(&p, shape))?;
            let moved = combine(&[(&[1.0], &state.x_t), (&[-primal], &back)])?;
            let (x, info) = exact.mean(&moved, &Covariance::Scalar(vec![primal]), likelihood, step)?;
            let ahead = combine(&[(&[2.0], &x), (&[-1.0], &state.x_t)])?;
            state.x_t = x.clone();
            state.memory = vec![p, ahead];
            Ok(Level { x0_hat: moved, x0_y: x, info })
        })
    }
}

macro_rules! variational {
    ($method:ty, $info:ident, $weight:ident, $penalty:expr) => {
        impl Method for $method {
            fn info(&self) -> &'static MethodInfo {
                &$info
            }

            fn needs(&self) -> Vec<Need> {
                vec![Need::Images, Need::LinearOperator]
            }

            fn schedule(&self) -> Result<Schedule> {
                iterations(self.iterations)
            }

            fn check_settings(&self) -> Result<()> {
                self.schedule()?;
                check_positive(&format!("{}.{}", $info.name, stringify!($weight)), self.$weight)
            }

            fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
                let penalty: fn(&Self) -> Penalty = $penalty;
                penalty(self).minimise($info.name, task, walk)
            }
        }
    };
}

variational!(Tv, TV, lambda, |tv| Penalty::Length { lambda: tv.lambda });
variational!(Harmonic, HARMONIC, gamma, |harmonic| Penalty::Square { gamma: harmonic.gamma });

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::tensors::to_f64;
    use daps_core::{Address, Noise, Purpose, candle::DType};

    /// ⟨∇x, p⟩ = ⟨x, ∇ᵀp⟩.
    #[test]
    fn the_gradient_has_its_adjoint() {
        let (shape, noise) = ([2, 3, 5], Noise::chains(1, 2));
        let draw = |i, shape: &[usize]| {
            noise.normal(Address::new(0, Purpose::Instance, i), shape, DType::F64).unwrap()
        };
        let (x, p) = (draw(0, &shape), draw(1, &batched(2, &shape)));
        let dot = |a: &Tensor, b: &Tensor| {
            to_f64(a).unwrap().iter().zip(to_f64(b).unwrap()).map(|(a, b)| a * b).sum::<f64>()
        };
        let left = dot(&gradient::<f64>(&x, &shape).unwrap(), &p);
        let right = dot(&x, &gradient_transposed::<f64>(&p, &shape).unwrap());
        assert!((left - right).abs() < 1e-12 * left.abs().max(1.0), "{left} vs {right}");
    }
}
