//! The walk that the rivals share: from a start or a saved state through the levels of a schedule, booking each one.

use daps_core::candle::Tensor;
use daps_core::real::combine;
use daps_core::{
    Address, ChainInfo, Cost, Denoiser, Error, Gaussian, Noise, Observer, Purpose, Result, Samples, Schedule,
    State, Step, Task,
};

/// What a level tells those who watch; the level itself has moved the state.
pub(crate) struct Level {
    /// The estimate of x0 before the measurement was heard.
    pub x0_hat: Tensor,
    /// The same after it.
    pub x0_y: Tensor,
    /// Work and diagnostics.
    pub info: ChainInfo,
}

impl Level {
    /// A level that cannot diverge other than by leaving the finite numbers.
    pub fn new(x0_hat: Tensor, x0_y: Tensor, nfe: usize, operator_calls: usize) -> Self {
        let diverged = vec![false; x0_hat.dims()[0]];
        let info = ChainInfo { diverged, cost: Cost { nfe, operator_calls }, ..ChainInfo::default() };
        Self { x0_hat, x0_y, info }
    }
}

/// Runs `level` on the state for every step that is left.
pub(crate) fn walk(
    schedule: &Schedule,
    from: Option<State>,
    observer: &mut dyn Observer,
    start: impl FnOnce() -> Result<State>,
    mut level: impl FnMut(&mut State, &Step) -> Result<Level>,
) -> Result<Samples> {
    let mut state = from.map_or_else(start, Ok)?;
    for step in schedule.steps().skip(state.level) {
        let Level { x0_hat, x0_y, info } = level(&mut state, &step)?;
        state.complete(step, Cost::default(), &x0_hat, &x0_y, &info, observer)?;
    }
    Ok(state.into_samples())
}

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
