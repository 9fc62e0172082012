//! `daps validate`: the mixture test bed, the Gaussian checks, rivals on a Gaussian prior, and enumerated discrete posteriors.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use daps::plot::Panel;
use daps::validate::gaussian::rivals::{self, Rival};
use daps::validate::gmm::{self, Cloud, Instance, Score, Summary};
use daps::validate::{discrete, gaussian};
use daps::{Error, files};

use crate::Outcome;
use crate::bar::Bar;
use crate::table::{say, table, tell};

#[derive(Subcommand)]
pub enum Command {
    /// Samplers on 25-component Gaussian mixtures with a linear measurement: sliced W1 to the exact posterior
    Gmm(GmmArgs),
    /// Kernels, presets and exact draws on a Gaussian prior, against closed forms; exit code 1 on a disagreement
    Gaussian(GaussianArgs),
    /// Every method with its default settings on a Gaussian prior: how far its means and variances are from the posterior's
    Rivals(RivalsArgs),
    /// The discrete loop on images so small that their posterior is a table; exit code 1 if the exact one is off
    Discrete(DiscreteArgs),
}

#[derive(clap::Args)]
pub struct GmmArgs {
    /// Dimension of x
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    dim: u32,
    /// Numbers measured
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    obs: u32,
    /// Random problems
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Samples per problem and method; with --instances: 1000 up to dimension 8, 300 above, unless given
    #[arg(long)]
    samples: Option<usize>,
    /// Annealing levels
    #[arg(long, default_value_t = 100)]
    levels: usize,
    /// Only these methods (may be repeated, or separated by commas); see `daps list gmm`
    #[arg(long, value_delimiter = ',')]
    method: Vec<String>,
    /// Run the problems of this JSON file instead of random ones, and compare with the scores recorded there
    #[arg(long, conflicts_with_all = ["dim", "obs", "seeds"])]
    instances: Option<PathBuf>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object per method and problem size
    #[arg(long)]
    json: bool,
    /// Write scores and a picture to this directory
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct GaussianArgs {
    /// Chains behind every moment
    #[arg(long, default_value_t = 20_000)]
    samples: usize,
    /// Credible intervals behind every coverage, at least
    #[arg(long, default_value_t = 5_600)]
    intervals: usize,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object per check
    #[arg(long)]
    json: bool,
    /// Write the results to this directory
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct RivalsArgs {
    /// Chains of every method
    #[arg(long, default_value_t = 2_000)]
    samples: usize,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object per method
    #[arg(long)]
    json: bool,
    /// Write the results to this directory
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct DiscreteArgs {
    /// Chains of every case
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
    /// Numbers of levels
    #[arg(long, value_delimiter = ',', default_value = "1,4,16", value_parser = clap::value_parser!(u64).range(1..))]
    levels: Vec<u64>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object per case
    #[arg(long)]
    json: bool,
}

fn run_discrete(args: &DiscreteArgs) -> anyhow::Result<Outcome> {
    let levels: Vec<usize> = args.levels.iter().map(|n| *n as usize).collect();
    let settings = discrete::Settings { samples: args.samples as usize, levels, seed: args.seed };
    let mut bar = Bar::new()?;
    let scores = discrete::run(&settings, &mut bar)?;
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    if args.json {
        for score in &scores {
            say(&serde_json::to_string(score)?);
        }
    } else {
        let rows: Vec<Vec<String>> = scores
            .chunks(settings.levels.len())
            .map(|group| {
                let distances = group.iter().map(|s| format!("{:.4}", s.distance));
                let head = [group[0].task.to_owned(), group[0].estimate.to_owned()];
                head.into_iter().chain(distances).chain([format!("{:.4}", group[0].chance)]).collect()
            })
            .collect();
        let counts: Vec<String> = settings.levels.iter().map(|n| format!("{n} levels")).collect();
        let mut heads = vec!["measurement", "p(x0 | x_t)"];
        heads.extend(counts.iter().map(String::as_str));
        heads.push("exact draws");
        say("total variation between samples and the enumerated posterior of 3x3 binary images");
        say(&table(&heads, &rows, 2));
    }
    let off: Vec<&discrete::Score> = scores.iter().filter(|s| !s.agrees()).collect();
    for s in &off {
        let (task, levels, distance, bound) = (s.task, s.levels, s.distance, s.bound);
        tell(&format!(
            "{task}, {levels} levels: the exact loop is off by {distance:.4}, chance allows {bound:.4}"
        ));
    }
    Ok(if off.is_empty() { Outcome::Done } else { Outcome::Disagreement })
}

pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Gmm(args) => run_gmm(args),
        Command::Gaussian(args) => run_gaussian(args),
        Command::Rivals(args) => run_rivals(args),
        Command::Discrete(args) => run_discrete(args),
    }
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

fn run_gmm(args: &GmmArgs) -> anyhow::Result<Outcome> {
    let instances = match &args.instances {
        Some(path) => read_instances(path)?,
        None => (0..args.seeds)
            .map(|seed| Instance::random(args.dim as usize, args.obs as usize, seed))
            .collect::<Result<_, Error>>()?,
    };
    let mut settings = gmm::Settings { levels: args.levels, seed: args.seed, ..gmm::Settings::default() };
    if !args.method.is_empty() {
        settings.methods.clone_from(&args.method);
    }
    if let Some(out) = &args.out {
        files::make_directory(out, false)?;
    }
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
    if args.json {
        for s in &summaries {
            say(&serde_json::to_string(s)?);
        }
    } else {
        say(&gmm_table(&summaries));
    }
    if let Some(out) = &args.out {
        let lines: Vec<String> = scores.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        files::write(&out.join("scores.jsonl"), (lines.join("\n") + "\n").as_bytes())?;
        files::write(&out.join("table.txt"), (gmm_table(&summaries) + "\n").as_bytes())?;
        files::write(&out.join("samples.svg"), gmm_picture(&clouds)?.as_bytes())?;
        tell(&format!("wrote scores.jsonl, table.txt and samples.svg to {}", out.display()));
    }
    Ok(Outcome::Done)
}

fn gmm_table(summaries: &[Summary]) -> String {
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

fn gmm_picture(clouds: &[Cloud]) -> anyhow::Result<String> {
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

fn run_gaussian(args: &GaussianArgs) -> anyhow::Result<Outcome> {
    if let Some(out) = &args.out {
        files::make_directory(out, false)?;
    }
    let mut bar = Bar::new()?;
    let settings = gaussian::Settings { samples: args.samples, intervals: args.intervals, seed: args.seed };
    let result = gaussian::run(settings, &mut bar);
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    let report = result?;
    let mut lines: Vec<String> = report.checks.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    for row in &report.coverage {
        lines.push(serde_json::to_string(row)?);
    }
    present(&lines, &gaussian_text(&report), args.json, args.out.as_deref())?;
    Ok(if report.passed() { Outcome::Done } else { Outcome::Disagreement })
}

/// Prints the objects or the table, and writes both where a directory was asked for.
fn present(objects: &[String], text: &str, json: bool, out: Option<&Path>) -> anyhow::Result<()> {
    let lines = objects.join("\n");
    say(if json { &lines } else { text });
    if let Some(out) = out {
        files::write(&out.join("results.jsonl"), (lines + "\n").as_bytes())?;
        files::write(&out.join("table.txt"), format!("{text}\n").as_bytes())?;
        tell(&format!("wrote results.jsonl and table.txt to {}", out.display()));
    }
    Ok(())
}

fn gaussian_text(report: &gaussian::Report) -> String {
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

fn run_rivals(args: &RivalsArgs) -> anyhow::Result<Outcome> {
    if let Some(out) = &args.out {
        files::make_directory(out, false)?;
    }
    let mut bar = Bar::new()?;
    let settings =
        gaussian::Settings { samples: args.samples, seed: args.seed, ..gaussian::Settings::default() };
    let result = rivals::run(settings, &mut bar);
    if bar.stopped() {
        return Ok(Outcome::Stopped);
    }
    let rivals = result?;
    let lines: Vec<String> = rivals.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    present(&lines, &rivals_text(&rivals), args.json, args.out.as_deref())?;
    Ok(Outcome::Done)
}

fn rivals_text(rivals: &[Rival]) -> String {
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
