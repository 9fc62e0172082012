//! A run: from a configuration to samples in a run directory, in batches, with checkpoints it can resume from.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};
use daps_core::real::{batched, check_finite, combine, to_f64};
use daps_core::{
    Address, Cost, Event, Gaussian, Likelihood, Method, Noise, Operator, Purpose, Row, Samples, State, Task,
};
use daps_priors::Analytic;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::RunConfig;
use crate::progress::Progress;
use crate::{Error, Result, files, picture};

/// A problem that is ready to run.
pub struct Run {
    config: RunConfig,
    prior: Arc<dyn Analytic>,
    method: Arc<dyn Method>,
    operator: Arc<dyn Operator>,
    likelihood: Arc<Gaussian>,
    truth: Option<Tensor>,
    /// (measurement, chain) of every sample.
    rows: Vec<Row>,
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

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Samples in all.
    pub samples: usize,
    /// Chains that diverged; they are in the files and left out of means and errors.
    pub diverged: usize,
    /// Denoiser calls per sample.
    pub nfe: usize,
    /// Operator calls per sample.
    pub operator_calls: usize,
    /// Mean over samples of ‖A(x) - y‖²/(m β²): 1 - (degrees of freedom spent)/m for posterior samples.
    pub residual_chi2: f64,
    /// RMS difference of the samples' mean and the truth, where the truth is known.
    pub rmse: Option<f64>,
    /// RMS over values of the samples' standard deviation.
    pub spread: f64,
    /// RMS difference of the samples' mean and the exact posterior mean, where that is known.
    pub mean_error: Option<f64>,
}

/// Progress within the run, kept with a checkpoint.
#[derive(Serialize, Deserialize)]
struct Mark {
    config: String,
    batch: usize,
    level: usize,
    diverged: Vec<bool>,
    cost: (usize, usize),
    done_diverged: Vec<bool>,
    done_cost: (usize, usize),
}

const CHECKPOINT: &str = "checkpoint.safetensors";

impl Run {
    /// Builds everything and checks that it fits together; relative paths start at `base`.
    pub fn new(config: RunConfig, base: &Path) -> Result<Self> {
        let task = &config.task;
        let (name, settings) = config.method()?;
        let method = daps_methods::registry::build(&name, &settings, &task.operator)?;
        let operator =
            daps_operators::registry::build(&task.operator, &task.options, &task.shape, config.seed)?;
        let prior = daps_priors::build(&config.prior, &task.shape, base)?;
        let (truth, y) = measure(&config, &*prior, &*operator, base)?;
        let measurements = y.dims()[0];
        let likelihood = Arc::new(Gaussian::new(operator.clone(), y, task.noise)?);
        let rows = (0..measurements as u64)
            .flat_map(|measurement| (0..config.samples as u64).map(move |chain| Row { measurement, chain }))
            .collect();
        let run = Self { prior, method, operator, likelihood, truth, rows, config };
        run.method.check(&run.task(&[0])?)?;
        Ok(run)
    }

    /// The task of some rows.
    fn task(&self, rows: &[usize]) -> Result<Task> {
        let measurements: Vec<usize> = rows.iter().map(|&r| self.rows[r].measurement as usize).collect();
        Ok(Task::new(self.prior.clone(), self.likelihood.select(&measurements)?)?)
    }

    /// Runs to the end, or until asked to stop; then the directory holds a checkpoint.
    pub fn execute(&self, directory: &Directory, progress: &mut dyn Progress) -> Result<Summary> {
        let mut record = Record::open(self, directory)?;
        let batches: Vec<Vec<usize>> = (0..self.rows.len())
            .collect::<Vec<_>>()
            .chunks(self.config.batch)
            .map(<[usize]>::to_vec)
            .collect();
        progress.begin(self.method.info().name, batches.len() * self.method.levels());
        let (first, mut from) = (record.batch, record.state.take());
        (0..first * self.method.levels()).for_each(|_| _ = progress.step("done before"));
        for rows in batches.iter().skip(first) {
            if let Some(state) = &from {
                state.check(rows.len(), &self.config.task.shape, self.method.levels())?;
                (0..state.level).for_each(|_| _ = progress.step("done before"));
            }
            let noise = Noise::new(self.config.seed, rows.iter().map(|&r| self.rows[r]).collect());
            let task = self.task(rows)?;
            let mut failed = None;
            let mut watch = |event: &Event| {
                let Event::Level { step, info, state, .. } = event else { return ControlFlow::Continue(()) };
                let note = format!("level {} of {}, sigma {:.3}", step.index + 1, step.of, step.sigma);
                let stop = progress.step(&note);
                match record.level(step, info, state, stop.is_break()) {
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

/// The truth, where it is known, and the measurement.
fn measure(
    config: &RunConfig,
    prior: &dyn Analytic,
    operator: &dyn Operator,
    base: &Path,
) -> Result<(Option<Tensor>, Tensor)> {
    let task = &config.task;
    if let Some(path) = &task.measurement {
        let path = base.join(path);
        let y = with_batch(daps_priors::read_array(&path, None)?, operator.output_shape(), &path)?;
        check_finite("measurement", &y)?;
        return Ok((None, y));
    }
    let truth = match &task.truth {
        Some(path) => {
            let path = base.join(path);
            with_batch(daps_priors::read_array(&path, None)?, &task.shape, &path)?
        }
        None => {
            let noise = measurement_noise(config.seed, task.measurements);
            prior.draw(&noise, Address::new(0, Purpose::Instance, 0))?
        }
    };
    check_finite("truth", &truth)?;
    let noise = measurement_noise(config.seed, truth.dims()[0]);
    let at = Address::new(0, Purpose::Measurement, 0);
    let z = noise.normal(at, operator.output_shape(), DType::F64)?;
    let y = combine(&[(&[1.0], &operator.apply(&truth)?), (&[task.noise], &z)])?;
    Ok((Some(truth), y))
}

fn measurement_noise(seed: u64, measurements: usize) -> Noise {
    Noise::new(seed, (0..measurements as u64).map(|measurement| Row { measurement, chain: 0 }).collect())
}

/// An array of one item or many, as a batch in f64.
fn with_batch(array: Tensor, shape: &[usize], path: &Path) -> Result<Tensor> {
    let array = array.to_dtype(DType::F64)?;
    let array = if array.dims() == shape { array.unsqueeze(0)? } else { array };
    if array.dims().is_empty() || &array.dims()[1..] != shape || array.dims()[0] == 0 {
        let expected = batched(1, shape);
        return Err(Error::content(
            path,
            format!("expected shape {shape:?} or {expected:?} with any first size, got {:?}", array.dims()),
        ));
    }
    Ok(array)
}

/// What a run writes down.
struct Record<'a> {
    run: &'a Run,
    directory: &'a Directory,
    config: String,
    batch: usize,
    state: Option<State>,
    done: Vec<Tensor>,
    done_diverged: Vec<bool>,
    cost: Cost,
    trace: Vec<String>,
    last: Instant,
}

impl<'a> Record<'a> {
    fn open(run: &'a Run, directory: &'a Directory) -> Result<Self> {
        let config = run.config.to_toml()?;
        let path = &directory.path;
        files::make_directory(path, directory.resume)?;
        let mut record = Self {
            run,
            directory,
            config,
            batch: 0,
            state: None,
            done: vec![],
            done_diverged: vec![],
            cost: Cost::default(),
            trace: vec![],
            last: Instant::now(),
        };
        if directory.resume && path.join("config.toml").exists() {
            if files::read_text(&path.join("config.toml"))? != record.config {
                let what = "holds a run of another configuration; resume it with its own config.toml";
                return Err(Error::content(path, what));
            }
            if path.join(CHECKPOINT).exists() {
                record.resume()?;
            }
        }
        files::write(&path.join("config.toml"), record.config.as_bytes())?;
        let mut tensors = vec![("y", run.likelihood.y())];
        tensors.extend(run.truth.as_ref().map(|t| ("truth", t)));
        files::write_tensors(&path.join("measurement.safetensors"), &tensors, HashMap::new())?;
        Ok(record)
    }

    fn resume(&mut self) -> Result<()> {
        let path = self.directory.path.join(CHECKPOINT);
        let (mut tensors, text) = files::read_tensors(&path)?;
        let mark = text.get("mark").ok_or_else(|| Error::content(&path, "not a checkpoint of a run"))?;
        let mark: Mark = serde_json::from_str(mark)
            .map_err(|e| Error::content(&path, format!("damaged checkpoint: {e}")))?;
        if mark.config != self.config {
            return Err(Error::content(&path, "belongs to another configuration"));
        }
        self.done.extend(tensors.remove("done"));
        self.batch = mark.batch;
        self.done_diverged = mark.done_diverged;
        self.cost = Cost { nfe: mark.done_cost.0, operator_calls: mark.done_cost.1 };
        if let Some(x_t) = tensors.remove("x_t") {
            let cost = Cost { nfe: mark.cost.0, operator_calls: mark.cost.1 };
            let memory = (0..).map_while(|i| tensors.remove(&format!("memory.{i}"))).collect();
            self.state = Some(State { level: mark.level, x_t, diverged: mark.diverged, cost, memory });
        }
        let kept = self.batch * self.run.method.levels() + mark.level;
        let trace = files::read_text(&self.directory.path.join("trace.jsonl"))?;
        self.trace = trace.lines().take(kept).map(str::to_owned).collect();
        Ok(())
    }

    fn level(
        &mut self,
        step: &daps_core::Step,
        info: &daps_core::ChainInfo,
        state: &State,
        stopping: bool,
    ) -> Result<()> {
        let acceptance = info.acceptance.as_ref().map(|a| a.iter().sum::<f64>() / a.len() as f64);
        let diverged = state.diverged.iter().filter(|d| **d).count();
        let line = json!({
            "batch": self.batch, "level": step.index, "sigma": step.sigma, "acceptance": acceptance,
            "diverged": diverged, "iterations": info.iterations,
            "nfe": state.cost.nfe, "operator_calls": state.cost.operator_calls,
        });
        self.trace.push(line.to_string());
        if stopping || self.last.elapsed() >= self.directory.checkpoint_every {
            self.checkpoint(Some(state))?;
        }
        Ok(())
    }

    fn checkpoint(&mut self, state: Option<&State>) -> Result<()> {
        let path = &self.directory.path;
        // The trace first: a checkpoint never refers to lines that are not there.
        files::write(&path.join("trace.jsonl"), (self.trace.join("\n") + "\n").as_bytes())?;
        let cost = state.map_or(Cost::default(), |s| s.cost);
        let mark = Mark {
            config: self.config.clone(),
            batch: self.batch,
            level: state.map_or(0, |s| s.level),
            diverged: state.map_or(vec![], |s| s.diverged.clone()),
            cost: (cost.nfe, cost.operator_calls),
            done_diverged: self.done_diverged.clone(),
            done_cost: (self.cost.nfe, self.cost.operator_calls),
        };
        let mark = serde_json::to_string(&mark).map_err(|e| Error::content(path, e))?;
        let done = if self.done.is_empty() { None } else { Some(Tensor::cat(&self.done, 0)?) };
        let mut tensors = vec![];
        tensors.extend(done.as_ref().map(|d| ("done", d)));
        tensors.extend(state.map(|s| ("x_t", &s.x_t)));
        let names: Vec<String> =
            (0..state.map_or(0, |s| s.memory.len())).map(|i| format!("memory.{i}")).collect();
        tensors.extend(names.iter().map(String::as_str).zip(state.iter().flat_map(|s| &s.memory)));
        files::write_tensors(&path.join(CHECKPOINT), &tensors, HashMap::from([("mark".into(), mark)]))?;
        self.last = Instant::now();
        Ok(())
    }

    fn batch_done(&mut self, samples: Samples) -> Result<()> {
        self.done.push(samples.x);
        self.done_diverged.extend(samples.diverged);
        self.cost = samples.cost;
        self.batch += 1;
        if self.done_diverged.len() < self.run.rows.len()
            && self.last.elapsed() >= self.directory.checkpoint_every
        {
            self.checkpoint(None)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Summary> {
        let (run, path) = (self.run, &self.directory.path);
        let samples = Tensor::cat(&self.done, 0)?;
        let statistics = Statistics::new(run, &samples, &self.done_diverged)?;
        let summary = statistics.summary(run, &samples, &self.done_diverged, self.cost)?;
        files::write(&path.join("trace.jsonl"), (self.trace.join("\n") + "\n").as_bytes())?;
        let shape = batched(run.truth_count(), &batched(run.config.samples, &run.config.task.shape));
        let tensors =
            [("samples", &samples.reshape(shape)?), ("mean", &statistics.mean), ("std", &statistics.std)];
        files::write_tensors(&path.join("samples.safetensors"), &tensors, HashMap::new())?;
        picture::write_run(
            path,
            run.truth.as_ref(),
            run.likelihood.y(),
            &samples,
            &statistics.mean,
            &statistics.std,
        )?;
        let metrics = serde_json::to_string_pretty(&summary).map_err(|e| Error::content(path, e))?;
        files::write(&path.join("metrics.json"), (metrics + "\n").as_bytes())?;
        // A run that was killed while it wrote a checkpoint leaves the unfinished one as well.
        for checkpoint in [path.join(CHECKPOINT), path.join(format!("{CHECKPOINT}.tmp"))] {
            if checkpoint.exists() {
                std::fs::remove_file(&checkpoint).map_err(Error::file(&checkpoint, "cannot remove"))?;
            }
        }
        Ok(summary)
    }
}

impl Run {
    fn truth_count(&self) -> usize {
        self.likelihood.y().dims()[0]
    }

    /// Exact posterior means, where prior and operator give them and the problem is small.
    fn posterior_means(&self) -> Option<Vec<f64>> {
        const SMALL: usize = 1024;
        let d: usize = self.config.task.shape.iter().product();
        if d > SMALL || self.operator.as_linear().is_none() {
            return None;
        }
        let mean = |row| self.prior.posterior(&*self.likelihood, row).ok()?.mean().ok();
        (0..self.truth_count()).map(mean).collect::<Option<Vec<_>>>().map(|m| m.concat())
    }
}

/// Mean and standard deviation of the samples of every measurement, without diverged chains.
struct Statistics {
    mean: Tensor,
    std: Tensor,
}

impl Statistics {
    fn new(run: &Run, samples: &Tensor, diverged: &[bool]) -> Result<Self> {
        let d: usize = run.config.task.shape.iter().product();
        let values = to_f64(samples)?;
        let (mut means, mut stds) = (Vec::new(), Vec::new());
        for (chains, lost) in values.chunks(d * run.config.samples).zip(diverged.chunks(run.config.samples)) {
            let kept: Vec<&[f64]> =
                chains.chunks(d).zip(lost).filter(|(_, l)| !**l).map(|(x, _)| x).collect();
            let n = kept.len() as f64;
            for k in 0..d {
                let mean = kept.iter().map(|x| x[k]).sum::<f64>() / n;
                means.push(mean);
                stds.push((kept.iter().map(|x| (x[k] - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt());
            }
        }
        let shape = batched(run.truth_count(), &run.config.task.shape);
        let tensor = |values| daps_core::real::from_f64(values, &shape, DType::F64);
        Ok(Self { mean: tensor(means)?, std: tensor(stds)? })
    }

    fn summary(&self, run: &Run, samples: &Tensor, diverged: &[bool], cost: Cost) -> Result<Summary> {
        let all: Vec<usize> = (0..run.rows.len()).collect();
        let log_prob = run.task(&all)?.likelihood.log_prob(samples)?;
        let kept: Vec<f64> = log_prob.iter().zip(diverged).filter(|(_, d)| !**d).map(|(l, _)| *l).collect();
        let m = run.operator.output_shape().iter().product::<usize>() as f64;
        let rms = |values: &[f64]| (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt();
        let mean = to_f64(&self.mean)?;
        let difference = |other: &[f64]| rms(&mean.iter().zip(other).map(|(a, b)| a - b).collect::<Vec<_>>());
        let truth = run.truth.as_ref().map(to_f64).transpose()?;
        Ok(Summary {
            samples: diverged.len(),
            diverged: diverged.iter().filter(|d| **d).count(),
            nfe: cost.nfe,
            operator_calls: cost.operator_calls,
            residual_chi2: -2.0 * kept.iter().sum::<f64>() / (kept.len() as f64 * m),
            rmse: truth.as_deref().map(difference),
            spread: rms(&to_f64(&self.std)?),
            mean_error: run.posterior_means().as_deref().map(difference),
        })
    }
}
