//! Timings of the kernels.
