//! Drawing on pixels: pictures beside each other with labels, as PNG.

use std::io::Cursor;
use std::path::Path;

use font8x8::UnicodeFonts;
use image::{ImageFormat, Rgb, RgbImage};

use crate::{Error, Result, files};

/// A label's letter is this wide and high, times its scale.
pub const LETTER: usize = 8;

/// White paper to put pictures on.
pub struct Canvas {
    pixels: RgbImage,
}

impl Canvas {
    /// An empty one.
    #[must_use]
    pub fn new(width: usize, height: usize) -> Self {
        Self { pixels: RgbImage::from_pixel(width as u32, height as u32, Rgb([255; 3])) }
    }

    /// Puts a picture with its upper left corner at (x, y), each pixel `zoom` times as large.
    pub fn paste(&mut self, picture: &RgbImage, (x, y): (usize, usize), zoom: usize) {
        for (i, j, pixel) in picture.enumerate_pixels() {
            for (dx, dy) in (0..zoom * zoom).map(|k| (k % zoom, k / zoom)) {
                self.set(x + i as usize * zoom + dx, y + j as usize * zoom + dy, *pixel);
            }
        }
    }

    /// Writes a line of text; letters without a shape become question marks.
    pub fn text(&mut self, text: &str, (x, y): (usize, usize), scale: usize) {
        for (k, letter) in text.chars().enumerate() {
            let shape = font8x8::BASIC_FONTS
                .get(letter)
                .or_else(|| font8x8::LATIN_FONTS.get(letter))
                .or_else(|| font8x8::GREEK_FONTS.get(letter))
                .or_else(|| font8x8::BASIC_FONTS.get('?'))
                .unwrap_or_default();
            for (dy, row) in shape.iter().enumerate() {
                for dx in (0..LETTER).filter(|dx| row >> dx & 1 == 1) {
                    for (a, b) in (0..scale * scale).map(|k| (k % scale, k / scale)) {
                        let at = (x + (k * LETTER + dx) * scale + a, y + dy * scale + b);
                        self.set(at.0, at.1, Rgb([40; 3]));
                    }
                }
            }
        }
    }

    fn set(&mut self, x: usize, y: usize, color: Rgb<u8>) {
        if let Some(pixel) = self.pixels.get_pixel_mut_checked(x as u32, y as u32) {
            *pixel = color;
        }
    }

    /// The picture.
    #[must_use]
    pub fn into_picture(self) -> RgbImage {
        self.pixels
    }
}

/// The bytes of a PNG file.
pub fn png(picture: &RgbImage) -> Result<Vec<u8>> {
    let mut bytes = Cursor::new(Vec::new());
    picture
        .write_to(&mut bytes, ImageFormat::Png)
        .map_err(|e| Error::Config(format!("a picture could not be encoded: {e}")))?;
    Ok(bytes.into_inner())
}

/// Writes a PNG file.
pub fn write(path: &Path, picture: &RgbImage) -> Result<()> {
    files::write(path, &png(picture)?)
}
