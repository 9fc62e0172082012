//! The one image that a run gives for a measurement: a sample, or the mean of all samples.
//!
//! A sample looks like an image of the prior. The mean has the smallest expected squared error, and is smoother than any image. A method
//! that seeks one answer is to be compared with the mean, at as many denoiser calls as all its samples took.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::summary::{Measurement, average};

/// What a run gives as its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The sample that is closest to the measurement; of one sample, that one.
    #[default]
    Sample,
    /// The mean of all samples.
    Mean,
}

impl Answer {
    /// Whether it is what is given where nothing is said.
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    /// What the answer of a measurement is, for people.
    #[must_use]
    pub fn words(self, found: &Measurement) -> String {
        match (self, found.error.len(), found.kept.len()) {
            (Self::Mean, all, kept) if kept < all => format!("the mean of {kept} of {all} samples"),
            (Self::Mean, 1, _) => "the mean of 1 sample".into(),
            (Self::Mean, all, _) => format!("the mean of {all} samples"),
            (Self::Sample, 1, _) => "one sample".into(),
            (Self::Sample, all, _) => format!("sample {}, chosen of {all}", found.chosen),
        }
    }

    /// PSNR in dB and SSIM of a measurement's answer, where the truth is known.
    fn quality(self, found: &Measurement) -> (Option<f64>, Option<f64>) {
        let chosen = |list: &Option<Vec<f64>>| list.as_ref().and_then(|l| l.get(found.chosen).copied());
        match self {
            Self::Sample => (chosen(&found.psnr), chosen(&found.ssim)),
            Self::Mean => (found.mean_psnr, found.mean_ssim),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Sample => "sample",
            Self::Mean => "mean",
        })
    }
}

impl FromStr for Answer {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let all = [Self::Sample, Self::Mean];
        let found = all.into_iter().find(|answer| answer.to_string() == name);
        found.ok_or_else(|| daps_core::Error::unknown("answer", name, ["sample", "mean"]).into())
    }
}

/// The answers of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    /// What they are.
    pub kind: Answer,
    /// Denoiser calls that an answer took: those of all samples that it was made or chosen from.
    pub calls: usize,
    /// PSNR in dB, mean over measurements, where the truth is known.
    pub psnr: Option<f64>,
    /// The same of SSIM.
    pub ssim: Option<f64>,
}

impl Answers {
    /// Of some measurements with as many samples each, of which one took `nfe` calls.
    pub(crate) fn new(kind: Answer, found: &[Measurement], chains: usize, nfe: usize) -> Self {
        let of: Vec<_> = found.iter().map(|m| kind.quality(m)).collect();
        let psnr = average(of.iter().filter_map(|q| q.0));
        Self { kind, calls: nfe * chains, psnr, ssim: average(of.iter().filter_map(|q| q.1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two samples of 20 and 24 dB whose mean has 25, and a third that diverged.
    #[test]
    fn an_answer_says_what_it_is_and_what_it_cost() {
        let found = Measurement {
            chosen: 1,
            kept: vec![0, 1],
            error: vec![0.1, 0.1, f64::NAN],
            psnr: Some(vec![20.0, 24.0, f64::NAN]),
            ssim: Some(vec![0.5, 0.6, f64::NAN]),
            mean_psnr: Some(25.0),
            mean_ssim: Some(0.7),
            ..Measurement::default()
        };
        assert_eq!(Answer::Sample.words(&found), "sample 1, chosen of 3");
        assert_eq!(Answer::Mean.words(&found), "the mean of 2 of 3 samples");
        let of = |kind| Answers::new(kind, std::slice::from_ref(&found), 3, 30);
        let (sample, mean) = (of(Answer::Sample), of(Answer::Mean));
        assert_eq!((sample.psnr, sample.ssim, sample.calls), (Some(24.0), Some(0.6), 90));
        assert_eq!((mean.psnr, mean.ssim, mean.calls), (Some(25.0), Some(0.7), 90));
        assert_eq!("mean".parse::<Answer>().unwrap(), Answer::Mean);
        assert!("means".parse::<Answer>().unwrap_err().to_string().contains("mean"));
    }
}
