//! What a run has found so far: samples of the batches that are done, the numbers of every level, and pictures of some chains.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_core::{DType, Tensor};
use daps_core::tensors::{batched, to_f64};
use daps_core::{Cost, Event, Likelihood, Row, Samples, State};
use rayon::prelude::*;

use crate::event::{LevelDone, LevelPicture};
use crate::picture::{self, STRIP, Snapshot};
use crate::quality::of_samples;
use crate::run::Run;
use crate::{Result, canvas};

/// Measurements of which the trajectory of a chain is kept.
const FOLLOWED: u64 = 16;
/// Side of a level's small picture at most.
const SMALL: usize = 128;

/// Samples keyed by (measurement, chain). Several of them, from batches or from machines, can be put together in any order.
#[derive(Clone)]
pub(crate) struct Chains {
    /// Which sample each row is.
    pub rows: Vec<Row>,
    /// `[rows, shape…]`.
    pub x: Tensor,
    /// Rows that diverged.
    pub diverged: Vec<bool>,
    /// The likelihood's own parameters, `[rows, …]`, where it has any.
    pub parameters: Option<Tensor>,
}

impl Chains {
    /// All rows of several parts, in the order of their keys.
    pub fn merged(parts: &[Self]) -> Result<Self> {
        let rows: Vec<Row> = parts.iter().flat_map(|p| p.rows.iter().copied()).collect();
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        let key = |i: &u32| (rows[*i as usize].measurement, rows[*i as usize].chain);
        order.sort_by_key(key);
        let index = Tensor::new(order.clone(), &candle_core::Device::Cpu)?;
        let sorted = |tensors: Vec<&Tensor>| -> Result<Tensor> {
            let all = Tensor::cat(&tensors, 0)?;
            // What is in order already stays as it is.
            Ok(if order.is_sorted() { all } else { all.index_select(&index, 0)? })
        };
        let parameters: Option<Vec<&Tensor>> = parts.iter().map(|p| p.parameters.as_ref()).collect();
        let diverged: Vec<bool> = parts.iter().flat_map(|p| p.diverged.iter().copied()).collect();
        Ok(Self {
            x: sorted(parts.iter().map(|p| &p.x).collect())?,
            parameters: parameters.filter(|p| !p.is_empty()).map(sorted).transpose()?,
            diverged: order.iter().map(|&i| diverged[i as usize]).collect(),
            rows: order.iter().map(|&i| rows[i as usize]).collect(),
        })
    }
}

/// A run's way so far: the samples of its batches, from whoever drew them.
#[derive(Default)]
pub struct Ledger {
    /// The first batch that is not done.
    pub(crate) batch: usize,
    /// Where that batch stands, in a run that goes on.
    pub(crate) state: Option<State>,
    /// Samples of the batches that are done.
    pub(crate) done: Vec<Chains>,
    pub(crate) cost: Cost,
    pub(crate) trace: Vec<LevelDone>,
    /// By measurement and level.
    pub(crate) snapshots: BTreeMap<(u64, usize), Snapshot>,
}

impl Ledger {
    /// Writes down a level of the batch with the given rows.
    pub(crate) fn level(
        &mut self,
        run: &Run,
        rows: &[usize],
        likelihood: &dyn Likelihood,
        event: &Event,
        pictures: bool,
    ) -> Result<LevelDone> {
        let Event::Level { step, x0_hat, x0_y, info, state } = event else { return Ok(LevelDone::default()) };
        let known = state.likelihood(likelihood)?;
        let misfits = known.as_deref().unwrap_or(likelihood).discrepancy(x0_y)?;
        let mut level = LevelDone {
            batch: self.batch,
            level: step.index,
            of: step.of,
            sigma: step.sigma,
            acceptance: info.acceptance.as_ref().map(|a| a.iter().sum::<f64>() / a.len() as f64),
            diverged: state.diverged.iter().filter(|d| **d).count(),
            iterations: info.iterations,
            nfe: state.cost.nfe,
            operator_calls: state.cost.operator_calls,
            rows: rows.iter().map(|&r| (run.rows[r].measurement, run.rows[r].chain)).collect(),
            discrepancy: misfits.iter().map(|d| d.value).collect(),
            ..LevelDone::default()
        };
        if let Some(truth) = run.truth.as_ref().filter(|_| run.space.metrics().quality) {
            let (x, truth, d) = (to_f64(&run.values(x0_y)?)?, to_f64(truth)?, run.space.size());
            let each = rows.par_iter().zip(x.par_chunks(d)).map(|(&row, x)| {
                let measurement = run.rows[row].measurement as usize;
                of_samples(&run.space, x, &truth[measurement * d..(measurement + 1) * d])
            });
            let (psnr, ssim): (Vec<_>, Vec<_>) = each.collect::<Vec<_>>().into_iter().unzip();
            let list = |values: Vec<Option<f64>>| values.iter().map(|v| v.unwrap_or(f64::NAN)).collect();
            (level.psnr, level.ssim) = (list(psnr), list(ssim));
        }
        if let Some(shape) = run.space.picture() {
            let shown = rows.iter().map(|&r| run.rows[r]).enumerate();
            for (i, row) in shown.filter(|(_, row)| row.chain == 0 && row.measurement < FOLLOWED) {
                if Snapshot::is_kept(step) {
                    // In f32, as a checkpoint keeps them.
                    let image = |t: &Tensor| -> Result<Vec<f64>> {
                        let values = to_f64(&run.values(&t.get(i)?)?.to_dtype(DType::F32)?)?;
                        Ok(picture::small(&values, shape, STRIP).0.into_owned())
                    };
                    let images = [image(x0_hat)?, image(x0_y)?, image(&state.x_t)?];
                    // Corrupted tokens do not grow.
                    let next = if run.space.symbols().is_some() { 0.0 } else { step.next };
                    let snapshot = Snapshot { sigma: (step.sigma, next), images };
                    self.snapshots.insert((row.measurement, step.index), snapshot);
                }
                if pictures {
                    let values = to_f64(&run.values(&x0_y.get(i)?)?)?;
                    let shown = picture::preview(&values, shape, SMALL);
                    let png = STANDARD.encode(canvas::png(&shown)?);
                    level.pictures.push(LevelPicture { measurement: row.measurement, png });
                }
            }
        }
        self.trace.push(LevelDone { pictures: vec![], ..level.clone() });
        Ok(level)
    }

    /// Keeps the samples of a batch, whose rows are given by their places among the run's.
    pub fn batch_done(&mut self, run: &Run, rows: &[usize], samples: Samples) {
        let own = run.problem.likelihood.as_nuisance().and_then(|_| samples.memory.into_iter().next());
        self.done.push(Chains {
            rows: rows.iter().map(|&r| run.rows[r]).collect(),
            x: samples.x,
            diverged: samples.diverged,
            parameters: own,
        });
        self.cost = samples.cost;
        self.batch += 1;
    }

    /// Keeps a batch all of whose chains diverged before the last level.
    pub(crate) fn batch_lost(&mut self, run: &Run, rows: &[usize]) -> Result<()> {
        let levels = run.method.levels();
        for level in self.trace.len() - self.batch * levels..levels {
            self.trace.push(LevelDone {
                batch: self.batch,
                level,
                of: levels,
                sigma: f64::NAN,
                diverged: rows.len(),
                ..LevelDone::default()
            });
        }
        let dtype = run.denoiser("a chain that diverges")?.dtype();
        let shape = batched(rows.len(), run.space.shape());
        let nothing = Tensor::full(f32::NAN, shape, &candle_core::Device::Cpu)?.to_dtype(dtype)?;
        let own = match run.problem.likelihood.as_nuisance() {
            Some(nuisance) => vec![nuisance.init(&run.noise(rows))?],
            None => vec![],
        };
        let cost = self.cost;
        let diverged = vec![true; rows.len()];
        self.batch_done(run, rows, Samples { x: nothing, diverged, cost, memory: own });
        Ok(())
    }

    /// Whether no chain is left.
    pub(crate) fn all_diverged(&self) -> bool {
        self.done.iter().all(|c| c.diverged.iter().all(|d| *d))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn parts_are_put_together_by_their_keys() {
        let part = |rows: &[(u64, u64)]| {
            let values: Vec<f64> = rows.iter().map(|(m, c)| (10 * m + c) as f64).collect();
            Chains {
                rows: rows.iter().map(|&(measurement, chain)| Row { measurement, chain }).collect(),
                x: Tensor::from_vec(values, (rows.len(), 1), &Device::Cpu).unwrap(),
                diverged: rows.iter().map(|(m, c)| (*m, *c) == (1, 0)).collect(),
                parameters: None,
            }
        };
        let (a, b) = (part(&[(1, 0), (0, 1)]), part(&[(1, 1), (0, 0)]));
        for parts in [[a.clone(), b.clone()], [b, a]] {
            let all = Chains::merged(&parts).unwrap();
            assert_eq!(to_f64(&all.x).unwrap(), [0.0, 1.0, 10.0, 11.0]);
            assert_eq!(all.diverged, [false, false, true, false]);
            assert_eq!(all.rows[3], Row { measurement: 1, chain: 1 });
        }
    }
}
