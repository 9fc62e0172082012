//! Checkpoints: safetensors and PyTorch files in, safetensors out, and never anything executed.

mod convert;
pub mod pickle;
mod safe;
mod state_dict;
mod torch;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use candle_core::Tensor;
use daps_core::SpreadTable;

use crate::network::{NetworkConfig, named};
use crate::{Error, Result};

pub(crate) use convert::cast_all;
pub use convert::{Inspection, TensorInfo, WeightType, convert, inspect};
pub(crate) use safe::write as write_safetensors;
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
        let Some(text) = self.metadata.get(SPREAD_KEY) else { return Ok(None) };
        let table: SpreadTable = serde_json::from_str(text)
            .map_err(|e| Error::config("network", format!("its table of r(sigma) is damaged: {e}")))?;
        table.check()?;
        Ok(Some(table))
    }

    /// SHA-256 of the tensors.
    #[must_use]
    pub fn sha256(&self) -> String {
        safe::checksum(&self.tensors)
    }
}

/// Reads a checkpoint of any supported format; its first bytes decide which.
pub fn read(path: &Path) -> Result<Checkpoint> {
    match format_of(path)? {
        Format::Archive => {
            let file = std::fs::File::open(path).map_err(|e| Error::file(path, e))?;
            let tensors = read_archive(std::io::BufReader::new(file)).map_err(|e| Error::file(path, e))?;
            Ok(Checkpoint { format: "PyTorch", tensors, metadata: BTreeMap::new() })
        }
        Format::OldPickle => Err(Error::file(
            path,
            "is a PyTorch file of the format before 1.6 (no zip archive); save it again with a current PyTorch",
        )),
        Format::Safetensors => safe::read(path),
    }
}

/// The configuration inside a safetensors file, or in the `.toml` file beside the weights.
pub fn config_of(path: &Path) -> Result<NetworkConfig> {
    find_config(path)?.ok_or_else(|| {
        let beside = path.with_extension("toml");
        Error::file(path, format!("carries no network configuration and there is no {}", beside.display()))
    })
}

/// The same, or nothing where there is none.
pub(crate) fn find_config(path: &Path) -> Result<Option<NetworkConfig>> {
    if format_of(path)? == Format::Safetensors
        && let Some(text) = safe::metadata(path)?.get(CONFIG_KEY)
    {
        return NetworkConfig::parse(text).map(Some).map_err(|e| e.within(path));
    }
    let beside = path.with_extension("toml");
    if beside.is_file() { read_config(&beside).map(Some) } else { Ok(None) }
}

/// A configuration by name, or from a TOML file; a file that is called like a known one needs a path, such as `./ffhq256`.
pub fn config_named(name_or_file: &str) -> Result<NetworkConfig> {
    let path = Path::new(name_or_file);
    match named(name_or_file) {
        Err(_) if path.is_file() => read_config(path),
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
const NO_WEIGHTS: &str =
    "is no file of weights; safetensors files and PyTorch files (.pt, .pth, .ckpt) are read";

fn format_of(path: &Path) -> Result<Format> {
    let (first, next) = first_bytes(path)?;
    match first {
        // The length of a safetensors header may begin with any two bytes; one that begins with these four is of 67 MB.
        [b'P', b'K', 3, 4, ..] => Ok(Format::Archive),
        // Here too, but is far below 2^32.
        [0x80, 0..=5, _, _, rest @ ..] if rest != [0; 4] => Ok(Format::OldPickle),
        // After the length comes the header, an object of JSON.
        length if u64::from_le_bytes(length) <= safe::LARGEST_HEADER && next == Some(b'{') => {
            Ok(Format::Safetensors)
        }
        _ => Err(Error::file(path, NO_WEIGHTS)),
    }
}

/// The first eight bytes, and the one after them where there is one.
fn first_bytes(path: &Path) -> Result<([u8; 8], Option<u8>)> {
    let mut file = std::fs::File::open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::file(path, "no such file"),
        _ => Error::file(path, e),
    })?;
    if path.is_dir() {
        return Err(Error::file(path, "is a folder; name a file of weights"));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(9).read_to_end(&mut bytes).map_err(|e| Error::file(path, e))?;
    match bytes.first_chunk() {
        Some(first) => Ok((*first, bytes.get(8).copied())),
        None => Err(Error::file(path, "is too short to be a checkpoint")),
    }
}
