//! Training a classifier: how often it is right on images that it was not trained on.

use std::path::Path;

use candle_core::Tensor;
use daps_core::tensors::to_f64;
use daps_priors::Classifier;
use daps_priors::network::quantise;
use daps_priors::training::Images;

use crate::{Result, picture};

/// Images of each class in the picture beside the weights.
const EACH: usize = 2;

/// The images as the classifier sees them: dark or light.
fn binary(images: &Images) -> Result<Tensor> {
    Ok(quantise(&images.first(images.len())?, 2)?)
}

/// The share of images that are recognised.
pub(super) fn accuracy(classifier: &Classifier, images: &Images, labels: &[u8]) -> Result<f64> {
    Ok(classifier.accuracy(&binary(images)?, labels)?)
}

/// Writes the first images of each class, one column for each.
pub(super) fn write_examples(path: &Path, images: &Images, labels: &[u8], classes: usize) -> Result<()> {
    let (x, shape) = (binary(images)?, images.shape());
    let dark = vec![0.0; shape.iter().product()];
    let of = |class: usize, number: usize| {
        labels.iter().enumerate().filter(|(_, l)| usize::from(**l) == class).nth(number).map(|(i, _)| i)
    };
    let cell = |k: usize| match of(k % classes, k / classes) {
        Some(index) => Ok(to_f64(&x.get(index)?)?),
        None => Ok(dark.clone()),
    };
    let cells = (0..EACH * classes).map(cell).collect::<Result<Vec<_>>>()?;
    picture::write_grid(path, &cells, shape, (0.0, 1.0), classes, 1)
}
