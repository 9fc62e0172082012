//! The model card beside exported weights: what they are, from what and with which commands they were made, and how good they are.

use std::fmt::Write;
use std::path::Path;

use daps_core::SpreadTable;
use daps_priors::training::{DENOISING_LEVELS, Goal, Trainer, psnr};

use super::export::MOST;
use super::notes;
use crate::Result;

/// The picture beside a prior.
pub(super) const SAMPLES: &str = "samples.png";
/// The picture beside a classifier.
pub(super) const EXAMPLES: &str = "examples.png";
/// What tells a card that may be replaced from someone's own file.
pub(super) const MARK: &str =
    "<!-- made by daps train export; it is replaced when the prior is exported again -->";

/// What every card says first: what it is, from what it was made, and how to make it again.
pub(super) fn head(trainer: &Trainer, what: &str, sha256: &str, path: &Path) -> String {
    let config = trainer.config();
    let file = path.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
    let loss = trainer.loss().map_or(String::new(), |loss| format!("; at the end {loss}"));
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
    notes::adapted(trainer.data()).iter().for_each(|note| row("Adapted", note));
    if !config.card.licence.is_empty() {
        row("Licence", &config.card.licence);
    }
    // Weights whose images nobody counted are no run of ours.
    let earlier: Vec<u64> = trainer.earlier_runs().iter().copied().filter(|images| *images > 0).collect();
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
    text.push_str(&made_with(&config.card.recipe, &trainer.commands));
    text
}

/// The commands that ran. None is made up: where nothing was recorded, that is what stands there.
fn made_with(recipe: &str, commands: &[String]) -> String {
    let line = |command: &String| match command.starts_with('#') {
        true => format!("{command}\n"),
        false => format!("$ {command}\n"),
    };
    let recipe = if recipe.is_empty() { String::new() } else { format!("$ {recipe}\n") };
    let commands: String = commands.iter().map(line).collect();
    format!("\n## Made with\n\n```console\n{recipe}{commands}```\n")
}

/// The model card of a denoiser as Markdown.
pub(super) fn denoiser(trainer: &Trainer, sha256: &str, spread: &SpreadTable, path: &Path) -> Result<String> {
    let (config, held) = (trainer.config(), trainer.data().held_out.len());
    let [channels, height, width] = trainer.network().shape();
    let color = if channels == 1 { "grey" } else { "RGB" };
    let what =
        format!("A denoiser D(x, σ) of {height}x{width} {color} images in [-1, 1], as a prior for `daps`.");
    let mut text = head(trainer, &what, sha256, path);
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
