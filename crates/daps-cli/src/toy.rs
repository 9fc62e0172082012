//! `daps toy`: the paper's 2-D experiment.

use std::path::PathBuf;

use daps::files;
use daps::validate::toy::{self, Settings};

use crate::Outcome;
use crate::bar::Bar;
use crate::table::{say, table, tell};

#[derive(clap::Args)]
pub struct Args {
    /// Samples per method
    #[arg(long, default_value_t = 100)]
    samples: usize,
    /// Annealing levels
    #[arg(long, default_value_t = 200)]
    levels: usize,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object per method
    #[arg(long)]
    json: bool,
    /// Write pictures and numbers to this directory
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    if let Some(out) = &args.out {
        files::make_directory(out, false)?;
    }
    let mut bar = Bar::new()?;
    let settings = Settings { samples: args.samples, levels: args.levels, seed: args.seed };
    let result = toy::run(settings, &mut bar);
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    let toy = result?;
    let lines: Vec<String> = toy.outcomes.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    if args.json {
        lines.iter().for_each(|l| say(l));
    } else {
        let rows: Vec<Vec<String>> = toy
            .outcomes
            .iter()
            .map(|o| {
                vec![o.method.into(), format!("{:.4}", o.w2_last), format!("{:.1} %", 100.0 * o.right_mode)]
            })
            .collect();
        say(&table(&["method", "W2 at the end", "nearer to (0.6, 0.5)"], &rows, 1));
        say("\n'exact' is a second set of exact posterior samples: the distance that chance alone leaves.");
        say("y = 1 (the paper prints y = 0, but its figure shows the posterior of y = 1).");
    }
    if let Some(out) = &args.out {
        files::write(&out.join("samples.svg"), toy.samples_svg()?.as_bytes())?;
        files::write(&out.join("trajectories.svg"), toy.trajectories_svg()?.as_bytes())?;
        files::write(&out.join("w2.svg"), toy.levels_svg()?.as_bytes())?;
        files::write(&out.join("results.jsonl"), (lines.join("\n") + "\n").as_bytes())?;
        let levels: Vec<_> = toy.outcomes.iter().map(|o| (o.method, &o.w2_levels)).collect();
        files::write(&out.join("w2.json"), serde_json::to_string_pretty(&levels)?.as_bytes())?;
        tell(&format!("wrote samples.svg, trajectories.svg, w2.svg and numbers to {}", out.display()));
    }
    Ok(Outcome::Done)
}
