//! Arrays: `.npy` and `.safetensors`.

use std::path::Path;

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Tensor};
use safetensors::SafeTensors;

use crate::{Error, Result, npy};

/// Values beyond this are no picture's, whose own lie between -1 and 1.
const FAR: f64 = 2.0;

/// Which tensor of a file that may hold several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// The only one; several are refused.
    Only,
    /// The one of this name.
    Named(&'a str),
    /// The one of this name, or the only one there is.
    Preferred(&'a str),
}

/// The ending of a file's name in small letters.
#[must_use]
pub fn ending(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Whether a file holds numbers and no picture, by its name.
#[must_use]
pub fn is_array(path: &Path) -> bool {
    matches!(ending(path).as_str(), "npy" | "safetensors")
}

/// Reads a `.npy` or `.safetensors` file.
pub fn read_array(path: &Path, choice: Choice) -> Result<Tensor> {
    match ending(path).as_str() {
        "npy" => npy::parse(&std::fs::read(path)?),
        "safetensors" => from_safetensors(&std::fs::read(path)?, choice),
        _ if !path.exists() => Err(Error::Missing),
        "" => Err(Error::content("a .npy or .safetensors file", "no ending")),
        other => Err(Error::content("a .npy or .safetensors file", format!("'.{other}'"))),
    }
}

/// The numbers of pictures, in f64: bytes mean what they mean in a picture, 0 to 255 for -1 to 1; others mean themselves.
pub fn as_pictures(array: &Tensor) -> Result<Tensor> {
    let values = array.to_dtype(DType::F64)?;
    Ok(if array.dtype() == DType::U8 { values.affine(1.0 / 127.5, -1.0)? } else { values })
}

/// The smallest and the largest of pictures' numbers, where those are no pictures' at all.
pub fn beyond_pictures(values: &Tensor) -> Result<Option<(f64, f64)>> {
    let values: Vec<f64> = values.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let (low, high) = values.iter().fold((0f64, 0f64), |(low, high), v| (low.min(*v), high.max(*v)));
    Ok((low < -FAR || high > FAR).then_some((low, high)))
}

fn from_safetensors(bytes: &[u8], choice: Choice) -> Result<Tensor> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| Error::content("a readable safetensors file", error))?;
    let mut known: Vec<String> = file.names().into_iter().map(ToString::to_string).collect();
    known.sort();
    let name = match (choice, known.as_slice()) {
        (Choice::Named(name), _) => name,
        (Choice::Preferred(name), _) if known.iter().any(|k| k == name) => name,
        (_, [only]) => only,
        (Choice::Preferred(name), _) => return Err(Error::NoTensor { name: name.to_owned(), known }),
        (Choice::Only, _) => return Err(Error::Several(known)),
    };
    match file.tensor(name) {
        Ok(view) => Ok(view.load(&Device::Cpu)?),
        Err(_) => Err(Error::NoTensor { name: name.to_owned(), known: known.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn bytes_stand_for_a_pictures_range_and_other_numbers_for_themselves() {
        let bytes = Tensor::new(&[0u8, 51, 255], &Device::Cpu).unwrap();
        let values: Vec<f64> = as_pictures(&bytes).unwrap().to_vec1().unwrap();
        assert!(values.iter().zip([-1.0, -0.6, 1.0]).all(|(v, e)| (v - e).abs() < 1e-12), "{values:?}");
        let floats = Tensor::new(&[-0.5f32, 200.0], &Device::Cpu).unwrap();
        assert_eq!(as_pictures(&floats).unwrap().to_vec1::<f64>().unwrap(), [-0.5, 200.0]);
        assert_eq!(beyond_pictures(&floats).unwrap(), Some((-0.5, 200.0)));
        assert_eq!(beyond_pictures(&as_pictures(&bytes).unwrap()).unwrap(), None);
    }

    #[test]
    fn arrays_come_back_and_failures_are_sentences() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let t = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
        t.write_npy(file("a.npy")).unwrap();
        std::fs::rename(file("a.npy"), file("A.NPY")).unwrap();
        let back = read_array(&file("A.NPY"), Choice::Only).unwrap();
        assert_eq!(back.to_vec2::<f32>().unwrap(), [[1.0, 2.0], [3.0, 4.0]]);

        let save = |name: &str, tensors: &[&str]| {
            let tensors: HashMap<String, Tensor> =
                tensors.iter().map(|n| ((*n).to_owned(), t.clone())).collect();
            candle_core::safetensors::save(&tensors, file(name)).unwrap();
        };
        save("two.safetensors", &["x", "y"]);
        save("one.safetensors", &["x"]);
        let two = |choice| read_array(&file("two.safetensors"), choice);
        let one = |choice| read_array(&file("one.safetensors"), choice);
        assert!(two(Choice::Named("y")).is_ok() && two(Choice::Preferred("x")).is_ok());
        assert!(one(Choice::Only).is_ok() && one(Choice::Preferred("mask")).is_ok());
        let text = |r: Result<Tensor>| r.unwrap_err().to_string();
        assert_eq!(text(two(Choice::Only)), "holds 2 tensors; name one of: x, y");
        assert_eq!(text(two(Choice::Preferred("z"))), "has no tensor 'z'; it has: x, y");
        assert_eq!(text(one(Choice::Named("z"))), "has no tensor 'z'; it has: x");
        assert_eq!(text(read_array(&file("b.npy"), Choice::Only)), "no such file");
        for name in ["c.npy", "c.safetensors", "c.txt", "c"] {
            std::fs::write(file(name), b"not an array").unwrap();
            let broken = text(read_array(&file(name), Choice::Only));
            assert!(broken.starts_with("expected a ") && broken.lines().count() == 1, "{broken}");
        }
    }
}
