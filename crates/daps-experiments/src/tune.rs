//! Search for a method's free parameters on a few images, task by task: random, or by successive halving.
//!
//! A trial is a method of an experiment and its cells are that experiment's cells, so a search that was killed goes on where it
//! was. Trial 0 has the defaults; the others are spread evenly over the declared ranges from a random start. Halving gives every
//! trial one image, the better half of them a second one, and so on until the last have all images.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use daps::progress::Progress;
use daps::{Error, Result, files};
use daps_core::{Address, Noise, Purpose, Row};
use daps_methods::Parameter;
use daps_methods::registry;
use serde::Serialize;

use crate::experiment::{
    Block, Cell, Experiment, ExperimentConfig, ExperimentTask, MethodEntry, Pair, Store,
};
use crate::tuned::{Tuned, resolved};

/// How trials are given images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Every trial sees all images.
    Random,
    /// The better half goes on.
    Halving,
}

impl Strategy {
    fn words(self) -> &'static str {
        match self {
            Self::Random => "all trials on all images",
            Self::Halving => "by halving",
        }
    }
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The largest PSNR.
    Psnr,
    /// The largest SSIM.
    Ssim,
    /// The smallest LPIPS.
    Lpips,
}

impl Metric {
    /// Larger is better.
    fn score(self, cell: &Cell) -> Option<f64> {
        match self {
            Self::Psnr => cell.psnr,
            Self::Ssim => cell.ssim,
            Self::Lpips => cell.lpips.map(|v| -v),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Psnr => "PSNR",
            Self::Ssim => "SSIM",
            Self::Lpips => "LPIPS",
        }
    }

    /// As a table shows it.
    fn shown(self, score: f64) -> f64 {
        if self == Self::Lpips { -score } else { score }
    }
}

/// A search.
#[derive(Clone, Debug)]
pub struct Search {
    /// Trials of a method that has free parameters, the defaults among them.
    pub trials: usize,
    /// How they are given images.
    pub strategy: Strategy,
    /// What is looked for.
    pub metric: Metric,
    /// Seed of the trials' parameters.
    pub seed: u64,
    /// Settings that stay as they are, by name: parameters in them are not searched.
    pub fixed: Vec<String>,
}

/// What was found for a task.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    /// The task's label.
    pub task: String,
    /// Why nothing was: the method does not fit.
    pub refusal: Option<String>,
    /// The best trial.
    pub trial: usize,
    /// Its parameters; none of the first, which has the settings as they are.
    pub parameters: BTreeMap<String, f64>,
    /// Its mean of the metric.
    pub score: Option<f64>,
    /// That of the defaults on the same images, where they came as far.
    pub default_score: Option<f64>,
}

/// Three digits are as many as a search can tell apart.
fn rounded(v: f64) -> f64 {
    format!("{v:.2e}").parse().unwrap_or(v)
}

/// The step of an additive recurrence whose points fill the cube of `dimensions` sides evenly however many they are: the powers
/// of 1/φ, where φ^(d+1) = φ + 1 (the golden ratio for d = 1).
fn even_step(dimensions: usize) -> Vec<f64> {
    let power = 1.0 / (dimensions as f64 + 1.0);
    let ratio = (0..64).fold(1.5f64, |x, _| (1.0 + x).powf(power));
    (1..=dimensions).map(|p| ratio.powi(-(p as i32))).collect()
}

/// One trial's parameters, none of the first: it has the settings as they are. A few points drawn apart from each other would
/// leave gaps, so only where the sequence begins is random.
fn draw(parameters: &[Parameter], trial: usize, seed: u64) -> Vec<f64> {
    if trial == 0 {
        return vec![];
    }
    let row = |p: usize| Row { measurement: 0, chain: p as u64 };
    let noise = Noise::new(seed, (0..parameters.len()).map(row).collect());
    let starts = noise.uniform(Address::new(0, Purpose::Instance, 0));
    let value =
        |((p, start), step): ((&Parameter, f64), f64)| rounded(p.at((start + trial as f64 * step).fract()));
    parameters.iter().zip(starts).zip(even_step(parameters.len())).map(value).collect()
}

/// "1 chain", "4 chains".
fn chains(n: usize) -> String {
    format!("{n} {}", if n == 1 { "chain" } else { "chains" })
}

/// What a trial is called in its experiment.
fn label(trial: usize) -> String {
    format!("trial-{trial:03}")
}

/// The head of the table of trials. Searches differ in what is free, so that parameters stand in one column.
const HEAD: &str = "task,trial,parameters,images,metric,score";

/// "std=0.3 lambda=2", in the table of trials.
fn joined<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> String {
    values.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// The table of trials with those that earlier searches in the directory made of other tasks.
fn kept_trials(before: &str, searched: &[&str]) -> String {
    let is_other = |line: &&str| searched.iter().all(|task| line.split(',').next() != Some(*task));
    let kept = before.lines().skip_while(|line| *line != HEAD).skip(1).filter(is_other);
    std::iter::once(HEAD).chain(kept).fold(String::new(), |text, line| text + line + "\n")
}

/// Trials still in the race, best first, with their scores.
type Race = Vec<(usize, Option<f64>)>;

impl Search {
    /// Searches for the parameters of the one method of `config` on its tasks and images; the directory gets the cells, all
    /// trials (`trials.csv`) and the best settings (`METHOD.toml`). Nothing if it was asked to stop.
    pub fn run(
        &self,
        config: ExperimentConfig,
        base: &Path,
        directory: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Option<Vec<Found>>> {
        let [method] = &config.methods[..] else {
            return Err(Error::Config("tune: expected one method".into()));
        };
        let (method, entry) = (method.clone(), registry::entry(&method.name)?);
        let is_free =
            |p: &&Parameter| self.fixed.iter().all(|f| p.name.split('.').next() != Some(f.as_str()));
        // Of some settings a parameter is none: an exact draw has no step size.
        let is_setting = |p: &&Parameter| {
            let mut settings = method.settings.clone();
            p.set(&mut settings, p.default);
            config.tasks().all(|task| resolved(&method.name, &settings, task).is_ok())
        };
        let parameters: Vec<Parameter> =
            entry.parameters.iter().filter(is_free).filter(is_setting).copied().collect();
        let trials = Trials { values: self.drawn(&parameters)?, parameters };
        let methods = trials.methods(&method);
        let config = ExperimentConfig { methods, baseline: None, plots: vec![], pictures: 0, ..config };
        let experiment = Experiment::open(config, base)?;
        if self.metric == Metric::Lpips && !experiment.has_lpips() {
            let what = "no trial has an LPIPS: its images need three colours, and its weights `daps weights get lpips`";
            return Err(Error::Config(format!("tune: {what}")));
        }
        let pairs = experiment.pairs()?;
        if let Some(refusal) =
            pairs.first().and_then(Pair::refused).filter(|_| pairs.iter().all(|p| p.refusal.is_some()))
        {
            return Err(Error::Config(format!("nothing to tune: {refusal}")));
        }
        let blocks = experiment.blocks(&pairs)?;
        let searched: Vec<&str> = experiment.config().tasks().map(|t| t.label.as_str()).collect();
        let store = Store::open(directory)?;
        let table = directory.join("trials.csv");
        let before = if table.exists() { files::read_text(&table)? } else { String::new() };
        let log = kept_trials(&before, &searched);
        let mut races = Races {
            search: self,
            experiment: &experiment,
            blocks: &blocks,
            trials: &trials,
            directory,
            store,
            log,
        };
        let mut found = Vec::new();
        for task in experiment.config().tasks() {
            let refusal = pairs.iter().find(|p| p.task.label == task.label).and_then(Pair::refused);
            if refusal.is_some() {
                found.push(Found { task: task.label.clone(), refusal, ..Found::default() });
                continue;
            }
            let Some(one) = races.task(task, progress)? else { return Ok(None) };
            found.push(one);
        }
        files::write(&table, races.log.as_bytes())?;
        self.write(&experiment, &method.name, &found, directory)?;
        Ok(Some(found))
    }

    /// The parameters of every trial; a method without any has one trial.
    fn drawn(&self, parameters: &[Parameter]) -> Result<Vec<Vec<f64>>> {
        if self.trials == 0 {
            return Err(Error::Config("trials: expected at least 1, got 0".into()));
        }
        let trials = if parameters.is_empty() { 1 } else { self.trials };
        Ok((0..trials).map(|t| draw(parameters, t, self.seed)).collect())
    }

    /// How many images a trial has seen after each round.
    fn rungs(&self, images: usize, trials: usize) -> Vec<usize> {
        let mut rungs: Vec<usize> = match self.strategy {
            Strategy::Halving if trials > 1 => {
                std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < images).collect()
            }
            _ => vec![],
        };
        rungs.push(images);
        rungs
    }

    /// The trials with their scores, best first; one that has failed cells is last, ties go to the earlier trial.
    fn ranked(&self, race: &Race, running: &[(&Block, usize)], store: &Store, images: usize) -> Race {
        let score = |t: usize| {
            let own = running.iter().filter(|(b, _)| b.pair.method.label == label(t));
            let keys = own.flat_map(|(b, n)| &b.keys[..*n]);
            let scores: Option<Vec<f64>> = keys.map(|k| self.metric.score(store.get(k)?)).collect();
            scores.filter(|s| !s.is_empty() && images > 0).map(|s| s.iter().sum::<f64>() / s.len() as f64)
        };
        let mut ranked: Race = race.iter().map(|(t, _)| (*t, score(*t))).collect();
        let value = |s: Option<f64>| s.unwrap_or(f64::NEG_INFINITY);
        ranked.sort_by(|a, b| value(b.1).total_cmp(&value(a.1)).then(a.0.cmp(&b.0)));
        ranked
    }

    /// The best settings of every task, spelled out, and how they were found; what an earlier search in the directory found for
    /// other tasks stays.
    fn write(&self, experiment: &Experiment, name: &str, found: &[Found], directory: &Path) -> Result<()> {
        let (config, path) = (experiment.config(), directory.join(format!("{name}.toml")));
        let mut tuned = match path.exists() {
            true => Tuned::read(&path)?,
            false => Tuned { name: name.to_owned(), found: BTreeMap::new(), tasks: BTreeMap::new() },
        };
        let (trials, metric, images) = (config.methods.len(), self.metric.name(), experiment.images());
        for (task, found) in config.tasks().zip(found).filter(|(_, f)| f.score.is_some()) {
            let settings = resolved(name, &config.methods[found.trial].settings, task)?;
            tuned.tasks.insert(task.operator.clone(), settings);
            let how = format!(
                "the best of {trials} trials by {metric} on {images} images with {} each, seed {}, {}; prior: {}",
                chains(task.samples.unwrap_or(config.samples)),
                self.seed,
                self.strategy.words(),
                experiment.prior_in_words()
            );
            tuned.found.insert(task.operator.clone(), how);
        }
        tuned.write(&path)
    }
}

/// The parameters of every trial.
struct Trials {
    parameters: Vec<Parameter>,
    values: Vec<Vec<f64>>,
}

impl Trials {
    /// Each as a method of an experiment.
    fn methods(&self, of: &MethodEntry) -> Vec<MethodEntry> {
        let one = |(t, values): (usize, &Vec<f64>)| {
            let mut one = MethodEntry { label: label(t), ..of.clone() };
            self.parameters.iter().zip(values).for_each(|(p, v)| p.set(&mut one.settings, *v));
            one
        };
        self.values.iter().enumerate().map(one).collect()
    }

    /// The parameters of one, by name.
    fn of(&self, trial: usize) -> impl Iterator<Item = (&'static str, f64)> {
        self.parameters.iter().map(|p| p.name).zip(self.values[trial].iter().copied())
    }
}

/// The trials of a search, task by task.
struct Races<'a> {
    search: &'a Search,
    experiment: &'a Experiment,
    blocks: &'a [Block<'a>],
    trials: &'a Trials,
    directory: &'a Path,
    store: Store,
    /// The table of trials.
    log: String,
}

impl Races<'_> {
    /// The best trial on a task; nothing if it was asked to stop.
    fn task(&mut self, task: &ExperimentTask, progress: &mut dyn Progress) -> Result<Option<Found>> {
        let (metric, trials) = (self.search.metric, self.trials.values.len());
        let own: Vec<&Block> = self.blocks.iter().filter(|b| b.pair.task.label == task.label).collect();
        let mut race: Race = (0..trials).map(|t| (t, None)).collect();
        for images in self.search.rungs(self.experiment.images(), trials) {
            let is_running = |b: &&&Block| race.iter().any(|(t, _)| b.pair.method.label == label(*t));
            let running: Vec<(&Block, usize)> = own.iter().filter(is_running).map(|b| (*b, images)).collect();
            if !self.experiment.fill(&running, &mut self.store, self.directory, progress)? {
                return Ok(None);
            }
            race = self.search.ranked(&race, &running, &self.store, images);
            for (t, score) in &race {
                let values = if *t == 0 { "defaults".into() } else { joined(self.trials.of(*t)) };
                let score = score.map(|s| metric.shown(s).to_string()).unwrap_or_default();
                let _ = writeln!(self.log, "{},{t},{values},{images},{},{score}", task.label, metric.name());
            }
            if images < self.experiment.images() {
                race.truncate(race.len().div_ceil(2));
            }
        }
        let (best, score) = race[0];
        let default = race.iter().find(|(t, _)| *t == 0).and_then(|(_, s)| *s);
        Ok(Some(Found {
            task: task.label.clone(),
            refusal: None,
            trial: best,
            parameters: self.trials.of(best).map(|(name, value)| (name.to_owned(), value)).collect(),
            score: score.map(|s| metric.shown(s)),
            default_score: default.map(|s| metric.shown(s)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_start_at_the_defaults_and_stay_in_range() {
        let entry = registry::entry("pnp_dm").unwrap();
        assert!(draw(entry.parameters, 0, 5).is_empty());
        for trial in 1..50 {
            let values = draw(entry.parameters, trial, 5);
            assert_eq!(values, draw(entry.parameters, trial, 5));
            for (p, v) in entry.parameters.iter().zip(&values) {
                assert!((p.range.0 * 0.99..=p.range.1 * 1.01).contains(v), "{}: {v}", p.name);
            }
        }
        assert_ne!(draw(entry.parameters, 1, 5), draw(entry.parameters, 2, 5));
        assert_ne!(draw(entry.parameters, 1, 5), draw(entry.parameters, 1, 6));
    }

    #[test]
    fn trials_leave_no_gaps() {
        let golden = 0.5 * (1.0 + 5f64.sqrt());
        assert!((even_step(1)[0] - 1.0 / golden).abs() < 1e-12);
        // Of two parameters the steps differ, or trials would lie on a line: 1/x and 1/x² of x³ = x + 1.
        let plastic = 1.324_717_957_244_746f64;
        let two = even_step(2);
        assert!((two[0] - 1.0 / plastic).abs() < 1e-9 && (two[1] - plastic.powi(-2)).abs() < 1e-9, "{two:?}");
        let lambda = [Parameter::linear("lambda", 0.5, 0.0, 1.0)];
        for seed in 0..20 {
            let mut values: Vec<f64> = (1..=8).map(|t| draw(&lambda, t, seed)[0]).collect();
            values.sort_by(f64::total_cmp);
            // Eight points of the golden sequence are at most 0.236 apart around the circle; those drawn apart often 0.35.
            assert!(values.windows(2).all(|w| w[1] - w[0] < 0.24), "{values:?}");
        }
    }

    #[test]
    fn a_smaller_lpips_is_better_and_shown_as_it_is() {
        let cell = |v: f64| Cell { psnr: Some(v), ssim: Some(v), lpips: Some(v), ..Cell::default() };
        let score = |metric: Metric, v| metric.score(&cell(v)).unwrap();
        for metric in [Metric::Psnr, Metric::Ssim, Metric::Lpips] {
            let (low, high) = (score(metric, 0.1), score(metric, 0.3));
            assert_eq!(low > high, metric == Metric::Lpips, "{}", metric.name());
            assert_eq!(metric.shown(low), 0.1, "{}", metric.name());
        }
    }

    #[test]
    fn halving_doubles_the_images() {
        let search = |strategy| Search { trials: 8, strategy, metric: Metric::Psnr, seed: 0, fixed: vec![] };
        assert_eq!(search(Strategy::Halving).rungs(4, 8), [1, 2, 4]);
        assert_eq!(search(Strategy::Halving).rungs(5, 8), [1, 2, 4, 5]);
        assert_eq!(search(Strategy::Halving).rungs(4, 1), [4]);
        assert_eq!(search(Strategy::Random).rungs(4, 8), [4]);
    }

    #[test]
    fn trials_of_other_tasks_stay_whatever_was_free() {
        let first = kept_trials("", &[]) + "hdr,0,std=0.3 lambda=2,4,PSNR,20.5\nblur,0,,4,SSIM,0.7\n";
        assert_eq!(kept_trials(&first, &[]), first);
        assert_eq!(kept_trials(&first, &["hdr"]), format!("{HEAD}\nblur,0,,4,SSIM,0.7\n"));
        assert_eq!(kept_trials("other,columns\nhdr,0\n", &[]), format!("{HEAD}\n"));
    }
}
