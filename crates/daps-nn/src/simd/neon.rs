//! ARM Advanced SIMD vectors.
#![allow(unsafe_code)]

use super::{Simd, vector_ops};
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
        // SAFETY: the caller promises NEON.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        // SAFETY: the caller promises NEON and 4 floats.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        // SAFETY: as in `load`.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> float32x4_t {
        // SAFETY: the caller promises `n` floats.
        let lanes: [f32; 4] = std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 });
        // SAFETY: the caller promises NEON, and the array has 4 floats.
        unsafe { vld1q_f32(lanes.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0f32; 4];
        // SAFETY: the caller promises NEON and `n` < 4 floats, which cannot overlap an array on the stack.
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
    vector_ops! {
        add(a, b) => vaddq_f32(a, b);
        sub(a, b) => vsubq_f32(a, b);
        mul(a, b) => vmulq_f32(a, b);
        div(a, b) => vdivq_f32(a, b);
        max(a, b) => vmaxq_f32(a, b);
        min(a, b) => vminq_f32(a, b);
        fma(a, b, c) => vfmaq_f32(c, a, b);
        fnma(a, b, c) => vfmsq_f32(c, a, b);
        round(a) => vrndnq_f32(a);
        scale2(v, n) => {
            let e = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(v, vreinterpretq_f32_s32(vshlq_n_s32::<23>(e)))
        };
    }
}
