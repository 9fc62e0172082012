//! AVX-512 and AVX2 + FMA vectors.
#![allow(unsafe_code)]

use super::{Simd, vector_ops};
use std::arch::x86_64::*;

/// AVX-512 F: 16 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// The first `n` < 16 lanes.
#[inline(always)]
fn mask16(n: usize) -> __mmask16 {
    (1u16 << n).wrapping_sub(1)
}

impl Simd for Avx512 {
    type F = __m512;
    const LANES: usize = 16;
    const MR: usize = 14;
    const MT: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the caller promises AVX-512 F.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: the caller promises AVX-512 F and 16 floats; the instruction needs no alignment.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: as in `load`.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m512 {
        // SAFETY: the caller promises AVX-512 F and `n` floats; lanes outside the mask touch no memory.
        unsafe { _mm512_maskz_loadu_ps(mask16(n), p) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: __m512, n: usize) {
        // SAFETY: as in `load_part`.
        unsafe { _mm512_mask_storeu_ps(p, mask16(n), v) }
    }
    vector_ops! {
        add(a, b) => _mm512_add_ps(a, b);
        sub(a, b) => _mm512_sub_ps(a, b);
        mul(a, b) => _mm512_mul_ps(a, b);
        div(a, b) => _mm512_div_ps(a, b);
        max(a, b) => _mm512_max_ps(a, b);
        min(a, b) => _mm512_min_ps(a, b);
        fma(a, b, c) => _mm512_fmadd_ps(a, b, c);
        fnma(a, b, c) => _mm512_fnmadd_ps(a, b, c);
        round(a) => _mm512_roundscale_ps::<0>(a);
        scale2(v, n) => _mm512_scalef_ps(v, n);
    }
}

/// AVX2 with FMA: 8 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// The first `n` < 8 lanes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn mask8(n: usize) -> __m256i {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes)
    }
}

impl Simd for Avx2 {
    type F = __m256;
    const LANES: usize = 8;
    const MR: usize = 6;
    const MT: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the caller promises AVX2.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: the caller promises AVX2 and 8 floats; the instruction needs no alignment.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: as in `load`.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m256 {
        // SAFETY: the caller promises AVX2 and `n` floats; lanes outside the mask touch no memory.
        unsafe { _mm256_maskload_ps(p, mask8(n)) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: __m256, n: usize) {
        // SAFETY: as in `load_part`.
        unsafe { _mm256_maskstore_ps(p, mask8(n), v) }
    }
    vector_ops! {
        add(a, b) => _mm256_add_ps(a, b);
        sub(a, b) => _mm256_sub_ps(a, b);
        mul(a, b) => _mm256_mul_ps(a, b);
        div(a, b) => _mm256_div_ps(a, b);
        max(a, b) => _mm256_max_ps(a, b);
        min(a, b) => _mm256_min_ps(a, b);
        fma(a, b, c) => _mm256_fmadd_ps(a, b, c);
        fnma(a, b, c) => _mm256_fnmadd_ps(a, b, c);
        round(a) => _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        scale2(v, n) => {
            let e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(e)))
        };
    }
}
