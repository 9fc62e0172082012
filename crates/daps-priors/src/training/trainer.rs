//! A training run in memory: steps, and a checkpoint from which it goes on to the same bits.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{Device, Tensor};
use daps_core::Categorical;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::batch::Batches;
use super::config::{Goal, TrainConfig};
use super::curve::{Curve, Loss, Point};
use super::data::Dataset;
use super::export::COMMANDS_KEY;
use super::loss::loss_and_gradients;
use super::optimizer::{AdamW, cooled, ema_decay, learning_rate};
use crate::checkpoint::{self, CONFIG_KEY, Checkpoint, DATA_KEY, EARLIER_KEY, IMAGES_KEY, write_safetensors};
use crate::network::{NetworkConfig, NetworkPrior, Preconditioning, TokenPrior};
use crate::{Classifier, Error, Result};

/// Metadata keys of a training checkpoint.
const MARK_KEY: &str = "daps.training";

/// What stands for commands that nobody kept; a comment among them.
const UNRECORDED: &str = "# what made the weights that training began with was not recorded";

/// What a checkpoint says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Mark {
    step: u64,
    #[serde(default)]
    earlier: Vec<u64>,
    /// Absent from runs that began before it was kept.
    #[serde(default)]
    seen: Vec<Option<String>>,
    /// How the first version with `--start` counted them: steps before this run.
    #[serde(default, skip_serializing)]
    first: u64,
    seconds: f64,
    /// The configuration without what does not change the weights.
    config: String,
    /// The data set's checksum.
    data: String,
}

/// What is trained.
enum Learner {
    Denoiser(NetworkPrior),
    Tokens(TokenPrior),
    /// With the largest move of an image.
    Classes(Classifier, usize),
}

/// A network in training.
pub struct Trainer {
    config: TrainConfig,
    network: NetworkConfig,
    data: Dataset,
    learner: Learner,
    optimizer: AdamW,
    batches: Batches,
    step: u64,
    /// Images seen when each of the runs ended from whose weights this one began.
    earlier: Vec<u64>,
    /// Checksums of the data that the weights had seen when this run began, each once; none for data that nobody noted.
    seen: Vec<Option<String>>,
    /// Seconds of work, over all resumptions.
    pub seconds: f64,
    /// The commands that trained the weights, one after the other, as far as they are known; those of the runs before come
    /// first. A line that begins with `#` is a remark.
    pub commands: Vec<String>,
    curve: Curve,
}

impl Trainer {
    /// A fresh network.
    pub fn new(config: TrainConfig, data: Dataset) -> Result<Self> {
        config.check()?;
        if data.train.is_empty() {
            let held_out = data.held_out.len();
            let expected = format!("fewer than the {held_out} images of the data set");
            return Err(daps_core::Error::invalid("data.held_out", expected, held_out).into());
        }
        let sigma_data = match config.loss.sigma_data {
            Some(given) => given,
            None => data.train.deviation(),
        };
        let network = config.network(sigma_data);
        network.check()?;
        let (seed, cpu) = (config.seed, Device::Cpu);
        let (learner, variables) = match config.goal() {
            Goal::Denoiser => {
                let (prior, variables) = NetworkPrior::fresh(&network, seed, &cpu)?;
                (Learner::Denoiser(prior), variables)
            }
            Goal::Tokens(_) => {
                let (prior, variables) = TokenPrior::fresh(&network, seed, &cpu)?;
                (Learner::Tokens(prior), variables)
            }
            Goal::Classes(classes) => {
                if data.labels.train.len() != data.train.len() {
                    return Err(daps_core::Error::missing("a classifier", "labels", "the data set").into());
                }
                let (classifier, variables) = Classifier::fresh(&network, seed, &cpu)?;
                (Learner::Classes(classifier, classes.shift), variables)
            }
        };
        let log_sigma = (config.loss.p_mean, config.loss.p_std);
        Ok(Self {
            optimizer: AdamW::new(&config.optimizer, variables)?,
            batches: Batches::new(config.seed, config.batch, config.data.flip, log_sigma),
            network,
            data,
            learner,
            config,
            step: 0,
            earlier: Vec::new(),
            seen: Vec::new(),
            seconds: 0.0,
            commands: Vec::new(),
            curve: Curve::default(),
        })
    }

    /// The configuration of the network, σ_data included.
    #[must_use]
    pub fn network(&self) -> &NetworkConfig {
        &self.network
    }

    /// The data's deviation in the preconditioning.
    #[must_use]
    pub fn sigma_data(&self) -> f64 {
        match self.network.preconditioning {
            Preconditioning::Edm { sigma_data } => sigma_data,
            _ => f64::NAN,
        }
    }

    /// Numbers that are trained.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.optimizer.len()
    }

    /// The configuration of the run.
    #[must_use]
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// The images.
    #[must_use]
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// Steps done, those of the weights that it began with included.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Images that had been seen when each of the runs ended from whose weights this one began, one after the other; 0 first
    /// where the weights did not say how many they had seen.
    #[must_use]
    pub fn earlier_runs(&self) -> &[u64] {
        &self.earlier
    }

    /// Checksums of all data that the weights have seen, this run's included, each once; none for data that nobody noted.
    #[must_use]
    pub fn data_seen(&self) -> Vec<Option<String>> {
        let own = Some(self.data.checksum.clone());
        let mut all = self.seen.clone();
        if !all.contains(&own) {
            all.push(own);
        }
        all
    }

    /// What is to be said of the weights that the run began with, a sentence each; nothing where they say all of themselves and
    /// have seen no other data.
    #[must_use]
    pub fn start_notes(&self) -> Vec<&'static str> {
        let mut notes = Vec::new();
        if self.earlier.first() == Some(&0) {
            notes.push("the first weights do not say how many images they have seen; those are not counted");
        }
        if self.seen.iter().flatten().any(|theirs| *theirs != self.data.checksum) {
            notes.push(
                "the weights that this run began with have seen other images, or another split of these: some of those held out \
                 may be among them",
            );
        } else if self.seen.contains(&None) {
            notes.push(
                "the weights that this run began with do not say which images they have seen; the split is this run's",
            );
        }
        notes
    }

    /// Images that the weights had seen when this run began, in whole batches.
    #[must_use]
    pub fn images_before(&self) -> u64 {
        self.first_step() * self.config.batch as u64
    }

    /// Steps that the weights had behind them when this run began.
    fn first_step(&self) -> u64 {
        self.earlier.last().map_or(0, |images| images.div_ceil(self.config.batch as u64))
    }

    /// Images seen.
    #[must_use]
    pub fn images(&self) -> u64 {
        self.step * self.config.batch as u64
    }

    /// The loss curve: a point every [`WINDOW`](super::WINDOW) steps.
    #[must_use]
    pub fn curve(&self) -> &[Point] {
        self.curve.points()
    }

    /// The loss curve up to the last step.
    #[must_use]
    pub fn curve_so_far(&self) -> Vec<Point> {
        let last = self.curve.now(self.images()).filter(|p| self.curve().last() != Some(p));
        self.curve().iter().copied().chain(last).collect()
    }

    /// The loss of the run; nothing before its first step.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        let images = self.curve.window() * self.config.batch as u64;
        self.curve.now(self.images()).map(|p| Loss { mean: p.loss, images })
    }

    /// One step; gives its loss.
    pub fn advance(&mut self) -> Result<f64> {
        let (loss, gradients) = match &self.learner {
            Learner::Denoiser(prior) => {
                loss_and_gradients(prior, &self.batches.at(self.step, &self.data.train)?)?
            }
            Learner::Tokens(prior) => {
                let batch = self.batches.tokens(self.step, &self.data.train, prior.corruption())?;
                prior.cross_entropy(&batch.x0, &batch.x_t, &batch.sigma)?
            }
            Learner::Classes(classifier, shift) => {
                let batch = self.batches.labelled(self.step, &self.data, *shift)?;
                classifier.cross_entropy(&batch.x, &batch.labels)?
            }
        };
        let number = self.step + 1;
        let batch = self.config.batch as f64;
        let (images, own) = (number as f64 * batch, number - self.first_step());
        let end = self.config.steps() as f64 * batch;
        let rate = learning_rate(&self.config.optimizer, images, own as f64 * batch)
            * cooled(self.config.cooldown, end - images);
        let decay = ema_decay(&self.config.ema, images, batch);
        // A step that fails leaves everything as it was.
        let norm = match loss.is_finite() {
            true => self.optimizer.step(&gradients, own, rate, decay)?,
            false => f64::NAN,
        };
        if !(loss.is_finite() && norm.is_finite()) {
            let reason = format!(
                "training diverged at step {number} (loss {loss}, gradient norm {norm}); take a smaller learning_rate"
            );
            return Err(Error::config("network", reason));
        }
        self.step = number;
        self.curve.push(number, self.images(), [loss, norm, rate]);
        Ok(loss)
    }

    /// The denoiser with the averaged weights.
    pub fn average(&self) -> Result<NetworkPrior> {
        NetworkPrior::new(&self.network, self.optimizer.average()?)
    }

    /// The prior over tokens with the averaged weights.
    pub fn average_tokens(&self) -> Result<TokenPrior> {
        TokenPrior::new(&self.network, self.optimizer.average()?)
    }

    /// The classifier with the averaged weights.
    pub fn average_classifier(&self) -> Result<Classifier> {
        Classifier::new(&self.network, self.optimizer.average()?)
    }

    /// The averaged weights.
    pub fn averaged_weights(&self) -> Result<BTreeMap<String, Tensor>> {
        self.optimizer.average()
    }

    /// Begins with the weights of a file of the same network, and counts on from the images that they have seen; from 0 where
    /// the file does not say how many.
    pub fn start(&mut self, path: &Path) -> Result<()> {
        let refuse = |reason: &str| Error::file(path, format!("cannot be started from: {reason}"));
        let (theirs, ours) = (checkpoint::config_of(path)?.to_toml()?, self.network.to_toml()?);
        if theirs != ours {
            return Err(refuse(&format!("its network differs ({})", first_difference(&theirs, &ours))));
        }
        let found = checkpoint::read(path)?;
        let images = said(&found, IMAGES_KEY).map_err(|e| refuse(&e))?;
        let earlier = said(&found, EARLIER_KEY).map_err(|e| refuse(&e))?;
        let seen = said(&found, DATA_KEY).map_err(|e| refuse(&e))?;
        self.optimizer.begin(&found.tensors).map_err(|e| refuse(&e))?;
        self.earlier = earlier.unwrap_or_default();
        self.earlier.push(images.unwrap_or(0));
        self.seen = seen.unwrap_or_else(|| vec![None]);
        let commands =
            said(&found, COMMANDS_KEY).map_err(|e| refuse(&e))?.filter(|c: &Vec<String>| !c.is_empty());
        self.commands = commands.unwrap_or_else(|| vec![UNRECORDED.to_owned()]);
        self.step = self.first_step();
        Ok(())
    }

    /// Writes everything that the next step depends on, whole or not at all.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut tensors = self.optimizer.state()?;
        self.curve.write(&mut tensors)?;
        let mark = Mark {
            step: self.step,
            earlier: self.earlier.clone(),
            seen: self.seen.clone(),
            first: 0,
            seconds: self.seconds,
            config: fixed_part(&self.config)?,
            data: self.data.checksum.clone(),
        };
        let mark = serde_json::to_string(&mark).map_err(|e| Error::file(path, e))?;
        let metadata = [(MARK_KEY.to_owned(), mark), (CONFIG_KEY.to_owned(), self.network.to_toml()?)];
        write_safetensors(path, &tensors, HashMap::from(metadata))
    }

    /// Goes on from a checkpoint of the same configuration and data.
    pub fn resume(&mut self, path: &Path) -> Result<()> {
        let found = checkpoint::read(path)?;
        let refuse =
            |reason: &str| Error::file(path, format!("is not a checkpoint of this training: {reason}"));
        let mark = found.metadata.get(MARK_KEY).ok_or_else(|| refuse("it has no counters"))?;
        let mark: Mark = serde_json::from_str(mark).map_err(|e| refuse(&e.to_string()))?;
        if mark.data != self.data.checksum {
            return Err(refuse("it was trained on other images"));
        }
        if mark.config != fixed_part(&self.config)? {
            return Err(refuse(&format!(
                "the configuration has changed ({})",
                first_difference(&mark.config, &fixed_part(&self.config)?)
            )));
        }
        self.optimizer.restore(&found.tensors).map_err(|e| refuse(&e))?;
        (self.step, self.earlier, self.seen) = (mark.step, mark.earlier, mark.seen);
        self.seconds = mark.seconds;
        if self.earlier.is_empty() && mark.first > 0 {
            self.earlier = vec![mark.first * self.config.batch as u64];
        }
        if self.seen.is_empty() && !self.earlier.is_empty() {
            self.seen = vec![None];
        }
        let own = self.step.saturating_sub(self.first_step());
        self.curve = Curve::read(&found.tensors, self.step, own).map_err(|e| refuse(&e))?;
        Ok(())
    }
}

/// The configuration without what may change between resumptions.
fn fixed_part(config: &TrainConfig) -> Result<String> {
    let mut fixed = config.clone();
    (fixed.images, fixed.cooldown) = (1, 0.0);
    (fixed.checkpoint_minutes, fixed.report_minutes) = (1.0, 1.0);
    fixed.data.source = Default::default();
    if let Some(classes) = &mut fixed.classes {
        (classes.labels, classes.test) = Default::default();
    }
    // Told apart by the step that the run began with; the file itself may be gone.
    fixed.start = None;
    fixed.card = Default::default();
    fixed.to_toml()
}

/// What a file says of its weights under a key, if it says anything; the reason where that cannot be read.
fn said<T: DeserializeOwned>(found: &Checkpoint, key: &str) -> std::result::Result<Option<T>, String> {
    let read = found.metadata.get(key).map(|text| serde_json::from_str(text)).transpose();
    read.map_err(|e| format!("its {key} is damaged ({e})"))
}

fn first_difference(old: &str, new: &str) -> String {
    match old.lines().zip(new.lines()).find(|(a, b)| a != b) {
        Some((old, new)) => format!("{old} became {new}"),
        None => "settings were added or removed".to_owned(),
    }
}
