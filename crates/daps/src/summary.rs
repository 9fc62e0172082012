//! What a run found, as numbers: what `metrics.json` holds.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::answer::Answers;
use crate::{Answer, Error, Result, numbers};

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
    /// Mean over samples of the discrepancy: near 1 for posterior samples, whose residual is distributed as the noise; null for
    /// tokens.
    #[serde(with = "numbers::one")]
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
    /// The answers, one to each measurement; runs of older versions have none.
    #[serde(default)]
    pub answer: Answers,
    /// What a user should know before believing the result.
    pub warnings: Vec<String>,
    /// Every measurement on its own.
    pub measurements: Vec<Measurement>,
}

/// What was found for one measurement. Lists have one number per chain; that of a diverged chain is null.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measurement {
    /// Its name.
    pub name: String,
    /// The chain to show: of the smallest measurement error, ties (where several pictures explain a measurement) by the prior.
    pub chosen: usize,
    /// The chains that mean and deviation are taken over.
    pub kept: Vec<usize>,
    /// The chains that diverged.
    #[serde(default)]
    pub diverged: Vec<usize>,
    /// RMS of y - E[y | x] over what was measured, in the measurement's own unit.
    #[serde(with = "numbers::list")]
    pub error: Vec<f64>,
    /// Which statistic `chi2` is: "χ²", "Pearson's χ²" for counts, "missed" for tokens.
    #[serde(default)]
    pub statistic: String,
    /// The discrepancy of the noise model, whose expectation is 1, mean over the kept chains: ‖A(x) - y‖²/(m β²) for Gaussian
    /// noise, Pearson's statistic for counts; null for tokens.
    #[serde(with = "numbers::one")]
    pub chi2: f64,
    /// How far that is from 1, in the standard deviations of one sample's; null for tokens.
    #[serde(with = "numbers::one")]
    pub chi2_z: f64,
    /// Where tokens were measured, the share of them that the kept chains miss.
    #[serde(default)]
    pub missed: Option<f64>,
    /// RMS error of the prior when it denoises the sample from σ = 0.5, where it was needed to choose.
    #[serde(with = "numbers::some_list")]
    pub denoising_error: Option<Vec<f64>>,
    /// PSNR in dB.
    #[serde(with = "numbers::some_list")]
    pub psnr: Option<Vec<f64>>,
    /// SSIM.
    #[serde(with = "numbers::some_list")]
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
    /// What was drawn of the likelihood's own parameters, such as an unknown noise level, per chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Vec<Vec<f64>>>,
}

impl Measurement {
    /// How far samples are from it: the discrepancy; for tokens, whose noise has none, the share that they miss.
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
    pub fn misfit_title(&self) -> &str {
        self.measurements.first().map_or("", |m| &m.statistic)
    }
}

impl Summary {
    /// What runs of several shapes found: for each the folder where it lies, the numbers of a sample, and what it found. A measurement is
    /// called by its folder and its name.
    pub(crate) fn of_parts(parts: Vec<(String, usize, Self)>, answer: Answer, chains: usize) -> Self {
        // Weighed by the numbers that each mean is taken over.
        let mean = |of: &dyn Fn(&Self) -> Option<f64>, weight: &dyn Fn(usize, &Self) -> f64| {
            let each = parts.iter().filter_map(|(_, d, part)| Some((finite(of(part)?)?, weight(*d, part))));
            let (sum, all) = each.fold((0.0, 0.0), |(sum, all), (v, w)| (sum + w * v, all + w));
            (all > 0.0).then(|| sum / all)
        };
        let left = |part: &Self| part.measurements.iter().filter(|m| !m.kept.is_empty()).count() as f64;
        let rms = |of: fn(&Self) -> Option<f64>| {
            mean(&|part| Some(of(part)?.powi(2)), &|d, part| d as f64 * left(part)).map(f64::sqrt)
        };
        let chi2 = mean(&|part| Some(part.residual_chi2), &|_, part| (part.samples - part.diverged) as f64);
        let (rmse, spread, mean_error) = (rms(|p| p.rmse), rms(|p| p.spread), rms(|p| p.mean_error));
        let sum = |of: fn(&Self) -> usize| parts.iter().map(|(_, _, part)| of(part)).sum();
        let most = |of: fn(&Self) -> usize| parts.iter().map(|(_, _, part)| of(part)).max().unwrap_or(0);
        let (samples, diverged, nfe) = (sum(|p| p.samples), sum(|p| p.diverged), most(|p| p.nfe));
        let operator_calls = most(|p| p.operator_calls);
        let prior = parts.first().map(|(_, _, part)| part.prior.clone()).unwrap_or_default();
        let named = |(folder, _, part): (String, usize, Self)| {
            part.measurements
                .into_iter()
                .map(move |m| Measurement { name: format!("{folder}/{}", m.name), ..m })
        };
        let measurements: Vec<Measurement> = parts.into_iter().flat_map(named).collect();
        let of = |f: fn(&Measurement) -> &Option<Vec<f64>>| {
            average(measurements.iter().flat_map(|m| f(m).iter().flatten().copied()))
        };
        let mut all = Self {
            prior,
            samples,
            diverged,
            nfe,
            operator_calls,
            residual_chi2: chi2.unwrap_or(f64::NAN),
            rmse,
            spread,
            mean_error,
            psnr: of(|m| &m.psnr),
            ssim: of(|m| &m.ssim),
            answer: Answers::new(answer, &measurements, chains, nfe),
            warnings: vec![],
            measurements,
        };
        all.warn();
        all
    }

    /// What the file of a directory's numbers holds.
    pub(crate) fn to_json(&self, directory: &Path) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|e| Error::content(directory, e))
    }
}

/// A discrepancy outside these bounds is far from 1.
const FAR: (f64, f64) = (0.8, 1.25);
/// Standard deviations beyond which it is no chance.
const CHANCE: f64 = 5.0;

impl Measurement {
    /// What a user should know before believing the samples.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let size = || {
            let (value, z) = (self.chi2, self.chi2_z);
            format!("{} is {value:.3}, {z:+.1} standard deviations from 1", self.statistic)
        };
        if self.chi2 > FAR.1 && self.chi2_z > CHANCE {
            let what = "the samples miss the measurement by more than its noise";
            warnings.push(format!("{}: {what} ({})", self.name, size()));
        } else if self.chi2 < FAR.0 && self.chi2_z < -CHANCE {
            let what = "the samples fit the measurement closer than its noise";
            warnings.push(format!("{}: {what} ({})", self.name, size()));
        }
        let (kept, all) = (self.kept.len(), self.error.len());
        if kept < all - self.diverged.len() {
            warnings.push(format!("{}: {kept} of {all} chains ended at the chosen image", self.name));
        }
        warnings
    }
}

impl Summary {
    /// Fills `warnings`.
    pub(crate) fn warn(&mut self) {
        let lost = || format!("{} of {} chains diverged; means leave them out", self.diverged, self.samples);
        let diverged = (self.diverged > 0).then(lost);
        self.warnings =
            diverged.into_iter().chain(self.measurements.iter().flat_map(Measurement::warnings)).collect();
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two images of 10 numbers with 2 samples each, and one of 40, one of whose samples diverged.
    #[test]
    fn parts_make_one_summary() {
        let part = |names: &[&str], psnr: f64, rmse: f64, diverged: usize| {
            let one = |name: &&str| Measurement {
                name: (*name).to_owned(),
                kept: vec![0],
                error: vec![0.1, 0.1],
                psnr: Some(vec![psnr, psnr]),
                mean_psnr: Some(psnr + 1.0),
                chi2: 1.0,
                ..Measurement::default()
            };
            let measurements: Vec<_> = names.iter().map(one).collect();
            let samples = 2 * names.len();
            let of_one = Summary::of_parts(vec![], Answer::Mean, 2);
            Summary {
                samples,
                diverged,
                nfe: 7,
                residual_chi2: rmse,
                rmse: Some(rmse),
                measurements,
                ..of_one
            }
        };
        let (a, b) = (part(&["a", "b"], 20.0, 1.0, 0), part(&["a"], 26.0, 2.0, 1));
        let parts = vec![("3x5".to_owned(), 10, a), ("4x10".to_owned(), 40, b)];
        let all = Summary::of_parts(parts, Answer::Mean, 2);
        let names: Vec<&str> = all.measurements.iter().map(|m| &*m.name).collect();
        assert_eq!(names, ["3x5/a", "3x5/b", "4x10/a"]);
        assert_eq!((all.samples, all.diverged, all.nfe, all.psnr), (6, 1, 7, Some(22.0)));
        assert_eq!((all.answer.psnr, all.answer.calls), (Some(23.0), 14));
        // (2 · 10 · 1² + 40 · 2²)/60, and (4 · 1 + 1 · 2)/5.
        assert!((all.rmse.unwrap().powi(2) - 3.0).abs() < 1e-12 && all.spread.is_none());
        assert!(
            (all.residual_chi2 - 1.2).abs() < 1e-12 && all.warnings[0].starts_with("1 of 6 chains diverged")
        );
    }

    /// A discrepancy warns where it is both far from 1 and no chance.
    #[test]
    fn a_misfit_warns_where_it_is_large_and_sure() {
        let warned = |chi2: f64, chi2_z: f64| {
            let m = Measurement { chi2, chi2_z, kept: vec![0], error: vec![0.1], ..Measurement::default() };
            m.warnings().len()
        };
        assert_eq!([warned(1.3, 6.0), warned(0.7, -6.0)], [1, 1]);
        assert_eq!([warned(1.2, 60.0), warned(1.5, 2.0), warned(f64::NAN, f64::NAN)], [0, 0, 0]);
    }
}
