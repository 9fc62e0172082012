//! `daps run`: posterior samples for the problem of a configuration file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use daps::event::Shown;
use daps::priors::Memory;
use daps::report::number;
use daps::{Answer, Directory, Measurement, RunConfig, Runs, Summary, files};

use crate::Outcome;
use crate::bar::{Bar, waiting};
use crate::table::{say, table, tell};

#[derive(clap::Args)]
pub struct Args {
    /// Run file (TOML): task, prior and method
    config: PathBuf,
    /// Output directory
    #[arg(long)]
    out: PathBuf,
    /// Resume an interrupted run
    #[arg(long)]
    resume: bool,
    /// Use this random seed instead of the file's
    #[arg(long)]
    seed: Option<u64>,
    /// Draw this many samples per measurement, instead of the file's number
    #[arg(long)]
    samples: Option<usize>,
    /// The one answer to a measurement: a sample, or the mean of all samples [default: the file's]
    #[arg(long, value_name = "sample|mean")]
    answer: Option<Answer>,
    /// Memory for the network, such as 512MB [default: the file's]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Memory>,
    /// Seconds between checkpoints
    #[arg(long, default_value_t = 10.0)]
    checkpoint_every: f64,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let directory = directory(&args.out, args.resume, args.checkpoint_every)?;
    let mut config = RunConfig::parse(&files::read_text(&args.config)?)?;
    config.seed = args.seed.unwrap_or(config.seed);
    config.samples = args.samples.unwrap_or(config.samples);
    config.answer = args.answer.unwrap_or(config.answer);
    config.memory = args.memory.unwrap_or(config.memory);
    let base = args.config.parent().unwrap_or(Path::new("."));
    execute(config, base, &directory, args.json)
}

/// The run directory that the options ask for.
pub fn directory(out: &Path, resume: bool, checkpoint_every: f64) -> anyhow::Result<Directory> {
    let checkpoint_every = Duration::try_from_secs_f64(checkpoint_every).map_err(|_| {
        anyhow::anyhow!("--checkpoint-every: expected seconds from 0, got {checkpoint_every}")
    })?;
    Ok(Directory { path: out.to_owned(), resume, checkpoint_every })
}

/// Runs a configuration in a directory and prints what it found.
pub fn execute(config: RunConfig, base: &Path, directory: &Directory, json: bool) -> anyhow::Result<Outcome> {
    let what = format!("setting up the operator {} and the prior", config.task.operator);
    let runs = waiting(&what, || Runs::new(config, base))?;
    let (mut bar, start, out) = (Bar::new()?, Instant::now(), &directory.path);
    bar.watch(runs.tiles());
    let result = runs.execute(directory, &mut Shown(&mut bar));
    if matches!(&result, Err(error) if error.is_cancelled()) {
        tell(&format!("stopped; to resume, rerun the command with --out {} --resume", out.display()));
        return Ok(Outcome::Stopped);
    }
    let summary = result?;
    if json {
        say(&serde_json::to_string(&summary)?);
    } else {
        show(&summary, out);
        let (seconds, report) = (start.elapsed().as_secs_f64(), out.join("report.html"));
        say(&format!("  {seconds:.1} seconds; open {}", report.display()));
    }
    Ok(Outcome::Done)
}

/// A name that is free: this one, or this one with a number.
pub fn free_name(name: &str) -> PathBuf {
    let numbered = (2..).map(|i| PathBuf::from(format!("{name}-{i}")));
    std::iter::once(PathBuf::from(name))
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| name.into())
}

/// What a run found, for people.
pub fn show(summary: &Summary, out: &Path) {
    say(&format!("{} samples with the prior {} in {}", summary.samples, summary.prior, out.display()));
    let several = summary.measurements.len() > 1;
    if several && summary.psnr.is_some() {
        let row = |m: &Measurement| {
            let numbers = [number(m.sample_psnr(), 2), number(m.mean_psnr, 2), number(Some(m.misfit()), 3)];
            std::iter::once(m.name.clone()).chain(numbers).collect()
        };
        let rows: Vec<Vec<String>> = summary.measurements.iter().map(row).collect();
        say(&table(&["image", "PSNR", "PSNR of mean", summary.misfit_title()], &rows, 1));
    }
    let line = |name: &str, value: String| say(&format!("  {name:<27} {value}"));
    line("prior", summary.prior.clone());
    line("denoiser calls per sample", summary.nfe.to_string());
    line("operator calls per sample", summary.operator_calls.to_string());
    let answer = &summary.answer;
    let what = match &summary.measurements[..] {
        [one] => answer.kind.words(one),
        _ => answer.kind.to_string(),
    };
    let quality = answer.psnr.map(|psnr| format!(", {psnr:.2} dB")).unwrap_or_default();
    line("answer", format!("{what}, {} denoiser calls{quality}", answer.calls));
    match summary.missed() {
        Some(share) => line("measured tokens missed", format!("{:.2} %", 100.0 * share)),
        None if summary.residual_chi2.is_finite() => {
            line(summary.misfit_title(), format!("{:.4} (1 for exact samples)", summary.residual_chi2));
        }
        None => {}
    }
    let optional = [
        ("standard deviation, RMS", summary.spread, 4),
        ("mean to truth, RMS", summary.rmse, 4),
        ("mean to exact mean, RMS", summary.mean_error, 4),
        ("PSNR of samples, dB", summary.psnr, 2),
        ("SSIM of samples", summary.ssim, 4),
        ("PSNR of the mean, dB", summary.measurements[0].mean_psnr.filter(|_| !several), 2),
    ];
    for (name, value, digits) in optional {
        if value.is_some() {
            line(name, number(value, digits));
        }
    }
    if let Some((share, exact)) = summary.coverage() {
        line("coverage of the truth", format!("{share:.2} ({exact:.2} for exact samples)"));
    }
    for m in summary.measurements.iter().filter(|m| m.denoising_error.is_some()) {
        let psnr =
            m.psnr.as_ref().map(|p| format!(" ({} dB)", number(Some(p[m.chosen]), 2))).unwrap_or_default();
        line("chosen chain", format!("{} of {}{psnr}", m.chosen, m.name));
    }
    summary.warnings.iter().for_each(|w| tell(&format!("warning: {w}")));
}
