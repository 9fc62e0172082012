//! Accuracy: what the bundled classifier takes samples for, beside the labels of a data set.

use std::path::Path;

use daps::{Error, Result, bundled, files};
use daps_core::candle::Tensor;
use daps_priors::Classifier;
use daps_priors::training::read_labels;

/// A classifier, and the labels of all images of a source.
pub(super) struct Judge {
    classifier: Classifier,
    sha256: String,
    labels: Vec<u8>,
}

impl Judge {
    /// Reads an IDX file of labels; `images` is how many images the source has.
    pub fn read(path: &Path, model: &daps_core::Model, images: usize) -> Result<Self> {
        let (classifier, labels) = (bundled::classifier()?, read_labels(path)?);
        let binary = matches!(model, daps_core::Model::Tokens(m) if m.corruption().symbols() == 2);
        if !binary || classifier.shape() != model.shape() {
            let what =
                format!("data.labels: the classifier judges binary images of {:?}", classifier.shape());
            return Err(Error::Config(what));
        }
        if labels.len() != images {
            let what = format!("holds {} labels, the data set has {images} images", labels.len());
            return Err(Error::content(path, what));
        }
        Ok(Self { classifier, sha256: files::sha256(bundled::CLASSIFIER), labels })
    }

    /// What the judgement of image `number` depends on.
    pub fn key(&self, number: u64) -> String {
        format!("label {} classifier {}\n", self.labels[number as usize], self.sha256)
    }

    /// The shares of samples that are taken for the label of image `number`, and for what its true picture is taken for.
    pub fn shares(&self, samples: &Tensor, truth: &Tensor, number: u64) -> Result<(f64, f64)> {
        let (found, truth) = (self.classifier.classify(samples)?, self.classifier.classify(truth)?);
        let share = |class: usize| found.iter().filter(|c| **c == class).count() as f64 / found.len() as f64;
        Ok((share(usize::from(self.labels[number as usize])), share(truth[0])))
    }
}
