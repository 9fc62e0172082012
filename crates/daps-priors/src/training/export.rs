//! The averaged weights as a prior in one file: f16, with configuration, r(σ) and checksum.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::Tensor;
use daps_core::SpreadTable;

use super::trainer::Trainer;
use super::validation::DENOISING_LEVELS;
use crate::checkpoint::{
    self, CONFIG_KEY, DATA_KEY, EARLIER_KEY, IMAGES_KEY, LOCAL_KEY, SPREAD_KEY, WeightType, cast_all,
    write_safetensors,
};
use crate::network::{NetworkPrior, TokenPrior};
use crate::{Classifier, Error, LocalHead, Result};

/// Metadata key of the commands that trained the weights, one after the other, as JSON.
pub(super) const COMMANDS_KEY: &str = "daps.commands";

/// Levels of the table r(σ): eight a decade from 0.01 to 100, and those of the denoising table.
#[must_use]
pub fn spread_levels() -> Vec<f64> {
    let grid = (0..=32).map(|i| 10f64.powf(-2.0 + f64::from(i) / 8.0));
    let mut levels: Vec<f64> = grid.chain(DENOISING_LEVELS).map(|s| (s * 1e6).round() / 1e6).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    levels
}

/// Writes the averaged weights of a prior over tokens as [`Export`] does, and gives the prior as it is
/// read back and the checksum of its tensors.
pub fn export_tokens(trainer: &Trainer, path: &Path) -> Result<(TokenPrior, String)> {
    let sha256 = write_rounded(trainer, path)?;
    Ok((TokenPrior::load(path)?, sha256))
}

/// The same for a classifier.
pub fn export_classifier(trainer: &Trainer, path: &Path) -> Result<(Classifier, String)> {
    let sha256 = write_rounded(trainer, path)?;
    Ok((Classifier::load(path)?, sha256))
}

/// Writes the averaged weights in f16 with their configuration, and gives their checksum.
fn write_rounded(trainer: &Trainer, path: &Path) -> Result<String> {
    let tensors = cast_all(trainer.averaged_weights()?, WeightType::F16)
        .map_err(|reason| Error::config("network", reason))?;
    write_safetensors(path, &tensors, about(trainer)?)?;
    Ok(checkpoint::inspect(path)?.sha256)
}

/// What every file says of its weights: their network, how many images they have seen in which runs, of which data, and which commands trained them.
fn about(trainer: &Trainer) -> Result<HashMap<String, String>> {
    let refuse = |e: serde_json::Error| Error::config("network", e);
    Ok(HashMap::from([
        (CONFIG_KEY.to_owned(), trainer.network().to_toml()?),
        (IMAGES_KEY.to_owned(), trainer.images().to_string()),
        (EARLIER_KEY.to_owned(), serde_json::to_string(trainer.earlier_runs()).map_err(refuse)?),
        (DATA_KEY.to_owned(), serde_json::to_string(&trainer.data_seen()).map_err(refuse)?),
        (COMMANDS_KEY.to_owned(), serde_json::to_string(&trainer.commands).map_err(refuse)?),
    ]))
}

/// A prior that is ready to be written.
pub struct Export {
    tensors: BTreeMap<String, Tensor>,
    /// The denoiser with the rounded weights, as it will be read back.
    pub prior: NetworkPrior,
    about: HashMap<String, String>,
}

impl Export {
    /// The averaged weights of a run, rounded to f16.
    pub fn new(trainer: &Trainer) -> Result<Self> {
        let tensors = cast_all(trainer.averaged_weights()?, WeightType::F16)
            .map_err(|reason| Error::config("network", reason))?;
        Ok(Self {
            prior: NetworkPrior::new(trainer.network(), tensors.clone())?,
            tensors,
            about: about(trainer)?,
        })
    }

    /// Writes the file and gives the checksum of its tensors.
    pub fn write(&self, path: &Path, spread: &SpreadTable, local: Option<&LocalHead>) -> Result<String> {
        write_measured(path, &self.tensors, self.about.clone(), spread, local)
    }
}

/// Writes a file of tensors with what was measured of the denoiser's error, and gives their checksum.
pub fn write_measured(
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
    mut about: HashMap<String, String>,
    spread: &SpreadTable,
    local: Option<&LocalHead>,
) -> Result<String> {
    let refuse = |e: serde_json::Error| Error::file(path, e);
    about.insert(SPREAD_KEY.to_owned(), serde_json::to_string(spread).map_err(refuse)?);
    about.remove(LOCAL_KEY);
    if let Some(local) = local {
        about.insert(LOCAL_KEY.to_owned(), serde_json::to_string(local).map_err(refuse)?);
    }
    write_safetensors(path, tensors, about)?;
    Ok(checkpoint::inspect(path)?.sha256)
}
