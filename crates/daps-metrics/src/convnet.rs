//! The few layers that feature networks are made of, on N x C x H x W tensors without gradients.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use daps_core::{Error, Result};
use daps_nn::{Conv2d, ConvConfig, FeatureMap};

/// The tensors of a feature network by name.
pub type Weights = BTreeMap<String, Tensor>;

/// A tensor of a network in f32.
pub(crate) fn weight(weights: &Weights, name: &str) -> Result<Tensor> {
    let found = weights.get(name);
    let found = found.ok_or_else(|| Error::invalid("weights", format!("a tensor named {name}"), "none"))?;
    Ok(found.to_dtype(DType::F32)?)
}

/// A convolution with any kernel: 1x1 and 3x3 run on daps-nn's kernels, others on candle's.
pub(crate) struct Conv {
    weight: Tensor,
    bias: Tensor,
    stride: usize,
    padding: (usize, usize),
    fast: Option<Conv2d>,
}

impl Conv {
    /// From out x in x height x width weights; padding before and after (rows, columns).
    pub fn new(weight: Tensor, bias: Tensor, stride: usize, padding: (usize, usize)) -> Result<Self> {
        let &[_, _, kh, kw] = weight.dims() else {
            return Err(Error::shape("convolution weight", &[0, 0, 0, 0], weight.dims()));
        };
        let square = kh == kw && (kh == 1 || kh == 3) && stride <= 2 && padding.0 == padding.1;
        let fast = if square {
            let config = ConvConfig { stride, padding };
            Some(Conv2d::new(weight.clone(), Some(bias.clone()), config).map_err(foreign)?)
        } else {
            None
        };
        Ok(Self { weight, bias, stride, padding, fast })
    }

    /// relu(conv(x) + bias).
    pub fn relu(&self, x: &Tensor) -> Result<Tensor> {
        if let Some(fast) = &self.fast {
            let map = FeatureMap::from_nchw(x).map_err(foreign)?;
            return Ok(fast.forward(&map).and_then(|y| y.to_nchw()).map_err(foreign)?.relu()?);
        }
        let (rows, columns) = self.padding;
        let (kernel, image) = (&self.weight.dims()[2..], &x.dims()[2..]);
        if image[0] + 2 * rows < kernel[0] || image[1] + 2 * columns < kernel[1] {
            let expected = format!("sides that a kernel of {}x{} fits into", kernel[0], kernel[1]);
            return Err(Error::invalid("feature network's image", expected, format!("{image:?}")));
        }
        let x = x.pad_with_zeros(2, rows, rows)?.pad_with_zeros(3, columns, columns)?;
        let y = x.conv2d(&self.weight, 0, self.stride, 1, 1)?;
        Ok(y.broadcast_add(&self.bias.reshape((1, self.bias.elem_count(), 1, 1))?)?.relu()?)
    }
}

fn foreign(error: daps_nn::Error) -> Error {
    Error::invalid("feature network", "weights and images that fit", error)
}

/// Largest values; what lies outside counts as zero, which is right after a ReLU.
pub(crate) fn max_pool(x: &Tensor, side: usize, stride: usize, padding: usize) -> Result<Tensor> {
    let x = x.pad_with_zeros(2, padding, padding)?.pad_with_zeros(3, padding, padding)?;
    Ok(x.max_pool2d_with_stride(side, stride)?)
}

/// Means over what lies inside the image.
pub(crate) fn avg_pool(x: &Tensor, side: usize, stride: usize, padding: usize) -> Result<Tensor> {
    if padding == 0 {
        return Ok(x.avg_pool2d_with_stride(side, stride)?);
    }
    let padded = |x: &Tensor| -> Result<Tensor> {
        let x = x.pad_with_zeros(2, padding, padding)?.pad_with_zeros(3, padding, padding)?;
        Ok(x.avg_pool2d_with_stride(side, stride)?)
    };
    let inside = Tensor::ones((1, 1, x.dims()[2], x.dims()[3]), x.dtype(), x.device())?;
    Ok(padded(x)?.broadcast_div(&padded(&inside)?)?)
}

/// Checks that x is a batch of RGB images and gives it in f32.
pub(crate) fn images(x: &Tensor) -> Result<Tensor> {
    match *x.dims() {
        [n, 3, _, _] if n > 0 => Ok(x.to_dtype(DType::F32)?),
        _ => Err(Error::shape("images", &[1, 3, 64, 64], x.dims())),
    }
}

/// Per-channel (x - shift)/scale of RGB images.
pub(crate) fn normalise(x: &Tensor, shift: [f32; 3], scale: [f32; 3]) -> Result<Tensor> {
    let channel = |v: [f32; 3]| Tensor::new(&v, x.device())?.reshape((1, 3, 1, 1));
    Ok(x.broadcast_sub(&channel(shift)?)?.broadcast_div(&channel(scale)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn means_at_borders_count_what_is_inside() {
        let x = Tensor::arange(0f32, 4.0, &Device::Cpu).unwrap().reshape((1, 1, 2, 2)).unwrap();
        let y = avg_pool(&x, 3, 1, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(y.iter().all(|v| (v - 1.5).abs() < 1e-6), "{y:?}");
    }

    /// A 1x3 kernel written out, and a square one that both ways must agree on.
    #[test]
    fn kernels_of_any_shape() {
        let cpu = Device::Cpu;
        let x = Tensor::arange(0f32, 6.0, &cpu).unwrap().reshape((1, 1, 2, 3)).unwrap();
        let weight = Tensor::new(&[1f32, 2.0, 3.0], &cpu).unwrap().reshape((1, 1, 1, 3)).unwrap();
        let bias = Tensor::new(&[0.5f32], &cpu).unwrap();
        let y = Conv::new(weight, bias, 1, (0, 1)).unwrap().relu(&x).unwrap();
        let y = y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(y, [3.5, 8.5, 5.5, 18.5, 26.5, 14.5]);
        let weight = Tensor::randn(0f32, 1.0, (4, 3, 3, 3), &cpu).unwrap();
        let mut conv = Conv::new(weight, Tensor::zeros(4, DType::F32, &cpu).unwrap(), 2, (1, 1)).unwrap();
        let x = Tensor::randn(0f32, 1.0, (2, 3, 9, 8), &cpu).unwrap();
        let fast = conv.relu(&x).unwrap();
        conv.fast = None;
        let slow = conv.relu(&x).unwrap();
        let far = (fast - slow).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(far < 1e-4, "{far}");
    }
}
