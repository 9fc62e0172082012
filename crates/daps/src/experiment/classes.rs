//! Accuracy: what the bundled classifier takes samples for, beside the labels of a data set.

use std::path::Path;

use daps_core::candle::Tensor;
use daps_priors::Classifier;
use daps_priors::training::read_labels;

use crate::{Error, Result, bundled};

/// A classifier, and the labels of all images of a source.
pub(super) struct Judge {
    classifier: Classifier,
    labels: Vec<u8>,
}

impl Judge {
    /// Reads an IDX file of labels; `shape` is that of the samples, and `numbers` name the images in the source.
    pub fn read(path: &Path, shape: &[usize], numbers: &[u64]) -> Result<Self> {
        let (classifier, labels) = (bundled::classifier()?, read_labels(path)?);
        if classifier.shape() != shape {
            let expected = classifier.shape();
            let what =
                format!("data.labels: the classifier judges samples of shape {expected:?}, not {shape:?}");
            return Err(Error::Config(what));
        }
        if let Some(number) = numbers.iter().find(|n| **n as usize >= labels.len()) {
            let what = format!("holds {} labels, and image {number} is asked for", labels.len());
            return Err(Error::content(path, what));
        }
        Ok(Self { classifier, labels })
    }

    /// The shares of samples that are taken for the label of image `number`, and for what its true picture is taken for.
    pub fn shares(&self, samples: &Tensor, truth: &Tensor, number: u64) -> Result<(f64, f64)> {
        let (found, truth) = (self.classifier.classify(samples)?, self.classifier.classify(truth)?);
        let share = |class: usize| found.iter().filter(|c| **c == class).count() as f64 / found.len() as f64;
        Ok((share(usize::from(self.labels[number as usize])), share(truth[0])))
    }
}
