//! What a run writes down on its way: the trace, snapshots of chains, and checkpoints from which it resumes to the same bits.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Tensor};
use daps_core::real::{batched, to_f64};
use daps_core::{Cost, Event, Likelihood, Samples, State};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::directory::{self, Entry};
use crate::picture::{Snapshot, is_image};
use crate::run::{Directory, Run};
use crate::summary::{Outcome, Summary, quality};
use crate::{Error, Result, files, output};

const CHECKPOINT: &str = "checkpoint.safetensors";
/// The first file of a run: where it is, a run has begun.
const CONFIG: &str = "config.toml";
/// The last file of a run: where it is, the run is finished.
const METRICS: &str = "metrics.json";
/// What stands beside the measurement: a digest of the files that the run depends on.
const INPUTS: &str = "inputs";
/// Of so many measurements, the way of a chain is kept.
const FOLLOWED: u64 = 16;

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
    /// (measurement, level, σ, next σ) of every snapshot.
    snapshots: Vec<(u64, usize, f64, f64)>,
}

/// A run in its directory.
pub(crate) struct Record<'a> {
    run: &'a Run,
    directory: &'a Directory,
    config: String,
    batch: usize,
    state: Option<State>,
    done: Vec<Tensor>,
    done_diverged: Vec<bool>,
    cost: Cost,
    trace: Vec<String>,
    /// By measurement and level.
    snapshots: BTreeMap<(u64, usize), Snapshot>,
    last: Instant,
    _lock: directory::Lock,
}

impl<'a> Record<'a> {
    /// Makes the directory, or goes on from what is in it.
    pub fn open(run: &'a Run, directory: &'a Directory) -> Result<Self> {
        let config = run.config.to_toml()?;
        let path = &directory.path;
        let resume = Entry::Resume { work: "run", first: CONFIG };
        let lock = directory::enter(path, if directory.resume { resume } else { Entry::New })?;
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
            snapshots: BTreeMap::new(),
            last: Instant::now(),
            _lock: lock,
        };
        let (measurement, inputs) = (path.join("measurement.safetensors"), run.inputs()?);
        if directory.resume && path.join(CONFIG).exists() {
            let before = files::read_text(&path.join(CONFIG))?;
            if before != record.config {
                let what = match but_for_version(&before).eq(but_for_version(&record.config)) {
                    true => {
                        "holds a run of another version of this program, which alone can go on to the same bits"
                    }
                    false => "holds a run of another configuration; resume it with its own config.toml",
                };
                return Err(Error::content(path, what));
            }
            if measurement.exists() {
                record.check_inputs(&measurement, &inputs)?;
            }
            if path.join(CHECKPOINT).exists() {
                record.resume()?;
                return Ok(record);
            }
            if path.join(METRICS).exists() {
                return Ok(record);
            }
        }
        files::write(&path.join(CONFIG), record.config.as_bytes())?;
        let mut tensors = vec![("y", &run.y)];
        tensors.extend(run.truth.as_ref().map(|t| ("truth", t)));
        files::write_tensors(&measurement, &tensors, HashMap::from([(INPUTS.into(), inputs)]))?;
        Ok(record)
    }

    /// What the run found, where it is finished.
    pub fn finished(&self) -> Result<Option<Summary>> {
        let path = self.directory.path.join(METRICS);
        if !path.exists() {
            return Ok(None);
        }
        let summary = serde_json::from_str(&files::read_text(&path)?)
            .map_err(|e| Error::content(&path, format!("not what a run found: {e}")))?;
        remove_checkpoint(&self.directory.path)?;
        Ok(Some(summary))
    }

    /// Refuses to go on where files, measurement or truth are not what the run was started with. Older versions have written
    /// down the latter two alone; their runs go on without a look at the files.
    fn check_inputs(&self, measurement: &Path, inputs: &str) -> Result<()> {
        let (tensors, text) = files::read_tensors(measurement)?;
        if text.get(INPUTS).is_some_and(|before| before != inputs) {
            let what = "its configuration names files (a mask, a kernel, a matrix or the prior's) that have changed since \
                        the run was started; choose another with --out";
            return Err(Error::content(&self.directory.path, what));
        }
        let same = |name: &str, now: Option<&Tensor>| -> Result<bool> {
            match (tensors.get(name), now) {
                (Some(before), Some(now)) => {
                    Ok(before.dims() == now.dims() && to_f64(before)? == to_f64(now)?)
                }
                (before, now) => Ok(before.is_none() && now.is_none()),
            }
        };
        if !same("y", Some(&self.run.y))? || !same("truth", self.run.truth.as_ref())? {
            let what = "is not what the run's inputs give now; they have changed since it was started";
            return Err(Error::content(measurement, what));
        }
        Ok(())
    }

    /// The first batch that is not done.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Where that batch stands.
    pub fn take_state(&mut self) -> Option<State> {
        self.state.take()
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
        if let Some(images) = tensors.remove("snapshots") {
            for (k, (measurement, level, sigma, next)) in mark.snapshots.into_iter().enumerate() {
                let three = images.get(k)?;
                let image = |i: usize| -> Result<Vec<f64>> { Ok(to_f64(&three.get(i)?)?) };
                let images = [image(0)?, image(1)?, image(2)?];
                self.snapshots.insert((measurement, level), Snapshot { sigma: (sigma, next), images });
            }
        }
        let kept = self.batch * self.run.method.levels() + mark.level;
        let trace = files::read_text(&self.directory.path.join("trace.jsonl"))?;
        self.trace = trace.lines().take(kept).map(str::to_owned).collect();
        Ok(())
    }

    /// Writes down a level of the batch with the given rows.
    pub fn level(
        &mut self,
        rows: &[usize],
        likelihood: &dyn Likelihood,
        event: &Event,
        stopping: bool,
    ) -> Result<()> {
        let Event::Level { step, x0_hat, x0_y, info, state } = event else { return Ok(()) };
        let acceptance = info.acceptance.as_ref().map(|a| a.iter().sum::<f64>() / a.len() as f64);
        let diverged = state.diverged.iter().filter(|d| **d).count();
        let chi2 = self.run.chi2(likelihood, x0_y)?;
        let mut line = json!({
            "batch": self.batch, "level": step.index, "sigma": step.sigma, "acceptance": acceptance,
            "diverged": diverged, "iterations": info.iterations,
            "nfe": state.cost.nfe, "operator_calls": state.cost.operator_calls, "chi2": chi2,
        });
        if let (Some(truth), &[c, h, w]) = (&self.run.truth, &self.run.config.task.shape[..])
            && is_image(&[c, h, w])
        {
            let (x, truth, d) = (to_f64(&self.run.values(x0_y)?)?, to_f64(truth)?, c * h * w);
            let each = rows.par_iter().zip(x.par_chunks(d)).map(|(&row, x)| {
                let measurement = self.run.rows[row].measurement as usize;
                quality(x, &truth[measurement * d..(measurement + 1) * d], [c, h, w])
            });
            let (psnr, ssim): (Vec<_>, Vec<_>) = each.collect::<Vec<_>>().into_iter().unzip();
            line["psnr"] = json!(psnr);
            line["ssim"] = json!(ssim);
        }
        self.trace.push(line.to_string());
        if is_image(&self.run.config.task.shape) && Snapshot::is_kept(step) {
            for (i, row) in rows.iter().map(|&r| self.run.rows[r]).enumerate() {
                if row.chain == 0 && row.measurement < FOLLOWED {
                    // In f32, as a checkpoint keeps them.
                    let image = |t: &Tensor| -> Result<Vec<f64>> {
                        Ok(to_f64(&self.run.values(&t.get(i)?)?.to_dtype(DType::F32)?)?)
                    };
                    let images = [image(x0_hat)?, image(x0_y)?, image(&state.x_t)?];
                    // Corrupted tokens do not grow.
                    let next = if state.x_t.dtype() == DType::U8 { 0.0 } else { step.next };
                    let snapshot = Snapshot { sigma: (step.sigma, next), images };
                    self.snapshots.insert((row.measurement, step.index), snapshot);
                }
            }
        }
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
            snapshots: self.snapshots.iter().map(|((m, l), s)| (*m, *l, s.sigma.0, s.sigma.1)).collect(),
        };
        let mark = serde_json::to_string(&mark).map_err(|e| Error::content(path, e))?;
        let done = if self.done.is_empty() { None } else { Some(Tensor::cat(&self.done, 0)?) };
        let d: usize = self.run.config.task.shape.iter().product();
        let images = self.snapshots.values().flat_map(|s| s.images.iter().flatten().map(|v| *v as f32));
        let images =
            Tensor::from_vec(images.collect(), (self.snapshots.len(), 3, d), &candle_core::Device::Cpu)?;
        let mut tensors = vec![];
        tensors.extend(done.as_ref().map(|d| ("done", d)));
        tensors.extend(state.map(|s| ("x_t", &s.x_t)));
        let names: Vec<String> =
            (0..state.map_or(0, |s| s.memory.len())).map(|i| format!("memory.{i}")).collect();
        tensors.extend(names.iter().map(String::as_str).zip(state.iter().flat_map(|s| &s.memory)));
        tensors.extend((!self.snapshots.is_empty()).then_some(("snapshots", &images)));
        files::write_tensors(&path.join(CHECKPOINT), &tensors, HashMap::from([("mark".into(), mark)]))?;
        self.last = Instant::now();
        Ok(())
    }

    /// Keeps the samples of a batch.
    pub fn batch_done(&mut self, samples: Samples) -> Result<()> {
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

    /// Keeps a batch all of whose chains diverged before the last level.
    pub fn batch_lost(&mut self, rows: usize) -> Result<()> {
        let levels = self.run.method.levels();
        for level in self.trace.len() - self.batch * levels..levels {
            self.trace.push(
                json!({ "batch": self.batch, "level": level, "diverged": rows, "chi2": [] }).to_string(),
            );
        }
        let dtype = self.run.denoiser("a chain that diverges")?.dtype();
        let nothing =
            Tensor::full(f32::NAN, batched(rows, &self.run.config.task.shape), &candle_core::Device::Cpu)?;
        let cost = self.cost;
        self.batch_done(Samples { x: nothing.to_dtype(dtype)?, diverged: vec![true; rows], cost })
    }

    /// Whether no chain is left.
    pub fn all_diverged(&self) -> bool {
        self.done_diverged.iter().all(|d| *d)
    }

    /// Writes the results; `metrics.json` is the last of them, then the checkpoint goes.
    pub fn finish(self) -> Result<Summary> {
        let path = &self.directory.path;
        files::write(&path.join("trace.jsonl"), (self.trace.join("\n") + "\n").as_bytes())?;
        let samples = Tensor::cat(&self.done, 0)?;
        let outcome =
            Outcome::new(self.run, samples, self.done_diverged, self.cost, &self.trace, self.snapshots)?;
        output::write(self.run, &outcome, path)?;
        let metrics = serde_json::to_string_pretty(&outcome.summary).map_err(|e| Error::content(path, e))?;
        files::write(&path.join(METRICS), (metrics + "\n").as_bytes())?;
        remove_checkpoint(path)?;
        Ok(outcome.summary)
    }
}

/// The lines of a configuration that say what is run.
fn but_for_version(config: &str) -> impl Iterator<Item = &str> {
    config.lines().filter(|line| !line.starts_with("version = "))
}

fn remove_checkpoint(directory: &Path) -> Result<()> {
    // A run that was killed while it wrote a checkpoint leaves the unfinished one as well.
    for checkpoint in [directory.join(CHECKPOINT), directory.join(format!("{CHECKPOINT}.tmp"))] {
        if checkpoint.exists() {
            std::fs::remove_file(&checkpoint).map_err(Error::file(&checkpoint, "cannot remove"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use candle_core::Device;

    use super::*;
    use crate::RunConfig;

    const RUN: &str = "samples = 2\n[task]\noperator = 'dense'\nshape = [3]\nmeasurement = 'y.npy'\n\
        options = { matrix = 'matrix.npy' }\n[prior]\nkind = 'empirical'\nfile = 'points.npy'\n[method]\n\
        schedule = { rule = 'poly', levels = 4 }\n\
        estimate = { kind = 'gaussian', center = 'tweedie', spread = 'sigma' }\n\
        kernel = { kind = 'langevin', steps = 5, step_size = { rule = 'curvature', factor = 0.5 } }\n";
    const MATRIX: [f64; 6] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
    const POINTS: [f64; 6] = [0.5, -0.5, 0.1, -0.3, 0.4, 0.2];

    fn array(dir: &Path, name: &str, values: &[f64], shape: &[usize]) {
        let array = Tensor::from_slice(values, shape, &Device::Cpu).unwrap();
        array.write_npy(dir.join(name)).unwrap();
    }

    fn scene() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        array(dir.path(), "matrix.npy", &MATRIX, &[2, 3]);
        array(dir.path(), "points.npy", &POINTS, &[2, 3]);
        array(dir.path(), "y.npy", &[0.4, -0.4], &[2]);
        array(dir.path(), "truth.npy", &[0.4, -0.4, 0.1], &[3]);
        dir
    }

    fn execute(dir: &Path, config: &str, resume: bool) -> Result<Summary> {
        let run = Run::new(RunConfig::parse(config)?, dir)?;
        let directory = Directory { path: dir.join("out"), resume, checkpoint_every: Duration::MAX };
        run.execute(&directory, &mut ())
    }

    fn refused(dir: &Path, config: &str, says: &str) {
        let error = execute(dir, config, true).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }

    #[test]
    fn a_run_is_resumed_with_the_files_that_it_was_started_with() {
        let scene = scene();
        let dir = scene.path();
        execute(dir, RUN, false).unwrap();
        execute(dir, RUN, true).unwrap();
        let changed = "names files (a mask, a kernel, a matrix or the prior's) that have changed since the run was started";
        array(dir, "matrix.npy", &MATRIX.map(|v| 2.0 * v), &[2, 3]);
        refused(dir, RUN, changed);
        array(dir, "matrix.npy", &MATRIX, &[2, 3]);
        execute(dir, RUN, true).unwrap();
        array(dir, "points.npy", &POINTS.map(|v| 2.0 * v), &[2, 3]);
        refused(dir, RUN, changed);
        // An older version has written down the measurement alone: its runs go on.
        let path = dir.join("out/measurement.safetensors");
        let (tensors, _) = files::read_tensors(&path).unwrap();
        files::write_tensors(&path, &[("y", &tensors["y"])], HashMap::new()).unwrap();
        let before = std::fs::read(&path).unwrap();
        execute(dir, RUN, true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    /// The third value is not measured: the measurement stays as it was, and what the samples are compared with does not.
    #[test]
    fn a_run_is_resumed_with_the_truth_that_it_was_started_with() {
        let (scene, run) = (scene(), RUN.replace("measurement = 'y.npy'", "truth = 'truth.npy'"));
        execute(scene.path(), &run, false).unwrap();
        execute(scene.path(), &run, true).unwrap();
        array(scene.path(), "truth.npy", &[0.4, -0.4, 0.9], &[3]);
        refused(scene.path(), &run, "is not what the run's inputs give now");
    }
}
