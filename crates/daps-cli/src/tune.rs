//! `daps tune`: a search for a method's free parameters.

use std::path::PathBuf;

use daps::priors::training::Fit;
use daps::report::number;
use daps::{bundled, task};
use daps_experiments::experiment::{
    ExperimentConfig, ExperimentTask, MethodEntry, PriorEntry, Source, TaskEntry,
};
use daps_experiments::tune::{Found, Metric, Search, Strategy};

use crate::Outcome;
use crate::bar::Bar;
use crate::solve::settings;
use crate::table::{say, table, tell};

#[derive(clap::Args)]
pub struct Args {
    /// The method to tune
    method: String,
    /// A task (repeatable) [default: the tasks of the paper's table]
    #[arg(long = "task")]
    tasks: Vec<String>,
    /// Number of trials; the first uses the defaults
    #[arg(long, default_value_t = 16)]
    trials: usize,
    /// Successive halving: start with one image each, keep the better half
    #[arg(long)]
    halving: bool,
    /// The metric to optimise
    #[arg(long, value_enum, default_value_t = By::Psnr)]
    metric: By,
    /// The prior: a bundled one (faces, digits, binary-digits), a checkpoint, or a TOML file with a [prior] table
    #[arg(long, default_value = bundled::DEFAULT_PRIOR)]
    prior: String,
    /// The shape of a sample, such as 3,64,64, if the prior has no fixed shape
    #[arg(long, value_delimiter = ',')]
    shape: Vec<usize>,
    /// The images: a folder, a tar, an IDX or .npy file, or "bundled" (a few faces, or digits for a grey prior)
    #[arg(long)]
    data: PathBuf,
    /// Number of images, taken from the end of the sorted names
    #[arg(long, default_value_t = 4)]
    images: usize,
    /// How to fit images of another size: crop and resize, or pad with black [default: crop, or pad for tokens]
    #[arg(long, value_enum)]
    fit: Option<How>,
    /// Chains per image
    #[arg(long, default_value_t = 1)]
    samples: usize,
    /// Chains per batch. It affects memory, not results
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Random seed of masks, noise, chains and trials
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A fixed setting of the method, as KEY=VALUE; it is not searched
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Output directory. Finished cells are not run again [default: runs/tune-METHOD]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum How {
    Crop,
    Pad,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum By {
    Psnr,
    Ssim,
    Lpips,
}

impl Args {
    /// The experiment whose one method is tuned.
    fn config(&self) -> anyhow::Result<ExperimentConfig> {
        let prior = daps::prior::named(&self.prior)?;
        let discrete = daps::prior::open(&prior, std::path::Path::new(""))?.is_discrete();
        let usual = if discrete { task::DISCRETE } else { task::TASKS };
        let names: Vec<String> = match self.tasks.is_empty() {
            true => usual.iter().map(|t| t.name.to_owned()).collect(),
            false => self.tasks.iter().map(|t| t.replace('-', "_")).collect(),
        };
        let task = |operator: String| TaskEntry::Task(ExperimentTask::new(operator));
        let bundled = self.data.as_os_str() == daps_experiments::experiment::BUNDLED;
        let config = ExperimentConfig {
            name: format!("tune-{}", self.method),
            title: format!("The free parameters of {}", self.method),
            about: String::new(),
            hours: None,
            prior: PriorEntry::Settings(prior),
            shape: self.shape.clone(),
            seeds: vec![self.seed],
            samples: self.samples,
            batch: self.batch,
            pictures: 0,
            half_turns: false,
            levels: false,
            baseline: None,
            paper: None,
            tasks: names.into_iter().map(task).collect(),
            data: Source {
                source: if bundled { self.data.clone() } else { std::path::absolute(&self.data)? },
                held_out: Some(self.images),
                labels: None,
                skip: 0,
                images: self.images,
                fit: match self.fit {
                    Some(How::Crop) => Fit::Crop,
                    Some(How::Pad) => Fit::Pad,
                    None if discrete => Fit::Pad,
                    None => Fit::Crop,
                },
            },
            methods: vec![MethodEntry::new(&self.method, settings(&self.set)?)],
            plots: vec![],
        };
        config.check()?;
        Ok(config)
    }
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let search = Search {
        fixed: settings(&args.set)?.into_iter().map(|(key, _)| key).collect(),
        trials: args.trials,
        strategy: if args.halving { Strategy::Halving } else { Strategy::Random },
        metric: match args.metric {
            By::Psnr => Metric::Psnr,
            By::Ssim => Metric::Ssim,
            By::Lpips => Metric::Lpips,
        },
        seed: args.seed,
    };
    let out = args.out.clone().unwrap_or_else(|| format!("runs/tune-{}", args.method).into());
    let mut bar = Bar::new()?;
    let Some(found) = search.run(args.config()?, std::path::Path::new(""), &out, &mut bar)? else {
        tell("stopped; rerun the command to resume");
        return Ok(Outcome::Stopped);
    };
    if args.json {
        say(&serde_json::to_string(&found)?);
        return Ok(Outcome::Done);
    }
    let row = |f: &Found| {
        let values: Vec<String> = f.parameters.iter().map(|(k, v)| format!("{k} = {v}")).collect();
        let values = if values.is_empty() { "the defaults".into() } else { values.join(", ") };
        let parameters = f.refusal.clone().unwrap_or(values);
        vec![f.task.clone(), number(f.score, 3), number(f.default_score, 3), parameters]
    };
    say(&table(&["task", "best", "defaults", "parameters"], &found.iter().map(row).collect::<Vec<_>>(), 1));
    say(&format!("the settings: {}", out.join(format!("{}.toml", args.method)).display()));
    Ok(Outcome::Done)
}
