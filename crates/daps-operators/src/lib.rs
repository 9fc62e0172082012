//! Forward operators of inverse problems, one file each, a registry that builds them by name, and the laws that each must pass.

pub mod blur;
mod dense;
mod example;
mod fft;
mod files;
mod hdr;
mod inpainting;
mod kronecker;
pub mod laws;
pub mod mri;
mod nonlinear_blur;
mod num;
mod pairs;
mod params;
mod phase_retrieval;
pub mod registry;
mod rows;
mod super_resolution;
mod taps;
mod toy2d;

pub use blur::{Blur, BlurKernel, Border, Strategy, gaussian_kernel, motion_kernel};
pub use dense::Dense;
pub use example::Example;
pub use hdr::Hdr;
pub use inpainting::{Inpainting, box_mask, random_mask};
pub use mri::Mri;
pub use nonlinear_blur::NonlinearBlur;
pub use pairs::{Gate, Pairs, overlapping_pairs, random_pairs};
pub use phase_retrieval::PhaseRetrieval;
pub use registry::{Entry, FileParameter, FromFile, build, entry};
pub use super_resolution::SuperResolution;
pub use toy2d::Toy2d;
