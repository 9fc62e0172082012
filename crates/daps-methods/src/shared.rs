//! What the rivals share on their way through the levels: noise, checks, choices among particles.

use daps_core::candle::Tensor;
use daps_core::real::combine;
use daps_core::{Address, Denoiser, Error, Gaussian, Noise, Purpose, Result, Schedule, Step, Task};

/// A schedule of `count` steps for methods that iterate without noise levels.
pub(crate) fn iterations(count: usize) -> Result<Schedule> {
    Schedule::from_levels((0..count).map(|_| 1.0).chain([0.0]).collect())
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
pub(crate) fn gaussian<'a>(who: &'static str, task: &'a Task) -> Result<&'a Gaussian> {
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

/// Refuses a setting outside its range.
pub(crate) fn check_range(what: &str, value: f64, low: f64, high: f64) -> Result<()> {
    if value.is_finite() && value >= low && value <= high {
        return Ok(());
    }
    let expected = if high.is_finite() {
        format!("a number from {low} to {high}")
    } else {
        format!("a number from {low}")
    };
    Err(Error::invalid(what, expected, value))
}

/// Refuses a setting that is not positive.
pub(crate) fn check_positive(what: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(Error::invalid(what, "a positive number", value))
    }
}

/// Refuses a crowd of nobody.
pub(crate) fn check_particles(who: &str, particles: usize) -> Result<()> {
    match particles {
        0 => Err(Error::invalid(format!("{who}.particles"), "at least 1", 0)),
        _ => Ok(()),
    }
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
