//! Multi-head self- and cross-attention between the pixels of feature maps.

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::feature_map::{Dims, FeatureMap};
use crate::flops;
use crate::kernels::attention::{self as kernel, Saved, Shape, Strides, View};
use crate::simd::Isa;
use crate::tape::{self, Grads, Track, Wants};
use candle_core::{D, Tensor};
use std::sync::Arc;

/// How queries, keys and values share the channels of one map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvOrder {
    /// Head by head its queries, keys and values: guided-diffusion's legacy order.
    HeadFirst,
    /// All queries, all keys, all values, each head by head: guided-diffusion's new order.
    QkvFirst,
    /// Query, key and value of each dimension side by side, head by head: EDM's order.
    Interleaved,
}

impl QkvOrder {
    /// Where the queries (0), keys (1) or values (2) lie.
    fn strides(self, which: usize, heads: usize, dim: usize) -> Strides {
        let token = 3 * heads * dim;
        match self {
            QkvOrder::HeadFirst => Strides { base: which * dim, token, head: 3 * dim, element: 1 },
            QkvOrder::QkvFirst => Strides { base: which * heads * dim, token, head: dim, element: 1 },
            QkvOrder::Interleaved => Strides { base: which, token, head: 3 * dim, element: 3 },
        }
    }
    /// The same as a tensor: N x heads x tokens x dim from N x tokens x 3C.
    fn select(self, qkv: &Tensor, which: usize, heads: usize, dim: usize) -> Result<Tensor> {
        let (n, t, _) = qkv.dims3()?;
        let part = match self {
            QkvOrder::HeadFirst => qkv.reshape((n, t, heads, 3, dim))?.narrow(3, which, 1)?.squeeze(3)?,
            QkvOrder::QkvFirst => qkv.reshape((n, t, 3, heads, dim))?.narrow(2, which, 1)?.squeeze(2)?,
            QkvOrder::Interleaved => qkv.reshape((n, t, heads, dim, 3))?.narrow(4, which, 1)?.squeeze(4)?,
        };
        Ok(part.transpose(1, 2)?.contiguous()?)
    }
}

fn head_dim(channels: usize, heads: usize) -> Result<usize> {
    if heads == 0 || channels == 0 || !channels.is_multiple_of(heads) {
        let expected = format!("a divisor of {channels} channels");
        return Err(Error::Value { what: "attention heads", expected, got: heads });
    }
    Ok(channels / heads)
}

/// softmax(q k^T / sqrt(dim)) v among the pixels of each sample; `qkv` has 3C channels, the result C.
pub fn self_attention(qkv: &FeatureMap, heads: usize, order: QkvOrder) -> Result<FeatureMap> {
    let dims = qkv.dims();
    if !dims.channels.is_multiple_of(3) {
        let expected = "N x 3C x H x W".to_string();
        return Err(Error::Shape { what: "attention input", expected, got: dims.nchw() });
    }
    let dim = head_dim(dims.channels / 3, heads)?;
    let output = dims.with_channels(heads * dim);
    if !qkv.is_host() {
        let tokens = qkv.to_tokens()?;
        let part = |which| order.select(&tokens, which, heads, dim);
        return attention_with_candle([part(0)?, part(1)?, part(2)?], output);
    }
    let data = qkv.data("attention")?;
    let operands = Operands {
        isa: Isa::active(),
        shape: Shape { batch: dims.batch, heads, dim },
        data: [data.clone(), data.clone(), data.clone()],
        strides: [0, 1, 2].map(|which| order.strides(which, heads, dim)),
        tokens: [dims.pixels(); 3],
    };
    operands.run(&[qkv.track()], output)
}

/// softmax(q k^T / sqrt(dim)) v from the pixels of `q` to those of `k` and `v`; channels are head by head.
pub fn cross_attention(q: &FeatureMap, k: &FeatureMap, v: &FeatureMap, heads: usize) -> Result<FeatureMap> {
    let dims = q.dims();
    let dim = head_dim(dims.channels, heads)?;
    let expected = Dims { batch: dims.batch, channels: dims.channels, ..k.dims() };
    for map in [k, v] {
        if map.dims() != expected {
            let (expected, got) = (format!("{:?}", expected.nchw()), map.dims().nchw());
            return Err(Error::Shape { what: "attention keys and values", expected, got });
        }
    }
    if !q.is_host() {
        let split = |map: &FeatureMap| -> Result<Tensor> {
            let tokens = map.to_tokens()?;
            let (n, t, _) = tokens.dims3()?;
            Ok(tokens.reshape((n, t, heads, dim))?.transpose(1, 2)?.contiguous()?)
        };
        return attention_with_candle([split(q)?, split(k)?, split(v)?], dims);
    }
    let strides = Strides { base: 0, token: heads * dim, head: dim, element: 1 };
    let tokens = k.dims().pixels();
    let operands = Operands {
        isa: Isa::active(),
        shape: Shape { batch: dims.batch, heads, dim },
        data: [q.data("attention")?.clone(), k.data("attention")?.clone(), v.data("attention")?.clone()],
        strides: [strides; 3],
        tokens: [dims.pixels(), tokens, tokens],
    };
    operands.run(&[q.track(), k.track(), v.track()], dims)
}

/// Queries, keys and values on the host, from three maps or from one.
struct Operands {
    isa: Isa,
    shape: Shape,
    data: [Arc<Buffer>; 3],
    strides: [Strides; 3],
    tokens: [usize; 3],
}

impl Operands {
    fn view(&self, which: usize) -> View<'_> {
        View { values: &self.data[which], strides: self.strides[which], tokens: self.tokens[which] }
    }
    fn views(&self) -> (View<'_>, View<'_>, View<'_>) {
        (self.view(0), self.view(1), self.view(2))
    }

    fn run(self, tracks: &[Option<&Track>], output: Dims) -> Result<FeatureMap> {
        flops::count(2 * output.len() * self.tokens[1]);
        let (q, k, v) = self.views();
        let (values, logs) = kernel::forward(self.isa, self.shape, q, k, v);
        let values = Arc::new(values);
        let out = values.clone();
        let one_map = tracks.len() == 1;
        let track = tape::record(tracks, &[], output.len(), move |gradient: Buffer, _: &Wants| {
            let saved = Saved { out: &out, logs: &logs, gradient: &gradient };
            let take = |which: usize| Buffer::take(self.data[which].len());
            let inputs = if one_map {
                let mut joint = take(0);
                kernel::backward_joint(self.isa, self.shape, self.views(), saved, &mut joint);
                vec![Some(joint)]
            } else {
                let (mut dq, mut dk, mut dv) = (take(0), take(1), take(2));
                kernel::backward(self.isa, self.shape, self.views(), saved, [&mut dq, &mut dk, &mut dv]);
                vec![Some(dq), Some(dk), Some(dv)]
            };
            Ok(Grads { inputs, params: vec![] })
        })?;
        Ok(FeatureMap::host_shared(output, values, track))
    }
}

/// From N x heads x tokens x dim, in operations whose gradients candle has right (its fused softmax has none).
fn attention_with_candle([q, k, v]: [Tensor; 3], output: Dims) -> Result<FeatureMap> {
    let dim = q.dim(D::Minus1)?;
    let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * (1.0 / (dim as f64).sqrt()))?;
    let weights = softmax_with_candle(&scores, D::Minus1)?;
    let y = weights.matmul(&v)?.permute((0, 1, 3, 2))?.contiguous()?;
    FeatureMap::device(y.reshape((output.batch, output.channels, output.height, output.width))?)
}

/// Softmax along a dimension in operations that candle differentiates.
pub(crate) fn softmax_with_candle<T: candle_core::shape::Dim + Copy>(x: &Tensor, dim: T) -> Result<Tensor> {
    let shifted = x.broadcast_sub(&x.max_keepdim(dim)?.detach())?.exp()?;
    Ok(shifted.broadcast_div(&shifted.sum_keepdim(dim)?)?)
}
