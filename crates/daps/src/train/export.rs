//! A trained prior as files to give away: the weights and a model card with its numbers and a sample grid.

use std::fmt::Write;
use std::path::Path;

use candle_core::Tensor;
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
/// Images beside a classifier.
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

/// Writes the averaged weights of the run in `directory` to `path` (f16, with configuration, r(σ) and checksum inside), and
/// beside it a model card, `README.md`, with its sample grid, `samples.png`.
pub fn export(directory: &Path, path: &Path, progress: &mut dyn Progress) -> Result<Exported> {
    let checkpoint = directory.join(CHECKPOINT);
    if !checkpoint.is_file() {
        return Err(Error::content(directory, "holds no training run with a checkpoint"));
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let card = folder.join("README.md");
    if card.exists() && !files::read_text(&card)?.contains(MARK) {
        return Err(Error::content(&card, "is not a model card that may be replaced"));
    }
    let config = TrainConfig::parse(&files::read_text(&directory.join(CONFIG))?)?;
    let data = config.read_data(directory)?;
    let seed = config.seed;
    let mut trainer = Trainer::new(config, data)?;
    trainer.resume(&checkpoint)?;
    let held_out = trainer.data().held_out.first(MOST)?;
    match trainer.config().goal() {
        Goal::Denoiser => {}
        Goal::Tokens(_) => return export_tokens(&trainer, &held_out, path, folder, &card),
        Goal::Classes(_) => return export_classifier(&trainer, path, folder, &card),
    }
    if held_out.dims()[0] < 2 {
        return Err(Error::content(directory, "held out fewer than two images: r(σ) cannot be measured"));
    }
    let export = Export::new(&trainer)?;
    let levels = spread_levels();
    progress.begin("measuring r(σ)", levels.len());
    let mut spread: Option<SpreadTable> = None;
    for level in &levels {
        let one = measure_spread(&export.prior, &held_out, &[*level], seed)?;
        match &mut spread {
            Some(spread) => spread.append(one),
            None => spread = Some(one),
        }
        if progress.step(&format!("σ = {level}")).is_break() {
            return Err(Error::Config("stopped before anything was written".to_owned()));
        }
    }
    progress.end();
    let spread = spread.ok_or_else(|| Error::Config("r(σ) has no levels".to_owned()))?;
    spread.check()?;
    files::make_directory(folder, true)?;
    let sha256 = export.write(path, &spread)?;
    write_samples(&folder.join("samples.png"), &export.prior, seed)?;
    let text = card_text(&trainer, &sha256, &spread, path)?;
    files::write(&card, text.as_bytes())?;
    Ok(Exported { images: trainer.images(), sha256, spread: Some(spread), accuracy: None })
}

/// The same for a prior over tokens.
fn export_tokens(
    trainer: &Trainer,
    held_out: &Tensor,
    path: &Path,
    folder: &Path,
    card: &Path,
) -> Result<Exported> {
    if held_out.dims()[0] == 0 {
        return Err(Error::content(path, "not written: the training held no images out to judge it by"));
    }
    files::make_directory(folder, true)?;
    let (prior, sha256) = daps_priors::training::export_tokens(trainer, path)?;
    tokens::write_samples(&folder.join("samples.png"), &prior, trainer.config().seed)?;
    let table = tokens::cross_entropy(&prior, held_out, trainer.config().seed)?;
    let symbols = prior.corruption().symbols();
    let what = format!("A model p(x0 | x_t) of images of {symbols} symbols, as a prior for `daps`.");
    let mut text = card_head(trainer, &what, &sha256, path);
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
    let _ = writeln!(
        text,
        "\n## Samples\n\n![samples](samples.png)\n\nSeed {}, not chosen.",
        trainer.config().seed
    );
    let _ = writeln!(text, "\n## Network\n\n```toml\n{}```", trainer.network().to_toml()?);
    files::write(card, text.as_bytes())?;
    Ok(Exported { images: trainer.images(), sha256, spread: None, accuracy: None })
}

/// The same for a classifier.
fn export_classifier(trainer: &Trainer, path: &Path, folder: &Path, card: &Path) -> Result<Exported> {
    let (data, test) = (trainer.data(), trainer.config().read_test(folder)?);
    let (images, labels) = match &test {
        Some(test) => (&test.train, &test.labels.train),
        None => (&data.held_out, &data.labels.held_out),
    };
    if images.is_empty() {
        return Err(Error::content(path, "cannot be judged: there is no test set and no image is held out"));
    }
    files::make_directory(folder, true)?;
    let (classifier, sha256) = daps_priors::training::export_classifier(trainer, path)?;
    let accuracy = classes::accuracy(&classifier, images, labels)?;
    classes::write_examples(&folder.join(EXAMPLES), images, labels, classifier.classes())?;
    let ([_, height, width], count) = (images.shape(), classifier.classes());
    let what = format!("A classifier of binary {height}x{width} images into {count} classes.");
    let mut text = card_head(trainer, &what, &sha256, path);
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
    files::write(card, text.as_bytes())?;
    Ok(Exported { images: trainer.images(), sha256, spread: None, accuracy: Some(accuracy) })
}

/// What every card says first: what it is, from what it was made, and how to make it again.
fn card_head(trainer: &Trainer, what: &str, sha256: &str, path: &Path) -> String {
    let config = trainer.config();
    let file = path.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
    let loss = trainer.curve().iter().rev().take(20).map(|p| p.loss);
    let loss = loss.clone().sum::<f64>() / loss.count().max(1) as f64;
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
    let earlier = trainer.earlier_runs();
    let before = match earlier {
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
    row("Loss", &format!("{kind}; {loss:.4} at the end"));
    let _ = writeln!(text, "\n## Made with\n\n```console");
    if !config.card.recipe.is_empty() {
        let _ = writeln!(text, "$ {}", config.card.recipe);
    }
    let name = &config.name;
    for (i, images) in earlier.iter().copied().chain([trainer.images()]).enumerate() {
        let run = if i < earlier.len() { format!("{name}-{}", i + 1) } else { name.clone() };
        let start = if i > 0 { format!(" --start priors/{name}/{file}") } else { String::new() };
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
        "\n## Samples\n\n![samples](samples.png)\n\nSeed {}, not chosen; Heun's method, 18 steps from σ = 80.",
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
