//! A run: from a configuration to samples in a run directory, in batches, with checkpoints it can resume from.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Tensor};
use daps_core::real::{check_finite, combine};
use daps_core::{
    Address, Denoiser, Event, Gaussian, Likelihood, Method, Noise, Operator, Purpose, Row, Task,
};
use daps_priors::Analytic;

use crate::config::RunConfig;
use crate::prior::Model;
use crate::progress::Progress;
use crate::record::Record;
use crate::summary::Summary;
use crate::{Error, Result, load, prior, task};

/// A problem that is ready to run.
pub struct Run {
    pub(crate) config: RunConfig,
    pub(crate) prior: Arc<dyn Denoiser>,
    pub(crate) analytic: Option<Arc<dyn Analytic>>,
    pub(crate) method: Arc<dyn Method>,
    pub(crate) operator: Arc<dyn Operator>,
    pub(crate) likelihood: Arc<Gaussian>,
    pub(crate) truth: Option<Tensor>,
    /// What each measurement is called.
    pub(crate) names: Vec<String>,
    /// What each measurement's noise is addressed by.
    pub(crate) numbers: Vec<u64>,
    /// (measurement, chain) of every sample.
    pub(crate) rows: Vec<Row>,
    notes: Vec<String>,
}

/// How a run treats its directory.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Where everything is written.
    pub path: PathBuf,
    /// Go on from the checkpoint of a run that was interrupted.
    pub resume: bool,
    /// Time between checkpoints.
    pub checkpoint_every: Duration,
}

impl Run {
    /// Builds everything, checks that it fits together, and resolves the configuration; relative paths start at `base`.
    pub fn new(mut config: RunConfig, base: &Path) -> Result<Self> {
        config.check()?;
        // What is wrong with the method is said before any weight is read.
        let (method, settings) = config.method()?;
        daps_methods::registry::build(&method, &settings, &config.task.operator)?;
        daps_operators::registry::entry(&config.task.operator)?;
        let model = prior::build(&mut config.prior, &config.task.shape, base)?;
        Self::with(config, base, model, None)
    }

    /// The same with a prior that is built already, and with truths that are, where there are any.
    pub(crate) fn with(
        mut config: RunConfig,
        base: &Path,
        model: Model,
        truths: Option<&Truths>,
    ) -> Result<Self> {
        let name = config.task.operator.clone();
        let (method_name, settings) = config.method()?;
        let method = daps_methods::registry::build(&method_name, &settings, &name)?;
        let entry = daps_operators::registry::entry(&name)?;
        let Model { denoiser, analytic, mut notes } = model;
        let shape = denoiser.shape().to_vec();
        let mut options = (entry.defaults)(&shape);
        options.extend(config.task.options);
        let operator = (entry.build)(&options, &shape, config.seed)?;
        (config.task.shape, config.task.options) = (shape, options);
        config.method = daps_methods::registry::resolve(&method_name, &settings, &name)?;
        config.method.insert("name".into(), method_name.into());
        config.version = Some(env!("CARGO_PKG_VERSION").into());

        let measured = match truths {
            Some(truths) => measured(&config, &*operator, truths.clone())?,
            None => measure(&config, analytic.as_deref(), &*operator, base)?,
        };
        notes.extend(measured.notes);
        let y = measured.y.to_dtype(denoiser.dtype())?;
        let likelihood = Arc::new(Gaussian::new(operator.clone(), y, config.task.noise)?);
        let (truth, names, numbers) = (measured.truth, measured.names, measured.numbers);
        let rows = rows(names.len(), config.samples);
        let run = Self {
            config,
            prior: denoiser,
            analytic,
            method,
            operator,
            likelihood,
            truth,
            names,
            numbers,
            rows,
            notes,
        };
        run.method.check(&run.task(&[0])?)?;
        Ok(run)
    }

    /// What was done to the inputs, for people.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The configuration with everything spelled out.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The task of some rows.
    pub(crate) fn task(&self, rows: &[usize]) -> Result<Task> {
        let measurements: Vec<usize> = rows.iter().map(|&r| self.rows[r].measurement as usize).collect();
        Ok(Task::new(self.prior.clone(), self.likelihood.select(&measurements)?)?)
    }

    /// The noise of some rows.
    pub(crate) fn noise(&self, rows: &[usize]) -> Noise {
        Noise::new(self.config.seed, rows.iter().map(|&r| self.address(self.rows[r])).collect())
    }

    /// What a row's noise is addressed by.
    pub(crate) fn address(&self, row: Row) -> Row {
        Row { measurement: self.numbers[row.measurement as usize], ..row }
    }

    /// Runs to the end, or until asked to stop; then the directory holds a checkpoint.
    pub fn execute(&self, directory: &Directory, progress: &mut dyn Progress) -> Result<Summary> {
        let mut record = Record::open(self, directory)?;
        let all: Vec<usize> = (0..self.rows.len()).collect();
        let batches: Vec<&[usize]> = all.chunks(self.config.batch).collect();
        progress.begin(task::title(&self.config.task.operator), batches.len() * self.method.levels());
        let (first, mut from) = (record.batch(), record.take_state());
        (0..first * self.method.levels()).for_each(|_| _ = progress.step("done before"));
        for rows in batches.into_iter().skip(first) {
            if let Some(state) = &from {
                state.check(rows.len(), &self.config.task.shape, self.method.levels())?;
                (0..state.level).for_each(|_| _ = progress.step("done before"));
            }
            let (noise, task) = (self.noise(rows), self.task(rows)?);
            let mut failed = None;
            let mut watch = |event: &Event| {
                let Event::Level { step, .. } = event else { return ControlFlow::Continue(()) };
                let note = format!("level {} of {}, sigma {:.3}", step.index + 1, step.of, step.sigma);
                let stop = progress.step(&note);
                match record.level(rows, &*task.likelihood, event, stop.is_break()) {
                    Ok(()) => stop,
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            };
            let result = self.method.sample(&task, &noise, from.take(), &mut watch);
            if let Some(error) = failed {
                return Err(error);
            }
            record.batch_done(result?)?;
        }
        progress.end();
        record.finish()
    }
}

fn rows(measurements: usize, chains: usize) -> Vec<Row> {
    (0..measurements as u64)
        .flat_map(|measurement| (0..chains as u64).map(move |chain| Row { measurement, chain }))
        .collect()
}

/// Truths to be measured.
#[derive(Clone)]
pub(crate) struct Truths {
    /// `[n, shape…]` in f64.
    pub values: Tensor,
    /// What each is called.
    pub names: Vec<String>,
    /// What each one's noise is addressed by.
    pub numbers: Vec<u64>,
}

impl Truths {
    /// Some of them.
    pub fn select(&self, chosen: &[usize]) -> Result<Self> {
        let index: Vec<u32> = chosen.iter().map(|&i| i as u32).collect();
        let index = Tensor::new(index, &candle_core::Device::Cpu)?;
        Ok(Self {
            values: self.values.index_select(&index, 0)?,
            names: chosen.iter().map(|&i| self.names[i].clone()).collect(),
            numbers: chosen.iter().map(|&i| self.numbers[i]).collect(),
        })
    }
}

/// The truth, where it is known, and the measurement.
struct Measured {
    truth: Option<Tensor>,
    y: Tensor,
    names: Vec<String>,
    numbers: Vec<u64>,
    notes: Vec<String>,
}

fn measure(
    config: &RunConfig,
    analytic: Option<&dyn Analytic>,
    operator: &dyn Operator,
    base: &Path,
) -> Result<Measured> {
    let given = &config.task;
    if let Some(path) = &given.measurement {
        let path = base.join(path);
        let array = path.extension().is_some_and(|e| e == "npy" || e == "safetensors");
        if !array && path.exists() && !task::is_measured_as_picture(&given.operator) {
            let what =
                format!("a measurement of {} is no picture; give .npy or .safetensors", given.operator);
            return Err(Error::content(&path, what));
        }
        let load::Batch { values, names, notes } = load::batch(&path, operator.output_shape(), "y", false)?;
        check_finite("measurement", &values)?;
        let numbers = (0..names.len() as u64).collect();
        return Ok(Measured { truth: None, y: values, names, numbers, notes });
    }
    let (truth, names, notes) = match &given.truth {
        Some(path) => {
            let load::Batch { values, names, notes } =
                load::batch(&base.join(path), &given.shape, "truth", true)?;
            (values, names, notes)
        }
        None => {
            let Some(prior) = analytic else {
                let what =
                    "task: expected a truth or a measurement; only a closed-form prior can draw one itself";
                return Err(Error::Config(what.into()));
            };
            let numbers: Vec<u64> = (0..given.measurements as u64).collect();
            let noise = measurement_noise(config.seed, &numbers);
            let truth = prior.draw(&noise, Address::new(0, Purpose::Instance, 0))?;
            (truth, (0..given.measurements).map(|i| format!("draw-{i:03}")).collect(), vec![])
        }
    };
    let numbers = (0..names.len() as u64).collect();
    Ok(Measured { notes, ..measured(config, operator, Truths { values: truth, names, numbers })? })
}

/// Measures truths.
fn measured(config: &RunConfig, operator: &dyn Operator, truths: Truths) -> Result<Measured> {
    let Truths { values, names, numbers } = truths;
    check_finite("truth", &values)?;
    let noise = measurement_noise(config.seed, &numbers);
    let at = Address::new(0, Purpose::Measurement, 0);
    let z = noise.normal(at, operator.output_shape(), DType::F64)?;
    let y = combine(&[(&[1.0], &operator.apply(&values)?), (&[config.task.noise], &z)])?;
    Ok(Measured { truth: Some(values), y, names, numbers, notes: vec![] })
}

fn measurement_noise(seed: u64, numbers: &[u64]) -> Noise {
    Noise::new(seed, numbers.iter().map(|&measurement| Row { measurement, chain: 0 }).collect())
}
