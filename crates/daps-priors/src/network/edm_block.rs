//! The residual block and the resampling convolution that EDM's two U-Nets share.

use daps_nn::{Conv2d, ConvConfig, FeatureMap, GroupNorm, Linear, Maps, QkvOrder, Result, self_attention};

use super::parameters::{Parameters, Scheme};

/// Groups of EDM's norms: at most 32, with at least four channels each.
pub(crate) fn norm(p: &Parameters, name: &str, channels: usize, epsilon: f64) -> Result<GroupNorm> {
    p.norm(name, channels, (channels / 4).clamp(1, 32), epsilon)
}

/// Which way a block changes the size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Size {
    Keep,
    Up,
    Down,
}

/// A filtered change of size followed by a convolution, either of which may be absent.
pub(crate) struct Resampled {
    filter: Vec<f32>,
    size: Size,
    conv: Option<Conv2d>,
}

impl Resampled {
    /// Kernel 0 is no convolution. Checkpoints keep the filter as a tensor, which must be the configured one.
    pub(crate) fn new(
        p: &Parameters,
        name: &str,
        channels: (usize, usize),
        kernel: usize,
        (size, filter): (Size, &[f32]),
        scheme: Scheme,
    ) -> Result<Self> {
        if size != Size::Keep {
            resample_constant(p, name, filter)?;
        }
        let conv = match kernel {
            0 => None,
            k => Some(p.conv(name, channels, k, ConvConfig::same(k), scheme)?),
        };
        Ok(Self { filter: filter.to_vec(), size, conv })
    }

    fn resize(&self, x: &FeatureMap) -> Result<FeatureMap> {
        match self.size {
            Size::Keep => Ok(x.clone()),
            Size::Up => x.upsample_fir(&self.filter),
            Size::Down => x.downsample_fir(&self.filter),
        }
    }

    /// The change of size, then the convolution with one vector per sample added to its result.
    pub(crate) fn forward(&self, x: &FeatureMap, shift: Option<&FeatureMap>) -> Result<FeatureMap> {
        let x = self.resize(x)?;
        match (&self.conv, shift) {
            (Some(conv), Some(shift)) => conv.on(&x).shift(shift).run(),
            (Some(conv), None) => conv.forward(&x),
            (None, _) => Ok(x),
        }
    }

    /// The same of two maps as if concatenated, which only a convolution that keeps the size reads without a copy.
    fn forward_two(&self, x: &FeatureMap, other: &FeatureMap) -> Result<FeatureMap> {
        match (&self.conv, self.size) {
            (Some(conv), Size::Keep) => conv.forward((x, other)),
            _ => self.forward(&x.concat(other)?, None),
        }
    }
}

/// `name.resample_filter`, the outer product of the normalised filter.
pub(crate) fn resample_constant(p: &Parameters, name: &str, filter: &[f32]) -> Result<()> {
    let (sum, k): (f32, usize) = (filter.iter().sum(), filter.len());
    let values: Vec<f32> =
        filter.iter().flat_map(|a| filter.iter().map(move |b| a * b / (sum * sum))).collect();
    p.constant(&format!("{name}.resample_filter"), &[1, 1, k, k], &values)
}

/// What the blocks of one network have in common.
#[derive(Clone, Debug)]
pub(crate) struct BlockStyle {
    pub embedding: usize,
    pub epsilon: f64,
    pub skip_scale: f64,
    pub filter: Vec<f32>,
    /// A skip that changes size has a convolution even where channels stay.
    pub resample_proj: bool,
    /// The embedding scales and shifts the second norm.
    pub adaptive_scale: bool,
    /// One head, or heads of this many channels.
    pub head_channels: Option<usize>,
    pub init: Scheme,
    pub init_zero: Scheme,
    pub init_attention: Scheme,
}

struct Attention {
    norm: GroupNorm,
    qkv: Conv2d,
    proj: Conv2d,
    heads: usize,
}

/// A residual block with optional attention and change of size.
pub(crate) struct EdmBlock {
    norm0: GroupNorm,
    conv0: Resampled,
    affine: Linear,
    norm1: GroupNorm,
    conv1: Conv2d,
    skip: Option<Resampled>,
    attention: Option<Attention>,
    adaptive_scale: bool,
    skip_scale: f64,
    pub(crate) c_in: usize,
}

impl EdmBlock {
    pub(crate) fn new(
        p: &Parameters,
        style: &BlockStyle,
        name: &str,
        (c_in, c_out): (usize, usize),
        size: Size,
        attends: bool,
    ) -> Result<Self> {
        let key = |part: &str| format!("{name}.{part}");
        let resample = (size, style.filter.as_slice());
        let skip = (c_in != c_out || size != Size::Keep).then(|| {
            let kernel = usize::from(style.resample_proj || c_in != c_out);
            Resampled::new(p, &key("skip"), (c_in, c_out), kernel, resample, style.init)
        });
        let heads = style.head_channels.map_or(1, |width| c_out / width);
        let point =
            |part: &str, c: usize, scheme| p.conv(&key(part), (c_out, c), 1, ConvConfig::same(1), scheme);
        let attention = if attends && heads > 0 {
            Some(Attention {
                norm: norm(p, &key("norm2"), c_out, style.epsilon)?,
                qkv: point("qkv", 3 * c_out, style.init_attention)?,
                proj: point("proj", c_out, style.init_zero)?,
                heads,
            })
        } else {
            None
        };
        let affine = if style.adaptive_scale { 2 * c_out } else { c_out };
        Ok(Self {
            norm0: norm(p, &key("norm0"), c_in, style.epsilon)?,
            conv0: Resampled::new(p, &key("conv0"), (c_in, c_out), 3, resample, style.init)?,
            affine: p.linear(&key("affine"), style.embedding, affine, style.init)?,
            norm1: norm(p, &key("norm1"), c_out, style.epsilon)?,
            conv1: p.conv(&key("conv1"), (c_out, c_out), 3, ConvConfig::same(3), style.init_zero)?,
            skip: skip.transpose()?,
            attention,
            adaptive_scale: style.adaptive_scale,
            skip_scale: style.skip_scale,
            c_in,
        })
    }

    /// `concatenated` is the second half of the input's channels.
    pub(crate) fn forward(
        &self,
        x: &FeatureMap,
        concatenated: Option<&FeatureMap>,
        embedding: &FeatureMap,
    ) -> Result<FeatureMap> {
        let maps = concatenated.map_or(Maps::from(x), |skip| Maps::from((x, skip)));
        let affine = self.affine.forward(embedding)?;
        let h = self.norm0.forward_silu(maps)?;
        let h = if self.adaptive_scale {
            self.norm1.on(&self.conv0.forward(&h, None)?).scale_shift(&affine).silu().run()?
        } else {
            self.norm1.forward_silu(&self.conv0.forward(&h, Some(&affine))?)?
        };
        let skip = match (&self.skip, concatenated) {
            (Some(skip), None) => skip.forward(x, None)?,
            (Some(skip), Some(other)) => skip.forward_two(x, other)?,
            (None, Some(other)) => x.concat(other)?,
            (None, None) => x.clone(),
        };
        let x = self.conv1.on(&h).residual(&skip).scale(self.skip_scale).run()?;
        let Some(attention) = &self.attention else { return Ok(x) };
        let qkv = attention.qkv.forward(&attention.norm.forward(&x)?)?;
        let a = self_attention(&qkv, attention.heads, QkvOrder::Interleaved)?;
        attention.proj.on(&a).residual(&x).scale(self.skip_scale).run()
    }
}
