//! Pictures of any common format, upright, whole and not too large.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, Rgb32FImage};

use crate::{Error, Result};

/// Files beyond this are not read.
const MOST_BYTES: u64 = 256 << 20;
/// Pictures beyond this are not decoded.
const MOST_PIXELS: u64 = 64_000_000;
/// Memory that a decoder may take.
const MOST_MEMORY: u64 = 1 << 30;

/// File name endings of pictures.
pub const ENDINGS: [&str; 14] =
    ["png", "apng", "jpg", "jpeg", "jpe", "webp", "tif", "tiff", "gif", "bmp", "pbm", "pgm", "ppm", "pnm"];

/// Whether a file's name says that it is a picture; hidden files are not.
#[must_use]
pub fn is_picture(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    !hidden && ENDINGS.contains(&crate::ending(path).as_str())
}

/// The pictures of a folder in the order of their names, at least one.
pub fn pictures_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && is_picture(&path) {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(Error::NoPictures);
    }
    paths.sort();
    Ok(paths)
}

/// A decoded picture.
pub struct Picture {
    /// Its pixels, turned upright; of an animation, those of the first frame.
    pub pixels: DynamicImage,
    /// Whether there are more frames.
    pub is_animated: bool,
}

/// The bytes of a picture's file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let size = std::fs::metadata(path)?.len();
    if size > MOST_BYTES {
        return Err(Error::Long { found: size >> 20, most: MOST_BYTES >> 20 });
    }
    Ok(std::fs::read(path)?)
}

/// Decodes within limits; the size is known and judged before any pixel is.
pub fn open(bytes: &[u8]) -> Result<Picture> {
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| Error::picture(&e))?;
    let format = reader.format().ok_or(Error::UnknownFormat)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_MEMORY);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|e| Error::picture(&e))?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MOST_PIXELS {
        return Err(Error::Large { width, height, most: MOST_PIXELS / 1_000_000 });
    }
    if format == ImageFormat::Jpeg && !jpeg_is_whole(bytes) {
        return Err(Error::picture(&"the file is cut off"));
    }
    let orientation = decoder.orientation().map_err(|e| Error::picture(&e))?;
    let mut pixels = DynamicImage::from_decoder(decoder).map_err(|e| Error::picture(&e))?;
    pixels.apply_orientation(orientation);
    Ok(Picture { pixels, is_animated: is_animated(format, bytes) })
}

/// Whether the end marker is reached: decoders fill up what is missing with grey. What follows it is none of the picture's.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|b| *b == 0xff)) {
        at += found + 1;
        match bytes.get(at) {
            Some(0xd9) => return true,
            // A filling byte; or a byte of data, a restart, a start: markers that nothing follows.
            Some(0xff) => {}
            Some(0x00 | 0x01 | 0xd0..=0xd8) => at += 1,
            // A segment with its length, in which anything may stand, a smaller picture too.
            Some(_) => match bytes.get(at + 1..at + 3) {
                Some(&[high, low]) => at += 1 + usize::from(u16::from_be_bytes([high, low])),
                _ => return false,
            },
            None => return false,
        }
    }
    false
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

/// Colours from 0 to 1, transparency laid on white, and whether there was any.
#[must_use]
pub fn on_white(picture: &DynamicImage) -> (Rgb32FImage, bool) {
    if !picture.color().has_alpha() {
        return (picture.to_rgb32f(), false);
    }
    let pixels = picture.to_rgba32f();
    let transparent = pixels.pixels().any(|p| p.0[3] < 1.0);
    let laid = Rgb32FImage::from_fn(pixels.width(), pixels.height(), |x, y| {
        let [r, g, b, a] = pixels.get_pixel(x, y).0;
        image::Rgb([r, g, b].map(|v| v * a + 1.0 - a))
    });
    (laid, transparent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jpeg_is_whole_up_to_its_end_whatever_follows() {
        let picture = image::RgbImage::from_fn(40, 30, |x, y| image::Rgb([(6 * x) as u8, (8 * y) as u8, 99]));
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, ImageFormat::Jpeg).unwrap();
        let bytes = bytes.into_inner();
        assert_eq!(open(&bytes).unwrap().pixels.width(), 40);
        for length in [bytes.len() - 1, bytes.len() - 2, bytes.len() / 2, 3] {
            assert!(!jpeg_is_whole(&bytes[..length]), "{length} of {}", bytes.len());
        }
        let followed = [&bytes[..], &[0xff, 0xda, 1, 2, 3]].concat();
        assert!(open(&followed).is_ok());
        // A thumbnail in a segment has an end of its own.
        let mut segment = vec![0xff, 0xe1, 0, 6, 0xff, 0xd9, 0xff, 0xd9];
        segment.extend(&bytes[2..bytes.len() / 2]);
        assert!(!jpeg_is_whole(&[&bytes[..2], &segment[..]].concat()));
    }

    #[test]
    fn names_tell_pictures() {
        let named = |name: &str| is_picture(Path::new(name));
        assert!(named("a/b.PNG") && named("x.pgm") && named("faces64/00000.webp"));
        assert!(!named("a/.b.png") && !named("png") && !named("a.txt"));
    }
}
