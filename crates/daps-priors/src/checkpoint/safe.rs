//! Safetensors in and out, with a checksum of the tensors in the metadata.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use safetensors::{SafeTensors, View};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{CHECKSUM_KEY, Checkpoint, state_dict};
use crate::{Error, Result};

/// A header larger than this describes no checkpoint.
pub(super) const LARGEST_HEADER: u64 = 100_000_000;

/// Reads a file from memory, and compares its checksum where it carries one; `path` is what messages call it.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Checkpoint> {
    let refuse =
        |e: &dyn std::fmt::Display| Error::file(path, format!("is not a complete safetensors file ({e})"));
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| refuse(&e))?;
    let metadata: BTreeMap<String, String> =
        header.metadata().clone().unwrap_or_default().into_iter().collect();
    let file = SafeTensors::deserialize(bytes).map_err(|e| refuse(&e))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let name_it = |e: &dyn std::fmt::Display| Error::file(path, format!("tensor '{name}': {e}"));
        // A tensor's strides are products of its sizes, even where another size is zero.
        if view.shape().iter().try_fold(1usize, |n, s| n.checked_mul((*s).max(1))).is_none() {
            return Err(name_it(&"its shape is one that no memory holds"));
        }
        let tensor = view.load(&Device::Cpu).map_err(|e| name_it(&e))?;
        if matches!(tensor.dtype(), DType::F4 | DType::F6E2M3 | DType::F6E3M2 | DType::F8E8M0) {
            return Err(name_it(&format!("its type {} is not supported", tensor.dtype().as_str())));
        }
        tensors.insert(name.to_owned(), tensor);
    }
    if let Some(expected) = metadata.get(CHECKSUM_KEY)
        && *expected != checksum(&tensors)
    {
        return Err(Error::file(path, "is damaged: its tensors do not have the checksum that it carries"));
    }
    Ok(Checkpoint { format: "safetensors", tensors: state_dict::without_prefixes(tensors), metadata })
}

/// The free text of a file whose first eight bytes are in `head`; the header, which is read from `rest`, joins them.
pub(super) fn header(
    path: &Path,
    head: &mut Vec<u8>,
    rest: &mut dyn Read,
) -> Result<BTreeMap<String, String>> {
    let refuse =
        |e: &dyn std::fmt::Display| Error::file(path, format!("is not a complete safetensors file ({e})"));
    let length = head.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    if length > LARGEST_HEADER {
        return Err(refuse(&"the header is too large"));
    }
    rest.take(length).read_to_end(head).map_err(|e| refuse(&e))?;
    let header: Header = serde_json::from_slice(&head[8..]).map_err(|e| refuse(&e))?;
    Ok(header.metadata)
}

/// The part of a header that is free text; the tensors' entries are not looked at.
#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__", default)]
    metadata: BTreeMap<String, String>,
}

/// Writes a file with the checksum of its tensors, whole or not at all.
pub(crate) fn write(
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
    mut metadata: HashMap<String, String>,
) -> Result<()> {
    metadata.insert(CHECKSUM_KEY.to_owned(), checksum(tensors));
    // From memory: the library's own writer neither waits for the disk nor clears its temporary file away when it is killed.
    let bytes = safetensors::serialize(tensors, Some(metadata)).map_err(|e| Error::file(path, e))?;
    daps_files::write(path, &bytes).map_err(|e| Error::file(path, e))
}

/// SHA-256 over names, types, shapes and numbers in the order of the names.
pub(super) fn checksum(tensors: &BTreeMap<String, Tensor>) -> String {
    let mut hash = Sha256::new();
    for (name, tensor) in tensors {
        hash.update(format!("{name}\n{}\n{:?}\n", tensor.dtype().as_str(), tensor.dims()));
        hash.update(View::data(tensor));
    }
    hexadecimal(hash)
}

/// A digest in hexadecimal digits.
pub(crate) fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn written_files_are_as_readable_as_any_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, plain) = (dir.path().join("a.safetensors"), dir.path().join("b"));
        let tensors = BTreeMap::from([("x".to_owned(), Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap())]);
        write(&ours, &tensors, HashMap::new()).unwrap();
        std::fs::write(&plain, b"").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions();
        assert_eq!(mode(&ours), mode(&plain));
    }

    /// Whatever a killed write leaves behind, the next one takes it up: there is no file of a random name.
    #[cfg(unix)]
    #[test]
    fn files_are_written_under_one_temporary_name() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("a.safetensors"), dir.path().join("a.safetensors.tmp"));
        let tensors = BTreeMap::from([("x".to_owned(), Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap())]);
        std::fs::write(&temporary, b"left behind").unwrap();
        let before = std::fs::metadata(&temporary).unwrap().ino();
        write(&path, &tensors, HashMap::new()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), before);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(super::super::read(&path).is_ok());
    }
}
