//! ARM Advanced SIMD vectors.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::Simd;
use std::arch::aarch64::*;

/// NEON: 4 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

impl Simd for Neon {
    type F = float32x4_t;
    const LANES: usize = 4;
    const MR: usize = 12;
    const MT: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        vdupq_n_f32(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        vld1q_f32(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        vst1q_f32(p, v);
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> float32x4_t {
        let lanes: [f32; 4] = std::array::from_fn(|i| if i < n { *p.add(i) } else { 0.0 });
        vld1q_f32(lanes.as_ptr())
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0f32; 4];
        vst1q_f32(lanes.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vaddq_f32(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vsubq_f32(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmulq_f32(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vdivq_f32(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmaxq_f32(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vminq_f32(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }
    #[inline(always)]
    unsafe fn fnma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmsq_f32(c, a, b)
    }
    #[inline(always)]
    unsafe fn round(a: float32x4_t) -> float32x4_t {
        vrndnq_f32(a)
    }
    #[inline(always)]
    unsafe fn scale2(v: float32x4_t, n: float32x4_t) -> float32x4_t {
        let e = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
        vmulq_f32(v, vreinterpretq_f32_s32(vshlq_n_s32::<23>(e)))
    }
}
