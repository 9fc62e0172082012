//! The guided-diffusion (ADM) U-Net of Dhariwal and Nichol, with the parameter names of its public checkpoints.

use candle_core::{Device, Tensor};
use daps_nn::{Conv2d, ConvConfig, FeatureMap, GroupNorm, Linear, Maps, QkvOrder, Result, self_attention};
use serde::{Deserialize, Serialize};

use super::Network;
use super::config::{check_common, whole};
use super::embedding::{positional_frequencies, sinusoids};
use super::parameters::{Init, Parameters, Scheme};

/// Settings of an ADM U-Net; the defaults are those of the public code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmConfig {
    /// Side of the images that it was trained on; decides where attention sits.
    pub image_size: usize,
    /// Channels of an image.
    #[serde(default = "three")]
    pub channels: usize,
    /// Channels at the first level.
    pub model_channels: usize,
    /// Factors of the channels, level by level.
    pub channel_mult: Vec<usize>,
    /// Residual blocks of a level.
    pub num_res_blocks: usize,
    /// Sides of the feature maps that attend to themselves.
    pub attention_resolutions: Vec<usize>,
    /// Heads, unless `num_head_channels` decides.
    #[serde(default = "four")]
    pub num_heads: usize,
    /// Channels of a head; absent: `num_heads` decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_head_channels: Option<usize>,
    /// Heads on the way up, where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_heads_upsample: Option<usize>,
    /// Whether the output has a second half, the learned variance (which no denoiser reads).
    #[serde(default)]
    pub learn_sigma: bool,
    /// Whether the time embedding scales and shifts the second norm instead of being added.
    #[serde(default)]
    pub use_scale_shift_norm: bool,
    /// Whether residual blocks change the size.
    #[serde(default)]
    pub resblock_updown: bool,
    /// Whether plain size changes have a convolution.
    #[serde(default = "yes")]
    pub conv_resample: bool,
    /// Whether all queries come first, then all keys and values, instead of head by head.
    #[serde(default)]
    pub use_new_attention_order: bool,
    /// Classes that it can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_classes: Option<usize>,
    /// Groups of the norms.
    #[serde(default = "thirty_two")]
    pub norm_groups: usize,
}

fn three() -> usize {
    3
}
fn four() -> usize {
    4
}
fn yes() -> bool {
    true
}
fn thirty_two() -> usize {
    32
}

const EPSILON: f64 = 1e-5;

impl AdmConfig {
    /// The U-Net of the public FFHQ-256 checkpoint.
    #[must_use]
    pub fn ffhq256() -> Self {
        Self {
            image_size: 256,
            channels: 3,
            model_channels: 128,
            channel_mult: vec![1, 1, 2, 2, 4, 4],
            num_res_blocks: 1,
            attention_resolutions: vec![16],
            num_heads: 4,
            num_head_channels: Some(64),
            num_heads_upsample: None,
            learn_sigma: true,
            use_scale_shift_norm: true,
            resblock_updown: true,
            conv_resample: true,
            use_new_attention_order: false,
            num_classes: None,
            norm_groups: 32,
        }
    }

    /// The U-Net of the public unconditional ImageNet-256 checkpoint.
    #[must_use]
    pub fn imagenet256() -> Self {
        Self {
            model_channels: 256,
            num_res_blocks: 2,
            attention_resolutions: vec![32, 16, 8],
            ..Self::ffhq256()
        }
    }

    /// By what the sides of an image must divide.
    #[must_use]
    pub fn factor(&self) -> usize {
        1 << (self.channel_mult.len().max(1) - 1)
    }

    /// Refuses settings that describe no network.
    pub fn check(&self) -> daps_core::Result<()> {
        let widths = (self.model_channels, self.channel_mult.as_slice());
        check_common(self.image_size, self.channels, widths, self.num_res_blocks, self.num_classes)?;
        whole("network.norm_groups", self.norm_groups, 1, 1024)?;
        whole("network.num_heads", self.num_heads, 1, 1024)?;
        whole("network.num_head_channels", self.num_head_channels.unwrap_or(1), 1, 1 << 14)?;
        whole("network.num_heads_upsample", self.num_heads_upsample.unwrap_or(1), 1, 1024)?;
        if !self.model_channels.is_multiple_of(self.norm_groups) {
            let expected = format!("a multiple of {} norm groups", self.norm_groups);
            return Err(daps_core::Error::invalid("network.model_channels", expected, self.model_channels));
        }
        let top = self.channel_mult.last().copied().unwrap_or(1);
        let attends = |level: usize| self.attention_resolutions.contains(&(self.image_size >> level));
        let levels = self.channel_mult.iter().enumerate().filter(|(l, _)| attends(*l)).map(|(_, m)| *m);
        for channels in levels.chain([top]).map(|mult| mult * self.model_channels) {
            let heads = match self.num_head_channels {
                Some(width) => vec![width],
                None => vec![self.num_heads, self.num_heads_upsample.unwrap_or(self.num_heads)],
            };
            if let Some(bad) = heads.into_iter().find(|h| !channels.is_multiple_of(*h)) {
                let expected = format!("a divisor of the {channels} channels that attend");
                return Err(daps_core::Error::invalid("network heads", expected, bad));
            }
        }
        Ok(())
    }

    /// The network with the given parameters.
    pub(crate) fn build(&self, p: &Parameters) -> Result<Adm> {
        Adm::new(self, p)
    }

    fn attention(&self, p: &Parameters, name: &str, channels: usize, up: bool) -> Result<Attention> {
        let heads = match self.num_head_channels {
            Some(width) => channels / width,
            None if up => self.num_heads_upsample.unwrap_or(self.num_heads),
            None => self.num_heads,
        };
        Ok(Attention {
            norm: p.norm(&format!("{name}.norm"), channels, self.norm_groups, EPSILON)?,
            qkv: p.conv_1d(&format!("{name}.qkv"), channels, 3 * channels, Scheme::Torch)?,
            proj: p.conv_1d(&format!("{name}.proj_out"), channels, channels, Scheme::Zero)?,
            heads,
            order: if self.use_new_attention_order { QkvOrder::QkvFirst } else { QkvOrder::HeadFirst },
        })
    }
}

/// A change of size.
#[derive(Clone, Copy, PartialEq)]
enum Resize {
    Keep,
    Up,
    Down,
}

impl Resize {
    fn apply(self, x: FeatureMap) -> Result<FeatureMap> {
        match self {
            Self::Keep => Ok(x),
            Self::Up => x.upsample_nearest(),
            Self::Down => x.average_pool(),
        }
    }
}

struct ResBlock {
    norm_in: GroupNorm,
    conv_in: Conv2d,
    embed: Linear,
    norm_out: GroupNorm,
    conv_out: Conv2d,
    skip: Option<Conv2d>,
    resize: Resize,
    scale_shift: bool,
}

impl ResBlock {
    fn new(
        config: &AdmConfig,
        p: &Parameters,
        name: &str,
        (c_in, c_out): (usize, usize),
        resize: Resize,
    ) -> Result<Self> {
        let (same, torch) = (ConvConfig::same(3), Scheme::Torch);
        let key = |part: &str| format!("{name}.{part}");
        let embedded = if config.use_scale_shift_norm { 2 * c_out } else { c_out };
        let skip = match c_in == c_out {
            true => None,
            false => Some(p.conv(&key("skip_connection"), (c_in, c_out), 1, ConvConfig::same(1), torch)?),
        };
        Ok(Self {
            norm_in: p.norm(&key("in_layers.0"), c_in, config.norm_groups, EPSILON)?,
            conv_in: p.conv(&key("in_layers.2"), (c_in, c_out), 3, same, torch)?,
            embed: p.linear(&key("emb_layers.1"), 4 * config.model_channels, embedded, torch)?,
            norm_out: p.norm(&key("out_layers.0"), c_out, config.norm_groups, EPSILON)?,
            conv_out: p.conv(&key("out_layers.3"), (c_out, c_out), 3, same, Scheme::Zero)?,
            skip,
            resize,
            scale_shift: config.use_scale_shift_norm,
        })
    }

    /// `embedding` has its SiLU applied already; `concatenated` is the second half of the input's channels.
    fn forward(
        &self,
        x: &FeatureMap,
        concatenated: Option<&FeatureMap>,
        embedding: &FeatureMap,
    ) -> Result<FeatureMap> {
        let maps = concatenated.map_or(Maps::from(x), |skip| Maps::from((x, skip)));
        let h = self.resize.apply(self.norm_in.forward_silu(maps)?)?;
        let embedded = self.embed.forward(embedding)?;
        let h = if self.scale_shift {
            let h = self.conv_in.forward(&h)?;
            self.norm_out.on(&h).scale_shift(&embedded).silu().run()?
        } else {
            let h = self.conv_in.on(&h).shift(&embedded).run()?;
            self.norm_out.forward_silu(&h)?
        };
        let skip = match (&self.skip, concatenated) {
            (Some(conv), None) => conv.forward(&self.resize.apply(x.clone())?)?,
            (Some(conv), Some(_)) => conv.forward(maps)?,
            (None, None) => self.resize.apply(x.clone())?,
            (None, Some(other)) => x.concat(other)?,
        };
        self.conv_out.on(&h).residual(&skip).run()
    }
}

struct Attention {
    norm: GroupNorm,
    qkv: Conv2d,
    proj: Conv2d,
    heads: usize,
    order: QkvOrder,
}

impl Attention {
    fn forward(&self, x: &FeatureMap) -> Result<FeatureMap> {
        let qkv = self.qkv.forward(&self.norm.forward(x)?)?;
        self.proj.on(&self_attention(&qkv, self.heads, self.order)?).residual(x).run()
    }
}

/// One entry of an input, middle or output block.
enum Layer {
    Conv(Conv2d),
    Res(Box<ResBlock>),
    Attention(Attention),
    Resize(Resize, Option<Conv2d>),
}

impl Layer {
    fn forward(
        &self,
        x: &FeatureMap,
        skip: Option<&FeatureMap>,
        embedding: &FeatureMap,
    ) -> Result<FeatureMap> {
        match self {
            Self::Conv(conv) => conv.forward(x),
            Self::Res(block) => block.forward(x, skip, embedding),
            Self::Attention(attention) => attention.forward(x),
            Self::Resize(Resize::Up, Some(conv)) => conv.forward(&x.upsample_nearest()?),
            Self::Resize(Resize::Down, Some(conv)) => conv.forward(x),
            Self::Resize(resize, _) => resize.apply(x.clone()),
        }
    }
}

type Block = Vec<Layer>;

/// The network itself.
pub(crate) struct Adm {
    device: Device,
    frequencies: Vec<f32>,
    odd: bool,
    time: [Linear; 2],
    classes: Option<Tensor>,
    input: Vec<Block>,
    middle: Block,
    output: Vec<Block>,
    norm: GroupNorm,
    conv: Conv2d,
}

impl Adm {
    fn new(config: &AdmConfig, p: &Parameters) -> Result<Self> {
        let (c, torch) = (config.model_channels, Scheme::Torch);
        let time =
            [p.linear("time_embed.0", c, 4 * c, torch)?, p.linear("time_embed.2", 4 * c, 4 * c, torch)?];
        let classes = match config.num_classes {
            None => None,
            Some(n) => Some(p.get("label_emb.weight", &[n, 4 * c], Init::Normal(1.0))?),
        };
        let (input, mut widths) = encoder(config, p)?;
        let width = widths.last().copied().unwrap_or(c);
        let res = |name: &str| ResBlock::new(config, p, name, (width, width), Resize::Keep);
        let middle = vec![
            Layer::Res(Box::new(res("middle_block.0")?)),
            Layer::Attention(config.attention(p, "middle_block.1", width, false)?),
            Layer::Res(Box::new(res("middle_block.2")?)),
        ];
        let output = decoder(config, p, &mut widths)?;
        let first = c * config.channel_mult[0];
        let channels = config.channels * if config.learn_sigma { 2 } else { 1 };
        Ok(Self {
            device: p.device(),
            frequencies: positional_frequencies(c / 2, (c / 2) as f64),
            odd: !c.is_multiple_of(2),
            time,
            classes,
            input,
            middle,
            output,
            norm: p.norm("out.0", first, config.norm_groups, EPSILON)?,
            conv: p.conv("out.2", (first, channels), 3, ConvConfig::same(3), Scheme::Zero)?,
        })
    }

    /// The time and class embedding with the SiLU that every block starts with.
    fn embedding(&self, noise: &[f32], classes: Option<&[usize]>) -> Result<FeatureMap> {
        let device = &self.device;
        let mut rows = sinusoids(noise, &self.frequencies, false, device)?;
        if self.odd {
            let zeros = Tensor::zeros((noise.len(), 1), candle_core::DType::F32, device)?;
            rows = rows.concat(&FeatureMap::from_rows(&zeros)?)?;
        }
        let mut embedding = self.time[1].forward(&self.time[0].forward(&rows)?.silu()?)?;
        if let (Some(weight), Some(classes)) = (&self.classes, classes) {
            let ids: Vec<u32> = classes.iter().map(|c| *c as u32).collect();
            let ids = Tensor::from_vec(ids, classes.len(), device)?;
            embedding = embedding.add(&FeatureMap::from_rows(&weight.index_select(&ids, 0)?)?)?;
        }
        embedding.silu()
    }
}

/// The way down, and the channels that each of its blocks leaves for the way up.
fn encoder(config: &AdmConfig, p: &Parameters) -> Result<(Vec<Block>, Vec<usize>)> {
    let first = config.model_channels * config.channel_mult[0];
    let same = ConvConfig::same(3);
    let conv = p.conv("input_blocks.0.0", (config.channels, first), 3, same, Scheme::Torch)?;
    let (mut blocks, mut widths, mut width) = (vec![vec![Layer::Conv(conv)]], vec![first], first);
    for (level, mult) in config.channel_mult.iter().enumerate() {
        let attends = config.attention_resolutions.contains(&(config.image_size >> level));
        for _ in 0..config.num_res_blocks {
            let name = format!("input_blocks.{}", blocks.len());
            let out = mult * config.model_channels;
            let res = ResBlock::new(config, p, &format!("{name}.0"), (width, out), Resize::Keep)?;
            let mut block = vec![Layer::Res(Box::new(res))];
            width = out;
            if attends {
                block.push(Layer::Attention(config.attention(p, &format!("{name}.1"), width, false)?));
            }
            blocks.push(block);
            widths.push(width);
        }
        if level + 1 < config.channel_mult.len() {
            let name = format!("input_blocks.{}.0", blocks.len());
            blocks.push(vec![resize(config, p, &name, width, Resize::Down)?]);
            widths.push(width);
        }
    }
    Ok((blocks, widths))
}

/// The way up.
fn decoder(config: &AdmConfig, p: &Parameters, widths: &mut Vec<usize>) -> Result<Vec<Block>> {
    let (mut blocks, mut width) = (Vec::new(), widths.last().copied().unwrap_or(config.model_channels));
    for (level, mult) in config.channel_mult.iter().enumerate().rev() {
        let attends = config.attention_resolutions.contains(&(config.image_size >> level));
        for i in 0..=config.num_res_blocks {
            let name = format!("output_blocks.{}", blocks.len());
            let (input, out) = (width + widths.pop().unwrap_or(0), mult * config.model_channels);
            let res = ResBlock::new(config, p, &format!("{name}.0"), (input, out), Resize::Keep)?;
            let mut block = vec![Layer::Res(Box::new(res))];
            width = out;
            if attends {
                block.push(Layer::Attention(config.attention(p, &format!("{name}.1"), width, true)?));
            }
            if level > 0 && i == config.num_res_blocks {
                block.push(resize(config, p, &format!("{name}.{}", block.len()), width, Resize::Up)?);
            }
            blocks.push(block);
        }
    }
    Ok(blocks)
}

fn resize(config: &AdmConfig, p: &Parameters, name: &str, width: usize, to: Resize) -> Result<Layer> {
    if config.resblock_updown {
        return Ok(Layer::Res(Box::new(ResBlock::new(config, p, name, (width, width), to)?)));
    }
    if !config.conv_resample {
        return Ok(Layer::Resize(to, None));
    }
    let (part, how) = match to {
        Resize::Up => ("conv", ConvConfig::same(3)),
        _ => ("op", ConvConfig::down(3)),
    };
    let conv = p.conv(&format!("{name}.{part}"), (width, width), 3, how, Scheme::Torch)?;
    Ok(Layer::Resize(to, Some(conv)))
}

impl Network for Adm {
    fn forward(&self, x: &FeatureMap, noise: &[f32], classes: Option<&[usize]>) -> Result<FeatureMap> {
        let embedding = self.embedding(noise, classes)?;
        let (mut h, mut skips) = (x.clone(), Vec::with_capacity(self.input.len()));
        for block in &self.input {
            for layer in block {
                h = layer.forward(&h, None, &embedding)?;
            }
            skips.push(h.clone());
        }
        for layer in &self.middle {
            h = layer.forward(&h, None, &embedding)?;
        }
        for block in &self.output {
            let mut skip = skips.pop();
            for layer in block {
                h = layer.forward(&h, skip.take().as_ref(), &embedding)?;
            }
        }
        self.conv.forward(&self.norm.forward_silu(&h)?)
    }
}
