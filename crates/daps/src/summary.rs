//! What a run found: means and deviations, errors against the measurement and the truth, and how far the chains agree.

use std::collections::BTreeMap;

use candle_core::Tensor;
use daps_core::Cost;
use daps_core::real::to_f64;
use daps_metrics::calibration::{Coverage, rank};
use daps_metrics::diagnostics::diagnose;
use daps_metrics::image::{psnr, ssim};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::choose::{self, Choice};
use crate::picture::{Snapshot, is_image};
use crate::run::Run;
use crate::{Error, Result};

/// Deviations of χ² beyond which a residual is called wrong.
const FAR: f64 = 5.0;
/// R̂ beyond which chains are said to disagree.
const APART: f64 = 1.2;

/// What a run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// What people call the prior, with the digest of its weights.
    #[serde(default)]
    pub prior: String,
    /// Samples in all.
    pub samples: usize,
    /// Chains that diverged; they are in the files and left out of means and errors.
    pub diverged: usize,
    /// Denoiser calls per sample.
    pub nfe: usize,
    /// Operator calls per sample.
    pub operator_calls: usize,
    /// Mean over samples of ‖A(x) - y‖²/(m β²): near 1 for posterior samples, whose residual is distributed as the noise.
    #[serde(deserialize_with = "number")]
    pub residual_chi2: f64,
    /// RMS difference of the samples' mean and the truth, where the truth is known; over the measurements that have a mean.
    pub rmse: Option<f64>,
    /// RMS over values of the samples' standard deviation, over the measurements that have several samples.
    pub spread: Option<f64>,
    /// RMS difference of the samples' mean and the exact posterior mean, where that is known; over the same as `rmse`.
    pub mean_error: Option<f64>,
    /// Mean over measurements and samples of the PSNR in dB, where the truth is known.
    pub psnr: Option<f64>,
    /// The same of SSIM.
    pub ssim: Option<f64>,
    /// What a user should know before believing the result.
    pub warnings: Vec<String>,
    /// Every measurement on its own.
    pub measurements: Vec<Measurement>,
}

/// What was found for one measurement. Lists have one number per chain; that of a diverged chain is null.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Its name.
    pub name: String,
    /// The chain to show: of the smallest measurement error, ties (where several pictures explain a measurement) by the prior.
    pub chosen: usize,
    /// The chains that mean and deviation are taken over.
    pub kept: Vec<usize>,
    /// RMS of A(x) - y over what was measured.
    #[serde(deserialize_with = "numbers")]
    pub error: Vec<f64>,
    /// ‖A(x) - y‖²/(m β²), mean over the kept chains.
    #[serde(deserialize_with = "number")]
    pub chi2: f64,
    /// How far that is from 1, in standard deviations of χ²; null for tokens, whose noise has no χ².
    #[serde(deserialize_with = "number")]
    pub chi2_z: f64,
    /// Where tokens were measured, the share of them that the kept chains miss.
    #[serde(default)]
    pub missed: Option<f64>,
    /// RMS error of the prior when it denoises the sample from σ = 0.5, where it was needed to choose.
    #[serde(deserialize_with = "some_numbers")]
    pub denoising_error: Option<Vec<f64>>,
    /// PSNR in dB.
    #[serde(deserialize_with = "some_numbers")]
    pub psnr: Option<Vec<f64>>,
    /// SSIM.
    #[serde(deserialize_with = "some_numbers")]
    pub ssim: Option<Vec<f64>>,
    /// PSNR of the mean.
    pub mean_psnr: Option<f64>,
    /// SSIM of the mean.
    pub mean_ssim: Option<f64>,
    /// E‖s - s'‖²/E‖s - truth‖² over pairs of samples: 1 for exact posterior samples, less where they are too much alike.
    pub diversity: Option<f64>,
    /// Its numerator: over several measurements, means of both are divided, and not ratios averaged.
    pub apart: Option<f64>,
    /// Its denominator.
    pub away: Option<f64>,
    /// RMS over values of the samples' standard deviation, where there are several.
    #[serde(default)]
    pub spread: Option<f64>,
    /// The share of the true values that lie between the smallest and the largest sample.
    #[serde(default)]
    pub coverage: Option<f64>,
    /// What that share is for exact posterior samples: (n - 1)/(n + 1) of n samples.
    #[serde(default)]
    pub coverage_nominal: Option<f64>,
    /// Split R̂ across chains of χ² over the last half of the levels, where those are at least eight and chains at least two: in
    /// one chain it would tell how χ² changes with the levels, and not whether chains agree.
    pub r_hat: Option<f64>,
    /// Effective number of draws of the same.
    pub effective: Option<f64>,
}

impl Measurement {
    /// How far samples are from it: χ² per number at its noise; of tokens, whose noise has none, the share that they miss.
    #[must_use]
    pub fn misfit(&self) -> f64 {
        self.missed.unwrap_or(self.chi2)
    }

    /// PSNR of a sample in dB, mean over those that have one.
    #[must_use]
    pub fn sample_psnr(&self) -> Option<f64> {
        average(self.psnr.iter().flatten().copied())
    }

    /// The same of SSIM.
    #[must_use]
    pub fn sample_ssim(&self) -> Option<f64> {
        average(self.ssim.iter().flatten().copied())
    }
}

impl Summary {
    /// The share of the measured tokens that samples miss, mean over the measurements of tokens.
    #[must_use]
    pub fn missed(&self) -> Option<f64> {
        average(self.measurements.iter().filter_map(|m| m.missed))
    }

    /// The share of the true values that lie between the smallest and the largest sample, and what it is for exact samples, mean
    /// over the measurements that have several samples and a truth.
    #[must_use]
    pub fn coverage(&self) -> Option<(f64, f64)> {
        let of = |f: fn(&Measurement) -> Option<f64>| average(self.measurements.iter().filter_map(f));
        of(|m| m.coverage).zip(of(|m| m.coverage_nominal))
    }

    /// What [`Measurement::misfit`] is of these measurements.
    #[must_use]
    pub fn misfit_title(&self) -> &'static str {
        misfit_title(self.missed().is_some())
    }
}

/// What the misfit of tokens is, or of numbers.
pub(crate) fn misfit_title(tokens: bool) -> &'static str {
    if tokens { "measured tokens missed, share" } else { "χ² per number" }
}

/// JSON has null where a number is not finite.
fn number<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

fn numbers<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<f64>, D::Error> {
    Ok(some_numbers(from)?.unwrap_or_default())
}

fn some_numbers<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Vec<f64>>, D::Error> {
    let list = Option::<Vec<Option<f64>>>::deserialize(from)?;
    Ok(list.map(|l| l.into_iter().map(|v| v.unwrap_or(f64::NAN)).collect()))
}

/// The curves of one measurement over the levels, `[chain][level]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curves {
    pub sigma: Vec<f64>,
    pub chi2: Vec<Vec<f64>>,
    pub psnr: Vec<Vec<f64>>,
    pub ssim: Vec<Vec<f64>>,
}

/// Everything that is written and shown at the end.
pub(crate) struct Outcome {
    pub samples: Tensor,
    /// One sample after the other.
    pub values: Vec<f64>,
    /// Per measurement.
    pub mean: Vec<Vec<f64>>,
    /// Per measurement, where there are at least two chains.
    pub std: Vec<Option<Vec<f64>>>,
    pub curves: Vec<Curves>,
    pub snapshots: BTreeMap<(u64, usize), Snapshot>,
    pub summary: Summary,
}

/// PSNR and SSIM of an image in [-1, 1], clipped to it; SSIM needs 11 pixels a side.
pub(crate) fn quality(x: &[f64], truth: &[f64], shape: [usize; 3]) -> (Option<f64>, Option<f64>) {
    if x.iter().any(|v| !v.is_finite()) {
        return (None, None);
    }
    let unit = |v: &[f64]| v.iter().map(|v| (0.5 * v + 0.5).clamp(0.0, 1.0)).collect::<Vec<_>>();
    let (x, truth) = (unit(x), unit(truth));
    (psnr(&x, &truth, 1.0).ok(), ssim(&x, &truth, shape).ok())
}

fn rms(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0usize), |(s, n), v| (s + v * v, n + 1));
    (sum / n as f64).sqrt()
}

/// A number that is one.
pub(crate) fn finite(v: f64) -> Option<f64> {
    v.is_finite().then_some(v)
}

/// The mean of the numbers that are finite, where there are any.
pub(crate) fn average(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.filter(|v| v.is_finite()).fold((0.0, 0usize), |(s, n), v| (s + v, n + 1));
    (n > 0).then(|| sum / n as f64)
}

impl Outcome {
    pub fn new(
        run: &Run,
        samples: Tensor,
        diverged: Vec<bool>,
        cost: Cost,
        trace: &[String],
        snapshots: BTreeMap<(u64, usize), Snapshot>,
    ) -> Result<Self> {
        let (d, k) = (run.config.task.shape.iter().product::<usize>(), run.config.samples);
        let values = to_f64(&run.values(&samples)?)?;
        let truth = run.truth.as_ref().map(to_f64).transpose()?;
        let all: Vec<usize> = (0..run.rows.len()).collect();
        let chi2 = run.chi2(&*run.task(&all)?.likelihood, &samples)?;
        let curves = read_curves(run, trace)?;
        let (mut means, mut stds, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..run.names.len() {
            let rows = i * k..(i + 1) * k;
            let choice =
                choose::choose(run, &samples, rows.clone(), &chi2[rows.clone()], &diverged[rows.clone()])?;
            let chain = |c: usize| &values[(i * k + c) * d..(i * k + c + 1) * d];
            let (mean, std) = moments(&choice.kept, chain, d);
            let truth = truth.as_ref().map(|t| &t[i * d..(i + 1) * d]);
            let one = Measurement::new(run, i, &choice, &chi2[rows.clone()], &diverged[rows]);
            found.push(one.compared(run, truth, k, chain, (&mean, std.as_deref())).diagnosed(&curves[i]));
            means.push(mean);
            stds.push(std);
        }
        let kept = chi2.iter().zip(&diverged).filter(|(_, d)| !**d).map(|(c, _)| *c);
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
        let mut summary = Summary {
            prior: run.prior().to_owned(),
            samples: diverged.len(),
            diverged: diverged.iter().filter(|d| **d).count(),
            nfe: cost.nfe,
            operator_calls: cost.operator_calls,
            residual_chi2: average(kept).unwrap_or(f64::NAN),
            rmse: difference(&|i| Some(truth.as_ref()?[i * d..(i + 1) * d].to_vec())),
            spread: finite(rms(stds.iter().flatten().flatten().copied())),
            mean_error: difference(&|i| run.posterior_mean(i)),
            psnr: of(|m| &m.psnr),
            ssim: of(|m| &m.ssim),
            warnings: vec![],
            measurements: found,
        };
        summary.warn();
        Ok(Self { samples, values, mean: means, std: stds, curves, snapshots, summary })
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

/// RMS of a residual whose χ² per number is `chi2` at the noise β.
fn error_of(chi2: f64, beta: f64) -> f64 {
    chi2.sqrt() * beta
}

/// How far a χ² per number over `m` numbers is from 1, in standard deviations: its variance is 2/m.
fn z_of(chi2: f64, m: f64) -> f64 {
    (chi2 - 1.0) * (0.5 * m).sqrt()
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
    fn new(run: &Run, measurement: usize, choice: &Choice, chi2: &[f64], diverged: &[bool]) -> Self {
        let m = run.measured(measurement) as f64;
        let fit = average(choice.kept.iter().map(|&c| chi2[c])).unwrap_or(f64::NAN);
        let error = |(c, lost): (&f64, &bool)| match *lost {
            true => f64::NAN,
            false => error_of(*c, run.config.task.noise),
        };
        let missed = run.is_discrete().then(|| fit * run.config.task.noise.powi(2));
        Self {
            name: run.names[measurement].clone(),
            chosen: choice.chosen,
            kept: choice.kept.clone(),
            error: chi2.iter().zip(diverged).map(error).collect(),
            chi2: fit,
            chi2_z: if run.is_discrete() { f64::NAN } else { z_of(fit, m) },
            missed: missed.filter(|m| m.is_finite()),
            denoising_error: choice.denoising_error.clone(),
            psnr: None,
            ssim: None,
            mean_psnr: None,
            mean_ssim: None,
            diversity: None,
            apart: None,
            away: None,
            spread: None,
            coverage: None,
            coverage_nominal: None,
            r_hat: None,
            effective: None,
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
        // Tokens have ties and no order.
        if let Some(coverage) = (!run.is_discrete()).then(|| covered(&self.kept, &chain, truth)).flatten() {
            (self.coverage, self.coverage_nominal) = (Some(coverage.rate()), Some(coverage.nominal));
        }
        if let &[c, h, w] = &run.config.task.shape[..]
            && is_image(&[c, h, w])
        {
            let each = (0..chains).map(|k| match self.error[k].is_finite() {
                true => quality(chain(k), truth, [c, h, w]),
                false => (None, None),
            });
            let (psnr, ssim): (Vec<_>, Vec<_>) = each.unzip();
            let numbers = |list: Vec<Option<f64>>| list.into_iter().map(|v| v.unwrap_or(f64::NAN)).collect();
            self.ssim = ssim.iter().any(Option::is_some).then(|| numbers(ssim));
            self.psnr = Some(numbers(psnr));
            (self.mean_psnr, self.mean_ssim) = quality(mean, truth, [c, h, w]);
        }
        self
    }

    /// With what the levels tell.
    fn diagnosed(mut self, curves: &Curves) -> Self {
        // Fewer draws say nothing.
        const FEWEST: usize = 8;
        let levels = curves.sigma.len();
        let last = levels - levels / 2;
        if levels - last < FEWEST || self.kept.len() < 2 {
            return self;
        }
        let chains: Vec<Vec<f64>> =
            self.kept.iter().filter_map(|&c| curves.chi2.get(c)).map(|c| c[last..].to_vec()).collect();
        if let Ok(diagnosis) = diagnose(&chains) {
            (self.r_hat, self.effective) = (Some(diagnosis.r_hat), Some(diagnosis.effective));
        }
        self
    }
}

impl Summary {
    fn warn(&mut self) {
        let mut warnings = Vec::new();
        if self.diverged > 0 {
            warnings
                .push(format!("{} of {} chains diverged; means leave them out", self.diverged, self.samples));
        }
        for m in &self.measurements {
            let size =
                format!("chi2 is {:.3} per number, {:+.1} standard deviations from 1", m.chi2, m.chi2_z);
            if m.chi2_z > FAR {
                warnings.push(format!(
                    "{}: the samples miss the measurement by more than its noise ({size})",
                    m.name
                ));
            } else if m.chi2_z < -FAR {
                warnings.push(format!(
                    "{}: the samples fit the measurement closer than its noise ({size})",
                    m.name
                ));
            }
            if m.kept.len() < m.error.iter().filter(|e| e.is_finite()).count() {
                let (kept, all) = (m.kept.len(), m.error.len());
                warnings.push(format!("{}: {kept} of {all} chains ended at the chosen picture", m.name));
            }
            if m.r_hat.is_some_and(|r| r > APART) {
                let r = m.r_hat.unwrap_or(f64::NAN);
                warnings.push(format!(
                    "{}: the chains disagree about the measurement error (R-hat {r:.2})",
                    m.name
                ));
            }
        }
        self.warnings = warnings;
    }
}

/// The trace by measurement and chain.
fn read_curves(run: &Run, trace: &[String]) -> Result<Vec<Curves>> {
    let (levels, chains) = (run.method.levels(), run.config.samples);
    let blank = || vec![vec![f64::NAN; levels]; chains];
    let mut all = vec![
        Curves { sigma: vec![f64::NAN; levels], chi2: blank(), psnr: blank(), ssim: blank() };
        run.names.len()
    ];
    for line in trace {
        let line: Value =
            serde_json::from_str(line).map_err(|e| Error::Config(format!("damaged trace.jsonl: {e}")))?;
        let (batch, level) =
            (line["batch"].as_u64().unwrap_or(0) as usize, line["level"].as_u64().unwrap_or(0) as usize);
        for i in 0..line["chi2"].as_array().map_or(0, Vec::len) {
            let Some(row) = run.rows.get(batch * run.config.batch + i).filter(|_| level < levels) else {
                continue;
            };
            let (curves, chain) = (&mut all[row.measurement as usize], row.chain as usize);
            curves.sigma[level] = line["sigma"].as_f64().unwrap_or(f64::NAN);
            let number = |key: &str| line[key][i].as_f64().unwrap_or(f64::NAN);
            curves.chi2[chain][level] = number("chi2");
            curves.psnr[chain][level] = number("psnr");
            curves.ssim[chain][level] = number("ssim");
        }
    }
    Ok(all)
}

impl Run {
    /// The exact posterior mean of a measurement, where prior and operator give it and the problem is small.
    fn posterior_mean(&self, measurement: usize) -> Option<Vec<f64>> {
        const SMALL: usize = 1024;
        let d: usize = self.config.task.shape.iter().product();
        let prior = self.analytic.as_ref().filter(|_| d <= SMALL && self.operator.as_linear().is_some())?;
        let likelihood = self.likelihood.as_gaussian()?;
        prior.posterior(likelihood, measurement).ok()?.mean().ok()
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

    /// A residual of twice the noise: χ² is 4, and of 50 numbers its standard deviation is 1/5.
    #[test]
    fn residuals_are_told_in_units_of_the_noise() {
        assert!((error_of(4.0, 0.05) - 0.1).abs() < 1e-12);
        assert!((z_of(4.0, 50.0) - 15.0).abs() < 1e-12);
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
