//! A training run in its directory: checkpoints, the loss curve, sample grids, denoising tables, and the end result.

mod classes;
mod export;
mod tokens;
mod validation;

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_core::Tensor;
use daps_core::Denoiser;
use daps_core::real::to_f64;
use daps_priors::training::{
    DENOISING_LEVELS, Goal, TrainConfig, Trainer, draw_samples, measure_spread, psnr,
};
use serde::Serialize;

use crate::directory::{self, Entry};
use crate::plot::{self, Line};
use crate::progress::Progress;
use crate::{Error, Result, files, picture};
use validation::Validation;

pub use export::{Exported, export};

const CONFIG: &str = "config.toml";
const CHECKPOINT: &str = "checkpoint.safetensors";
/// Samples of a grid, and steps of the sampler that draws them.
const GRID: (usize, usize) = (64, 18);
/// Held-out images of a table that is written during training.
const QUICK: usize = 128;

/// Where a training run stands.
#[derive(Clone, Debug, Serialize)]
pub struct Progressed {
    /// Images seen.
    pub images: u64,
    /// Images per second of work.
    pub images_per_second: f64,
    /// Loss over the last steps, where any is known.
    pub loss: Option<f64>,
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
    /// start.
    pub fn open(config: TrainConfig, base: &Path, directory: &Path, resume: bool) -> Result<Self> {
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
            config.start = TrainConfig::parse(&files::read_text(&directory.join(CONFIG))?)?.start;
        }
        let data = config.read_data(base)?;
        let mut trainer = Trainer::new(config, data)?;
        if let Some(start) = trainer.config().start.clone().filter(|_| !checkpoint.exists()) {
            trainer.start(&start)?;
        }
        let lock = directory::enter(directory, if resume { Entry::Any } else { Entry::New })?;
        if checkpoint.exists() {
            trainer.resume(&checkpoint)?;
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

    /// Trains until all images were seen or `progress` asks to stop; either way the last step is in the checkpoint.
    pub fn run(&mut self, progress: &mut dyn Progress) -> Result<Progressed> {
        let config = self.trainer.config().clone();
        let minutes = |m: f64| Duration::try_from_secs_f64(60.0 * m).unwrap_or(Duration::MAX);
        let (steps, batch) = (config.steps(), config.batch as f64);
        let left = steps.saturating_sub(self.trainer.steps());
        progress.begin("training", left as usize);
        let (mut saved, mut reported) = (Instant::now(), Instant::now());
        let (mut loss, mut rate) = (Smooth::new(), Smooth::new());
        let mut stopped = false;
        while self.trainer.steps() < steps && !stopped {
            let start = Instant::now();
            loss.add(self.trainer.advance()?);
            let seconds = start.elapsed().as_secs_f64();
            self.trainer.seconds += seconds;
            rate.add(seconds);
            let note = format!(
                "{} images, {:.1} images/s, loss {:.4}",
                self.trainer.images(),
                batch / rate.mean,
                loss.mean
            );
            stopped = progress.step(&note) == ControlFlow::Break(());
            if saved.elapsed() >= minutes(config.checkpoint_minutes) {
                self.save()?;
                progress.note(&note);
                saved = Instant::now();
            }
            if reported.elapsed() >= minutes(config.report_minutes) {
                self.report(progress)?;
                reported = Instant::now();
            }
        }
        progress.end();
        self.save()?;
        if !stopped && left > 0 {
            self.report(progress)?;
        }
        let images = self.trainer.images();
        let before = self.trainer.curve().last().map(|p| p.loss);
        Ok(Progressed {
            images,
            images_per_second: (images - self.trainer.images_before()) as f64
                / self.trainer.seconds.max(1e-9),
            loss: if left > 0 { Some(loss.mean) } else { before },
            finished: !stopped,
        })
    }

    /// Writes the checkpoint and the loss curve.
    fn save(&self) -> Result<()> {
        self.trainer.save(&self.directory.join(CHECKPOINT))?;
        let mut csv = "images,loss,gradient_norm,learning_rate\n".to_owned();
        for p in self.trainer.curve() {
            let _ = writeln!(csv, "{},{:.6},{:.6},{:.4e}", p.images, p.loss, p.norm, p.rate);
        }
        self.write("loss.csv", &csv)?;
        if self.trainer.curve().len() > 1 {
            let points = self.trainer.curve().iter().map(|p| (p.images as f64, p.loss)).collect();
            let lines = [Line { name: self.trainer.config().goal().loss(), points }];
            self.write("loss.svg", &plot::log_lines("Training", "images", "loss", &lines, false)?)?;
        }
        Ok(())
    }

    /// Writes a sample grid (a classifier has none) and, where images are held out, how well those are known.
    fn report(&self, progress: &mut dyn Progress) -> Result<()> {
        let (pictures, seed) = (self.directory.join("samples.png"), self.trainer.config().seed);
        let held_out = self.trainer.data().held_out.first(QUICK)?;
        let measured = held_out.dims()[0] >= 2;
        let validation = match self.trainer.config().goal() {
            Goal::Denoiser => {
                let prior = self.trainer.average()?;
                write_samples(&pictures, &prior, seed)?;
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
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        files::write(&self.directory.join(name), text.as_bytes())
    }
}

/// Draws samples of a prior and writes them as a square of pictures, if they are pictures.
fn write_samples(path: &Path, prior: &dyn Denoiser, seed: u64) -> Result<()> {
    let &[c, h, w] = prior.shape() else { return Ok(()) };
    if !picture::is_image(prior.shape()) {
        return Ok(());
    }
    let (count, steps) = GRID;
    let samples: Tensor = draw_samples(prior, count, steps, seed)?;
    let images = (0..count).map(|i| Ok(to_f64(&samples.get(i)?)?)).collect::<Result<Vec<_>>>()?;
    let columns = (count as f64).sqrt() as usize;
    picture::write_grid(path, &images, [c, h, w], (-1.0, 1.0), columns, 1)
}

/// A running mean that forgets: plain at first, then over about 100 values.
struct Smooth {
    mean: f64,
    count: f64,
}

impl Smooth {
    fn new() -> Self {
        Self { mean: 0.0, count: 0.0 }
    }

    fn add(&mut self, value: f64) {
        self.count = (self.count + 1.0).min(100.0);
        self.mean += (value - self.mean) / self.count;
    }
}
