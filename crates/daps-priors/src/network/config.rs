//! What network a checkpoint belongs to: a small TOML document, or a name.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor, Var};
use daps_core::{Kind, Scale, Space};
use serde::{Deserialize, Serialize};

use super::song::{DecoderType, EmbeddingType, EncoderType};
use super::{
    AdmConfig, ConvNetConfig, ConvUnetConfig, DhariwalConfig, Network, Parameters, Preconditioning,
    SongConfig,
};
use crate::{Error, Result};

/// A network's architecture; `kind` in a configuration names the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Architecture {
    /// Guided diffusion's U-Net.
    Adm(AdmConfig),
    /// EDM's `SongUNet`: DDPM++ and NCSN++.
    Song(SongConfig),
    /// EDM's `DhariwalUNet`.
    Dhariwal(DhariwalConfig),
    /// Our U-Net of convolutions alone, for images of any size.
    ConvUnet(ConvUnetConfig),
    /// A plain network for classes.
    ConvNet(ConvNetConfig),
}

/// A network and how it becomes a denoiser: the tables `[network]` and `[preconditioning]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfig {
    /// Side of the patches that the network sees as one pixel (space to depth); its `channels` and `image_size` are
    /// those after that step, so images are `patch` times as large and have `patch`² times fewer channels.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub patch: usize,
    /// The architecture.
    pub network: Architecture,
    /// The preconditioning.
    pub preconditioning: Preconditioning,
    /// What its samples are, where their shape does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceConfig>,
}

/// The table `[space]`: what the numbers of a sample are, what one unit means, and whether samples have a size of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceConfig {
    /// `image`, `complex` or `vector`; absent: what the shape suggests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// The unit: `{ gain = 32767.5, offset = 32767.5, unit = "of 65535" }` for 16 bits; absent: what is usual for the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// Whether the network works at any size: a run then has the size of its input, and `image_size` is the size where nothing is said.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_size: bool,
}

fn one() -> usize {
    1
}
fn is_one(patch: &usize) -> bool {
    *patch == 1
}

/// The configuration of a public checkpoint.
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// The configuration.
    pub config: fn() -> NetworkConfig,
}

const fn entry(name: &'static str, summary: &'static str, config: fn() -> NetworkConfig) -> Named {
    Named { name, summary, config }
}

/// Configurations of public checkpoints.
pub const NAMED: &[Named] = &[
    entry("ffhq256", "ADM, faces at 256 x 256", || adm(AdmConfig::ffhq256())),
    entry("imagenet256", "ADM, ImageNet at 256 x 256, unconditional", || adm(AdmConfig::imagenet256())),
    entry("edm-cifar10-ddpmpp", "EDM DDPM++, CIFAR-10, unconditional", || song(32, &[2, 2, 2], 0, false)),
    entry("edm-cifar10-ddpmpp-cond", "EDM DDPM++, CIFAR-10, by class", || song(32, &[2, 2, 2], 10, false)),
    entry("edm-cifar10-ncsnpp", "EDM NCSN++, CIFAR-10, unconditional", || song(32, &[2, 2, 2], 0, true)),
    entry("edm-cifar10-ncsnpp-cond", "EDM NCSN++, CIFAR-10, by class", || song(32, &[2, 2, 2], 10, true)),
    entry("edm-ffhq64-ddpmpp", "EDM DDPM++, faces at 64 x 64", || song(64, &[1, 2, 2, 2], 0, false)),
    entry("edm-ffhq64-ncsnpp", "EDM NCSN++, faces at 64 x 64", || song(64, &[1, 2, 2, 2], 0, true)),
    entry("edm-afhqv2-64-ddpmpp", "EDM DDPM++, animals at 64 x 64", || song(64, &[1, 2, 2, 2], 0, false)),
    entry("edm-afhqv2-64-ncsnpp", "EDM NCSN++, animals at 64 x 64", || song(64, &[1, 2, 2, 2], 0, true)),
    entry("edm-imagenet64-adm", "EDM ADM, ImageNet at 64 x 64, by class", || NetworkConfig {
        patch: 1,
        network: Architecture::Dhariwal(DhariwalConfig::imagenet64()),
        preconditioning: Preconditioning::edm(),
        space: None,
    }),
];

fn adm(config: AdmConfig) -> NetworkConfig {
    NetworkConfig {
        patch: 1,
        network: Architecture::Adm(config),
        preconditioning: Preconditioning::vp(),
        space: None,
    }
}

fn song(image_size: usize, channel_mult: &[usize], classes: usize, ncsnpp: bool) -> NetworkConfig {
    let mut config = SongConfig::ddpmpp(image_size, channel_mult, classes);
    if ncsnpp {
        config.embedding_type = EmbeddingType::Fourier;
        config.encoder_type = EncoderType::Residual;
        config.decoder_type = DecoderType::Standard;
        config.resample_filter = vec![1.0, 3.0, 3.0, 1.0];
        config.channel_mult_noise = 2;
    }
    NetworkConfig {
        patch: 1,
        network: Architecture::Song(config),
        preconditioning: Preconditioning::edm(),
        space: None,
    }
}

/// The configuration of a public checkpoint.
pub fn named(name: &str) -> Result<NetworkConfig> {
    match NAMED.iter().find(|known| known.name == name) {
        Some(known) => Ok((known.config)()),
        None => {
            Err(daps_core::Error::unknown("network configuration", name, NAMED.iter().map(|n| n.name)).into())
        }
    }
}

impl NetworkConfig {
    /// From TOML, checked.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text)
            .map_err(|e| Error::config("network", daps_core::with_suggestion(e.message())))?;
        config.check()?;
        Ok(config)
    }

    /// As TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|e| Error::config("network", e))
    }

    /// Refuses settings that describe no network.
    pub fn check(&self) -> Result<()> {
        match &self.network {
            Architecture::Adm(config) => config.check()?,
            Architecture::Song(config) => config.check()?,
            Architecture::Dhariwal(config) => config.check()?,
            Architecture::ConvUnet(config) => config.check()?,
            Architecture::ConvNet(config) => config.check()?,
        }
        let classifies = matches!(self.preconditioning, Preconditioning::Classes);
        if classifies != matches!(self.network, Architecture::ConvNet(_)) {
            let kinds = ["a U-Net, which gives images", "a conv-net, which gives classes"];
            let (expected, got) = (kinds[usize::from(classifies)], kinds[usize::from(!classifies)]);
            return Err(daps_core::Error::invalid("network.kind", expected, got).into());
        }
        whole("patch", self.patch, 1, 64)?;
        if let Some(SpaceConfig { kind, scale, .. }) = &self.space {
            if self.is_discrete() || matches!(kind, Some(Kind::Tokens { .. })) {
                return Err(daps_core::Error::invalid("space", "none beside tokens", "a table").into());
            }
            if matches!(kind, Some(Kind::Complex)) && self.shape()[0] != 2 {
                let expected = "two channels, real and imaginary parts";
                return Err(daps_core::Error::invalid("space.kind complex", expected, self.shape()[0]).into());
            }
            scale.as_ref().map_or(Ok(()), Scale::check)?;
        }
        self.preconditioning.check()?;
        if !self.seen()[0].is_multiple_of(self.patch * self.patch) {
            let expected = format!("a multiple of {}, the pixels of a patch", self.patch * self.patch);
            return Err(daps_core::Error::invalid("network.channels", expected, self.seen()[0]).into());
        }
        let each = self.patch * self.patch * self.states();
        if !self.seen()[0].is_multiple_of(each) {
            let expected = format!("a multiple of {each}, a channel for each state of a token");
            return Err(daps_core::Error::invalid("network.channels", expected, self.seen()[0]).into());
        }
        Ok(())
    }

    /// The space of continuous samples of a shape.
    #[must_use]
    pub fn space(&self, shape: &[usize]) -> Space {
        let said = self.space.as_ref();
        let suggested = Space::of_shape(shape);
        let space = said.and_then(|s| s.kind).map_or(suggested, |kind| Space::new(shape, kind));
        match said.and_then(|s| s.scale.clone()) {
            Some(scale) => space.with_scale(scale),
            None => space,
        }
    }

    /// Whether it works at any size: where it says so, and where no answer depends on the whole image.
    #[must_use]
    pub fn works_at_any_size(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.any_size) || self.reach().is_some()
    }

    /// Whether samples are tokens.
    #[must_use]
    pub fn is_discrete(&self) -> bool {
        self.preconditioning.corruption().is_ok_and(|chain| chain.is_some())
    }

    /// Channels that one value of an image takes: one, or as many as a token has states.
    fn states(&self) -> usize {
        self.preconditioning.corruption().ok().flatten().map_or(1, |chain| chain.states())
    }

    /// The shape of an image: channels, height, width.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        let ([channels, height, width], p) = (self.seen(), self.patch);
        [channels / (p * p * self.states()), height * p, width * p]
    }

    /// The shape of what the network sees: the same where a patch is one pixel.
    fn seen(&self) -> [usize; 3] {
        let (channels, size) = match &self.network {
            Architecture::Adm(c) => (c.channels, c.image_size),
            Architecture::Song(c) => (c.channels, c.image_size),
            Architecture::Dhariwal(c) => (c.channels, c.image_size),
            Architecture::ConvUnet(c) => (c.channels, c.image_size),
            Architecture::ConvNet(c) => (c.channels, c.image_size),
        };
        [channels, size, size]
    }

    /// By what the sides of an image must divide.
    #[must_use]
    pub fn factor(&self) -> usize {
        self.patch
            * match &self.network {
                Architecture::Adm(c) => c.factor(),
                Architecture::Song(c) => 1 << (c.channel_mult.len().max(1) - 1),
                Architecture::Dhariwal(c) => 1 << (c.channel_mult.len().max(1) - 1),
                Architecture::ConvUnet(c) => c.factor(),
                Architecture::ConvNet(c) => c.image_size,
            }
    }

    /// How many classes the network can be told.
    #[must_use]
    pub fn classes(&self) -> usize {
        match &self.network {
            Architecture::Adm(c) => c.num_classes.unwrap_or(0),
            Architecture::Song(c) => c.label_dim,
            Architecture::Dhariwal(c) => c.label_dim,
            Architecture::ConvUnet(_) | Architecture::ConvNet(_) => 0,
        }
    }

    /// Whether the network must be told a class.
    #[must_use]
    pub fn needs_class(&self) -> bool {
        matches!(&self.network, Architecture::Adm(c) if c.num_classes.is_some())
    }

    /// Names and shapes of all parameters.
    pub fn parameters(&self) -> Result<BTreeMap<String, Vec<usize>>> {
        self.check()?;
        let parameters = Parameters::given(BTreeMap::new());
        self.assemble(&parameters)?;
        Ok(parameters.asked())
    }

    /// The network with given parameters, which must fit exactly.
    pub fn network(&self, tensors: BTreeMap<String, Tensor>) -> Result<Box<dyn Network>> {
        self.check()?;
        let parameters = Parameters::given(tensors);
        let network = self.assemble(&parameters)?;
        match parameters.finish() {
            None => Ok(network),
            Some(mismatch) => Err(Error::Keys(mismatch)),
        }
    }

    /// The network with fresh parameters, and the variables to train.
    pub fn fresh(&self, seed: u64, device: &Device) -> Result<(Box<dyn Network>, BTreeMap<String, Var>)> {
        self.check()?;
        let parameters = Parameters::fresh(seed, device);
        let network = self.assemble(&parameters)?;
        Ok((network, parameters.variables()))
    }

    fn assemble(&self, parameters: &Parameters) -> Result<Box<dyn Network>> {
        Ok(match &self.network {
            Architecture::Adm(config) => Box::new(config.build(parameters)?),
            Architecture::Song(config) => Box::new(config.build(parameters)?),
            Architecture::Dhariwal(config) => Box::new(config.build(parameters)?),
            Architecture::ConvUnet(config) => Box::new(config.build(parameters)?),
            Architecture::ConvNet(config) => Box::new(config.build(parameters)?),
        })
    }
}

/// Refuses a number outside a range.
pub(super) fn whole(what: &str, value: usize, least: usize, most: usize) -> daps_core::Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(daps_core::Error::invalid(what, format!("a whole number from {least} to {most}"), value))
}

/// What all architectures ask of their settings.
pub(super) fn check_common(
    image_size: usize,
    channels: usize,
    (model_channels, channel_mult): (usize, &[usize]),
    blocks: usize,
    classes: Option<usize>,
) -> daps_core::Result<()> {
    whole("network.channels", channels, 1, 1024)?;
    whole("network.model_channels", model_channels, 1, 4096)?;
    whole("number of network.channel_mult", channel_mult.len(), 1, 12)?;
    for mult in channel_mult {
        whole("network.channel_mult", *mult, 1, 64)?;
    }
    whole("blocks of a level of the network", blocks, 1, 64)?;
    whole("classes of the network", classes.unwrap_or(1), 1, 1 << 20)?;
    check_side(image_size, 1 << (channel_mult.len() - 1))
}

/// The longest side of an image.
pub(super) const MOST_SIDE: usize = 1 << 16;

/// The side of the images that a network is trained on must be positive and divide by the down-sampling factor.
pub(super) fn check_side(side: usize, factor: usize) -> daps_core::Result<()> {
    if side > 0 && side <= MOST_SIDE && side.is_multiple_of(factor) {
        return Ok(());
    }
    let expected =
        format!("a positive multiple of {factor}, the network's down-sampling factor, up to {MOST_SIDE}");
    Err(daps_core::Error::invalid("image size", expected, side))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_configuration_is_whole_and_survives_toml() {
        for Named { name, .. } in NAMED {
            let config = named(name).unwrap();
            let parameters = config.parameters().unwrap();
            let count: usize = parameters.values().map(|s| s.iter().product::<usize>()).sum();
            assert!(count > 10_000_000, "{name}: {count}");
            assert_eq!(NetworkConfig::parse(&config.to_toml().unwrap()).unwrap(), config, "{name}");
        }
        let count = |name: &str| -> usize {
            let shapes = named(name).unwrap().parameters().unwrap();
            shapes.values().map(|s| s.iter().product::<usize>()).sum()
        };
        // As many numbers as the public checkpoints hold.
        assert_eq!(count("ffhq256"), 93_563_910);
        assert_eq!(count("imagenet256"), 552_814_086);
        assert!(named("ffhq").unwrap_err().to_string().contains("known: ffhq256, imagenet256"));
    }

    #[test]
    fn a_file_says_what_its_samples_are_and_what_a_unit_means() {
        let text = named("edm-ffhq64-ddpmpp").unwrap().to_toml().unwrap();
        let plain = NetworkConfig::parse(&text).unwrap();
        assert_eq!(plain.space(&[3, 8, 8]), Space::of_shape(&[3, 8, 8]));
        let with = |space: &str| NetworkConfig::parse(&format!("{text}\n[space]\n{space}\n"));
        let deep = with("scale = { gain = 32767.5, offset = 32767.5, unit = 'of 65535' }").unwrap();
        assert_eq!(deep.space(&[3, 8, 8]).scale(), &Scale::SIXTEEN_BITS);
        assert_eq!(with("kind = 'vector'").unwrap().space(&[3, 8, 8]).kind(), Kind::Vector);
        assert_eq!(NetworkConfig::parse(&deep.to_toml().unwrap()).unwrap(), deep);
        let free = with("any_size = true").unwrap();
        assert!(free.works_at_any_size() && !deep.works_at_any_size() && !plain.works_at_any_size());
        assert_eq!(free.space(&[3, 8, 8]), Space::of_shape(&[3, 8, 8]));
        assert_eq!(NetworkConfig::parse(&free.to_toml().unwrap()).unwrap(), free);
        for (space, says) in [
            ("kind = 'complex'", "space.kind complex: expected two channels"),
            ("scale = { gain = 0.0 }", "scale: expected a finite gain other than 0"),
            ("kind = { tokens = { symbols = 2 } }", "space: expected none beside tokens"),
        ] {
            let error = with(space).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    /// What is accepted can be built: every width that a norm sees was looked at.
    #[test]
    fn accepted_widths_are_those_of_networks() {
        let (mut accepted, mut refused) = (0, 0);
        for kind in ["song", "dhariwal"] {
            for model_channels in [4, 8, 12, 20, 24, 36, 64, 72, 100, 128] {
                for mult in ["[1]", "[1, 2]", "[1, 3, 2]", "[3, 1]"] {
                    let config = NetworkConfig::parse(&format!(
                        "[network]\nkind = '{kind}'\nimage_size = 8\nmodel_channels = {model_channels}\n\
                         channel_mult = {mult}\nnum_blocks = 1\nattn_resolutions = []\n[preconditioning]\nkind = 'edm'\n"
                    ));
                    match config {
                        Ok(config) => {
                            accepted += 1;
                            let built = config.parameters();
                            assert!(built.is_ok(), "{kind} {model_channels} {mult}: {:?}", built.err());
                        }
                        Err(_) => refused += 1,
                    }
                }
            }
        }
        assert!(accepted > 10 && refused > 10, "{accepted} {refused}");
        let ratio =
            |value: f64| Preconditioning::Iddpm { offset: 0.008, smallest_ratio: value, steps: 1000 }.check();
        assert!(ratio(0.001).is_ok() && ratio(1.0).is_err() && ratio(2.0).is_err());
    }

    #[test]
    fn bad_settings_are_refused_in_one_sentence() {
        let good = named("ffhq256").unwrap().to_toml().unwrap();
        for (from, to, part) in [
            (
                "image_size = 256",
                "image_size = 250",
                "a positive multiple of 32, the network's down-sampling",
            ),
            ("image_size = 256", "image_size = 0", "a positive multiple of 32"),
            ("model_channels = 128", "model_channels = 100", "a multiple of 32 norm groups"),
            ("model_channels = 128", "model_channels = -1", "network"),
            ("model_channels = 128", "model_chanels = 128", "unknown field `model_chanels`"),
            ("kind = \"adm\"", "kind = \"unet\"", "unknown variant `unet`"),
            ("num_head_channels = 64", "num_head_channels = 60", "a divisor of the 512 channels"),
            ("num_head_channels = 64", "num_head_channels = 0", "from 1 to"),
            ("beta_d = 19.9", "beta_d = 0.0", "positive finite constants"),
        ] {
            assert!(good.contains(from), "{from} in {good}");
            let message = NetworkConfig::parse(&good.replace(from, to)).unwrap_err().to_string();
            assert!(message.contains(part), "{to}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
