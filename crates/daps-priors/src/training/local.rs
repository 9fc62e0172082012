//! Training of a local factor on a frozen denoiser: the Gaussian likelihood of what is fine in x0 - D.

use std::ops::ControlFlow;

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use daps_core::tensors::{combine, from_f64, to_f64};
use daps_core::{Address, Cosines, Denoiser, Noise, Purpose, Row, Sigma, SpreadTable, open01};

use super::config::OptimizerConfig;
use super::data::Images;
use super::optimizer::AdamW;
use crate::local::{LocalHead, fine_part, usual};
use crate::{Error, Result};

/// The frequency from which structure is fine: a fifth of the finest along a side.
const FROM: f64 = 0.2;
/// Channels of the network.
const WIDTH: usize = 48;
/// The levels that it is trained between.
const SIGMA: (f64, f64) = (0.02, 50.0);
/// Images of a step.
const BATCH: usize = 32;
/// Adam's largest step size, and the steps over which it rises; then it falls to zero.
const RATE: f64 = 2e-3;
const WARM: f64 = 50.0;
/// What stays of the averaged weights at a step.
const KEEP: f64 = 0.98;

/// Steps of a training: more change the likelihood of held-out images little.
pub const LOCAL_STEPS: usize = 1500;

/// Trains a local factor for a denoiser of images whose error by frequency is known; `watch` is told of every step, and by how much
/// the factor raises the mean log-likelihood of a number. Nothing where samples are no images or are not known by frequency.
pub fn train_local(
    model: &dyn Denoiser,
    table: &SpreadTable,
    images: &Images,
    steps: usize,
    seed: u64,
    watch: &mut dyn FnMut(usize, f64) -> ControlFlow<()>,
) -> Result<Option<LocalHead>> {
    let (Ok(cosines), true) = (Cosines::new(model.shape()), table.bands.is_some()) else { return Ok(None) };
    if !LocalHead::fits(model.shape()) || !cosines.frequencies().iter().any(|f| *f >= FROM) {
        return Ok(None);
    }
    let about = (FROM, SIGMA, table.data_std);
    let (head, variables) = LocalHead::fresh(cosines.shape()[0], WIDTH, about, seed)?;
    let mut optimizer = AdamW::new(&OptimizerConfig::default(), variables)?;
    let mut gain = 0.0;
    for step in 0..steps {
        let (loss, gradients) = step_of(model, table, images, &head, &cosines, seed, step)?;
        let n = (step + 1) as f64;
        let rate = RATE * (n / WARM).min(1.0) * (1.0 - step as f64 / steps as f64);
        let norm = optimizer.step(&gradients, step as u64 + 1, rate, KEEP.min(1.0 - 1.0 / n))?;
        if !(loss.is_finite() && norm.is_finite()) {
            return Err(Error::config("local factor", "its training diverged"));
        }
        // The mean over about the last fifty steps.
        let share = (1.0 / n).max(0.02);
        gain += share * (-loss - gain);
        if watch(step, gain).is_break() {
            return Err(daps_core::Error::Cancelled { level: step + 1, of: steps }.into());
        }
    }
    head.with_weights(&optimizer.average()?).map(Some)
}

/// The loss of a step and its gradient: ln a + r²/(2 a² s²) - r²/(2 s²), averaged over numbers, where s is the usual deviation.
fn step_of(
    model: &dyn Denoiser,
    table: &SpreadTable,
    images: &Images,
    head: &LocalHead,
    cosines: &Cosines,
    seed: u64,
    step: usize,
) -> Result<(f64, GradStore)> {
    let (x0, x, sigma) = noisy(model, images, seed, step)?;
    let levels = Sigma::Rows(sigma.clone());
    let denoised = model.denoise(&x, &levels)?;
    let rest = fine_part(&combine(&[(&[1.0], &x0), (&[-1.0], &denoised)])?, cosines, head.from())?;
    let raw = head.raw(&x, &denoised, &levels)?;
    let log = LocalHead::pixels(&raw)?;
    let mut usual_of = vec![];
    for sigma in &sigma {
        usual_of.extend(usual(table, *sigma, head.from(), cosines)?);
    }
    let (values, rest) = (to_f64(&log)?, to_f64(&rest)?);
    let (plane, all) = (values.len() / usual_of.len(), values.len() as f64);
    let mut loss = 0.0;
    let slope = values.iter().zip(rest).enumerate().map(|(k, (log, rest))| {
        let square = (rest / usual_of[k / plane]).powi(2);
        let left = square * (-2.0 * log).exp();
        loss += log + 0.5 * (left - square);
        (1.0 - left) / all
    });
    let slope = from_f64(slope.collect(), log.dims(), log.dtype())?;
    Ok((loss / all, LocalHead::pull_back(&raw, &slope)?))
}

/// Images of a step, the same with noise, and its levels.
fn noisy(
    model: &dyn Denoiser,
    images: &Images,
    seed: u64,
    step: usize,
) -> Result<(Tensor, Tensor, Vec<f64>)> {
    let noise =
        Noise::new(seed, (0..BATCH as u64).map(|chain| Row { measurement: step as u64, chain }).collect());
    let pick = |row: usize, index: usize, of: f64| {
        open01(&mut noise.stream(row, Address::new(step, Purpose::Instance, index))) * of
    };
    let image = |row: usize| (pick(row, 0, images.len() as f64) as usize).min(images.len() - 1);
    let chosen: Vec<(usize, bool)> = (0..BATCH).map(|row| (image(row), false)).collect();
    let (low, high) = (SIGMA.0.ln(), SIGMA.1.ln());
    let sigma: Vec<f64> = (0..BATCH).map(|row| (low + pick(row, 1, high - low)).exp()).collect();
    let x0 = images.select(&chosen)?;
    let z = noise.normal(Address::new(step, Purpose::Renoise, 0), model.shape(), x0.dtype())?;
    let x = combine(&[(&[1.0], &x0), (&sigma, &z)])?;
    Ok((x0, x, sigma))
}
