//! From the chains of a run to what it found: means and deviations, errors against the measurement and the truth.
//!
//! Everything is a function of rows that are keyed by (measurement, chain), so that it does not matter who drew them and in what
//! order they come.

use std::collections::BTreeMap;

use candle_core::Tensor;
use daps_core::tensors::to_f64;
use daps_core::{Discrepancy, Statistic};
use daps_metrics::calibration::{Coverage, rank};

use crate::answer::Answers;
use crate::choose::{self, Choice};
use crate::event::LevelDone;
use crate::ledger::{Chains, Ledger};
use crate::picture::Snapshot;
use crate::quality::of_samples;
use crate::run::Run;
use crate::summary::{Measurement, Summary, average, finite};
use crate::{Error, Result};

/// The curves of one measurement over the levels, `[chain][level]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curves {
    pub sigma: Vec<f64>,
    pub discrepancy: Vec<Vec<f64>>,
    pub psnr: Vec<Vec<f64>>,
    pub ssim: Vec<Vec<f64>>,
}

/// What a run found: everything that is written and shown at its end.
pub struct Outcome {
    /// All samples, `[rows, shape…]`.
    pub samples: Tensor,
    /// The same as pictures' values, one sample after the other.
    pub values: Vec<f64>,
    /// Per measurement.
    pub(crate) mean: Vec<Vec<f64>>,
    /// Per measurement, where there are at least two chains.
    pub(crate) std: Vec<Option<Vec<f64>>>,
    pub(crate) diverged: Vec<bool>,
    /// Discrepancy of every chain.
    pub(crate) misfits: Vec<Discrepancy>,
    pub(crate) curves: Vec<Curves>,
    pub(crate) snapshots: BTreeMap<(u64, usize), Snapshot>,
    /// The numbers.
    pub summary: Summary,
}

fn rms(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0usize), |(s, n), v| (s + v * v, n + 1));
    (sum / n as f64).sqrt()
}

impl Outcome {
    /// Judges the samples of a ledger, which has to have one of every chain of the run.
    pub fn new(run: &Run, ledger: Ledger) -> Result<Self> {
        let Ledger { done, cost, trace, snapshots, .. } = ledger;
        let chains = Chains::merged(&done)?;
        if chains.rows != run.rows {
            let what = format!(
                "expected one sample of every chain, {} in all, got {}",
                run.rows.len(),
                chains.rows.len()
            );
            return Err(Error::Config(what));
        }
        let Chains { x: samples, diverged, parameters, .. } = chains;
        let (d, k) = (run.space.size(), run.samples);
        let values = to_f64(&run.values(&samples)?)?;
        let truth = run.truth.as_ref().map(to_f64).transpose()?;
        let all: Vec<usize> = (0..run.rows.len()).collect();
        let likelihood = run.task(&all)?.likelihood;
        let known = match (likelihood.as_nuisance(), &parameters) {
            (Some(nuisance), Some(own)) => nuisance.with(own)?,
            _ => likelihood,
        };
        let misfits = known.discrepancy(&samples)?;
        let own = parameters
            .map(|p| Ok::<_, Error>((p.elem_count() / p.dims()[0].max(1), to_f64(&p)?)))
            .transpose()?;
        let curves = curves(run, &trace);
        let (mut means, mut stds, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..run.names.len() {
            let rows = i * k..(i + 1) * k;
            let (misfits, lost) = (&misfits[rows.clone()], &diverged[rows.clone()]);
            let choice = choose::choose(run, &samples, rows.clone(), misfits, lost)?;
            let chain = |c: usize| &values[(i * k + c) * d..(i * k + c + 1) * d];
            let (mean, std) = moments(&choice.kept, chain, d);
            let truth = truth.as_ref().map(|t| &t[i * d..(i + 1) * d]);
            let mut one = Measurement::new(run.names[i].clone(), &choice, known.statistic(), misfits, lost);
            one.parameters =
                own.as_ref().map(|(n, all)| rows.map(|row| all[row * n..(row + 1) * n].to_vec()).collect());
            found.push(one.compared(run, truth, k, chain, (&mean, std.as_deref())));
            means.push(mean);
            stds.push(std);
        }
        // A measurement all of whose chains diverged has no mean, and costs the others theirs no more than that.
        let left: Vec<usize> = (0..found.len()).filter(|&i| !found[i].kept.is_empty()).collect();
        let difference = |of: &dyn Fn(usize) -> Option<Vec<f64>>| -> Option<f64> {
            let others = left.iter().map(|&i| of(i)).collect::<Option<Vec<_>>>()?;
            let pairs = left.iter().flat_map(|&i| &means[i]).zip(others.iter().flatten());
            finite(rms(pairs.map(|(a, b)| a - b)))
        };
        let of = |f: fn(&Measurement) -> &Option<Vec<f64>>| {
            average(found.iter().flat_map(|m| f(m).iter().flatten().copied()))
        };
        let kept = misfits.iter().zip(&diverged).filter(|(_, d)| !**d).map(|(m, _)| m.value);
        let expected = known.statistic().expected();
        let mut summary = Summary {
            samples: diverged.len(),
            diverged: diverged.iter().filter(|d| **d).count(),
            nfe: cost.nfe,
            operator_calls: cost.operator_calls,
            prior: run.about.prior.clone(),
            residual_chi2: average(kept).filter(|_| expected.is_some()).unwrap_or(f64::NAN),
            rmse: difference(&|i| Some(truth.as_ref()?[i * d..(i + 1) * d].to_vec())),
            spread: finite(rms(stds.iter().flatten().flatten().copied())),
            mean_error: difference(&|i| run.posterior_mean(i)),
            psnr: of(|m| &m.psnr),
            ssim: of(|m| &m.ssim),
            answer: Answers::new(run.answer, &found, k, cost.nfe),
            warnings: vec![],
            measurements: found,
        };
        summary.warn();
        Ok(Self { samples, values, mean: means, std: stds, diverged, misfits, curves, snapshots, summary })
    }
}

impl Outcome {
    /// The mean of a measurement's samples.
    #[must_use]
    pub fn mean(&self, measurement: usize) -> &[f64] {
        &self.mean[measurement]
    }
}

/// Mean and standard deviation over some chains, value by value.
fn moments<'a>(kept: &[usize], chain: impl Fn(usize) -> &'a [f64], d: usize) -> (Vec<f64>, Option<Vec<f64>>) {
    let n = kept.len() as f64;
    let mean: Vec<f64> = (0..d).map(|j| kept.iter().map(|&c| chain(c)[j]).sum::<f64>() / n).collect();
    let deviation = |(j, m): (usize, &f64)| {
        (kept.iter().map(|&c| (chain(c)[j] - m).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
    };
    let std = (kept.len() > 1).then(|| mean.iter().enumerate().map(deviation).collect());
    (mean, std)
}

/// E‖s - s'‖² over pairs of samples, which is twice their variance, and E‖s - truth‖².
fn distances<'a>(
    kept: &[usize],
    chain: impl Fn(usize) -> &'a [f64],
    std: &[f64],
    truth: &[f64],
) -> (f64, Option<f64>) {
    let distance = |c: &usize| chain(*c).iter().zip(truth).map(|(x, t)| (x - t).powi(2)).sum::<f64>();
    (2.0 * std.iter().map(|s| s * s).sum::<f64>(), average(kept.iter().map(distance)))
}

/// How many true values lie between the smallest and the largest of several samples.
fn covered<'a>(kept: &[usize], chain: impl Fn(usize) -> &'a [f64], truth: &[f64]) -> Option<Coverage> {
    let n = kept.len();
    // One sample holds nothing between its ends.
    let level = (n > 1).then(|| (n - 1) as f64 / (n + 1) as f64)?;
    let draws = |j: usize| kept.iter().map(|&c| chain(c)[j]).collect::<Vec<f64>>();
    let ranks: Vec<usize> = truth.iter().enumerate().map(|(j, t)| rank(*t, &draws(j))).collect();
    Coverage::of_ranks(level, &ranks, n).ok()
}

impl Measurement {
    fn new(
        name: String,
        choice: &Choice,
        statistic: Statistic,
        misfits: &[Discrepancy],
        diverged: &[bool],
    ) -> Self {
        let mean = |of: fn(&Discrepancy) -> f64| {
            average(choice.kept.iter().map(|&c| of(&misfits[c]))).unwrap_or(f64::NAN)
        };
        let fit = mean(|m| m.value);
        let is_number = statistic.expected().is_some();
        let error = |(m, lost): (&Discrepancy, &bool)| if *lost { f64::NAN } else { m.error };
        Self {
            name,
            chosen: choice.chosen,
            kept: choice.kept.clone(),
            diverged: (0..diverged.len()).filter(|&c| diverged[c]).collect(),
            error: misfits.iter().zip(diverged).map(error).collect(),
            statistic: statistic.title().to_owned(),
            chi2: if is_number { fit } else { f64::NAN },
            chi2_z: if is_number { (fit - 1.0) / mean(|m| m.deviation) } else { f64::NAN },
            missed: (!is_number).then_some(fit).and_then(finite),
            denoising_error: choice.denoising_error.clone(),
            ..Self::default()
        }
    }

    /// With how far the samples are from each other, and with what the truth tells.
    fn compared<'a>(
        mut self,
        run: &Run,
        truth: Option<&[f64]>,
        chains: usize,
        chain: impl Fn(usize) -> &'a [f64],
        (mean, std): (&[f64], Option<&[f64]>),
    ) -> Self {
        self.spread = std.and_then(|std| finite(rms(std.iter().copied())));
        let Some(truth) = truth else { return self };
        if let Some(std) = std {
            let (apart, away) = distances(&self.kept, &chain, std, truth);
            (self.apart, self.away) = (Some(apart), away);
            self.diversity = away.map(|away| apart / away);
        }
        let metrics = run.space.metrics();
        if let Some(coverage) = metrics.ranks.then(|| covered(&self.kept, &chain, truth)).flatten() {
            (self.coverage, self.coverage_nominal) = (Some(coverage.rate()), Some(coverage.nominal));
        }
        if metrics.quality {
            let each = (0..chains).map(|k| match self.diverged.contains(&k) {
                false => of_samples(&run.space, chain(k), truth),
                true => (None, None),
            });
            let (psnr, ssim): (Vec<_>, Vec<_>) = each.unzip();
            let numbers = |list: Vec<Option<f64>>| list.into_iter().map(|v| v.unwrap_or(f64::NAN)).collect();
            self.ssim = ssim.iter().any(Option::is_some).then(|| numbers(ssim));
            self.psnr = Some(numbers(psnr));
            (self.mean_psnr, self.mean_ssim) = of_samples(&run.space, mean, truth);
        }
        self
    }
}

/// The trace by measurement and chain.
fn curves(run: &Run, trace: &[LevelDone]) -> Vec<Curves> {
    let (levels, chains) = (run.method.levels(), run.samples);
    let blank = || vec![vec![f64::NAN; levels]; chains];
    let mut all =
        vec![
            Curves { sigma: vec![f64::NAN; levels], discrepancy: blank(), psnr: blank(), ssim: blank() };
            run.names.len()
        ];
    for line in trace {
        for (i, &(measurement, chain)) in line.rows.iter().enumerate() {
            let (curves, chain) = (&mut all[measurement as usize], chain as usize);
            curves.sigma[line.level] = line.sigma;
            let at = |list: &[f64]| list.get(i).copied().unwrap_or(f64::NAN);
            curves.discrepancy[chain][line.level] = at(&line.discrepancy);
            curves.psnr[chain][line.level] = at(&line.psnr);
            curves.ssim[chain][line.level] = at(&line.ssim);
        }
    }
    all
}

impl Run {
    /// The exact posterior mean of a measurement, where prior and operator give it and the problem is small.
    fn posterior_mean(&self, measurement: usize) -> Option<Vec<f64>> {
        const SMALL: usize = 1024;
        let prior = self.analytic.as_ref().filter(|_| self.space.size() <= SMALL)?;
        let likelihood = &self.problem.likelihood;
        let gaussian = likelihood.as_gaussian().filter(|_| likelihood.as_nuisance().is_none())?;
        gaussian.operator().as_linear()?;
        prior.posterior(gaussian, measurement).ok()?.mean().ok()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use daps_core::{Address, Noise, Purpose};

    use super::*;

    /// Two chains at 1 and -1 around a truth of 0, with a third that is not kept: 4 apart, 1 away from the truth.
    #[test]
    fn distances_are_those_of_pairs_of_samples() {
        let chains = [[1.0, 1.0], [9.0, 9.0], [-1.0, 1.0]];
        let chain = |c: usize| &chains[c][..];
        let (mean, std) = moments(&[0, 2], chain, 2);
        let std = std.unwrap();
        assert_eq!(mean, [0.0, 1.0]);
        assert!((std[0] - 2f64.sqrt()).abs() < 1e-12 && std[1] == 0.0, "{std:?}");
        let (apart, away) = distances(&[0, 2], chain, &std, &[0.0, 1.0]);
        assert!((apart - 4.0).abs() < 1e-12 && away == Some(1.0), "{apart}, {away:?}");
    }

    /// The truth is one more draw: of five, it is neither the smallest nor the largest three times of five. Samples of half the
    /// deviation hold it less often, and one sample nothing.
    #[test]
    fn samples_of_one_law_hold_the_truth_as_often_as_they_should() {
        const VALUES: usize = 4000;
        let at = Address::new(0, Purpose::Reference, 0);
        let draws = Noise::chains(3, 5).normal(at, &[VALUES], DType::F64).unwrap();
        let draws = to_f64(&draws).unwrap();
        let (truth, rest) = draws.split_at(VALUES);
        let half: Vec<f64> = rest.iter().map(|v| 0.5 * v).collect();
        let found = |of: &[f64], kept: &[usize]| {
            let chain = |c: usize| &of[c * VALUES..(c + 1) * VALUES];
            covered(kept, chain, truth).map(|c| (c.nominal, c.z()))
        };
        let (nominal, z) = found(rest, &[0, 1, 2, 3]).unwrap();
        assert!((nominal - 0.6).abs() < 1e-12 && z.abs() < 4.0, "{nominal}: {z}");
        let (nominal, z) = found(rest, &[1, 3]).unwrap();
        assert!((nominal - 1.0 / 3.0).abs() < 1e-12 && z.abs() < 4.0, "{nominal}: {z}");
        assert!(found(&half, &[0, 1, 2, 3]).unwrap().1 < -10.0);
        assert_eq!(found(rest, &[2]), None);
    }
}
