//! Hybrid input-output for phase retrieval: project onto the measured magnitudes, and push back what breaks the constraints.
//!
//! Paper: Fienup, "Phase retrieval algorithms: a comparison", Applied Optics 21 (1982), equation 44. With g' the projection of
//! g onto the measured magnitudes, the next g is g' where it keeps the constraints (inside the image's place, not negative) and
//! g - βg' elsewhere. The answer is g' of the last iteration, cut to the image.
//!
//! Defaults: β = 0.9, 1000 iterations from random noise. Deviations: none in the update; measured magnitudes
//! are noisy here, so that those of k and -k, which are equal for a real picture, are averaged first, and negative ones are taken
//! for zero. It uses no prior; its rows differ by their start.

use daps_core::candle::Tensor;
use daps_core::tensors::{Real, with_slice};
use daps_core::{
    Error, Level, Magnitudes, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, State, Walk,
    with_real,
};
use serde::{Deserialize, Serialize};

use crate::checks::check_positive;
use crate::rivals::{gaussian, iterations, pure_noise};

/// Settings of HIO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hio {
    /// Iterations.
    pub iterations: usize,
    /// β, how hard a broken constraint is pushed back.
    pub feedback: f64,
}

impl Default for Hio {
    fn default() -> Self {
        Self { iterations: 1000, feedback: 0.9 }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "hio",
    summary: "hybrid input-output: projections between Fourier magnitudes and the image's support, without a prior",
    paper: "Fienup, Phase retrieval algorithms: a comparison, Applied Optics 1982",
};

/// g' where `inside` is 1 and g' is not negative, g - βg' elsewhere.
fn update<T: Real>(g: &Tensor, projected: &Tensor, inside: &Tensor, feedback: f64) -> Result<Tensor> {
    let (n, beta) = (inside.elem_count(), T::of(feedback));
    let next = with_slice(g, |g: &[T]| {
        with_slice(projected, |p: &[T]| {
            with_slice(inside, |inside: &[T]| {
                let keeps = |k: usize, p: T| inside[k % n] > T::default() && p >= T::default();
                let each = g.iter().zip(p).enumerate();
                each.map(|(k, (&g, &p))| if keeps(k, p) { p } else { g - beta * p }).collect::<Vec<T>>()
            })
        })
    })???;
    Ok(Tensor::from_vec(next, g.dims(), g.device())?)
}

fn magnitudes(operator: &dyn daps_core::Operator) -> Result<&dyn Magnitudes> {
    operator.as_magnitudes().ok_or_else(|| Error::missing("hio", "Fourier magnitudes", operator.name()))
}

impl Method for Hio {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::FourierMagnitudes]
    }

    fn schedule(&self) -> Result<Schedule> {
        iterations(self.iterations)
    }

    fn check_settings(&self) -> Result<()> {
        check_positive("hio.feedback", self.feedback)?;
        self.schedule().map(drop)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let noise = walk.noise;
        let (model, likelihood) = (&**task.denoiser("hio")?, gaussian("hio", task)?);
        let operator = magnitudes(&**likelihood.operator())?;
        let y = likelihood.y().to_dtype(model.dtype())?;
        // 1 where the image lies, 0 around it.
        let ones = Tensor::ones(daps_core::tensors::batched(1, model.shape()), model.dtype(), y.device())?;
        let inside = operator.embed(&ones)?;
        let start = || {
            let mut state = State::start(pure_noise(model, noise, 0.5)?);
            state.memory = vec![operator.embed(&state.x_t)?];
            Ok(state)
        };
        walk.run(start, |state, _| {
            let g = state.memory(0)?;
            let projected = operator.project(g, &y)?;
            let next = with_real!(g.dtype(), T => update::<T>(g, &projected, &inside, self.feedback))?;
            state.x_t = operator.crop(&projected)?;
            state.memory = vec![next];
            Ok(Level::new(state.x_t.clone(), state.x_t.clone(), 0, 1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::candle::Device;

    #[test]
    fn what_keeps_the_constraints_is_taken_and_the_rest_is_pushed_back() {
        let t = |v: &[f64]| Tensor::from_slice(v, (1, v.len()), &Device::Cpu).unwrap();
        let next =
            update::<f64>(&t(&[1.0, 1.0, 1.0]), &t(&[0.4, -0.2, 0.5]), &t(&[1.0, 1.0, 0.0]), 0.5).unwrap();
        assert_eq!(next.to_vec2::<f64>().unwrap(), [[0.4, 1.1, 0.75]]);
    }
}
