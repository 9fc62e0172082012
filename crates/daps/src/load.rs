//! Pictures and arrays in: any common picture file becomes a `[channels, height, width]` tensor in [-1, 1] of the prior's size.
//!
//! What happens to a picture of another kind: it is turned upright by its EXIF tag, transparency is laid on white, colours become
//! brightness for a grey prior and grey is repeated for a colour prior, the middle is cropped to the prior's proportions and
//! resized (Lanczos, antialiased), and of an animation the first frame is taken. Each such step leaves a note.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use daps_core::real::batched;
use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::imageops::FilterType;
use image::{AnimationDecoder, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, Rgb32FImage};

use crate::{Error, Result};

/// Files beyond this are not read.
const MOST_BYTES: u64 = 256 << 20;
/// Pictures beyond this are not decoded.
const MOST_PIXELS: u64 = 64_000_000;
/// A picture is enlarged at most this many times.
const MOST_ENLARGED: u32 = 8;
/// File name endings of pictures.
const ENDINGS: [&str; 14] =
    ["png", "apng", "jpg", "jpeg", "jpe", "webp", "tif", "tiff", "gif", "bmp", "pbm", "pgm", "ppm", "pnm"];

/// Items of one shape with their names.
pub struct Batch {
    /// `[n, shape…]` in f64.
    pub values: Tensor,
    /// One per item, unique, usable as file names.
    pub names: Vec<String>,
    /// What was done to the items, for people.
    pub notes: Vec<String>,
}

/// Reads the items at a path: a picture, a folder of pictures, or a `.npy` or `.safetensors` array (of several tensors, the
/// one called `tensor`). Pictures are made to fit if `fit`, and must have the right size otherwise.
pub fn batch(path: &Path, shape: &[usize], tensor: &str, fit: bool) -> Result<Batch> {
    if path.is_dir() {
        return pictures(&pictures_in(path)?, shape, fit);
    }
    if !path.exists() {
        return Err(Error::content(path, "no such file"));
    }
    match ending(path).as_str() {
        "npy" | "safetensors" => array(path, shape, tensor),
        _ => pictures(&[path.to_path_buf()], shape, fit),
    }
}

/// Whether a file holds numbers and no picture.
#[must_use]
pub fn is_array(path: &Path) -> bool {
    matches!(ending(path).as_str(), "npy" | "safetensors")
}

fn ending(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// The pictures of a folder in the order of their names.
fn pictures_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(Error::file(folder, "cannot read"))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::file(folder, "cannot read"))?.path();
        if path.is_file() && ENDINGS.contains(&ending(&path).as_str()) {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(Error::content(folder, format!("no pictures in it ({})", ENDINGS.join(", "))));
    }
    paths.sort();
    Ok(paths)
}

fn array(path: &Path, shape: &[usize], tensor: &str) -> Result<Batch> {
    let named =
        daps_priors::read_array(path, Some(tensor)).or_else(|_| daps_priors::read_array(path, None))?;
    let values = named.to_dtype(DType::F64)?;
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
    Ok(Batch { values, names, notes: vec![] })
}

/// The file's name without its ending, with nothing in it that a file name or a page cannot take.
fn stem(path: &Path) -> String {
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let plain: String = name.chars().map(plain).collect();
    if plain.trim_matches('.').is_empty() { "picture".into() } else { plain }
}

fn pictures(paths: &[PathBuf], shape: &[usize], fit: bool) -> Result<Batch> {
    let (mut values, mut names, mut notes) = (Vec::new(), Vec::<String>::new(), Vec::new());
    for path in paths {
        let bytes = read(path)?;
        let (pixels, said) = decode(path, &bytes, shape, fit)?;
        values.extend(pixels);
        let stem = stem(path);
        let several = (1..).map(|i| format!("{stem}.{i}"));
        let free = std::iter::once(stem.clone()).chain(several).find(|name| !names.contains(name));
        names.push(free.unwrap_or(stem));
        if !said.is_empty() {
            notes.push(format!("{}: {}", path.display(), said.join("; ")));
        }
    }
    let values = Tensor::from_vec(values, batched(paths.len(), shape), &Device::Cpu)?;
    Ok(Batch { values, names, notes })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let size = std::fs::metadata(path).map_err(Error::file(path, "cannot read"))?.len();
    if size > MOST_BYTES {
        let what = format!("is {} MB; pictures are read up to {} MB", size >> 20, MOST_BYTES >> 20);
        return Err(Error::content(path, what));
    }
    std::fs::read(path).map_err(Error::file(path, "cannot read"))
}

/// The values of a picture, plane by plane, and what was done to it.
pub fn decode(path: &Path, bytes: &[u8], shape: &[usize], fit: bool) -> Result<(Vec<f64>, Vec<String>)> {
    let &[channels @ (1 | 3), height, width] = shape else {
        let what = format!("a picture needs a shape of [1 or 3, height, width], got {shape:?}");
        return Err(Error::content(path, what));
    };
    let mut notes = Vec::new();
    let picture = open(path, bytes, &mut notes)?;
    let color = picture.color();
    let picture = if fit {
        fitted(path, &picture, width as u32, height as u32, &mut notes)?
    } else if (picture.width(), picture.height()) == (width as u32, height as u32) {
        picture
    } else {
        let (w, h) = (picture.width(), picture.height());
        return Err(Error::content(path, format!("is {w}x{h}, expected {width}x{height}")));
    };
    let pixels = on_white(&picture, &mut notes);
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

/// Decodes within limits; the size is known and judged before any pixel is.
fn open(path: &Path, bytes: &[u8], notes: &mut Vec<String>) -> Result<DynamicImage> {
    let unreadable = |e: &dyn std::fmt::Display| {
        let reason = e.to_string().lines().next().unwrap_or("damaged").to_owned();
        Error::content(path, format!("cannot be read as a picture ({reason})"))
    };
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| unreadable(&e))?;
    let Some(format) = reader.format() else {
        return Err(Error::content(path, "is no picture in a known format"));
    };
    let mut limits = Limits::default();
    limits.max_alloc = Some(1 << 30);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|e| unreadable(&e))?;
    let (w, h) = decoder.dimensions();
    if u64::from(w) * u64::from(h) > MOST_PIXELS {
        let most = MOST_PIXELS / 1_000_000;
        return Err(Error::content(path, format!("is {w}x{h}; pictures are read up to {most} megapixels")));
    }
    if format == ImageFormat::Jpeg && !jpeg_is_whole(bytes) {
        return Err(unreadable(&"the file ends before the picture does"));
    }
    let orientation = decoder.orientation().map_err(|e| unreadable(&e))?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|e| unreadable(&e))?;
    picture.apply_orientation(orientation);
    if is_animated(format, bytes) {
        notes.push("animated; its first frame is used".into());
    }
    Ok(picture)
}

/// Whether the scan is followed by an end: decoders fill up what is missing with grey.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let last = |marker: u8| bytes.windows(2).rposition(|w| w == [0xff, marker]);
    matches!((last(0xda), last(0xd9)), (Some(scan), Some(end)) if end > scan)
}

fn is_animated(format: ImageFormat, bytes: &[u8]) -> bool {
    let data = || Cursor::new(bytes);
    match format {
        ImageFormat::Gif => GifDecoder::new(data())
            .is_ok_and(|d| d.into_frames().take(2).filter(std::result::Result::is_ok).count() > 1),
        ImageFormat::WebP => WebPDecoder::new(data()).is_ok_and(|d| d.has_animation()),
        ImageFormat::Png => PngDecoder::new(data()).is_ok_and(|d| d.is_apng().unwrap_or(false)),
        _ => false,
    }
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

/// Colours from 0 to 1, transparency laid on white.
fn on_white(picture: &DynamicImage, notes: &mut Vec<String>) -> Rgb32FImage {
    if !picture.color().has_alpha() {
        return picture.to_rgb32f();
    }
    let pixels = picture.to_rgba32f();
    if pixels.pixels().any(|p| p.0[3] < 1.0) {
        notes.push("transparent in places; laid on white".into());
    }
    Rgb32FImage::from_fn(pixels.width(), pixels.height(), |x, y| {
        let [r, g, b, a] = pixels.get_pixel(x, y).0;
        image::Rgb([r, g, b].map(|v| v * a + 1.0 - a))
    })
}
