//! The file of an experiment: methods, tasks, images and seeds as TOML, checked before any work starts.

use std::path::{Path, PathBuf};

use daps::{Answer, Error, Result, files, prior, task};
use daps_core::NoiseModel;
use daps_priors::PriorConfig;
use daps_priors::training::Fit;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Table;

/// Methods x tasks x images x seeds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentConfig {
    /// Its name, which names its directory.
    pub name: String,
    /// Its title for people.
    pub title: String,
    /// What it asks, in a few sentences.
    #[serde(default)]
    pub about: String,
    /// Hours that it takes on two cores with the bundled prior: a note for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<f64>,
    /// The prior: a bundled name, a checkpoint, or a table as `[prior]` of a run.
    pub prior: PriorEntry,
    /// Shape of an image, where the prior does not know its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<usize>,
    /// Seeds; each gives masks, noise and chains of its own.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Chains of a cell, where a task does not say otherwise.
    #[serde(default = "one")]
    pub samples: usize,
    /// Chains that run at once: memory depends on it, results do not.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// Of how many images pictures are kept.
    #[serde(default)]
    pub pictures: usize,
    /// Whether to show the pictures that Fourier magnitudes cannot tell from the first image: its channels, turned or not.
    #[serde(default)]
    pub half_turns: bool,
    /// Whether the quality along the levels is kept.
    #[serde(default)]
    pub levels: bool,
    /// The method that others are compared with, pairwise: its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// A file with the paper's figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<PathBuf>,
    /// The tasks: names, or tables.
    pub tasks: Vec<TaskEntry>,
    /// The images.
    pub data: Source,
    /// The methods.
    #[serde(rename = "method")]
    pub methods: Vec<MethodEntry>,
    /// What to draw.
    #[serde(default, rename = "plot", skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<PlotConfig>,
}

/// A name, or settings.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum PriorEntry {
    /// A known name or a checkpoint.
    Name(String),
    /// `kind` and its settings.
    Settings(PriorConfig),
}

impl<'de> Deserialize<'de> for PriorEntry {
    // By hand: an untagged enum would only say that nothing fits.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(name) => Ok(Self::Name(name)),
            toml::Value::Table(table) => {
                PriorConfig::from_table(table).map(Self::Settings).map_err(D::Error::custom)
            }
            other => {
                let what = format!("prior: expected a name or a table, got {}", other.type_str());
                Err(D::Error::custom(what))
            }
        }
    }
}

impl PriorEntry {
    /// The settings that a run would have; files are relative to `base`.
    pub fn settings(&self, base: &Path) -> Result<PriorConfig> {
        match self {
            Self::Settings(settings) => Ok(settings.clone()),
            Self::Name(name) if base.join(name).is_file() => prior::named(&base.join(name).to_string_lossy()),
            Self::Name(name) => prior::named(name),
        }
    }
}

/// Which images, of which source.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// A folder of pictures, a tar of them, an IDX file or a `.npy` array, relative to the experiment's file; or "bundled",
    /// the few faces, or for a grey prior digits, that the program carries.
    pub source: PathBuf,
    /// Only the last so many images, in the order of their names: those that a training kept apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<usize>,
    /// An IDX file with a label for each image of the source: the bundled classifier judges samples by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<PathBuf>,
    /// How many of these to leave out first.
    #[serde(default)]
    pub skip: usize,
    /// How many of the rest to take.
    pub images: usize,
    /// How pictures of another size are brought to the prior's.
    #[serde(default)]
    pub fit: Fit,
}

/// A task by its operator's name, or with more.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum TaskEntry {
    /// With the operator's own settings.
    Name(String),
    /// Spelled out.
    Task(ExperimentTask),
}

impl<'de> Deserialize<'de> for TaskEntry {
    // By hand, as above.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(name) => Ok(Self::Name(name)),
            toml::Value::Table(table) => table.try_into().map(Self::Task).map_err(|e: toml::de::Error| {
                D::Error::custom(format!("tasks: {}", e.to_string().trim().replace('\n', " ")))
            }),
            other => {
                let what = format!("tasks: expected names or tables, got {}", other.type_str());
                Err(D::Error::custom(what))
            }
        }
    }
}

/// A task of an experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentTask {
    /// What it is called in the table; absent: the operator's name.
    #[serde(default)]
    pub label: String,
    /// The operator.
    pub operator: String,
    /// The noise of the measurement: a standard deviation, or a noise model.
    #[serde(default = "default_noise")]
    pub noise: NoiseModel,
    /// Chains of a cell; absent: the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// Where it stands on a plot's axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// Settings of the operator.
    #[serde(default)]
    pub options: Table,
}

impl ExperimentTask {
    /// What the operator is called for people.
    #[must_use]
    pub fn title(&self) -> &str {
        daps_operators::entry(&self.operator).map_or(&self.operator, |entry| entry.title)
    }

    /// Whether several images fit a measurement equally.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        let operator = daps_operators::entry(&self.operator).and_then(daps_operators::Entry::small);
        operator.is_ok_and(|operator| operator.is_ambiguous())
    }
}

/// A method of an experiment: what is not listed here are its settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MethodEntry {
    /// What it is called in the table; absent: its name.
    #[serde(default)]
    pub label: String,
    /// Its name in the registry.
    #[serde(default = "default_method")]
    pub name: String,
    /// What the paper's tables call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<String>,
    /// Settings task by task, as `daps tune` writes them; they replace those here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned: Option<PathBuf>,
    /// Where it stands on a plot's axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// Chains of a cell; absent: the task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// What is judged: a sample, or the mean of all samples of a cell.
    #[serde(default)]
    pub answer: Answer,
    /// Its settings.
    #[serde(flatten)]
    pub settings: Table,
}

/// Lines over (method, task) averages, or over levels.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlotConfig {
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The horizontal axis's name.
    #[serde(default)]
    pub x_label: String,
    /// What is drawn: columns of the table, one drawing each.
    pub y: Vec<String>,
    /// What makes a line.
    #[serde(default)]
    pub by: By,
    /// Whether the horizontal axis is logarithmic; that of σ always is.
    #[serde(default)]
    pub log: bool,
    /// Whether the vertical axis is.
    #[serde(default)]
    pub log_y: bool,
}

/// What a plot's horizontal axis shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// `at` of the method, or else of the task.
    At,
    /// Denoiser calls.
    Nfe,
    /// Seconds of a sample.
    Seconds,
    /// The noise level along a run; needs `levels = true`.
    Sigma,
}

/// What makes a line of a plot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// One line a task, methods along it.
    #[default]
    Task,
    /// One line a method, tasks along it.
    Method,
}

fn one_seed() -> Vec<u64> {
    vec![0]
}
fn one() -> usize {
    1
}
fn default_batch() -> usize {
    16
}
fn default_noise() -> NoiseModel {
    NoiseModel::Level(task::NOISE)
}
fn default_method() -> String {
    task::default_method(false).into()
}

impl ExperimentTask {
    /// A task by its operator's name, with its defaults.
    #[must_use]
    pub fn new(operator: impl Into<String>) -> Self {
        let operator = operator.into();
        let (label, noise) = (operator.clone(), default_noise());
        Self { label, operator, noise, samples: None, at: None, options: Table::new() }
    }
}

impl MethodEntry {
    /// A method by its name, with some settings.
    #[must_use]
    pub fn new(name: impl Into<String>, settings: Table) -> Self {
        let name = name.into();
        Self {
            label: name.clone(),
            name,
            paper: None,
            tuned: None,
            at: None,
            samples: None,
            answer: Answer::Sample,
            settings,
        }
    }
}

impl ExperimentConfig {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&files::read_text(path)?).map_err(|e| Error::content(path, e))
    }

    /// From TOML, checked, every label filled in.
    pub fn parse(text: &str) -> Result<Self> {
        let mut config: Self = toml::from_str(text).map_err(|e| {
            let place = daps_files::place(text, e.span());
            Error::Config(format!("{place}{}", daps_core::with_suggestion(e.message())))
        })?;
        for entry in &mut config.tasks {
            if let TaskEntry::Name(name) = entry {
                *entry = TaskEntry::Task(ExperimentTask::new(name.as_str()));
            }
            if let TaskEntry::Task(task) = entry
                && task.label.is_empty()
            {
                task.label.clone_from(&task.operator);
            }
        }
        for method in &mut config.methods {
            if method.label.is_empty() {
                method.label.clone_from(&method.name);
            }
        }
        config.check()?;
        Ok(config)
    }

    /// The tasks.
    pub fn tasks(&self) -> impl Iterator<Item = &ExperimentTask> {
        self.tasks.iter().filter_map(|t| match t {
            TaskEntry::Task(task) => Some(task),
            TaskEntry::Name(_) => None,
        })
    }

    /// Refuses what no table can have.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Config(what));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.chars().all(plain) {
            return refuse(format!("name: expected letters, digits, '-', '_' and '.', got '{}'", self.name));
        }
        for (what, empty) in [
            ("tasks", self.tasks.is_empty()),
            ("method", self.methods.is_empty()),
            ("seeds", self.seeds.is_empty()),
        ] {
            if empty {
                return refuse(format!("{what}: expected at least one"));
            }
        }
        for plot in self.plots.iter().filter(|p| p.x == Axis::At) {
            if self.tasks().all(|t| t.at.is_none()) && self.methods.iter().all(|m| m.at.is_none()) {
                return refuse(format!(
                    "plot '{}': x = \"at\" needs an `at` of tasks or methods",
                    plot.title
                ));
            }
        }
        for (what, value) in
            [("samples", self.samples), ("batch", self.batch), ("data.images", self.data.images)]
        {
            if value == 0 {
                return refuse(format!("{what}: expected at least 1, got 0"));
            }
        }
        let twice = |labels: Vec<&str>| {
            let again = |(i, l): (usize, &&str)| labels[..i].contains(l);
            labels.iter().enumerate().find(|(i, l)| again((*i, *l))).map(|(_, l)| (*l).to_owned())
        };
        if let Some(label) = twice(self.tasks().map(|t| t.label.as_str()).collect()) {
            return refuse(format!("tasks: two are called '{label}'; give them labels"));
        }
        if let Some(label) = twice(self.methods.iter().map(|m| m.label.as_str()).collect()) {
            return refuse(format!("method: two are called '{label}'; give them labels"));
        }
        if let Some(seed) = self.seeds.iter().enumerate().find(|(i, s)| self.seeds[..*i].contains(s)) {
            return refuse(format!("seeds: {} appears twice", seed.1));
        }
        for task in self.tasks() {
            if let Err(error) = task.noise.check() {
                return refuse(format!("tasks: {}: {error}", task.label));
            }
            if task.samples == Some(0) {
                return refuse(format!("tasks: {}: samples: expected at least 1, got 0", task.label));
            }
        }
        if let Some(method) = self.methods.iter().find(|m| m.samples == Some(0)) {
            return refuse(format!("method: {}: samples: expected at least 1, got 0", method.label));
        }
        if let Some(baseline) = &self.baseline
            && !self.methods.iter().any(|m| m.label == *baseline)
        {
            let labels = self.methods.iter().map(|m| m.label.as_str());
            return Err(daps_core::Error::unknown("baseline", baseline, labels).into());
        }
        for plot in &self.plots {
            let known = super::cell::COLUMNS.iter().map(|c| c.name).collect::<Vec<_>>();
            let levels = super::cell::LEVEL_COLUMNS.map(|c| c.0);
            let among = if plot.x == Axis::Sigma { &levels[..] } else { &known[..] };
            if let Some(y) = plot.y.iter().find(|y| !among.contains(&y.as_str())) {
                return Err(daps_core::Error::unknown("column of a plot", y, among).into());
            }
            if plot.x == Axis::Sigma && !self.levels {
                return refuse(format!("plot '{}': sigma needs levels = true", plot.title));
            }
        }
        Ok(())
    }
}
