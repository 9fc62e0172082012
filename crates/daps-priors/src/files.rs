//! Arrays and pictures from files: `.npy`, `.safetensors`, and folders of images.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};

use crate::{Error, Result};

/// File name endings of pictures that are read.
const IMAGES: [&str; 6] = ["png", "jpg", "jpeg", "webp", "tif", "tiff"];

/// A tensor in f64 from a `.npy` or `.safetensors` file; `name` picks one of several tensors of the latter.
pub fn read_array(path: &Path, name: Option<&str>) -> Result<Tensor> {
    if !path.is_file() {
        return Err(Error::file(path, "no such file"));
    }
    let tensor = match path.extension().and_then(|e| e.to_str()) {
        Some("npy") => Tensor::read_npy(path).map_err(|e| Error::file(path, first_line(&e)))?,
        Some("safetensors") => read_safetensors(path, name)?,
        other => {
            let got = other.map_or("no ending".to_owned(), |e| format!("'.{e}'"));
            return Err(Error::file(path, format!("expected a .npy or .safetensors file, got {got}")));
        }
    };
    let tensor = tensor.to_dtype(DType::F64).map_err(|e| Error::file(path, first_line(&e)))?;
    daps_core::real::check_finite(&path.display().to_string(), &tensor)?;
    Ok(tensor)
}

fn read_safetensors(path: &Path, name: Option<&str>) -> Result<Tensor> {
    let mut tensors =
        candle_core::safetensors::load(path, &Device::Cpu).map_err(|e| Error::file(path, first_line(&e)))?;
    let mut known: Vec<String> = tensors.keys().cloned().collect();
    known.sort();
    let wanted = match (name, known.as_slice()) {
        (Some(name), _) => name.to_owned(),
        (None, [only]) => only.clone(),
        (None, _) => {
            let reason = format!("holds {} tensors; name one of: {}", known.len(), known.join(", "));
            return Err(Error::file(path, reason));
        }
    };
    tensors
        .remove(&wanted)
        .ok_or_else(|| Error::file(path, format!("has no tensor '{wanted}'; it has: {}", known.join(", "))))
}

/// The pictures of a folder, by name, as `[n, channels, height, width]` in [-1, 1] and f64. Pictures of another size are
/// refused, or resized where `resize` says so.
pub fn read_images(folder: &Path, shape: &[usize], resize: bool) -> Result<Tensor> {
    let &[channels @ (1 | 3), height, width] = shape else {
        let reason = format!("pictures need samples of shape [1 or 3, height, width], got {shape:?}");
        return Err(Error::file(folder, reason));
    };
    let mut values = Vec::new();
    let paths = image_paths(folder)?;
    for path in &paths {
        let mut picture = image::open(path).map_err(|e| Error::file(path, first_line(&e)))?;
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
        .map_err(|e| Error::file(folder, first_line(&e)))
}

fn image_paths(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::file(folder, e))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| Error::file(folder, e))?.path();
        let ending = path.extension().and_then(|e| e.to_str()).map(str::to_lowercase);
        if ending.is_some_and(|e| IMAGES.contains(&e.as_str())) {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(Error::file(folder, format!("no pictures ({})", IMAGES.join(", "))));
    }
    paths.sort();
    Ok(paths)
}

/// The first line of a message: libraries add backtraces below it.
fn first_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or("unreadable").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_come_back_and_failures_are_sentences() {
        let dir = tempfile::tempdir().unwrap();
        let t = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
        let npy = dir.path().join("a.npy");
        t.write_npy(&npy).unwrap();
        assert_eq!(read_array(&npy, None).unwrap().to_vec2::<f64>().unwrap(), [[1.0, 2.0], [3.0, 4.0]]);

        let safe = dir.path().join("a.safetensors");
        let both = std::collections::HashMap::from([("x".to_owned(), t.clone()), ("y".to_owned(), t)]);
        candle_core::safetensors::save(&both, &safe).unwrap();
        assert_eq!(read_array(&safe, Some("y")).unwrap().dims(), [2, 2]);
        let text = |r: Result<Tensor>| r.unwrap_err().to_string();
        assert!(text(read_array(&safe, None)).ends_with("holds 2 tensors; name one of: x, y"));
        assert!(text(read_array(&safe, Some("z"))).ends_with("has no tensor 'z'; it has: x, y"));
        assert!(text(read_array(&dir.path().join("b.npy"), None)).ends_with("no such file"));
        std::fs::write(dir.path().join("c.npy"), b"not an array").unwrap();
        let broken = text(read_array(&dir.path().join("c.npy"), None));
        assert_eq!(broken.lines().count(), 1, "{broken}");
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
    }
}
