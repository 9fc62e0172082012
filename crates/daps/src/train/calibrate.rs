//! What a denoiser's error is like: its covariance by frequency, and where it is larger than usual. Both are measured when a prior is
//! exported, or on a prior that exists.

use std::path::Path;

use candle_core::Tensor;
use daps_core::{Denoiser, SpreadTable};
use daps_priors::LocalHead;
use daps_priors::checkpoint::Opened;
use daps_priors::network::NetworkPrior;
use daps_priors::training::{
    DataConfig, Dataset, Images, LOCAL_STEPS, measure_spread, spread_levels, train_local, write_measured,
};
use serde::Serialize;

use super::{export::MOST, watched};
use crate::progress::Progress;
use crate::{Error, Result};

/// What was measured of a prior's error.
#[derive(Clone, Debug, Serialize)]
pub struct Calibrated {
    /// SHA-256 of the tensors, which are as they were.
    pub sha256: String,
    /// Images that it was measured on.
    pub measured: usize,
    /// Images that the local factor was trained on; none where there is no such factor.
    pub trained: usize,
}

/// How an error is measured anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calibration {
    /// On the last so many of the held-out images; none: on as many as an export takes.
    pub measure: Option<usize>,
    /// On images of this side; none: the side that the network was trained on.
    pub side: Option<usize>,
    /// Seed of the noise and of the local factor's training.
    pub seed: u64,
}

/// Writes the prior of a file again, with its error measured anew: its covariance on held-out images, where it is larger on the images
/// that are not held out.
pub fn calibrate(
    weights: &Path,
    data: &DataConfig,
    &Calibration { measure, side, seed }: &Calibration,
    out: &Path,
    progress: &mut dyn Progress,
) -> Result<Calibrated> {
    let opened = Opened::file(weights)?;
    let config = opened.needed_config()?;
    let about = opened.metadata().clone();
    let tensors = opened.read()?.tensors;
    let mut prior = NetworkPrior::new(&config, tensors.clone())?;
    let mut shape = config.shape();
    if let Some(side) = side {
        prior = prior.with_size(side, side)?;
        shape = [shape[0], side, side];
    }
    let data = watched(progress, |watch| Dataset::read_watched(data, shape, Path::new(""), watch))?;
    let measured = measure.unwrap_or(MOST).min(data.held_out.len());
    if measured < 2 || data.train.is_empty() {
        let what = "expected at least two held-out images to measure on, and others to train on";
        return Err(Error::Config(format!("{what}, got {measured} and {}", data.train.len())));
    }
    let spread = spread(&prior, &data.held_out.last(measured)?, seed, progress)?;
    let local = local(&prior, &spread, &data.train, (LOCAL_STEPS, seed), progress)?;
    let trained = local.as_ref().map_or(0, |_| data.train.len());
    let sha256 = write_measured(out, &tensors, about.into_iter().collect(), &spread, local.as_ref())?;
    Ok(Calibrated { sha256, measured, trained })
}

/// r(σ) and the covariance by frequency, level by level.
pub(super) fn spread(
    prior: &dyn Denoiser,
    held_out: &Tensor,
    seed: u64,
    progress: &mut dyn Progress,
) -> Result<SpreadTable> {
    let levels = spread_levels();
    progress.begin("measuring r(σ)", levels.len());
    let mut spread: Option<SpreadTable> = None;
    for (done, level) in levels.iter().enumerate() {
        let one = measure_spread(prior, held_out, &[*level], seed)?;
        match &mut spread {
            Some(spread) => spread.append(one),
            None => spread = Some(one),
        }
        if progress.step(&format!("σ = {level}")).is_break() {
            return Err(daps_core::Error::Cancelled { level: done + 1, of: levels.len() }.into());
        }
    }
    progress.end();
    let spread = spread.ok_or_else(|| Error::Config("r(σ) has no levels".to_owned()))?;
    spread.check()?;
    Ok(spread)
}

/// Where the error is larger than usual; nothing where samples are no images.
pub(super) fn local(
    prior: &dyn Denoiser,
    spread: &SpreadTable,
    images: &Images,
    (steps, seed): (usize, u64),
    progress: &mut dyn Progress,
) -> Result<Option<LocalHead>> {
    progress.begin("learning where the error is larger", steps);
    let mut watch = |_: usize, gain: f64| progress.step(&format!("log-likelihood +{gain:.4} a number"));
    let local = train_local(prior, spread, images, steps, seed, &mut watch)?;
    progress.end();
    Ok(local)
}
