//! Feature maps, layers and the CPU kernels under them, for diffusion networks.
//!
//! Layers take and give [`FeatureMap`]s. On a CPU a feature map keeps its channels innermost and the layers run our
//! kernels (AVX-512, AVX2, NEON or plain Rust, see [`Isa`]); on other devices it is an N x C x H x W tensor and the
//! layers run candle's operations. Every operation carries a gradient to its inputs and its parameters: call
//! candle's `backward` on whatever [`FeatureMap::to_nchw`] leads to.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use daps_nn::{Conv2d, ConvConfig, FeatureMap, GroupNorm};
//!
//! # fn main() -> daps_nn::Result<()> {
//! let cpu = Device::Cpu;
//! let norm = GroupNorm::new(Tensor::ones(32, candle_core::DType::F32, &cpu)?,
//!                           Tensor::zeros(32, candle_core::DType::F32, &cpu)?, 8, 1e-5)?;
//! let conv = Conv2d::new(Tensor::randn(0f32, 0.1, (32, 32, 3, 3), &cpu)?, None, ConvConfig::same(3))?;
//! let x = FeatureMap::from_nchw(&Tensor::randn(0f32, 1.0, (1, 32, 16, 16), &cpu)?)?;
//! // A residual block: the sum is part of the convolution's last step.
//! let y = conv.on(&norm.forward_silu(&x)?).residual(&x).run()?;
//! assert_eq!(y.to_nchw()?.dims(), [1, 32, 16, 16]);
//! # Ok(())
//! # }
//! ```
//!
//! Results do not depend on the number of threads, nor on the other samples of a batch, to the bit.

pub mod bench;
pub mod buffer;
mod error;
mod feature_map;
pub mod flops;
mod kernels;
mod layers;
mod ops;
mod par;
mod resample;
mod simd;
mod tape;
mod team;
pub mod testing;

pub use error::{Error, Result};
pub use feature_map::{Dims, FeatureMap, Maps, MemoryLayout};
pub use layers::attention::{QkvOrder, cross_attention, self_attention};
pub use layers::conv::{Conv2d, ConvCall, ConvConfig};
pub use layers::conv_cpu::set_kept_weights_limit;
pub use layers::group_norm::{GroupNorm, GroupNormCall};
pub use layers::layer_norm::LayerNorm;
pub use layers::linear::Linear;
pub use simd::Isa;
pub use tape::backward;
