//! A network that names what a binary image shows, as the judge of samples.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use daps_core::mixture::log_sum_exp;
use daps_core::tensors::{check_rows, to_f64};
use daps_core::{Corruption, Rate};
use daps_nn::FeatureMap;

use crate::checkpoint::{Checkpoint, Opened};
use crate::network::{Architecture, ConvNetConfig, Network, NetworkConfig, tensor_error, unshuffle};
use crate::{Error, Result};

/// Images that go through the network at once.
const ROWS: usize = 256;

/// A classifier of images of tokens 0 (dark) and 1 (light).
#[derive(Clone)]
pub struct Classifier {
    network: Arc<dyn Network>,
    shape: Vec<usize>,
    patch: usize,
    classes: usize,
}

impl Classifier {
    /// From given parameters, which must fit the configuration exactly.
    pub fn new(config: &NetworkConfig, tensors: BTreeMap<String, Tensor>) -> Result<Self> {
        Self::around(config, config.network(tensors)?)
    }

    /// From fresh parameters, with the variables to train.
    pub fn fresh(
        config: &NetworkConfig,
        seed: u64,
        device: &Device,
    ) -> Result<(Self, BTreeMap<String, Var>)> {
        let (network, variables) = config.fresh(seed, device)?;
        Ok((Self::around(config, network)?, variables))
    }

    /// From a file with its configuration in or beside it.
    pub fn load(path: &Path) -> Result<Self> {
        let opened = Opened::file(path)?;
        let config = opened.needed_config()?;
        Self::new(&config, opened.read()?.tensors).map_err(|e| e.within(path))
    }

    /// From a file in memory that carries its configuration.
    pub fn from_checkpoint(found: Checkpoint) -> Result<Self> {
        let config =
            found.config()?.ok_or_else(|| Error::config("network", "carries no network configuration"))?;
        Self::new(&config, found.tensors)
    }

    fn around(config: &NetworkConfig, network: Box<dyn Network>) -> Result<Self> {
        let Architecture::ConvNet(ConvNetConfig { num_classes: classes, .. }) = config.network else {
            return Err(daps_core::Error::missing("a classifier", "classes", "this network").into());
        };
        let shape = config.shape().to_vec();
        Ok(Self { network: network.into(), shape, patch: config.patch, classes })
    }

    /// Channels, height and width of an image.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many classes it tells apart.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The most likely class of each image: tokens 0 and 1 of type u8, `[rows, channels, height, width]`.
    pub fn classify(&self, x: &Tensor) -> Result<Vec<usize>> {
        let most_likely =
            |law: &[f64]| (0..law.len()).max_by(|a, b| law[*a].total_cmp(&law[*b])).unwrap_or(0);
        Ok(self.probabilities(x)?.chunks(self.classes).map(most_likely).collect())
    }

    /// p(class | image), image by image, class by class.
    pub fn probabilities(&self, x: &Tensor) -> Result<Vec<f64>> {
        let rows = self.check(x)?;
        let mut laws = Vec::with_capacity(rows * self.classes);
        for start in (0..rows).step_by(ROWS) {
            let part = x.narrow(0, start, ROWS.min(rows - start)).map_err(daps_core::Error::from)?;
            laws.extend(self.laws(&self.raw(&part)?)?);
        }
        Ok(laws)
    }

    /// The share of images whose most likely class is their label.
    pub fn accuracy(&self, x: &Tensor, labels: &[u8]) -> Result<f64> {
        self.check_labels(self.check(x)?, labels)?;
        let right = self.classify(x)?.iter().zip(labels).filter(|(a, b)| **a == usize::from(**b)).count();
        Ok(right as f64 / labels.len() as f64)
    }

    /// The mean over images of -ln p(label | image), and its gradient in every variable of the network.
    pub fn cross_entropy(&self, x: &Tensor, labels: &[u8]) -> Result<(f64, GradStore)> {
        let rows = self.check(x)?;
        self.check_labels(rows, labels)?;
        let raw = self.raw(x)?;
        let (mut laws, mut loss) = (self.laws(&raw)?, 0.0);
        // The derivative in a logit is p - [it is the label's].
        for (law, label) in laws.chunks_mut(self.classes).zip(labels) {
            loss -= law[usize::from(*label)].ln() / rows as f64;
            law[usize::from(*label)] -= 1.0;
        }
        let gradient: Vec<f32> = laws.iter().map(|d| (d / rows as f64) as f32).collect();
        let gradient = Tensor::from_vec(gradient, (rows, self.classes), &Device::Cpu);
        let gradient = FeatureMap::from_rows(&gradient.map_err(daps_core::Error::from)?)?;
        Ok((loss, raw.backward(&gradient)?))
    }

    /// Refuses what is no batch of binary images of the network's size; gives the number of images.
    fn check(&self, x: &Tensor) -> Result<usize> {
        let rows = check_rows("classifier input", x, &self.shape)?;
        if rows == 0 {
            return Err(daps_core::Error::invalid("classifier input", "at least one image", rows).into());
        }
        Corruption::new(2, Rate::Uniform)?.check("classifier input", x, false)?;
        Ok(rows)
    }

    fn check_labels(&self, rows: usize, labels: &[u8]) -> Result<()> {
        if labels.len() != rows {
            let expected = format!("one for each of {rows} images");
            return Err(daps_core::Error::invalid("labels", expected, labels.len()).into());
        }
        match labels.iter().find(|l| usize::from(**l) >= self.classes) {
            Some(bad) => {
                let expected = format!("numbers below {}, the number of classes", self.classes);
                Err(daps_core::Error::invalid("labels", expected, bad).into())
            }
            None => Ok(()),
        }
    }

    /// Logits with their history; the network sees -1 and 1.
    fn raw(&self, x: &Tensor) -> Result<FeatureMap> {
        let input = || unshuffle(&(x.to_dtype(DType::F32)? * 2.0)?.affine(1.0, -1.0)?, self.patch);
        let input = FeatureMap::from_nchw(&input().map_err(daps_core::Error::from)?)?;
        let noise = vec![0.0; input.batch()];
        Ok(self.network.forward(&input, &noise, None).map_err(tensor_error)?)
    }

    fn laws(&self, raw: &FeatureMap) -> Result<Vec<f64>> {
        let mut laws = to_f64(&raw.detach().to_rows()?)?;
        for law in laws.chunks_mut(self.classes) {
            let norm = log_sum_exp(law);
            law.iter_mut().for_each(|p| *p = (*p - norm).exp());
        }
        Ok(laws)
    }
}
