//! The files and folders that settings name: where they lie, and what is in them, on which results depend.

use std::path::{Path, PathBuf};

use daps_priors::PriorConfig;
use toml::Table;

pub use crate::config::settle;
use crate::{Error, Result, files};

/// Settled settings of a prior with a digest in the place of every file and folder that they name: what is in a set of points
/// counts, not where it lies.
pub fn prior_by_content(prior: &PriorConfig) -> Result<PriorConfig> {
    let mut prior = prior.clone();
    if let PriorConfig::Network(network) = &mut prior
        && network.sha256.is_some()
    {
        // The weights are what they are, wherever they lie.
        (network.file, network.name) = (None, None);
    }
    prior.map_paths(|path| Ok::<_, Error>(digest(path)?.map_or_else(|| path.to_owned(), PathBuf::from)))?;
    Ok(prior)
}

/// The same of an operator's settings: what is in a mask or a kernel counts.
pub fn by_content(settings: &Table) -> Result<Table> {
    let mut settings = settings.clone();
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

    fn prior(text: &str) -> Table {
        let config = PriorConfig::from_table(text.parse().unwrap()).unwrap();
        prior_by_content(&config).unwrap().to_table().unwrap()
    }

    #[test]
    fn what_is_in_a_file_counts_and_not_where_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, content: &str| {
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            let mut settings: Table = "border = 'reflect'".parse().unwrap();
            settings.insert("mask".into(), path.to_str().unwrap().into());
            by_content(&settings).unwrap()
        };
        let first = of("a", "one");
        assert_eq!((&first, first["mask"].as_str()), (&of("b", "one"), Some(files::sha256("one").as_str())));
        assert_eq!(first["border"].as_str(), Some("reflect"));
        assert_ne!(first, of("a", "two"));
    }

    #[test]
    fn what_is_in_a_folder_counts_and_not_where_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["a", "b"] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("1.png"), b"one").unwrap();
        }
        let of = |folder: &str| {
            prior(&format!("kind = 'empirical'\nresize = true\nfolder = {:?}", at(folder).to_str().unwrap()))
        };
        let first = of("a");
        assert_eq!(first["kind"].as_str(), Some("empirical"));
        assert_eq!(first, of("b"));
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
        let of = |text: &str| prior(&format!("kind = 'network'\n{text}"));
        let first = of("sha256 = 'abc'\nfile = '/a/b'");
        assert_eq!(first, of("sha256 = 'abc'\nname = 'faces'"));
        assert_eq!(first, "kind = 'network'\nsha256 = 'abc'".parse::<Table>().unwrap());
        assert_ne!(first, of("sha256 = 'abd'\nfile = '/a/b'"));
    }
}
