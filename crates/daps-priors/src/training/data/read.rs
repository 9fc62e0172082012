//! Data sets from folders, tars, IDX files and arrays; what a file is, its first bytes decide.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use candle_core::DType;
use daps_files::{ENDINGS, is_picture};
use image::{DynamicImage, GrayImage};
use rayon::prelude::*;

use super::adapted::{Adapted, Seen};
use super::crops::Whole;
use super::pictures;
use super::{Crops, DataConfig, Fit, Images, Watch};
use crate::{Error, Result};

/// Pictures that are decoded between two looks at whoever waits.
const CHUNK: usize = 64;

/// Reads all images in the order of their names, or of the file, and tells what was done to them.
pub(super) fn read(
    source: &Path,
    shape: [usize; 3],
    config: &DataConfig,
    watch: &mut Watch,
) -> Result<(Images, Adapted)> {
    let fit = config.fit;
    let pictures = |files: Vec<Named>, watch: &mut Watch| match &config.crops {
        Some(crops) => read_whole(source, files, shape, crops, watch),
        None => fit_all(source, files, shape, fit, watch),
    };
    if source.is_dir() {
        return pictures(folder(source)?, watch);
    }
    let bytes = unpacked(source)?;
    if bytes.get(257..262) == Some(b"ustar") {
        return pictures(tar(source, &bytes)?, watch);
    }
    if config.crops.is_some() {
        return Err(Error::file(
            source,
            "is not a folder or a tar of images, of which data.crops shows parts",
        ));
    }
    if bytes.starts_with(&[0, 0, 8, 3]) {
        return idx(&bytes, shape, fit).map_err(|reason| Error::file(source, reason));
    }
    if bytes.starts_with(b"\x93NUMPY") {
        return npy(source, &bytes, shape, fit);
    }
    Err(Error::file(source, "is not a folder of images, a tar, an IDX or a .npy file"))
}

/// A file's bytes, those of a gzip file unpacked.
pub(super) fn unpacked(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::file(path, "no such file or folder"),
        _ => Error::file(path, e),
    })?;
    gunzip(bytes).map_err(|e| Error::file(path, format!("is not a complete gzip file ({e})")))
}

/// Where the bytes of a picture are.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Encoded {
    /// In a file of their own, which is read only when it is decoded: a folder may hold more than the memory.
    At(PathBuf),
    Here(Vec<u8>),
}

impl Encoded {
    fn decode<T>(
        &self,
        decode: impl Fn(&[u8]) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, String> {
        match self {
            Self::At(path) => decode(&daps_files::read(path).map_err(|e| e.to_string())?),
            Self::Here(bytes) => decode(bytes),
        }
    }
}

type Named = (String, Encoded);

/// The names of a folder's pictures, and where they are.
fn folder(source: &Path) -> Result<Vec<Named>> {
    let paths = daps_files::pictures_in(source).map_err(|e| Error::file(source, e))?;
    let name =
        |path: &PathBuf| path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(paths.into_iter().map(|path| (name(&path), Encoded::At(path))).collect())
}

/// Names and bytes of a tar's pictures.
fn tar(source: &Path, bytes: &[u8]) -> Result<Vec<Named>> {
    let broken = |e: std::io::Error| Error::file(source, format!("is not a complete tar file ({e})"));
    let mut files = Vec::new();
    let mut archive = tar::Archive::new(Cursor::new(bytes));
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path().map_err(broken)?.to_string_lossy().into_owned();
        if entry.header().entry_type().is_file() && is_picture(Path::new(&name)) {
            let mut file = Vec::new();
            entry.read_to_end(&mut file).map_err(broken)?;
            files.push((name, Encoded::Here(file)));
        }
    }
    Ok(files)
}

/// Pictures that are made to fit.
fn fit_all(
    source: &Path,
    files: Vec<Named>,
    shape: [usize; 3],
    fit: Fit,
    watch: &mut Watch,
) -> Result<(Images, Adapted)> {
    let mut pixels = Vec::with_capacity(files.len() * shape.iter().product::<usize>());
    let mut adapted = Adapted::new(shape, fit);
    let decode = |bytes: &[u8]| pictures::decode(bytes, shape, fit);
    decode_all(source, files, shape, &decode, watch, &mut |_, (bytes, seen)| {
        pixels.extend(bytes);
        adapted.add(seen);
        Ok(())
    })?;
    Ok((Images::bytes(shape, pixels), adapted))
}

/// Pictures of their own size, of which parts are shown.
fn read_whole(
    source: &Path,
    files: Vec<Named>,
    shape: [usize; 3],
    crops: &Crops,
    watch: &mut Watch,
) -> Result<(Images, Adapted)> {
    let (mut images, mut adapted) = (Vec::new(), Adapted::parts(shape));
    let decode = |bytes: &[u8]| pictures::whole(bytes, shape[0]);
    decode_all(source, files, shape, &decode, watch, &mut |path, (whole, seen): (Whole, Seen)| {
        if whole.height.min(whole.width) < shape[1] {
            let (w, h, side) = (whole.width, whole.height, shape[1]);
            return Err(Error::file(
                path,
                format!("is {w}x{h}, smaller than the parts of {side}x{side} to be shown"),
            ));
        }
        images.push(whole);
        adapted.add(seen);
        Ok(())
    })?;
    Ok((Images::parts(shape, images, crops.clone()), adapted))
}

/// Decodes all pictures in the order of their names and hands them over.
fn decode_all<T: Send>(
    source: &Path,
    mut files: Vec<Named>,
    shape: [usize; 3],
    decode: &(dyn Fn(&[u8]) -> std::result::Result<T, String> + Sync),
    watch: &mut Watch,
    take: &mut dyn FnMut(&Path, T) -> Result<()>,
) -> Result<()> {
    if files.is_empty() {
        return Err(Error::file(source, format!("holds no images ({})", ENDINGS.join(", "))));
    }
    files.sort();
    if !matches!(shape[0], 1 | 3) {
        let reason = format!("image files have 1 or 3 channels, the network has {}", shape[0]);
        return Err(Error::file(source, reason));
    }
    for (index, chunk) in files.chunks(CHUNK).enumerate() {
        if watch(index * CHUNK, files.len()).is_break() {
            let (level, of) = (index * CHUNK, files.len());
            return Err(daps_core::Error::Cancelled { level, of }.into());
        }
        let decoded: Vec<_> = chunk.par_iter().map(|(_, picture)| picture.decode(decode)).collect();
        for ((name, _), picture) in chunk.iter().zip(decoded) {
            let path = source.join(name);
            take(&path, picture.map_err(|reason| Error::file(&path, reason))?)?;
        }
    }
    Ok(())
}

fn gunzip(bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(Cursor::new(bytes)).read_to_end(&mut plain)?;
    Ok(plain)
}

/// Grey pictures of MNIST's format: four big-endian numbers (the magic one, count, rows, columns), then bytes.
fn idx(bytes: &[u8], shape: [usize; 3], fit: Fit) -> std::result::Result<(Images, Adapted), String> {
    let number = |i: usize| {
        let part = bytes.get(4 * i..4 * i + 4)?;
        Some(part.iter().fold(0usize, |n, b| n << 8 | usize::from(*b)))
    };
    let (Some(count), Some(rows), Some(columns)) = (number(1), number(2), number(3)) else {
        return Err("is not a complete IDX file".to_owned());
    };
    let pixels = &bytes[16..];
    if rows == 0 || columns == 0 || count.checked_mul(rows * columns) != Some(pixels.len()) {
        let found = pixels.len();
        return Err(format!("says that it holds {count} images of {rows}x{columns}, but has {found} bytes"));
    }
    if shape[0] != 1 {
        return Err(format!("holds grey images; the network's have {} channels", shape[0]));
    }
    let each = |image: &[u8]| {
        let grey = GrayImage::from_raw(columns as u32, rows as u32, image.to_vec());
        let grey = grey.ok_or_else(|| "holds images of no size".to_owned())?;
        pictures::fitted(&DynamicImage::ImageLuma8(grey), shape, fit)
    };
    let fitted: std::result::Result<Vec<Vec<u8>>, String> =
        pixels.par_chunks(rows * columns).map(each).collect();
    let seen = Seen { width: columns, height: rows, grey: true, transparent: false, animated: false };
    let mut adapted = Adapted::new(shape, fit);
    (0..count).for_each(|_| adapted.add(seen));
    Ok((Images::bytes(shape, fitted?.concat()), adapted))
}

/// Numbers as they are, or bytes that stand for [-1, 1]; arrays are never resized.
fn npy(source: &Path, bytes: &[u8], shape: [usize; 3], fit: Fit) -> Result<(Images, Adapted)> {
    let mut adapted = Adapted::new(shape, fit);
    let array = daps_files::parse_npy(bytes).map_err(|e| Error::file(source, e))?;
    let fits = match *array.dims() {
        [n, h, w] => n > 0 && [1, h, w] == shape,
        [n, c, h, w] => n > 0 && [c, h, w] == shape,
        _ => false,
    };
    if !fits {
        let [c, h, w] = shape;
        let got = array.dims();
        return Err(Error::file(source, format!("expected an array of n x {c} x {h} x {w}, got {got:?}")));
    }
    let flat = array.flatten_all().map_err(daps_core::Error::from)?;
    if flat.dtype() == DType::U8 {
        return Ok((Images::bytes(shape, flat.to_vec1().map_err(daps_core::Error::from)?), adapted));
    }
    let flat = flat.to_dtype(DType::F32).map_err(daps_core::Error::from)?;
    daps_core::tensors::check_finite(&source.display().to_string(), &flat)?;
    let floats = flat.to_vec1().map_err(daps_core::Error::from)?;
    adapted.add_values(&floats);
    Ok((Images::floats(shape, floats), adapted))
}
