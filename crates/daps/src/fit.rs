//! Which method fits which operator: the matrix that `daps list methods` prints, found by asking, not by a table.

use std::sync::Arc;

use candle_core::DType;
use daps_core::real::{batched, from_f64};
use daps_core::{Gaussian, RowCovariance, Task};
use daps_methods::registry::METHODS;
use daps_operators::registry::OPERATORS;
use daps_priors::GaussianMixture;

use crate::Result;

/// How one method fits the operators, in their registry's order.
pub struct Fit {
    /// The method.
    pub method: &'static str,
    /// Why a pair is refused, or nothing where it fits.
    pub refusals: Vec<Option<String>>,
}

/// Asks every method about a small task of every operator, with a prior that has all powers.
pub fn matrix() -> Result<Vec<Fit>> {
    let mut tasks = Vec::with_capacity(OPERATORS.len());
    for entry in OPERATORS {
        let operator = (entry.example)([3, 16, 16], 0)?.operator;
        let shape = operator.input_shape().to_vec();
        let rows = operator.rows().unwrap_or(1);
        let dims = batched(rows, operator.output_shape());
        let y = from_f64(vec![0.0; dims.iter().product()], &dims, DType::F64)?;
        let mean = vec![0.0; shape.iter().product()];
        let prior = GaussianMixture::gaussian(&shape, mean, RowCovariance::Scalar(1.0))?;
        tasks.push((entry.name, Task::new(Arc::new(prior), Arc::new(Gaussian::new(operator, y, 0.1)?))?));
    }
    let mut all = Vec::with_capacity(METHODS.len());
    for entry in METHODS {
        let settings =
            entry.example.parse().map_err(|e| crate::Error::Config(format!("{}: {e}", entry.name)))?;
        let mut refusals = Vec::with_capacity(tasks.len());
        for (operator, task) in &tasks {
            let method = (entry.build)(&settings, operator)?;
            refusals.push(method.check(task).err().map(|e| e.to_string()));
        }
        all.push(Fit { method: entry.name, refusals });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_fits_an_operator_and_refusals_name_both_sides() {
        let at = |name: &str| OPERATORS.iter().position(|o| o.name == name).unwrap();
        let (sr, phase, motion) = (at("super_resolution"), at("phase_retrieval"), at("motion_blur"));
        for fit in matrix().unwrap() {
            assert!(fit.refusals.iter().any(Option::is_none), "{} fits nothing", fit.method);
            for refusal in fit.refusals.iter().flatten() {
                assert!(refusal.starts_with(fit.method) && refusal.contains(" needs "), "{refusal}");
            }
            let fits = |k: usize| fit.refusals[k].is_none();
            match fit.method {
                "ddrm" | "ddnm" | "fps_smc" => {
                    assert!(fits(sr) && !fits(phase) && !fits(motion), "{}", fit.method);
                }
                "hio" => assert!(fits(phase) && !fits(sr)),
                "bicubic" => assert!(fits(sr) && !fits(motion) && !fits(phase)),
                "red_diff" | "dcdp" | "dpnp" | "pnp_dm" | "dps" => {
                    assert!(fits(sr) && fits(phase) && fits(motion));
                }
                "diffpir" | "tv" | "wiener" => assert!(fits(sr) && fits(motion) && !fits(phase)),
                _ => {}
            }
        }
    }
}
