//! A trained prior as files to give away: the weights and a model card with its numbers and a sample grid.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use daps_core::{Categorical, SpreadTable};
use daps_priors::training::{Export, Goal, LOCAL_STEPS, TrainConfig, Trainer};
use serde::Serialize;

use super::card::{self, EXAMPLES, MARK, SAMPLES};
use super::{CHECKPOINT, CONFIG, GRID, calibrate, classes, commands, read_data, tokens, write_samples};
use crate::progress::Progress;
use crate::{Error, Result, files};

/// Held-out images on which r(σ) is measured, at most.
pub(super) const MOST: usize = 512;

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// Images seen in training.
    pub images: u64,
    /// SHA-256 of the tensors.
    pub sha256: String,
    /// r(σ) on held-out images; only a denoiser has it.
    pub spread: Option<SpreadTable>,
    /// The share of the test images (where there are none, of those held out) that a classifier recognises.
    pub accuracy: Option<f64>,
}

/// Where the files of an export go. The card is written before the picture: an export that was killed in between is known by
/// its card, and can be made again.
struct Place<'a> {
    weights: &'a Path,
    folder: &'a Path,
    card: PathBuf,
    picture: PathBuf,
}

impl<'a> Place<'a> {
    /// Refuses to replace what no export has written.
    fn new(weights: &'a Path, goal: Goal) -> Result<Self> {
        let folder = weights.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = if matches!(goal, Goal::Classes(_)) { EXAMPLES } else { SAMPLES };
        let (card, picture) = (folder.join("README.md"), folder.join(name));
        if weights.is_dir() {
            return Err(Error::content(weights, "is a directory; name the file to write"));
        }
        let old = if card.exists() { Some(files::read_text(&card)?) } else { None };
        if old.as_ref().is_some_and(|text| !text.contains(MARK)) {
            return Err(Error::content(&card, "is not a model card that may be replaced"));
        }
        if weights.exists() && old.is_none() {
            let what = "exists, without the model card of an export beside it; choose another name";
            return Err(Error::content(weights, what));
        }
        let shown = old.is_some_and(|text| text.contains(&format!("]({name})")));
        if picture.exists() && !shown {
            return Err(Error::content(&picture, "is not the picture of a model card that may be replaced"));
        }
        Ok(Self { weights, folder, card, picture })
    }

    /// Makes the folder, and finds out whether files can be made in it: the work that follows is long.
    fn prepare(&self) -> Result<()> {
        files::make_directory(self.folder, true)?;
        let mut probe = self.weights.as_os_str().to_owned();
        probe.push(".tmp");
        let made = std::fs::File::create(&probe).and_then(|_| std::fs::remove_file(&probe));
        made.map_err(Error::file(self.weights, "cannot write"))
    }
}

/// Writes the averaged weights of the run in `directory` to `path` (f16, with configuration, r(σ) and checksum inside), and
/// beside it a model card, `README.md`, with its picture. `command` is what a user typed to get here: the card repeats it. Whoever
/// stops it in time stops it before anything is written.
pub fn export(
    directory: &Path,
    path: &Path,
    command: Option<&str>,
    progress: &mut dyn Progress,
) -> Result<Exported> {
    let checkpoint = directory.join(CHECKPOINT);
    if !checkpoint.is_file() {
        return Err(Error::content(directory, "holds no training run with a checkpoint"));
    }
    let config = TrainConfig::read(&directory.join(CONFIG))?;
    let place = Place::new(path, config.goal())?;
    judged(&config).map_err(|what| Error::content(path, what))?;
    place.prepare()?;
    let data = read_data(&config, directory, progress)?;
    let mut trainer = Trainer::new(config, data)?;
    trainer.resume(&checkpoint)?;
    trainer.commands = commands::read(directory)?;
    trainer.commands.extend(command.map(str::to_owned));
    match trainer.config().goal() {
        Goal::Denoiser => export_denoiser(&trainer, &place, progress),
        Goal::Tokens(_) => export_tokens(&trainer, &place, progress),
        Goal::Classes(_) => export_classifier(&trainer, &place, progress),
    }
}

/// Whether there are images to judge the result by; the reason where there are none. Known before any image is read.
fn judged(config: &TrainConfig) -> std::result::Result<(), &'static str> {
    let held_out = config.data.held_out;
    match config.goal() {
        Goal::Denoiser if held_out < 2 => {
            Err("not written: the training held out fewer than two images, on which r(σ) is measured")
        }
        Goal::Tokens(_) if held_out == 0 => {
            Err("not written: the training held no images out to judge it by")
        }
        Goal::Classes(classes) if held_out == 0 && classes.test.is_none() => {
            Err("cannot be judged: there is no test set and no image is held out")
        }
        _ => Ok(()),
    }
}

/// Measures r(σ) on held-out images, and writes a denoiser with it.
fn export_denoiser(trainer: &Trainer, place: &Place, progress: &mut dyn Progress) -> Result<Exported> {
    let (held_out, seed) = (trainer.data().held_out.first(MOST)?, trainer.config().seed);
    let export = Export::new(trainer)?;
    let spread = calibrate::spread(&export.prior, &held_out, seed, progress)?;
    // A network that has seen little deserves no more.
    let steps = LOCAL_STEPS.min(trainer.steps() as usize);
    let local = calibrate::local(&export.prior, &spread, &trainer.data().train, (steps, seed), progress)?;
    let sha256 = export.write(place.weights, &spread, local.as_ref())?;
    let text = card::denoiser(trainer, &sha256, &spread, place.weights)?;
    files::write(&place.card, text.as_bytes())?;
    progress.begin("drawing samples", GRID.0);
    let mut before = 0;
    // What is left to do is a picture: a stop comes too late.
    let mut watch = |done: usize, _: usize| {
        (before..done).for_each(|_| _ = progress.step(""));
        before = done;
        ControlFlow::Continue(())
    };
    let _ = write_samples(&place.picture, &export.prior, seed, &mut watch)?;
    progress.end();
    Ok(Exported { images: trainer.images(), sha256, spread: Some(spread), accuracy: None })
}

/// Writes a prior over tokens, and how well it knows held-out images.
fn export_tokens(trainer: &Trainer, place: &Place, progress: &mut dyn Progress) -> Result<Exported> {
    let (held_out, seed) = (trainer.data().held_out.first(MOST)?, trainer.config().seed);
    let (prior, sha256) = daps_priors::training::export_tokens(trainer, place.weights)?;
    progress.begin("judging on held-out images, drawing samples", 2);
    let table = tokens::cross_entropy(&prior, &held_out, seed)?;
    let _ = progress.step("");
    let symbols = prior.corruption().symbols();
    let what = format!("A model p(x0 | x_t) of images of {symbols} symbols, as a prior for `daps`.");
    let mut text = card::head(trainer, &what, &sha256, place.weights);
    let _ = writeln!(text, "\n## Images that it was not trained on\n");
    let _ = writeln!(
        text,
        "The mean over tokens of -ln p(x0_i | x_t) in nats, over {} images; a token is redrawn with probability 1 - e^-σ.\n",
        held_out.dims()[0]
    );
    let _ = writeln!(text, "| σ | nats |\n|---|---|");
    for (sigma, nats) in table {
        let _ = writeln!(text, "| {sigma} | {nats:.4} |");
    }
    let _ = writeln!(text, "\n## Samples\n\n![samples]({SAMPLES})\n\nSeed {seed}, not chosen.");
    let _ = writeln!(text, "\n## Network\n\n```toml\n{}```", trainer.network().to_toml()?);
    files::write(&place.card, text.as_bytes())?;
    tokens::write_samples(&place.picture, &prior, seed)?;
    progress.end();
    Ok(Exported { images: trainer.images(), sha256, spread: None, accuracy: None })
}

/// Writes a classifier, and how often it is right.
fn export_classifier(trainer: &Trainer, place: &Place, progress: &mut dyn Progress) -> Result<Exported> {
    let (data, test) = (trainer.data(), trainer.config().read_test(place.folder)?);
    let (images, labels) = match &test {
        Some(test) => (&test.train, &test.labels.train),
        None => (&data.held_out, &data.labels.held_out),
    };
    let (classifier, sha256) = daps_priors::training::export_classifier(trainer, place.weights)?;
    progress.begin("judging on other images", 1);
    let accuracy = classes::accuracy(&classifier, images, labels)?;
    progress.end();
    let ([_, height, width], count) = (images.shape(), classifier.classes());
    let what = format!("A classifier of binary {height}x{width} images into {count} classes.");
    let mut text = card::head(trainer, &what, &sha256, place.weights);
    let (origin, right) =
        (if test.is_some() { "test" } else { "held-out" }, (accuracy * images.len() as f64).round());
    let _ = writeln!(
        text,
        "\n## Images that it was not trained on\n\n\
         The file as written recognises {right} of {} {origin} images: {:.2} %.\n\n\
         ![examples]({EXAMPLES})\n\nThe first of each class.",
        images.len(),
        100.0 * accuracy
    );
    let _ = writeln!(text, "\n## Network\n\n```toml\n{}```", trainer.network().to_toml()?);
    files::write(&place.card, text.as_bytes())?;
    classes::write_examples(&place.picture, images, labels, count)?;
    Ok(Exported { images: trainer.images(), sha256, spread: None, accuracy: Some(accuracy) })
}
