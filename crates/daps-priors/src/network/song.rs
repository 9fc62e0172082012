//! EDM's `SongUNet`: DDPM++ and NCSN++ as Karras et al. rewrote them, with their parameter names.

use std::f64::consts::{FRAC_1_SQRT_2, TAU};

use candle_core::{Device, Tensor};
use daps_nn::{Conv2d, ConvConfig, FeatureMap, GroupNorm, Linear, Result};
use serde::{Deserialize, Serialize};

use super::Network;
use super::config::{check_common, whole};
use super::edm_block::{BlockStyle, EdmBlock, Resampled, Size, norm, resample_constant};
use super::embedding::{one_hot, positional_frequencies, sinusoids};
use super::parameters::{Init, Parameters, Scheme};

/// How the noise level becomes a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EmbeddingType {
    /// Fixed frequencies: DDPM++.
    #[default]
    Positional,
    /// Random frequencies, part of the checkpoint: NCSN++.
    Fourier,
}

/// What the way down adds beside its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EncoderType {
    /// Nothing: DDPM++.
    #[default]
    Standard,
    /// The shrunken input at every level.
    Skip,
    /// A second, linear way down: NCSN++.
    Residual,
}

/// How the output is put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecoderType {
    /// From the last level only.
    #[default]
    Standard,
    /// As a sum over all levels.
    Skip,
}

/// Settings of a `SongUNet`; the defaults are those of the public code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SongConfig {
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
    /// How the noise level becomes a vector.
    #[serde(default)]
    pub embedding_type: EmbeddingType,
    /// Width of that vector over `model_channels`.
    #[serde(default = "one")]
    pub channel_mult_noise: usize,
    /// What the way down adds.
    #[serde(default)]
    pub encoder_type: EncoderType,
    /// How the output is put together.
    #[serde(default)]
    pub decoder_type: DecoderType,
    /// The filter of all changes of size.
    #[serde(default = "box_filter")]
    pub resample_filter: Vec<f32>,
}

fn one() -> usize {
    1
}
fn three() -> usize {
    3
}
fn four() -> usize {
    4
}
fn box_filter() -> Vec<f32> {
    vec![1.0, 1.0]
}

const EPSILON: f64 = 1e-6;

/// EDM's norms split channels into min(32, channels/4) groups.
pub(super) fn check_groups(channels: usize) -> daps_core::Result<()> {
    if channels.is_multiple_of((channels / 4).clamp(1, 32)) {
        return Ok(());
    }
    let expected = "a number that min(32, channels/4) groups divide";
    Err(daps_core::Error::invalid("channels of the network", expected, channels))
}

/// Every width that a norm sees: those of the levels, and on the way up sums with what was kept on the way down. `first` channels
/// come out of the first convolution.
pub(super) fn check_widths(first: usize, levels: &[usize], blocks: usize) -> daps_core::Result<()> {
    let (mut kept, mut width) = (vec![first], first);
    check_groups(first)?;
    for (level, channels) in levels.iter().enumerate() {
        if level > 0 {
            kept.push(width);
        }
        check_groups(*channels)?;
        width = *channels;
        kept.extend(std::iter::repeat_n(width, blocks));
    }
    for channels in levels.iter().rev() {
        for _ in 0..=blocks {
            check_groups(width + kept.pop().unwrap_or(0))?;
            width = *channels;
        }
    }
    Ok(())
}

/// Half of a noise embedding is cosines, half sines.
pub(super) fn check_even(width: usize) -> daps_core::Result<()> {
    if width.is_multiple_of(2) && width >= 4 {
        return Ok(());
    }
    Err(daps_core::Error::invalid("width of the noise embedding", "an even number from 4", width))
}

impl SongConfig {
    /// DDPM++ as EDM trained it.
    #[must_use]
    pub fn ddpmpp(image_size: usize, channel_mult: &[usize], label_dim: usize) -> Self {
        Self {
            image_size,
            channels: 3,
            label_dim,
            augment_dim: 9,
            model_channels: 128,
            channel_mult: channel_mult.to_vec(),
            channel_mult_emb: 4,
            num_blocks: 4,
            attn_resolutions: vec![16],
            embedding_type: EmbeddingType::Positional,
            channel_mult_noise: 1,
            encoder_type: EncoderType::Standard,
            decoder_type: DecoderType::Standard,
            resample_filter: box_filter(),
        }
    }

    /// Refuses settings that describe no network.
    pub fn check(&self) -> daps_core::Result<()> {
        let widths = (self.model_channels, self.channel_mult.as_slice());
        check_common(self.image_size, self.channels, widths, self.num_blocks, None)?;
        whole("network.label_dim", self.label_dim, 0, 1 << 20)?;
        whole("network.augment_dim", self.augment_dim, 0, 1 << 14)?;
        whole("network.channel_mult_emb", self.channel_mult_emb, 1, 64)?;
        whole("network.channel_mult_noise", self.channel_mult_noise, 1, 64)?;
        let (taps, sum): (usize, f32) = (self.resample_filter.len(), self.resample_filter.iter().sum());
        if !matches!(taps, 2 | 4 | 6)
            || !sum.is_normal()
            || self.resample_filter.iter().any(|f| !f.is_finite())
        {
            let expected = "2, 4 or 6 finite taps whose sum is not zero";
            let got = format!("{:?}", self.resample_filter);
            return Err(daps_core::Error::invalid("network.resample_filter", expected, got));
        }
        let widths: Vec<usize> = self.channel_mult.iter().map(|m| m * self.model_channels).collect();
        check_widths(self.model_channels, &widths, self.num_blocks)?;
        check_even(self.model_channels * self.channel_mult_noise)
    }

    pub(crate) fn build(&self, p: &Parameters) -> Result<Song> {
        let init = Scheme::Xavier(1.0);
        let (noise, embedding) =
            (self.model_channels * self.channel_mult_noise, self.model_channels * self.channel_mult_emb);
        let style = BlockStyle {
            embedding,
            epsilon: EPSILON,
            skip_scale: FRAC_1_SQRT_2,
            filter: self.resample_filter.clone(),
            resample_proj: true,
            adaptive_scale: false,
            head_channels: None,
            init,
            init_zero: Scheme::Xavier(1e-5),
            init_attention: Scheme::Xavier(0.2f64.sqrt()),
        };
        let frequencies = match self.embedding_type {
            EmbeddingType::Positional => {
                Frequencies::Fixed(positional_frequencies(noise / 2, (noise / 2 - 1) as f64))
            }
            EmbeddingType::Fourier => {
                Frequencies::Random(p.get("map_noise.freqs", &[noise / 2], Init::Normal(16.0))?.detach())
            }
        };
        let label = match self.label_dim {
            0 => None,
            n => Some(p.linear("map_label", n, noise, init)?),
        };
        if self.augment_dim > 0 {
            // Read so that nothing is left over; the augmentation label is zero at inference.
            p.matrix(
                "map_augment",
                self.augment_dim,
                noise,
                Parameters::bound(init, self.augment_dim, noise),
            )?;
        }
        let map = [
            p.linear("map_layer0", noise, embedding, init)?,
            p.linear("map_layer1", embedding, embedding, init)?,
        ];
        let (encoder, mut skips, width) = self.encoder(p, &style)?;
        let decoder = self.decoder(p, &style, &mut skips, width)?;
        Ok(Song { device: p.device(), frequencies, map, label, labels: self.label_dim, encoder, decoder })
    }

    fn side(&self, level: usize) -> String {
        format!("{0}x{0}", self.image_size >> level)
    }

    fn attends(&self, level: usize) -> bool {
        self.attn_resolutions.contains(&(self.image_size >> level))
    }

    /// The way down, the channels that its blocks leave for the way up, and those that come out.
    fn encoder(&self, p: &Parameters, style: &BlockStyle) -> Result<(Vec<Down>, Vec<usize>, usize)> {
        let (mut width, mut aux) = (self.model_channels, self.channels);
        let name = format!("enc.{}_conv", self.side(0));
        let conv = p.conv(&name, (self.channels, width), 3, ConvConfig::same(3), style.init)?;
        let (mut layers, mut skips) = (vec![Down::Conv(conv)], vec![width]);
        for (level, mult) in self.channel_mult.iter().enumerate() {
            let name = |part: &str| format!("enc.{}_{part}", self.side(level));
            if level > 0 {
                let block = EdmBlock::new(p, style, &name("down"), (width, width), Size::Down, false)?;
                layers.push(Down::Block(Box::new(block)));
                skips.push(width);
                match self.encoder_type {
                    EncoderType::Standard => {}
                    EncoderType::Skip => {
                        let shrink = (Size::Down, style.filter.as_slice());
                        let down = Resampled::new(p, &name("aux_down"), (aux, aux), 0, shrink, style.init)?;
                        let skip =
                            p.conv(&name("aux_skip"), (aux, width), 1, ConvConfig::same(1), style.init)?;
                        layers.push(Down::Skip(down, Box::new(skip)));
                    }
                    EncoderType::Residual => {
                        let residual = Fused::new(p, &name("aux_residual"), (aux, width), style)?;
                        layers.push(Down::Residual(residual));
                        aux = width;
                    }
                }
            }
            for i in 0..self.num_blocks {
                let (io, attends) = ((width, mult * self.model_channels), self.attends(level));
                let block = EdmBlock::new(p, style, &name(&format!("block{i}")), io, Size::Keep, attends)?;
                layers.push(Down::Block(Box::new(block)));
                width = io.1;
                skips.push(width);
            }
        }
        Ok((layers, skips, width))
    }

    /// The way up.
    fn decoder(
        &self,
        p: &Parameters,
        style: &BlockStyle,
        skips: &mut Vec<usize>,
        width: usize,
    ) -> Result<Vec<Up>> {
        let (mut layers, mut width, levels) = (Vec::new(), width, self.channel_mult.len());
        for (level, mult) in self.channel_mult.iter().enumerate().rev() {
            let name = |part: &str| format!("dec.{}_{part}", self.side(level));
            let mut push = |part: &str, io, size, attends| -> Result<()> {
                layers.push(Up::Block(Box::new(EdmBlock::new(p, style, &name(part), io, size, attends)?)));
                Ok(())
            };
            if level + 1 == levels {
                push("in0", (width, width), Size::Keep, true)?;
                push("in1", (width, width), Size::Keep, false)?;
            } else {
                push("up", (width, width), Size::Up, false)?;
            }
            for i in 0..=self.num_blocks {
                let io = (width + skips.pop().unwrap_or(0), mult * self.model_channels);
                push(&format!("block{i}"), io, Size::Keep, i == self.num_blocks && self.attends(level))?;
                width = io.1;
            }
            let sums = self.decoder_type == DecoderType::Skip;
            if sums || level == 0 {
                let grow = (Size::Up, style.filter.as_slice());
                let pair = (self.channels, self.channels);
                let up = (sums && level + 1 < levels)
                    .then(|| Resampled::new(p, &name("aux_up"), pair, 0, grow, style.init));
                let norm = norm(p, &name("aux_norm"), width, EPSILON)?;
                let io = (width, self.channels);
                let conv = p.conv(&name("aux_conv"), io, 3, ConvConfig::same(3), style.init_zero)?;
                layers.push(Up::Output(up.transpose()?, Box::new((norm, conv))));
            }
        }
        Ok(layers)
    }
}

enum Frequencies {
    Fixed(Vec<f32>),
    Random(Tensor),
}

/// A convolution of kernel 3 whose result, also beyond the border, is filtered and halved.
struct Fused {
    conv: Conv2d,
    filter: Vec<f32>,
    margin: usize,
}

impl Fused {
    fn new(p: &Parameters, name: &str, io: (usize, usize), style: &BlockStyle) -> Result<Self> {
        resample_constant(p, name, &style.filter)?;
        let margin = (style.filter.len() - 1) / 2;
        // The filter reads `margin` pixels beyond the border, where our own halving would read zeros: so as many
        // more are computed and cut off afterwards.
        let config = ConvConfig { stride: 1, padding: (1 + 2 * margin, 1 + 2 * margin) };
        Ok(Self { conv: p.conv(name, io, 3, config, style.init)?, filter: style.filter.clone(), margin })
    }

    fn forward(&self, x: &FeatureMap) -> Result<FeatureMap> {
        let half = self.conv.forward(x)?.downsample_fir(&self.filter)?;
        if self.margin == 0 {
            return Ok(half);
        }
        let (height, width) = (x.height() / 2, x.width() / 2);
        let inner = half.to_nchw()?.narrow(2, self.margin, height)?.narrow(3, self.margin, width)?;
        FeatureMap::from_nchw(&inner.contiguous()?)
    }
}

enum Down {
    Conv(Conv2d),
    Block(Box<EdmBlock>),
    Skip(Resampled, Box<Conv2d>),
    Residual(Fused),
}

enum Up {
    Block(Box<EdmBlock>),
    Output(Option<Resampled>, Box<(GroupNorm, Conv2d)>),
}

/// The network itself.
pub(crate) struct Song {
    device: Device,
    frequencies: Frequencies,
    map: [Linear; 2],
    label: Option<Linear>,
    labels: usize,
    encoder: Vec<Down>,
    decoder: Vec<Up>,
}

impl Song {
    fn embedding(&self, noise: &[f32], classes: Option<&[usize]>) -> Result<FeatureMap> {
        // Sines come first here, unlike in the published embedding, which swaps them afterwards.
        let mut rows = match &self.frequencies {
            Frequencies::Fixed(f) => sinusoids(noise, f, true, &self.device)?,
            Frequencies::Random(f) => {
                let f: Vec<f32> = f.to_vec1::<f32>()?.iter().map(|f| TAU as f32 * f).collect();
                sinusoids(noise, &f, true, &self.device)?
            }
        };
        if let Some(label) = &self.label {
            let value = (self.labels as f32).sqrt();
            let classes = match classes {
                Some(classes) => one_hot(classes, self.labels, value, &self.device)?,
                None => one_hot(&vec![0; noise.len()], self.labels, 0.0, &self.device)?,
            };
            rows = rows.add(&label.forward(&classes)?)?;
        }
        self.map[1].forward(&self.map[0].forward(&rows)?.silu()?)?.silu()
    }
}

impl Network for Song {
    fn forward(&self, x: &FeatureMap, noise: &[f32], classes: Option<&[usize]>) -> Result<FeatureMap> {
        let embedding = self.embedding(noise, classes)?;
        let (mut h, mut aux, mut skips) = (x.clone(), x.clone(), Vec::new());
        for layer in &self.encoder {
            match layer {
                Down::Conv(conv) => h = conv.forward(&h)?,
                Down::Block(block) => h = block.forward(&h, None, &embedding)?,
                Down::Skip(shrink, conv) => {
                    aux = shrink.forward(&aux, None)?;
                    h = conv.on(&aux).residual(&h).run()?;
                    skips.pop();
                }
                Down::Residual(fused) => {
                    h = h.combine(FRAC_1_SQRT_2, &fused.forward(&aux)?, FRAC_1_SQRT_2)?;
                    aux = h.clone();
                    skips.pop();
                }
            }
            skips.push(h.clone());
        }
        let mut output: Option<FeatureMap> = None;
        for layer in &self.decoder {
            match layer {
                Up::Block(block) => {
                    let skip = if h.channels() == block.c_in { None } else { skips.pop() };
                    h = block.forward(&h, skip.as_ref(), &embedding)?;
                }
                Up::Output(grow, last) => {
                    let (norm, conv) = &**last;
                    let part = norm.forward_silu(&h)?;
                    output = Some(match (output.take(), grow) {
                        (Some(sum), Some(grow)) => {
                            conv.on(&part).residual(&grow.forward(&sum, None)?).run()?
                        }
                        _ => conv.forward(&part)?,
                    });
                }
            }
        }
        output.ok_or_else(|| candle_core::Error::Msg("a decoder without output".to_owned()).into())
    }
}
