//! `daps run`: posterior samples for the problem of a configuration file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use daps::{Directory, Run, RunConfig, files};

use crate::Outcome;
use crate::bar::Bar;
use crate::table::say;

#[derive(clap::Args)]
pub struct Args {
    /// The configuration: prior, task and method as TOML
    config: PathBuf,
    /// The run directory to make
    #[arg(long)]
    out: PathBuf,
    /// Go on with a run that was interrupted
    #[arg(long)]
    resume: bool,
    /// Use this seed instead of the configuration's
    #[arg(long)]
    seed: Option<u64>,
    /// Draw this many samples per measurement instead of the configuration's
    #[arg(long)]
    samples: Option<usize>,
    /// Seconds between checkpoints
    #[arg(long, default_value_t = 10.0)]
    checkpoint_every: f64,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let seconds = Duration::try_from_secs_f64(args.checkpoint_every).map_err(|_| {
        anyhow::anyhow!("--checkpoint-every: expected seconds from 0, got {}", args.checkpoint_every)
    })?;
    let mut config = RunConfig::parse(&files::read_text(&args.config)?)?;
    config.seed = args.seed.unwrap_or(config.seed);
    config.samples = args.samples.unwrap_or(config.samples);
    if config.samples == 0 {
        anyhow::bail!("--samples: expected at least 1, got 0");
    }
    let base = args.config.parent().unwrap_or(Path::new("."));
    let run = Run::new(config, base)?;
    let directory = Directory { path: args.out.clone(), resume: args.resume, checkpoint_every: seconds };
    let mut bar = Bar::new()?;
    let result = run.execute(&directory, &mut bar);
    if bar.stopped() && result.is_err() {
        eprintln!(
            "stopped; go on with: daps run {} --out {} --resume",
            args.config.display(),
            args.out.display()
        );
        return Ok(Outcome::Stopped);
    }
    let summary = result?;
    if args.json {
        say(&serde_json::to_string(&summary)?);
        return Ok(Outcome::Done);
    }
    say(&format!("{} samples in {}", summary.samples, args.out.display()));
    if summary.diverged > 0 {
        say(&format!("  {} chains diverged; means leave them out", summary.diverged));
    }
    say(&format!("  denoiser calls per sample   {}", summary.nfe));
    say(&format!("  operator calls per sample   {}", summary.operator_calls));
    say(&format!("  residual chi2 per number    {:.4}", summary.residual_chi2));
    say(&format!("  standard deviation, RMS     {:.4}", summary.spread));
    if let Some(rmse) = summary.rmse {
        say(&format!("  mean to truth, RMS          {rmse:.4}"));
    }
    if let Some(error) = summary.mean_error {
        say(&format!("  mean to exact mean, RMS     {error:.4}"));
    }
    Ok(Outcome::Done)
}
