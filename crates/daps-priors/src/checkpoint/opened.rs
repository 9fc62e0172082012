//! A checkpoint that is open: what its header says is known, its tensors are read when they are asked for, and nothing twice.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use daps_core::SpreadTable;
use sha2::{Digest, Sha256};

use super::{
    CONFIG_KEY, Checkpoint, Format, NO_WEIGHTS, local_of, read_archive, read_config, safe, spread_of,
};
use crate::network::NetworkConfig;
use crate::{Error, LocalHead, Result};

/// An open checkpoint.
pub struct Opened {
    /// What messages call it: a file's path, or the name of weights in memory.
    name: PathBuf,
    metadata: BTreeMap<String, String>,
    content: Content,
    /// SHA-256 of the whole file, where only one file will do.
    expected: Option<String>,
}

enum Content {
    /// A safetensors file in memory.
    Memory(Cow<'static, [u8]>),
    /// A safetensors file: what has been read of it, and the rest.
    Safetensors { head: Vec<u8>, rest: File },
    /// PyTorch's zip archive.
    Archive(File),
}

impl Opened {
    /// Opens a file of any supported format; its first bytes decide which. Only a header is read.
    pub fn file(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Err(Error::file(path, "is a folder; name a file of weights"));
        }
        let mut file = File::open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::file(path, "no such file"),
            _ => Error::file(path, e),
        })?;
        let mut head = vec![0u8; 8];
        file.read_exact(&mut head).map_err(|_| Error::file(path, "is too short to be a checkpoint"))?;
        let first = [head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]];
        let (metadata, content) = match Format::of(first).ok_or_else(|| Error::file(path, NO_WEIGHTS))? {
            Format::Archive => (BTreeMap::new(), Content::Archive(file)),
            Format::OldPickle => {
                let what = "is a PyTorch file of the format before 1.6 (no zip archive); save it again with a current PyTorch";
                return Err(Error::file(path, what));
            }
            Format::Safetensors => {
                let metadata = safe::header(path, &mut head, &mut file)?;
                (metadata, Content::Safetensors { head, rest: file })
            }
        };
        Ok(Self { name: path.to_owned(), metadata, content, expected: None })
    }

    /// Opens a safetensors file in memory; `name` is what messages call it.
    pub fn memory(name: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        let name = PathBuf::from(name);
        let bytes: Cow<'static, [u8]> = bytes.into();
        let (head, mut rest) = bytes.split_at(bytes.len().min(8));
        if head.len() < 8 {
            return Err(Error::file(&name, "is too short to be a checkpoint"));
        }
        let metadata = safe::header(&name, &mut head.to_vec(), &mut rest)?;
        Ok(Self { name, metadata, content: Content::Memory(bytes), expected: None })
    }

    /// Only a file of this SHA-256 will be read.
    #[must_use]
    pub fn expecting(self, sha256: &str) -> Self {
        Self { expected: Some(sha256.to_owned()), ..self }
    }

    /// What messages call it.
    #[must_use]
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Its free text: empty where the format has none.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The network configuration inside, or in the `.toml` file beside the weights.
    pub fn config(&self) -> Result<Option<NetworkConfig>> {
        if let Some(text) = self.metadata.get(CONFIG_KEY) {
            return NetworkConfig::parse(text).map(Some).map_err(|e| e.within(&self.name));
        }
        let beside = self.name.with_extension("toml");
        match &self.content {
            Content::Memory(_) => Ok(None),
            _ if beside.is_file() => read_config(&beside).map(Some),
            _ => Ok(None),
        }
    }

    /// The same, which must be there.
    pub fn needed_config(&self) -> Result<NetworkConfig> {
        self.config()?.ok_or_else(|| {
            let beside = match &self.content {
                Content::Memory(_) => String::new(),
                _ => format!(" and there is no {}", self.name.with_extension("toml").display()),
            };
            Error::file(&self.name, format!("carries no network configuration{beside}"))
        })
    }

    /// r(σ), where the file carries it.
    pub fn spread(&self) -> Result<Option<SpreadTable>> {
        spread_of(&self.metadata)
    }

    /// The local factor of its error, where the file carries it.
    pub fn local(&self) -> Result<Option<LocalHead>> {
        local_of(&self.metadata)
    }

    /// Its tensors.
    pub fn read(self) -> Result<Checkpoint> {
        let name = &self.name;
        let failed = |e: std::io::Error| Error::file(name, e);
        let bytes = match self.content {
            Content::Memory(bytes) => bytes,
            Content::Safetensors { mut head, mut rest } => {
                rest.read_to_end(&mut head).map_err(failed)?;
                Cow::Owned(head)
            }
            Content::Archive(mut file) => {
                file.rewind().map_err(failed)?;
                if self.expected.is_some() {
                    let mut bytes = Vec::new();
                    file.read_to_end(&mut bytes).map_err(failed)?;
                    check(name, self.expected.as_deref(), &bytes)?;
                    file.rewind().map_err(failed)?;
                }
                let tensors = read_archive(BufReader::new(file)).map_err(|e| Error::file(name, e))?;
                return Ok(Checkpoint { format: "PyTorch", tensors, metadata: self.metadata });
            }
        };
        check(name, self.expected.as_deref(), &bytes)?;
        safe::parse(name, &bytes)
    }
}

/// Refuses the bytes of another file than the expected one.
fn check(name: &Path, expected: Option<&str>, bytes: &[u8]) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    let mut hash = Sha256::new();
    hash.update(bytes);
    match safe::hexadecimal(hash) {
        found if found == expected => Ok(()),
        found => Err(Error::file(name, format!("is another file: expected SHA-256 {expected}, got {found}"))),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    fn written(path: &Path) -> Vec<u8> {
        let tensors = BTreeMap::from([("w".to_owned(), Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap())]);
        let metadata = [("about".to_owned(), "two numbers".to_owned())].into();
        safe::write(path, &tensors, metadata).unwrap();
        std::fs::read(path).unwrap()
    }

    /// The header and the tensors are of one file, even where another has taken its place since.
    #[test]
    fn an_open_checkpoint_is_not_looked_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        written(&path);
        let opened = Opened::file(&path).unwrap();
        assert_eq!(opened.metadata()["about"], "two numbers");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"something else altogether").unwrap();
        assert_eq!(opened.read().unwrap().tensors["w"].to_vec1::<f32>().unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn memory_and_file_say_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let bytes = written(&path);
        let (file, memory) = (Opened::file(&path).unwrap(), Opened::memory("a", bytes.clone()).unwrap());
        assert_eq!(file.metadata(), memory.metadata());
        assert_eq!(file.read().unwrap().sha256(), memory.read().unwrap().sha256());
        let error = Opened::memory("a", bytes[..5].to_vec()).err().unwrap().to_string();
        assert_eq!(error, "a: is too short to be a checkpoint");
        let error = Opened::memory("a", bytes).unwrap().needed_config().unwrap_err().to_string();
        assert_eq!(error, "a: carries no network configuration");
    }

    #[test]
    fn another_file_than_the_expected_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let mut hash = Sha256::new();
        hash.update(written(&path));
        let digest = safe::hexadecimal(hash);
        assert!(Opened::file(&path).unwrap().expecting(&digest).read().is_ok());
        let error = Opened::file(&path).unwrap().expecting("abc").read().unwrap_err().to_string();
        assert!(error.ends_with(&format!("is another file: expected SHA-256 abc, got {digest}")), "{error}");
    }
}
