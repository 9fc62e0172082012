//! Drawing on pixels: pictures beside each other with labels, as PNG.

use std::io::Cursor;
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};

use crate::{Error, Result, files, font};

/// Black that is soft enough for antialiased letters.
const INK: f32 = 40.0;

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

    /// Writes a line of text with the upper left corner of its box at (x, y); `font::width` and `font::height` tell its size.
    pub fn text(&mut self, text: &str, (x, y): (usize, usize), size: f32) {
        font::draw(text, size, |dx, dy, share| {
            if let Some(pixel) = self.pixels.get_pixel_mut_checked((x + dx) as u32, (y + dy) as u32) {
                *pixel =
                    Rgb(pixel.0.map(|paper| (share * INK + (1.0 - share) * f32::from(paper)).round() as u8));
            }
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_have_soft_edges_and_stay_on_the_paper() {
        let mut canvas = Canvas::new(60, 30);
        canvas.text("σ = 1", (2, 4), font::LARGE);
        canvas.text("a label that is far too long for its paper", (50, 20), font::LARGE);
        let picture = canvas.into_picture();
        let levels: std::collections::BTreeSet<u8> = picture.pixels().map(|p| p.0[0]).collect();
        assert!(levels.contains(&255) && levels.first().is_some_and(|darkest| *darkest < 80), "{levels:?}");
        assert!(levels.len() > 10, "{levels:?}");
    }
}
