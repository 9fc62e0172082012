//! Masks, kernels and matrices from files: pictures, `.npy` and `.safetensors`.

use std::path::Path;

use candle_core::{Device, Tensor};
use daps_core::{Error, Result};
use safetensors::{Dtype, SafeTensors};

/// An array of numbers with its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Array {
    /// Refuses a shape that does not fit the number of values.
    pub(crate) fn new(what: &str, shape: Vec<usize>, values: Vec<f64>) -> Result<Self> {
        match shape.iter().product::<usize>() {
            n if n == values.len() => Ok(Self { shape, values }),
            n => Err(Error::invalid(what, format!("{n} values for shape {shape:?}"), values.len())),
        }
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, row-major.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// A tensor in f64, with ones put before the shape until it has `rank` dimensions.
    pub fn tensor(&self, rank: usize) -> Result<Tensor> {
        let missing = rank.saturating_sub(self.shape.len());
        let shape: Vec<usize> = std::iter::repeat_n(1, missing).chain(self.shape.iter().copied()).collect();
        Ok(Tensor::from_vec(self.values.clone(), shape, &Device::Cpu)?)
    }
}

/// Reads `.npy` or `.safetensors` (the tensor called `name`, or the only one there is).
pub fn read_array(path: &Path, name: &str) -> Result<Array> {
    let what = format!("{name} in {}", path.display());
    match extension(path).as_str() {
        "npy" => crate::npy::parse(&what, &read(path)?),
        "safetensors" => parse_safetensors(&what, &read(path)?, name),
        other => Err(Error::invalid(what, "a .png, .npy or .safetensors file", format!("'.{other}'"))),
    }
}

/// Reads a picture as brightness `[height, width]` from 0 to 1.
pub fn read_picture(path: &Path) -> Result<Array> {
    let what = format!("picture {}", path.display());
    let picture = image::load_from_memory(&read(path)?)
        .map_err(|error| Error::invalid(&what, "a readable picture", error))?
        .into_luma16();
    let (w, h) = picture.dimensions();
    let values = picture.into_raw().into_iter().map(|v| f64::from(v) / f64::from(u16::MAX)).collect();
    Array::new(&what, vec![h as usize, w as usize], values)
}

/// Whether a file is a picture, by its name.
pub(crate) fn is_picture(path: &Path) -> bool {
    matches!(extension(path).as_str(), "png" | "jpg" | "jpeg" | "webp" | "tif" | "tiff")
}

fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| Error::invalid(format!("file {}", path.display()), "a readable file", error))
}

fn parse_safetensors(what: &str, bytes: &[u8], name: &str) -> Result<Array> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| Error::invalid(what, "a readable safetensors file", error))?;
    let names = file.names();
    let view = match (file.tensor(name), names.as_slice()) {
        (Ok(view), _) => Ok(view),
        (Err(_), [only]) => file.tensor(only),
        (error, _) => error,
    };
    let view = view.map_err(|_| {
        let got = names.join(", ");
        Error::invalid(what, format!("a tensor called '{name}', or only one"), got)
    })?;
    let data = view.data();
    macro_rules! read {
        ($t:ty) => {
            data.as_chunks::<{ size_of::<$t>() }>().0.iter().map(|b| <$t>::from_le_bytes(*b) as f64).collect()
        };
    }
    let values = match view.dtype() {
        Dtype::F32 => read!(f32),
        Dtype::F64 => read!(f64),
        Dtype::U8 | Dtype::BOOL => read!(u8),
        Dtype::I32 => read!(i32),
        Dtype::I64 => read!(i64),
        other => return Err(Error::invalid(what, "f32, f64, u8, bool, i32 or i64", format!("{other:?}"))),
    };
    Array::new(what, view.shape().to_vec(), values)
}
