//! What to train, on what and how: one TOML file, checked before any work starts.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use daps_core::Rate;
use serde::{Deserialize, Serialize};

use super::data::{DataConfig, Dataset, Fit, Watch};
use super::file;
use crate::network::{Architecture, NetworkConfig, Preconditioning};
use crate::{Error, Result};

/// A training run. Durations are in images seen, so that they mean the same at any batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// The prior's name.
    pub name: String,
    /// Seed of everything that is random.
    #[serde(default)]
    pub seed: u64,
    /// Images to see in all.
    pub images: u64,
    /// Over so many images before the end the learning rate falls to 0, in a straight line: weights that stop wandering denoise
    /// better. Like `images`, it may be another one when the run is resumed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cooldown: f64,
    /// Images of one step.
    #[serde(default = "batch")]
    pub batch: usize,
    /// Minutes between checkpoints.
    #[serde(default = "checkpoint_minutes")]
    pub checkpoint_minutes: f64,
    /// Minutes between sample grids and denoising tables.
    #[serde(default = "report_minutes")]
    pub report_minutes: f64,
    /// Side of the patches that the network sees as one pixel.
    #[serde(default = "one")]
    pub patch: usize,
    /// Begin with these weights, a file of `daps train export` or another of the same network, instead of random ones. The count of
    /// images goes on from theirs (from 0 where the file has none), and with it everything that depends on it but the warm-up, which
    /// the optimiser needs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<PathBuf>,
    /// Train a prior over tokens instead of a denoiser: grey values are cut into as many parts as there are symbols.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokensConfig>,
    /// Train a classifier of binary images instead: grey values are cut at their middle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassesConfig>,
    /// The data set.
    pub data: DataConfig,
    /// The network's architecture.
    pub network: Architecture,
    /// Noise levels of the loss.
    #[serde(default)]
    pub loss: LossConfig,
    /// Steps.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// Averaged weights.
    #[serde(default)]
    pub ema: EmaConfig,
    /// What the model card says.
    #[serde(default)]
    pub card: CardConfig,
}

/// An alphabet and the chain that corrupts it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokensConfig {
    /// The alphabet's size.
    pub symbols: usize,
    /// What a corrupted token turns into.
    #[serde(default)]
    pub rate: Rate,
}

/// What the images show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassesConfig {
    /// An IDX file (MNIST) with a label for each image, perhaps compressed with gzip.
    pub labels: PathBuf,
    /// Each image is shown moved by up to this many pixels along rows and columns.
    #[serde(default)]
    pub shift: usize,
    /// Images and labels that tell how good the end result is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<TestConfig>,
}

/// A test set; no part of training sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestConfig {
    /// The images, of any kind that [`DataConfig`] reads.
    pub images: PathBuf,
    /// Their labels.
    pub labels: PathBuf,
}

/// What a configuration trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal<'a> {
    /// A denoiser.
    Denoiser,
    /// A prior over tokens.
    Tokens(&'a TokensConfig),
    /// A classifier.
    Classes(&'a ClassesConfig),
}

impl Goal<'_> {
    /// What its loss is called.
    #[must_use]
    pub fn loss(&self) -> &'static str {
        match self {
            Self::Denoiser => "EDM's loss",
            Self::Tokens(_) => "cross-entropy of a token",
            Self::Classes(_) => "cross-entropy of a class",
        }
    }
}

/// ln σ ~ N(p_mean, p_std²), and EDM's weights for data of deviation σ_data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossConfig {
    /// Mean of ln σ.
    pub p_mean: f64,
    /// Deviation of ln σ.
    pub p_std: f64,
    /// Deviation of the data; absent: measured on the training images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma_data: Option<f64>,
}

impl Default for LossConfig {
    fn default() -> Self {
        Self { p_mean: -1.2, p_std: 1.2, sigma_data: None }
    }
}

/// AdamW with a linear warm-up and, from `decay_after` on, a rate that falls as 1/√images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// The largest step size.
    pub learning_rate: f64,
    /// Images over which it grows from zero.
    pub warmup: f64,
    /// Images after which it falls as their inverse square root; 0: never.
    pub decay_after: f64,
    /// Decay of the gradient's mean.
    pub beta1: f64,
    /// Decay of the gradient's mean square.
    pub beta2: f64,
    /// Added to the root of the mean square.
    pub epsilon: f64,
    /// Decoupled decay of the weights, times the step size.
    pub weight_decay: f64,
    /// Largest norm of the whole gradient; 0: no limit.
    pub clip: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            learning_rate: 4e-4,
            warmup: 10_000.0,
            decay_after: 0.0,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            clip: 1.0,
        }
    }
}

/// The average of the weights over the last images: an exponential one whose half-life grows at first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmaConfig {
    /// Half-life in images.
    pub half_life: f64,
    /// The half-life is at most this share of the images seen so far.
    pub ramp: f64,
}

impl Default for EmaConfig {
    fn default() -> Self {
        Self { half_life: 500_000.0, ramp: 0.05 }
    }
}

/// Sentences for the model card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CardConfig {
    /// Where the data come from.
    pub data: String,
    /// What the weights may be used for.
    pub licence: String,
    /// How to make the data set.
    pub recipe: String,
}

fn one() -> usize {
    1
}
fn batch() -> usize {
    32
}
// Absent from files that were written before there was one.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn checkpoint_minutes() -> f64 {
    5.0
}
fn report_minutes() -> f64 {
    30.0
}

impl TrainConfig {
    /// From TOML, checked.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text).map_err(|e| {
            let place = daps_files::place(text, e.span());
            Error::config("training", format!("{place}{}", daps_core::with_suggestion(e.message())))
        })?;
        config.check().map_err(|e| file::with_line(text, e))?;
        Ok(config)
    }

    /// As TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|e| Error::config("training", e))
    }

    /// The network that a run with this σ_data trains.
    #[must_use]
    pub fn network(&self, sigma_data: f64) -> NetworkConfig {
        NetworkConfig {
            patch: self.patch,
            network: self.network.clone(),
            preconditioning: match self.goal() {
                Goal::Denoiser => Preconditioning::Edm { sigma_data },
                Goal::Tokens(&TokensConfig { symbols, rate }) => Preconditioning::Tokens { symbols, rate },
                Goal::Classes(_) => Preconditioning::Classes,
            },
            space: None,
        }
    }

    /// What is trained.
    #[must_use]
    pub fn goal(&self) -> Goal<'_> {
        match (&self.tokens, &self.classes) {
            (Some(tokens), _) => Goal::Tokens(tokens),
            (None, Some(classes)) => Goal::Classes(classes),
            (None, None) => Goal::Denoiser,
        }
    }

    /// The same with every file's place made absolute; `base` is where relative ones start.
    #[must_use]
    pub fn settled(mut self, base: &Path) -> Self {
        let settle = |path: &mut PathBuf| {
            let joined = base.join(&*path);
            *path = std::path::absolute(&joined).unwrap_or(joined);
        };
        settle(&mut self.data.source);
        self.start.iter_mut().for_each(settle);
        if let Some(classes) = &mut self.classes {
            settle(&mut classes.labels);
            if let Some(test) = &mut classes.test {
                settle(&mut test.images);
                settle(&mut test.labels);
            }
        }
        self
    }

    /// Reads the images, and their labels where classes are trained.
    pub fn read_data(&self, base: &Path) -> Result<Dataset> {
        self.read_data_watched(base, &mut |_, _| ControlFlow::Continue(()))
    }

    /// The same for someone who waits.
    pub fn read_data_watched(&self, base: &Path, watch: &mut Watch) -> Result<Dataset> {
        let data = Dataset::read_watched(&self.data, self.network(1.0).shape(), base, watch)?;
        match (&self.classes, &self.network) {
            (Some(classes), Architecture::ConvNet(network)) => {
                data.with_labels(&base.join(&classes.labels), network.num_classes)
            }
            _ => Ok(data),
        }
    }

    /// Reads the test set, where there is one, as a data set with nothing held out.
    pub fn read_test(&self, base: &Path) -> Result<Option<Dataset>> {
        let Some(TestConfig { images, labels }) = self.classes.as_ref().and_then(|c| c.test.clone()) else {
            return Ok(None);
        };
        let mut test = self.clone();
        test.data = DataConfig { source: images, held_out: 0, ..self.data.clone() };
        test.classes = Some(ClassesConfig { labels, shift: 0, test: None });
        test.read_data(base).map(Some)
    }

    /// Steps in all.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.images.div_ceil(self.batch.max(1) as u64)
    }

    /// Refuses settings with which nothing can be trained.
    pub fn check(&self) -> Result<()> {
        let o = &self.optimizer;
        let good_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || !self.name.chars().all(good_name) {
            let expected = "letters, digits, '-', '_' and '.'";
            return Err(daps_core::Error::invalid("name", expected, format!("'{}'", self.name)).into());
        }
        for (what, value, least) in [("images", self.images, 1), ("batch", self.batch as u64, 1)] {
            if value < least {
                return Err(daps_core::Error::invalid(what, format!("at least {least}"), value).into());
            }
        }
        for (what, value) in [
            ("loss.p_std", self.loss.p_std),
            ("loss.sigma_data", self.loss.sigma_data.unwrap_or(1.0)),
            ("optimizer.learning_rate", o.learning_rate),
            ("optimizer.epsilon", o.epsilon),
            ("ema.half_life", self.ema.half_life),
            ("ema.ramp", self.ema.ramp),
            ("checkpoint_minutes", self.checkpoint_minutes),
            ("report_minutes", self.report_minutes),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(daps_core::Error::invalid(what, "a positive number", value).into());
            }
        }
        for (what, value) in [
            ("cooldown", self.cooldown),
            ("optimizer.warmup", o.warmup),
            ("optimizer.decay_after", o.decay_after),
            ("optimizer.weight_decay", o.weight_decay),
            ("optimizer.clip", o.clip),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(daps_core::Error::invalid(what, "a number from 0", value).into());
            }
        }
        if !self.loss.p_mean.is_finite() {
            return Err(daps_core::Error::invalid("loss.p_mean", "a finite number", self.loss.p_mean).into());
        }
        for (what, value) in [("optimizer.beta1", o.beta1), ("optimizer.beta2", o.beta2)] {
            if !(0.0..1.0).contains(&value) {
                return Err(daps_core::Error::invalid(what, "a number from 0 to below 1", value).into());
            }
        }
        if self.tokens.is_some() && self.classes.is_some() {
            return Err(daps_core::Error::invalid("training", "[tokens] or [classes]", "both").into());
        }
        if let Some(crops) = &self.data.crops {
            crops.check()?;
            if self.data.fit != Fit::Crop || self.goal() != Goal::Denoiser {
                let expected = "a denoiser, and no data.fit";
                return Err(daps_core::Error::invalid("data.crops", expected, "another setting").into());
            }
        }
        let network = self.network(self.loss.sigma_data.unwrap_or(1.0));
        network.check()?;
        let most = network.shape()[1] / 2;
        if let Some(bad) = self.classes.as_ref().map(|c| c.shift).filter(|shift| *shift > most) {
            let expected = format!("at most {most}, half of an image");
            return Err(daps_core::Error::invalid("classes.shift", expected, bad).into());
        }
        if network.classes() > 0 {
            let expected = "a network without classes: training has no labels";
            let got = format!("one with {}", network.classes());
            return Err(daps_core::Error::invalid("network", expected, got).into());
        }
        if self.tokens.is_some() && matches!(&network.network, Architecture::Adm(c) if c.learn_sigma) {
            let expected = "false for tokens, which have no variance to learn";
            return Err(daps_core::Error::invalid("network.learn_sigma", expected, true).into());
        }
        Ok(())
    }
}
