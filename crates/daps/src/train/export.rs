//! A trained prior as files to give away: the weights and a model card with its numbers and a sample grid.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use daps_core::{Categorical, SpreadTable};
use daps_priors::training::{
    DENOISING_LEVELS, Export, Goal, TrainConfig, Trainer, measure_spread, psnr, spread_levels,
};
use serde::Serialize;

use super::{CHECKPOINT, CONFIG, classes, tokens, write_samples};
use crate::progress::Progress;
use crate::{Error, Result, files};

/// Held-out images on which r(σ) is measured, at most.
const MOST: usize = 512;
/// The picture beside a prior.
const SAMPLES: &str = "samples.png";
/// The picture beside a classifier.
const EXAMPLES: &str = "examples.png";
/// What tells a card that may be replaced from someone's own file.
const MARK: &str = "<!-- made by daps train export; it is replaced when the prior is exported again -->";

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
/// beside it a model card, `README.md`, with its picture. Whoever stops it in time stops it before anything is written.
pub fn export(directory: &Path, path: &Path, progress: &mut dyn Progress) -> Result<Exported> {
    let checkpoint = directory.join(CHECKPOINT);
    if !checkpoint.is_file() {
        return Err(Error::content(directory, "holds no training run with a checkpoint"));
    }
    let config = TrainConfig::parse(&files::read_text(&directory.join(CONFIG))?)?;
    let place = Place::new(path, config.goal())?;
    let data = config.read_data(directory)?;
    let mut trainer = Trainer::new(config, data)?;
    trainer.resume(&checkpoint)?;
    match trainer.config().goal() {
        Goal::Denoiser => export_denoiser(&trainer, &place, progress),
        Goal::Tokens(_) => export_tokens(&trainer, &place),
        Goal::Classes(_) => export_classifier(&trainer, &place),
    }
}

/// Measures r(σ) on held-out images, and writes a denoiser with it.
fn export_denoiser(trainer: &Trainer, place: &Place, progress: &mut dyn Progress) -> Result<Exported> {
    let (held_out, seed) = (trainer.data().held_out.first(MOST)?, trainer.config().seed);
    if held_out.dims()[0] < 2 {
        let what = "not written: the training held out fewer than two images, on which r(σ) is measured";
        return Err(Error::content(place.weights, what));
    }
    place.prepare()?;
    let export = Export::new(trainer)?;
    let levels = spread_levels();
    progress.begin("measuring r(σ)", levels.len());
    let mut spread: Option<SpreadTable> = None;
    for (done, level) in levels.iter().enumerate() {
        let one = measure_spread(&export.prior, &held_out, &[*level], seed)?;
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
    let sha256 = export.write(place.weights, &spread)?;
    let text = card_text(trainer, &sha256, &spread, place.weights)?;
    files::write(&place.card, text.as_bytes())?;
    write_samples(&place.picture, &export.prior, seed)?;
    Ok(Exported { images: trainer.images(), sha256, spread: Some(spread), accuracy: None })
}

/// Writes a prior over tokens, and how well it knows held-out images.
fn export_tokens(trainer: &Trainer, place: &Place) -> Result<Exported> {
    let (held_out, seed) = (trainer.data().held_out.first(MOST)?, trainer.config().seed);
    if held_out.dims()[0] == 0 {
        let what = "not written: the training held no images out to judge it by";
        return Err(Error::content(place.weights, what));
    }
    place.prepare()?;
    let (prior, sha256) = daps_priors::training::export_tokens(trainer, place.weights)?;
    let table = tokens::cross_entropy(&prior, &held_out, seed)?;
    let symbols = prior.corruption().symbols();
    let what = format!("A model p(x0 | x_t) of images of {symbols} symbols, as a prior for `daps`.");
    let mut text = card_head(trainer, &what, &sha256, place.weights);
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
    Ok(Exported { images: trainer.images(), sha256, spread: None, accuracy: None })
}

/// Writes a classifier, and how often it is right.
fn export_classifier(trainer: &Trainer, place: &Place) -> Result<Exported> {
    let (data, test) = (trainer.data(), trainer.config().read_test(place.folder)?);
    let (images, labels) = match &test {
        Some(test) => (&test.train, &test.labels.train),
        None => (&data.held_out, &data.labels.held_out),
    };
    if images.is_empty() {
        let what = "cannot be judged: there is no test set and no image is held out";
        return Err(Error::content(place.weights, what));
    }
    place.prepare()?;
    let (classifier, sha256) = daps_priors::training::export_classifier(trainer, place.weights)?;
    let accuracy = classes::accuracy(&classifier, images, labels)?;
    let ([_, height, width], count) = (images.shape(), classifier.classes());
    let what = format!("A classifier of binary {height}x{width} images into {count} classes.");
    let mut text = card_head(trainer, &what, &sha256, place.weights);
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

/// What every card says first: what it is, from what it was made, and how to make it again.
fn card_head(trainer: &Trainer, what: &str, sha256: &str, path: &Path) -> String {
    let config = trainer.config();
    let file = path.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
    let last: Vec<f64> = trainer.curve().iter().rev().take(20).map(|p| p.loss).collect();
    // A short run has no point of the curve yet.
    let loss = match last.len() {
        0 => String::new(),
        n => format!("; {:.4} at the end", last.iter().sum::<f64>() / n as f64),
    };
    let mut text = format!("{MARK}\n# {}\n\n{what}\n\n", config.name);
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "- **{name}**: {value}");
    };
    row(
        "Weights",
        &format!("`{file}`, f16, {} parameters, SHA-256 of the tensors `{}`", trainer.parameters(), sha256),
    );
    if !config.card.data.is_empty() {
        row("Data", &config.card.data);
    }
    let (train, held) = (trainer.data().train.len(), trainer.data().held_out.len());
    row(
        "Split",
        &format!("{train} images to train on, the last {held} in the order of their names held out"),
    );
    if !config.card.licence.is_empty() {
        row("Licence", &config.card.licence);
    }
    // Weights whose images nobody counted are no run of ours.
    let earlier: Vec<u64> = trainer.earlier_runs().iter().copied().filter(|images| *images > 0).collect();
    let from_elsewhere = earlier.len() < trainer.earlier_runs().len();
    let before = match earlier.as_slice() {
        [] => String::new(),
        [images] => {
            format!("; the first {images} in an earlier run, whose averaged weights this one began with")
        }
        [.., images] => format!(
            "; the first {images} in {} earlier runs, each of which began with the averaged weights of the one before",
            earlier.len()
        ),
    };
    row("Images seen", &format!("{}, in batches of {}{before}", trainer.images(), config.batch));
    trainer.start_notes().iter().for_each(|note| row("Start", note));
    let levels = format!("ln σ ~ N({}, {}²)", config.loss.p_mean, config.loss.p_std);
    let kind = match config.goal() {
        Goal::Denoiser => {
            let sigma_data = trainer.sigma_data();
            let origin = match config.loss.sigma_data {
                Some(_) => "as configured",
                None => "measured on the training images",
            };
            format!("EDM's, σ_data = {sigma_data:.4} ({origin}), {levels}")
        }
        Goal::Tokens(_) => format!("cross-entropy of a token, {levels}"),
        Goal::Classes(c) if c.shift > 0 => {
            format!("cross-entropy of a class, images moved by up to {} pixels", c.shift)
        }
        Goal::Classes(_) => "cross-entropy of a class".to_owned(),
    };
    row("Loss", &format!("{kind}{loss}"));
    let _ = writeln!(text, "\n## Made with\n\n```console");
    if !config.card.recipe.is_empty() {
        let _ = writeln!(text, "$ {}", config.card.recipe);
    }
    let name = &config.name;
    for (i, images) in earlier.iter().copied().chain([trainer.images()]).enumerate() {
        let run = if i < earlier.len() { format!("{name}-{}", i + 1) } else { name.clone() };
        let start = match i {
            0 if from_elsewhere => " --start WEIGHTS".to_owned(),
            0 => String::new(),
            _ => format!(" --start priors/{name}/{file}"),
        };
        let _ = writeln!(
            text,
            "$ daps train --config priors/{name}/train.toml --out runs/{run}{start} --until {images}\n\
             $ daps train export runs/{run} --out priors/{name}/{file}"
        );
    }
    text.push_str("```\n");
    text
}

/// The model card of a denoiser as Markdown.
fn card_text(trainer: &Trainer, sha256: &str, spread: &SpreadTable, path: &Path) -> Result<String> {
    let (config, held) = (trainer.config(), trainer.data().held_out.len());
    let [channels, height, width] = trainer.network().shape();
    let color = if channels == 1 { "grey" } else { "RGB" };
    let what =
        format!("A denoiser D(x, σ) of {height}x{width} {color} images in [-1, 1], as a prior for `daps`.");
    let mut text = card_head(trainer, &what, sha256, path);
    let _ = writeln!(text, "\n## Denoising images that it was not trained on\n");
    let measured = held.min(MOST);
    let _ = writeln!(
        text,
        "r² = E‖x0 - D(x0 + σn, σ)‖²/d over {measured} held-out images, PSNR = 20 log₁₀(2/r). The file carries r at {} levels, by frequency too.\n",
        spread.sigma.len()
    );
    let _ = writeln!(text, "| σ | PSNR in dB | r |\n|---|---|---|");
    for sigma in DENOISING_LEVELS {
        let r = spread.at(sigma);
        let _ = writeln!(text, "| {sigma} | {:.2} | {r:.4} |", psnr(r));
    }
    let _ = writeln!(
        text,
        "\n## Samples\n\n![samples]({SAMPLES})\n\nSeed {}, not chosen; Heun's method, 18 steps from σ = 80.",
        config.seed
    );
    let _ = writeln!(text, "\n## Network\n\n```toml\n{}```", trainer.network().to_toml()?);
    if trainer.network().patch > 1 {
        let p = trainer.network().patch;
        let _ = writeln!(
            text,
            "\nIn PyTorch, the U-Net of the public ADM code loads these tensors under their names and runs as\n\
             `pixel_shuffle(net(pixel_unshuffle(c_in * x, {p}), c_noise), {p})`."
        );
    }
    Ok(text)
}
