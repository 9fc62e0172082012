//! Files that are never half-written: everything goes to a temporary name first and is renamed when it is complete.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Writes a file atomically.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    let result = fs::File::create(temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_data()))
        .and_then(|()| fs::rename(temporary, path));
    result.map_err(|source| {
        let _ = fs::remove_file(temporary);
        Error::file(path, "cannot write")(source)
    })
}

/// Reads a whole text file.
pub fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::file(path, "cannot read"))
}

/// Makes an output directory; one that exists and has files in it is refused unless `reuse`.
pub fn make_directory(path: &Path, reuse: bool) -> Result<()> {
    let occupied = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    if occupied && !reuse {
        return Err(Error::content(path, "already exists and is not empty; choose another with --out"));
    }
    fs::create_dir_all(path).map_err(Error::file(path, "cannot make the directory"))
}

/// Makes the directory of a run that may have begun there; files without a run's `config.toml` are someone's own.
pub(crate) fn resume_directory(path: &Path) -> Result<()> {
    // A run that was killed at its very beginning leaves this alone.
    let begun =
        |entry: std::io::Result<fs::DirEntry>| entry.is_ok_and(|e| e.file_name() == "config.toml.tmp");
    let foreign = fs::read_dir(path).is_ok_and(|mut entries| !entries.all(begun));
    if foreign && !path.join("config.toml").exists() {
        let what = "is not empty and holds no run to resume; choose another with --out";
        return Err(Error::content(path, what));
    }
    make_directory(path, true)
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
    fn a_failed_write_leaves_nothing_and_an_occupied_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/such/file");
        assert!(write(&missing, b"x").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        write(&dir.path().join("a"), b"x").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(make_directory(dir.path(), false).unwrap_err().to_string().contains("not empty"));
        assert!(make_directory(dir.path(), true).is_ok());
    }

    #[test]
    fn a_run_is_resumed_where_it_began_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::write(dir.path().join(name), b"x").unwrap();
        assert!(resume_directory(&dir.path().join("new")).is_ok());
        fs::remove_dir(dir.path().join("new")).unwrap();
        file("config.toml.tmp");
        assert!(resume_directory(dir.path()).is_ok());
        file("mine.txt");
        let error = resume_directory(dir.path()).unwrap_err().to_string();
        assert!(error.contains("holds no run to resume"), "{error}");
        file("config.toml");
        assert!(resume_directory(dir.path()).is_ok());
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
