//! The configuration of a run: one TOML file, checked before any work starts.

use std::path::{Path, PathBuf};

use daps_core::NoiseModel;
use daps_methods::MethodConfig;
use daps_priors::{Memory, PriorConfig};
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::{Answer, Error, Result, task};

/// A run: a prior, a task and a method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The version that ran it; another one does not go on with its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Seed of everything that is random.
    #[serde(default)]
    pub seed: u64,
    /// Posterior samples per measurement.
    #[serde(default = "default_samples")]
    pub samples: usize,
    /// Rows that run at once: memory depends on it, results do not.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// Memory that a call of a network may take, such as `"4GB"`: beyond it rows run one after another, and larger images as tiles.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub memory: Memory,
    /// What is given as the one answer to a measurement: a sample, or the mean of all samples.
    #[serde(default, skip_serializing_if = "Answer::is_usual")]
    pub answer: Answer,
    /// The measurement.
    pub task: TaskConfig,
    /// The prior: `kind` and its settings.
    pub prior: PriorConfig,
    /// The method: `name` and its settings; absent: DAPS with the paper's preset, or discrete DAPS for a prior over tokens.
    #[serde(default)]
    pub method: MethodConfig,
}

/// What was measured, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskConfig {
    /// The operator's name.
    pub operator: String,
    /// Shape of one sample, such as `[3, 64, 64]` or `[8]`; a network knows its own, or takes that of its input.
    #[serde(default)]
    pub shape: Vec<usize>,
    /// The measurement's noise: a standard deviation such as `0.05`, or a model such as `"poisson:peak=30"` or
    /// `{ model = "poisson", peak = 30 }`.
    #[serde(default = "default_noise")]
    pub noise: NoiseModel,
    /// How many truths to draw from the prior and measure, where neither `truth` nor `measurement` is given.
    #[serde(default = "one")]
    pub measurements: usize,
    /// True samples that are measured first: a picture, a folder of pictures, or a .npy or .safetensors file of
    /// `[n, shape…]` or `[shape…]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truth: Option<PathBuf>,
    /// Measurements: a picture, a folder of pictures, or a .npy or .safetensors file of `[n, output shape…]` or
    /// `[output shape…]`; no truth is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<PathBuf>,
    /// Of a folder of pictures the files that are taken; all where none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// Settings of the operator.
    #[serde(default)]
    pub options: Table,
}

fn default_samples() -> usize {
    16
}
fn default_batch() -> usize {
    256
}
fn is_usual(memory: &Memory) -> bool {
    *memory == Memory::default()
}
fn default_noise() -> NoiseModel {
    NoiseModel::Level(task::NOISE)
}
fn one() -> usize {
    1
}

impl TaskConfig {
    /// An operator with its defaults; truths are drawn from the prior.
    #[must_use]
    pub fn new(operator: impl Into<String>) -> Self {
        Self {
            operator: operator.into(),
            shape: vec![],
            noise: default_noise(),
            measurements: one(),
            truth: None,
            measurement: None,
            images: vec![],
            options: Table::new(),
        }
    }
}

impl RunConfig {
    /// A run with everything else as where nothing is said.
    #[must_use]
    pub fn new(task: TaskConfig, prior: PriorConfig, method: MethodConfig) -> Self {
        Self {
            version: None,
            seed: 0,
            samples: default_samples(),
            batch: default_batch(),
            memory: Memory::default(),
            answer: Answer::default(),
            task,
            prior,
            method,
        }
    }

    /// Reads a configuration from TOML text.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text).map_err(|e| {
            let place = daps_files::place(text, e.span());
            Error::Config(format!("configuration: {place}{}", daps_core::with_suggestion(e.message())))
        })?;
        config.check()?;
        Ok(config)
    }

    /// Refuses numbers that no run can have.
    pub fn check(&self) -> Result<()> {
        let positive = |name: &str, value: usize| match value {
            0 => Err(Error::Config(format!("{name}: expected at least 1, got 0"))),
            _ => Ok(()),
        };
        positive("samples", self.samples)?;
        positive("batch", self.batch)?;
        positive("task.measurements", self.task.measurements)?;
        if self.task.shape.contains(&0) || (self.task.shape.is_empty() && !self.prior.knows_its_shape()) {
            return Err(Error::Config(format!(
                "task.shape: expected positive sizes, got {:?}; only a network knows its own (daps solve: --shape)",
                self.task.shape
            )));
        }
        self.task.noise.check()?;
        if self.task.truth.is_some() && self.task.measurement.is_some() {
            return Err(Error::Config("task: expected either truth or measurement, got both".into()));
        }
        if self.task.measurements != 1 && (self.task.truth.is_some() || self.task.measurement.is_some()) {
            let what = "task.measurements: expected only where the prior draws the truths; a file has as many as it has";
            return Err(Error::Config(what.into()));
        }
        Ok(())
    }

    /// Makes the paths of files absolute, so that the configuration means the same wherever it is read; they start at `base`.
    pub fn settle(&mut self, base: &Path) -> Result<()> {
        for path in [&mut self.task.truth, &mut self.task.measurement].into_iter().flatten() {
            *path = absolute(&base.join(&*path))?;
        }
        settle(&mut self.task.options, base)?;
        Ok(self.prior.settle(base)?)
    }

    /// The resolved configuration as TOML, as it is kept in a run directory.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|e| Error::Config(format!("configuration: {e}")))
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Error::file(path, "cannot find"))
}

/// Makes the files and folders that a table of settings names absolute; they start at `base`.
pub fn settle(table: &mut Table, base: &Path) -> Result<()> {
    for (key, value) in table.iter_mut() {
        let file = value.as_str().filter(|_| !is_name(key)).map(|text| base.join(text));
        if let Some(path) = file.filter(|path| path.exists()) {
            *value = toml::Value::from(absolute(&path)?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Whether a setting is a name, even where a file or folder of the same name lies about.
fn is_name(key: &str) -> bool {
    matches!(key, "border" | "tensor")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[task]\noperator = 'hdr'\nshape = [4]\n[prior]\nkind = 'gaussian'\n";

    #[test]
    fn defaults_are_filled_in_and_survive_a_round_trip() {
        let config = RunConfig::parse(SMALL).unwrap();
        let mut task = TaskConfig::new("hdr");
        task.shape = vec![4];
        assert_eq!(RunConfig::new(task, config.prior.clone(), MethodConfig::default()), config);
        assert_eq!((config.samples, &config.task.noise), (16, &NoiseModel::Level(0.05)));
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        let small = RunConfig::parse(&format!("memory = '512MB'\n{SMALL}")).unwrap();
        assert_eq!(small.memory, Memory::new(512_000_000));
        assert_eq!(RunConfig::parse(&small.to_toml().unwrap()).unwrap(), small);
        assert_eq!(config.method.clone().over(false).unwrap().name(), Some("daps"));
        assert_eq!(config.method.over(true).unwrap().name(), Some("discrete_daps"));
    }

    #[test]
    fn names_stay_names_where_something_of_the_same_name_lies_about() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["reflect", "points", "kernel.npy"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let settled = |text: &str| {
            let mut table: Table = text.parse().unwrap();
            settle(&mut table, dir.path()).unwrap();
            table
        };
        let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        let options = settled("kernel = 'kernel.npy'\nborder = 'reflect'\ntensor = 'points'");
        assert_eq!(options["tensor"].as_str(), Some("points"));
        assert_eq!(options["border"].as_str(), Some("reflect"));
        assert_eq!(options["kernel"].as_str(), Some(at("kernel.npy").as_str()));
    }

    #[test]
    fn mistakes_get_one_sentence() {
        let error = |text: String| RunConfig::parse(&text).unwrap_err().to_string();
        assert!(error(format!("sampels = 3\n{SMALL}")).contains("line 1"));
        assert!(error(SMALL.replace("[4]", "[0]")).contains("task.shape"));
        assert!(error(SMALL.replace("shape", "noise = -1.0\nshape")).contains("task.noise"));
        assert!(error(SMALL.replace("shape", "noise = nan\nshape")).contains("task.noise"));
        assert!(error(format!("memory = 'plenty'\n{SMALL}")).contains("such as 4GB, 512MB"));
        assert!(error("seed = 1".into()).contains("missing field"));
        let several = SMALL.replace("shape", "measurements = 7\ntruth = 'x.npy'\nshape");
        assert!(error(several).contains("task.measurements"));
    }
}
