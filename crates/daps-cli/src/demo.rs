//! `daps demo`: every task of one of the paper's tables on bundled pictures.

use std::path::PathBuf;

use daps::demo::{DISCRETE, Demo, FACES, Row};
use daps::methods::Preset;
use daps::report::number;

use crate::Outcome;
use crate::bar::Bar;
use crate::run::free_name;
use crate::table::{say, table, tell};

#[derive(clap::Args)]
pub struct Args {
    /// The set of tasks
    #[arg(default_value = "faces")]
    what: What,
    /// Output directory [default: daps-demo or daps-demo-discrete; a number is added if it exists]
    #[arg(long)]
    out: Option<PathBuf>,
    /// The prior: a name from `daps list priors`, or a checkpoint [default: faces, or binary-digits]
    #[arg(long)]
    prior: Option<String>,
    /// The preset of DAPS [default: fast, or best for discrete]
    #[arg(long)]
    preset: Option<String>,
    /// Posterior samples per task
    #[arg(long, default_value_t = daps::task::SAMPLES)]
    samples: usize,
    /// Random seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// The eight tasks of the paper's main table on faces
    Faces,
    /// Inpainting, XOR and AND on binary digits
    Discrete,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let (subject, out, preset) = match args.what {
        What::Faces => (&FACES, "daps-demo", "fast"),
        What::Discrete => (&DISCRETE, "daps-demo-discrete", "best"),
    };
    let preset = args.preset.as_deref().unwrap_or(preset);
    let method = Preset::named(preset)?.into();
    let out = args.out.clone().unwrap_or_else(|| free_name(out));
    let demo = Demo {
        subject,
        out: out.clone(),
        prior: args.prior.clone().unwrap_or_else(|| subject.prior.into()),
        method,
        samples: args.samples,
        seed: args.seed,
    };
    let mut bar = Bar::new()?;
    let result = demo.run(&mut bar);
    if matches!(&result, Err(error) if error.is_cancelled()) {
        tell(&format!("stopped; finished tasks are in {}", out.display()));
        return Ok(Outcome::Stopped);
    }
    let rows = result?;
    let row = |r: &Row| {
        let m = &r.summary.measurements[0];
        vec![
            r.task.title().to_owned(),
            number(m.psnr.as_ref().map(|p| p[m.chosen]), 2),
            number(m.mean_psnr, 2),
            number(Some(m.misfit()), 3),
            r.summary.nfe.to_string(),
            format!("{:.1}", r.seconds),
        ]
    };
    let cells: Vec<Vec<String>> = rows.iter().map(row).collect();
    let misfit = rows.first().map_or("", |r| r.summary.misfit_title());
    say(&table(&["task", "PSNR", "PSNR of mean", misfit, "denoiser calls", "seconds"], &cells, 1));
    say(&format!(
        "the prior:  {}\nall images: {}\nthe report: {}",
        rows.first().map_or("", |r| r.summary.prior.as_str()),
        out.join("demo.png").display(),
        out.join("report.html").display()
    ));
    Ok(Outcome::Done)
}
