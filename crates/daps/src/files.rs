//! Files that are never half-written: everything goes to a temporary name first and is renamed when it is complete.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};

pub use crate::directory::make as make_directory;
use crate::{Error, Result};

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Writes a file atomically.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    daps_files::write(path, bytes).map_err(Error::file(path, "cannot write"))
}

/// Reads a whole text file.
pub fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::file(path, "cannot read"))
}

/// Writes named tensors as safetensors, with text beside them.
pub fn write_tensors(
    path: &Path,
    tensors: &[(&str, &Tensor)],
    metadata: HashMap<String, String>,
) -> Result<()> {
    let named = tensors.iter().map(|(name, tensor)| (*name, *tensor));
    let bytes = safetensors::serialize(named, Some(metadata)).map_err(|e| Error::content(path, e))?;
    write(path, &bytes)
}

/// Reads all tensors and the text of a safetensors file.
pub fn read_tensors(path: &Path) -> Result<(HashMap<String, Tensor>, HashMap<String, String>)> {
    let bytes = fs::read(path).map_err(Error::file(path, "cannot read"))?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes)
        .map_err(|e| Error::content(path, format!("not a safetensors file: {e}")))?;
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
        .map_err(|e| Error::content(path, format!("not a safetensors file: {e}")))?;
    Ok((tensors, header.metadata().clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/such/file");
        assert!(write(&missing, b"x").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        write(&dir.path().join("a"), b"x").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn tensors_come_back_with_their_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        let tensor = Tensor::new(&[[1.0f64, -0.0, f64::MIN_POSITIVE]], &Device::Cpu).unwrap();
        write_tensors(&path, &[("x", &tensor)], HashMap::from([("k".into(), "v".into())])).unwrap();
        let (tensors, text) = read_tensors(&path).unwrap();
        let bits = |t: &Tensor| {
            t.flatten_all().unwrap().to_vec1::<f64>().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(&tensors["x"]), bits(&tensor));
        assert_eq!(text["k"], "v");
        fs::write(&path, b"nonsense").unwrap();
        assert!(read_tensors(&path).unwrap_err().to_string().contains("not a safetensors file"));
    }
}
