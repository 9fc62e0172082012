//! A run: from a configuration to samples in a run directory, in batches, with checkpoints it can resume from.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use candle_core::Tensor;
use daps_core::real::pick;
use daps_core::{
    Denoiser, Event, Gaussian, Likelihood, LocalLikelihood, Method, Mismatch, Model, Noise, Operator, Row,
    Task,
};
use daps_priors::Analytic;

use crate::config::RunConfig;
use crate::inputs::{by_content, prior_by_content};
use crate::measure::{Truths, measure, measured, only_visible};
use crate::prior::Built;
use crate::progress::Progress;
use crate::record::Record;
use crate::summary::Summary;
use crate::{Error, Result, files, prior, task, tokens};

/// Chains of a run: their samples are in memory at its end.
const MOST_CHAINS: usize = 100_000;

/// A problem that is ready to run.
pub struct Run {
    pub(crate) config: RunConfig,
    pub(crate) model: Model,
    pub(crate) analytic: Option<Arc<dyn Analytic>>,
    pub(crate) method: Arc<dyn Method>,
    pub(crate) operator: Arc<dyn Operator>,
    /// Measurements, `[n, output shape…]`.
    pub(crate) y: Tensor,
    pub(crate) likelihood: Arc<dyn Likelihood>,
    /// Pictures' values, of tokens too.
    pub(crate) truth: Option<Tensor>,
    /// What each measurement is called.
    pub(crate) names: Vec<String>,
    /// What each measurement's noise is addressed by.
    pub(crate) numbers: Vec<u64>,
    /// (measurement, chain) of every sample.
    pub(crate) rows: Vec<Row>,
    /// What people call the prior, with the digest of its weights.
    pub(crate) prior: String,
    /// What the prior's file says beside its tensors, as a digest.
    about: String,
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
        check_chains(config.samples, config.task.measurements)?;
        config.settle(base)?;
        // What is wrong with the method is said before any weight is read.
        let source = prior::open(&config.prior, base)?;
        let (method, settings) = config.method(source.is_discrete())?;
        daps_methods::registry::build(&method, &settings, &config.task.operator)?;
        daps_operators::registry::entry(&config.task.operator)?;
        let prior = source.build(&config.task.shape)?;
        config.prior.complete(&prior);
        Self::with(config, base, prior, None)
    }

    /// The same with a prior that is built already, and with truths that are, where there are any.
    pub(crate) fn with(
        mut config: RunConfig,
        base: &Path,
        prior: Built,
        truths: Option<&Truths>,
    ) -> Result<Self> {
        let name = config.task.operator.clone();
        let (method_name, settings) = config.method(matches!(prior.model, Model::Tokens(_)))?;
        let method = daps_methods::registry::build(&method_name, &settings, &name)?;
        let entry = daps_operators::registry::entry(&name)?;
        let title = prior.title();
        let Built { model, analytic, mut notes, about, .. } = prior;
        let shape = model.shape().to_vec();
        let mut options = match model {
            Model::Tokens(_) => task::discrete_options(&name),
            Model::Denoiser(_) => toml::Table::new(),
        };
        options.extend(config.task.options);
        let options = (entry.complete)(&options, &shape)?;
        let operator = (entry.build)(&options, &shape, config.seed)?;
        if matches!(model, Model::Tokens(_)) && operator.as_local().is_none() {
            let what = daps_core::Error::missing("a prior over tokens", "a measurement of tokens", &name);
            return Err(what.into());
        }
        (config.task.shape, config.task.options) = (shape, options);
        config.method = daps_methods::registry::resolve(&method_name, &settings, &name)?;
        config.method.insert("name".into(), method_name.into());
        config.version = Some(env!("CARGO_PKG_VERSION").into());

        let measured = match truths {
            Some(truths) => measured(&config, &model, &*operator, truths.clone())?,
            None => measure(&config, &model, analytic.as_deref(), &*operator, base)?,
        };
        notes.extend(measured.notes);
        if let Some(what) = (entry.drawn)(&config.task.options)?.filter(|_| config.task.measurement.is_some())
        {
            let seed = config.seed;
            notes.push(format!(
                "{name}: {what} drawn from seed {seed}, as if the measurement had been made so here"
            ));
        }
        let (y, beta) = (measured.y, config.task.noise);
        let (y, likelihood): (_, Arc<dyn Likelihood>) = match &model {
            Model::Denoiser(denoiser) => {
                let y = only_visible(&y.to_dtype(denoiser.dtype())?, &*operator)?;
                (y.clone(), Arc::new(Gaussian::new(operator.clone(), y, beta)?))
            }
            Model::Tokens(_) => {
                let likelihood = Mismatch::new(operator.clone(), &y, beta)?;
                (y, Arc::new(likelihood))
            }
        };
        let (truth, names, numbers) = (measured.truth, measured.names, measured.numbers);
        check_chains(config.samples, names.len())?;
        let rows = rows(names.len(), config.samples);
        let run = Self {
            config,
            model,
            analytic,
            method,
            operator,
            y,
            likelihood,
            truth,
            names,
            numbers,
            rows,
            prior: title,
            about,
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

    /// What people call the prior, with the digest of its weights.
    #[must_use]
    pub fn prior(&self) -> &str {
        &self.prior
    }

    /// The configuration with everything spelled out.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// A digest of what the run depends on beside its configuration's text and its measurement: what is in the files that the
    /// operator's and the prior's settings name.
    pub(crate) fn inputs(&self) -> Result<String> {
        let options = by_content(&self.config.task.options)?;
        let prior = prior_by_content(&self.config.prior)?.to_table()?;
        Ok(files::sha256(format!("{options}\n{prior}\n{}\n", self.about)))
    }

    /// The task of some rows.
    pub(crate) fn task(&self, rows: &[usize]) -> Result<Task> {
        let measurements: Vec<usize> = rows.iter().map(|&r| self.rows[r].measurement as usize).collect();
        let likelihood = self.likelihood.select(&measurements)?;
        Ok(match &self.model {
            Model::Denoiser(model) => Task::new(model.clone(), likelihood)?,
            Model::Tokens(model) => Task::discrete(model.clone(), likelihood)?,
        })
    }

    /// The denoiser that `who` needs.
    pub(crate) fn denoiser(&self, who: &str) -> Result<&Arc<dyn Denoiser>> {
        match &self.model {
            Model::Denoiser(model) => Ok(model),
            Model::Tokens(_) => {
                Err(daps_core::Error::missing(who, "a denoiser", "a prior over tokens").into())
            }
        }
    }

    /// Whether samples are tokens.
    pub(crate) fn is_discrete(&self) -> bool {
        matches!(self.model, Model::Tokens(_))
    }

    /// Samples as pictures' values, from -1 to 1.
    pub(crate) fn values(&self, x: &Tensor) -> Result<Tensor> {
        match &self.model {
            Model::Denoiser(_) => Ok(x.clone()),
            Model::Tokens(model) => tokens::values(x, model.corruption().symbols()),
        }
    }

    /// Pictures' values as samples.
    pub(crate) fn tokens(&self, values: &Tensor) -> Result<Tensor> {
        match &self.model {
            Model::Denoiser(_) => Ok(values.clone()),
            Model::Tokens(model) => Ok(tokens::tokens(values, model.corruption().symbols())?.0),
        }
    }

    /// ‖A(x) - y‖²/(m β²) of every row, where m numbers were measured; of tokens, each wrong one counts 1.
    pub(crate) fn chi2(&self, likelihood: &dyn Likelihood, x: &Tensor) -> Result<Vec<f64>> {
        let (m, factor) = match (likelihood.as_gaussian(), likelihood.as_local()) {
            (Some(gaussian), _) => (gaussian.measured(), -2.0),
            // Of this likelihood's own rows, which are some of the run's.
            (None, Some(local)) => ((0..x.dims()[0]).map(|row| tokens_seen(local, row)).collect(), -1.0),
            (None, None) => (vec![self.measured(0)], -1.0),
        };
        let each = likelihood.log_prob(x)?.into_iter().enumerate();
        Ok(each.map(|(row, l)| factor * l / pick(&m, row).max(1) as f64).collect())
    }

    /// How many numbers or tokens of a measurement say something of x.
    pub(crate) fn measured(&self, measurement: usize) -> usize {
        match (self.likelihood.as_gaussian(), self.likelihood.as_local()) {
            (Some(gaussian), _) => pick(&gaussian.measured(), measurement),
            (None, Some(local)) => tokens_seen(local, measurement),
            (None, None) => self.operator.output_shape().iter().product(),
        }
    }

    /// The noise of some rows.
    pub(crate) fn noise(&self, rows: &[usize]) -> Noise {
        Noise::new(self.config.seed, rows.iter().map(|&r| self.address(self.rows[r])).collect())
    }

    /// What a row's noise is addressed by.
    pub(crate) fn address(&self, row: Row) -> Row {
        Row { measurement: self.numbers[row.measurement as usize], ..row }
    }

    /// Runs to the end, or until asked to stop; then the directory holds a checkpoint. A finished run is only read back.
    pub fn execute(&self, directory: &Directory, progress: &mut dyn Progress) -> Result<Summary> {
        let mut record = Record::open(self, directory)?;
        if let Some(summary) = record.finished()? {
            progress.note("already done; nothing is sampled again");
            return Ok(summary);
        }
        let all: Vec<usize> = (0..self.rows.len()).collect();
        let batches: Vec<&[usize]> = all.chunks(self.config.batch).collect();
        progress.begin(task::title(&self.config.task.operator), batches.len() * self.method.levels());
        let (first, mut from) = (record.batch(), record.take_state());
        progress.skip(first * self.method.levels());
        let (mut lost, last) = (None, batches.len());
        for rows in batches.into_iter().skip(first) {
            if let Some(state) = &from {
                state.check(rows.len(), &self.config.task.shape, self.method.levels())?;
                progress.skip(state.level);
            }
            let (noise, task) = (self.noise(rows), self.task(rows)?);
            let (mut failed, mut stopped) = (None, false);
            let mut watch = |event: &Event| {
                let Event::Level { step, .. } = event else { return ControlFlow::Continue(()) };
                let note = format!("level {} of {}, sigma {:.3}", step.index + 1, step.of, step.sigma);
                let stop = progress.step(&note);
                stopped |= stop.is_break();
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
            match result {
                // The other batches may fare better, as they would in one batch with these rows.
                Err(
                    error @ (daps_core::Error::AllDiverged { .. } | daps_core::Error::NotConverged { .. }),
                ) => {
                    lost = Some(error);
                    record.batch_lost(rows.len())?;
                }
                result => record.batch_done(result?)?,
            }
            // A method hears nothing after its last level, of which some have but one.
            let of = self.method.levels();
            if stopped && record.batch() < last {
                return Err(daps_core::Error::Cancelled { level: of, of }.into());
            }
        }
        if let Some(error) = lost.filter(|_| record.all_diverged()) {
            return Err(error.into());
        }
        progress.end();
        record.finish()
    }
}

/// How many measured tokens of a likelihood's row say something of x.
fn tokens_seen(likelihood: &dyn LocalLikelihood, row: usize) -> usize {
    (0..likelihood.outputs()).filter(|&k| !likelihood.sites_of(row, k).is_empty()).count()
}

/// Refuses more chains than memory holds.
fn check_chains(samples: usize, measurements: usize) -> Result<()> {
    if samples.saturating_mul(measurements) > MOST_CHAINS {
        return Err(Error::Config(format!(
            "samples: expected at most {MOST_CHAINS} over all measurements, got {measurements} x {samples}"
        )));
    }
    Ok(())
}

fn rows(measurements: usize, chains: usize) -> Vec<Row> {
    (0..measurements as u64)
        .flat_map(|measurement| (0..chains as u64).map(move |chain| Row { measurement, chain }))
        .collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use daps_core::real::to_f64;

    use super::*;

    const LANGEVIN: &str = "samples = 2\n[task]\noperator = 'inpaint_random'\nshape = [1, 8, 8]\nmeasurement = 'y.npy'\n\
        [prior]\nkind = 'gaussian'\nstd = 0.5\n[method]\nschedule = { rule = 'poly', levels = 12 }\n\
        estimate = { kind = 'gaussian', center = 'tweedie', spread = 'prior' }\n\
        kernel = { kind = 'langevin', steps = 20, step_size = { rule = 'curvature', factor = 0.5 } }\n";

    fn given(y: impl Fn(usize) -> f64, batch: usize) -> (tempfile::TempDir, Run) {
        let dir = tempfile::tempdir().unwrap();
        let y = Tensor::from_vec((0..128).map(y).collect(), (2, 1, 8, 8), &Device::Cpu).unwrap();
        y.write_npy(dir.path().join("y.npy")).unwrap();
        let config = RunConfig { batch, ..RunConfig::parse(LANGEVIN).unwrap() };
        let run = Run::new(config, dir.path()).unwrap();
        (dir, run)
    }

    /// Whatever is painted into the holes of a measurement is neither a misfit nor counted.
    #[test]
    fn only_what_was_measured_counts() {
        let (_dir, run) = given(|k| 0.1 + 0.01 * (k % 64) as f64, 4);
        let visible = run.operator.visible().unwrap().remove(0);
        // 70 % of 64 pixels are hidden.
        assert_eq!((run.measured(0), visible.iter().filter(|v| **v).count()), (20, 20));
        let y = to_f64(&run.y).unwrap();
        assert!((0..128).all(|k| (y[k] != 0.0) == visible[k % 64]));
        // Off by 0.1 at every pixel: (0.1/0.05)² where it is seen.
        let off = Tensor::from_vec(
            (0..128).map(|k| 0.2 + 0.01 * (k % 64) as f64).collect(),
            (2, 1, 8, 8),
            &Device::Cpu,
        );
        let likelihood = run.likelihood.select(&[0, 1]).unwrap();
        let chi2 = run.chi2(&*likelihood, &off.unwrap()).unwrap();
        assert!(chi2.iter().all(|c| (c - 4.0).abs() < 1e-9), "{chi2:?}");
    }

    /// Chains of one measurement diverge: the others are the same whether they share its batches or not.
    #[test]
    fn a_batch_that_diverges_costs_no_other() {
        let found = [1, 4].map(|batch| {
            let (dir, run) = given(|k| if k < 64 { 0.3 } else { 1e308 }, batch);
            let path = dir.path().join("out");
            let directory = Directory { path: path.clone(), resume: false, checkpoint_every: Duration::ZERO };
            let summary = run.execute(&directory, &mut ()).unwrap();
            assert_eq!((summary.samples, summary.diverged), (4, 2));
            // What has no chains left has no numbers, and costs the other measurement none.
            assert!(summary.spread.is_some() && summary.mean_error.is_some(), "{summary:?}");
            let (tensors, _) = files::read_tensors(&path.join("samples.safetensors")).unwrap();
            for name in ["mean", "std"] {
                let values = to_f64(&tensors[name]).unwrap();
                assert!(values[..64].iter().all(|v| v.is_finite()), "{name}: {values:?}");
                assert!(values[64..].iter().all(|v| v.is_nan()), "{name}: {values:?}");
            }
            to_f64(&tensors["samples"]).unwrap()[..128].to_vec()
        });
        assert_eq!(found[0], found[1]);
        let (dir, run) = given(|_| 1e308, 1);
        let path = dir.path().join("out");
        let directory = Directory { path, resume: false, checkpoint_every: Duration::ZERO };
        let error = run.execute(&directory, &mut ()).unwrap_err().to_string();
        assert!(error.contains("diverged"), "{error}");
    }

    #[test]
    fn one_run_at_a_time_works_in_a_directory() {
        let (dir, run) = given(|_| 0.3, 4);
        let path = dir.path().join("out");
        std::fs::create_dir(&path).unwrap();
        let held = crate::directory::enter(&path, crate::directory::Entry::Any).unwrap();
        let go = |resume: bool| {
            let directory = Directory { path: path.clone(), resume, checkpoint_every: Duration::MAX };
            run.execute(&directory, &mut ())
        };
        for resume in [false, true] {
            let error = go(resume).unwrap_err().to_string();
            assert!(error.ends_with("out: is in use by another process"), "{error}");
        }
        drop(held);
        assert!(go(true).is_ok());
        assert!(!path.join(".lock").exists());
    }

    /// A run over tokens of 1 x 2 x 2 whose measurements are zeros, with a mask for each: all four tokens are seen, and one.
    fn over_tokens(dir: &Path, measurements: usize) -> Result<Run> {
        let save = |name: &str, values: Vec<f64>| {
            let shape = (values.len() / 4, 1, 2, 2);
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap().write_npy(dir.join(name)).unwrap();
        };
        save("mask.npy", vec![1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        save("y.npy", vec![0.0; 4 * measurements]);
        let config = "samples = 1\n[task]\noperator = 'inpaint'\nshape = [1, 2, 2]\nmeasurement = 'y.npy'\n\
                      options = { mask = 'mask.npy' }\n[prior]\nkind = 'gaussian'\n";
        let mut config = RunConfig::parse(config)?;
        config.settle(dir)?;
        let chain = daps_core::Corruption::new(2, daps_core::Rate::Uniform)?;
        let listed = daps_priors::Listed::all(chain, &[1, 2, 2], |_| 1.0)?;
        Run::with(config, dir, Built::new("listed", Model::Tokens(Arc::new(listed))), None)
    }

    /// All measured tokens are wrong: each counts 1/β² = 400, whatever the measurement's mask and the rows beside it.
    #[test]
    fn tokens_are_counted_by_the_mask_of_their_own_measurement() {
        let dir = tempfile::tempdir().unwrap();
        let run = over_tokens(dir.path(), 2).unwrap();
        assert_eq!((run.measured(0), run.measured(1)), (4, 1));
        for rows in [&[0, 1][..], &[1, 0], &[1]] {
            let wrong = Tensor::ones((rows.len(), 1, 2, 2), candle_core::DType::U8, &Device::Cpu).unwrap();
            let chi2 = run.chi2(&*run.likelihood.select(rows).unwrap(), &wrong).unwrap();
            assert!(chi2.iter().all(|c| (c - 400.0).abs() < 1e-9), "{rows:?}: {chi2:?}");
        }
        let error = over_tokens(dir.path(), 3).err().unwrap().to_string();
        assert!(error.contains("measurement") && error.contains("[2, 1, 2, 2]"), "{error}");
    }
}
