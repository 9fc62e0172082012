//! The image inside a network, which knows its layout.

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::kernels::elementwise;
use crate::tape::{self, Grads, Track, Wants};
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, DType, Layout as CandleLayout, Shape, Tensor, Var};
use std::sync::Arc;

/// Where the channels lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLayout {
    /// Channels innermost: our kernels on a CPU.
    Nhwc,
    /// Channels second: candle's kernels elsewhere.
    Nchw,
}

/// Batch, height, width and channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Samples.
    pub batch: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Channels.
    pub channels: usize,
}

impl Dims {
    /// Pixels of one sample.
    pub fn pixels(&self) -> usize {
        self.height * self.width
    }
    /// Numbers in all.
    pub fn len(&self) -> usize {
        self.batch * self.pixels() * self.channels
    }
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub(crate) fn with_channels(self, channels: usize) -> Self {
        Self { channels, ..self }
    }
    pub(crate) fn with_size(self, height: usize, width: usize) -> Self {
        Self { height, width, ..self }
    }
    /// As a list, for error messages: batch, channels, height, width.
    pub(crate) fn nchw(&self) -> Vec<usize> {
        vec![self.batch, self.channels, self.height, self.width]
    }
}

/// An image (or tokens, or one vector per sample) inside a network. Cloning is cheap.
///
/// Tokens are an image of one row, and a vector per sample is an image of one pixel, so that every layer takes and
/// gives feature maps. On a CPU the values live in pooled buffers; a gradient flows from and to the candle tensors
/// at both ends.
#[derive(Clone)]
pub struct FeatureMap {
    dims: Dims,
    pub(crate) repr: Repr,
}

#[derive(Clone)]
pub(crate) enum Repr {
    Host { data: Arc<Buffer>, track: Option<Track> },
    Device(Tensor),
}

impl FeatureMap {
    /// From an image batch, N x C x H x W.
    pub fn from_nchw(tensor: &Tensor) -> Result<Self> {
        let shape = tensor.dims();
        let &[batch, channels, height, width] = shape else {
            return Err(shape_error("feature map", "N x C x H x W", tensor));
        };
        Self::enter(tensor, Dims { batch, height, width, channels }, true)
    }

    /// From tokens, N x T x D.
    pub fn from_tokens(tensor: &Tensor) -> Result<Self> {
        let &[batch, width, channels] = tensor.dims() else {
            return Err(shape_error("tokens", "N x T x D", tensor));
        };
        Self::enter(tensor, Dims { batch, height: 1, width, channels }, false)
    }

    /// From one vector per sample, N x D.
    pub fn from_rows(tensor: &Tensor) -> Result<Self> {
        let &[batch, channels] = tensor.dims() else {
            return Err(shape_error("vectors", "N x D", tensor));
        };
        Self::enter(tensor, Dims { batch, height: 1, width: 1, channels }, false)
    }

    /// From an image batch, kept N x C x H x W and run by candle's own operations on any device, also on a CPU:
    /// slow there, but an independent check of the kernels.
    pub fn from_nchw_with_candle(tensor: &Tensor) -> Result<Self> {
        let &[batch, channels, height, width] = tensor.dims() else {
            return Err(shape_error("feature map", "N x C x H x W", tensor));
        };
        Ok(Self { dims: Dims { batch, height, width, channels }, repr: Repr::Device(tensor.clone()) })
    }

    fn enter(tensor: &Tensor, dims: Dims, channels_second: bool) -> Result<Self> {
        if dims.is_empty() {
            return Err(shape_error("feature map", "no dimension of zero", tensor));
        }
        if tensor.dtype() != DType::F32 {
            return Err(Error::DType { what: "feature map", got: tensor.dtype() });
        }
        if !tensor.device().is_cpu() {
            let tensor = if channels_second { tensor.clone() } else { rows_to_nchw(tensor, dims)? };
            return Ok(Self { dims, repr: Repr::Device(tensor) });
        }
        let values = tape::with_values(tensor, |values| {
            if channels_second { elementwise::nchw_to_nhwc(values, dims) } else { Buffer::from_slice(values) }
        })?;
        let shape = tensor.shape().clone();
        let track = tape::record(&[], &[tensor], dims.len(), move |gradient: Buffer, _: &Wants| {
            let gradient =
                if channels_second { elementwise::nhwc_to_nchw(&gradient, dims) } else { gradient.to_vec() };
            debug_assert_eq!(gradient.len(), shape.elem_count());
            Ok(Grads { inputs: vec![], params: vec![Some(gradient)] })
        })?;
        Ok(Self { dims, repr: Repr::Host { data: Arc::new(values), track } })
    }

    /// To an image batch, N x C x H x W.
    pub fn to_nchw(&self) -> Result<Tensor> {
        let d = self.dims;
        self.leave(Shape::from((d.batch, d.channels, d.height, d.width)), true)
    }

    /// To tokens, N x (H W) x C.
    pub fn to_tokens(&self) -> Result<Tensor> {
        let d = self.dims;
        self.leave(Shape::from((d.batch, d.pixels(), d.channels)), false)
    }

    /// To one vector per sample, N x C; the map must have one pixel.
    pub fn to_rows(&self) -> Result<Tensor> {
        let d = self.dims;
        if d.pixels() != 1 {
            let expected = "N x C x 1 x 1".to_string();
            return Err(Error::Shape { what: "vectors", expected, got: d.nchw() });
        }
        self.leave(Shape::from((d.batch, d.channels)), false)
    }

    fn leave(&self, shape: Shape, channels_second: bool) -> Result<Tensor> {
        let (data, track) = match &self.repr {
            Repr::Device(tensor) if channels_second => return Ok(tensor.clone()),
            Repr::Device(tensor) => return Ok(tensor.permute((0, 2, 3, 1))?.contiguous()?.reshape(shape)?),
            Repr::Host { data, track } => (data, track),
        };
        let op = Leave { data: data.clone(), dims: self.dims, shape, channels_second, track: track.clone() };
        Ok(match track {
            Some(track) => track.handle.apply_op1(op)?,
            None => Tensor::from_vec(op.values(), op.shape, &candle_core::Device::Cpu)?,
        })
    }

    /// The same values, with a gradient asked for although no variable led here; for measuring a backward pass.
    pub(crate) fn requiring_gradient(&self) -> Result<Self> {
        let leaf = Var::zeros(1, DType::F32, &candle_core::Device::Cpu)?;
        let track = tape::record(&[], &[leaf.as_tensor()], self.dims.len(), |_: Buffer, _: &Wants| {
            Ok(Grads { inputs: vec![], params: vec![None] })
        })?;
        Ok(Self::host_shared(self.dims, self.data("gradient")?.clone(), track))
    }

    /// Pulls `gradient`, the derivative of some loss in this map, back to every tensor that led here.
    pub fn backward(&self, gradient: &FeatureMap) -> Result<GradStore> {
        if gradient.dims != self.dims {
            let expected = format!("{:?}", self.dims.nchw());
            return Err(Error::Shape { what: "gradient", expected, got: gradient.dims.nchw() });
        }
        match &self.repr {
            Repr::Device(tensor) => Ok((tensor * gradient.tensor("gradient")?)?.sum_all()?.backward()?),
            Repr::Host { track: Some(track), .. } => {
                track.cell.add(Buffer::from_slice(gradient.data("gradient")?));
                tape::backward(&track.handle)
            }
            Repr::Host { track: None, .. } => {
                Ok(Tensor::zeros(1, DType::F32, &candle_core::Device::Cpu)?.backward()?)
            }
        }
    }

    /// Batch, height, width and channels.
    pub fn dims(&self) -> Dims {
        self.dims
    }
    /// Samples.
    pub fn batch(&self) -> usize {
        self.dims.batch
    }
    /// Channels.
    pub fn channels(&self) -> usize {
        self.dims.channels
    }
    /// Rows.
    pub fn height(&self) -> usize {
        self.dims.height
    }
    /// Columns.
    pub fn width(&self) -> usize {
        self.dims.width
    }
    /// The layout in memory.
    pub fn layout(&self) -> MemoryLayout {
        match self.repr {
            Repr::Host { .. } => MemoryLayout::Nhwc,
            Repr::Device(_) => MemoryLayout::Nchw,
        }
    }
    /// The same values without their history: no gradient flows back through them.
    pub fn detach(&self) -> Self {
        let repr = match &self.repr {
            Repr::Host { data, .. } => Repr::Host { data: data.clone(), track: None },
            Repr::Device(tensor) => Repr::Device(tensor.detach()),
        };
        Self { dims: self.dims, repr }
    }

    pub(crate) fn host(dims: Dims, data: Buffer, track: Option<Track>) -> Self {
        debug_assert_eq!(dims.len(), data.len());
        Self { dims, repr: Repr::Host { data: Arc::new(data), track } }
    }
    pub(crate) fn host_shared(dims: Dims, data: Arc<Buffer>, track: Option<Track>) -> Self {
        debug_assert_eq!(dims.len(), data.len());
        Self { dims, repr: Repr::Host { data, track } }
    }
    pub(crate) fn device(tensor: Tensor) -> Result<Self> {
        let (batch, channels, height, width) = tensor.dims4()?;
        Ok(Self { dims: Dims { batch, height, width, channels }, repr: Repr::Device(tensor) })
    }
    /// The values on the host, or an error that names the operation that mixes devices.
    pub(crate) fn data(&self, what: &'static str) -> Result<&Arc<Buffer>> {
        match &self.repr {
            Repr::Host { data, .. } => Ok(data),
            Repr::Device(_) => Err(Error::Device { what }),
        }
    }
    /// The N x C x H x W tensor off the host, or an error that names the operation that mixes devices.
    pub(crate) fn tensor(&self, what: &'static str) -> Result<&Tensor> {
        match &self.repr {
            Repr::Device(tensor) => Ok(tensor),
            Repr::Host { .. } => Err(Error::Device { what }),
        }
    }
    pub(crate) fn track(&self) -> Option<&Track> {
        match &self.repr {
            Repr::Host { track, .. } => track.as_ref(),
            Repr::Device(_) => None,
        }
    }
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.repr, Repr::Host { .. })
    }
}

impl std::fmt::Debug for FeatureMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FeatureMap({:?}, {:?})", self.dims, self.layout())
    }
}

/// One feature map, or two that are read as if their channels were concatenated.
#[derive(Clone, Copy)]
pub struct Maps<'a> {
    pub(crate) first: &'a FeatureMap,
    pub(crate) second: Option<&'a FeatureMap>,
}

impl<'a> From<&'a FeatureMap> for Maps<'a> {
    fn from(first: &'a FeatureMap) -> Self {
        Self { first, second: None }
    }
}

impl<'a> From<(&'a FeatureMap, &'a FeatureMap)> for Maps<'a> {
    fn from((first, second): (&'a FeatureMap, &'a FeatureMap)) -> Self {
        Self { first, second: Some(second) }
    }
}

impl<'a> Maps<'a> {
    /// The dimensions of the concatenation; an error if the maps differ in more than channels.
    pub(crate) fn dims(&self, what: &'static str) -> Result<Dims> {
        let a = self.first.dims();
        let Some(second) = self.second else { return Ok(a) };
        let b = second.dims();
        if (a.batch, a.height, a.width) != (b.batch, b.height, b.width) {
            let expected = format!("{} x C x {} x {}", a.batch, a.height, a.width);
            return Err(Error::Shape { what, expected, got: b.nchw() });
        }
        Ok(a.with_channels(a.channels + b.channels))
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a FeatureMap> {
        std::iter::once(self.first).chain(self.second)
    }
    pub(crate) fn is_host(&self) -> bool {
        self.first.is_host()
    }
    /// Off the host: the concatenation as one tensor.
    pub(crate) fn tensor(&self, what: &'static str) -> Result<Tensor> {
        let first = self.first.tensor(what)?;
        match self.second {
            None => Ok(first.clone()),
            Some(second) => Ok(Tensor::cat(&[first, second.tensor(what)?], 1)?),
        }
    }
}

pub(crate) fn shape_error(what: &'static str, expected: &str, got: &Tensor) -> Error {
    Error::Shape { what, expected: expected.to_string(), got: got.dims().to_vec() }
}

fn rows_to_nchw(tensor: &Tensor, d: Dims) -> Result<Tensor> {
    let nhwc = tensor.reshape((d.batch, d.height, d.width, d.channels))?;
    Ok(nhwc.permute((0, 3, 1, 2))?.contiguous()?)
}

/// From a feature map's handle to an ordinary tensor.
struct Leave {
    data: Arc<Buffer>,
    dims: Dims,
    shape: Shape,
    channels_second: bool,
    track: Option<Track>,
}

impl Leave {
    fn values(&self) -> Vec<f32> {
        if self.channels_second {
            elementwise::nhwc_to_nchw(&self.data, self.dims)
        } else {
            self.data.to_vec()
        }
    }
}

impl CustomOp1 for Leave {
    fn name(&self) -> &'static str {
        "feature-map-to-tensor"
    }
    fn cpu_fwd(&self, _: &CpuStorage, _: &CandleLayout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.values()), self.shape.clone()))
    }
    fn bwd(&self, handle: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        if let Some(track) = &self.track {
            let (dims, channels_second) = (self.dims, self.channels_second);
            track.cell.add(tape::with_values(gradient, |values| {
                if channels_second {
                    elementwise::nchw_to_nhwc(values, dims)
                } else {
                    Buffer::from_slice(values)
                }
            })?);
        }
        Ok(Some(handle.zeros_like()?))
    }
}
