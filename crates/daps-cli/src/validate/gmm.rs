//! `daps validate gmm`: the mixture test bed.

use std::path::{Path, PathBuf};

use daps::plot::Panel;
use daps::{Error, files};
use daps_experiments::validate::gmm::{self, Cloud, Instance, Score, Summary};

use super::{Common, lines, objects};
use crate::Outcome;
use crate::bar::Bar;
use crate::table::table;

#[derive(clap::Args)]
pub struct Args {
    /// Dimension of x
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    dim: u32,
    /// Number of measurements
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    obs: u32,
    /// Number of random problems
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Samples per problem and method [default: 1000; with --instances, 300 above dimension 8]
    #[arg(long)]
    samples: Option<usize>,
    /// Annealing levels
    #[arg(long, default_value_t = 100)]
    levels: usize,
    /// Only these methods (repeatable, or separated by commas); see `daps list gmm`
    #[arg(long, value_delimiter = ',')]
    method: Vec<String>,
    /// Run the problems of this JSON file instead of random ones, and compare with the scores in it
    #[arg(long, conflicts_with_all = ["dim", "obs", "seeds"])]
    instances: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

fn read_instances(path: &Path) -> anyhow::Result<Vec<Instance>> {
    let text = files::read_text(path)?;
    let instances: Vec<Instance> = serde_json::from_str(&text)
        .map_err(|e| anyhow::anyhow!("{}: not a list of problems: {e}", path.display()))?;
    if instances.is_empty() {
        anyhow::bail!("{}: expected at least one problem, got none", path.display());
    }
    Ok(instances)
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let instances = match &args.instances {
        Some(path) => read_instances(path)?,
        None => (0..args.seeds)
            .map(|seed| Instance::random(args.dim as usize, args.obs as usize, seed))
            .collect::<Result<_, Error>>()?,
    };
    let mut settings =
        gmm::Settings { levels: args.levels, seed: args.common.seed, ..gmm::Settings::default() };
    if !args.method.is_empty() {
        settings.methods.clone_from(&args.method);
    }
    args.common.prepare()?;
    let mut bar = Bar::new()?;
    // Problems of one size at a time: recorded scores of large problems come from fewer samples.
    let mut sizes: Vec<usize> = instances.iter().map(|i| i.dim).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let (mut scores, mut clouds): (Vec<Score>, Vec<Cloud>) = (vec![], vec![]);
    for dim in sizes {
        let recorded = if args.instances.is_some() && dim > 8 { 300 } else { 1000 };
        settings.samples = args.samples.unwrap_or(recorded);
        let part: Vec<Instance> = instances.iter().filter(|i| i.dim == dim).cloned().collect();
        let result = gmm::run(&part, &settings, &mut bar);
        if bar.stopped() {
            return Ok(Outcome::Stopped);
        }
        let (s, c) = result?;
        scores.extend(s);
        if clouds.is_empty() {
            clouds = c;
        }
    }
    let summaries = gmm::summarise(&scores);
    let text = drawn_up(&summaries);
    args.common.print(&objects(&summaries)?, &text);
    args.common.write(|| {
        let (scores, picture) = (lines(&objects(&scores)?), picture(&clouds)?);
        Ok([("scores.jsonl", scores), ("table.txt", text + "\n"), ("samples.svg", picture)])
    })?;
    Ok(Outcome::Done)
}

fn drawn_up(summaries: &[Summary]) -> String {
    let compared = summaries.iter().any(|s| s.minus_recorded.is_some());
    let mut head = vec!["(dim, obs)", "method", "sliced W1", "± s.e.", "NFE", "s/problem", "diverged"];
    if compared {
        head.push("minus recorded ± s.e.");
    }
    let rows: Vec<Vec<String>> = summaries
        .iter()
        .map(|s| {
            let mut row = vec![
                format!("({}, {})", s.dim, s.obs),
                s.method.clone(),
                format!("{:.3}", s.w1),
                if s.se.is_finite() { format!("{:.3}", s.se) } else { "–".to_owned() },
                s.nfe.to_string(),
                format!("{:.2}", s.seconds),
                s.diverged.to_string(),
            ];
            if compared {
                row.push(s.minus_recorded.map_or(String::new(), |(d, e)| format!("{d:+.3} ± {e:.3}")));
            }
            row
        })
        .collect();
    table(&head, &rows, 2)
}

fn picture(clouds: &[Cloud]) -> anyhow::Result<String> {
    let Some((posterior, methods)) = clouds.split_first() else { anyhow::bail!("no samples to draw") };
    let panels: Vec<Panel> = methods
        .iter()
        .map(|c| Panel {
            title: format!("{} (exact in grey)", c.name),
            clouds: vec![posterior.points.clone(), c.points.clone()],
            paths: vec![],
        })
        .collect();
    Ok(daps::plot::clouds(&panels, 3)?)
}
