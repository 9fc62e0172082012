//! Networks: U-Nets with their published parameter names, the borders that make them denoisers or
//! priors over tokens, and a plain network for classes.

mod adm;
pub mod bench;
mod config;
mod conv_unet;
mod convnet;
mod dhariwal;
mod edm_block;
mod embedding;
mod grid;
mod needs;
mod padding;
mod parameters;
mod patch;
mod preconditioning;
mod prior;
mod song;
mod tiles;
mod tokens;

use daps_nn::FeatureMap;

pub use adm::AdmConfig;
pub use config::{Architecture, NAMED, Named, NetworkConfig, SpaceConfig, named};
pub use conv_unet::ConvUnetConfig;
pub use convnet::ConvNetConfig;
pub use dhariwal::DhariwalConfig;
pub(crate) use embedding::sinusoids;
pub use grid::{Cut, Grid, Rule, Tile};
pub use needs::Footprint;
pub(crate) use padding::Padding;
pub use parameters::Parameters;
pub(crate) use parameters::Scheme;
pub(crate) use patch::{shuffle, unshuffle};
pub use preconditioning::{Coefficients, Preconditioning, Prepared};
pub use prior::NetworkPrior;
pub(crate) use prior::{factors, tensor_error};
pub use song::{DecoderType, EmbeddingType, EncoderType, SongConfig};
pub use tiles::{AnySize, TileCount, Tiled, Tiling};
pub use tokens::{TokenPrior, quantise};

/// A U-Net: an image batch, one noise label per sample and perhaps a class per sample in, an image batch out.
pub trait Network: Send + Sync {
    /// The raw output F(x, c_noise).
    fn forward(
        &self,
        x: &FeatureMap,
        noise: &[f32],
        classes: Option<&[usize]>,
    ) -> daps_nn::Result<FeatureMap>;
}
