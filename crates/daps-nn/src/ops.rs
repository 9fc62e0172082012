//! Operations on feature maps that have no parameters.

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::feature_map::{Dims, FeatureMap};
use crate::kernels::{elementwise, layer_norm};
use crate::layers::attention::softmax_with_candle;
use crate::simd::Isa;
use crate::tape::{self, Grads, Wants};
use candle_core::Tensor;
use std::sync::Arc;

fn inputs(gradients: Vec<Option<Buffer>>) -> Result<Grads> {
    Ok(Grads { inputs: gradients, params: vec![] })
}

impl FeatureMap {
    fn check_like(&self, what: &'static str, other: &Self) -> Result<()> {
        if self.dims() != other.dims() {
            let expected = format!("{:?}", self.dims().nchw());
            return Err(Error::Shape { what, expected, got: other.dims().nchw() });
        }
        if self.is_host() != other.is_host() {
            return Err(Error::Device { what });
        }
        Ok(())
    }

    pub(crate) fn unary(
        &self,
        dims: Dims,
        values: Buffer,
        backward: impl Fn(Buffer) -> Result<Buffer> + Send + Sync + 'static,
    ) -> Result<Self> {
        let track = tape::record(&[self.track()], &[], dims.len(), move |gradient, _: &Wants| {
            inputs(vec![Some(backward(gradient)?)])
        })?;
        Ok(Self::host(dims, values, track))
    }

    /// a * self + b * other
    pub fn combine(&self, a: f64, other: &Self, b: f64) -> Result<Self> {
        self.check_like("sum", other)?;
        if !self.is_host() {
            let (x, y) = (self.tensor("sum")?, other.tensor("sum")?);
            return Self::device(((x * a)? + (y * b)?)?);
        }
        let (a, b) = (a as f32, b as f32);
        let values = elementwise::combine(self.data("sum")?, a, other.data("sum")?, b);
        let track =
            tape::record(&[self.track(), other.track()], &[], values.len(), move |g: Buffer, w: &Wants| {
                let first = w.inputs[0].then(|| elementwise::scaled(&g, a));
                let second = w.inputs[1].then(|| if b == 1.0 { g } else { elementwise::scaled(&g, b) });
                inputs(vec![first, second])
            })?;
        Ok(Self::host(self.dims(), values, track))
    }

    /// self + other
    pub fn add(&self, other: &Self) -> Result<Self> {
        self.combine(1.0, other, 1.0)
    }

    /// self * factor
    pub fn scale(&self, factor: f64) -> Result<Self> {
        if !self.is_host() {
            return Self::device((self.tensor("scale")? * factor)?);
        }
        let factor = factor as f32;
        let values = elementwise::scaled(self.data("scale")?, factor);
        self.unary(self.dims(), values, move |g| Ok(elementwise::scaled(&g, factor)))
    }

    /// self * other, element by element.
    pub fn mul(&self, other: &Self) -> Result<Self> {
        self.check_like("product", other)?;
        if !self.is_host() {
            return Self::device((self.tensor("product")? * other.tensor("product")?)?);
        }
        let (x, y) = (self.data("product")?.clone(), other.data("product")?.clone());
        let values = elementwise::product(&x, &y);
        let track =
            tape::record(&[self.track(), other.track()], &[], values.len(), move |g: Buffer, w: &Wants| {
                inputs(vec![
                    w.inputs[0].then(|| elementwise::product(&g, &y)),
                    w.inputs[1].then(|| elementwise::product(&g, &x)),
                ])
            })?;
        Ok(Self::host(self.dims(), values, track))
    }

    /// x * sigmoid(x)
    pub fn silu(&self) -> Result<Self> {
        if !self.is_host() {
            return Self::device(self.tensor("silu")?.silu()?);
        }
        let (isa, x) = (Isa::active(), self.data("silu")?.clone());
        let values = elementwise::silu(isa, &x);
        self.unary(self.dims(), values, move |mut g| {
            elementwise::silu_gradient(isa, &x, &mut g);
            Ok(g)
        })
    }

    /// Softmax over the channels of every pixel.
    pub fn softmax(&self) -> Result<Self> {
        if !self.is_host() {
            return Self::device(softmax_with_candle(self.tensor("softmax")?, 1)?);
        }
        let c = self.channels();
        let values = Arc::new(layer_norm::softmax(Isa::active(), self.data("softmax")?, c));
        let y = values.clone();
        let track = tape::record(&[self.track()], &[], values.len(), move |g: Buffer, _: &Wants| {
            inputs(vec![Some(layer_norm::softmax_backward(&y, &g, c))])
        })?;
        Ok(Self::host_shared(self.dims(), values, track))
    }

    /// Channels start..start + count.
    pub fn narrow_channels(&self, start: usize, count: usize) -> Result<Self> {
        let d = self.dims();
        if count == 0 || start + count > d.channels {
            let expected = format!(
                "at least 1 and at most {} channels from {start}",
                d.channels - start.min(d.channels)
            );
            return Err(Error::Value { what: "channel range", expected, got: count });
        }
        if !self.is_host() {
            return Self::device(self.tensor("channel range")?.narrow(1, start, count)?.contiguous()?);
        }
        let values = elementwise::narrow(self.data("channel range")?, d, start, count);
        self.unary(d.with_channels(count), values, move |g| {
            let c = d.channels;
            Ok(elementwise::build(d.len(), 512 * c, |at, out| {
                out.fill(0.0);
                for (i, pixel) in out.chunks_exact_mut(c).enumerate() {
                    pixel[start..start + count].copy_from_slice(&g[(at / c + i) * count..][..count]);
                }
            }))
        })
    }

    /// The channels of both, one after the other. A convolution or a group norm reads two maps without this copy.
    pub fn concat(&self, other: &Self) -> Result<Self> {
        let maps = crate::Maps::from((self, other));
        let dims = maps.dims("concatenation")?;
        if !self.is_host() {
            return Self::device(maps.tensor("concatenation")?);
        }
        let (cx, cy) = (self.channels(), other.channels());
        let values = elementwise::concat(self.data("concatenation")?, cx, other.data("concatenation")?, cy);
        let track =
            tape::record(&[self.track(), other.track()], &[], dims.len(), move |g: Buffer, w: &Wants| {
                inputs(vec![
                    w.inputs[0].then(|| elementwise::narrow(&g, dims, 0, cx)),
                    w.inputs[1].then(|| elementwise::narrow(&g, dims, cx, cy)),
                ])
            })?;
        Ok(Self::host(dims, values, track))
    }

    /// The sum of everything, as a tensor of one number: a loss for tests.
    pub fn sum_all(&self) -> Result<Tensor> {
        Ok(self.to_nchw()?.sum_all()?)
    }
}
