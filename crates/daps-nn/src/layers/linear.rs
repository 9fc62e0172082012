//! Linear maps of the channels of every pixel, token or vector.

use super::conv::{Conv2d, ConvCall, ConvConfig};
use crate::error::Result;
use crate::feature_map::{FeatureMap, Maps, shape_error};
use candle_core::Tensor;

/// y = x W^T + b over the channels, with W out x in: a convolution of kernel 1.
pub struct Linear(Conv2d);

impl Linear {
    /// From parameters with PyTorch's shapes.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        if weight.dims().len() != 2 {
            return Err(shape_error("linear weight", "out x in", &weight));
        }
        Ok(Self(Conv2d::new(weight, bias, ConvConfig::same(1))?))
    }
    /// Applies it.
    pub fn forward<'a>(&'a self, x: impl Into<Maps<'a>>) -> Result<FeatureMap> {
        self.0.forward(x)
    }
    /// Applies it and adds to or scales the result; see [`ConvCall`].
    pub fn on<'a>(&'a self, x: impl Into<Maps<'a>>) -> ConvCall<'a> {
        self.0.on(x)
    }
    /// Channels that it reads.
    pub fn in_channels(&self) -> usize {
        self.0.in_channels()
    }
    /// Channels that it writes.
    pub fn out_channels(&self) -> usize {
        self.0.out_channels()
    }
}
