//! Which method fits which operator: the matrix that `daps list methods` prints, found by asking, not by a table.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::{batched, from_f64};
use daps_core::{Corruption, Gaussian, Mismatch, NoiseModel, Operator, Problem, Rate, RowCovariance, Space};
use daps_methods::Facts;
use daps_methods::registry::METHODS;
use daps_operators::registry::OPERATORS;
use daps_priors::{GaussianMixture, Listed};

use crate::Result;

/// How one method fits the operators, in their registry's order.
pub struct Fit {
    /// The method.
    pub method: &'static str,
    /// Why a pair is refused, or nothing where it fits.
    pub refusals: Vec<Option<String>>,
}

/// What presets ask of a measurement by the operator of a name under some noise: it is the same at any size.
pub fn facts(operator: &str, noise: &NoiseModel) -> Result<Facts> {
    let operator = daps_operators::entry(operator)?.small()?;
    let y = zeros(&*operator)?;
    let space = Space::of_shape(operator.input_shape());
    Ok(Facts::of(&*noise.likelihood(operator, &y, &space, DType::F64)?))
}

/// A measurement that is zero everywhere.
fn zeros(operator: &dyn Operator) -> Result<Tensor> {
    let dims = batched(operator.rows().unwrap_or(1), operator.output_shape());
    Ok(from_f64(vec![0.0; dims.iter().product()], &dims, DType::F64)?)
}

/// Asks every method about a small task of every operator, with a prior that has all powers, and of tokens where it measures
/// those.
pub fn matrix() -> Result<Vec<Fit>> {
    let mut tasks = Vec::with_capacity(OPERATORS.len());
    for entry in OPERATORS {
        let operator = entry.small()?;
        let mut of_operator = vec![continuous_task(operator.clone())?];
        if operator.as_local().is_some() {
            of_operator.push(token_task(operator)?);
        }
        tasks.push(of_operator);
    }
    let mut all = Vec::with_capacity(METHODS.len());
    for entry in METHODS {
        let settings = entry.example()?;
        let mut refusals = Vec::with_capacity(tasks.len());
        for of_operator in &tasks {
            // One task that is accepted will do; else the first refusal says why.
            let mut answers = Vec::with_capacity(of_operator.len());
            for task in of_operator {
                let method = settings.build(&Facts::of(&*task.likelihood))?;
                answers.push(method.check(task).err().map(|e| e.to_string()));
            }
            refusals.push(if answers.contains(&None) { None } else { answers.swap_remove(0) });
        }
        all.push(Fit { method: entry.name, refusals });
    }
    Ok(all)
}

/// A measurement of zeros under Gaussian noise, with a Gaussian prior.
fn continuous_task(operator: Arc<dyn Operator>) -> Result<Problem> {
    let (shape, y) = (operator.input_shape().to_vec(), zeros(&*operator)?);
    let mean = vec![0.0; shape.iter().product()];
    let prior = GaussianMixture::gaussian(&shape, mean, RowCovariance::Scalar(1.0))?;
    Ok(Problem::new(Arc::new(prior), Arc::new(Gaussian::new(operator, y, 0.1)?))?)
}

/// A measurement of binary tokens with a prior of one sample.
fn token_task(operator: Arc<dyn Operator>) -> Result<Problem> {
    let (shape, rows) = (operator.input_shape().to_vec(), operator.rows().unwrap_or(1));
    let dark = |rows: usize, shape: &[usize]| Tensor::zeros(batched(rows, shape), DType::U8, &Device::Cpu);
    let y = dark(rows, operator.output_shape()).map_err(daps_core::Error::from)?;
    let points = dark(1, &shape).map_err(daps_core::Error::from)?;
    let prior = Listed::new(Corruption::new(2, Rate::Uniform)?, &points, &[1.0])?;
    Ok(Problem::discrete(Arc::new(prior), Arc::new(Mismatch::new(operator, &y, 0.1)?))?)
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
