//! Training of a local factor on a frozen denoiser: the Gaussian likelihood of what is fine in x0 - D.

use std::ops::ControlFlow;

use daps_core::tensors::combine;
use daps_core::{Address, Cosines, Denoiser, Noise, Purpose, Row, Sigma, SpreadTable, open01};
use rayon::prelude::*;

use super::data::Images;
use crate::local::{LocalHead, block, blocks, fine_part, numbers, usual};
use crate::{Error, Result};

/// The frequency from which structure is fine: a fifth of the finest along a side.
const FROM: f64 = 0.2;
/// Units of a hidden layer.
const HIDDEN: usize = 16;
/// The levels that it is trained between.
const SIGMA: (f64, f64) = (0.02, 50.0);
/// Images of a step.
const BATCH: usize = 32;
/// Adam's step size, what it keeps of its moments, and what it adds to the root of the second.
const RATE: f64 = 3e-3;
const KEEP: (f64, f64) = (0.9, 0.999);
const EPSILON: f64 = 1e-8;
/// Steps over which the step size rises.
const WARM: f64 = 30.0;

/// Steps of a training: more change the likelihood of held-out images little.
pub const LOCAL_STEPS: usize = 300;

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
    if !cosines.frequencies().iter().any(|f| *f >= FROM) {
        return Ok(None);
    }
    let mut head = LocalHead::fresh(FROM, cosines.shape()[0], HIDDEN, SIGMA, seed);
    let count = head.weights.len();
    let (mut first, mut second) = (vec![0.0; count], vec![0.0; count]);
    let mut gain = 0.0;
    for step in 0..steps {
        let (loss, gradient) = step_of(model, table, images, &head, &cosines, seed, step)?;
        if !loss.is_finite() {
            return Err(Error::config("local factor", "its training diverged"));
        }
        let n = (step + 1) as f64;
        let rate = RATE * (n / WARM).min(1.0) * (1.0 - step as f64 / steps as f64).max(0.02);
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt().max(1.0);
        for k in 0..count {
            let g = gradient[k] / norm;
            first[k] = KEEP.0 * first[k] + (1.0 - KEEP.0) * g;
            second[k] = KEEP.1 * second[k] + (1.0 - KEEP.1) * g * g;
            let (m, v) = (first[k] / (1.0 - KEEP.0.powf(n)), second[k] / (1.0 - KEEP.1.powf(n)));
            head.weights[k] -= (rate * m / (v.sqrt() + EPSILON)) as f32;
        }
        // The mean over about the last fifty steps.
        let share = (1.0 / n).max(0.02);
        gain += share * (-loss - gain);
        if watch(step, gain).is_break() {
            return Err(daps_core::Error::Cancelled { level: step + 1, of: steps }.into());
        }
    }
    // Five digits are more than is known, and make the file short.
    head.weights.iter_mut().for_each(|w| *w = (*w * 1e5).round() / 1e5);
    Ok(Some(head))
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
) -> Result<(f64, Vec<f64>)> {
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
    let denoised = model.denoise(&x, &Sigma::Rows(sigma.clone()))?;
    let rest = fine_part(&combine(&[(&[1.0], &x0), (&[-1.0], &denoised)])?, cosines, head.from)?;
    let energies = head.energies(&denoised, cosines)?;
    let plane = cosines.shape()[1] * cosines.shape()[2];
    let (energies, rest) = (numbers(&energies)?, numbers(&rest)?);
    let all = (BATCH * cosines.shape()[0] * plane) as f64;
    let of_row = |row: usize| -> Result<(f64, Vec<f64>)> {
        let deviations = usual(table, sigma[row], head.from, cosines)?;
        let waves = head.waves(sigma[row]);
        let of = |values: &'_ [f32]| values.len() / BATCH;
        let energies = &energies[row * of(&energies)..(row + 1) * of(&energies)];
        let rest = &rest[row * of(&rest)..(row + 1) * of(&rest)];
        let (mut loss, mut gradient) = (0.0, vec![0.0; head.weights.len()]);
        for (start, count) in blocks(plane) {
            let inputs = block(energies, plane, start, count);
            let seen = head.forward(&inputs, &waves);
            let mut slope = seen.out.clone();
            for ((slope, rest), deviation) in slope.iter_mut().zip(rest.chunks(plane)).zip(&deviations) {
                for (k, slope) in slope.iter_mut().enumerate() {
                    if k >= count {
                        *slope = 0.0;
                        continue;
                    }
                    let (log, square) = (f64::from(*slope), (f64::from(rest[start + k]) / deviation).powi(2));
                    let left = square * (-2.0 * log).exp();
                    loss += log + 0.5 * (left - square);
                    *slope = ((1.0 - left) / all) as f32;
                }
            }
            head.backward(&inputs, &waves, &seen, &slope, &mut gradient);
        }
        Ok((loss / all, gradient))
    };
    let rows: Vec<(f64, Vec<f64>)> = (0..BATCH).into_par_iter().map(of_row).collect::<Result<_>>()?;
    let mut total = (0.0, vec![0.0; head.weights.len()]);
    for (loss, gradient) in rows {
        total.0 += loss;
        total.1.iter_mut().zip(gradient).for_each(|(t, g)| *t += g);
    }
    Ok(total)
}
