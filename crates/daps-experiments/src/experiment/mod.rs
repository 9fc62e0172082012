//! Experiments: methods x tasks x images x seeds as one table that survives being killed.
//!
//! A cell is keyed by a digest of all that its result depends on (the resolved run, what is in the files that it names, the prior's
//! weights, the image, the seed), so a table that was stopped goes on where it was, a file that grew runs only what is new, and a
//! setting that changed never meets an old result. Images run through the prior in batches; a cell's bits do not depend on its
//! neighbours.

mod cell;
mod classes;
mod config;
mod curves;
mod data;
mod document;
mod engine;
mod estimate;
mod figure;
mod groups;
mod lack;
mod levels;
mod notes;
mod order;
mod pace;
mod paper;
mod pictures;
mod report;
mod statistics;
mod store;
mod write;

use std::path::{Path, PathBuf};

use daps::inputs::{by_content, prior_by_content, settle};
use daps::picture::is_image;
use daps::prior::{Built, PriorConfig};
use daps::quality::FEWEST_FOR_FID;
use daps::{Error, Result, Run, RunConfig, TaskConfig, assets, files, prior};
use daps_methods::{MethodConfig, registry};
use daps_metrics::lpips::{Backbone, Lpips, Pooling};
use toml::Table;

pub use cell::{COLUMNS, Cell, Chains, Column, Level, Number, SUCCESS};
pub use config::{
    Axis, By, ExperimentConfig, ExperimentTask, MethodEntry, PlotConfig, PriorEntry, Source, TaskEntry,
};
pub use data::{BUNDLED, images};
pub(crate) use engine::Block;
pub use engine::Progressed;
pub use estimate::Estimate;

pub(crate) use store::Store;

pub use crate::tuned::Tuned;
use crate::tuned::resolved;
use data::Images;

/// Raised with every numerical change of the changelog: cells that older code has run are not taken for new ones.
const NUMERICS: u32 = 7;

/// The LPIPS of the paper's code.
const BACKBONE: Backbone = Backbone::Vgg16;
const POOLING: Pooling = Pooling::Mean;

fn is_colour(shape: &[usize]) -> bool {
    is_image(shape) && shape[0] == 3
}

/// Whether images have three colours and are large enough for LPIPS.
fn has_lpips_features(shape: &[usize]) -> bool {
    is_colour(shape) && shape[1..].iter().all(|side| *side >= BACKBONE.smallest_side(POOLING))
}

/// An experiment that is ready to run.
pub struct Experiment {
    config: ExperimentConfig,
    model: Built,
    /// The prior's settings, completed.
    prior: PriorConfig,
    /// The same by what is in its files, which may be many: they are read once, and not for every pair.
    prior_by_content: PriorConfig,
    images: Images,
    lpips: Option<Lpips>,
    has_inception: bool,
    classifier: Option<classes::Judge>,
    paper: Vec<paper::Row>,
    /// Settings of every method, task by task, where it was tuned.
    tuned: Vec<Option<Tuned>>,
    base: PathBuf,
    notes: Vec<String>,
}

/// A method on a task.
pub(crate) struct Pair<'a> {
    pub method: &'a MethodEntry,
    pub task: &'a ExperimentTask,
    settings: MethodConfig,
    /// Whether the method was tuned, but not for this task.
    is_left_out: bool,
    /// Why the two do not fit.
    pub refusal: Option<Refusal>,
}

/// Why a method does not fit a task.
pub(crate) struct Refusal {
    /// What the method asks for in vain.
    pub needs: &'static str,
    /// All of it.
    pub sentence: String,
}

impl Pair<'_> {
    /// Why the two do not fit, as a sentence.
    pub(crate) fn refused(&self) -> Option<String> {
        self.refusal.as_ref().map(|r| r.sentence.clone())
    }
}

impl Experiment {
    /// Reads prior, images and the paper's figures; `base` is where the file's relative paths start.
    pub fn open(config: ExperimentConfig, base: &Path) -> Result<Self> {
        config.check()?;
        let mut notes = Vec::new();
        let mut tuned = |m: &MethodEntry| {
            let Some(file) = &m.tuned else { return Ok(None) };
            let path = base.join(file);
            if !path.exists() {
                let what = "is not tuned, there is no file";
                notes.push(format!("{} {what} {}; it runs with the settings here", m.label, file.display()));
                return Ok(None);
            }
            Tuned::read(&path).map(Some)
        };
        let tuned = config.methods.iter().map(&mut tuned).collect::<Result<Vec<_>>>()?;
        for (method, tuned) in config.methods.iter().zip(&tuned) {
            if let Some(tuned) = tuned.as_ref().filter(|t| t.name != method.name) {
                let what = format!("method {}: its tuned settings are of {}", method.label, tuned.name);
                return Err(Error::Config(what));
            }
        }
        let paper =
            config.paper.as_ref().map(|p| paper::read(&base.join(p))).transpose()?.unwrap_or_default();
        let mut prior = config.prior.settings(base)?;
        prior.settle(base)?;
        let model = prior::build(&mut prior, &config.shape, base)?;
        let prior_by_content = prior_by_content(&prior)?;
        let images = Images::read(&config.data, model.model.shape(), base)?;
        let lpips = match has_lpips_features(model.model.shape()) {
            true => assets::load(assets::LPIPS_VGG16)?,
            false => None,
        };
        let lpips = lpips.map(|weights| Lpips::new(BACKBONE, POOLING, &weights)).transpose()?;
        let judge = |path: &PathBuf| classes::Judge::read(&base.join(path), &model.model, images.of);
        let classifier = config.data.labels.as_ref().map(judge).transpose()?;
        notes.extend(model.notes.iter().cloned());
        let base = base.to_owned();
        let mut experiment = Self {
            config,
            model,
            prior,
            prior_by_content,
            images,
            lpips,
            has_inception: assets::is_there(assets::INCEPTION)?,
            classifier,
            paper,
            tuned,
            base,
            notes,
        };
        experiment.notes.extend(experiment.untuned()?);
        experiment.notes.extend(experiment.overruled()?);
        Ok(experiment)
    }

    /// Pairs that fit but that a method's tuned settings leave out.
    fn untuned(&self) -> Result<Vec<String>> {
        let is_left_out = |p: &Pair| p.refusal.is_none() && p.is_left_out;
        let note = |p: Pair| {
            format!("{} is not tuned for {}; it runs with the settings here", p.method.label, p.task.label)
        };
        Ok(self.pairs()?.into_iter().filter(is_left_out).map(note).collect())
    }

    /// Methods whose settings in the file, beside what a search may change, are not those that their tuned settings were found with.
    fn overruled(&self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for (method, tuned) in self.config.methods.iter().zip(&self.tuned) {
            let (Some(file), Some(tuned)) = (&method.tuned, tuned) else { continue };
            let parameters = registry::entry(&method.name)?.parameters;
            let fixed = |settings: &Table, task: &ExperimentTask| {
                let mut fixed = resolved(&method.name, settings, task).unwrap_or_default();
                parameters.iter().for_each(|p| p.set(&mut fixed, p.default));
                fixed
            };
            // A preset speaks of all settings, anything else of itself.
            let is_meant =
                |key: &str| method.settings.contains_key(key) || method.settings.contains_key("preset");
            let differs = |task: &&ExperimentTask| {
                let Some(found) = tuned.tasks.get(&task.operator) else { return false };
                let (here, found) = (fixed(&method.settings, task), fixed(found, task));
                here.iter().any(|(key, value)| is_meant(key) && found.get(key) != Some(value))
            };
            let tasks: Vec<&str> = self.config.tasks().filter(differs).map(|t| t.label.as_str()).collect();
            if !tasks.is_empty() {
                let (label, file, tasks) = (&method.label, file.display(), tasks.join(", "));
                let what = format!("{file} has settings that differ from this file on {tasks}");
                notes.push(format!("{label}: {what}; {file} is used"));
            }
        }
        Ok(notes)
    }

    /// The prior's name, and the digest of its weights.
    pub(crate) fn prior_in_words(&self) -> String {
        let digest = self.model.digest().map(|digest| format!(" (sha256 {digest})")).unwrap_or_default();
        format!("{}{digest}", self.model.name)
    }

    /// The file's content.
    #[must_use]
    pub fn config(&self) -> &ExperimentConfig {
        &self.config
    }

    /// Whether there are LPIPS weights, and images for them.
    pub(crate) fn has_lpips(&self) -> bool {
        self.lpips.is_some()
    }

    /// The weights whose lack leaves images without LPIPS.
    fn missing_lpips(&self) -> Option<&'static str> {
        let could = has_lpips_features(self.model.model.shape());
        (could && self.lpips.is_none()).then_some(assets::LPIPS_VGG16)
    }

    /// The weights whose lack leaves enough images for FID without it.
    fn missing_inception(&self) -> Option<&'static str> {
        (self.is_enough_for_fid() && !self.has_inception).then_some(assets::INCEPTION)
    }

    /// Whether FID can be computed, given its weights, so that samples are kept for it.
    fn is_enough_for_fid(&self) -> bool {
        self.is_colour() && self.images() >= FEWEST_FOR_FID
    }

    fn is_colour(&self) -> bool {
        is_colour(self.model.model.shape())
    }

    /// What a user should know about the prior and the methods.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Every method and task by label, and why the two do not fit, where they do not.
    pub fn fits(&self) -> Result<Vec<(String, String, Option<String>)>> {
        let label = |p: Pair| (p.method.label.clone(), p.task.label.clone(), p.refused());
        Ok(self.pairs()?.into_iter().map(label).collect())
    }

    /// Every method on every task, by task.
    pub(crate) fn pairs(&self) -> Result<Vec<Pair<'_>>> {
        let mut pairs = Vec::new();
        for task in self.config.tasks() {
            for (method, tuned) in self.config.methods.iter().zip(&self.tuned) {
                let found = tuned.as_ref().map(|t| t.tasks.get(&task.operator));
                let settings = found.flatten().unwrap_or(&method.settings).clone();
                let settings = MethodConfig::new(&method.name, settings)?;
                let is_left_out = found.is_some_and(|settings| settings.is_none());
                let mut pair = Pair { method, task, settings, is_left_out, refusal: None };
                // A power that is missing makes an unfit pair; anything else is a mistake in the file.
                pair.refusal = match self.run(&pair, self.config.seeds[0], &[0]) {
                    Ok(_) => None,
                    Err(Error::Core(error @ daps_core::Error::Missing { needs, .. })) => {
                        Some(Refusal { needs, sentence: error.to_string() })
                    }
                    Err(error) => {
                        let what = format!("{} on {}: {error}", method.label, task.label);
                        return Err(Error::Config(what));
                    }
                };
                pairs.push(pair);
            }
        }
        Ok(pairs)
    }

    /// The run of a pair on some of the images.
    pub(crate) fn run(&self, pair: &Pair, seed: u64, images: &[usize]) -> Result<Run> {
        let task = pair.task;
        let mut options = task.options.clone();
        settle(&mut options, &self.base)?;
        let (shape, noise) = (self.model.model.shape().to_vec(), task.noise.clone());
        let measured = TaskConfig { shape, noise, options, ..TaskConfig::new(&task.operator) };
        let config = RunConfig {
            seed,
            samples: pair.method.samples.or(task.samples).unwrap_or(self.config.samples),
            answer: pair.method.answer,
            batch: self.config.batch,
            ..RunConfig::new(measured, self.prior.clone(), pair.settings.clone())
        };
        let truths = self.images.truths.select(images)?;
        Run::with(config, &self.base, self.model.clone(), Some(&truths))
    }

    /// What the results of a run depend on, as one digest an image.
    fn keys(&self, run: &Run) -> Result<Vec<String>> {
        let mut config = RunConfig { version: None, batch: 1, ..run.resolved()?.clone() };
        config.task.options = by_content(&config.task.options)?;
        config.prior = self.prior_by_content.clone();
        let beside = format!("numerics {NUMERICS}\nprior {}\n", self.model.about);
        let config = config.to_toml()?;
        let key = |(number, digest): (&u64, &String)| {
            let class = self.classifier.as_ref().map(|judge| judge.key(*number)).unwrap_or_default();
            let text = format!("{config}\nimage {number} {digest}\n{class}{beside}");
            files::sha256(text)[..24].to_owned()
        };
        Ok(self.images.truths.numbers.iter().zip(&self.images.digests).map(key).collect())
    }

    /// Whether samples are tokens.
    pub(crate) fn is_discrete(&self) -> bool {
        matches!(self.model.model, daps_core::Model::Tokens(_))
    }

    /// How many images there are.
    pub(crate) fn images(&self) -> usize {
        self.images.digests.len()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    pub(super) const GAUSSIAN: &str = "prior = { kind = 'gaussian', std = 0.5 }";

    /// An experiment in a directory on three images of 1 x 8 x 8; `top` are keys of the file itself, its prior and tasks among
    /// them, and `methods` its tables of methods.
    pub(super) fn small(directory: &Path, top: &str, methods: &str) -> Experiment {
        let values: Vec<f32> = (0..3 * 64).map(|i| 0.5 * (i as f32 * 0.7).sin()).collect();
        let images = Tensor::from_vec(values, (3, 1, 8, 8), &Device::Cpu).unwrap();
        images.write_npy(directory.join("images.npy")).unwrap();
        let text = format!(
            "name = 'small'\ntitle = 'small'\nshape = [1, 8, 8]\n{top}\n\
             [data]\nsource = 'images.npy'\nimages = 3\n{methods}"
        );
        Experiment::open(ExperimentConfig::parse(&text).unwrap(), directory).unwrap()
    }

    /// A prior of the pictures of a folder: cells are others when there are others in it, and the same when they are back.
    #[test]
    fn what_is_in_a_folder_belongs_to_a_cell() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("pictures");
        std::fs::create_dir(&folder).unwrap();
        let save = |name: &str, grey: u8| {
            image::GrayImage::from_pixel(8, 8, image::Luma([grey])).save(folder.join(name)).unwrap();
        };
        let keys = || {
            let top = "prior = { kind = 'empirical', folder = 'pictures' }\ntasks = ['inpaint_random']";
            let experiment = small(dir.path(), top, "[[method]]\nname = 'wiener'\n");
            let pairs = experiment.pairs().unwrap();
            experiment.keys(&experiment.run(&pairs[0], 0, &[0]).unwrap()).unwrap()
        };
        save("a.png", 20);
        save("b.png", 200);
        let before = keys();
        assert_eq!(keys(), before);
        save("c.png", 90);
        assert_ne!(keys(), before);
        std::fs::remove_file(folder.join("c.png")).unwrap();
        assert_eq!(keys(), before);
    }

    /// Settings beside a tuned file are told of where they are not those that it was found with, but for what was searched.
    #[test]
    fn settings_that_a_tuned_file_overrules_are_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let tune = |name: &str, settings: &str, searched: &str| {
            let settings = format!("{settings}\n{searched}").parse().unwrap();
            let settings = resolved(name, &settings, &ExperimentTask::new("hdr"));
            let tasks = [("hdr".to_owned(), settings.unwrap())].into();
            let tuned = Tuned { name: name.into(), found: Default::default(), tasks };
            tuned.write(&dir.path().join("tuned.toml")).unwrap();
        };
        let told = |name: &str, settings: &str| {
            let method = format!("[[method]]\nname = '{name}'\ntuned = 'tuned.toml'\n{settings}\n");
            let experiment = small(dir.path(), &format!("{GAUSSIAN}\ntasks = ['hdr']"), &method);
            experiment.notes().join("; ")
        };
        let note = |name: &str| {
            format!("{name}: tuned.toml has settings that differ from this file on hdr; tuned.toml is used")
        };
        let paper = |budget: &str| format!("preset = 'paper'\nbudget = '{budget}'");
        tune("daps", &paper("1k"), "beta = 0.02");
        assert_eq!(told("daps", &paper("1k")), "");
        assert_eq!(told("daps", &paper("4k")), note("daps"));
        tune("pnp_dm", "iterations = 40", "rho = 3.0");
        assert_eq!(told("pnp_dm", "iterations = 40"), "");
        assert_eq!(told("pnp_dm", ""), "");
        assert_eq!(told("pnp_dm", "iterations = 41"), note("pnp_dm"));
    }
}
