//! The loops under the layers: slices in, slices out, no tape. Each is generic over the instruction set, and no
//! result depends on the number of threads or on the other samples of a batch.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod fir;
pub(crate) mod gather_conv;
pub(crate) mod gemm;
pub(crate) mod layer_norm;
pub(crate) mod norm;
pub(crate) mod winograd;
pub(crate) mod winograd_conv;
pub(crate) mod winograd_gradient;
pub(crate) mod winograd_weights;

#[cfg(test)]
mod conv_tests;
#[cfg(test)]
mod twin_tests;

/// Rounds `x` up to a multiple of `unit`.
pub(crate) fn round_up(x: usize, unit: usize) -> usize {
    x.div_ceil(unit) * unit
}

/// The stride of scratch rows that hold `x` floats: aligned, no power of two where `x` is one (rows then fall into different
/// cache sets), and with room for one vector beyond the end.
pub(crate) fn scratch_stride(x: usize) -> usize {
    round_up(x, 16) + 16
}
