//! What an experiment will cost: two levels of every pair are run and extrapolated.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use daps::Result;
use daps::progress::Progress;
use daps_core::{Error, Event};
use serde::Serialize;

use super::store::{self, CELLS};
use super::{Block, Experiment};

/// The cost of one method on one task.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// The method's label.
    pub method: String,
    /// The task's label.
    pub task: String,
    /// Why the two do not fit.
    pub refusal: Option<String>,
    /// Cells in all.
    pub cells: usize,
    /// Cells that are not in the directory yet.
    pub missing: usize,
    /// Seconds that the missing ones will take, about.
    pub seconds: f64,
}

impl Experiment {
    /// The cost of every pair, given what is done in the directory and in those of other experiments; nothing is written.
    pub fn estimate(
        &self,
        directory: &Path,
        others: &[PathBuf],
        progress: &mut dyn Progress,
    ) -> Result<Vec<Estimate>> {
        let pairs = self.pairs()?;
        let blocks = self.blocks(&pairs)?;
        let mut known = HashMap::new();
        for other in others {
            known.extend(store::read(other)?);
        }
        if directory.join(CELLS).exists() {
            known.extend(store::read(directory)?);
        }
        let wanted: Vec<(&Block, usize)> = blocks.iter().map(|b| (b, b.keys.len())).collect();
        self.run_again(&known, directory, &wanted).iter().for_each(|line| progress.note(line));
        progress.begin("timing", pairs.len());
        let mut all = Vec::new();
        for pair in &pairs {
            let own = || blocks.iter().filter(|b| std::ptr::eq(b.pair, pair));
            let left = |b: &Block| self.missing(&known, directory, b, b.keys.len()).len();
            let (cells, missing): (usize, usize) = (own().map(|b| b.keys.len()).sum(), own().map(left).sum());
            let seconds = match own().next().filter(|_| missing > 0) {
                Some(block) => {
                    missing as f64 * self.seconds(pair, self.together(block).min(missing), block.chains)?
                }
                None => 0.0,
            };
            all.push(Estimate {
                method: pair.method.label.clone(),
                task: pair.task.label.clone(),
                refusal: pair.refused(),
                cells,
                missing,
                seconds,
            });
            if progress.step(&format!("{} on {}", pair.method.label, pair.task.label)).is_break() {
                break;
            }
        }
        progress.end();
        Ok(all)
    }

    /// Seconds of one cell where some images run at once: the second level, times all levels.
    fn seconds(&self, pair: &super::Pair, together: usize, chains: usize) -> Result<f64> {
        let images: Vec<usize> = (0..together.min(self.images())).collect();
        let run = self.run(pair, self.config.seeds[0], &images)?;
        let rows: Vec<usize> = (0..images.len() * chains).collect();
        let mut ends = vec![Instant::now()];
        let mut watch = |event: &Event| {
            if let Event::Level { .. } = event {
                ends.push(Instant::now());
            }
            if ends.len() > 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match run.method.sample(&run.task(&rows)?, &run.noise(&rows), None, &mut watch) {
            // A pair that gives up has taken its time too; the table will say that it did.
            Ok(_) | Err(Error::Cancelled { .. } | Error::AllDiverged { .. } | Error::NotConverged { .. }) => {
            }
            Err(error) => return Err(error.into()),
        }
        let last = ends.windows(2).last().map_or(0.0, |w| (w[1] - w[0]).as_secs_f64());
        Ok(last * run.method.levels() as f64 / images.len() as f64)
    }
}
