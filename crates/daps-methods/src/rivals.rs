//! What the rivals share on their way through the levels: starts, noise, the measurement, choices among particles.

use daps_core::candle::{Device, Tensor};
use daps_core::tensors::{batched, combine};
use daps_core::{
    Address, Denoiser, Differentiable, Error, Gaussian, Noise, Problem, Purpose, Result, Schedule, State,
    Step,
};

/// A schedule of `count` steps for methods that iterate without noise levels.
pub(crate) fn iterations(count: usize) -> Result<Schedule> {
    Schedule::from_levels((0..count).map(|_| 1.0).chain([0.0]).collect())
}

/// The start of methods that begin without noise: x = 0.
pub(crate) fn zero_start(model: &dyn Denoiser, noise: &Noise) -> Result<State> {
    let dims = batched(noise.len(), model.shape());
    Ok(State::start(Tensor::zeros(dims, model.dtype(), &Device::Cpu)?))
}

/// Pure noise of a level, scale · z.
pub(crate) fn pure_noise(model: &dyn Denoiser, noise: &Noise, scale: f64) -> Result<Tensor> {
    let z = noise.normal(Address::new(0, Purpose::Init, 0), model.shape(), model.dtype())?;
    combine(&[(&[scale], &z)])
}

/// The noise of a step to the next level.
pub(crate) fn step_noise(model: &dyn Denoiser, noise: &Noise, step: &Step) -> Result<Tensor> {
    noise.normal(Address::new(step.index, Purpose::Renoise, 0), model.shape(), model.dtype())
}

/// The Gaussian measurement of a task.
pub(crate) fn gaussian<'a>(who: &'static str, task: &'a Problem) -> Result<&'a Gaussian> {
    let likelihood = &task.likelihood;
    likelihood
        .as_gaussian()
        .ok_or_else(|| Error::missing(who, "Gaussian measurement noise", likelihood.name()))
}

/// The noise level of every row (or one for all), for methods whose formulas know one level per measurement.
pub(crate) fn one_beta<'a>(who: &'static str, gaussian: &'a Gaussian) -> Result<&'a [f64]> {
    gaussian
        .beta_rows()
        .ok_or_else(|| Error::missing(who, "one noise level per measurement", gaussian.operator().name()))
}

/// The derivative of a measurement's operator.
pub(crate) fn differentiable<'a>(
    who: &'static str,
    gaussian: &'a Gaussian,
) -> Result<&'a dyn Differentiable> {
    let operator = gaussian.operator();
    operator
        .as_differentiable()
        .ok_or_else(|| Error::missing(who, "a differentiable operator", operator.name()))
}

/// Of particles `[rows, …]` each, row by row the one that was chosen.
pub(crate) fn gather(particles: &[Tensor], chosen: &[usize]) -> Result<Tensor> {
    let row = |(row, &k): (usize, &usize)| particles[k].narrow(0, row, 1);
    let rows: Vec<Tensor> = chosen.iter().enumerate().map(row).collect::<std::result::Result<_, _>>()?;
    Ok(Tensor::cat(&rows, 0)?)
}

/// The first of the largest numbers.
pub(crate) fn largest(values: &[f64]) -> usize {
    (1..values.len()).fold(0, |best, k| if values[k] > values[best] { k } else { best })
}
