//! `daps toy`: the paper's 2-D experiment.

use daps_experiments::validate::toy::{self, Settings};

use crate::Outcome;
use crate::bar::Bar;
use crate::table::table;
use crate::validate::{Common, lines, objects};

#[derive(clap::Args)]
pub struct Args {
    /// Samples per method
    #[arg(long, default_value_t = 100)]
    samples: usize,
    /// Annealing levels
    #[arg(long, default_value_t = 200)]
    levels: usize,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.common.prepare()?;
    let mut bar = Bar::new()?;
    let settings = Settings { samples: args.samples, levels: args.levels, seed: args.common.seed };
    let result = toy::run(settings, &mut bar);
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    let toy = result?;
    let outcomes = objects(&toy.outcomes)?;
    args.common.print(&outcomes, &drawn_up(&toy.outcomes));
    let levels: Vec<_> = toy.outcomes.iter().map(|o| (o.method, &o.w2_levels)).collect();
    args.common.write(|| {
        Ok([
            ("samples.svg", toy.samples_svg()?),
            ("trajectories.svg", toy.trajectories_svg()?),
            ("w2.svg", toy.levels_svg()?),
            ("results.jsonl", lines(&outcomes)),
            ("w2.json", serde_json::to_string_pretty(&levels)?),
        ])
    })?;
    Ok(Outcome::Done)
}

fn drawn_up(outcomes: &[toy::Outcome]) -> String {
    let row = |o: &toy::Outcome| {
        vec![o.method.into(), format!("{:.4}", o.w2_last), format!("{:.1} %", 100.0 * o.right_mode)]
    };
    let rows: Vec<Vec<String>> = outcomes.iter().map(row).collect();
    format!(
        "{}\n\n'exact' is a second set of exact posterior samples: the distance that chance alone leaves.\n\
         y = 1 (the paper prints y = 0, but its figure shows the posterior of y = 1).",
        table(&["method", "W2 at the end", "nearer to (0.6, 0.5)"], &rows, 1)
    )
}
