//! The Wiener filter for white images: the best linear estimate when x is N(mean, std²) in every value.
//!
//! Wiener, "Extrapolation, Interpolation, and Smoothing of Stationary Time Series", 1949: x = mean + (AᵀA + β²/std²)⁻¹
//! Aᵀ(y - A mean), the posterior mean under that prior, found by the same closed forms that exact draws use.

use daps_core::candle::{Device, Tensor};
use daps_core::real::batched;
use daps_core::{Error, Level, Method, MethodInfo, Need, Result, Samples, Schedule, State, Task, Walk};
use serde::{Deserialize, Serialize};

use crate::kernel::Exact;
use crate::shared::{check_positive, gaussian, iterations};

/// Settings of the Wiener filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wiener {
    /// The value that is expected where nothing is measured.
    pub mean: f64,
    /// Standard deviation of the images' values.
    pub std: f64,
}

impl Default for Wiener {
    /// Grey, and the spread of photographs on [-1, 1].
    fn default() -> Self {
        Self { mean: 0.0, std: 0.5 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "wiener",
    summary: "the Wiener filter: the posterior mean for images of independent Gaussian values",
    paper: "Wiener, Extrapolation, Interpolation, and Smoothing of Stationary Time Series, 1949 (plain baseline, 2025)",
};

impl Method for Wiener {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::LinearOperator]
    }

    fn schedule(&self) -> Result<Schedule> {
        iterations(1)
    }

    fn check_settings(&self) -> Result<()> {
        check_positive("wiener.std", self.std)?;
        if self.mean.is_finite() {
            Ok(())
        } else {
            Err(Error::invalid("wiener.mean", "a finite number", self.mean))
        }
    }

    fn run(&self, task: &Task, walk: Walk) -> Result<Samples> {
        let (model, likelihood) = (&**task.denoiser("wiener")?, gaussian("wiener", task)?);
        let dims = batched(walk.noise.len(), model.shape());
        let mean = Tensor::full(self.mean, dims, &Device::Cpu)?.to_dtype(model.dtype())?;
        walk.run(
            || Ok(State::start(mean)),
            |state, step| {
                let (x, info) = Exact::default().mean(&state.x_t, &[self.std.powi(2)], likelihood, step)?;
                state.x_t = x.clone();
                Ok(Level { x0_hat: x.clone(), x0_y: x, info })
            },
        )
    }
}
