//! The pseudo-inverse of the measurement: no prior, no noise model, the first thing to compare with.
//!
//! Moore 1920, Penrose 1955: x = V S⁺ Uᵀ y, where singular values below `cutoff` times the largest count as zero. An operator
//! without a decomposition is inverted by (AᵀA + ε)⁻¹Aᵀ with ε = (cutoff ‖A‖)², which has the same limit.

use daps_core::tensors::pick;
use daps_core::{Covariance, Level, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, Walk};
use serde::{Deserialize, Serialize};

use crate::checks::check_range;
use crate::kernel::Exact;
use crate::modes;
use crate::rivals::{gaussian, iterations, zero_start};

/// Settings of the pseudo-inverse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PseudoInverse {
    /// Singular values below this share of the largest are not inverted.
    pub cutoff: f64,
}

impl Default for PseudoInverse {
    fn default() -> Self {
        Self { cutoff: 0.01 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "pseudo_inverse",
    summary: "the pseudo-inverse of the operator applied to the measurement, without a prior",
    paper: "Penrose, A generalized inverse for matrices, 1955",
};

impl Method for PseudoInverse {
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
        check_range("pseudo_inverse.cutoff", self.cutoff, 1e-6, 1.0)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let (model, likelihood) = (&**task.denoiser("pseudo_inverse")?, gaussian("pseudo_inverse", task)?);
        let noise = walk.noise;
        let start = || zero_start(model, noise);
        walk.run(start, |state, step| {
            state.x_t = match likelihood.operator().as_spectral() {
                Some(operator) => {
                    let y = operator.u_t(&likelihood.y().to_dtype(model.dtype())?)?;
                    // Each row's own, so that no answer depends on its neighbours in the batch.
                    let largest = |s: &Vec<f64>| s.iter().copied().fold(0.0, f64::max);
                    let least: Vec<f64> =
                        operator.singular().iter().map(|s| self.cutoff * largest(s)).collect();
                    let invert = |row, s: f64, [y]: [f64; 1]| {
                        if s > 0.0 && s >= pick(&least, row) { y / s } else { 0.0 }
                    };
                    operator.v(&modes::map(operator, [&y], invert)?)?
                }
                None => {
                    let norms = likelihood.norm_squared()?;
                    // A row that sees nothing is damped by any number.
                    let wide =
                        |norm: &f64| 1.0 / (self.cutoff.powi(2) * if *norm > 0.0 { *norm } else { 1.0 });
                    let wide = Covariance::Scalar(norms.iter().map(wide).collect());
                    let exact = Exact { max_iterations: 10_000, ..Exact::default() };
                    exact.mean(&state.x_t, &wide, &likelihood.with_beta(1.0), step)?.0
                }
            };
            Ok(Level::new(state.x_t.clone(), state.x_t.clone(), 0, 2))
        })
    }
}
