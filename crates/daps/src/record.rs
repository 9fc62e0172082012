//! A run in its directory: its configuration, its measurement, and checkpoints from which it resumes to the same bits.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use candle_core::Tensor;
use daps_core::tensors::to_f64;
use daps_core::{Cost, State};
use serde::{Deserialize, Serialize};

use crate::directory::{self, Entry};
use crate::event::LevelDone;
use crate::ledger::{Chains, Ledger};
use crate::outcome::Outcome;
use crate::picture::Snapshot;
use crate::run::{Directory, Run};
use crate::summary::Summary;
use crate::{Error, Result, files, output};

const CHECKPOINT: &str = "checkpoint.safetensors";
/// The first file of a run: where it is, a run has begun.
pub(crate) const CONFIG: &str = "config.toml";
/// The last file of a run: where it is, the run is finished.
pub(crate) const METRICS: &str = "metrics.json";
/// The numbers of every level, a line each.
const TRACE: &str = "trace.jsonl";
/// What stands beside the measurement: a digest of the files that the run depends on.
const INPUTS: &str = "inputs";
/// And, where the network runs on tiles, which they are.
const TILES: &str = "tiles";

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

/// A run's directory while it is open.
pub(crate) struct Record<'a> {
    run: &'a Run,
    directory: &'a Directory,
    config: String,
    last: Instant,
    _lock: directory::Lock,
}

impl<'a> Record<'a> {
    /// Makes the directory, or goes on from what is in it.
    pub fn open(run: &'a Run, directory: &'a Directory) -> Result<(Self, Ledger)> {
        let config = run.text()?;
        let path = &directory.path;
        let (lock, goes_on) = enter(directory, &config)?;
        let record = Self { run, directory, config, last: Instant::now(), _lock: lock };
        let measurement = path.join("measurement.safetensors");
        let y = run.problem.likelihood.measurement()?;
        if goes_on {
            if measurement.exists() {
                record.check_inputs(&measurement, y.as_ref())?;
            }
            if path.join(CHECKPOINT).exists() {
                let ledger = record.resume()?;
                return Ok((record, ledger));
            }
            if path.join(METRICS).exists() {
                return Ok((record, Ledger::default()));
            }
        }
        files::write(&path.join(CONFIG), record.config.as_bytes())?;
        let mut tensors: Vec<(&str, &Tensor)> = y.iter().map(|y| ("y", y)).collect();
        tensors.extend(run.truth.as_ref().map(|t| ("truth", t)));
        let mut about = HashMap::from([(INPUTS.into(), run.about.inputs.clone())]);
        about.extend(run.about.tiles.iter().map(|tiles| (TILES.into(), tiles.clone())));
        files::write_tensors(&measurement, &tensors, about)?;
        Ok((record, Ledger::default()))
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
    fn check_inputs(&self, measurement: &Path, y: Option<&Tensor>) -> Result<()> {
        let (tensors, text) = files::read_tensors(measurement)?;
        if text.get(INPUTS).is_some_and(|before| *before != self.run.about.inputs) {
            let what = "files of the run (mask, kernel, matrix or prior) have changed since it was started; \
                        choose another directory with --out";
            return Err(Error::content(&self.directory.path, what));
        }
        if text.get(TILES) != self.run.about.tiles.as_ref() {
            let words = |tiles: Option<&String>| tiles.map_or("whole images", String::as_str).to_owned();
            let (before, now) = (words(text.get(TILES)), words(self.run.about.tiles.as_ref()));
            let what = format!("the run's network took {before}, with this --memory it would take {now}");
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
        if !same("y", y)? || !same("truth", self.run.truth.as_ref())? {
            let what = "does not match the inputs of the run; they have changed since it was started";
            return Err(Error::content(measurement, what));
        }
        Ok(())
    }

    fn resume(&self) -> Result<Ledger> {
        let path = self.directory.path.join(CHECKPOINT);
        let (mut tensors, text) = files::read_tensors(&path)?;
        let mark = text.get("mark").ok_or_else(|| Error::content(&path, "not a checkpoint of a run"))?;
        let mark: Mark = serde_json::from_str(mark)
            .map_err(|e| Error::content(&path, format!("damaged checkpoint: {e}")))?;
        if !same_samples(&mark.config, &self.config) {
            return Err(Error::content(&path, "belongs to another configuration"));
        }
        let mut ledger = Ledger { batch: mark.batch, ..Ledger::default() };
        ledger.cost = Cost { nfe: mark.done_cost.0, operator_calls: mark.done_cost.1 };
        if let Some(x) = tensors.remove("done") {
            let Some(rows) = self.run.rows.get(..x.dims()[0]).map(<[_]>::to_vec) else {
                return Err(Error::content(&path, "has more samples than the run"));
            };
            let parameters = tensors.remove("parameters");
            ledger.done.push(Chains { rows, x, diverged: mark.done_diverged, parameters });
        }
        if let Some(x_t) = tensors.remove("x_t") {
            let cost = Cost { nfe: mark.cost.0, operator_calls: mark.cost.1 };
            let memory = (0..).map_while(|i| tensors.remove(&format!("memory.{i}"))).collect();
            ledger.state = Some(State { level: mark.level, x_t, diverged: mark.diverged, cost, memory });
        }
        if let Some(images) = tensors.remove("snapshots") {
            for (k, (measurement, level, sigma, next)) in mark.snapshots.into_iter().enumerate() {
                let three = images.get(k)?;
                let image = |i: usize| -> Result<Vec<f64>> { Ok(to_f64(&three.get(i)?)?) };
                let images = [image(0)?, image(1)?, image(2)?];
                ledger.snapshots.insert((measurement, level), Snapshot { sigma: (sigma, next), images });
            }
        }
        let kept = ledger.batch * self.run.method.levels() + mark.level;
        let trace = self.directory.path.join(TRACE);
        let read = |line: &str| {
            serde_json::from_str::<LevelDone>(line)
                .map_err(|e| Error::content(&trace, format!("damaged line: {e}")))
        };
        ledger.trace = files::read_text(&trace)?.lines().take(kept).map(read).collect::<Result<_>>()?;
        Ok(ledger)
    }

    /// Keeps the ledger where it is time for a checkpoint, or where the run stops here.
    pub fn save(&mut self, ledger: &Ledger, state: Option<&State>, stopping: bool) -> Result<()> {
        if stopping || self.last.elapsed() >= self.directory.checkpoint_every {
            self.checkpoint(ledger, state)?;
        }
        Ok(())
    }

    fn checkpoint(&mut self, ledger: &Ledger, state: Option<&State>) -> Result<()> {
        let path = &self.directory.path;
        // The trace first: a checkpoint never refers to lines that are not there.
        self.write_trace(ledger)?;
        let cost = state.map_or(Cost::default(), |s| s.cost);
        let done = if ledger.done.is_empty() { None } else { Some(Chains::merged(&ledger.done)?) };
        let mark = Mark {
            config: self.config.clone(),
            batch: ledger.batch,
            level: state.map_or(0, |s| s.level),
            diverged: state.map_or(vec![], |s| s.diverged.clone()),
            cost: (cost.nfe, cost.operator_calls),
            done_diverged: done.as_ref().map_or(vec![], |d| d.diverged.clone()),
            done_cost: (ledger.cost.nfe, ledger.cost.operator_calls),
            snapshots: ledger.snapshots.iter().map(|((m, l), s)| (*m, *l, s.sigma.0, s.sigma.1)).collect(),
        };
        let mark = serde_json::to_string(&mark).map_err(|e| Error::content(path, e))?;
        let images = ledger.snapshots.values().flat_map(|s| s.images.iter().flatten().map(|v| *v as f32));
        let size = ledger.snapshots.values().next().map_or(0, |s| s.images[0].len());
        let shape = (ledger.snapshots.len(), 3, size);
        let images = Tensor::from_vec(images.collect(), shape, &candle_core::Device::Cpu)?;
        let mut tensors = vec![];
        tensors.extend(done.as_ref().map(|d| ("done", &d.x)));
        tensors.extend(done.as_ref().and_then(|d| Some(("parameters", d.parameters.as_ref()?))));
        tensors.extend(state.map(|s| ("x_t", &s.x_t)));
        let names: Vec<String> =
            (0..state.map_or(0, |s| s.memory.len())).map(|i| format!("memory.{i}")).collect();
        tensors.extend(names.iter().map(String::as_str).zip(state.iter().flat_map(|s| &s.memory)));
        tensors.extend((!ledger.snapshots.is_empty()).then_some(("snapshots", &images)));
        files::write_tensors(&path.join(CHECKPOINT), &tensors, HashMap::from([("mark".into(), mark)]))?;
        self.last = Instant::now();
        Ok(())
    }

    fn write_trace(&self, ledger: &Ledger) -> Result<()> {
        let path = self.directory.path.join(TRACE);
        let line = |level| serde_json::to_string(level).map_err(|e| Error::content(&path, e));
        let lines = ledger.trace.iter().map(line).collect::<Result<Vec<_>>>()?;
        files::write(&path, (lines.join("\n") + "\n").as_bytes())
    }

    /// Writes the results; `metrics.json` is the last of them, then the checkpoint goes.
    pub fn finish(self, ledger: Ledger) -> Result<Summary> {
        let path = &self.directory.path;
        self.write_trace(&ledger)?;
        let outcome = Outcome::new(self.run, ledger)?;
        output::write(self.run, &outcome, path)?;
        files::write(&path.join(METRICS), (outcome.summary.to_json(path)? + "\n").as_bytes())?;
        remove_checkpoint(path)?;
        Ok(outcome.summary)
    }
}

/// Takes a run's directory for this process, and tells whether a run of this configuration goes on there.
pub(crate) fn enter(directory: &Directory, config: &str) -> Result<(directory::Lock, bool)> {
    let path = &directory.path;
    let resume = Entry::Resume { work: "run", first: CONFIG };
    let lock = directory::enter(path, if directory.resume { resume } else { Entry::New })?;
    let goes_on = directory.resume && path.join(CONFIG).exists();
    if goes_on {
        let before = files::read_text(&path.join(CONFIG))?;
        if !same_samples(&before, config) {
            let [before, now] = [&before[..], config].map(|c| but_for(&["version", "memory"], c));
            let what = match before.eq(now) {
                true => "holds a run of another daps version; only that version can resume it",
                false => "holds a run of another configuration; resume it with its own config.toml",
            };
            return Err(Error::content(path, what));
        }
    }
    Ok((lock, goes_on))
}

/// The lines of a configuration but those of some settings.
fn but_for<'a>(names: &[&str], config: &'a str) -> impl Iterator<Item = &'a str> {
    let is = |line: &str| line.split_once(" = ").is_some_and(|(name, _)| names.contains(&name));
    config.lines().filter(move |line| !is(line))
}

/// Whether two configurations say the same of what samples depend on: memory counts by the tiles that it leads to, which are kept
/// beside the measurement.
fn same_samples(before: &str, now: &str) -> bool {
    but_for(&["memory"], before).eq(but_for(&["memory"], now))
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
        let changed = "files of the run (mask, kernel, matrix or prior) have changed since it was started";
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
        refused(scene.path(), &run, "does not match the inputs of the run");
    }
}
