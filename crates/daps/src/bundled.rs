//! What the program carries inside: trained priors, a judge of digits and test pictures.

use daps_priors::Classifier;
use daps_priors::checkpoint::Checkpoint;

use crate::Result;

macro_rules! weights {
    ($($file:literal),*) => {
        &[$(($file, include_bytes!(concat!("../../../priors/", $file)) as &[u8])),*]
    };
}

/// The files of the manifest (`priors/manifest.toml`) that are part of the program: safetensors with their configuration, and a
/// denoiser's r(σ), in the metadata.
pub const EMBEDDED: &[(&str, &[u8])] = weights![
    "faces/faces.safetensors",
    "digits/digits.safetensors",
    "binary-digits/binary-digits.safetensors",
    "digit-classifier/digit-classifier.safetensors"
];

/// The prior that `daps solve` and `daps demo` take where none is named.
pub const DEFAULT_PRIOR: &str = "faces";

/// The file of [`classifier`].
pub const CLASSIFIER: &[u8] = EMBEDDED[3].1;

/// The judge of binary handwritten digits, 32x32: which of 0 to 9 an image shows.
pub fn classifier() -> Result<Classifier> {
    Ok(Classifier::from_checkpoint(Checkpoint::from_bytes("digit-classifier", CLASSIFIER)?)?)
}

/// A test picture.
pub struct Picture {
    /// Its file name.
    pub name: &'static str,
    /// The PNG file.
    pub bytes: &'static [u8],
}

macro_rules! pictures {
    ($folder:literal: $($name:literal),*) => {
        &[$(Picture {
            name: concat!($name, ".png"),
            bytes: include_bytes!(concat!("../../../priors/", $folder, "/images/", $name, ".png")),
        }),*]
    };
}

/// Faces that no prior was trained on.
pub const FACES: &[Picture] =
    pictures!["faces": "07999", "08017", "08035", "08053", "08071", "08089", "08107", "08126"];

/// Digits of MNIST's test set.
pub const DIGITS: &[Picture] = pictures!["digits": "00000", "00001", "00003", "00004", "00007", "00002"];

/// The test pictures of what a prior over such pictures most likely shows: digits if they are grey, else faces.
#[must_use]
pub fn pictures_of(shape: &[usize]) -> &'static [Picture] {
    if shape.first() == Some(&1) { DIGITS } else { FACES }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    /// What a user downloads with the program.
    const MOST_EMBEDDED: usize = 32_000_000;

    #[test]
    fn what_is_embedded_stays_small_and_stands_in_the_manifest() {
        let weights = EMBEDDED.iter().map(|(_, bytes)| bytes.len());
        let pictures = FACES.iter().chain(DIGITS).map(|picture| picture.bytes.len());
        let all: usize = weights.chain(pictures).sum();
        assert!(all <= MOST_EMBEDDED, "{all} bytes");
        let manifest = crate::manifest::standard().unwrap();
        for (file, bytes) in EMBEDDED {
            let entry = manifest.weights.iter().find(|entry| entry.file == std::path::Path::new(file));
            entry.unwrap().check(std::path::Path::new(file), bytes).unwrap();
        }
        assert!(manifest.prior(DEFAULT_PRIOR).is_ok());
        assert!(EMBEDDED[3].0.starts_with("digit-classifier"));
    }

    /// The picture beside the weights has a column for each digit: the first two of MNIST's test images.
    #[test]
    fn the_judge_recognises_digits_and_not_their_negatives() {
        const SIDE: usize = 32;
        let bytes = include_bytes!("../../../priors/digit-classifier/examples.png");
        let picture = image::load_from_memory(bytes).unwrap().to_luma8();
        let pitch = SIDE as u32 + 4;
        assert_eq!(picture.dimensions(), (10 * pitch - 4, 2 * pitch - 4));
        let token = |n: usize| {
            let (k, i, j) = (n / (SIDE * SIDE), n / SIDE % SIDE, n % SIDE);
            let (x, y) = ((k % 10) as u32 * pitch + j as u32, (k / 10) as u32 * pitch + i as u32);
            u8::from(picture.get_pixel(x, y).0[0] >= 128)
        };
        let tokens: Vec<u8> = (0..20 * SIDE * SIDE).map(token).collect();
        let judge = classifier().unwrap();
        let classes = |tokens: Vec<u8>| {
            let x = Tensor::from_vec(tokens, (20, 1, SIDE, SIDE), &Device::Cpu).unwrap();
            judge.classify(&x).unwrap()
        };
        let truth: Vec<usize> = (0..20).map(|k| k % 10).collect();
        assert_eq!(classes(tokens.clone()), truth);
        // The images matter: light digits on dark ground are what it knows.
        assert_ne!(classes(tokens.iter().map(|t| 1 - t).collect()), truth);
    }
}
