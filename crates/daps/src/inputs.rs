//! What settings depend on beyond their own text: the contents of the files and folders that they name.

use std::path::{Path, PathBuf};

use toml::Table;

use crate::{Error, Result, files};

/// Settled settings of an operator or a prior with a digest in the place of every file and folder that they name: what is in a
/// mask, a kernel or a set of points counts, not where it lies.
pub(crate) fn by_content(settings: &Table) -> Result<Table> {
    let mut settings = settings.clone();
    if settings.contains_key("sha256") {
        // The weights are what they are, wherever they lie.
        ["file", "name"].iter().for_each(|k| _ = settings.remove(*k));
    }
    for (_, value) in &mut settings {
        // Settled settings name files by their whole path; anything shorter is a name, whatever lies about.
        let path = value.as_str().map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(digest) = path.map(|path| digest(&path)).transpose()?.flatten() {
            *value = digest.into();
        }
    }
    Ok(settings)
}

/// A digest of a file's bytes, or of the names and bytes of a folder's files; nothing where neither lies there.
fn digest(path: &Path) -> Result<Option<String>> {
    if path.is_file() {
        return Ok(Some(files::sha256(read(path)?)));
    }
    if !path.is_dir() {
        return Ok(None);
    }
    let mut list = Vec::new();
    for entry in std::fs::read_dir(path).map_err(Error::file(path, "cannot read"))? {
        let entry = entry.map_err(Error::file(path, "cannot read"))?;
        if entry.path().is_file() {
            list.push(format!("{} {:?}\n", files::sha256(read(&entry.path())?), entry.file_name()));
        }
    }
    // A system lists a folder in any order; which files there are is what counts.
    list.sort();
    Ok(Some(files::sha256(list.concat())))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(Error::file(path, "cannot read"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_in_files_and_folders_counts_and_not_where_they_lie() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["a", "b"] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("1.png"), b"one").unwrap();
        }
        let of = |folder: &str| {
            let mut settings: Table = "kind = 'empirical'\nresize = true".parse().unwrap();
            settings.insert("folder".into(), at(folder).to_str().unwrap().into());
            settings.insert("mask".into(), at(folder).join("1.png").to_str().unwrap().into());
            by_content(&settings).unwrap()
        };
        let first = of("a");
        assert_eq!(first["kind"].as_str(), Some("empirical"));
        assert_eq!((&first, first["mask"].as_str()), (&of("b"), Some(files::sha256("one").as_str())));
        // A picture more, another name, another content, and the first state again.
        fs::write(at("a/2.png"), b"two").unwrap();
        let more = of("a");
        fs::rename(at("a/2.png"), at("a/3.png")).unwrap();
        let renamed = of("a");
        fs::write(at("a/3.png"), b"three").unwrap();
        let edited = of("a");
        let folders = [&first, &more, &renamed, &edited].map(|table| table["folder"].to_string());
        assert!((1..4).all(|i| !folders[..i].contains(&folders[i])), "{folders:?}");
        fs::remove_file(at("a/3.png")).unwrap();
        assert_eq!(of("a"), first);
    }

    #[test]
    fn weights_with_a_digest_may_lie_anywhere() {
        let of = |text: &str| by_content(&text.parse().unwrap()).unwrap();
        assert_eq!(of("sha256 = 'abc'\nfile = '/a/b'"), of("sha256 = 'abc'\nname = 'faces'"));
        assert_ne!(of("sha256 = 'abc'"), of("sha256 = 'abd'"));
    }
}
