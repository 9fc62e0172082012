//! `daps validate discrete`: the discrete loop beside enumerated posteriors.

use daps_experiments::validate::discrete::{self, Score};

use super::{Common, objects};
use crate::Outcome;
use crate::bar::Bar;
use crate::table::{table, tell};

#[derive(clap::Args)]
pub struct Args {
    /// Chains per case
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
    /// Numbers of levels
    #[arg(long, value_delimiter = ',', default_value = "1,4,16", value_parser = clap::value_parser!(u64).range(1..))]
    levels: Vec<u64>,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let levels: Vec<usize> = args.levels.iter().map(|n| *n as usize).collect();
    let settings = discrete::Settings { samples: args.samples as usize, levels, seed: args.common.seed };
    args.common.prepare()?;
    let mut bar = Bar::new()?;
    let result = discrete::run(&settings, &mut bar);
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    let scores = result?;
    args.common.present(&objects(&scores)?, &drawn_up(&scores, &settings.levels))?;
    let off: Vec<&Score> = scores.iter().filter(|s| !s.agrees()).collect();
    for s in &off {
        let (task, levels, distance, bound) = (s.task, s.levels, s.distance, s.bound);
        tell(&format!(
            "{task}, {levels} levels: the exact loop differs by {distance:.4}; chance allows {bound:.4}"
        ));
    }
    Ok(if off.is_empty() { Outcome::Done } else { Outcome::Disagreement })
}

fn drawn_up(scores: &[Score], levels: &[usize]) -> String {
    let rows: Vec<Vec<String>> = scores
        .chunks(levels.len())
        .map(|group| {
            let distances = group.iter().map(|s| format!("{:.4}", s.distance));
            let head = [group[0].task.to_owned(), group[0].estimate.to_owned()];
            head.into_iter().chain(distances).chain([format!("{:.4}", group[0].chance)]).collect()
        })
        .collect();
    let counts: Vec<String> = levels.iter().map(|n| format!("{n} levels")).collect();
    let mut heads = vec!["measurement", "p(x0 | x_t)"];
    heads.extend(counts.iter().map(String::as_str));
    heads.push("exact draws");
    let what = "total variation between samples and the enumerated posterior of 3x3 binary images";
    format!("{what}\n{}", table(&heads, &rows, 2))
}
