//! `daps train`: a network prior, or a classifier, from a data set.

use std::path::{Path, PathBuf};

use daps::files;
use daps::priors::training::{Goal, TrainConfig};
use daps::train::Training;

use crate::Outcome;
use crate::bar::Bar;
use crate::table::{say, tell};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// What to train, on what and how, as TOML
    #[arg(long, required = true)]
    config: Option<PathBuf>,
    /// The run directory [default: runs/train-NAME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Go on with the run in that directory
    #[arg(long)]
    resume: bool,
    /// Begin with the weights of this file, such as an exported prior, instead of random ones, and count on from its images
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    start: Option<PathBuf>,
    /// Train until this many images were seen instead of the configuration's number
    #[arg(long)]
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
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    match (&args.command, &args.config) {
        (Some(Command::Export { run, out }), _) => export(run, out),
        (None, Some(config)) => train(args, config),
        (None, None) => anyhow::bail!("--config is needed"),
    }
}

fn export(run: &Path, out: &Path) -> anyhow::Result<Outcome> {
    let mut bar = Bar::new()?;
    let done = match daps::train::export(run, out, &mut bar) {
        Err(error) if error.is_cancelled() => {
            tell("stopped; nothing was written");
            return Ok(Outcome::Stopped);
        }
        // A stop that came too late changed nothing.
        done => done?,
    };
    say(&format!("{} written after {} images; sha256 {}", out.display(), done.images, done.sha256));
    if let Some(accuracy) = done.accuracy {
        say(&format!("{:.2} % of the images that it was not trained on are recognised", 100.0 * accuracy));
    }
    Ok(Outcome::Done)
}

fn train(args: &Args, config_file: &Path) -> anyhow::Result<Outcome> {
    let mut config = TrainConfig::parse(&files::read_text(config_file)?)?;
    config.images = args.until.unwrap_or(config.images);
    if let Some(start) = &args.start {
        config.start = Some(std::path::absolute(start)?);
    }
    let out = args.out.clone().unwrap_or_else(|| format!("runs/train-{}", config.name).into());
    let base = config_file.parent().unwrap_or(Path::new("."));
    let mut training = Training::open(config, base, &out, args.resume)?;
    let trainer = training.trainer();
    let data = match trainer.config().goal() {
        Goal::Denoiser => format!("σ_data {:.4}", trainer.sigma_data()),
        Goal::Tokens(tokens) => format!("{} symbols", tokens.symbols),
        Goal::Classes(_) => "labelled".to_owned(),
    };
    tell(&format!(
        "{} images to train on, {} held out, {data}, {} parameters; {} images seen so far",
        trainer.data().train.len(),
        trainer.data().held_out.len(),
        trainer.parameters(),
        trainer.images()
    ));
    trainer.start_notes().iter().for_each(|note| tell(&format!("note: {note}")));
    let mut bar = Bar::new()?;
    let done = training.run(&mut bar)?;
    if args.json {
        say(&serde_json::to_string(&done)?);
    } else {
        let loss = done.loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
        say(&format!(
            "{} images seen, {:.1} images/s{loss}; checkpoint in {}",
            done.images,
            done.images_per_second,
            out.display()
        ));
    }
    if !done.finished {
        let (config, out) = (config_file.display(), out.display());
        let until = args.until.map_or(String::new(), |images| format!(" --until {images}"));
        tell(&format!("stopped; go on with: daps train --config {config} --out {out}{until} --resume"));
        return Ok(Outcome::Stopped);
    }
    Ok(Outcome::Done)
}
