//! Checkpoints: safetensors and PyTorch files in, safetensors out, and never anything executed.

mod convert;
mod opened;
pub mod pickle;
mod safe;
mod state_dict;
mod torch;

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;
use daps_core::SpreadTable;

use crate::network::{NetworkConfig, named};
use crate::{Error, LocalHead, Result};

pub(crate) use convert::cast_all;
pub use convert::{Inspection, TensorInfo, WeightType, convert, inspect};
pub use opened::Opened;
pub(crate) use safe::{hexadecimal, write as write_safetensors};
pub use torch::{read_archive, read_numpy};

/// Writes tensors as safetensors with their checksum, whole or not at all.
pub fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
    safe::write(path, tensors, std::collections::HashMap::new())
}

/// The tensors of a file, by name, in the types that they are stored in.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// safetensors or PyTorch.
    pub format: &'static str,
    /// The tensors, without wrappers' prefixes such as `module.`.
    pub tensors: BTreeMap<String, Tensor>,
    /// Free text that the file carries along (safetensors only).
    pub metadata: BTreeMap<String, String>,
}

/// How all metadata keys of ours begin.
pub(crate) const KEY_PREFIX: &str = "daps.";

/// Metadata keys of files that [`convert`] writes.
pub(crate) const CONFIG_KEY: &str = "daps.config";
pub(crate) const CHECKSUM_KEY: &str = "daps.sha256";

/// The metadata key of a prior's r(σ): a [`SpreadTable`] as JSON.
pub const SPREAD_KEY: &str = "daps.spread";

/// The metadata key of the local factor of a prior's error: a [`LocalHead`] as JSON.
pub const LOCAL_KEY: &str = "daps.local";

/// The metadata key of the number of images that the weights have seen.
pub const IMAGES_KEY: &str = "daps.images";
/// Metadata key of the images that had been seen when each of the earlier runs ended from whose weights training went on, as JSON.
pub const EARLIER_KEY: &str = "daps.earlier";
/// Metadata key of the checksums of the data that the weights have seen, each once, as JSON; null stands for unknown data.
pub const DATA_KEY: &str = "daps.data";

impl Checkpoint {
    /// A safetensors file in memory; `name` is what messages call it.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self> {
        safe::parse(Path::new(name), bytes)
    }

    /// The network configuration inside, where there is one.
    pub fn config(&self) -> Result<Option<NetworkConfig>> {
        self.metadata.get(CONFIG_KEY).map(|text| NetworkConfig::parse(text)).transpose()
    }

    /// r(σ), where the file carries it.
    pub fn spread(&self) -> Result<Option<SpreadTable>> {
        spread_of(&self.metadata)
    }

    /// SHA-256 of the tensors.
    #[must_use]
    pub fn sha256(&self) -> String {
        safe::checksum(&self.tensors)
    }
}

fn spread_of(metadata: &BTreeMap<String, String>) -> Result<Option<SpreadTable>> {
    let Some(text) = metadata.get(SPREAD_KEY) else { return Ok(None) };
    let table: SpreadTable = serde_json::from_str(text)
        .map_err(|e| Error::config("network", format!("its table of r(sigma) is damaged: {e}")))?;
    table.check()?;
    Ok(Some(table))
}

fn local_of(metadata: &BTreeMap<String, String>) -> Result<Option<LocalHead>> {
    let Some(text) = metadata.get(LOCAL_KEY) else { return Ok(None) };
    let head: LocalHead = serde_json::from_str(text)
        .map_err(|e| Error::config("network", format!("its local factor is damaged: {e}")))?;
    Ok(Some(head))
}

/// Reads a checkpoint of any supported format; its first bytes decide which.
pub fn read(path: &Path) -> Result<Checkpoint> {
    Opened::file(path)?.read()
}

/// The configuration inside a safetensors file, or in the `.toml` file beside the weights.
pub fn config_of(path: &Path) -> Result<NetworkConfig> {
    Opened::file(path)?.needed_config()
}

/// A configuration by name, or from a TOML file relative to `base`; a file that is called like a known one needs a path, such as
/// `./ffhq256`.
pub fn config_named(name_or_file: &str, base: &Path) -> Result<NetworkConfig> {
    let path = base.join(name_or_file);
    match named(name_or_file) {
        Err(_) if path.is_file() => read_config(&path),
        known => known,
    }
}

fn read_config(path: &Path) -> Result<NetworkConfig> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::file(path, e))?;
    NetworkConfig::parse(&text).map_err(|e| e.within(path))
}

/// The formats that a file's first bytes tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// PyTorch's zip archive.
    Archive,
    /// A bare pickle, as PyTorch wrote before 1.6.
    OldPickle,
    Safetensors,
}

/// What is said of any other file.
const NO_WEIGHTS: &str = "is not a weights file; safetensors and PyTorch files (.pt, .pth, .ckpt) are read";

impl Format {
    /// The format that a file's first bytes tell, where they tell one.
    fn of(first: [u8; 8]) -> Option<Self> {
        match first {
            // The length of a safetensors header may begin with any two bytes; one that begins with these four is of 67 MB.
            [b'P', b'K', 3, 4, ..] => Some(Self::Archive),
            // Here too, but is far below 2^32.
            [0x80, 0..=5, _, _, rest @ ..] if rest != [0; 4] => Some(Self::OldPickle),
            length => (u64::from_le_bytes(length) <= safe::LARGEST_HEADER).then_some(Self::Safetensors),
        }
    }
}
