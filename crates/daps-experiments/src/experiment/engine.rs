//! Runs the cells that are not there yet, batch by batch, and writes each down when it is done.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::time::Instant;

use candle_core::{DType, Tensor};
use daps::progress::Progress;
use daps::quality::of_images;
use daps::{Answer, Ledger, Outcome, Result, Run};
use daps_core::tensors::{batched, from_f64, to_f64};
use daps_core::{Event, Samples};
use daps_methods::MethodConfig;

use super::cell::{Cell, Level};
use super::pictures::{self, half_turned};
use super::store::{self, Cells, Store};
use super::{Experiment, Pair, pace, write};

/// How far an experiment came.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Progressed {
    /// The prior's name, and the digest of its weights.
    pub prior: String,
    /// Cells of the table, without unfit pairs.
    pub cells: usize,
    /// Cells that are done.
    pub done: usize,
    /// Of these, cells that this call ran.
    pub ran: usize,
    /// Cells that have no result.
    pub failed: usize,
    /// The tasks that a method does not fit, and why.
    pub unfit: Vec<String>,
}

/// One (pair, seed): its keys, image by image, and the method's settings.
pub(crate) struct Block<'a> {
    pub pair: &'a Pair<'a>,
    pub seed: u64,
    pub keys: Vec<String>,
    pub settings: MethodConfig,
    pub chains: usize,
}

impl Block<'_> {
    /// A cell under this block's labels: others may have run it under theirs.
    fn labelled(&self, cell: &Cell) -> Cell {
        let (method, task) = (self.pair.method.label.clone(), self.pair.task.label.clone());
        Cell { method, task, ..cell.clone() }
    }
}

impl Experiment {
    /// The blocks of all fitting pairs.
    pub(crate) fn blocks<'a>(&self, pairs: &'a [Pair<'a>]) -> Result<Vec<Block<'a>>> {
        let mut blocks = Vec::new();
        for pair in pairs.iter().filter(|p| p.refusal.is_none()) {
            for &seed in &self.config.seeds {
                let run = self.run(pair, seed, &[0])?;
                let keys = self.keys(&run)?;
                let (settings, chains) = (run.resolved()?.method.clone(), run.samples);
                blocks.push(Block { pair, seed, keys, settings, chains });
            }
        }
        Ok(blocks)
    }

    /// Images that run at once.
    pub(super) fn together(&self, block: &Block) -> usize {
        (self.config.batch / block.chains).max(1)
    }

    /// Takes what other experiments have run and this one has not, with its pictures.
    fn adopt(
        &self,
        blocks: &[Block],
        others: &[(PathBuf, Cells)],
        store: &mut Store,
        directory: &Path,
    ) -> Result<()> {
        let mut adopted = Vec::new();
        for (block, key) in blocks.iter().flat_map(|b| b.keys.iter().map(move |key| (b, key))) {
            if store.get(key).is_some_and(|own| self.is_complete(own)) {
                continue;
            }
            let known = || others.iter().filter_map(|(from, cells)| Some((from, cells.get(key)?)));
            let whole = known().find(|(_, cell)| self.is_complete(cell));
            if let Some((from, cell)) = whole.or_else(|| known().next().filter(|_| store.get(key).is_none()))
            {
                pictures::copy(cell, from, directory)?;
                adopted.push(block.labelled(cell));
            }
        }
        store.append(adopted)
    }

    /// Runs what is missing in the directory and writes tables, plots and the report; `progress` may ask to stop, which keeps
    /// what is done. Cells that another experiment left in one of `others` are taken from there.
    pub fn execute(
        &self,
        directory: &Path,
        others: &[PathBuf],
        progress: &mut dyn Progress,
    ) -> Result<Progressed> {
        let pairs = self.pairs()?;
        let blocks = self.blocks(&pairs)?;
        let read = |d: &PathBuf| Ok((d.clone(), store::read(d)?));
        let others = others.iter().map(read).collect::<Result<Vec<_>>>()?;
        let mut store = Store::open(directory)?;
        self.adopt(&blocks, &others, &mut store, directory)?;
        let keys = || blocks.iter().flat_map(|b| b.keys.iter().map(move |key| (b, key)));
        let whole = || blocks.iter().map(|b| (b, self.images()));
        let left = whole().map(|(b, n)| self.missing(store.cells(), directory, b, n).len()).sum::<usize>();
        self.fill(&whole().collect::<Vec<_>>(), &mut store, directory, progress)?;
        let cells: Vec<Cell> = keys().filter_map(|(b, key)| Some(b.labelled(store.get(key)?))).collect();
        let still = whole().map(|(b, n)| self.missing(store.cells(), directory, b, n).len()).sum::<usize>();
        let progressed = Progressed {
            prior: self.prior_in_words(),
            cells: blocks.iter().map(|b| b.keys.len()).sum(),
            done: blocks.iter().map(|b| b.keys.len()).sum::<usize>() - still,
            ran: left - still,
            failed: cells.iter().filter(|c| c.failure.is_some()).count(),
            unfit: unfit(&pairs),
        };
        write::all(self, &blocks, &cells, &progressed, directory, progress)?;
        Ok(progressed)
    }

    /// Runs the cells that are missing among the first images of some blocks, and says why finished ones run again; false if it
    /// was asked to stop.
    pub(crate) fn fill(
        &self,
        wanted: &[(&Block, usize)],
        store: &mut Store,
        directory: &Path,
        progress: &mut dyn Progress,
    ) -> Result<bool> {
        let missing = |(b, n): &(&Block, usize), store: &Store| self.missing(store.cells(), directory, b, *n);
        let mut left: Vec<(&Block, usize)> = wanted.iter().map(|w| (w.0, missing(w, store).len())).collect();
        self.run_again(store.cells(), directory, wanted).iter().for_each(|line| progress.note(line));
        progress.begin(&self.config.name, left.iter().map(|(_, n)| n).sum());
        for (i, wanted) in wanted.iter().enumerate() {
            let block = wanted.0;
            // Asked again: a block of another label may have run the same cells.
            let missing = missing(wanted, store);
            progress.skip(left[i].1 - missing.len());
            left[i].1 = missing.len();
            for images in missing.chunks(self.together(block)) {
                if let Some(seconds) = pace::seconds(&left, store.cells()) {
                    progress.expect(seconds);
                }
                match self.batch(block, images, store, directory, progress) {
                    Err(error) if error.is_cancelled() => return Ok(false),
                    result => result?,
                }
                left[i].1 -= images.len();
            }
        }
        progress.end();
        Ok(true)
    }

    /// Runs the cells of some images and writes them down. A method that gives up on them together is asked again one by one, so
    /// that a failure stays with its image.
    fn batch(
        &self,
        block: &Block,
        images: &[usize],
        store: &mut Store,
        directory: &Path,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let run = self.run(block.pair, block.seed, images)?;
        let all: Vec<usize> = (0..images.len() * block.chains).collect();
        let (task, noise) = (run.task(&all)?, run.noise(&all));
        let what = format!("{}, {}", block.pair.method.label, block.pair.task.label);
        let mut levels: Vec<Vec<Level>> = vec![vec![]; images.len()];
        let mut failed = None;
        let mut watch = |event: &Event| {
            let Event::Level { step, .. } = event else { return ControlFlow::Continue(()) };
            if self.follows()
                && let Err(error) = self.follow(&run, &*task.likelihood, event, &mut levels)
            {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            let note = format!("{what}, image {} of {}", images[0] + 1, self.images());
            progress.within(&format!("{note}, sigma {:.3}", step.sigma))
        };
        let start = Instant::now();
        let result = run.method.sample(&task, &noise, None, &mut watch);
        if let Some(error) = failed {
            return Err(error);
        }
        let seconds = start.elapsed().as_secs_f64() / all.len() as f64;
        let blank = |i: usize| Cell {
            key: block.keys[images[i]].clone(),
            method: block.pair.method.label.clone(),
            task: block.pair.task.label.clone(),
            image: run.names[i].clone(),
            seed: block.seed,
            samples: block.chains,
            seconds,
            ..Cell::default()
        };
        use daps_core::Error::{AllDiverged, Missing, NotConverged};
        let cells = match result {
            Ok(samples) => self.judged(&run, samples, levels, blank, directory)?,
            Err(AllDiverged { .. }) if images.len() == 1 => {
                let diverged = block.chains;
                vec![Cell { diverged, ..blank(0) }.failed("all chains diverged")]
            }
            // What is missing is a power that no check before the work asks for, such as a density of an estimate's own.
            Err(error @ (NotConverged { .. } | Missing { .. })) if images.len() == 1 => {
                vec![blank(0).failed(&error.to_string())]
            }
            Err(AllDiverged { .. } | NotConverged { .. } | Missing { .. }) => {
                for &i in images {
                    self.batch(block, &[i], store, directory, progress)?;
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        store.append(cells)?;
        let stopped = images.iter().fold(false, |stopped, _| progress.step(&what).is_break() || stopped);
        // A method hears nothing after its last level, of which some have but one.
        let of = run.method.levels();
        if stopped { Err(daps_core::Error::Cancelled { level: of, of }.into()) } else { Ok(()) }
    }

    /// Samples to cells, with their pictures on disk.
    fn judged(
        &self,
        run: &Run,
        samples: Samples,
        levels: Vec<Vec<Level>>,
        blank: impl Fn(usize) -> Cell,
        directory: &Path,
    ) -> Result<Vec<Cell>> {
        let (cost, mut ledger) = (samples.cost, Ledger::default());
        ledger.batch_done(run, &(0..run.rows.len()).collect::<Vec<_>>(), samples);
        let outcome = Outcome::new(run, ledger)?;
        let truth = run.truth.as_ref().map(to_f64).transpose()?.unwrap_or_default();
        let (k, d) = (run.samples, run.space.size());
        let ambiguous = run.is_ambiguous();
        let mut cells = Vec::new();
        for (i, (found, levels)) in outcome.summary.measurements.iter().zip(levels).enumerate() {
            let rows = i * k..(i + 1) * k;
            let turned =
                turned(run, &outcome.values[rows.start * d..rows.end * d], &truth[i * d..(i + 1) * d]);
            let lpips = self.lpips(run, &outcome.samples, i, rows.clone())?;
            let judged = self.classified(run, &outcome.samples, i, rows)?;
            let mut cell = blank(i).found(found, turned, lpips, ambiguous);
            (cell.accuracy, cell.agreement) = judged.unzip();
            if cell.failure.is_none() {
                (cell.nfe, cell.operator_calls) = (Some(cost.nfe), Some(cost.operator_calls));
                cell.levels = levels;
                if run.answer == Answer::Mean {
                    let lpips = self.lpips_of_mean(run, &outcome, i)?;
                    cell = cell.answered_by_mean(lpips);
                }
            }
            self.keep_pictures(run, &outcome, i, &cell, directory)?;
            cells.push(cell);
        }
        Ok(cells)
    }

    /// The shares of chains that the classifier takes for the image's label, and for what it takes the true image for.
    fn classified(
        &self,
        run: &Run,
        samples: &Tensor,
        i: usize,
        rows: Range<usize>,
    ) -> Result<Option<(f64, f64)>> {
        let (Some(judge), Some(truth)) = (&self.classifier, &run.truth) else { return Ok(None) };
        let (samples, truth) = (samples.narrow(0, rows.start, rows.len())?, truth.narrow(0, i, 1)?);
        judge.shares(&samples, &run.tokens(&truth)?, run.numbers[i]).map(Some)
    }

    /// LPIPS of the mean of a measurement's samples.
    fn lpips_of_mean(&self, run: &Run, outcome: &Outcome, i: usize) -> Result<Option<f64>> {
        let mean = from_f64(outcome.mean(i).to_vec(), &batched(1, run.space.shape()), DType::F64)?;
        Ok(self.lpips(run, &run.tokens(&mean)?, i, 0..1)?.into_iter().next().flatten())
    }

    /// LPIPS of every chain, where its weights are there.
    pub(super) fn lpips(
        &self,
        run: &Run,
        samples: &Tensor,
        i: usize,
        rows: Range<usize>,
    ) -> Result<Vec<Option<f64>>> {
        let (Some(lpips), Some(truth)) = (&self.lpips, &run.truth) else { return Ok(vec![]) };
        let chains = run.values(&samples.narrow(0, rows.start, rows.len())?)?;
        let chains = chains.to_dtype(DType::F64)?.clamp(-1.0, 1.0)?;
        let truth = truth.narrow(0, i, 1)?.clamp(-1.0, 1.0)?.broadcast_as(chains.shape())?.contiguous()?;
        Ok(lpips.distance(&chains, &truth)?.iter().map(|v| v.is_finite().then_some(*v)).collect())
    }
}

/// One line for everything that a method needs and some tasks do not have.
fn unfit(pairs: &[Pair]) -> Vec<String> {
    let mut lines: Vec<(&str, &str, Vec<&str>)> = vec![];
    for (pair, refusal) in pairs.iter().filter_map(|p| Some((p, p.refusal.as_ref()?))) {
        let (method, task) = (pair.method.label.as_str(), pair.task.label.as_str());
        match lines.iter_mut().find(|line| (line.0, line.1) == (method, refusal.needs)) {
            Some((.., tasks)) => tasks.push(task),
            None => lines.push((method, refusal.needs, vec![task])),
        }
    }
    let line = |(method, needs, tasks): (&str, &str, Vec<&str>)| {
        format!("{method} on {}: it needs {needs}", tasks.join(", "))
    };
    lines.into_iter().map(line).collect()
}

/// PSNR of every chain or of its half turn, whichever is larger.
fn turned(run: &Run, chains: &[f64], truth: &[f64]) -> Vec<Option<f64>> {
    let &[c, h, w] = run.space.shape() else { return vec![] };
    let larger = |x: &[f64]| {
        let of = |x: &[f64]| of_images(x, truth, [c, h, w]).0;
        of(x).into_iter().chain(of(&half_turned(x, h * w, |_| true))).reduce(f64::max)
    };
    chains.chunks(c * h * w).map(larger).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GAUSSIAN, small};
    use super::*;

    /// Counts levels, and asks to stop from one of them on.
    struct Levels {
        seen: usize,
        last: usize,
    }

    impl Levels {
        fn until(last: usize) -> Self {
            Self { seen: 0, last }
        }
    }

    impl Progress for Levels {
        fn begin(&mut self, _: &str, _: usize) {}
        fn step(&mut self, _: &str) -> ControlFlow<()> {
            if self.seen >= self.last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        fn within(&mut self, note: &str) -> ControlFlow<()> {
            self.seen += 1;
            self.step(note)
        }
        fn end(&mut self) {}
    }

    #[test]
    fn no_cell_runs_twice_under_two_labels_or_in_two_directories() {
        let dir = tempfile::tempdir().unwrap();
        let top = format!("{GAUSSIAN}\nbatch = 1\npictures = 3\ntasks = ['inpaint_random']");
        let methods = "[[method]]\nname = 'wiener'\n[[method]]\nlabel = 'again'\nname = 'wiener'\n";
        let experiment = small(dir.path(), &top, methods);
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        let mut levels = Levels::until(usize::MAX);
        let progressed = experiment.execute(&first, &[], &mut levels).unwrap();
        assert_eq!((progressed.cells, progressed.done, levels.seen), (6, 6, 3));
        // With the pictures, without which they would run again.
        let progressed = experiment.execute(&second, std::slice::from_ref(&first), &mut levels).unwrap();
        assert_eq!((progressed.done, progressed.ran, levels.seen), (6, 0, 3));
        let names = |d: &Path| std::fs::read_dir(d.join("pictures")).unwrap().count();
        assert_eq!((names(&first), names(&second)), (3, 3));
    }

    /// The score at the chain's own state has no density, which MALA's ratio asks for.
    #[test]
    fn what_turns_out_not_to_fit_costs_no_other_cell() {
        let dir = tempfile::tempdir().unwrap();
        let top = format!("{GAUSSIAN}\ntasks = ['inpaint_random']");
        let methods = "[[method]]\nschedule = { rule = 'levels', sigmas = [1.0, 0.0] }\nkernel = 'mala'\n\
                       estimate = { kind = 'score', start = 'tweedie', at = { state = { sigma = 0.02 } } }\n[[method]]\nname = 'wiener'\n";
        let experiment = small(dir.path(), &top, methods);
        let progressed = experiment.execute(&dir.path().join("out"), &[], &mut ()).unwrap();
        assert_eq!((progressed.cells, progressed.done, progressed.failed), (6, 6, 3));
    }

    /// One level is the first and the last: nothing else of the batch could hear a request to stop.
    #[test]
    fn methods_of_one_level_can_be_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let top = format!("{GAUSSIAN}\nbatch = 1\ntasks = ['inpaint_random']");
        let experiment = small(dir.path(), &top, "[[method]]\nname = 'wiener'\n");
        let progressed = experiment.execute(&dir.path().join("out"), &[], &mut Levels::until(1)).unwrap();
        assert_eq!((progressed.cells, progressed.done), (3, 1));
    }

    /// Langevin steps of 0.5 are stable at the first level, where the target's curvature is about 1, and not at the second, where
    /// it is 1e4: three images give up together, and are asked again one by one.
    #[test]
    fn what_is_asked_again_is_written_down_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let top = format!("{GAUSSIAN}\nbatch = 3\ntasks = [{{ operator = 'inpaint_random', noise = 1.0 }}]");
        let method = "[[method]]\nschedule = { rule = 'levels', sigmas = [10.0, 0.01, 0.0] }\n\
                      estimate = { kind = 'gaussian', center = 'tweedie', spread = 'sigma' }\n\
                      kernel = { kind = 'langevin', steps = 40, step_size = { rule = 'decay', eta0 = 0.5, delta = 1.0 } }\n";
        let experiment = small(dir.path(), &top, method);
        let out = dir.path().join("out");
        // The first level of all three, then that of each: the last of them is told to stop.
        let progressed = experiment.execute(&out, &[], &mut Levels::until(4)).unwrap();
        assert_eq!((progressed.done, progressed.failed), (2, 2));
        // What is left, and nothing else.
        let progressed = experiment.execute(&out, &[], &mut ()).unwrap();
        assert_eq!((progressed.done, progressed.ran, progressed.failed), (3, 1, 3));
    }
}
