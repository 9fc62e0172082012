//! How pictures are written: as the picture that came in, grey or in colours, with 8 or with 16 bits.

use std::borrow::Cow;
use std::io::Cursor;

use daps_core::{Scale, Space};
use daps_files::Header;
use image::{DynamicImage, ImageBuffer, ImageFormat, Luma, Rgb};

use crate::{Error, Result, picture};

/// What a written picture is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// Grey: the mean of the channels. What has one channel is grey in any case.
    pub is_grey: bool,
    /// 16 bits a value, else 8.
    pub is_deep: bool,
}

impl From<Header> for Format {
    fn from(header: Header) -> Self {
        Self { is_grey: header.is_grey, is_deep: header.is_deep }
    }
}

impl Format {
    /// What is usual in a space.
    #[must_use]
    pub fn of(space: &Space) -> Self {
        Self { is_grey: false, is_deep: *space.scale() == Scale::SIXTEEN_BITS }
    }

    /// What one unit of a sample means in such a picture.
    #[must_use]
    pub fn scale(self) -> Scale {
        if self.is_deep { Scale::SIXTEEN_BITS } else { Scale::BYTES }
    }

    /// One plane or three, from what can be shown.
    #[must_use]
    pub fn planes<'a>(self, values: &'a [f64], shape: [usize; 3]) -> (Cow<'a, [f64]>, [usize; 3]) {
        let (values, shape) = picture::planes(values, shape);
        let [channels, h, w] = shape;
        if !self.is_grey || channels == 1 {
            return (values, shape);
        }
        let mean = |p: usize| (0..channels).map(|c| values[c * h * w + p]).sum::<f64>() / channels as f64;
        ((0..h * w).map(mean).collect(), [1, h, w])
    }

    /// A picture of values from -1 to 1.
    #[must_use]
    pub fn picture(self, values: &[f64], shape: [usize; 3]) -> DynamicImage {
        let (values, [channels, h, w]) = self.planes(values, shape);
        let level = |x: u32, y: u32, c: usize, most: f64| {
            let value = values[(c * h + y as usize) * w + x as usize];
            (0.5 * most * (value + 1.0)).round().clamp(0.0, most)
        };
        let eight = |x, y, c| level(x, y, c, 255.0) as u8;
        let sixteen = |x, y, c| level(x, y, c, 65535.0) as u16;
        let (w, h) = (w as u32, h as u32);
        match (channels, self.is_deep) {
            (3, false) => ImageBuffer::from_fn(w, h, |x, y| Rgb([0, 1, 2].map(|c| eight(x, y, c)))).into(),
            (3, true) => ImageBuffer::from_fn(w, h, |x, y| Rgb([0, 1, 2].map(|c| sixteen(x, y, c)))).into(),
            (_, false) => ImageBuffer::from_fn(w, h, |x, y| Luma([eight(x, y, 0)])).into(),
            (_, true) => ImageBuffer::from_fn(w, h, |x, y| Luma([sixteen(x, y, 0)])).into(),
        }
    }

    /// The bytes of its PNG file.
    pub fn png(self, values: &[f64], shape: [usize; 3]) -> Result<Vec<u8>> {
        let mut bytes = Cursor::new(Vec::new());
        self.picture(values, shape)
            .write_to(&mut bytes, ImageFormat::Png)
            .map_err(|e| Error::Config(format!("a picture could not be encoded: {e}")))?;
        Ok(bytes.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pixel of three channels, -1, 0 and 0.5, whose mean is -1/6.
    #[test]
    fn depth_and_colour_are_kept() {
        let written = |is_grey, is_deep| Format { is_grey, is_deep }.picture(&[-1.0, 0.0, 0.5], [3, 1, 1]);
        assert_eq!(written(false, false).into_rgb8().into_raw(), [0, 128, 191]);
        let DynamicImage::ImageRgb16(deep) = written(false, true) else { panic!("16 bits") };
        assert_eq!(deep.into_raw(), [0, 32768, 49151]);
        let DynamicImage::ImageLuma8(grey) = written(true, false) else { panic!("grey") };
        assert_eq!(grey.into_raw(), [106]);
        let DynamicImage::ImageLuma16(grey) = written(true, true) else { panic!("grey") };
        assert_eq!(grey.into_raw(), [27306]);
    }

    /// Every level of 16 bits comes back, in pixels of their own order.
    #[test]
    fn all_levels_of_sixteen_bits_are_told_apart() {
        let levels: Vec<u16> = (0..=u16::MAX).collect();
        let values: Vec<f64> = levels.iter().map(|v| Scale::SIXTEEN_BITS.inside(f64::from(*v))).collect();
        let deep = Format { is_grey: false, is_deep: true };
        let bytes = deep.png(&values, [1, 256, 256]).unwrap();
        let DynamicImage::ImageLuma16(picture) = image::load_from_memory(&bytes).unwrap() else {
            panic!("one channel is grey");
        };
        assert_eq!(picture.into_raw(), levels);
        assert_eq!(deep, Format::of(&Space::of_shape(&[1, 4, 4]).with_scale(Scale::SIXTEEN_BITS)));
    }

    /// A complex image is shown by its magnitude, and 8 bits are those of a preview.
    #[test]
    fn eight_bits_are_those_of_previews() {
        let usual = Format::default();
        let complex = usual.picture(&[0.6, 0.0, 0.8, 0.5], [2, 1, 2]);
        assert_eq!(complex.into_luma8().into_raw(), [255, 128]);
        let values: Vec<f64> = (0..3 * 35).map(|k| (k as f64 * 0.7).sin()).collect();
        assert_eq!(usual.picture(&values, [3, 5, 7]).into_rgb8(), picture::image(&values, [3, 5, 7]));
    }
}
