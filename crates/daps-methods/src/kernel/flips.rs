//! Metropolis over tokens: change one, or those behind one measured token together, and accept by the ratio of the target.
//!
//! Changes are symmetric (each chosen token moves by a uniform number of symbols, never by none). A likelihood whose terms
//! are local is asked only about the terms that changed, so a proposal costs the same however large the sample is; any
//! other one is asked about whole samples. Joint changes matter where a measurement ties tokens together: through XOR,
//! 00 and 11 fit equally, and single changes must pass through a misfit between them.

use daps_core::candle::{Device, Tensor};
use daps_core::{
    Address, Approx, ChainInfo, Conditional, Cost, Error, Kernel, LocalLikelihood, Need, Noise, Purpose,
    Result, Step, open01,
};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::Registered;
use crate::checks::check_some;

/// Metropolis sweeps over tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Flips {
    /// Sweeps; one has as many proposals as a sample has tokens.
    pub sweeps: usize,
    /// Whether every other proposal changes the tokens behind one measured token together.
    pub joint: bool,
}

impl Default for Flips {
    fn default() -> Self {
        Self { sweeps: 10, joint: false }
    }
}

/// A proposal: sites with their new tokens.
type Change = Vec<(usize, u8)>;

fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((open01(rng) * n as f64) as usize).min(n - 1)
}

/// Proposal number `j`, and the number that decides on it.
fn propose(
    joint: Option<(&dyn LocalLikelihood, usize)>,
    j: usize,
    symbols: usize,
    x: &[u8],
    rng: &mut ChaCha8Rng,
    change: &mut Change,
) -> f64 {
    change.clear();
    match joint {
        Some((local, row)) if j % 2 == 1 => {
            let tied = local.sites_of(row, below(rng, local.outputs()));
            for &site in tied {
                if change.iter().all(|(known, _)| *known != site as usize) {
                    change.push((site as usize, 0));
                }
            }
        }
        _ => {}
    }
    // Of one token alone: every other time, and where a measured one depends on none.
    if change.is_empty() {
        change.push((below(rng, x.len()), 0));
    }
    for (site, to) in change.iter_mut() {
        *to = ((usize::from(x[*site]) + 1 + below(rng, symbols - 1)) % symbols) as u8;
    }
    open01(rng)
}

/// What a change does to ln p(x0 | x_t).
fn prior_gain(log_probs: &[f64], symbols: usize, x: &[u8], change: &Change) -> f64 {
    let at = |site: usize, token: u8| log_probs[site * symbols + usize::from(token)];
    change.iter().map(|&(site, to)| at(site, to) - at(site, x[site])).sum()
}

/// Exchanges the tokens of a sample with those of a change; twice is not at all.
fn swap(x: &mut [u8], change: &mut Change) {
    change.iter_mut().for_each(|(site, to)| std::mem::swap(&mut x[*site], to));
}

/// The measured tokens that depend on each site.
fn outputs_of(local: &dyn LocalLikelihood, row: usize, sites: usize) -> Vec<Vec<usize>> {
    let mut outputs = vec![vec![]; sites];
    for k in 0..local.outputs() {
        for &site in local.sites_of(row, k) {
            outputs[site as usize].push(k);
        }
    }
    outputs
}

/// The whole chain of one row, by local terms; gives the number of accepted proposals.
fn run_local(
    kernel: &Flips,
    local: &dyn LocalLikelihood,
    row: usize,
    (log_probs, symbols): (&[f64], usize),
    x: &mut [u8],
    rng: &mut ChaCha8Rng,
) -> usize {
    let outputs = outputs_of(local, row, x.len());
    let joint = kernel.joint.then_some((local, row));
    let (mut change, mut touched, mut accepted) = (Change::new(), Vec::new(), 0);
    for j in 0..kernel.sweeps * x.len() {
        let u = propose(joint, j, symbols, x, rng, &mut change);
        touched.clear();
        touched.extend(change.iter().flat_map(|(site, _)| outputs[*site].iter().copied()));
        touched.sort_unstable();
        touched.dedup();
        let fit = |x: &[u8]| touched.iter().map(|&k| local.term(row, k, x)).sum::<f64>();
        let gain = prior_gain(log_probs, symbols, x, &change) - fit(x);
        swap(x, &mut change);
        if u.ln() < gain + fit(x) {
            accepted += 1;
        } else {
            swap(x, &mut change);
        }
    }
    accepted
}

impl Registered for Flips {
    const NEEDS: &'static [Need] = &[Need::Tokens];

    fn check(&self) -> Result<()> {
        check_some("flips.sweeps", self.sweeps)?;
        Ok(())
    }
}

impl Kernel for Flips {
    fn name(&self) -> &'static str {
        "flips"
    }

    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let Approx::Sites { start, log_probs, symbols } = target.approx else {
            return Err(Error::missing("flips", "a law for each token", target.approx.name()));
        };
        let (likelihood, rows) = (target.likelihood, start.dims()[0]);
        let at = Address::new(step.index, Purpose::Kernel, 0);
        let mut x: Vec<u8> = start.flatten_all()?.to_vec1()?;
        let sites = x.len() / rows.max(1);
        let proposals = self.sweeps * sites;
        let laws = |row: usize| (&log_probs[row * sites * symbols..(row + 1) * sites * symbols], *symbols);
        let (accepted, operator_calls) = match likelihood.as_local() {
            Some(local) => {
                let chains = x.par_chunks_mut(sites).enumerate();
                let run = |(row, x): (usize, &mut [u8])| {
                    run_local(self, local, row, laws(row), x, &mut noise.stream(row, at))
                };
                // What a proposal asks of the operator is a few of its outputs, not an application.
                (chains.map(run).collect(), 1)
            }
            None if self.joint => {
                let needs = "a measurement of few tokens at a time";
                return Err(Error::missing("flips with joint changes", needs, likelihood.name()));
            }
            None => {
                let tensor = |x: &[u8]| Tensor::from_slice(x, start.dims(), &Device::Cpu);
                let mut rngs: Vec<ChaCha8Rng> = (0..rows).map(|row| noise.stream(row, at)).collect();
                let mut changes = vec![Change::new(); rows];
                let mut fit = likelihood.log_prob(&tensor(&x)?)?;
                let mut accepted = vec![0; rows];
                for j in 0..proposals {
                    let mut decisions = Vec::with_capacity(rows);
                    for (row, x) in x.chunks_mut(sites).enumerate() {
                        let (rng, change) = (&mut rngs[row], &mut changes[row]);
                        let u = propose(None, j, *symbols, x, rng, change);
                        decisions.push((u, prior_gain(laws(row).0, *symbols, x, change)));
                        swap(x, change);
                    }
                    let proposed = likelihood.log_prob(&tensor(&x)?)?;
                    for (row, x) in x.chunks_mut(sites).enumerate() {
                        let (u, gain) = decisions[row];
                        if u.ln() < gain + proposed[row] - fit[row] {
                            fit[row] = proposed[row];
                            accepted[row] += 1;
                        } else {
                            swap(x, &mut changes[row]);
                        }
                    }
                }
                (accepted, proposals + 1)
            }
        };
        let accepted: Vec<usize> = accepted;
        let info = ChainInfo {
            acceptance: Some(accepted.iter().map(|a| *a as f64 / proposals as f64).collect()),
            diverged: vec![false; rows],
            cost: Cost { nfe: 0, operator_calls },
            iterations: None,
        };
        Ok((Tensor::from_vec(x, start.dims(), &Device::Cpu)?, info))
    }
}
