//! A data set in memory, and the part of it that is never trained on.

mod adapted;
mod crops;
mod labels;
mod pictures;
mod read;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use daps_core::tensors::BLOCK;
use daps_core::{Address, Noise};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use adapted::Adapted;
pub use crops::Crops;
pub use labels::read_labels;

use self::crops::Whole;
use crate::{Error, Result};

/// Someone who waits for images to be read: told how many of how many are read, and free to stop it.
pub type Watch<'a> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'a;

/// Where the images are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A folder of pictures, a tar of them, an IDX file (MNIST) or a `.npy` array, the files perhaps compressed with
    /// gzip; relative to the configuration.
    pub source: PathBuf,
    /// How many of the last images, in the order of their names, are left out altogether: they are there for tests.
    #[serde(default, skip_serializing_if = "is_none")]
    pub left_out: usize,
    /// How many of the last images before these are kept apart and never trained on.
    #[serde(default)]
    pub held_out: usize,
    /// Whether to show each image mirrored half of the time.
    #[serde(default)]
    pub flip: bool,
    /// How pictures of another size are brought to the network's.
    #[serde(default)]
    pub fit: Fit,
    /// Random parts of pictures are shown instead of whole ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crops: Option<Crops>,
}

// Absent from files that were written before there was one.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none(count: &usize) -> bool {
    *count == 0
}

/// How a picture of another size is made to fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// Scaled until it covers the square, then cut in the middle.
    #[default]
    Crop,
    /// Put in the middle of a black square; a larger one is refused.
    Pad,
}

/// Images of one shape, or parts of that shape of larger ones; bytes stand for [-1, 1].
#[derive(Clone, Debug)]
pub struct Images {
    shape: [usize; 3],
    pixels: Pixels,
}

#[derive(Clone, Debug)]
enum Pixels {
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
    Parts(Vec<Whole>, Crops),
}

impl Images {
    /// From bytes, image by image, channel by channel.
    #[must_use]
    pub fn bytes(shape: [usize; 3], bytes: Vec<u8>) -> Self {
        Self { shape, pixels: Pixels::Bytes(bytes) }
    }

    /// From numbers, image by image, channel by channel.
    #[must_use]
    pub fn floats(shape: [usize; 3], floats: Vec<f32>) -> Self {
        Self { shape, pixels: Pixels::Floats(floats) }
    }

    /// Parts of larger images.
    fn parts(shape: [usize; 3], images: Vec<Whole>, crops: Crops) -> Self {
        Self { shape, pixels: Pixels::Parts(images, crops) }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.pixels {
            Pixels::Bytes(v) => v.len() / self.size(),
            Pixels::Floats(v) => v.len() / self.size(),
            Pixels::Parts(images, _) => images.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Channels, height, width.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// Writes one image, mirrored where asked for; of a larger one its middle.
    pub fn copy(&self, index: usize, mirrored: bool, out: &mut [f32]) {
        let range = index * self.size()..(index + 1) * self.size();
        match &self.pixels {
            Pixels::Bytes(v) => {
                out.iter_mut().zip(&v[range]).for_each(|(o, b)| *o = f32::from(*b) / 127.5 - 1.0);
            }
            Pixels::Floats(v) => out.copy_from_slice(&v[range]),
            Pixels::Parts(images, crops) => crops.middle(&images[index], self.shape, out),
        }
        if mirrored {
            out.chunks_mut(self.shape[2]).for_each(<[f32]>::reverse);
        }
    }

    /// The chosen images as `[n, channels, height, width]`, those marked mirrored.
    pub fn select(&self, chosen: &[(usize, bool)]) -> Result<Tensor> {
        self.each(chosen, |_, index, mirrored, out| self.copy(index, mirrored, out))
    }

    /// The same to be trained on: of larger images random parts, each with the noise of its row at an address.
    pub fn shown(&self, chosen: &[(usize, bool)], noise: &Noise, at: Address) -> Result<Tensor> {
        let Pixels::Parts(images, crops) = &self.pixels else { return self.select(chosen) };
        self.each(chosen, |row, index, mirrored, out| {
            crops.part(&images[index], self.shape, &mut noise.stream(row, at), out);
            if mirrored {
                out.chunks_mut(self.shape[2]).for_each(<[f32]>::reverse);
            }
        })
    }

    fn each(
        &self,
        chosen: &[(usize, bool)],
        write: impl Fn(usize, usize, bool, &mut [f32]) + Sync,
    ) -> Result<Tensor> {
        let [c, h, w] = self.shape;
        let mut values = vec![0f32; chosen.len() * self.size()];
        let rows = values.par_chunks_mut(self.size()).zip(chosen).enumerate();
        rows.for_each(|(row, (out, (index, mirrored)))| write(row, *index, *mirrored, out));
        let tensor = Tensor::from_vec(values, (chosen.len(), c, h, w), &Device::Cpu);
        Ok(tensor.map_err(daps_core::Error::from)?)
    }

    /// The first `most` images.
    pub fn first(&self, most: usize) -> Result<Tensor> {
        self.select(&(0..self.len().min(most)).map(|i| (i, false)).collect::<Vec<_>>())
    }

    /// The last `most` images.
    pub fn last(&self, most: usize) -> Result<Tensor> {
        let from = self.len().saturating_sub(most);
        self.select(&(from..self.len()).map(|i| (i, false)).collect::<Vec<_>>())
    }

    /// Standard deviation of all values.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        let sums: Vec<(f64, f64)> = (0..self.len())
            .into_par_iter()
            .map(|i| {
                let mut values = vec![0f32; self.size()];
                self.copy(i, false, &mut values);
                let wide = values.iter().map(|v| f64::from(*v));
                (wide.clone().sum(), wide.map(|v| v * v).sum())
            })
            .collect();
        let n = (self.len() * self.size()) as f64;
        let (sum, squares) = sums.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
        (squares / n - (sum / n).powi(2)).max(0.0).sqrt()
    }

    /// Cuts off the last `count` images.
    fn split_off(&mut self, count: usize) -> Self {
        let (first, size) = (self.len() - count, self.size());
        let pixels = match &mut self.pixels {
            Pixels::Bytes(v) => Pixels::Bytes(v.split_off(first * size)),
            Pixels::Floats(v) => Pixels::Floats(v.split_off(first * size)),
            Pixels::Parts(images, crops) => Pixels::Parts(images.split_off(first), crops.clone()),
        };
        Self { shape: self.shape, pixels }
    }

    fn digest(&self, hash: &mut Sha256) {
        hash.update(format!("{:?}\n", self.shape));
        match &self.pixels {
            Pixels::Bytes(v) => hash.update(v),
            Pixels::Floats(v) => v.chunks(BLOCK).for_each(|part| {
                hash.update(part.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>());
            }),
            Pixels::Parts(images, _) => images.iter().for_each(|image| {
                hash.update(format!("{}x{}\n", image.height, image.width));
                hash.update(&image.planes);
            }),
        }
    }
}

/// A number for each image to train on, and for each one kept apart; none where nothing is known.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// Of the images to train on.
    pub train: Vec<u8>,
    /// Of those never trained on.
    pub held_out: Vec<u8>,
}

/// Images to train on, and images kept apart.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// To train on.
    pub train: Images,
    /// Never trained on.
    pub held_out: Images,
    /// What the images show, where that is known.
    pub labels: Labels,
    /// What was done to them so that they fit; nothing where they came from no file.
    pub adapted: Option<Adapted>,
    /// SHA-256 of all of them and of where they are cut.
    pub checksum: String,
}

impl Dataset {
    /// Reads the images of a configuration; `base` is where its relative paths start.
    pub fn read(config: &DataConfig, shape: [usize; 3], base: &Path) -> Result<Self> {
        Self::read_watched(config, shape, base, &mut |_, _| ControlFlow::Continue(()))
    }

    /// The same for someone who waits.
    pub fn read_watched(
        config: &DataConfig,
        shape: [usize; 3],
        base: &Path,
        watch: &mut Watch,
    ) -> Result<Self> {
        let source = base.join(&config.source);
        let (mut images, adapted) = read::read(&source, shape, config, watch)?;
        if config.left_out > images.len() {
            let (count, left_out) = (images.len(), config.left_out);
            return Err(Error::file(
                &source,
                format!("has {count} images, fewer than the {left_out} to be left out"),
            ));
        }
        images.split_off(config.left_out);
        let data = Self::split(images, config.held_out).map_err(|reason| Error::file(&source, reason))?;
        Ok(Self { adapted: Some(adapted), ..data })
    }

    /// Keeps the last `held_out` images apart; perhaps all of them, where nothing is to be trained.
    pub fn split(mut train: Images, held_out: usize) -> std::result::Result<Self, String> {
        let count = train.len();
        if count == 0 {
            return Err("holds no images".to_owned());
        }
        if held_out > count {
            return Err(format!("has {count} images, fewer than the {held_out} to be held out"));
        }
        let mut hash = Sha256::new();
        train.digest(&mut hash);
        hash.update(format!("\n{held_out}"));
        let held_out = train.split_off(held_out);
        Ok(Self { train, held_out, labels: Labels::default(), adapted: None, checksum: hex(hash) })
    }

    /// With the labels of a file, which must name one of `classes` for each image.
    pub fn with_labels(self, path: &Path, classes: usize) -> Result<Self> {
        let labels = read_labels(path)?;
        self.labelled(labels, classes).map_err(|reason| Error::file(path, reason))
    }

    /// With one label below `classes` for each image, in their order.
    pub fn labelled(mut self, mut labels: Vec<u8>, classes: usize) -> std::result::Result<Self, String> {
        let (train, count) = (self.train.len(), self.train.len() + self.held_out.len());
        if labels.len() != count {
            return Err(format!("holds {} labels for {count} images", labels.len()));
        }
        if let Some(bad) = labels.iter().find(|l| usize::from(**l) >= classes) {
            return Err(format!("holds the label {bad}, but there are {classes} classes"));
        }
        let mut hash = Sha256::new();
        hash.update(&self.checksum);
        hash.update(&labels);
        self.checksum = hex(hash);
        let held_out = labels.split_off(train);
        self.labels = Labels { train: labels, held_out };
        Ok(self)
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
