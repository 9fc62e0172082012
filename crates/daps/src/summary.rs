//! What a run found, as numbers: what `metrics.json` holds.

use serde::{Deserialize, Serialize};

use crate::answer::Answers;
use crate::numbers;

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
