//! `daps train`: a network prior, or a classifier, from a data set.

use std::path::{Path, PathBuf};

use daps::priors::training::{Crops, DataConfig, Fit, Goal, TrainConfig, at_setting};
use daps::train::{Calibration, Training};

use crate::Outcome;
use crate::bar::Bar;
use crate::table::{say, tell};

/// A training file with every key explained.
pub const EXAMPLE: &str = include_str!("../../../examples/train.toml");

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Training file (TOML). `daps explain train` prints one with every key
    #[arg(long, required = true)]
    config: Option<PathBuf>,
    /// Output directory [default: runs/train-NAME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Resume the run in the output directory
    #[arg(long)]
    resume: bool,
    /// Start from the weights of this file, such as an exported prior. The image count continues from that file
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    start: Option<PathBuf>,
    /// Train until this many images were seen, instead of the file's number
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    until: Option<u64>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
pub enum Command {
    /// Write the averaged weights of a run as a prior (f16), with a model card and samples beside it
    Export {
        /// The run directory
        run: PathBuf,
        /// The safetensors file to write
        #[arg(long)]
        out: PathBuf,
    },
    /// Measure the error of a prior that exists: its covariance by frequency, and where in an image it is larger. `export` does the same
    Calibrate {
        /// The prior: a checkpoint with its configuration
        weights: PathBuf,
        /// The images: a folder, a tar, an IDX or .npy file
        #[arg(long)]
        data: PathBuf,
        /// Leave out the last N images altogether, for tests
        #[arg(long, value_name = "N", default_value_t = 0)]
        left_out: usize,
        /// Measure on the last N images before these; the local factor is trained on the others
        #[arg(long, value_name = "N", default_value_t = 128)]
        held_out: usize,
        /// Measure on the last N of the held-out images only, and leave the first ones for tests
        #[arg(long, value_name = "N")]
        measure: Option<usize>,
        /// How to fit images of another size: crop and resize, pad with black, or cut out the middle
        #[arg(long, value_enum, default_value_t = Fitting::Crop)]
        fit: Fitting,
        /// Side of the images to measure on, for a network of any size [default: what it was trained on]
        #[arg(long, value_name = "PIXELS")]
        side: Option<usize>,
        /// Random seed
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// The safetensors file to write
        #[arg(long)]
        out: PathBuf,
    },
}

/// How an image of another size is made to fit.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Fitting {
    Crop,
    Pad,
    Cut,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    match (&args.command, &args.config) {
        (Some(Command::Export { run, out }), _) => export(run, out),
        (
            Some(Command::Calibrate { weights, data, left_out, held_out, measure, fit, side, seed, out }),
            _,
        ) => {
            let source = std::path::absolute(data)?;
            let (fit, crops) = match fit {
                Fitting::Crop => (Fit::Crop, None),
                Fitting::Pad => (Fit::Pad, None),
                Fitting::Cut => (Fit::Crop, Some(Crops::default())),
            };
            let (held_out, left_out) = (*held_out, *left_out);
            let data = DataConfig { source, left_out, held_out, flip: false, fit, crops };
            let how = Calibration { measure: *measure, side: *side, seed: *seed };
            calibrate(weights, &data, &how, out)
        }
        (None, Some(config)) => train(args, config),
        (None, None) => anyhow::bail!("missing --config FILE"),
    }
}

fn export(run: &Path, out: &Path) -> anyhow::Result<Outcome> {
    let mut bar = Bar::new()?;
    let done = match daps::train::export(run, out, Some(&command_line()), &mut bar) {
        Err(error) if error.is_cancelled() => {
            tell("stopped; nothing was written");
            return Ok(Outcome::Stopped);
        }
        // A stop that came too late changed nothing.
        done => done?,
    };
    say(&format!("{} written after {} images; sha256 {}", out.display(), done.images, done.sha256));
    if let Some(accuracy) = done.accuracy {
        say(&format!("{:.2} % of held-out images are classified correctly", 100.0 * accuracy));
    }
    Ok(Outcome::Done)
}

fn calibrate(weights: &Path, data: &DataConfig, how: &Calibration, out: &Path) -> anyhow::Result<Outcome> {
    let mut bar = Bar::new()?;
    let done = match daps::train::calibrate(weights, data, how, out, &mut bar) {
        Err(error) if error.is_cancelled() => {
            tell("stopped; nothing was written");
            return Ok(Outcome::Stopped);
        }
        done => done?,
    };
    say(&format!(
        "{} written: measured on {} images, local factor trained on {}; sha256 {}",
        out.display(),
        done.measured,
        done.trained,
        done.sha256
    ));
    Ok(Outcome::Done)
}

fn train(args: &Args, config_file: &Path) -> anyhow::Result<Outcome> {
    let mut config = TrainConfig::read(config_file)?;
    config.images = args.until.unwrap_or(config.images);
    if let Some(start) = &args.start {
        config.start = Some(std::path::absolute(start)?);
    }
    let out = args.out.clone().unwrap_or_else(|| format!("runs/train-{}", config.name).into());
    let base = config_file.parent().unwrap_or(Path::new("."));
    let mut bar = Bar::new()?;
    let mut training = match Training::open(config, base, &out, args.resume, &mut bar) {
        Err(error) if error.is_cancelled() => {
            tell("stopped while images were read; nothing was written");
            return Ok(Outcome::Stopped);
        }
        Err(daps::Error::Core(error)) => return Err(at_setting(config_file, error.into()).into()),
        Err(daps::Error::Prior(error)) => return Err(at_setting(config_file, error).into()),
        opened => opened?,
    };
    let trainer = training.trainer();
    let data = match trainer.config().goal() {
        Goal::Denoiser => format!("σ_data {:.4}", trainer.sigma_data()),
        Goal::Tokens(tokens) => format!("{} symbols", tokens.symbols),
        Goal::Classes(_) => "labelled".to_owned(),
    };
    let loss = trainer.loss().map_or(String::new(), |loss| format!(", loss {loss}"));
    tell(&format!(
        "{} images to train on, {} held out, {data}, {} parameters; {} images seen so far{loss}",
        trainer.data().train.len(),
        trainer.data().held_out.len(),
        trainer.parameters(),
        trainer.images()
    ));
    training.notes().iter().for_each(|note| tell(&format!("note: {note}")));
    let done = training.run(Some(&command_line()), &mut bar)?;
    if args.json {
        say(&serde_json::to_string(&done)?);
    } else {
        let loss = training.trainer().loss().map_or(String::new(), |loss| format!(", loss {loss}"));
        say(&format!(
            "{} images seen, {:.1} images/s{loss}; checkpoint in {}",
            done.images,
            done.images_per_second,
            out.display()
        ));
    }
    if !done.finished {
        let [config, out] = [config_file, &out].map(|path| quoted(&path.to_string_lossy()));
        let until = args.until.map_or(String::new(), |images| format!(" --until {images}"));
        tell(&format!("stopped; resume with: daps train --config {config} --out {out}{until} --resume"));
        return Ok(Outcome::Stopped);
    }
    Ok(Outcome::Done)
}

/// The command that runs, as it can be typed again; the program goes by its name, wherever it lies.
fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    std::iter::once("daps".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it, on one line.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if word.chars().any(char::is_control) {
        let escaped = |c: char| match c {
            '\'' | '\\' => format!("\\{c}"),
            c if c.is_control() => format!("\\x{:02x}", u32::from(c)),
            c => c.to_string(),
        };
        return format!("$'{}'", word.chars().map(escaped).collect::<String>());
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_that_a_shell_would_split_is_quoted() {
        for (word, shown) in [
            ("--out", "--out"),
            ("runs/größe-1", "runs/größe-1"),
            ("", "''"),
            ("my runs/a", "'my runs/a'"),
            ("it's", r"'it'\''s'"),
            ("ä\n'b", r"$'ä\x0a\'b'"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
