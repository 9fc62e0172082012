//! A training run in its directory: checkpoints, the loss curve, sample grids, denoising tables, and the end result.

mod calibrate;
mod card;
mod classes;
mod commands;
mod export;
mod notes;
mod tokens;
mod validation;

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use daps_core::Denoiser;
use daps_core::tensors::to_f64;
use daps_priors::training::{
    DENOISING_LEVELS, Dataset, Goal, TrainConfig, Trainer, Watch, draw_rows, measure_spread, psnr,
};
use serde::Serialize;

use crate::directory::{self, Entry};
use crate::plot::{self, Line};
use crate::progress::Progress;
use crate::{Error, Result, files, picture};
use validation::Validation;

pub use calibrate::{Calibrated, Calibration, calibrate};
pub use export::{Exported, export};

const CONFIG: &str = "config.toml";
const CHECKPOINT: &str = "checkpoint.safetensors";
/// Samples of a grid, and steps of the sampler that draws them.
const GRID: (usize, usize) = (64, 18);
/// Samples that are drawn between two looks at whoever waits.
const AT_ONCE: usize = 8;
/// Held-out images of a table that is written during training.
const QUICK: usize = 128;

/// Where a training run stands.
#[derive(Clone, Debug, Serialize)]
pub struct Progressed {
    /// Images seen.
    pub images: u64,
    /// Images per second of work.
    pub images_per_second: f64,
    /// The loss of the run, as [`Loss`](daps_priors::training::Loss) defines it; nothing before the first step.
    pub loss: Option<f64>,
    /// The images of the steps that the loss is a mean over.
    pub loss_images: u64,
    /// Whether all images were seen; otherwise the run was stopped.
    pub finished: bool,
}

/// A training run and its directory.
pub struct Training {
    trainer: Trainer,
    directory: PathBuf,
    _lock: directory::Lock,
}

impl Training {
    /// A new run, or the continuation of the one in the directory. `base` is where the configuration's relative paths
    /// start. Whoever stops it while images are read stops it before anything is written.
    pub fn open(
        config: TrainConfig,
        base: &Path,
        directory: &Path,
        resume: bool,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        config.check()?;
        let checkpoint = directory.join(CHECKPOINT);
        let occupied = checkpoint.exists() || directory.join(CONFIG).exists();
        if resume && !occupied {
            return Err(Error::content(directory, "holds no training run to resume"));
        }
        if occupied && !resume {
            return Err(Error::content(directory, "already holds a training run; resume it (--resume)"));
        }
        // Absolute, so that it can stand in the run's directory.
        let mut config = config.settled(base);
        if resume && !checkpoint.exists() && directory.join(CONFIG).exists() {
            // Stopped before its first checkpoint: it begins again, with the weights that it began with.
            config.start = TrainConfig::read(&directory.join(CONFIG))?.start;
        }
        let data = read_data(&config, base, progress)?;
        if !resume {
            notes::refuse(&config, &data)?;
        }
        let mut trainer = Trainer::new(config, data)?;
        if let Some(start) = trainer.config().start.clone().filter(|_| !checkpoint.exists()) {
            trainer.start(&start)?;
        }
        let lock = directory::enter(directory, if resume { Entry::Any } else { Entry::New })?;
        if checkpoint.exists() {
            trainer.resume(&checkpoint)?;
        }
        if resume {
            trainer.commands = commands::read(directory)?;
        }
        let run = Self { trainer, directory: directory.to_owned(), _lock: lock };
        run.write(CONFIG, &run.trainer.config().to_toml()?)?;
        Ok(run)
    }

    /// The network in training.
    #[must_use]
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// A sentence for each thing that a user may not have meant: how images were adapted, what will be missing later.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        notes::notes(&self.trainer)
    }

    /// Trains until all images were seen or `progress` asks to stop; either way the last step is in the checkpoint. `command` is
    /// what a user typed to get here: the model card repeats it.
    pub fn run(&mut self, command: Option<&str>, progress: &mut dyn Progress) -> Result<Progressed> {
        let config = self.trainer.config().clone();
        let minutes = |m: f64| Duration::try_from_secs_f64(60.0 * m).unwrap_or(Duration::MAX);
        let (steps, batch) = (config.steps(), config.batch as f64);
        let left = steps.saturating_sub(self.trainer.steps());
        if let Some(command) = command.filter(|_| left > 0) {
            commands::add(&self.directory, &mut self.trainer.commands, command)?;
        }
        progress.begin("training", left as usize);
        let (mut saved, mut reported) = (Instant::now(), Instant::now());
        let mut pace = Pace::new();
        let mut stopped = false;
        while self.trainer.steps() < steps && !stopped {
            let start = Instant::now();
            self.trainer.advance()?;
            let seconds = start.elapsed().as_secs_f64();
            self.trainer.seconds += seconds;
            pace.add(seconds);
            let loss = self.trainer.loss().map_or(f64::NAN, |loss| loss.mean);
            let images = self.trainer.images();
            let note = format!("{images} images, {:.1} images/s, loss {loss:.4}", batch / pace.mean);
            stopped = progress.step(&note).is_break();
            if saved.elapsed() >= minutes(config.checkpoint_minutes) {
                self.save()?;
                progress.note(&note);
                saved = Instant::now();
            }
            if reported.elapsed() >= minutes(config.report_minutes) && !stopped {
                stopped = self.report(progress)?.is_break();
                reported = Instant::now();
            }
        }
        self.save()?;
        if !stopped && left > 0 {
            // All steps are done: a stop now only leaves the rest of the report out.
            let _ = self.report(progress)?;
        }
        progress.end();
        let (images, loss) = (self.trainer.images(), self.trainer.loss());
        Ok(Progressed {
            images,
            images_per_second: (images - self.trainer.images_before()) as f64
                / self.trainer.seconds.max(1e-9),
            loss: loss.map(|loss| loss.mean),
            loss_images: loss.map_or(0, |loss| loss.images),
            finished: self.trainer.steps() >= steps,
        })
    }

    /// Writes the checkpoint and the loss curve, whose last row is the loss of the run.
    fn save(&self) -> Result<()> {
        self.trainer.save(&self.directory.join(CHECKPOINT))?;
        let mut csv = "images,loss,gradient_norm,learning_rate\n".to_owned();
        let curve = self.trainer.curve_so_far();
        for p in &curve {
            let _ = writeln!(csv, "{},{:.6},{:.6},{:.4e}", p.images, p.loss, p.norm, p.rate);
        }
        self.write("loss.csv", &csv)?;
        if curve.len() > 1 {
            let points = curve.iter().map(|p| (p.images as f64, p.loss)).collect();
            let lines = [Line { name: self.trainer.config().goal().loss(), points }];
            self.write("loss.svg", &plot::log_lines("Training", "images", "loss", &lines, false)?)?;
        }
        Ok(())
    }

    /// Writes a sample grid (a classifier has none) and, where images are held out, how well those are known. A stop leaves the rest
    /// out.
    fn report(&self, progress: &mut dyn Progress) -> Result<ControlFlow<()>> {
        let (pictures, seed) = (self.directory.join("samples.png"), self.trainer.config().seed);
        let held_out = self.trainer.data().held_out.first(QUICK)?;
        let measured = held_out.dims()[0] >= 2;
        let mut tell = |line: &str| progress.within(line);
        let validation = match self.trainer.config().goal() {
            Goal::Denoiser => {
                let prior = self.trainer.average()?;
                let watch = &mut |done: usize, of: usize| tell(&format!("drawing samples: {done} of {of}"));
                if write_samples(&pictures, &prior, seed, watch)?.is_break()
                    || tell("denoising held-out images").is_break()
                {
                    return Ok(ControlFlow::Break(()));
                }
                let table = measured.then(|| measure_spread(&prior, &held_out, &DENOISING_LEVELS, seed));
                let found = match table {
                    Some(Ok(table)) => {
                        table.sigma.iter().zip(&table.r).map(|(s, r)| (Some(*s), psnr(*r))).collect()
                    }
                    // Such as held-out images that are all alike: no reason to end a training.
                    Some(Err(error)) => {
                        progress.note(&format!("held-out denoising: not measured: {error}"));
                        vec![]
                    }
                    None => vec![],
                };
                Validation { what: "held-out denoising, dB", column: "psnr", digits: 2, found }
            }
            Goal::Tokens(_) => {
                let prior = self.trainer.average_tokens()?;
                if tell("drawing samples").is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                tokens::write_samples(&pictures, &prior, seed)?;
                let table = if measured { tokens::cross_entropy(&prior, &held_out, seed)? } else { vec![] };
                let found = table.into_iter().map(|(sigma, nats)| (Some(sigma), nats)).collect();
                Validation { what: "held-out cross-entropy, nats", column: "cross_entropy", digits: 4, found }
            }
            Goal::Classes(_) => {
                let (classifier, data) = (self.trainer.average_classifier()?, self.trainer.data());
                let share = || classes::accuracy(&classifier, &data.held_out, &data.labels.held_out);
                let found = if measured { vec![(None, share()?)] } else { vec![] };
                Validation { what: "held-out accuracy", column: "accuracy", digits: 4, found }
            }
        };
        if !validation.found.is_empty() {
            progress.note(&validation.line());
            validation.append(&self.directory.join("validation.csv"), self.trainer.images())?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        files::write(&self.directory.join(name), text.as_bytes())
    }
}

/// Reads the images of a configuration while somebody waits.
fn read_data(config: &TrainConfig, base: &Path, progress: &mut dyn Progress) -> Result<Dataset> {
    watched(progress, |watch| config.read_data_watched(base, watch))
}

/// Shows how many images were read.
fn watched(
    progress: &mut dyn Progress,
    read: impl FnOnce(&mut Watch) -> daps_priors::Result<Dataset>,
) -> Result<Dataset> {
    let (mut begun, mut before) = (false, 0);
    let mut watch = |done: usize, of: usize| {
        if !begun {
            progress.begin("reading images", of);
            begun = true;
        }
        let mut flow = progress.within("");
        (before..done).for_each(|_| flow = progress.step(""));
        before = done;
        flow
    };
    let data = read(&mut watch);
    if begun {
        progress.end();
    }
    Ok(data?)
}

/// Draws samples of a prior a few at a time and writes them as a square of pictures, if they are pictures. A stop leaves them out.
fn write_samples(path: &Path, prior: &dyn Denoiser, seed: u64, watch: &mut Watch) -> Result<ControlFlow<()>> {
    let &[c, h, w] = prior.shape() else { return Ok(ControlFlow::Continue(())) };
    if !picture::is_image(prior.shape()) {
        return Ok(ControlFlow::Continue(()));
    }
    let (count, steps) = GRID;
    let mut images = Vec::with_capacity(count);
    for first in (0..count).step_by(AT_ONCE) {
        if watch(first, count).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let samples = draw_rows(prior, first..count.min(first + AT_ONCE), steps, seed)?;
        for i in 0..samples.dims()[0] {
            images.push(to_f64(&samples.get(i)?)?);
        }
    }
    picture::write_grid(path, &images, [c, h, w], (-1.0, 1.0), count.isqrt(), 1)?;
    Ok(ControlFlow::Continue(()))
}

/// A running mean that forgets: plain at first, then over about 100 values.
struct Pace {
    mean: f64,
    count: f64,
}

impl Pace {
    fn new() -> Self {
        Self { mean: 0.0, count: 0.0 }
    }

    fn add(&mut self, value: f64) {
        self.count = (self.count + 1.0).min(100.0);
        self.mean += (value - self.mean) / self.count;
    }
}
