//! Arrays and pictures from files: `.npy`, `.safetensors`, and folders of images.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use daps_files::Choice;
use image::DynamicImage;

use crate::{Error, Result};

/// A tensor in f64 from a `.npy` or `.safetensors` file; `name` picks one of several tensors of the latter.
pub fn read_array(path: &Path, name: Option<&str>) -> Result<Tensor> {
    read(path, name, |array| Ok(array.to_dtype(DType::F64)?))
}

/// The same of pictures, of which bytes stand for -1 to 1.
pub fn read_pictures(path: &Path, name: Option<&str>) -> Result<Tensor> {
    read(path, name, daps_files::as_pictures)
}

fn read(
    path: &Path,
    name: Option<&str>,
    meaning: impl Fn(&Tensor) -> daps_files::Result<Tensor>,
) -> Result<Tensor> {
    let array = daps_files::read_array(path, name.map_or(Choice::Only, Choice::Named))
        .and_then(|array| meaning(&array))
        .map_err(|e| Error::file(path, e))?;
    daps_core::tensors::check_finite(&path.display().to_string(), &array)?;
    Ok(array)
}

/// The pictures of a folder, by name, as `[n, channels, height, width]` in [-1, 1] and f64. Pictures of another size are
/// refused, or resized where `resize` says so.
pub fn read_images(folder: &Path, shape: &[usize], resize: bool) -> Result<Tensor> {
    let &[channels @ (1 | 3), height, width] = shape else {
        let reason = format!("images need samples of shape [1 or 3, height, width], got {shape:?}");
        return Err(Error::file(folder, reason));
    };
    let mut values = Vec::new();
    let paths = daps_files::pictures_in(folder).map_err(|e| Error::file(folder, e))?;
    for path in &paths {
        let bytes = daps_files::read(path).map_err(|e| Error::file(path, e))?;
        let mut picture = daps_files::open(&bytes).map_err(|e| Error::file(path, e))?.pixels;
        if picture.color().has_alpha()
            && let (laid, true) = daps_files::on_white(&picture)
        {
            picture = DynamicImage::ImageRgb32F(laid);
        }
        let (w, h) = (picture.width() as usize, picture.height() as usize);
        if (w, h) != (width, height) {
            if !resize {
                let reason = format!("is {w}x{h}, expected {width}x{height} (or set resize = true)");
                return Err(Error::file(path, reason));
            }
            let filter = image::imageops::FilterType::CatmullRom;
            picture = picture.resize_exact(width as u32, height as u32, filter);
        }
        let interleaved: Vec<f32> =
            if channels == 1 { picture.to_luma32f().into_raw() } else { picture.to_rgb32f().into_raw() };
        for c in 0..channels {
            values.extend(interleaved.iter().skip(c).step_by(channels).map(|v| 2.0 * f64::from(*v) - 1.0));
        }
    }
    Tensor::from_vec(values, (paths.len(), channels, height, width), &Device::Cpu)
        .map_err(|e| daps_core::Error::from(e).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_comes_back_in_f64_and_must_be_finite() {
        let dir = tempfile::tempdir().unwrap();
        let npy = dir.path().join("a.npy");
        let save = |values: &[f32; 2]| Tensor::new(values, &Device::Cpu).unwrap().write_npy(&npy).unwrap();
        save(&[1.0, 2.0]);
        assert_eq!(read_array(&npy, None).unwrap().to_vec1::<f64>().unwrap(), [1.0, 2.0]);
        save(&[1.0, f32::NAN]);
        let refused = read_array(&npy, None).unwrap_err().to_string();
        assert!(refused.contains("a.npy: 1 of 2 values are NaN"), "{refused}");
        Tensor::new(&[0u8, 255], &Device::Cpu).unwrap().write_npy(&npy).unwrap();
        assert_eq!(read_array(&npy, None).unwrap().to_vec1::<f64>().unwrap(), [0.0, 255.0]);
        assert_eq!(read_pictures(&npy, None).unwrap().to_vec1::<f64>().unwrap(), [-1.0, 1.0]);
        let missing = read_array(&dir.path().join("b.npy"), None).unwrap_err().to_string();
        assert!(missing.ends_with("b.npy: no such file"), "{missing}");
    }

    #[test]
    fn pictures_are_scaled_ordered_and_resized_on_request() {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in [("b.png", 255u8), ("a.png", 0)] {
            let mut picture = image::RgbImage::from_pixel(3, 2, image::Rgb([value; 3]));
            picture.put_pixel(2, 1, image::Rgb([255, 0, 51]));
            picture.save(dir.path().join(name)).unwrap();
        }
        let x = read_images(dir.path(), &[3, 2, 3], false).unwrap();
        assert_eq!(x.dims(), [2, 3, 2, 3]);
        let at = |i: usize, c: usize, y: usize, x_: usize| {
            x.get(i).unwrap().get(c).unwrap().to_vec2::<f64>().unwrap()[y][x_]
        };
        assert_eq!([at(0, 0, 0, 0), at(1, 1, 0, 0)], [-1.0, 1.0]);
        assert_eq!([at(0, 0, 1, 2), at(0, 1, 1, 2)], [1.0, -1.0]);
        assert!((at(0, 2, 1, 2) + 0.6).abs() < 1e-6);
        let refused = read_images(dir.path(), &[3, 4, 4], false).unwrap_err().to_string();
        assert!(refused.contains("is 3x2, expected 4x4"), "{refused}");
        assert_eq!(read_images(dir.path(), &[1, 4, 4], true).unwrap().dims(), [2, 1, 4, 4]);
        // What is transparent is white, as everywhere.
        let ghost = image::RgbaImage::from_pixel(3, 2, image::Rgba([0, 0, 0, 0]));
        ghost.save(dir.path().join("a.png")).unwrap();
        let x = read_images(dir.path(), &[3, 2, 3], false).unwrap();
        assert!(x.get(0).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap().iter().all(|v| *v == 1.0));
    }
}
