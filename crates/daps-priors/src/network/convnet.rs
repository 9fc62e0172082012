//! A plain convolutional network that gives one number for each class: levels of convolutions, each
//! half the size of the one before, and the mean over pixels.

use daps_nn::{Conv2d, ConvConfig, FeatureMap, GroupNorm, Linear, Result};
use serde::{Deserialize, Serialize};

use super::Network;
use super::config::{check_common, whole};
use super::parameters::{Parameters, Scheme};

/// Settings of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvNetConfig {
    /// Side of the images; a power of two.
    pub image_size: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Classes that it tells apart.
    pub num_classes: usize,
    /// Channels at the first level.
    pub model_channels: usize,
    /// Factors of the channels, level by level.
    pub channel_mult: Vec<usize>,
    /// Convolutions of a level.
    pub num_convs: usize,
    /// Groups of the norms.
    pub norm_groups: usize,
}

const EPSILON: f64 = 1e-5;

impl ConvNetConfig {
    /// Refuses settings that describe no network.
    pub fn check(&self) -> daps_core::Result<()> {
        let widths = (self.model_channels, self.channel_mult.as_slice());
        check_common(self.image_size, self.channels, widths, self.num_convs, None)?;
        // A label is a byte.
        whole("network.num_classes", self.num_classes, 2, 256)?;
        whole("network.norm_groups", self.norm_groups, 1, 1024)?;
        if !self.image_size.is_power_of_two() {
            return Err(daps_core::Error::invalid("image size", "a power of two", self.image_size));
        }
        if !self.model_channels.is_multiple_of(self.norm_groups) {
            let expected = format!("a multiple of {} norm groups", self.norm_groups);
            return Err(daps_core::Error::invalid("network.model_channels", expected, self.model_channels));
        }
        Ok(())
    }

    /// The network with these parameters.
    pub(super) fn build(&self, parameters: &Parameters) -> Result<ConvNet> {
        let scheme = Scheme::Kaiming(2f64.sqrt());
        let (mut levels, mut width) = (Vec::new(), self.channels);
        for (l, mult) in self.channel_mult.iter().enumerate() {
            let mut level = Vec::new();
            for i in 0..self.num_convs {
                let (name, next) = (format!("levels.{l}.{i}"), mult * self.model_channels);
                let same = ConvConfig::same(3);
                let conv = parameters.conv(&format!("{name}.conv"), (width, next), 3, same, scheme)?;
                let norm = parameters.norm(&format!("{name}.norm"), next, self.norm_groups, EPSILON)?;
                level.push((conv, norm));
                width = next;
            }
            levels.push(level);
        }
        Ok(ConvNet { levels, out: parameters.linear("out", width, self.num_classes, Scheme::Zero)? })
    }
}

/// The network.
pub(super) struct ConvNet {
    levels: Vec<Vec<(Conv2d, GroupNorm)>>,
    out: Linear,
}

impl Network for ConvNet {
    /// One pixel with a logit for each class; nothing is noisy, and nothing is told of the class.
    fn forward(&self, x: &FeatureMap, _: &[f32], _: Option<&[usize]>) -> Result<FeatureMap> {
        let mut h = x.clone();
        for (l, level) in self.levels.iter().enumerate() {
            if l > 0 {
                h = h.average_pool()?;
            }
            for (conv, norm) in level {
                h = norm.forward_silu(&conv.forward(&h)?)?;
            }
        }
        // Averages of averages of equally many pixels: the mean over all of them.
        while h.dims().pixels() > 1 {
            h = h.average_pool()?;
        }
        self.out.forward(&h)
    }
}
