//! `daps demo`: every task of the paper's table on bundled faces.

use std::path::PathBuf;

use daps::bundled;
use daps::demo::{Demo, Row};
use daps::report::number;

use crate::Outcome;
use crate::bar::Bar;
use crate::table::{say, table};

#[derive(clap::Args)]
pub struct Args {
    /// The directory to make
    #[arg(long, default_value = "daps-demo")]
    out: PathBuf,
    /// The prior: a name of `daps list priors`, or a checkpoint
    #[arg(long, default_value = bundled::DEFAULT_PRIOR)]
    prior: String,
    /// DAPS's preset
    #[arg(long, default_value = "fast")]
    preset: String,
    /// Posterior samples per task
    #[arg(long, default_value_t = daps::task::SAMPLES)]
    samples: usize,
    /// Seed of everything that is random
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let demo = Demo {
        out: args.out.clone(),
        prior: args.prior.clone(),
        preset: args.preset.clone(),
        samples: args.samples,
        seed: args.seed,
    };
    let mut bar = Bar::new()?;
    let result = demo.run(&mut bar);
    if bar.stopped() && result.is_err() {
        eprintln!("stopped; what is done is in {}", args.out.display());
        return Ok(Outcome::Stopped);
    }
    let rows = result?;
    let row = |r: &Row| {
        let m = &r.summary.measurements[0];
        vec![
            r.task.title.to_owned(),
            number(m.psnr.as_ref().map(|p| p[m.chosen]), 2),
            number(m.mean_psnr, 2),
            number(Some(m.chi2), 3),
            r.summary.nfe.to_string(),
            format!("{:.1}", r.seconds),
        ]
    };
    let cells: Vec<Vec<String>> = rows.iter().map(row).collect();
    say(&table(&["task", "PSNR", "PSNR of mean", "chi2", "denoiser calls", "seconds"], &cells, 1));
    say(&format!(
        "all pictures: {}\nthe report:   {}",
        args.out.join("demo.png").display(),
        args.out.join("report.html").display()
    ));
    Ok(Outcome::Done)
}
