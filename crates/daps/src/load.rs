//! Pictures and arrays in: any common picture file becomes a `[channels, height, width]` tensor in [-1, 1] of the run's shape.
//!
//! What happens to a picture of another kind: it is turned upright by its EXIF tag, transparency is laid on white, colours become
//! brightness for a grey prior and grey is repeated for a colour prior, the middle is cropped to the run's proportions and
//! resized (Lanczos, antialiased), and of an animation the first frame is taken. Each such step leaves a note.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::batched;
use daps_files::{Choice, Header, Picture, is_array, on_white};
use image::DynamicImage;
use image::imageops::FilterType;

use crate::{Error, Format, Result};

/// A picture is enlarged at most this many times.
const MOST_ENLARGED: u32 = 8;

/// Items of one shape with their names.
pub struct Batch {
    /// `[n, shape…]` in f64.
    pub values: Tensor,
    /// One per item, unique, usable as file names.
    pub names: Vec<String>,
    /// What was done to the items, for people.
    pub notes: Vec<String>,
    /// Their places among all of a folder.
    pub numbers: Vec<u64>,
    /// What pictures were like; empty of an array.
    pub formats: Vec<Format>,
}

/// A picture's file.
pub(crate) struct Listed {
    /// Where it lies.
    pub path: PathBuf,
    /// What it is called: unique among the pictures of its folder, and usable as a file name.
    pub name: String,
    /// Its place among them.
    pub number: u64,
}

/// A picture's file, or those of a folder; of these the ones that are named, where any is.
pub(crate) fn listed(path: &Path, only: &[String]) -> Result<Vec<Listed>> {
    let refuse = |e| Error::content(path, e);
    let paths = match path.is_dir() {
        true => daps_files::pictures_in(path).map_err(refuse)?,
        false => vec![path.to_path_buf()],
    };
    let mut names = Vec::<String>::new();
    for path in &paths {
        let stem = stem(path);
        let several = (1..).map(|i| format!("{stem}.{i}"));
        let free = std::iter::once(stem.clone()).chain(several).find(|name| !names.contains(name));
        names.push(free.unwrap_or(stem));
    }
    let all = paths.into_iter().zip(names).zip(0..);
    let mut all: Vec<Listed> = all.map(|((path, name), number)| Listed { path, name, number }).collect();
    if let Some(missing) = only.iter().find(|file| !all.iter().any(|one| one.file() == **file)) {
        return Err(Error::content(path, format!("has no image {missing}")));
    }
    all.retain(|one| only.is_empty() || only.contains(&one.file()));
    Ok(all)
}

impl Listed {
    /// The file's own name.
    pub fn file(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// What its beginning says.
    pub fn header(&self) -> Result<Header> {
        let read = daps_files::read(&self.path).and_then(|bytes| daps_files::header(&bytes));
        read.map_err(|e| Error::content(&self.path, e))
    }
}

/// What the numbers of a file stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Pictures: those of another size are made to fit, and bytes of an array mean what they mean in a picture.
    Pictures,
    /// Tokens: the same, but an array holds the tokens themselves.
    Tokens,
    /// A measurement that is a picture too: of the right size, bytes as in a picture.
    MeasuredPicture,
    /// Any other measurement: of the right size, and as it is.
    Measurement,
}

/// Reads the items at a path: a picture, a folder of pictures, or a `.npy` or `.safetensors` array (of several tensors, the
/// one called `tensor`). Of a folder only the files that are named, where any is.
pub fn batch(path: &Path, only: &[String], shape: &[usize], tensor: &str, meaning: Meaning) -> Result<Batch> {
    if !path.exists() {
        return Err(Error::content(path, "no such file"));
    }
    if !path.is_dir() && is_array(path) {
        return array(path, shape, tensor, meaning);
    }
    pictures(&listed(path, only)?, shape, matches!(meaning, Meaning::Pictures | Meaning::Tokens))
}

/// Pictures `[n, channels, height, width]` in [-1, 1] as they are, of one size: a picture, a folder of them, or an array. Of a
/// run's own files, the tensor of a name is taken, and `[n, chains, …]` is one picture after the other; the chains are said beside
/// them.
pub fn as_they_are(path: &Path, tensor: Choice) -> Result<(Batch, usize)> {
    let refuse = |e: daps_files::Error| Error::content(path, e);
    if !path.exists() {
        return Err(Error::content(path, "no such file or folder"));
    }
    if !path.is_dir() && is_array(path) {
        if matches!(tensor, Choice::Named(_)) && daps_files::ending(path) == "npy" {
            return Err(Error::content(path, "has one array without a name; leave out --tensor"));
        }
        let array = daps_files::read_array(path, tensor).map_err(refuse)?;
        let values = daps_files::as_pictures(&array).map_err(refuse)?;
        daps_core::tensors::check_finite(&path.display().to_string(), &values)?;
        let unnamed =
            |values| Batch { values, names: vec![], notes: vec![], numbers: vec![], formats: vec![] };
        // Samples of a run: chains may leave the range of pictures.
        if let [_, chains, _, _, _] = *values.dims() {
            return Ok((unnamed(values.flatten(0, 1)?), chains));
        }
        if let Some((low, high)) = daps_files::beyond_pictures(&values).map_err(refuse)? {
            let what =
                format!("values from {low} to {high}, where images have -1 to 1 (or 0 to 255 as bytes)");
            return Err(Error::content(path, what));
        }
        return Ok((unnamed(if values.dims().len() == 3 { values.unsqueeze(0)? } else { values }), 1));
    }
    let listed = listed(path, &[])?;
    let first = listed[0].header()?;
    let channels = if first.is_grey { 1 } else { 3 };
    Ok((pictures(&listed, &[channels, first.height as usize, first.width as usize], false)?, 1))
}

fn array(path: &Path, shape: &[usize], tensor: &str, meaning: Meaning) -> Result<Batch> {
    let found =
        daps_files::read_array(path, Choice::Preferred(tensor)).map_err(|e| Error::content(path, e))?;
    let mut notes = Vec::new();
    let refuse = |e: daps_files::Error| Error::content(path, e);
    let pictures = matches!(meaning, Meaning::Pictures | Meaning::MeasuredPicture);
    let values = match pictures {
        true => daps_files::as_pictures(&found).map_err(refuse)?,
        false => found.to_dtype(DType::F64)?,
    };
    daps_core::tensors::check_finite(&path.display().to_string(), &values)?;
    if pictures && found.dtype() == DType::U8 {
        notes.push(format!("{}: bytes; 0 to 255 stand for -1 to 1", path.display()));
    } else if pictures
        && shape.len() == 3
        && let Some((low, high)) = daps_files::beyond_pictures(&values).map_err(refuse)?
    {
        let what = format!("values from {low} to {high}, where images have -1 to 1");
        notes.push(format!("{}: {what}", path.display()));
    }
    let values = if values.dims() == shape { values.unsqueeze(0)? } else { values };
    if values.dims().is_empty() || &values.dims()[1..] != shape || values.dims()[0] == 0 {
        let expected = batched(1, shape);
        return Err(Error::content(
            path,
            format!("expected shape {shape:?} or {expected:?} with any first size, got {:?}", values.dims()),
        ));
    }
    let (stem, n) = (stem(path), values.dims()[0]);
    let names = if n == 1 { vec![stem] } else { (0..n).map(|i| format!("{stem}-{i:03}")).collect() };
    Ok(Batch { values, names, notes, numbers: (0..n as u64).collect(), formats: vec![] })
}

/// The file's name without its ending, with nothing in it that a file name or a page cannot take.
fn stem(path: &Path) -> String {
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let plain: String = name.chars().map(plain).collect();
    if plain.trim_matches('.').is_empty() { "picture".into() } else { plain }
}

fn pictures(listed: &[Listed], shape: &[usize], fit: bool) -> Result<Batch> {
    let (mut values, mut formats, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for Listed { path, .. } in listed {
        let refuse = |e| Error::content(path, e);
        let bytes = daps_files::read(path).map_err(refuse)?;
        let (pixels, said) = decode(path, &bytes, shape, fit)?;
        values.extend(pixels);
        formats.push(daps_files::header(&bytes).map_err(refuse)?.into());
        if !said.is_empty() {
            notes.push(format!("{}: {}", path.display(), said.join("; ")));
        }
    }
    let values = Tensor::from_vec(values, batched(listed.len(), shape), &Device::Cpu)?;
    let names = listed.iter().map(|one| one.name.clone()).collect();
    let numbers = listed.iter().map(|one| one.number).collect();
    Ok(Batch { values, names, notes, numbers, formats })
}

/// The values of a picture, plane by plane, and what was done to it.
pub fn decode(path: &Path, bytes: &[u8], shape: &[usize], fit: bool) -> Result<(Vec<f64>, Vec<String>)> {
    let &[channels @ (1 | 3), height, width] = shape else {
        let what = format!("an image needs a shape of [1 or 3, height, width], got {shape:?}");
        return Err(Error::content(path, what));
    };
    let mut notes = Vec::new();
    let Picture { pixels: picture, is_animated } =
        daps_files::open(bytes).map_err(|e| Error::content(path, e))?;
    if is_animated {
        notes.push("animated; its first frame is used".into());
    }
    let color = picture.color();
    let picture = if fit {
        fitted(path, &picture, width as u32, height as u32, &mut notes)?
    } else if (picture.width(), picture.height()) == (width as u32, height as u32) {
        picture
    } else {
        let (w, h) = (picture.width(), picture.height());
        return Err(Error::content(path, format!("is {w}x{h}, expected {width}x{height}")));
    };
    let (pixels, transparent) = on_white(&picture);
    if transparent {
        notes.push("transparent in places; laid on white".into());
    }
    let pixels = match (pixels.dimensions() == (width as u32, height as u32), fit) {
        (true, _) | (_, false) => pixels,
        (false, true) => image::imageops::resize(&pixels, width as u32, height as u32, FilterType::Lanczos3),
    };
    match (channels, color.has_color()) {
        (1, true) => notes.push("colour; its brightness is used".into()),
        (3, false) => notes.push("grey; the same in all three channels".into()),
        _ => {}
    }
    // Lanczos overshoots at edges; pictures do not.
    let value = |v: f64| (2.0 * v - 1.0).clamp(-1.0, 1.0);
    let plane = |c: usize| pixels.pixels().map(move |p| value(f64::from(p.0[c])));
    let values = if channels == 3 {
        (0..3).flat_map(plane).collect()
    } else {
        let [r, g, b] = [0.2126, 0.7152, 0.0722];
        let luma = |p: [f32; 3]| r * f64::from(p[0]) + g * f64::from(p[1]) + b * f64::from(p[2]);
        pixels.pixels().map(|p| value(luma(p.0))).collect()
    };
    Ok((values, notes))
}

/// The middle of the picture in the wished proportions, and a note of what will be done to it.
fn fitted(
    path: &Path,
    picture: &DynamicImage,
    width: u32,
    height: u32,
    notes: &mut Vec<String>,
) -> Result<DynamicImage> {
    let (w, h) = (picture.width(), picture.height());
    if (w, h) == (width, height) {
        return Ok(picture.clone());
    }
    if w.saturating_mul(MOST_ENLARGED) < width || h.saturating_mul(MOST_ENLARGED) < height {
        let what = format!("is {w}x{h}, too small to be enlarged to {width}x{height}");
        return Err(Error::content(path, what));
    }
    let wide = u64::from(w) * u64::from(height) > u64::from(h) * u64::from(width);
    let scaled = |side: u32, of: u32, to: u32| {
        ((f64::from(side) * f64::from(to) / f64::from(of)).round() as u32).max(1)
    };
    let (cw, ch) = if wide { (scaled(h, height, width), h) } else { (w, scaled(w, width, height)) };
    let (cw, ch) = (cw.min(w), ch.min(h));
    let crop = if (cw, ch) == (w, h) { String::new() } else { format!("cropped to its middle {cw}x{ch}, ") };
    notes.push(format!("{w}x{h}; {crop}resized to {width}x{height}"));
    Ok(picture.crop_imm((w - cw) / 2, (h - ch) / 2, cw, ch))
}
