//! The plain-Rust vector: eight lanes that the compiler may vectorise, and the twin of every other one.
#![allow(unsafe_code)]

use super::Simd;

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

#[inline(always)]
fn zip(a: [f32; 8], b: [f32; 8], f: impl Fn(f32, f32) -> f32) -> [f32; 8] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Scalar {
    type F = [f32; 8];
    const LANES: usize = 8;
    const MR: usize = 4;
    const MT: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 8] {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 8] {
        // SAFETY: the caller promises 8 floats.
        unsafe { p.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 8]) {
        // SAFETY: the caller promises 8 floats.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(v) };
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> [f32; 8] {
        // SAFETY: the caller promises `n` floats.
        std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: [f32; 8], n: usize) {
        for (i, x) in v.iter().enumerate().take(n) {
            // SAFETY: the caller promises `n` floats.
            unsafe { *p.add(i) = *x };
        }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        zip(a, b, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        zip(a, b, |x, y| x - y)
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        zip(a, b, |x, y| x * y)
    }
    #[inline(always)]
    unsafe fn div(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        zip(a, b, |x, y| x / y)
    }
    #[inline(always)]
    unsafe fn max(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        zip(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    unsafe fn min(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        zip(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn fnma(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| c[i] - a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn round(a: [f32; 8]) -> [f32; 8] {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn scale2(v: [f32; 8], n: [f32; 8]) -> [f32; 8] {
        zip(v, n, |x, e| x * f32::from_bits(((e as i32 + 127) as u32) << 23))
    }
}
