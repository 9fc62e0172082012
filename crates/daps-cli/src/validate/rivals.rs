//! `daps validate rivals`: every method on a Gaussian prior.

use daps_experiments::validate::gaussian;
use daps_experiments::validate::gaussian::rivals::{self, Rival};

use super::{Common, objects};
use crate::Outcome;
use crate::bar::Bar;
use crate::table::table;

#[derive(clap::Args)]
pub struct Args {
    /// Chains per method
    #[arg(long, default_value_t = 2_000)]
    samples: usize,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.common.prepare()?;
    let mut bar = Bar::new()?;
    let settings =
        gaussian::Settings { samples: args.samples, seed: args.common.seed, ..gaussian::Settings::default() };
    let result = rivals::run(settings, &mut bar);
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    let rivals = result?;
    args.common.present(&objects(&rivals)?, &drawn_up(&rivals))?;
    Ok(Outcome::Done)
}

fn drawn_up(rivals: &[Rival]) -> String {
    let row = |r: &Rival| {
        vec![
            r.name.clone(),
            format!("{:.4}", r.distance),
            format!("{:.2}", r.mean_error),
            format!("{:.2}", r.measured),
            format!("{:.2}", r.hidden),
            r.nfe.to_string(),
            r.diverged.to_string(),
        ]
    };
    let head =
        ["method", "W2 to posterior", "mean error", "variance, measured", "not measured", "NFE", "diverged"];
    let rows: Vec<Vec<String>> = rivals.iter().map(row).collect();
    format!(
        "{}\n\nPrior N(0.1, 0.5²) in 8 directions, 6 of them measured with singular values from 1 to 0.05 and noise 0.05; default\n\
         settings. W2: root mean square over directions; mean error: in the posterior's standard deviations; variances: over the\n\
         posterior's, 1 is exact. Exact draws show what chance leaves.",
        table(&head, &rows, 1)
    )
}
