//! `daps validate network`: how calibrated samples with a network prior are.

use std::path::{Path, PathBuf};

use daps::bundled;
use daps::methods::{MethodConfig, Preset};
use daps::priors::training::Fit;
use daps_experiments::experiment::Source;
use daps_experiments::validate::network::{self, Figure, Origin, Row, Settings};
use toml::{Table, Value};

use super::{Common, lines, objects};
use crate::Outcome;
use crate::bar::Bar;
use crate::table::table;

#[derive(clap::Args)]
pub struct Args {
    /// The prior: a known one, a checkpoint, or a TOML file with a `prior` table
    #[arg(long, default_value = bundled::DEFAULT_PRIOR)]
    prior: String,
    /// Images that the prior was not trained on: a folder, a tar, an IDX or .npy file, or "bundled". Without it, truths are drawn from the prior
    #[arg(long)]
    data: Option<PathBuf>,
    /// Use only the last N images (0: all)
    #[arg(long, default_value_t = 0)]
    held_out: usize,
    /// Leave out the first N of these
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// Number of truths
    #[arg(long, default_value_t = 32)]
    images: usize,
    /// Samples of every truth: the smallest and the largest of 19 bound 90 %
    #[arg(long, default_value_t = 19)]
    samples: usize,
    /// The tasks [default: the five linear ones of the paper's table]
    #[arg(long = "task")]
    tasks: Vec<String>,
    /// A preset of DAPS, or a TOML file with a `method` table (repeatable) [default: fast, best]
    #[arg(long = "method")]
    methods: Vec<String>,
    /// Samples per batch. It affects memory, not results
    #[arg(long, default_value_t = 19)]
    batch: usize,
    #[command(flatten)]
    common: Common,
}

/// The linear tasks of the paper's table.
const LINEAR: [&str; 5] =
    ["super_resolution", "inpaint_box", "inpaint_random", "gaussian_blur", "motion_blur"];

impl Args {
    fn settings(&self) -> anyhow::Result<Settings> {
        let or = |given: &[String], usual: &[&str]| -> Vec<String> {
            if given.is_empty() { usual.iter().map(|s| (*s).to_owned()).collect() } else { given.to_vec() }
        };
        let origin = match &self.data {
            None => Origin::Prior,
            Some(data) => {
                let bundled = data.as_os_str() == daps_experiments::experiment::BUNDLED;
                Origin::Images(Source {
                    source: if bundled { data.clone() } else { std::path::absolute(data)? },
                    held_out: Some(self.held_out).filter(|n| *n > 0),
                    labels: None,
                    skip: self.skip,
                    images: self.images,
                    fit: Fit::Crop,
                })
            }
        };
        let methods = or(&self.methods, &["fast", "best"]);
        Ok(Settings {
            prior: daps::prior::named(&self.prior)?,
            origin,
            truths: self.images,
            tasks: or(&self.tasks, &LINEAR).iter().map(|t| t.replace('-', "_")).collect(),
            methods: methods.iter().map(|text| method(text)).collect::<anyhow::Result<_>>()?,
            chains: self.samples,
            batch: self.batch,
            seed: self.common.seed,
        })
    }
}

/// A preset, or the method of a file, which is called as the file is.
fn method(text: &str) -> anyhow::Result<(String, MethodConfig)> {
    let path = Path::new(text);
    if path.extension().is_none_or(|e| e != "toml") {
        return Ok((text.to_owned(), Preset::named(text)?.into()));
    }
    let mut content: Table = daps::files::read_text(path)?.parse()?;
    let Some(Value::Table(table)) = content.remove("method") else {
        anyhow::bail!("{text}: has no [method] table");
    };
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    Ok((name, MethodConfig::from_table(table)?))
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.common.prepare()?;
    let settings = args.settings()?;
    let mut bar = Bar::new()?;
    let result = network::run(&settings, &mut bar);
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    let rows = result?;
    let (objects, text) = (objects(&rows)?, drawn_up(&rows, &settings));
    args.common.print(&objects, &text);
    args.common.write(|| Ok([("results.jsonl", lines(&objects)), ("table.txt", format!("{text}\n"))]))?;
    if let Some(out) = &args.common.out {
        for task in &settings.tasks {
            let of_task: Vec<&Row> = rows.iter().filter(|r| r.task == *task).collect();
            let name = format!("coverage-{task}.svg");
            daps::files::write(&out.join(name), network::drawing(task, &of_task)?.as_bytes())?;
        }
    }
    Ok(Outcome::Done)
}

fn drawn_up(rows: &[Row], settings: &Settings) -> String {
    let with = |f: Figure, digits: usize| format!("{:.digits$} ± {:.digits$}", f.mean, f.error);
    let row = |r: &Row| {
        vec![
            r.task.clone(),
            r.method.clone(),
            with(r.pixels, 3),
            with(r.projections, 3),
            with(r.diversity, 2),
            with(r.chi2, 3),
            with(r.psnr, 2),
            with(r.mean_psnr, 2),
            r.nfe.to_string(),
            r.diverged.to_string(),
        ]
    };
    let nominal = rows.first().map_or(f64::NAN, |r| r.nominal);
    let head = [
        "task",
        "method",
        "coverage of pixels",
        "of projections",
        "diversity",
        "χ²",
        "PSNR",
        "PSNR of mean",
        "NFE",
        "diverged",
    ];
    let truths = match settings.origin {
        Origin::Prior => "drawn from the prior",
        Origin::Images(_) => "images that were given",
    };
    format!(
        "{}\n\n{} truths, {truths}, with {} samples each; ± is a standard error over truths. Of exact samples the coverage is {nominal:.3},\n\
         diversity and χ² are 1.",
        table(&head, &rows.iter().map(row).collect::<Vec<_>>(), 2),
        settings.truths,
        settings.chains,
    )
}
