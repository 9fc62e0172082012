//! Two-dimensional convolution.

use super::conv_cpu::{self, Kept};
use super::{check_param, check_vector};
use crate::error::{Error, Result};
use crate::feature_map::{Dims, FeatureMap, Maps, shape_error};
use candle_core::Tensor;
use std::sync::OnceLock;

/// Stride and padding of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvConfig {
    /// Steps between output pixels.
    pub stride: usize,
    /// Zeros before the first and after the last row and column.
    pub padding: (usize, usize),
}

impl ConvConfig {
    /// Stride 1, and the padding that keeps the size.
    pub fn same(kernel: usize) -> Self {
        Self { stride: 1, padding: (kernel / 2, kernel / 2) }
    }
    /// Stride 2, padded on both sides: halves an even size.
    pub fn down(kernel: usize) -> Self {
        Self { stride: 2, padding: (kernel / 2, kernel / 2) }
    }
}

/// A convolution with weights out x in x kernel x kernel (kernel 1 or 3) and an optional bias.
///
/// Weights that are not variables are rearranged for the kernels once, at first use, and kept; variables every time.
/// See [`set_kept_weights_limit`](crate::set_kept_weights_limit).
pub struct Conv2d {
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
    pub(super) config: ConvConfig,
    pub(super) kernel: usize,
    c_in: usize,
    c_out: usize,
    pub(super) winograd: OnceLock<Kept>,
    pub(super) gather: OnceLock<Kept>,
}

impl Conv2d {
    /// From parameters with PyTorch's shapes. A kernel of 1 may also come as out x in (x 1).
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: ConvConfig) -> Result<Self> {
        check_param("convolution weight", &weight)?;
        let (c_out, c_in, kernel) = match *weight.dims() {
            [o, i] | [o, i, 1] => (o, i, 1),
            [o, i, kh, kw] if kh == kw && (kh == 1 || kh == 3) => (o, i, kh),
            _ => return Err(shape_error("convolution weight", "O x I x 1 x 1 or O x I x 3 x 3", &weight)),
        };
        if c_out == 0 || c_in == 0 {
            return Err(shape_error("convolution weight", "at least one channel in and out", &weight));
        }
        if let Some(bias) = &bias {
            check_vector("convolution bias", bias, c_out)?;
        }
        if config.stride == 0 || config.stride > 2 {
            let expected = "1 or 2".to_string();
            return Err(Error::Value { what: "convolution stride", expected, got: config.stride });
        }
        let (winograd, gather) = (OnceLock::new(), OnceLock::new());
        Ok(Self { weight, bias, config, kernel, c_in, c_out, winograd, gather })
    }

    /// Channels that it reads.
    pub fn in_channels(&self) -> usize {
        self.c_in
    }
    /// Channels that it writes.
    pub fn out_channels(&self) -> usize {
        self.c_out
    }
    /// The weights as given.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }
    /// The bias as given.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Convolves one map, or two as if concatenated: `forward(&x)`, `forward((&x, &skip))`.
    pub fn forward<'a>(&'a self, x: impl Into<Maps<'a>>) -> Result<FeatureMap> {
        self.on(x).run()
    }

    /// A convolution whose result is added to and scaled on the way out; see [`ConvCall`].
    pub fn on<'a>(&'a self, x: impl Into<Maps<'a>>) -> ConvCall<'a> {
        ConvCall { conv: self, x: x.into(), residual: None, shift: None, scale: 1.0 }
    }

    pub(super) fn output_dims(&self, input: Dims) -> Result<Dims> {
        if input.channels != self.c_in {
            let expected = format!("N x {} x H x W", self.c_in);
            return Err(Error::Shape { what: "convolution input", expected, got: input.nchw() });
        }
        let ConvConfig { stride, padding: (before, after) } = self.config;
        let size = |n: usize| Some((n + before + after).checked_sub(self.kernel)? / stride + 1);
        match (size(input.height), size(input.width)) {
            (Some(height), Some(width)) => {
                Ok(Dims { height, width, channels: self.c_out, batch: input.batch })
            }
            _ => {
                let expected = format!("at least {0} x {0} with padding", self.kernel);
                Err(Error::Shape { what: "convolution input", expected, got: input.nchw() })
            }
        }
    }
}

/// One use of a convolution: (conv(x) + bias + shift + residual) * scale, in one pass.
#[derive(Clone, Copy)]
pub struct ConvCall<'a> {
    pub(super) conv: &'a Conv2d,
    pub(super) x: Maps<'a>,
    pub(super) residual: Option<&'a FeatureMap>,
    pub(super) shift: Option<&'a FeatureMap>,
    pub(super) scale: f32,
}

impl<'a> ConvCall<'a> {
    /// Adds a map of the output's size.
    pub fn residual(mut self, map: &'a FeatureMap) -> Self {
        self.residual = Some(map);
        self
    }
    /// Adds one vector per sample (N x C) to every pixel, such as a time embedding.
    pub fn shift(mut self, rows: &'a FeatureMap) -> Self {
        self.shift = Some(rows);
        self
    }
    /// Multiplies the sum.
    pub fn scale(mut self, factor: f64) -> Self {
        self.scale = factor as f32;
        self
    }
    /// Runs it.
    pub fn run(self) -> Result<FeatureMap> {
        let input = self.x.dims("convolution input")?;
        let output = self.conv.output_dims(input)?;
        if let Some(residual) = self.residual.filter(|r| r.dims() != output) {
            let expected = format!("{:?}", output.nchw());
            return Err(Error::Shape { what: "convolution residual", expected, got: residual.dims().nchw() });
        }
        let rows = Dims { height: 1, width: 1, ..output };
        if let Some(shift) = self.shift.filter(|s| s.dims() != rows) {
            let expected = format!("{:?}", rows.nchw());
            return Err(Error::Shape { what: "convolution shift", expected, got: shift.dims().nchw() });
        }
        if self.x.is_host() { conv_cpu::run(&self, input, output) } else { self.run_with_candle(output) }
    }

    fn run_with_candle(&self, output: Dims) -> Result<FeatureMap> {
        let conv = self.conv;
        let x = self.x.tensor("convolution")?;
        let weight = conv.weight.reshape((conv.c_out, conv.c_in, conv.kernel, conv.kernel))?;
        let ConvConfig { stride, padding: (before, after) } = conv.config;
        let mut y = if before == after && stride == 1 {
            x.conv2d(&weight, before, stride, 1, 1)?
        } else {
            // Exactly the rows and columns that are read: candle's gradient of a strided convolution fails when
            // height and width leave different remainders.
            let read = |n: usize| (n - 1) * stride + conv.kernel;
            let x = x.pad_with_zeros(2, before, after)?.pad_with_zeros(3, before, after)?;
            let x = x.narrow(2, 0, read(output.height))?.narrow(3, 0, read(output.width))?.contiguous()?;
            x.conv2d(&weight, 0, stride, 1, 1)?
        };
        if let Some(bias) = &conv.bias {
            y = y.broadcast_add(&bias.reshape((1, output.channels, 1, 1))?)?;
        }
        if let Some(shift) = self.shift {
            y = y.broadcast_add(shift.tensor("convolution shift")?)?;
        }
        if let Some(residual) = self.residual {
            y = (y + residual.tensor("convolution residual")?)?;
        }
        FeatureMap::device(if self.scale == 1.0 { y } else { (y * f64::from(self.scale))? })
    }
}
