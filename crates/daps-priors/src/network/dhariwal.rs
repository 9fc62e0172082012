//! EDM's `DhariwalUNet`: the ADM U-Net as Karras et al. rewrote it, with their parameter names.

use candle_core::Device;
use daps_nn::{Conv2d, ConvConfig, FeatureMap, GroupNorm, Linear, Result};
use serde::{Deserialize, Serialize};

use super::Network;
use super::config::{check_common, whole};
use super::edm_block::{BlockStyle, EdmBlock, Size, norm};
use super::embedding::{one_hot, positional_frequencies, sinusoids};
use super::parameters::{Init, Parameters, Scheme};

/// Settings of a `DhariwalUNet`; the defaults are those of the public code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DhariwalConfig {
    /// Side of the images; part of the parameters' names.
    pub image_size: usize,
    /// Channels of an image.
    #[serde(default = "three")]
    pub channels: usize,
    /// Classes that it can be told; 0 for none.
    #[serde(default)]
    pub label_dim: usize,
    /// Width of the augmentation label that it was trained with; inference has none.
    #[serde(default)]
    pub augment_dim: usize,
    /// Channels at the first level, before its factor.
    pub model_channels: usize,
    /// Factors of the channels, level by level.
    pub channel_mult: Vec<usize>,
    /// Width of the embedding over `model_channels`.
    #[serde(default = "four")]
    pub channel_mult_emb: usize,
    /// Residual blocks of a level.
    pub num_blocks: usize,
    /// Sides of the feature maps that attend to themselves.
    pub attn_resolutions: Vec<usize>,
}

fn three() -> usize {
    3
}
fn four() -> usize {
    4
}

/// Channels of an attention head.
const HEAD: usize = 64;

impl DhariwalConfig {
    /// EDM's ImageNet-64 network.
    #[must_use]
    pub fn imagenet64() -> Self {
        Self {
            image_size: 64,
            channels: 3,
            label_dim: 1000,
            augment_dim: 0,
            model_channels: 192,
            channel_mult: vec![1, 2, 3, 4],
            channel_mult_emb: 4,
            num_blocks: 3,
            attn_resolutions: vec![32, 16, 8],
        }
    }

    /// Refuses settings that describe no network.
    pub fn check(&self) -> daps_core::Result<()> {
        let widths = (self.model_channels, self.channel_mult.as_slice());
        check_common(self.image_size, self.channels, widths, self.num_blocks, None)?;
        whole("network.label_dim", self.label_dim, 0, 1 << 20)?;
        whole("network.augment_dim", self.augment_dim, 0, 1 << 14)?;
        whole("network.channel_mult_emb", self.channel_mult_emb, 1, 64)?;
        let top = self.channel_mult.last().copied().unwrap_or(1);
        let attends = |level: usize| self.attn_resolutions.contains(&(self.image_size >> level));
        let levels = self.channel_mult.iter().enumerate().filter(|(l, _)| attends(*l)).map(|(_, m)| *m);
        for channels in levels.chain([top]).map(|mult| mult * self.model_channels) {
            if channels > HEAD && !channels.is_multiple_of(HEAD) {
                let expected = format!("a multiple of {HEAD} wherever the network attends");
                return Err(daps_core::Error::invalid("channels of the network", expected, channels));
            }
        }
        let widths: Vec<usize> = self.channel_mult.iter().map(|m| m * self.model_channels).collect();
        super::song::check_widths(widths.first().copied().unwrap_or(0), &widths, self.num_blocks)?;
        super::song::check_even(self.model_channels)
    }

    pub(crate) fn build(&self, p: &Parameters) -> Result<Dhariwal> {
        let gain = (1f64 / 3.0).sqrt();
        let (init, width) = (Scheme::Kaiming(gain), self.model_channels);
        let embedding = width * self.channel_mult_emb;
        let style = BlockStyle {
            embedding,
            epsilon: 1e-5,
            skip_scale: 1.0,
            filter: vec![1.0, 1.0],
            resample_proj: false,
            adaptive_scale: true,
            head_channels: Some(HEAD),
            init,
            init_zero: Scheme::Zero,
            init_attention: init,
        };
        if self.augment_dim > 0 {
            // Read so that nothing is left over; the augmentation label is zero at inference.
            p.matrix("map_augment", self.augment_dim, width, Init::Constant(0.0))?;
        }
        let map = [
            p.linear("map_layer0", width, embedding, init)?,
            p.linear("map_layer1", embedding, embedding, init)?,
        ];
        let label = match self.label_dim {
            0 => None,
            // Kaiming normal with gain √n over n inputs: unit deviation.
            n => Some(p.matrix("map_label", n, embedding, Init::Normal(1.0))?),
        };
        let (first, blocks_down, blocks_up, last) = self.blocks(p, &style)?;
        let out_conv = p.conv("out_conv", (last, self.channels), 3, ConvConfig::same(3), Scheme::Zero)?;
        Ok(Dhariwal {
            device: p.device(),
            frequencies: positional_frequencies(width / 2, (width / 2) as f64),
            map,
            label,
            labels: self.label_dim,
            first,
            down: blocks_down,
            up: blocks_up,
            out_norm: norm(p, "out_norm", last, 1e-5)?,
            out_conv,
        })
    }

    /// The first convolution, the blocks down and up, and the channels that come out.
    fn blocks(
        &self,
        p: &Parameters,
        style: &BlockStyle,
    ) -> Result<(Conv2d, Vec<EdmBlock>, Vec<EdmBlock>, usize)> {
        let mut width = self.model_channels * self.channel_mult[0];
        let side = |level: usize| format!("{0}x{0}", self.image_size >> level);
        let attends = |level: usize| self.attn_resolutions.contains(&(self.image_size >> level));
        let (same, name) = (ConvConfig::same(3), format!("enc.{}_conv", side(0)));
        let first = p.conv(&name, (self.channels, width), 3, same, style.init)?;
        let (mut down, mut skips) = (Vec::new(), vec![width]);
        for (level, mult) in self.channel_mult.iter().enumerate() {
            if level > 0 {
                let name = format!("enc.{}_down", side(level));
                down.push(EdmBlock::new(p, style, &name, (width, width), Size::Down, false)?);
                skips.push(width);
            }
            for i in 0..self.num_blocks {
                let (name, out) = (format!("enc.{}_block{i}", side(level)), mult * self.model_channels);
                down.push(EdmBlock::new(p, style, &name, (width, out), Size::Keep, attends(level))?);
                width = out;
                skips.push(width);
            }
        }
        let mut up = Vec::new();
        for (level, mult) in self.channel_mult.iter().enumerate().rev() {
            let block = |part: &str, size, attends| {
                EdmBlock::new(p, style, &format!("dec.{}_{part}", side(level)), (width, width), size, attends)
            };
            if level + 1 == self.channel_mult.len() {
                up.push(block("in0", Size::Keep, true)?);
                up.push(block("in1", Size::Keep, false)?);
            } else {
                up.push(block("up", Size::Up, false)?);
            }
            for i in 0..=self.num_blocks {
                let (input, out) = (width + skips.pop().unwrap_or(0), mult * self.model_channels);
                let name = format!("dec.{}_block{i}", side(level));
                up.push(EdmBlock::new(p, style, &name, (input, out), Size::Keep, attends(level))?);
                width = out;
            }
        }
        Ok((first, down, up, width))
    }
}

/// The network itself.
pub(crate) struct Dhariwal {
    device: Device,
    frequencies: Vec<f32>,
    map: [Linear; 2],
    label: Option<Linear>,
    labels: usize,
    first: Conv2d,
    down: Vec<EdmBlock>,
    up: Vec<EdmBlock>,
    out_norm: GroupNorm,
    out_conv: Conv2d,
}

impl Network for Dhariwal {
    fn forward(&self, x: &FeatureMap, noise: &[f32], classes: Option<&[usize]>) -> Result<FeatureMap> {
        let rows = sinusoids(noise, &self.frequencies, false, &self.device)?;
        let mut embedding = self.map[1].forward(&self.map[0].forward(&rows)?.silu()?)?;
        if let (Some(label), Some(classes)) = (&self.label, classes) {
            let hot = one_hot(classes, self.labels, 1.0, &self.device)?;
            embedding = embedding.add(&label.forward(&hot)?)?;
        }
        let embedding = embedding.silu()?;
        let mut h = self.first.forward(x)?;
        let mut skips = vec![h.clone()];
        for block in &self.down {
            h = block.forward(&h, None, &embedding)?;
            skips.push(h.clone());
        }
        for block in &self.up {
            let skip = if h.channels() == block.c_in { None } else { skips.pop() };
            h = block.forward(&h, skip.as_ref(), &embedding)?;
        }
        self.out_conv.forward(&self.out_norm.forward_silu(&h)?)
    }
}
