//! Diffusion over tokens: the chain that corrupts them, models of p(x0 | x_t), the reverse chain, the prior in the loop and
//! the likelihood. States are u8 tensors `[rows, shape…]`.

mod categorical;
mod corruption;
mod mismatch;
mod reverse;
mod tokens;

pub use categorical::{Categorical, Enumerable};
pub use corruption::{Corruption, Rate, map_tokens};
pub use mismatch::Mismatch;
pub use reverse::{ReverseChain, Reversed};
pub use tokens::{TokenEstimate, Tokens};
