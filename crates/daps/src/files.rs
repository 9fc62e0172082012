//! Files that are never half-written: everything goes to a temporary name first and is renamed when it is complete. And
//! directories that one process at a time works in.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// The file that stands in a directory while a process works there.
const LOCK: &str = ".lock";

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

/// Makes an output directory; one that exists and has files in it is refused unless `reuse`.
pub fn make_directory(path: &Path, reuse: bool) -> Result<()> {
    let occupied = fs::read_dir(path).is_ok_and(|mut entries| !entries.all(|entry| is_named(entry, &[LOCK])));
    if occupied && !reuse {
        return Err(Error::content(path, "already exists and is not empty; choose another with --out"));
    }
    fs::create_dir_all(path).map_err(Error::file(path, "cannot make the directory"))
}

/// Makes the directory of a run that may have begun there; files without a run's `config.toml` are someone's own.
pub(crate) fn resume_directory(path: &Path) -> Result<()> {
    // A run that was killed at its very beginning leaves these alone.
    const BEGUN: [&str; 2] = ["config.toml.tmp", LOCK];
    let foreign = fs::read_dir(path).is_ok_and(|mut entries| !entries.all(|entry| is_named(entry, &BEGUN)));
    if foreign && !path.join("config.toml").exists() {
        let what = "is not empty and holds no run to resume; choose another with --out";
        return Err(Error::content(path, what));
    }
    make_directory(path, true)
}

fn is_named(entry: std::io::Result<fs::DirEntry>, names: &[&str]) -> bool {
    entry.is_ok_and(|entry| names.iter().any(|name| entry.file_name() == *name))
}

/// A directory that this process alone works in, until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// The system gives the lock up with the file, also where a process is killed.
    _file: File,
}

/// Takes a directory that exists for this process alone; a second process is refused.
pub(crate) fn lock(directory: &Path) -> Result<Lock> {
    let path = directory.join(LOCK);
    loop {
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = file.map_err(Error::file(&path, "cannot open"))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(Error::content(directory, "is in use by another process"));
            }
            // Some file systems know no locks; that is no reason not to work there.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(Error::file(&path, "cannot lock")(error)),
            Ok(()) => {}
        }
        // Who held it may have removed it after it was opened here: then the lock is one that nobody else sees.
        if path.exists() {
            return Ok(Lock { path, _file: file });
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // One that stays is in nobody's way: the lock is on the file, not in its being there.
        let _ = fs::remove_file(&self.path);
    }
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
        file(LOCK);
        assert!(resume_directory(dir.path()).is_ok());
        file("mine.txt");
        let error = resume_directory(dir.path()).unwrap_err().to_string();
        assert!(error.contains("holds no run to resume"), "{error}");
        file("config.toml");
        assert!(resume_directory(dir.path()).is_ok());
    }

    #[test]
    fn one_at_a_time_works_in_a_directory_and_leaves_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        // It is nobody's own file.
        assert!(make_directory(dir.path(), false).is_ok());
        let error = lock(dir.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{}: is in use by another process", dir.path().display()));
        drop(held);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // What a killed process leaves is taken over.
        fs::write(dir.path().join(LOCK), b"").unwrap();
        drop(lock(dir.path()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
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
