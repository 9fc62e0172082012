//! `daps experiment`: methods x tasks x images x seeds, from a file to a report.

use std::path::{Path, PathBuf};

use daps_experiments::experiment::{Estimate, Experiment, ExperimentConfig, PriorEntry, Progressed};

use crate::Outcome;
use crate::bar::{Bar, waiting};
use crate::table::{say, table, tell};

#[derive(clap::Args)]
pub struct Args {
    /// Experiment file (TOML): methods, tasks, images and seeds
    file: PathBuf,
    /// Output directory. Finished cells are not run again [default: runs/experiment-NAME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Reuse finished cells of another experiment's directory; labels may differ (repeatable)
    #[arg(long, value_name = "DIR")]
    reuse: Vec<PathBuf>,
    /// Use this prior instead of the file's
    #[arg(long)]
    prior: Option<String>,
    /// Use these images: a folder, a tar, an IDX or .npy file, or "bundled" (a few faces, or digits for a grey prior)
    #[arg(long)]
    data: Option<PathBuf>,
    /// Use only the last N images (0: all)
    #[arg(long, value_name = "N")]
    held_out: Option<usize>,
    /// Number of images
    #[arg(long)]
    images: Option<usize>,
    /// Print the number of cells and the estimated time; run nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The file's content with what the command line changes.
    fn config(&self) -> anyhow::Result<ExperimentConfig> {
        let mut config = ExperimentConfig::read(&self.file)?;
        if let Some(prior) = &self.prior {
            config.prior = PriorEntry::Settings(daps::prior::named(prior)?);
        }
        if let Some(data) = &self.data {
            config.data.source = std::path::absolute(data)?;
            // They belong to the file's own images.
            if config.data.labels.take().is_some() {
                tell("note: the labels belong to the file's own images; no accuracy is computed");
            }
            if data.as_os_str() == daps_experiments::experiment::BUNDLED {
                let base = self.file.parent().unwrap_or(Path::new("."));
                let shape = match daps::prior::open(&config.prior.settings(base)?, base)?.shape() {
                    Some(shape) => shape.to_vec(),
                    None => config.shape.clone(),
                };
                config.data.source = data.clone();
                (config.data.held_out, config.data.skip) = (None, 0);
                config.data.images = config.data.images.min(daps::bundled::pictures_of(&shape).len());
            }
        }
        if let Some(held_out) = self.held_out {
            config.data.held_out = Some(held_out).filter(|n| *n > 0);
        }
        config.data.images = self.images.unwrap_or(config.data.images);
        config.check()?;
        Ok(config)
    }
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let config = args.config()?;
    let out = args.out.clone().unwrap_or_else(|| format!("runs/experiment-{}", config.name).into());
    let base = args.file.parent().unwrap_or(Path::new("."));
    let experiment = waiting("setting up the operators and the prior", || Experiment::open(config, base))?;
    experiment.notes().iter().for_each(|note| tell(&format!("note: {note}")));
    let mut bar = Bar::new()?;
    if args.dry_run {
        let estimates = experiment.estimate(&out, &args.reuse, &mut bar)?;
        if bar.stopped() {
            return Ok(Outcome::Stopped);
        }
        return dry(args, &estimates);
    }
    let done = experiment.execute(&out, &args.reuse, &mut bar)?;
    if args.json {
        say(&serde_json::to_string(&done)?);
    } else {
        show(&done, &out);
    }
    if done.done < done.cells {
        tell("stopped; rerun the command to resume");
        return Ok(Outcome::Stopped);
    }
    Ok(Outcome::Done)
}

fn show(done: &Progressed, out: &Path) {
    done.unfit.iter().for_each(|u| tell(&format!("left out: {u}")));
    let failed = if done.failed > 0 { format!(", {} failed", done.failed) } else { String::new() };
    say(&format!("{} of {} cells done ({} in this run){failed}", done.done, done.cells, done.ran));
    say(&format!("the prior:  {}", done.prior));
    say(&format!("the table:  {}", out.join("results.csv").display()));
    say(&format!("the report: {}", out.join("report.html").display()));
}

/// "3 min", "2.5 h".
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn dry(args: &Args, estimates: &[Estimate]) -> anyhow::Result<Outcome> {
    if args.json {
        say(&serde_json::to_string(estimates)?);
        return Ok(Outcome::Done);
    }
    let row = |e: &Estimate| {
        let (cells, missing) = (e.cells.to_string(), e.missing.to_string());
        let time = if e.missing > 0 { duration(e.seconds) } else { "-".into() };
        vec![e.task.clone(), e.method.clone(), cells, missing, time]
    };
    let fitting: Vec<&Estimate> = estimates.iter().filter(|e| e.refusal.is_none()).collect();
    let rows: Vec<Vec<String>> = fitting.iter().map(|e| row(e)).collect();
    say(&table(&["task", "method", "cells", "to run", "estimate"], &rows, 2));
    for e in estimates {
        if let Some(refusal) = &e.refusal {
            say(&format!("left out: {} on {}: {refusal}", e.method, e.task));
        }
    }
    let (cells, missing): (usize, usize) =
        fitting.iter().fold((0, 0), |(c, m), e| (c + e.cells, m + e.missing));
    let seconds: f64 = fitting.iter().map(|e| e.seconds).sum();
    say(&format!("{cells} cells, {missing} to run, about {} on this machine", duration(seconds)));
    Ok(Outcome::Done)
}
