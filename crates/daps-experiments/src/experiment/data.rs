//! The images of an experiment: a slice of a data set, each with the number that addresses its noise.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use daps::{Error, Result, Truths, bundled, files, load};
use daps_core::tensors::{batched, to_f64};
use daps_priors::training::{DataConfig, Dataset};

use super::config::Source;

/// The source that is inside the program.
pub const BUNDLED: &str = "bundled";

/// Images and what they are.
pub(super) struct Images {
    pub truths: Truths,
    /// How many images the whole source has.
    pub of: usize,
    /// SHA-256 of each one's values.
    pub digests: Vec<String>,
}

impl Images {
    /// Reads the slice; `base` is where relative paths start.
    pub fn read(source: &Source, shape: &[usize], base: &Path) -> Result<Self> {
        let &[c, h, w] = shape else {
            let what =
                format!("data: experiments work on images of [channels, height, width], got {shape:?}");
            return Err(Error::Config(what));
        };
        let (values, numbers, of) = match source.source.to_str() {
            Some(BUNDLED) => bundled_pictures(source, shape)?,
            _ => sliced(source, [c, h, w], base)?,
        };
        let names = numbers.iter().map(|n| format!("{n:05}")).collect();
        let all = to_f64(&values)?;
        let digest = |v: &[f64]| files::sha256(v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        let digests = all.chunks(c * h * w).map(digest).collect();
        Ok(Self { truths: Truths { values, names, numbers }, of, digests })
    }
}

/// The truths of a slice of a data set; `base` is where relative paths start.
pub fn images(source: &Source, shape: &[usize], base: &Path) -> Result<Truths> {
    Ok(Images::read(source, shape, base)?.truths)
}

/// A bundled picture is named by its number.
fn number(picture: &bundled::Picture) -> u64 {
    picture.name.trim_end_matches(".png").parse().unwrap_or(0)
}

fn too_few(source: &Source, there: usize) -> Error {
    let what = format!(
        "has {there} images to choose from; {} were asked for after the first {}",
        source.images, source.skip
    );
    Error::content(&source.source, what)
}

/// Values, the images' numbers in their source, and how many that has.
fn sliced(source: &Source, shape: [usize; 3], base: &Path) -> Result<(Tensor, Vec<u64>, usize)> {
    let path = base.join(&source.source);
    if !path.exists() {
        let made = match path.file_name().and_then(|name| name.to_str()) {
            Some("faces64.tar") => {
                "make it (python scripts/make_faces.py --count 8127 --out data/faces64.tar)"
            }
            Some(name) if name.contains("idx") => "get it (scripts/get_mnist.sh)",
            _ => "give its path",
        };
        let hint = format!(
            "no such file or folder; {made}, or name another source with --data (\"bundled\" takes the bundled images)"
        );
        return Err(Error::content(&path, hint));
    }
    let held_out = source.held_out.unwrap_or(0);
    let config = DataConfig {
        source: PathBuf::from(&path),
        held_out,
        flip: false,
        fit: source.fit,
        crops: None,
        left_out: 0,
    };
    let data = Dataset::read(&config, shape, Path::new(""))?;
    let all = data.train.len() + data.held_out.len();
    let (images, before) = match source.held_out {
        Some(_) => (data.held_out, data.train.len()),
        None => (data.train, 0),
    };
    if source.skip + source.images > images.len() {
        return Err(too_few(source, images.len()));
    }
    let chosen = source.skip..source.skip + source.images;
    let plain: Vec<(usize, bool)> = chosen.clone().map(|i| (i, false)).collect();
    let numbers = chosen.map(|i| (before + i) as u64).collect();
    Ok((images.select(&plain)?.to_dtype(DType::F64)?, numbers, all))
}

/// The pictures inside the program, or the last of them.
fn bundled_pictures(source: &Source, shape: &[usize]) -> Result<(Tensor, Vec<u64>, usize)> {
    let all = bundled::pictures_of(shape);
    let last = &all[all.len().saturating_sub(source.held_out.unwrap_or(all.len()))..];
    let chosen =
        last.get(source.skip..source.skip + source.images).ok_or_else(|| too_few(source, last.len()))?;
    let mut values = Vec::new();
    for picture in chosen {
        values.extend(load::decode(Path::new(picture.name), picture.bytes, shape, true)?.0);
    }
    let values = Tensor::from_vec(values, batched(chosen.len(), shape), &Device::Cpu)?;
    Ok((values, chosen.iter().map(number).collect(), all.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_carries_faces_and_digits() {
        let read = |shape: &[usize], held_out, images| {
            let (source, fit) = (BUNDLED.into(), Default::default());
            let source = Source { source, held_out, labels: None, skip: 0, images, fit };
            Images::read(&source, shape, Path::new("")).map(|i| (i.truths.names, i.of))
        };
        let (faces, of) = read(&[3, 64, 64], None, 2).unwrap();
        assert_eq!((faces, of), (vec!["07999".to_owned(), "08017".into()], 8));
        let (digits, of) = read(&[1, 32, 32], Some(2), 2).unwrap();
        assert_eq!((digits, of), (vec!["00007".to_owned(), "00002".into()], 6));
        let error = read(&[1, 32, 32], None, 7).unwrap_err().to_string();
        assert!(error.contains("has 6 images to choose from"), "{error}");
    }
}
