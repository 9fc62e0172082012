//! LPIPS: distance of two images in the features of a classification network, weighed per channel as people judge.
//!
//! Zhang, Isola, Efros, Shechtman, Wang, "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", CVPR 2018.
//! Features after five ReLUs are scaled to unit length over channels; the squared differences are weighed, averaged over
//! pixels and added up. The variant "replace pooling" of the piq package has means in place of maxima in VGG16.

use candle_core::Tensor;
use daps_core::tensors::{finite_rows, to_f64};
use daps_core::{Error, Result};

use crate::convnet::{Conv, Weights, avg_pool, images, max_pool, normalise, weight};

/// The network whose features are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backbone {
    /// VGG16, as most papers report.
    Vgg16,
    /// AlexNet.
    AlexNet,
}

/// How feature maps are made smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Maxima, as the networks were trained.
    #[default]
    Max,
    /// Means over 2x2, piq's `replace_pooling`.
    Mean,
}

/// One convolution of a backbone: its kernel, stride and padding, and whether pooling comes before it or a feature after.
struct Layer {
    kernel: usize,
    stride: usize,
    padding: usize,
    pooled: bool,
    feature: bool,
}

impl Backbone {
    /// Its name among weights.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vgg16 => "vgg16",
            Self::AlexNet => "alexnet",
        }
    }

    fn layers(self) -> Vec<Layer> {
        let layer =
            |kernel, stride, padding, pooled, feature| Layer { kernel, stride, padding, pooled, feature };
        match self {
            Self::AlexNet => vec![
                layer(11, 4, 2, false, true),
                layer(5, 1, 2, true, true),
                layer(3, 1, 1, true, true),
                layer(3, 1, 1, false, true),
                layer(3, 1, 1, false, true),
            ],
            Self::Vgg16 => [2, 2, 3, 3, 3]
                .iter()
                .enumerate()
                .flat_map(|(block, &n)| (0..n).map(move |i| (block > 0 && i == 0, i + 1 == n)))
                .map(|(pooled, feature)| layer(3, 1, 1, pooled, feature))
                .collect(),
        }
    }

    /// The side of the windows that become one number, every other of them.
    fn window(self, pooling: Pooling) -> usize {
        if (self, pooling) == (Self::AlexNet, Pooling::Max) { 3 } else { 2 }
    }

    fn pool(self, x: &Tensor, pooling: Pooling) -> Result<Tensor> {
        let window = self.window(pooling);
        match pooling {
            Pooling::Mean => avg_pool(x, window, 2, 0),
            Pooling::Max => max_pool(x, window, 2, 0),
        }
    }

    /// The smallest side of an image of which something is left at the last feature.
    #[must_use]
    pub fn smallest_side(self, pooling: Pooling) -> usize {
        let shrunk = |side: usize, kernel: usize, stride: usize| Some(side.checked_sub(kernel)? / stride + 1);
        let left = |side: &usize| {
            self.layers().iter().try_fold(*side, |side, layer| {
                let side = if layer.pooled { shrunk(side, self.window(pooling), 2)? } else { side };
                shrunk(side + 2 * layer.padding, layer.kernel, layer.stride)
            })
        };
        (1..).find(|side| left(side).is_some()).unwrap_or(usize::MAX)
    }
}

/// The metric with its weights.
pub struct Lpips {
    backbone: Backbone,
    pooling: Pooling,
    convs: Vec<(Layer, Conv)>,
    heads: Vec<Tensor>,
}

/// What keeps the division by a feature's length defined.
const TINY: f64 = 1e-10;

impl Lpips {
    /// From `conv.K.weight`, `conv.K.bias` and `head.K.weight` (one number per channel), K from 0.
    pub fn new(backbone: Backbone, pooling: Pooling, weights: &Weights) -> Result<Self> {
        let mut convs = Vec::new();
        for (k, layer) in backbone.layers().into_iter().enumerate() {
            let (w, b) =
                (weight(weights, &format!("conv.{k}.weight"))?, weight(weights, &format!("conv.{k}.bias"))?);
            if w.dims().len() != 4 || w.dims()[2] != layer.kernel || w.dims()[3] != layer.kernel {
                let name = format!("conv.{k}.weight of {}", backbone.name());
                return Err(Error::invalid(
                    name,
                    format!("kernel size {}", layer.kernel),
                    format!("{:?}", w.dims()),
                ));
            }
            let conv = Conv::new(w, b, layer.stride, (layer.padding, layer.padding))?;
            convs.push((layer, conv));
        }
        let count = convs.iter().filter(|(l, _)| l.feature).count();
        let heads =
            (0..count).map(|k| weight(weights, &format!("head.{k}.weight"))).collect::<Result<_>>()?;
        Ok(Self { backbone, pooling, convs, heads })
    }

    /// Features of images in [-1, 1], each of unit length over channels.
    fn features(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        // ImageNet's means and deviations, for values in [-1, 1].
        let mut x = normalise(&images(x)?, [-0.030, -0.088, -0.188], [0.458, 0.448, 0.450])?;
        let mut found = Vec::with_capacity(self.heads.len());
        for (layer, conv) in &self.convs {
            if layer.pooled {
                x = self.backbone.pool(&x, self.pooling)?;
            }
            x = conv.relu(&x)?;
            if layer.feature {
                let length = (x.sqr()?.sum_keepdim(1)?.sqrt()? + TINY)?;
                found.push(x.broadcast_div(&length)?);
            }
        }
        Ok(found)
    }

    /// The distance of every pair of images `[n, 3, height, width]` in [-1, 1]; NaN where one of them is not finite.
    pub fn distance(&self, a: &Tensor, b: &Tensor) -> Result<Vec<f64>> {
        if a.dims() != b.dims() {
            return Err(Error::shape("images", a.dims(), b.dims()));
        }
        let n = images(a)?.dims()[0];
        let smallest = self.backbone.smallest_side(self.pooling);
        if a.dims()[2..].iter().any(|side| *side < smallest) {
            let expected = format!("sides of at least {smallest} pixels");
            return Err(Error::invalid("images for LPIPS", expected, format!("{:?}", &a.dims()[2..])));
        }
        let mut total = vec![0.0; n];
        // A ReLU would make zeros of what is no number.
        let finite = finite_rows(a)?.into_iter().zip(finite_rows(b)?).map(|(a, b)| a && b);
        let finite: Vec<bool> = finite.collect();
        // One pair at a time: no value depends on the other pairs, and the largest maps are those of one.
        for (i, total) in total.iter_mut().enumerate() {
            if !finite[i] {
                *total = f64::NAN;
                continue;
            }
            let (fa, fb) = (self.features(&a.narrow(0, i, 1)?)?, self.features(&b.narrow(0, i, 1)?)?);
            for ((fa, fb), head) in fa.iter().zip(&fb).zip(&self.heads) {
                let channels = fa.dims()[1];
                if head.elem_count() != channels {
                    let got = format!("{}", head.elem_count());
                    return Err(Error::invalid("head of LPIPS", format!("{channels} numbers"), got));
                }
                let squares = to_f64(&(fa - fb)?.sqr()?.mean((2, 3))?)?;
                *total += squares.iter().zip(to_f64(head)?).map(|(s, w)| s * w).sum::<f64>();
            }
        }
        Ok(total)
    }
}
