//! Exponential and SiLU on vectors.
#![allow(unsafe_code)]

use super::Simd;

/// e^x to about 2 ulp: range reduction by ln 2 in two parts and the degree-5 minimax polynomial of Cephes.
/// Arguments are clamped to [-87, 88], where the result is a normal number; NaN stays NaN.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        // In this order: x86's minimum and maximum give their second operand when one is NaN.
        let x = S::max(S::splat(-87.0), S::min(S::splat(88.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fnma(n, S::splat(0.693_359_4), x);
        let r = S::fnma(n, S::splat(-2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = S::fma(p, r, S::splat(c));
        }
        let p = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
        S::scale2(p, n)
    }
}

/// 1 / (1 + e^-x)
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// x * sigmoid(x)
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(crate) unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        let one = S::splat(1.0);
        S::div(x, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// The derivative of [`silu`]: s (1 + x (1 - s)) with s = sigmoid(x).
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(crate) unsafe fn silu_slope<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        let one = S::splat(1.0);
        let s = sigmoid::<S>(x);
        S::mul(s, S::fma(x, S::sub(one, s), one))
    }
}
