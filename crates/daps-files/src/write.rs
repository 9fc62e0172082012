//! Files that are never half-written.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Writes a file to a temporary name beside it, and renames it once its bytes are on the disk: whatever happens in between,
/// what stands under the name is whole.
pub fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    let written = File::create(temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_data()))
        .and_then(|()| fs::rename(temporary, path));
    if written.is_err() {
        // Nothing half-written stays behind; the first error is the one to tell.
        let _ = fs::remove_file(temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for bytes in [&b"first"[..], b"second"] {
            write(&path, bytes).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        assert!(write(&dir.path().join("no/such/file"), b"x").is_err());
        // A directory stands under the name: the bytes are written, but cannot be renamed.
        fs::create_dir(dir.path().join("b")).unwrap();
        fs::write(dir.path().join("b/mine"), b"x").unwrap();
        assert!(write(&dir.path().join("b"), b"x").is_err());
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a", "b"]);
    }
}
