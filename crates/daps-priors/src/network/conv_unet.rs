//! A U-Net of convolutions alone: no norm over space and no attention, so that what it gives at a place depends on a neighbourhood of
//! fixed size, whatever the image's size.
//!
//! At every resolution residual blocks h + conv(silu(conv(silu(h)) (1 + a) + b)), where a and b are made of the noise level. Ways
//! down and up meet in sums. The scales stand in for norms: at low noise a network has to enlarge what it reads.

use candle_core::Device;
use daps_nn::{Conv2d, ConvConfig, FeatureMap, Linear, Result};
use serde::{Deserialize, Serialize};

use super::Network;
use super::config::{check_side, whole};
use super::embedding::sinusoids;
use super::parameters::{Parameters, Scheme};

/// Settings of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvUnetConfig {
    /// Side of the images that it is trained on.
    pub image_size: usize,
    /// Channels of an image.
    #[serde(default = "three")]
    pub channels: usize,
    /// Channels of every resolution, the finest first; each has half the side of the one before.
    pub widths: Vec<usize>,
    /// Residual blocks of every resolution: on the way down and again on the way up, at the coarsest once.
    pub blocks: Vec<usize>,
}

fn three() -> usize {
    3
}

/// Waves of the noise label that the network is told, and the step in frequency from one to the next.
const WAVES: usize = 16;
const WAVE_STEP: f32 = 1.0;
/// Width of what it makes of them.
const TOLD: usize = 128;
/// Keeps the variance through a convolution that follows a SiLU.
const GAIN: f64 = 1.5;

impl ConvUnetConfig {
    /// By what the sides of an image must divide.
    #[must_use]
    pub fn factor(&self) -> usize {
        1 << (self.widths.len().max(1) - 1)
    }

    /// How many pixels away a change of the input can change the output: one for each convolution, times the pixel's size where it
    /// stands, and the rest of a coarse pixel.
    #[must_use]
    pub fn reach(&self) -> usize {
        let coarsest = self.widths.len() - 1;
        let convolutions = |(level, blocks): (usize, &usize)| {
            let ways = if level == coarsest { 1 } else { 2 };
            (2 * ways * blocks) << level
        };
        2 + self.blocks.iter().enumerate().map(convolutions).sum::<usize>() + (1 << coarsest)
    }

    /// Refuses settings that describe no network.
    pub fn check(&self) -> daps_core::Result<()> {
        whole("network.channels", self.channels, 1, 1024)?;
        whole("number of network.widths", self.widths.len(), 1, 12)?;
        if self.blocks.len() != self.widths.len() {
            let expected = format!("{} numbers, one for each of network.widths", self.widths.len());
            return Err(daps_core::Error::invalid("network.blocks", expected, self.blocks.len()));
        }
        self.widths.iter().try_for_each(|width| whole("network.widths", *width, 1, 4096))?;
        self.blocks.iter().try_for_each(|blocks| whole("network.blocks", *blocks, 1, 64))?;
        check_side(self.image_size, self.factor())
    }

    /// The network with these parameters.
    pub(super) fn build(&self, p: &Parameters) -> Result<ConvUnet> {
        let (torch, same) = (Scheme::Torch, ConvConfig::same(3));
        let blocks = |name: &str, level: usize| -> Result<Vec<Block>> {
            let name = |k: usize| format!("{name}.{level}.{k}");
            (0..self.blocks[level]).map(|k| Block::new(p, &name(k), self.widths[level])).collect()
        };
        let (first, coarsest) = (self.widths[0], self.widths.len() - 1);
        let told = [p.linear("told.0", 2 * WAVES, TOLD, torch)?, p.linear("told.1", TOLD, TOLD, torch)?];
        let input = p.conv("input", (self.channels, first), 3, same, Scheme::Kaiming(1.0))?;
        let mut down = vec![];
        for level in 0..=coarsest {
            let change = match level {
                0 => None,
                _ => Some(change(p, &format!("down.{level}.change"), &self.widths[level - 1..=level])?),
            };
            down.push((change, blocks("down", level)?));
        }
        let mut up = vec![];
        for level in (0..coarsest).rev() {
            let widths = [self.widths[level + 1], self.widths[level]];
            up.push((change(p, &format!("up.{level}.change"), &widths)?, blocks("up", level)?));
        }
        let output = p.conv("output", (first, self.channels), 3, same, Scheme::Zero)?;
        Ok(ConvUnet { device: p.device(), told, input, down, up, output })
    }
}

/// From the width of one resolution to that of the next.
fn change(p: &Parameters, name: &str, widths: &[usize]) -> Result<Conv2d> {
    p.conv(name, (widths[0], widths[1]), 1, ConvConfig::same(1), Scheme::Kaiming(1.0))
}

struct Block {
    first: Conv2d,
    told: Linear,
    second: Conv2d,
}

impl Block {
    fn new(p: &Parameters, name: &str, width: usize) -> Result<Self> {
        let conv = |part: &str, scheme| {
            p.conv(&format!("{name}.{part}"), (width, width), 3, ConvConfig::same(3), scheme)
        };
        Ok(Self {
            first: conv("first", Scheme::Kaiming(GAIN))?,
            told: p.linear(&format!("{name}.told"), TOLD, 2 * width, Scheme::Torch)?,
            // At first a block changes nothing.
            second: conv("second", Scheme::Zero)?,
        })
    }

    fn forward(&self, h: &FeatureMap, told: &FeatureMap) -> Result<FeatureMap> {
        let inner = self.first.forward(&h.silu()?)?.modulate_silu(&self.told.forward(told)?)?;
        self.second.on(&inner).residual(h).run()
    }
}

/// The network itself.
pub(super) struct ConvUnet {
    device: Device,
    told: [Linear; 2],
    input: Conv2d,
    /// The change of width that leads to a resolution, and its blocks.
    down: Vec<(Option<Conv2d>, Vec<Block>)>,
    up: Vec<(Conv2d, Vec<Block>)>,
    output: Conv2d,
}

impl Network for ConvUnet {
    fn forward(&self, x: &FeatureMap, noise: &[f32], _: Option<&[usize]>) -> Result<FeatureMap> {
        let frequencies: [f32; WAVES] = std::array::from_fn(|k| WAVE_STEP * (k + 1) as f32);
        let waves = sinusoids(noise, &frequencies, false, &self.device)?;
        let told = self.told[1].forward(&self.told[0].forward(&waves)?.silu()?)?.silu()?;
        let run =
            |blocks: &[Block], h: FeatureMap| blocks.iter().try_fold(h, |h, block| block.forward(&h, &told));
        let (mut h, mut found) = (self.input.forward(x)?, vec![]);
        for (change, blocks) in &self.down {
            if let Some(change) = change {
                found.push(h.clone());
                h = change.forward(&h.average_pool()?)?;
            }
            h = run(blocks, h)?;
        }
        for (change, blocks) in &self.up {
            h = change.forward(&h)?.upsample_nearest()?;
            h = run(blocks, found.pop().map_or(Ok(h.clone()), |finer| h.add(&finer))?)?;
        }
        self.output.forward(&h.silu()?)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use daps_core::tensors::{from_f64, to_f64};
    use daps_core::{Address, Denoiser, Noise, Purpose, Sigma};

    use crate::{NetworkConfig, NetworkPrior};

    fn config() -> NetworkConfig {
        let text = "patch = 2\n[network]\nkind = 'conv-unet'\nimage_size = 8\nchannels = 12\nwidths = [8, 12]\nblocks = [1, 2]\n\
                    [preconditioning]\nkind = 'edm'\nsigma_data = 0.5\n";
        NetworkConfig::parse(text).unwrap()
    }

    /// A network whose weights are all moved, so that every part of it counts.
    fn moved() -> NetworkPrior {
        let (_, variables) = NetworkPrior::fresh(&config(), 1, &Device::Cpu).unwrap();
        let noise = Noise::chains(5, 1);
        let weights = variables.into_iter().enumerate().map(|(i, (name, v))| {
            let z = noise.normal(Address::new(0, Purpose::Instance, i), v.dims(), DType::F32).unwrap();
            (name, (v.as_tensor() + (z.squeeze(0).unwrap() * 0.05).unwrap()).unwrap())
        });
        NetworkPrior::new(&config(), weights.collect()).unwrap()
    }

    #[test]
    fn settings_are_checked_and_survive_toml() {
        let config = config();
        assert_eq!((config.shape(), config.factor()), ([3, 16, 16], 4));
        assert!(config.works_at_any_size());
        let text = config.to_toml().unwrap();
        assert_eq!(NetworkConfig::parse(&text).unwrap(), config);
        for (from, to, says) in [
            ("blocks = [1, 2]", "blocks = [1]", "network.blocks: expected 2 numbers"),
            ("blocks = [1, 2]", "blocks = [1, 0]", "from 1 to 64"),
            ("widths = [8, 12]", "widths = []", "number of network.widths"),
            ("image_size = 8", "image_size = 7", "a positive multiple of 2"),
        ] {
            let error = NetworkConfig::parse(&text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    /// Beyond its reach from what changed the answer is the same but for rounding, and not from half of it on: nothing looks at the whole
    /// image. (Winograd's transforms read a few pixels more, which cancel.)
    #[test]
    fn the_answer_at_a_place_depends_on_its_surroundings_alone() {
        let prior = moved().with_size(16, 192).unwrap();
        let reach = config().reach().unwrap();
        assert_eq!(reach, 2 * (2 + 4 + 8 + 2) + 1);
        let of = |x: &Tensor, sigma: f64| to_f64(&prior.denoise(x, &Sigma::Same(sigma)).unwrap()).unwrap();
        let noise = Noise::chains(7, 1);
        let one = noise.normal(Address::new(0, Purpose::Instance, 0), &[3, 16, 192], DType::F32).unwrap();
        let mut values = to_f64(&one).unwrap();
        values.iter_mut().enumerate().filter(|(i, _)| i % 192 < 8).for_each(|(_, v)| *v += 1.0);
        let other = from_f64(values, &[1, 3, 16, 192], DType::F32).unwrap();
        for sigma in [0.05, 1.0] {
            let (a, b) = (of(&one, sigma), of(&other, sigma));
            assert!((0..a.len()).all(|i| i % 192 >= 8 || a[i] != b[i]));
            let off = |from: usize| {
                let beyond = (0..a.len()).filter(|i| i % 192 >= from);
                beyond.map(|i| (a[i] - b[i]).abs()).fold(0.0, f64::max)
            };
            assert!(
                off(8 + reach) < 1e-5 && off(8 + reach / 2) > 1e-4,
                "{} {}",
                off(8 + reach),
                off(8 + reach / 2)
            );
            assert_ne!(of(&one, 2.0 * sigma), a);
        }
    }
}
