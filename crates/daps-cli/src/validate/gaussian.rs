//! `daps validate gaussian`: kernels, presets and exact draws on a Gaussian prior.

use daps_experiments::validate::gaussian;

use super::{Common, objects};
use crate::Outcome;
use crate::bar::Bar;
use crate::table::table;

#[derive(clap::Args)]
pub struct Args {
    /// Chains per moment
    #[arg(long, default_value_t = 20_000)]
    samples: usize,
    /// Minimum number of credible intervals
    #[arg(long, default_value_t = 5_600)]
    intervals: usize,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.common.prepare()?;
    let mut bar = Bar::new()?;
    let settings =
        gaussian::Settings { samples: args.samples, intervals: args.intervals, seed: args.common.seed };
    let result = gaussian::run(settings, &mut bar);
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    let report = result?;
    let rows = [objects(&report.checks)?, objects(&report.coverage)?].concat();
    args.common.present(&rows, &drawn_up(&report))?;
    Ok(if report.passed() { Outcome::Done } else { Outcome::Disagreement })
}

fn drawn_up(report: &gaussian::Report) -> String {
    let verdict = |passed: bool| if passed { "agrees" } else { "DISAGREES" }.to_owned();
    let rows: Vec<Vec<String>> = report
        .checks
        .iter()
        .map(|c| {
            vec![
                c.group.to_owned(),
                c.name.clone(),
                c.against.to_owned(),
                verdict(c.passed),
                format!("{:.2}", c.mean_z),
                format!("{:.2}", c.covariance_z),
                format!("{:.2}", c.limit),
                c.distance.map_or(String::new(), |d| format!("{d:.4}")),
                c.acceptance.map_or(String::new(), |a| format!("{:.0} %", 100.0 * a)),
            ]
        })
        .collect();
    let head = ["", "what ran", "against", "", "|z| mean", "|z| cov", "limit", "W2 to exact", "accepted"];
    let coverage: Vec<Vec<String>> = report
        .coverage
        .iter()
        .map(|c| {
            vec![
                c.name.clone(),
                verdict(c.passed),
                format!("{:.1} %", 100.0 * c.nominal),
                format!("{:.2} ± {:.2} %", 100.0 * c.observed, 100.0 * c.se),
                c.intervals.to_string(),
            ]
        })
        .collect();
    let coverage_head = ["credible intervals of", "", "nominal", "hold the truth", "intervals"];
    format!(
        "{}\n\n'W2 to exact': root mean square over modes of the distance between the law of what ran and the exact\n\
         conditional (kernels) or the true posterior (presets, posterior), from closed forms: 0 is exact.\n\n{}",
        table(&head, &rows, 4),
        table(&coverage_head, &coverage, 2)
    )
}
