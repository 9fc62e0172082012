//! Layer normalisation over channels.

use super::check_vector;
use crate::error::{Error, Result};
use crate::feature_map::FeatureMap;
use crate::kernels::layer_norm;
use crate::tape::{self, Grads, Wants};
use candle_core::Tensor;

/// Normalises the channels of every pixel or token.
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f64,
}

impl LayerNorm {
    /// From parameters with one number per channel.
    pub fn new(weight: Tensor, bias: Tensor, epsilon: f64) -> Result<Self> {
        let channels = weight.elem_count();
        check_vector("layer norm weight", &weight, channels)?;
        check_vector("layer norm bias", &bias, channels)?;
        Ok(Self { weight, bias, epsilon })
    }

    /// Applies it.
    pub fn forward(&self, x: &FeatureMap) -> Result<FeatureMap> {
        let (dims, channels) = (x.dims(), self.weight.elem_count());
        if dims.channels != channels {
            let expected = format!("N x {channels} x H x W");
            return Err(Error::Shape { what: "layer norm input", expected, got: dims.nchw() });
        }
        if !x.is_host() {
            return self.run_with_candle(x.tensor("layer norm")?);
        }
        let data = x.data("layer norm")?.clone();
        let (weight, bias) = (
            tape::with_values(&self.weight, <[f32]>::to_vec)?,
            tape::with_values(&self.bias, <[f32]>::to_vec)?,
        );
        let epsilon = self.epsilon;
        let values = layer_norm::forward(&data, &weight, &bias, epsilon);
        let backward = move |gradient: crate::buffer::Buffer, wants: &Wants| {
            let (dx, dw, db) = layer_norm::backward(&data, &weight, &gradient, epsilon);
            Ok(Grads {
                inputs: vec![wants.inputs[0].then_some(dx)],
                params: vec![wants.params[0].then_some(dw), wants.params[1].then_some(db)],
            })
        };
        let track = tape::record(&[x.track()], &[&self.weight, &self.bias], dims.len(), backward)?;
        Ok(FeatureMap::host(dims, values, track))
    }

    fn run_with_candle(&self, x: &Tensor) -> Result<FeatureMap> {
        let centred = x.broadcast_sub(&x.mean_keepdim(1)?)?;
        let variance = centred.sqr()?.mean_keepdim(1)?;
        let normal = centred.broadcast_div(&(variance + self.epsilon)?.sqrt()?)?;
        let column = |t: &Tensor| t.reshape((1, t.elem_count(), 1, 1));
        FeatureMap::device(normal.broadcast_mul(&column(&self.weight)?)?.broadcast_add(&column(&self.bias)?)?)
    }
}
