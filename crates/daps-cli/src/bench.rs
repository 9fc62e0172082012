//! `daps bench`: how fast the layers and networks run here, beside the machine's practical peak.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use daps::nn::bench::{Case, Effort, Record, mean_ms, peak_mib};
use daps::progress::Progress;

use crate::Outcome;
use crate::bar::Bar;
use crate::table::{say, table};

#[derive(clap::Subcommand)]
pub enum Command {
    /// Layers and whole networks, forward and backward
    Nn(NnArgs),
}

#[derive(clap::Args)]
pub struct NnArgs {
    /// Only cases of these kinds (conv, norm, attention, network, gemm), or whose names start with this
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds of measurement per case
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Print one JSON object per case
    #[arg(long)]
    json: bool,
    /// Write weights, inputs, outputs and gradients to this directory for another program instead of timing
    #[arg(long, conflicts_with_all = ["json", "step"])]
    export: Option<PathBuf>,
    /// For each line `forward N` or `backward N` of standard input, run the chosen case once, then N more times. Print
    /// the mean of those N in milliseconds and the peak memory in MiB. Another program can take turns this way
    #[arg(long, conflicts_with = "json")]
    step: bool,
}

pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    let Command::Nn(args) = command;
    let time = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| anyhow!("--seconds: expected seconds from 0, got {}", args.seconds))?;
    let cases = chosen(&args.only)?;
    if args.step {
        return step(&cases);
    }
    if let Some(directory) = &args.export {
        daps::files::make_directory(directory, true)?;
    }
    let mut bar = Bar::new()?;
    bar.begin("bench", cases.len());
    let mut records = Vec::new();
    for case in &cases {
        bar.note(&case.name);
        if let Some(directory) = &args.export {
            export(case, directory)?;
        } else {
            let record = case.measure(Effort { time, ..Effort::default() })?;
            if args.json {
                let line = serde_json::to_string(&record)?;
                bar.aside(|| say(&line));
            }
            records.push(record);
        }
        // Buffers of one case are of no use to the next.
        daps::nn::buffer::release_idle();
        if bar.step(&case.name).is_break() {
            return Ok(Outcome::Stopped);
        }
    }
    bar.end();
    if !args.json && args.export.is_none() {
        say(&text(&records));
    }
    Ok(Outcome::Done)
}

fn chosen(only: &[String]) -> anyhow::Result<Vec<Case>> {
    let mut cases = daps::nn::bench::cases();
    cases.extend(daps::priors::network::bench::cases());
    let fits = |case: &Case, wanted: &String| case.kind == *wanted || case.name.starts_with(wanted.as_str());
    if let Some(unknown) = only.iter().find(|wanted| !cases.iter().any(|case| fits(case, wanted))) {
        let mut known: Vec<&str> = cases.iter().map(|case| case.kind).collect();
        known.sort_unstable();
        known.dedup();
        known.extend(cases.iter().map(|case| case.name.as_str()));
        bail!("--only: {}", daps::core::Error::unknown("case", unknown, known));
    }
    cases.retain(|case| only.is_empty() || only.iter().any(|wanted| fits(case, wanted)));
    Ok(cases)
}

fn text(records: &[Record]) -> String {
    let cell = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.1}"));
    let row = |r: &Record| {
        let (forward, both) = (format!("{:.2}", r.ms_forward), r.ms_forward_backward);
        let both = both.map_or(String::new(), |v| format!("{v:.2}"));
        vec![r.name.clone(), r.kind.to_owned(), forward, both, cell(Some(r.gflops_forward)), cell(r.peak_mib)]
    };
    let head = ["case", "kind", "forward ms", "forward + backward ms", "GFLOP/s forward", "peak MiB"];
    table(&head, &records.iter().map(row).collect::<Vec<_>>(), 2)
}

/// `NAME.safetensors` (and, of a network, `NAME.toml` beside it), and `NAME.io.safetensors`.
fn export(case: &Case, directory: &Path) -> anyhow::Result<()> {
    let numbers = (case.build)()?.export()?;
    let stem = case.name.replace(' ', "_");
    for (tensors, ending) in [(numbers.weights, "safetensors"), (numbers.io, "io.safetensors")] {
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let path = directory.join(format!("{stem}.{ending}"));
        daps::files::write_tensors(&path, &tensors, HashMap::new())?;
    }
    if let Some(config) = numbers.config {
        daps::files::write(&directory.join(format!("{stem}.toml")), config.as_bytes())?;
    }
    Ok(())
}

fn step(cases: &[Case]) -> anyhow::Result<Outcome> {
    let [case] = cases else {
        bail!("--step: expected one case, got {}; choose it with --only", cases.len())
    };
    let mut work = (case.build)()?;
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let request = line.trim().split_once(' ').and_then(|(pass, n)| Some((pass, n.parse::<u32>().ok()?)));
        let ms = match request {
            Some(("forward", n @ 1..)) => mean_ms(n, || work.forward())?,
            Some(("backward", n @ 1..)) if case.backward => mean_ms(n, || work.forward_backward())?,
            _ => bail!("--step: expected a line such as 'forward 3' or 'backward 3', got '{line}'"),
        };
        say(&format!("{ms} {}", peak_mib().unwrap_or(0.0)));
    }
    Ok(Outcome::Done)
}
