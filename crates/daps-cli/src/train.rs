//! `daps train`: a network prior from a data set.

use std::path::{Path, PathBuf};

use daps::files;
use daps::priors::training::TrainConfig;
use daps::train::Training;

use crate::Outcome;
use crate::bar::Bar;
use crate::table::say;

#[derive(clap::Args)]
pub struct Args {
    /// What to train, on what and how, as TOML
    #[arg(long)]
    config: PathBuf,
    /// The run directory [default: runs/train-NAME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Go on with the run in that directory
    #[arg(long)]
    resume: bool,
    /// Train until this many images were seen instead of the configuration's number
    #[arg(long)]
    until: Option<u64>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let mut config = TrainConfig::parse(&files::read_text(&args.config)?)?;
    config.images = args.until.unwrap_or(config.images);
    let out = args.out.clone().unwrap_or_else(|| format!("runs/train-{}", config.name).into());
    let base = args.config.parent().unwrap_or(Path::new("."));
    let mut training = Training::open(config, base, &out, args.resume)?;
    let trainer = training.trainer();
    eprintln!(
        "{} images to train on, {} held out, σ_data {:.4}, {} parameters; {} images seen so far",
        trainer.data().train.len(),
        trainer.data().held_out.len(),
        trainer.sigma_data(),
        trainer.parameters(),
        trainer.images(),
    );
    let mut bar = Bar::new()?;
    let done = training.run(&mut bar)?;
    if args.json {
        say(&serde_json::to_string(&done)?);
    } else {
        say(&format!(
            "{} images seen, {:.1} images/s, loss {:.4}; checkpoint in {}",
            done.images,
            done.images_per_second,
            done.loss,
            out.display()
        ));
    }
    if !done.finished {
        let (config, out) = (args.config.display(), out.display());
        eprintln!("stopped; go on with: daps train --config {config} --out {out} --resume");
        return Ok(Outcome::Stopped);
    }
    Ok(Outcome::Done)
}
