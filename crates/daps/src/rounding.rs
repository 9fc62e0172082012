//! What rounding to the steps of a file adds to a measurement.

use std::path::Path;

use candle_core::DType;
use daps_files::Choice;

use crate::{Error, Result};

/// The steps from darkest to brightest that a measurement in a file was rounded to: 255 for a picture of 8 bits or an array of bytes,
/// 65,535 for one of 16; none for numbers with a point. In a folder the coarsest counts.
pub(crate) fn steps(path: &Path) -> Result<Option<f64>> {
    let refuse = |e| Error::content(path, e);
    if path.is_dir() {
        let paths = daps_files::pictures_in(path).map_err(refuse)?;
        let all = paths.iter().map(|path| steps(path)).collect::<Result<Vec<_>>>()?;
        return Ok(all.into_iter().flatten().min_by(f64::total_cmp));
    }
    if daps_files::is_array(path) {
        let array = daps_files::read_array(path, Choice::Preferred("y")).map_err(refuse)?;
        return Ok((array.dtype() == DType::U8).then_some(255.0));
    }
    let color = daps_files::open(&daps_files::read(path).map_err(refuse)?).map_err(refuse)?.pixels.color();
    Ok(match color.bytes_per_pixel() / color.channel_count() {
        1 => Some(255.0),
        2 => Some(65_535.0),
        _ => None,
    })
}

/// Its deviation, that of a uniform number as wide as a step, of values from -1 to 1.
pub(crate) fn deviation(steps: f64) -> f64 {
    2.0 / steps / 12f64.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{DynamicImage, GrayImage, ImageBuffer};

    #[test]
    fn the_steps_are_those_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, picture: DynamicImage| {
            picture.save(dir.path().join(name)).unwrap();
            steps(&dir.path().join(name)).unwrap()
        };
        let fine = ImageBuffer::<image::Luma<u16>, _>::new(2, 2);
        assert_eq!(write("fine.png", fine.into()), Some(65_535.0));
        assert_eq!(write("coarse.png", GrayImage::new(2, 2).into()), Some(255.0));
        assert_eq!(steps(dir.path()).unwrap(), Some(255.0));
        assert!((deviation(255.0).powi(2) - (2.0f64 / 255.0).powi(2) / 12.0).abs() < 1e-18);
        assert!(steps(&dir.path().join("none.png")).is_err());
    }
}
