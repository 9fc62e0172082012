//! The manifest of trained weights: what each file holds, how large it is, its digest and its licence.

use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;

use crate::{Error, Result};

/// All trained weights that can be named.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The entries.
    pub weights: Vec<Entry>,
}

/// One file of weights.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name for `--prior`, `name = …` and `daps weights get`.
    pub name: String,
    /// What a run uses it as.
    pub role: Role,
    /// What it was trained on, or what it is for.
    pub summary: String,
    /// What it is a network over.
    pub space: Space,
    /// Its licence, in a few words; `LICENSE.md` beside the file has all of them.
    pub licence: String,
    /// The safetensors file, relative to a folder of priors.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of the whole file.
    pub sha256: String,
}

/// What weights are used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A prior of runs.
    Prior,
    /// A judge of samples.
    Classifier,
}

/// What a network is over.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Space {
    /// Images with values from -1 to 1.
    Image {
        /// Channels, height and width.
        shape: [usize; 3],
    },
    /// Images of tokens.
    Tokens {
        /// Channels, height and width.
        shape: [usize; 3],
        /// How many values a token has.
        symbols: usize,
    },
}

/// The program's own manifest.
pub fn standard() -> Result<&'static Manifest> {
    static STANDARD: LazyLock<Result<Manifest>> =
        LazyLock::new(|| Manifest::parse(include_str!("../../../priors/manifest.toml")));
    STANDARD.as_ref().map_err(|e| Error::Config(format!("priors/manifest.toml: {e}")))
}

impl Manifest {
    /// From TOML, checked.
    pub fn parse(text: &str) -> Result<Self> {
        let manifest: Self = toml::from_str(text).map_err(|e| {
            let place = daps_files::place(text, e.span());
            Error::Config(format!("{place}{}", daps_core::with_suggestion(e.message())))
        })?;
        for (i, entry) in manifest.weights.iter().enumerate() {
            let refuse = |what: &str| Err(Error::Config(format!("weights '{}': {what}", entry.name)));
            if manifest.weights[..i].iter().any(|other| other.name == entry.name) {
                return refuse("expected names that are different, got one twice");
            }
            let is_inside = |part: Component| matches!(part, Component::Normal(_));
            if entry.file.extension().is_none_or(|e| e != "safetensors")
                || !entry.file.components().all(is_inside)
            {
                return refuse("file: expected a .safetensors file inside the folder of priors");
            }
            if entry.sha256.len() != 64 || !entry.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
                return refuse("sha256: expected 64 hexadecimal digits");
            }
        }
        Ok(manifest)
    }

    /// The entry of a name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.weights.iter().find(|entry| entry.name == name)
    }

    /// The priors.
    pub fn priors(&self) -> impl Iterator<Item = &Entry> {
        self.weights.iter().filter(|entry| entry.role == Role::Prior)
    }

    /// The prior of a name.
    pub fn prior(&self, name: &str) -> Result<&Entry> {
        let known = || self.priors().map(|entry| entry.name.as_str());
        self.priors()
            .find(|entry| entry.name == name)
            .ok_or_else(|| daps_core::Error::unknown("prior", name, known()).into())
    }
}

impl Entry {
    /// Its size for people.
    #[must_use]
    pub fn size(&self) -> String {
        format!("{:.1} MB", self.bytes as f64 / 1e6)
    }

    /// Refuses bytes that are not those of the entry; `path` is where they come from.
    pub fn check(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let found = crate::files::sha256(bytes);
        if found == self.sha256 {
            return Ok(());
        }
        let (name, expected) = (&self.name, &self.sha256);
        let what = format!("is not the file of '{name}': expected SHA-256 {expected}, got {found}; not used");
        Err(Error::content(path, what))
    }
}

impl Space {
    /// Channels, height and width.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        match self {
            Self::Image { shape } | Self::Tokens { shape, .. } => *shape,
        }
    }
}

impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [c, h, w] = self.shape();
        match self {
            Self::Image { .. } => write!(f, "images {c}x{h}x{w}"),
            Self::Tokens { symbols, .. } => write!(f, "images {c}x{h}x{w} of {symbols} symbols"),
        }
    }
}

#[cfg(test)]
mod tests {
    use daps_priors::checkpoint::Opened;

    use super::*;

    /// Every file in the tree is the one that the manifest describes.
    #[test]
    fn sizes_digests_and_spaces_are_those_of_the_files() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priors");
        for entry in &standard().unwrap().weights {
            let path = folder.join(&entry.file);
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len() as u64, entry.bytes, "{}", entry.name);
            entry.check(&path, &bytes).unwrap();
            assert!(path.with_file_name("LICENSE.md").is_file(), "{}: its terms of use", entry.name);
            let config = Opened::memory(&entry.name, bytes).unwrap().needed_config().unwrap();
            assert_eq!(config.shape(), entry.space.shape(), "{}", entry.name);
            let corruption = config.preconditioning.corruption().unwrap();
            match (&entry.space, entry.role) {
                (Space::Image { .. }, _) => assert!(corruption.is_none(), "{}", entry.name),
                (Space::Tokens { symbols, .. }, Role::Prior) => {
                    assert_eq!(corruption.unwrap().symbols(), *symbols, "{}", entry.name);
                }
                (Space::Tokens { symbols, .. }, Role::Classifier) => assert_eq!(*symbols, 2),
            }
            assert!(entry.summary.ends_with('.'), "{}", entry.name);
        }
    }

    #[test]
    fn mistakes_get_one_sentence() {
        let good = include_str!("../../../priors/manifest.toml");
        for (from, to, says) in [
            ("name = \"digits\"", "name = \"faces\"", "weights 'faces': expected names that are different"),
            ("\"faces/faces.safetensors\"", "\"../faces.safetensors\"", "inside the folder of priors"),
            ("\"faces/faces.safetensors\"", "\"/faces.safetensors\"", "inside the folder of priors"),
            ("\"faces/faces.safetensors\"", "\"faces/faces.pt\"", "expected a .safetensors file"),
            ("\"f0d0112b", "\"a8598aa", "sha256: expected 64 hexadecimal digits"),
            ("bytes = 11927936", "byte = 11927936", "unknown field `byte`"),
            ("kind = \"image\"", "kind = \"sound\"", "unknown variant `sound`"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Manifest::parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(says) && error.lines().count() == 1, "{to}: {error}");
        }
    }
}
