//! Layers: parameters with PyTorch's names and shapes, and how they act on feature maps.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod conv_cpu;
pub(crate) mod group_norm;
pub(crate) mod layer_norm;
pub(crate) mod linear;
mod modulation;

use crate::error::{Error, Result};
use crate::feature_map::shape_error;
use candle_core::{DType, Tensor};

/// A parameter must be f32 and contiguous: a gradient goes to the very tensor that was given.
pub(crate) fn check_param(what: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype() != DType::F32 {
        return Err(Error::DType { what, got: tensor.dtype() });
    }
    Ok(())
}

/// A parameter with one number per channel.
pub(crate) fn check_vector(what: &'static str, tensor: &Tensor, channels: usize) -> Result<()> {
    check_param(what, tensor)?;
    if tensor.dims() != [channels] {
        return Err(shape_error(what, &format!("[{channels}]"), tensor));
    }
    Ok(())
}
