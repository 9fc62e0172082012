//! What the program carries inside: trained priors, a classifier and test pictures, one line each.

use daps_priors::Classifier;
use daps_priors::checkpoint::Checkpoint;

use crate::Result;

/// A trained prior.
pub struct Prior {
    /// Its name for `--prior` and `name = …`.
    pub name: &'static str,
    /// What it was trained on.
    pub summary: &'static str,
    /// The safetensors file, with configuration and r(σ) in its metadata.
    pub bytes: &'static [u8],
}

/// All trained priors.
pub const PRIORS: &[Prior] = &[];

/// The prior that `daps solve` and `daps demo` take where none is named.
pub const DEFAULT_PRIOR: &str = "faces";

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

/// The judge of binary digits: ten classes, images of 32 x 32.
pub fn classifier() -> Result<Classifier> {
    let bytes = include_bytes!("../../../priors/digit-classifier/digit-classifier.safetensors");
    Ok(Classifier::from_checkpoint(Checkpoint::from_bytes("digit-classifier", bytes)?)?)
}

/// The prior of a name.
pub fn prior(name: &str) -> Option<&'static Prior> {
    PRIORS.iter().find(|p| p.name == name)
}
