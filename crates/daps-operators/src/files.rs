//! Masks, kernels and matrices from files: pictures, `.npy` and `.safetensors`.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use daps_core::{Error, Result};
use daps_files::Choice;

/// Reads the numbers of a file in f64: brightness `[height, width]` from 0 to 1 of a picture, or those of a `.npy` or `.safetensors`
/// array (the tensor called `name`, or the only one there is).
pub(crate) fn read(path: &Path, name: &str) -> Result<Tensor> {
    let found = if daps_files::is_picture(path) {
        daps_files::read(path).and_then(|bytes| brightness(&bytes))
    } else {
        daps_files::read_array(path, Choice::Preferred(name))
            .and_then(|array| Ok(array.to_dtype(DType::F64)?))
    };
    found.map_err(|error| Error::File { path: path.to_owned(), reason: error.to_string() })
}

fn brightness(bytes: &[u8]) -> daps_files::Result<Tensor> {
    let picture = daps_files::open(bytes)?.pixels.into_luma16();
    let (w, h) = picture.dimensions();
    let values = picture.into_raw().into_iter().map(|v| f64::from(v) / f64::from(u16::MAX)).collect();
    Ok(Tensor::from_vec(values, (h as usize, w as usize), &Device::Cpu)?)
}

/// The same numbers with ones put before the shape until it has `rank` dimensions.
pub(crate) fn with_rank(array: &Tensor, rank: usize) -> Result<Tensor> {
    let missing = rank.saturating_sub(array.rank());
    let shape: Vec<usize> = std::iter::repeat_n(1, missing).chain(array.dims().iter().copied()).collect();
    Ok(array.reshape(shape)?)
}
