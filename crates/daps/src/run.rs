//! A run: a problem, a method and a seed, from which samples are drawn in memory or into a directory.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Tensor;
use daps_core::{Denoiser, Event, Kind, Method, Noise, Operator, Problem, Row, Scale, Space, State};
use daps_priors::Analytic;
use daps_priors::network::TileCount;

use crate::config::RunConfig;
use crate::event::{RunEvent, RunObserver};
use crate::ledger::Ledger;
use crate::outcome::Outcome;
use crate::posterior::Posterior;
use crate::record::Record;
use crate::summary::Summary;
use crate::{Answer, Error, Format, Result, tokens};

/// Chains of a run: their samples are in memory at its end.
const MOST_CHAINS: usize = 100_000;

/// A problem that is ready to run. `Run::of` makes one from parts, `Run::new` from a configuration.
pub struct Run {
    /// The prior, and the likelihood of all measurements.
    pub(crate) problem: Problem,
    /// What samples are.
    pub space: Space,
    /// The prior, where it is a closed form.
    pub(crate) analytic: Option<Arc<dyn Analytic>>,
    /// What draws the samples.
    pub method: Arc<dyn Method>,
    /// The true samples, where they are known, as pictures' values, of tokens too.
    pub truth: Option<Tensor>,
    /// What each measurement is called.
    pub names: Vec<String>,
    /// What each measurement's noise is addressed by.
    pub numbers: Vec<u64>,
    /// What the pictures of each measurement are written like.
    pub(crate) formats: Vec<Format>,
    pub(crate) seed: u64,
    /// Chains of a measurement.
    pub samples: usize,
    /// Rows that run at once.
    pub(crate) batch: usize,
    /// (measurement, chain) of every sample.
    pub rows: Vec<Row>,
    /// What is given as the one answer to a measurement.
    pub answer: Answer,
    pub(crate) about: About,
}

/// What a run is called, and what tells it from another one.
#[derive(Default)]
pub(crate) struct About {
    /// The task for people.
    pub title: String,
    /// The prior for people.
    pub prior: String,
    /// The noise as a setting, where there is one.
    pub noise: Option<String>,
    /// The configuration that it was made from, with everything spelled out.
    pub config: Option<RunConfig>,
    /// What defines it, as `config.toml` in its directory keeps it; none where some part does not say what defines it.
    pub text: Option<String>,
    /// A digest of what it depends on beside that text and its measurement.
    pub inputs: String,
    /// The tiles that its network runs on, where it needs some.
    pub tiles: Option<String>,
    /// How far a call on them is.
    pub count: Option<Arc<TileCount>>,
    /// What was done to the inputs, for people.
    pub notes: Vec<String>,
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
    /// What was done to the inputs, for people.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.about.notes
    }

    /// How far a call of the denoiser is, where it runs on tiles.
    #[must_use]
    pub fn tiles(&self) -> Option<Arc<TileCount>> {
        self.about.count.clone()
    }

    /// The prior for people.
    #[must_use]
    pub fn prior(&self) -> &str {
        &self.about.prior
    }

    /// The configuration with everything spelled out, where the run was made from one.
    #[must_use]
    pub fn config(&self) -> Option<&RunConfig> {
        self.about.config.as_ref()
    }

    /// The configuration of a run that was made from one.
    pub fn resolved(&self) -> Result<&RunConfig> {
        self.config().ok_or_else(|| Error::Config("expected a run that was made from a configuration".into()))
    }

    /// The operator that measured, where the likelihood has one.
    #[must_use]
    pub fn operator(&self) -> Option<&Arc<dyn Operator>> {
        self.problem.likelihood.measured_by()
    }

    /// Whether several samples explain a measurement equally well.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.operator().is_some_and(|operator| operator.is_ambiguous())
    }

    /// What one unit of a measurement's samples means: what its picture says, where the prior's images have no unit of their own.
    pub(crate) fn scale(&self, measurement: usize) -> Scale {
        let own = self.space.scale();
        match self.space.kind() == Kind::Image && *own == Scale::BYTES {
            true => self.formats[measurement].scale(),
            false => own.clone(),
        }
    }

    /// The problem of some rows, given by their places.
    pub fn task(&self, rows: &[usize]) -> Result<Problem> {
        let measurements: Vec<usize> = rows.iter().map(|&r| self.rows[r].measurement as usize).collect();
        let likelihood = self.problem.likelihood.select(&measurements)?;
        Ok(Problem { likelihood, ..self.problem.clone() })
    }

    /// The denoiser that `who` needs.
    pub(crate) fn denoiser(&self, who: &str) -> Result<&Arc<dyn Denoiser>> {
        Ok(self.problem.denoiser(who)?)
    }

    /// Samples as pictures' values, from -1 to 1.
    pub fn values(&self, x: &Tensor) -> Result<Tensor> {
        self.space.symbols().map_or_else(|| Ok(x.clone()), |symbols| tokens::values(x, symbols))
    }

    /// Pictures' values as samples.
    pub fn tokens(&self, values: &Tensor) -> Result<Tensor> {
        match self.space.symbols() {
            Some(symbols) => Ok(tokens::tokens(values, symbols)?.0),
            None => Ok(values.clone()),
        }
    }

    /// The noise of some rows, given by their places.
    #[must_use]
    pub fn noise(&self, rows: &[usize]) -> Noise {
        Noise::new(self.seed, rows.iter().map(|&r| self.address(self.rows[r])).collect())
    }

    /// What a row's noise is addressed by.
    pub(crate) fn address(&self, row: Row) -> Row {
        Row { measurement: self.numbers[row.measurement as usize], ..row }
    }

    /// Draws all samples and keeps them in memory.
    pub fn sample(&self, observer: &mut dyn RunObserver) -> Result<Posterior> {
        let mut ledger = Ledger::default();
        self.drive(&mut ledger, observer, &mut |_, _, _| Ok(()))?;
        _ = observer.event(&RunEvent::End);
        Posterior::new(self, Outcome::new(self, ledger)?)
    }

    /// Runs to the end, or until asked to stop; then the directory holds a checkpoint. A finished run is only read back.
    pub fn execute(&self, directory: &Directory, observer: &mut dyn RunObserver) -> Result<Summary> {
        let (mut record, mut ledger) = Record::open(self, directory)?;
        if let Some(summary) = record.finished()? {
            let levels = self.method.levels() * self.rows.len().div_ceil(self.batch);
            _ = observer.event(&self.begin(levels, levels));
            self.tell_notes(observer);
            _ = observer.event(&RunEvent::Note { text: "already finished; nothing to do".into() });
            _ = observer.event(&RunEvent::End);
            return Ok(summary);
        }
        self.drive(&mut ledger, observer, &mut |ledger, state, now| record.save(ledger, state, now))?;
        let summary = record.finish(ledger)?;
        _ = observer.event(&RunEvent::End);
        Ok(summary)
    }

    /// Runs the batches that a ledger lacks. `save` is told of every level and batch: the ledger, the state within a batch, and
    /// whether the run stops here.
    fn drive(&self, ledger: &mut Ledger, observer: &mut dyn RunObserver, save: &mut Save) -> Result<()> {
        let all: Vec<usize> = (0..self.rows.len()).collect();
        let batches: Vec<&[usize]> = all.chunks(self.batch).collect();
        let (levels, of, first) = (self.method.levels(), batches.len(), ledger.batch);
        let mut from = ledger.state.take();
        let done = first * levels + from.as_ref().map_or(0, |state| state.level);
        let stopped_at = |level: usize| Error::from(daps_core::Error::Cancelled { level, of: levels });
        if observer.event(&self.begin(of * levels, done)).is_break() {
            return Err(stopped_at(0));
        }
        self.tell_notes(observer);
        let (mut lost, pictures) = (None, observer.wants_pictures());
        for rows in batches.into_iter().skip(first) {
            if let Some(state) = &from {
                state.check(rows.len(), self.space.shape(), levels)?;
            }
            let (noise, task) = (self.noise(rows), self.task(rows)?);
            let (mut failed, mut stopped) = (None, false);
            let mut watch = |event: &Event| {
                let Event::Level { state, .. } = event else { return ControlFlow::Continue(()) };
                let told = ledger.level(self, rows, &*task.likelihood, event, pictures).and_then(|done| {
                    stopped |= observer.event(&RunEvent::Level(done)).is_break();
                    save(ledger, Some(state), stopped)
                });
                match told {
                    Ok(()) if stopped => ControlFlow::Break(()),
                    Ok(()) => ControlFlow::Continue(()),
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
                    ledger.batch_lost(self, rows)?;
                }
                result => ledger.batch_done(self, rows, result?),
            }
            stopped |= observer.event(&RunEvent::Batch { done: ledger.batch, of }).is_break();
            if ledger.batch < of {
                save(ledger, None, stopped)?;
            }
            // A method hears nothing after its last level, of which some have but one.
            if stopped && ledger.batch < of {
                return Err(stopped_at(levels));
            }
        }
        match lost.filter(|_| ledger.all_diverged()) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// What a user should know about the run's parts.
    fn tell_notes(&self, observer: &mut dyn RunObserver) {
        for text in self.notes() {
            _ = observer.event(&RunEvent::Note { text: text.clone() });
        }
    }

    fn begin(&self, levels: usize, done: usize) -> RunEvent {
        RunEvent::Begin {
            title: self.about.title.clone(),
            prior: self.about.prior.clone(),
            method: self.method.info().name.to_owned(),
            measurements: self.names.clone(),
            chains: self.samples,
            levels,
            done,
        }
    }
}

/// Who keeps a ledger: given the state within a batch, and whether the run stops here.
type Save<'a> = dyn FnMut(&Ledger, Option<&State>, bool) -> Result<()> + 'a;

/// Refuses more chains than memory holds.
pub(crate) fn check_chains(samples: usize, measurements: usize) -> Result<()> {
    if samples.saturating_mul(measurements) > MOST_CHAINS {
        return Err(Error::Config(format!(
            "samples: expected at most {MOST_CHAINS} over all measurements, got {measurements} x {samples}"
        )));
    }
    Ok(())
}

/// (measurement, chain) of every sample.
pub(crate) fn rows(measurements: usize, chains: usize) -> Vec<Row> {
    (0..measurements as u64)
        .flat_map(|measurement| (0..chains as u64).map(move |chain| Row { measurement, chain }))
        .collect()
}
#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::Device;
    use daps_core::Model;
    use daps_core::tensors::to_f64;

    use super::*;
    use crate::files;
    use crate::prior::Built;

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
        let likelihood = run.problem.likelihood.select(&[0, 1]).unwrap();
        let visible = run.operator().unwrap().visible().unwrap().remove(0);
        // 70 % of 64 pixels are hidden.
        let measured = likelihood.as_gaussian().unwrap().measured();
        assert_eq!((measured, visible.iter().filter(|v| **v).count()), (vec![20], 20));
        let y = to_f64(&likelihood.measurement().unwrap().unwrap()).unwrap();
        assert!((0..128).all(|k| (y[k] != 0.0) == visible[k % 64]));
        // Off by 0.1 at every pixel: (0.1/0.05)² where it is seen.
        let off = Tensor::from_vec(
            (0..128).map(|k| 0.2 + 0.01 * (k % 64) as f64).collect(),
            (2, 1, 8, 8),
            &Device::Cpu,
        );
        let found = likelihood.discrepancy(&off.unwrap()).unwrap();
        assert!(
            found.iter().all(|d| (d.value - 4.0).abs() < 1e-9 && (d.error - 0.1).abs() < 1e-9),
            "{found:?}"
        );
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

    /// All measured tokens are wrong, whatever the measurement's mask and the rows beside it.
    #[test]
    fn tokens_are_counted_by_the_mask_of_their_own_measurement() {
        let dir = tempfile::tempdir().unwrap();
        let run = over_tokens(dir.path(), 2).unwrap();
        for rows in [&[0, 1][..], &[1, 0], &[1]] {
            let wrong = Tensor::ones((rows.len(), 1, 2, 2), candle_core::DType::U8, &Device::Cpu).unwrap();
            let found = run.problem.likelihood.select(rows).unwrap().discrepancy(&wrong).unwrap();
            assert!(found.iter().all(|d| d.value == 1.0), "{rows:?}: {found:?}");
        }
        let error = over_tokens(dir.path(), 3).err().unwrap().to_string();
        assert!(error.contains("measurement") && error.contains("[2, 1, 2, 2]"), "{error}");
    }
}
