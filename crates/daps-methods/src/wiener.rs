//! The Wiener filter for images with the spectrum of photographs: the best linear estimate when x is Gaussian and its variance
//! falls as the inverse square of the frequency.
//!
//! Wiener, "Extrapolation, Interpolation, and Smoothing of Stationary Time Series", 1949: the posterior mean under x ~ N(0, C),
//! C = Tᵀ diag(v) T, v ∝ 1/(f² + f₀²), with T the cosine transform and f₀ its lowest frequency that is not 0, found by the same
//! solver that exact draws use. The law of the inverse square is that of photographs: Field, "Relations between the statistics of natural
//! images and the response properties of cortical cells", JOSA A 1987. Samples that are not images have no frequencies; their values
//! are taken for independent.

use std::sync::Arc;

use daps_core::{
    Cosines, Covariance, Frequency, Level, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, Walk,
};
use serde::{Deserialize, Serialize};

use crate::checks::check_positive;
use crate::kernel::Exact;
use crate::rivals::{gaussian, iterations, zero_start};

/// Settings of the Wiener filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wiener {
    /// Standard deviation of the images' values.
    pub std: f64,
}

impl Default for Wiener {
    /// The spread of photographs on [-1, 1].
    fn default() -> Self {
        Self { std: 0.5 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "wiener",
    summary: "the Wiener filter: the posterior mean for Gaussian images with the spectrum of photographs",
    paper: "Wiener, Extrapolation, Interpolation, and Smoothing of Stationary Time Series, 1949",
};

impl Wiener {
    /// C for samples of a shape; the mean of its diagonal is std².
    fn covariance(&self, shape: &[usize]) -> Result<Covariance> {
        let &[channels, height, width] = shape else {
            return Ok(Covariance::Scalar(vec![self.std.powi(2)]));
        };
        let cosines = Cosines::new(shape)?;
        let lowest = 1.0 / height.max(width) as f64;
        let falling = |f: &f64| 1.0 / (f * f + lowest * lowest);
        let law: Vec<f64> = cosines.frequencies().iter().map(falling).collect();
        let scale = self.std.powi(2) * law.len() as f64 / law.iter().sum::<f64>();
        let variances = law.iter().map(|v| scale * v).collect::<Vec<_>>().repeat(channels);
        Ok(Covariance::Frequency(Frequency::new(Arc::new(cosines), variances)?))
    }
}

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
        check_positive("wiener.std", self.std)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let (model, likelihood) = (&**task.denoiser("wiener")?, gaussian("wiener", task)?);
        let covariance = self.covariance(model.shape())?;
        let noise = walk.noise;
        let start = || zero_start(model, noise);
        walk.run(start, |state, step| {
            let (x, info) = Exact::default().mean(&state.x_t, &covariance, likelihood, step)?;
            state.x_t = x.clone();
            Ok(Level { x0_hat: x.clone(), x0_y: x, info })
        })
    }
}
