//! Pictures of any common format, upright, whole and not too large.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{AnimationDecoder, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, Rgb32FImage};

use crate::{Error, Result};

/// Files beyond this are not read.
const MOST_BYTES: u64 = 256 << 20;
/// Pictures beyond this are not decoded.
pub const MOST_PIXELS: u64 = 64_000_000;
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

/// What a picture's file says of it before any pixel is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Width of the upright picture.
    pub width: u32,
    /// Its height.
    pub height: u32,
    /// Whether it has no colours.
    pub is_grey: bool,
    /// Whether its values have more than 8 bits.
    pub is_deep: bool,
}

/// The bytes of a picture's file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let size = std::fs::metadata(path)?.len();
    if size > MOST_BYTES {
        return Err(Error::Long { found: size >> 20, most: MOST_BYTES >> 20 });
    }
    Ok(std::fs::read(path)?)
}

/// Reads the beginning of a picture, within the limits of [`open`].
pub fn header(bytes: &[u8]) -> Result<Header> {
    let (mut decoder, _) = decoder(bytes)?;
    let turned = matches!(
        decoder.orientation().map_err(|e| Error::picture(&e))?,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    );
    let ((w, h), color) = (decoder.dimensions(), decoder.color_type());
    let (width, height) = if turned { (h, w) } else { (w, h) };
    let is_deep = color.bytes_per_pixel() > color.channel_count();
    Ok(Header { width, height, is_grey: !color.has_color(), is_deep })
}

/// Decodes within limits; the size is known and judged before any pixel is.
pub fn open(bytes: &[u8]) -> Result<Picture> {
    let (mut decoder, format) = decoder(bytes)?;
    if format == ImageFormat::Jpeg && !jpeg_is_whole(bytes) {
        return Err(Error::picture(&"the file is cut off"));
    }
    let orientation = decoder.orientation().map_err(|e| Error::picture(&e))?;
    let mut pixels = DynamicImage::from_decoder(decoder).map_err(|e| Error::picture(&e))?;
    pixels.apply_orientation(orientation);
    Ok(Picture { pixels, is_animated: is_animated(format, bytes) })
}

/// What decodes a picture whose size is within the limits.
fn decoder(bytes: &[u8]) -> Result<(impl ImageDecoder + '_, ImageFormat)> {
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| Error::picture(&e))?;
    let format = reader.format().ok_or(Error::UnknownFormat)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_MEMORY);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|e| Error::picture(&e))?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MOST_PIXELS {
        return Err(Error::Large { width, height, most: MOST_PIXELS / 1_000_000 });
    }
    Ok((decoder, format))
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

    /// What the beginning of a file says is what its pixels are; the rest may be missing.
    #[test]
    fn a_header_says_what_the_pixels_are() {
        let color = image::Rgb([9u16, 99, 999]);
        for (pixels, is_grey, is_deep) in [
            (DynamicImage::new_luma8(7, 5), true, false),
            (DynamicImage::new_luma_a16(7, 5), true, true),
            (DynamicImage::new_rgba8(7, 5), false, false),
            (DynamicImage::ImageRgb16(image::ImageBuffer::from_pixel(7, 5, color)), false, true),
        ] {
            let mut bytes = Cursor::new(Vec::new());
            pixels.write_to(&mut bytes, ImageFormat::Png).unwrap();
            let bytes = bytes.into_inner();
            let expected = Header { width: 7, height: 5, is_grey, is_deep };
            assert_eq!(header(&bytes).unwrap(), expected);
            assert_eq!(header(&bytes[..bytes.len() - 20]).unwrap(), expected);
        }
        // A camera held upright: the second row of pixels in the file is the second column from the right.
        let shade = |x: u32, y: u32| image::Luma([(250 - 12 * x - 30 * y) as u8]);
        let mut jpeg = Cursor::new(Vec::new());
        image::GrayImage::from_fn(8, 5, shade).write_to(&mut jpeg, ImageFormat::Jpeg).unwrap();
        let jpeg = with_orientation(&jpeg.into_inner(), 6);
        assert_eq!(header(&jpeg).unwrap(), Header { width: 5, height: 8, is_grey: true, is_deep: false });
        let upright = open(&jpeg).unwrap().pixels.into_luma8();
        assert_eq!(upright.dimensions(), (5, 8));
        for (x, y, pixel) in upright.enumerate_pixels() {
            assert!(pixel.0[0].abs_diff(shade(y, 4 - x).0[0]) < 12, "({x}, {y}): {pixel:?}");
        }
        assert!(header(b"hello").is_err());
    }

    /// A JPEG with an EXIF block that has the tag of orientation alone.
    fn with_orientation(jpeg: &[u8], tag: u8) -> Vec<u8> {
        let entry = [1, 0x12, 0, 3, 0, 0, 0, 1, 0, tag, 0, 0];
        let exif = [&b"Exif\0\0MM\0*\0\0\0\x08\0\x01"[..], &entry, &[0; 4]].concat();
        let length = (exif.len() as u16 + 2).to_be_bytes();
        [&jpeg[..2], &[0xff, 0xe1], &length, &exif, &jpeg[2..]].concat()
    }

    #[test]
    fn names_tell_pictures() {
        let named = |name: &str| is_picture(Path::new(name));
        assert!(named("a/b.PNG") && named("x.pgm") && named("faces64/00000.webp"));
        assert!(!named("a/.b.png") && !named("png") && !named("a.txt"));
    }
}
