//! The probability-flow ODE dx/dσ = (x - D(x, σ))/σ from (x_t, σ) down to (almost) zero.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use crate::schedule::{RHO, poly_grid};
use crate::tensors::combine;
use crate::{Denoiser, Error, Result, Sigma, Step};

/// How many Euler or Heun steps a level takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OdeSteps {
    /// The same number at every level.
    Fixed(usize),
    /// One number per level of the schedule.
    PerLevel(Vec<usize>),
}

/// Where the grid ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OdeEnd {
    /// `steps` points from σ to `min`, then 0 (the paper, the 2024 code).
    Zero,
    /// `steps + 1` points from σ to `min`; the solution stays at noise level `min` (the 2025 code).
    Min,
}

/// Order of the solver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OdeOrder {
    /// First order, one denoiser call a step.
    Euler,
    /// Second order, two denoiser calls a step but for one that ends at 0.
    Heun,
}

/// An ODE solver for x̂0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ode {
    /// Steps per level.
    pub steps: OdeSteps,
    /// The grid's smallest level above zero.
    #[serde(default = "default_min")]
    pub min: f64,
    /// Exponent of the grid.
    #[serde(default = "default_rho")]
    pub rho: f64,
    /// Where the grid ends.
    #[serde(default = "default_end")]
    pub end: OdeEnd,
    /// Order of the solver.
    #[serde(default = "default_order")]
    pub order: OdeOrder,
}

fn default_min() -> f64 {
    0.02
}
fn default_rho() -> f64 {
    RHO
}
fn default_end() -> OdeEnd {
    OdeEnd::Zero
}
fn default_order() -> OdeOrder {
    OdeOrder::Euler
}

impl Ode {
    /// `steps` Euler steps with the paper's grid.
    #[must_use]
    pub fn paper(steps: usize) -> Self {
        Self {
            steps: OdeSteps::Fixed(steps),
            min: default_min(),
            rho: default_rho(),
            end: default_end(),
            order: default_order(),
        }
    }

    /// Checks the settings against the number of levels they will serve.
    pub fn check(&self, levels: usize) -> Result<()> {
        if !(self.min.is_finite() && self.min > 0.0) {
            return Err(Error::invalid("ode.min", "a positive number", self.min));
        }
        if !(self.rho.is_finite() && self.rho > 0.0) {
            return Err(Error::invalid("ode.rho", "a positive number", self.rho));
        }
        match &self.steps {
            OdeSteps::Fixed(0) => Err(Error::invalid("ode.steps", "at least 1", 0)),
            OdeSteps::PerLevel(steps) if steps.len() != levels => Err(Error::invalid(
                "ode.steps",
                format!("one number for each of {levels} levels"),
                steps.len(),
            )),
            OdeSteps::PerLevel(steps) if steps.contains(&0) => {
                Err(Error::invalid("ode.steps", "at least 1 at every level", 0))
            }
            _ => Ok(()),
        }
    }

    fn steps_at(&self, level: usize) -> usize {
        match &self.steps {
            OdeSteps::Fixed(n) => *n,
            OdeSteps::PerLevel(steps) => steps[level],
        }
    }

    /// The levels that the solver visits from σ. A single step to 0 (Tweedie) where a grid would degenerate: one step
    /// with nothing between σ and 0, or σ not above twice the smallest level.
    #[must_use]
    pub fn grid(&self, sigma: f64, steps: usize) -> Vec<f64> {
        match self.end {
            _ if sigma <= 2.0 * self.min => vec![sigma, 0.0],
            OdeEnd::Zero if steps == 1 => vec![sigma, 0.0],
            OdeEnd::Zero => {
                let mut grid = poly_grid(steps, sigma, self.min, self.rho);
                grid.push(0.0);
                grid
            }
            OdeEnd::Min => poly_grid(steps + 1, sigma, self.min, self.rho),
        }
    }

    /// Solves from x_t at a level; returns x̂0 and the number of denoiser calls.
    pub fn solve(&self, model: &dyn Denoiser, x_t: &Tensor, step: &Step) -> Result<(Tensor, usize)> {
        let grid = self.grid(step.sigma, self.steps_at(step.index));
        let mut x = x_t.clone();
        let mut calls = 0;
        for w in grid.windows(2) {
            let (sigma, next) = (w[0], w[1]);
            let ratio = next / sigma;
            let denoised = model.denoise(&x, &Sigma::Same(sigma))?;
            calls += 1;
            // x + (next - σ) (x - D)/σ
            let euler = combine(&[(&[ratio], &x), (&[1.0 - ratio], &denoised)])?;
            x = if self.order == OdeOrder::Euler || next == 0.0 {
                euler
            } else {
                let corrected = model.denoise(&euler, &Sigma::Same(next))?;
                calls += 1;
                let (h, half) = (next - sigma, 0.5);
                combine(&[
                    (&[1.0 + half * h / sigma], &x),
                    (&[-half * h / sigma], &denoised),
                    (&[half * h / next], &euler),
                    (&[-half * h / next], &corrected),
                ])?
            };
        }
        Ok((x, calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    /// Prior N(0, 1): D(x, σ) = x/(1 + σ²), and the flow maps x_σ to x_σ/√(1 + σ²).
    struct Unit;
    impl Denoiser for Unit {
        fn shape(&self) -> &[usize] {
            &[1]
        }
        fn dtype(&self) -> DType {
            DType::F64
        }
        fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
            Ok((x / (1.0 + sigma.row(0).powi(2)))?)
        }
    }

    fn endpoint(order: OdeOrder, steps: usize) -> f64 {
        let ode = Ode { steps: OdeSteps::Fixed(steps), min: 1e-3, rho: RHO, end: OdeEnd::Zero, order };
        let x = Tensor::new(&[[2.0f64]], &Device::Cpu).unwrap();
        let step = Step { index: 0, of: 1, start: 3.0, sigma: 3.0, next: 0.0 };
        ode.solve(&Unit, &x, &step).unwrap().0.to_vec2::<f64>().unwrap()[0][0]
    }

    #[test]
    fn euler_converges_at_first_order_and_heun_at_second() {
        let exact = 2.0 / 10f64.sqrt();
        let error = |order, n| (endpoint(order, n) - exact).abs();
        let rate = |order| (error(order, 100) / error(order, 200)).log2();
        assert!((rate(OdeOrder::Euler) - 1.0).abs() < 0.1, "{}", rate(OdeOrder::Euler));
        assert!((rate(OdeOrder::Heun) - 2.0).abs() < 0.2, "{}", rate(OdeOrder::Heun));
    }

    #[test]
    fn a_degenerate_grid_is_one_tweedie_step() {
        let ode = Ode::paper(5);
        assert_eq!(ode.grid(0.04, 5), [0.04, 0.0]);
        assert_eq!(ode.grid(1.0, 1), [1.0, 0.0]);
        assert_eq!(ode.grid(1.0, 5).len(), 6);
    }
}
