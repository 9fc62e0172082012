//! `daps list` and `daps explain`: what the registries hold.

use clap::ValueEnum;
use daps::core::{NOISE_MODELS, NoiseModel};
use daps::library::{Library, Place};
use daps::methods::kernel::KERNELS;
use daps::methods::registry::METHODS;
use daps::methods::{BUDGETS, Budget, Facts, PRESETS, Preset, Scale, TASKS, TaskSettings};
use daps::operators::registry::{Entry, OPERATORS};
use daps_experiments::validate::gmm;
use toml::Table;

use crate::Outcome;
use crate::table::{say, table};

#[derive(Clone, Copy, ValueEnum)]
enum What {
    Tasks,
    Operators,
    Kernels,
    Methods,
    Priors,
    Presets,
    Budgets,
    /// Noise models of a measurement
    Noise,
    /// Methods of the mixture test bed
    Gmm,
}

#[derive(clap::Args)]
pub struct ListArgs {
    /// What to list
    what: What,
}

#[derive(clap::Args)]
pub struct ExplainArgs {
    /// A name from `daps list`, or `train` for a training file with every key
    name: String,
}

pub fn list(args: &ListArgs) -> anyhow::Result<Outcome> {
    let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
    let two: Vec<Vec<String>> = match args.what {
        What::Operators => OPERATORS.iter().map(|o| row(o.name, o.summary)).collect(),
        What::Kernels => KERNELS.iter().map(|k| row(k.name, k.summary)).collect(),
        What::Methods => return methods(),
        What::Tasks => daps::task::all().map(|t| row(t.name, t.summary)).collect(),
        What::Priors => return priors(),
        What::Presets => PRESETS.iter().map(|p| row(p.name, p.summary)).collect(),
        What::Budgets => BUDGETS.iter().map(|b| row(b.name, &budget(b))).collect(),
        What::Noise => NOISE_MODELS
            .iter()
            .map(|m| row(m.name, &format!("{}; --noise {}", m.summary, m.example)))
            .collect(),
        What::Gmm => gmm::METHODS.iter().map(|m| row(m.name, m.summary)).collect(),
    };
    say(&table(&["name", "what it is"], &two, 2));
    Ok(Outcome::Done)
}

/// What a budget is spent on.
fn budget(budget: &Budget) -> String {
    format!("{} ODE steps x {} levels", budget.ode_steps, budget.levels)
}

/// Trained priors first, then the kinds that a configuration can have.
fn priors() -> anyhow::Result<Outcome> {
    let library = Library::standard()?;
    let trained = library.manifest().priors().map(|entry| {
        let found = where_found(&library.place(entry), &entry.name);
        vec![entry.name.clone(), entry.summary.clone(), entry.size(), entry.licence.clone(), found]
    });
    let dash = || "-".to_owned();
    let kinds = daps::priors::registry().iter().map(|kind| {
        vec![kind.name.to_owned(), kind.summary.to_owned(), dash(), dash(), "a kind of [prior] table".into()]
    });
    let rows: Vec<Vec<String>> = trained.chain(kinds).collect();
    say(&table(&["name", "what it is", "size", "licence", "where"], &rows, 5));
    Ok(Outcome::Done)
}

/// Where weights are, or how to get them.
fn where_found(place: &Place, name: &str) -> String {
    match place {
        Place::Embedded(_) => "built in".into(),
        Place::File(path) => path.display().to_string(),
        Place::Nowhere => format!("not installed: run daps weights get {name} [--from FILE]"),
    }
}

/// The matrix of methods and operators: a mark where the pair fits.
fn methods() -> anyhow::Result<Outcome> {
    let operators: Vec<&str> = OPERATORS.iter().map(|o| o.name).collect();
    let mut rows = Vec::new();
    for fit in daps::fit::matrix()? {
        let marks = fit.refusals.iter().map(|r| if r.is_none() { "yes" } else { "-" }.to_owned());
        rows.push(std::iter::once(fit.method.to_owned()).chain(marks).collect::<Vec<String>>());
    }
    let heads: Vec<&str> = std::iter::once("name").chain(operators).collect();
    say(&table(&heads, &rows, heads.len()));
    Ok(Outcome::Done)
}

pub fn explain(args: &ExplainArgs) -> anyhow::Result<Outcome> {
    let name = args.name.as_str();
    if name == "train" {
        say(crate::train::EXAMPLE.trim_end());
        return Ok(Outcome::Done);
    }
    let mut found = false;
    let mut heading = |kind: &str, summary: &str| {
        if found {
            say("");
        }
        found = true;
        say(&format!("{name} ({kind})\n  {summary}"));
    };
    if let Some(o) = OPERATORS.iter().find(|o| o.name == name) {
        heading("operator", o.summary);
        say(&settings(o)?);
        say(&steps(o)?);
    }
    if let Some(k) = KERNELS.iter().find(|k| k.name == name) {
        heading("kernel", k.summary);
        say(&format!("  default settings:\n{}", indent(&toml::to_string(&(k.default)())?)));
    }
    if let Some(m) = METHODS.iter().find(|m| m.name == name) {
        let info = m.example()?.build(&Facts::of_task("super_resolution")?)?.info();
        heading("method", info.summary);
        say(&format!("  paper: {}\n  example:\n{}", info.paper, indent(m.example.trim())));
        for p in m.parameters {
            let (low, high) = p.range;
            let scale = match p.scale {
                Scale::Linear => "linear",
                Scale::Log => "logarithmic",
                Scale::Count => "whole numbers, logarithmic",
            };
            say(&format!("  free parameter: {} = {}, {low} to {high}, {scale}", p.name, p.default));
        }
        if let Some(fit) = daps::fit::matrix()?.into_iter().find(|f| f.method == name) {
            for line in unfit(&fit) {
                say(&format!("  {line}"));
            }
        }
    }
    if let Some(m) = NOISE_MODELS.iter().find(|m| m.name == name) {
        heading("noise model", m.summary);
        say(&format!(
            "  for example: --noise {0}, in a TOML file: noise = {1}",
            m.example,
            quoted(m.example)
        ));
    }
    if let Some(kind) = daps::priors::registry().iter().find(|p| p.name == name) {
        heading("kind of prior", kind.summary);
        say(&format!("  for example, in a TOML file:\n    [prior]\n{}", indent(kind.example)));
    }
    let library = Library::standard()?;
    if let Some(entry) = library.manifest().priors().find(|entry| entry.name == name) {
        heading("prior", &entry.summary);
        let (space, size, licence) = (&entry.space, entry.size(), &entry.licence);
        let found = where_found(&library.place(entry), name);
        say(&format!("  over:    {space}\n  size:    {size}\n  licence: {licence}\n  where:   {found}"));
        say(&format!(
            "  for example, in a TOML file:\n    [prior]\n    kind = \"network\"\n    name = \"{name}\""
        ));
    }
    if let Some(t) = daps::task::all().find(|t| t.name == name) {
        heading("task", t.summary);
    }
    if let Some(p) = PRESETS.iter().find(|p| p.name == name) {
        heading("preset", p.summary);
        let daps = p.preset.settings_by(&Facts::of_task("super_resolution")?, None, None)?;
        say(&format!("  for super_resolution:\n{}", indent(&toml::to_string(&daps)?)));
        say(&format!("  {}", beyond(p.preset)));
    }
    if let Some(b) = BUDGETS.iter().find(|b| b.name == name) {
        heading("budget", &budget(b));
    }
    if let Some(m) = gmm::METHODS.iter().find(|m| m.name == name) {
        heading("method of the mixture test bed", m.summary);
    }
    if found {
        return Ok(Outcome::Done);
    }
    let lists = What::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let lists: Vec<String> = lists.map(|list| list.get_name().to_owned()).collect();
    let near = daps::core::suggestion(name, &known(&library));
    anyhow::bail!("unknown name '{name}'; see: daps list {}, daps explain train{near}", lists.join("|"))
}

/// Every name that can be explained.
fn known(library: &Library) -> Vec<&str> {
    let mut known = vec!["train"];
    known.extend(OPERATORS.iter().map(|o| o.name));
    known.extend(KERNELS.iter().map(|k| k.name));
    known.extend(METHODS.iter().map(|m| m.name));
    known.extend(NOISE_MODELS.iter().map(|m| m.name));
    known.extend(daps::priors::registry().iter().map(|kind| kind.name));
    known.extend(library.manifest().priors().map(|entry| entry.name.as_str()));
    known.extend(daps::task::all().map(|t| t.name));
    known.extend(PRESETS.iter().map(|p| p.name));
    known.extend(BUDGETS.iter().map(|b| b.name));
    known.extend(gmm::METHODS.iter().map(|m| m.name));
    known
}

/// A setting as a TOML file has it: a number as it is, anything else in quotes.
fn quoted(setting: &str) -> String {
    match setting.parse::<f64>() {
        Ok(_) => setting.to_owned(),
        Err(_) => format!("\"{setting}\""),
    }
}

/// What a preset does with measurements beyond the example.
fn beyond(preset: Preset) -> String {
    if preset.is_ours() {
        let exact = "exact draws where the operator is linear and the noise Gaussian";
        return format!("{exact}; dynamics (kernel underdamped), with steps from the curvature, elsewhere");
    }
    let tuned: Vec<&str> =
        TASKS.iter().flat_map(|t| std::iter::once(t.task).chain(t.also.iter().copied())).collect();
    format!("tuned steps for {}; any other operator gets steps from its curvature", tuned.join(", "))
}

/// The steps that the preset paper takes with an operator.
fn steps(operator: &Entry) -> anyhow::Result<String> {
    let facts = daps::fit::facts(operator.name, &NoiseModel::Level(daps::task::NOISE))?;
    if !facts.is_smooth {
        return Ok("  no derivative: kernels that follow a gradient do not fit".into());
    }
    let from = match TaskSettings::of(operator.name) {
        Some(row) if row.task == operator.name => "tuned by its authors".to_owned(),
        Some(row) => format!("those of {}", row.task),
        None => "its steps follow from the operator's curvature".to_owned(),
    };
    let mut text = vec![];
    for kernel in ["langevin", "hmc"] {
        let kernel_settings = Preset::Paper.daps(&facts, None, kernel)?.kernel;
        let settings = indent(&toml::to_string(&kernel_settings)?);
        text.push(format!("  {kernel} of the preset paper ({from}):\n{settings}"));
    }
    Ok(text.join("\n"))
}

/// One line for everything that a method needs, with the operators that lack it.
fn unfit(fit: &daps::fit::Fit) -> Vec<String> {
    let mut lines: Vec<(&str, Vec<&str>)> = vec![];
    for (operator, refusal) in OPERATORS.iter().zip(&fit.refusals) {
        let Some(refusal) = refusal else { continue };
        // "method needs something; who has none": who lacks it is said once for all of them.
        let needs = refusal.split(';').next().unwrap_or(refusal);
        match lines.iter_mut().find(|line| line.0 == needs) {
            Some((_, operators)) => operators.push(operator.name),
            None => lines.push((needs, vec![operator.name])),
        }
    }
    lines
        .into_iter()
        .map(|(needs, operators)| format!("{needs}; does not fit {}", operators.join(", ")))
        .collect()
}

/// The settings of an operator with their defaults, which may depend on the image's side; what has none is a file.
fn settings(operator: &Entry) -> anyhow::Result<String> {
    // Those of the paper work on colour pictures, others on one channel or on shapes that their defaults do not look at.
    let channels = if daps::task::TASKS.iter().any(|t| t.name == operator.name) { 3 } else { 1 };
    let required = operator.files.iter().filter(|f| f.required);
    let files: Table = required.map(|f| (f.name.to_owned(), "FILE".into())).collect();
    let at = |side: usize| -> anyhow::Result<String> {
        let settings = (operator.complete)(&files, &[channels, side, side])?;
        Ok(indent(&toml::to_string(&settings)?))
    };
    let (small, large) = (at(64)?, at(256)?);
    let mut text = match small.is_empty() {
        true => "  no settings".to_owned(),
        false if small == large => format!("  default settings:\n{small}"),
        false => format!("  default settings at 64x64:\n{small}\n  at 256x256:\n{large}"),
    };
    for file in operator.files {
        let instead = if file.required { "" } else { ", instead of drawing it" };
        text += &format!("\n  {} = FILE: {}{instead}", file.name, file.holds);
    }
    if let Some(what) = (operator.drawn)(&files)? {
        text += &format!("\n  from the seed: {what}");
    }
    Ok(text)
}

fn indent(text: &str) -> String {
    text.trim_end().lines().map(|l| format!("    {l}")).collect::<Vec<_>>().join("\n")
}
