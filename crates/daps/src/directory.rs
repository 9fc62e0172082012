//! Directories of output: made where there is nothing that could be lost, and worked in by one process at a time.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The file that stands in a directory while a process works there.
const LOCK: &str = ".lock";

/// Makes an output directory; one that exists and has files in it is refused unless `reuse`.
pub fn make(path: &Path, reuse: bool) -> Result<()> {
    let occupied = fs::read_dir(path).is_ok_and(|mut entries| !entries.all(|entry| is_named(entry, &[LOCK])));
    if occupied && !reuse {
        return Err(Error::content(path, "already exists and is not empty; choose another with --out"));
    }
    fs::create_dir_all(path).map_err(Error::file(path, "cannot make the directory"))
}

/// Makes the directory of work that may have begun there; files without the one that it begins with are someone's own.
fn make_to_resume(path: &Path, work: &str, first: &str) -> Result<()> {
    // Work that was killed at its very beginning leaves these alone.
    let begun = [&format!("{first}.tmp"), LOCK];
    let foreign = fs::read_dir(path).is_ok_and(|mut entries| !entries.all(|entry| is_named(entry, &begun)));
    if foreign && !path.join(first).exists() {
        let what = format!("is not empty and holds no {work} to resume; choose another with --out");
        return Err(Error::content(path, what));
    }
    make(path, true)
}

fn is_named(entry: std::io::Result<fs::DirEntry>, names: &[&str]) -> bool {
    entry.is_ok_and(|entry| names.iter().any(|name| entry.file_name() == *name))
}

/// A directory that this process alone works in, until this is dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// The system gives the lock up with the file, also where a process is killed.
    _file: File,
}

/// What a directory may hold when work begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    New,
    /// Work of a kind to go on with, known by the file that it begins with, or nothing.
    Resume {
        /// What the work is called.
        work: &'static str,
        /// The file that it begins with.
        first: &'static str,
    },
    /// Anything.
    Any,
}

/// Makes a directory where there is none, and takes it for this process alone; a second process is refused.
pub fn enter(path: &Path, entry: Entry) -> Result<Lock> {
    match entry {
        Entry::New => make(path, false)?,
        Entry::Resume { work, first } => make_to_resume(path, work, first)?,
        Entry::Any => make(path, true)?,
    }
    lock(path)
}

fn lock(directory: &Path) -> Result<Lock> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_occupied_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(make(dir.path(), false).is_ok());
        fs::write(dir.path().join("a"), b"x").unwrap();
        assert!(make(dir.path(), false).unwrap_err().to_string().contains("not empty"));
        assert!(enter(dir.path(), Entry::New).is_err());
        assert!(make(dir.path(), true).is_ok());
    }

    #[test]
    fn a_run_is_resumed_where_it_began_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::write(dir.path().join(name), b"x").unwrap();
        let resume = |path: &Path| make_to_resume(path, "run", "config.toml");
        assert!(resume(&dir.path().join("new")).is_ok());
        fs::remove_dir(dir.path().join("new")).unwrap();
        file("config.toml.tmp");
        file(LOCK);
        assert!(resume(dir.path()).is_ok());
        file("mine.txt");
        let error = resume(dir.path()).unwrap_err().to_string();
        assert!(error.contains("holds no run to resume"), "{error}");
        file("config.toml");
        assert!(resume(dir.path()).is_ok());
    }

    #[test]
    fn one_at_a_time_works_in_a_directory_and_leaves_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let held = enter(dir.path(), Entry::Any).unwrap();
        // It is nobody's own file.
        assert!(make(dir.path(), false).is_ok());
        let error = enter(dir.path(), Entry::Any).unwrap_err().to_string();
        assert_eq!(error, format!("{}: is in use by another process", dir.path().display()));
        drop(held);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // What a killed process leaves is taken over.
        fs::write(dir.path().join(LOCK), b"").unwrap();
        drop(enter(dir.path(), Entry::Any).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
