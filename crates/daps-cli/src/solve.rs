//! `daps solve`: an image and a task in, posterior samples and a report out.

use std::path::{Path, PathBuf};

use anyhow::bail;
use daps::core::NoiseModel;
use daps::methods::kernel::KERNELS;
use daps::methods::{DapsSettings, MethodConfig, PartialKernel, Preset};
use daps::operators::{FileParameter, entry};
use daps::priors::Memory;
use daps::{Answer, RunConfig, TaskConfig, bundled, prior, task};
use daps_experiments::experiment::Tuned;
use toml::{Table, Value};

use crate::Outcome;
use crate::run::{directory, execute, free_name};

#[derive(clap::Args)]
pub struct Args {
    /// The task: a name from `daps list tasks`, or any operator
    #[arg(long)]
    task: String,
    /// A clean image, or a folder of them. daps measures it first and compares the samples with it. If the prior works at any size,
    /// the samples have the image's size, and images of several sizes become a run of each
    #[arg(long, conflicts_with = "measurement", required_unless_present = "measurement")]
    image: Option<PathBuf>,
    /// A measurement: an image, .npy or .safetensors. No truth is needed
    #[arg(long)]
    measurement: Option<PathBuf>,
    /// The prior: a bundled one (faces, digits, binary-digits), a checkpoint, or a TOML file with a [prior] table
    #[arg(long, default_value = bundled::DEFAULT_PRIOR)]
    prior: String,
    /// The shape of a sample, such as 3,64,64 [default: the prior's own, or the input's if the prior works at any size]
    #[arg(long, value_delimiter = ',')]
    shape: Vec<usize>,
    /// The method [default: daps, or discrete_daps for a prior over tokens]
    #[arg(long)]
    method: Option<String>,
    /// A preset of DAPS, or a TOML file from `daps tune` for any method [default: best]
    #[arg(long)]
    preset: Option<String>,
    /// Denoiser calls per sample: a name from `daps list budgets`; fast and best take any number
    #[arg(long)]
    budget: Option<String>,
    /// The MCMC kernel that draws x0 given y. For a blur task, a file is the blur kernel (same as --kernel-file)
    #[arg(long, value_name = "NAME|FILE")]
    kernel: Option<String>,
    /// Posterior samples per image
    #[arg(long, default_value_t = task::SAMPLES)]
    samples: usize,
    /// The one answer to a measurement: a sample, or the mean of all samples
    #[arg(long, default_value_t = Answer::Sample, value_name = "sample|mean")]
    answer: Answer,
    /// Random seed [default: 0]
    #[arg(long)]
    seed: Option<u64>,
    /// The noise: a standard deviation for values in [-1, 1], or a model such as poisson:peak=30 (`daps list noise`)
    #[arg(long, default_value_t = NoiseModel::Level(task::NOISE), allow_negative_numbers = true)]
    noise: NoiseModel,
    /// Output directory [default: runs/TASK-NAME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Resume an interrupted run
    #[arg(long, requires = "out")]
    resume: bool,
    /// Samples per batch. It affects memory, not results
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Memory for the network, such as 512MB. Images that do not fit run as overlapping tiles
    #[arg(long, default_value_t = Memory::default(), value_name = "SIZE")]
    memory: Memory,
    /// Seconds between checkpoints
    #[arg(long, default_value_t = 10.0)]
    checkpoint_every: f64,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: Options,
}

/// Task settings. Defaults are the paper's values, scaled to the image size.
#[derive(clap::Args)]
#[command(next_help_heading = "Task options")]
struct Options {
    /// Super-resolution: the downsampling factor
    #[arg(long)]
    factor: Option<i64>,
    /// Random inpainting: the hidden fraction of the pixels [default: 0.7, or 0.5 for a prior over tokens]
    #[arg(long)]
    fraction: Option<f64>,
    /// Inpainting: the mask, as an image (white: seen, black: hidden) or as an array of ones and zeros
    #[arg(long)]
    mask: Option<PathBuf>,
    /// Side of the hidden box, or of the blur kernel
    #[arg(long)]
    size: Option<i64>,
    /// Gaussian blur: standard deviation in pixels
    #[arg(long)]
    std: Option<f64>,
    /// Motion and nonlinear blur: strength of the camera shake, from 0 to 1
    #[arg(long)]
    intensity: Option<f64>,
    /// Blur: the kernel, as an image or an array
    #[arg(long)]
    kernel_file: Option<PathBuf>,
    /// Phase retrieval: padding, in eighths of the side
    #[arg(long)]
    oversample: Option<f64>,
    /// HDR: the exposure
    #[arg(long)]
    scale: Option<f64>,
    /// Any other setting of the operator, as KEY=VALUE
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Options {
    /// The operator and its settings: a mask or a kernel from a file makes it the operator that takes one.
    fn resolve(&self, task: &str, kernel: Option<&Path>) -> anyhow::Result<(String, Table)> {
        let mut operator = operator_name(task);
        let mut table = Table::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                table.insert(key.into(), value);
            }
        };
        put("factor", self.factor.map(Value::from));
        put("fraction", self.fraction.map(Value::from));
        put("size", self.size.map(Value::from));
        put("std", self.std.map(Value::from));
        put("intensity", self.intensity.map(Value::from));
        put("oversample", self.oversample.map(Value::from));
        put("scale", self.scale.map(Value::from));
        let files = [("mask", self.mask.as_deref()), ("kernel", self.kernel_file.as_deref().or(kernel))];
        for (parameter, file) in files {
            let Some(file) = file else { continue };
            put(parameter, Some(Value::from(absolute(file)?.to_string_lossy().into_owned())));
            let other = entry(&operator)?.from_file.filter(|f| f.parameter == parameter);
            operator = other.map_or(operator, |f| f.operator.into());
        }
        table.extend(settings(&self.set)?);
        // Without a mask, a random one.
        let needed = entry(&operator)?;
        let is_missing = |f: &&FileParameter| f.required && !table.contains_key(f.name);
        match (needed.files.iter().find(is_missing), needed.without_file) {
            (Some(_), Some(drawing)) => operator = drawing.into(),
            (Some(file), None) => bail!("{operator} needs {}: {}", file.option, file.holds),
            (None, _) => {}
        }
        Ok((operator, table))
    }
}

/// Refuses to explain a measurement from elsewhere by a mask or a kernel that nobody measured with.
fn not_drawn(operator: &str, options: &Table) -> anyhow::Result<()> {
    let entry = entry(operator)?;
    let Some(what) = (entry.drawn)(options)? else { return Ok(()) };
    bail!(
        "{operator}: {what} would be random. Pass {}, or the --seed used to create the measurement",
        entry.supply
    )
}

fn operator_name(task: &str) -> String {
    task.trim().replace('-', "_")
}

/// A table from KEY=VALUE pairs; what is no TOML value is text.
pub fn settings(pairs: &[String]) -> anyhow::Result<Table> {
    let mut table = Table::new();
    for pair in pairs {
        let Some((key, value)) = pair.split_once('=') else {
            bail!("--set: expected KEY=VALUE, got '{pair}'");
        };
        let parsed = format!("v = {value}").parse::<Table>().ok().and_then(|mut t| t.remove("v"));
        table.insert(key.trim().into(), parsed.unwrap_or_else(|| Value::from(value)));
    }
    Ok(table)
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!("{}: no such file", path.display()),
        _ => anyhow::anyhow!("{}: {e}", path.display()),
    })
}

impl Args {
    /// The configuration that `daps run` would take.
    fn config(&self) -> anyhow::Result<RunConfig> {
        let blur_kernel = self.blur_kernel();
        if blur_kernel.is_some() && self.options.kernel_file.is_some() {
            bail!("--kernel and --kernel-file both name the blur kernel; leave one out");
        }
        let (operator, options) = self.options.resolve(&self.task, blur_kernel)?;
        if self.measurement.is_some() && self.seed.is_none() {
            not_drawn(&operator, &options)?;
        }
        let prior = prior::named(&self.prior)?;
        let kernel = self.kernel.as_deref().filter(|_| blur_kernel.is_none());
        let method = self.method(&operator, kernel)?;
        let task = TaskConfig {
            shape: self.shape.clone(),
            noise: self.noise.clone(),
            truth: self.image.as_deref().map(absolute).transpose()?,
            measurement: self.measurement.as_deref().map(absolute).transpose()?,
            options,
            ..TaskConfig::new(operator)
        };
        let (seed, samples, batch) = (self.seed.unwrap_or(0), self.samples, self.batch);
        let (memory, answer) = (self.memory, self.answer);
        let config =
            RunConfig { seed, samples, batch, memory, answer, ..RunConfig::new(task, prior, method) };
        config.check()?;
        Ok(config)
    }

    /// `--kernel`, where it is the file of a blur's kernel.
    fn blur_kernel(&self) -> Option<&Path> {
        let text = self.kernel.as_deref()?;
        let path = Path::new(text);
        let is_blur = entry(&operator_name(&self.task)).is_ok_and(|entry| entry.takes_file("kernel"));
        let is_name = KERNELS.iter().any(|k| k.name == text);
        (is_blur && !is_name && (path.extension().is_some() || path.is_file())).then_some(path)
    }

    fn method(&self, operator: &str, kernel: Option<&str>) -> anyhow::Result<MethodConfig> {
        if let Some(file) = self.preset.as_ref().filter(|p| p.ends_with(".toml")) {
            if self.method.is_some() || self.budget.is_some() || kernel.is_some() {
                bail!(
                    "--preset {file} sets the method and all its settings; leave out --method, --budget and --kernel"
                );
            }
            return Ok(Tuned::read(Path::new(file))?.method(operator)?);
        }
        let settings = DapsSettings {
            preset: self.preset.as_deref().map(Preset::named).transpose()?,
            budget: self.budget.clone(),
            kernel: kernel.map(PartialKernel::named),
            ..DapsSettings::default()
        };
        let ours = DapsSettings { preset: settings.preset.or(Some(Preset::Best)), ..settings.clone() };
        Ok(match self.method.as_deref() {
            // DAPS: the prior says over what.
            None => MethodConfig::Unnamed(ours),
            Some("daps") => MethodConfig::Unnamed(ours).over(false)?,
            Some("discrete_daps") => MethodConfig::Unnamed(ours).over(true)?,
            Some(other) if settings == DapsSettings::default() => MethodConfig::named(other)?,
            Some(other) => {
                MethodConfig::named(other)?;
                bail!("{other} has no presets, budgets or kernels; leave out --preset, --budget and --kernel")
            }
        })
    }

    /// `--out`, or a name that is free.
    fn out(&self) -> PathBuf {
        if let Some(out) = &self.out {
            return out.clone();
        }
        let input = self.image.as_ref().or(self.measurement.as_ref());
        let stem =
            input.and_then(|p| p.file_stem()).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        free_name(&format!("runs/{}-{stem}", operator_name(&self.task)))
    }
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let directory = directory(&args.out(), args.resume, args.checkpoint_every)?;
    execute(args.config()?, Path::new(""), &directory, args.json)
}
