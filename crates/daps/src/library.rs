//! Where the weights of a known prior are: in the program, in one of a few folders, or nowhere yet.

use std::fs;
use std::path::{Path, PathBuf};

use daps_priors::checkpoint::Opened;

use crate::manifest::{self, Entry, Manifest};
use crate::{Error, Result, assets, bundled, files};

/// The folder of priors beside the program, in the source tree and in the cache.
const FOLDER: &str = "priors";

/// A manifest and the places where its files may lie.
pub struct Library {
    manifest: Manifest,
    /// Files that are part of the program, by their path in the manifest.
    embedded: Vec<(&'static str, &'static [u8])>,
    /// Folders, in the order in which they are looked through.
    folders: Vec<PathBuf>,
    /// The folder that files are copied to; it is looked through last.
    cache: Option<PathBuf>,
}

/// Where a file of weights was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the program itself.
    Embedded(&'static [u8]),
    /// In a folder.
    File(PathBuf),
    /// Nowhere.
    Nowhere,
}

/// What became of a wish for weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// They are part of the program.
    Embedded,
    /// They were copied to this file.
    Copied(PathBuf),
}

impl Library {
    /// The program's own: `$DAPS_PRIORS`, `priors` beside the program, `priors` of the source tree that it was built from, where
    /// that is still there, and `priors` in the cache.
    pub fn standard() -> Result<Self> {
        let set = std::env::var_os("DAPS_PRIORS").filter(|v| !v.is_empty()).map(PathBuf::from);
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(FOLDER)));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
        let source = source.canonicalize().ok();
        Ok(Self {
            manifest: manifest::standard()?.clone(),
            embedded: bundled::EMBEDDED.to_vec(),
            folders: [set, beside, source].into_iter().flatten().filter(|f| f.is_dir()).collect(),
            // Without a cache, everything but `get` works.
            cache: assets::cache_directory().ok().map(|cache| cache.join(FOLDER)),
        })
    }

    /// A library of one's own, with nothing in the program.
    #[must_use]
    pub fn new(manifest: Manifest, folders: Vec<PathBuf>, cache: Option<PathBuf>) -> Self {
        Self { manifest, embedded: vec![], folders, cache }
    }

    /// What there is.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where the file of an entry is.
    #[must_use]
    pub fn place(&self, entry: &Entry) -> Place {
        if let Some(&(_, bytes)) = self.embedded.iter().find(|(file, _)| Path::new(file) == entry.file) {
            return Place::Embedded(bytes);
        }
        match self.folders.iter().chain(&self.cache).find_map(|folder| in_folder(folder, entry)) {
            Some(path) => Place::File(path),
            None => Place::Nowhere,
        }
    }

    /// Opens the weights of a prior by its name.
    pub fn open(&self, name: &str) -> Result<Opened> {
        let entry = self.manifest.prior(name)?;
        match self.place(entry) {
            Place::Embedded(bytes) => Ok(Opened::memory(name, bytes)?),
            Place::File(path) => {
                let bytes = fs::metadata(&path).map_err(Error::file(&path, "cannot read"))?.len();
                if bytes != entry.bytes {
                    let what = format!(
                        "is not the file of '{name}': expected {} bytes, got {bytes}; {}",
                        entry.bytes,
                        hint(entry)
                    );
                    return Err(Error::content(&path, what));
                }
                Ok(Opened::file(&path)?.expecting(&entry.sha256))
            }
            Place::Nowhere => Err(Error::Config(format!(
                "the weights of '{name}' ({}) are not installed; {}",
                entry.size(),
                hint(entry)
            ))),
        }
    }

    /// Copies weights into the cache: from a file, or else from a folder where they are found. Their digest is checked first.
    pub fn get(&self, name: &str, from: Option<&Path>) -> Result<Got> {
        let known = || self.manifest.weights.iter().map(|entry| entry.name.as_str());
        let entry = self
            .manifest
            .entry(name)
            .ok_or_else(|| daps_core::Error::unknown("set of weights", name, known()))?;
        if let Place::Embedded(_) = self.place(entry) {
            return Ok(Got::Embedded);
        }
        let found = || self.folders.iter().find_map(|folder| in_folder(folder, entry));
        let Some(path) = from.map(Path::to_path_buf).or_else(found) else {
            return Err(Error::Config(format!("weights of '{name}' not found; pass --from FILE")));
        };
        // A file that is far too large is not read first.
        let size = fs::metadata(&path).map_err(Error::file(&path, "cannot read"))?.len();
        if size != entry.bytes {
            let expected = entry.bytes;
            let what =
                format!("is not the file of '{name}': expected {expected} bytes, got {size}; not used");
            return Err(Error::content(&path, what));
        }
        let bytes = fs::read(&path).map_err(Error::file(&path, "cannot read"))?;
        entry.check(&path, &bytes)?;
        let cache = self.cache.as_ref().ok_or_else(|| {
            Error::Config("no cache directory: set DAPS_CACHE to a directory for weights".into())
        })?;
        let out = cache.join(&entry.file);
        let folder = out.parent().unwrap_or(cache);
        fs::create_dir_all(folder).map_err(Error::file(folder, "cannot make the directory"))?;
        files::write(&out, &bytes)?;
        Ok(Got::Copied(out))
    }
}

/// How to get weights that are nowhere.
#[must_use]
pub fn hint(entry: &Entry) -> String {
    format!("get them with: daps weights get {} [--from FILE]", entry.name)
}

/// The file of an entry in a folder that is a copy of `priors`, or that just holds the files.
fn in_folder(folder: &Path, entry: &Entry) -> Option<PathBuf> {
    let flat = entry.file.file_name().map(|name| folder.join(name));
    [Some(folder.join(&entry.file)), flat].into_iter().flatten().find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: &[u8] = include_bytes!("../../../priors/digits/digits.safetensors");

    /// A library whose one prior, `own`, is in no program, with two folders and a cache.
    struct Scene {
        dir: tempfile::TempDir,
        library: Library,
    }

    fn scene() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let own = include_str!("../../../priors/manifest.toml");
        let own = own.replace("\"digits\"", "\"own\"").replace("digits/digits.safe", "own/own.safe");
        let at = |name: &str| dir.path().join(name);
        let mut library =
            Library::new(Manifest::parse(&own).unwrap(), vec![at("first"), at("second")], Some(at("cache")));
        library.manifest.weights.retain(|entry| entry.name == "own");
        Scene { dir, library }
    }

    impl Scene {
        fn put(&self, path: &str, bytes: &[u8]) -> PathBuf {
            let path = self.dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        }

        fn place(&self) -> Place {
            self.library.place(&self.library.manifest.weights[0])
        }
    }

    #[test]
    fn folders_are_looked_through_in_their_order() {
        let scene = scene();
        assert_eq!(scene.place(), Place::Nowhere);
        let error = scene.library.open("own").err().unwrap().to_string();
        assert_eq!(
            error,
            "the weights of 'own' (3.3 MB) are not installed; get them with: daps weights get own [--from FILE]"
        );
        for path in ["cache/own/own.safetensors", "second/own.safetensors", "first/own/own.safetensors"] {
            let path = scene.put(path, WEIGHTS);
            assert_eq!(scene.place(), Place::File(path));
        }
        let opened = scene.library.open("own").unwrap();
        assert_eq!(opened.needed_config().unwrap().shape(), [1, 32, 32]);
        assert_eq!(opened.read().unwrap().sha256()[..12], *"3b1721dcd28b");
        let error = scene.library.open("other").err().unwrap().to_string();
        assert_eq!(error, "unknown prior 'other'; known: own");
    }

    #[test]
    fn files_of_another_size_or_content_are_refused() {
        let scene = scene();
        let mut wrong = WEIGHTS.to_vec();
        scene.put("first/own/own.safetensors", &wrong[1..]);
        let error = scene.library.open("own").err().unwrap().to_string();
        assert!(error.contains("expected 3278314 bytes, got 3278313; get them with"), "{error}");
        *wrong.last_mut().unwrap() ^= 1;
        let path = scene.put("first/own/own.safetensors", &wrong);
        let error = scene.library.open("own").unwrap().read().err().unwrap().to_string();
        assert!(error.contains("is another file: expected SHA-256 b4a1802f"), "{error}");
        // Nor are they copied.
        for from in [None, Some(path.as_path())] {
            let error = scene.library.get("own", from).unwrap_err().to_string();
            assert!(error.contains("is not the file of 'own': expected SHA-256 b4a1802f"), "{error}");
        }
        assert!(!scene.dir.path().join("cache").exists());
    }

    #[test]
    fn weights_are_copied_into_the_cache() {
        let scene = scene();
        let error = scene.library.get("own", None).unwrap_err().to_string();
        assert_eq!(error, "weights of 'own' not found; pass --from FILE");
        let cached = scene.dir.path().join("cache/own/own.safetensors");
        // From a file of any name.
        let from = scene.put("elsewhere/download", WEIGHTS);
        assert_eq!(scene.library.get("own", Some(&from)).unwrap(), Got::Copied(cached.clone()));
        assert_eq!(
            (fs::read(&cached).unwrap() == WEIGHTS, scene.place()),
            (true, Place::File(cached.clone()))
        );
        // From a folder; a damaged copy in the cache is replaced.
        fs::write(&cached, b"damaged").unwrap();
        scene.put("second/own/own.safetensors", WEIGHTS);
        assert_eq!(scene.library.get("own", None).unwrap(), Got::Copied(cached.clone()));
        assert!(fs::read(&cached).unwrap() == WEIGHTS);
        let error = scene.library.get("other", None).unwrap_err().to_string();
        assert_eq!(error, "unknown set of weights 'other'; known: own");
        let missing = scene.dir.path().join("none");
        let error = scene.library.get("own", Some(&missing)).unwrap_err().to_string();
        assert!(error.contains("none: cannot read"), "{error}");
    }

    /// A prior of the program needs no folder, and asking for it changes nothing.
    #[test]
    fn the_default_set_is_in_the_program() {
        let library = Library::standard().unwrap();
        for name in ["faces", "digits", "binary-digits", "digit-classifier"] {
            let entry = library.manifest().entry(name).unwrap();
            assert!(matches!(library.place(entry), Place::Embedded(_)), "{name}");
            assert_eq!(library.get(name, None).unwrap(), Got::Embedded);
        }
        assert!(library.folders.iter().any(|folder| folder.join("manifest.toml").is_file()));
    }
}
