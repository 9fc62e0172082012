//! One vector interface over AVX-512, AVX2 + FMA, NEON and plain Rust, and functions that are compiled for each.
#![allow(unsafe_code)]

mod isa;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

pub use isa::Isa;
pub(crate) use isa::Set;

/// The most lanes that any vector has.
const MAX_LANES: usize = 16;

/// A vector of `f32` lanes and the register blocking that suits it.
///
/// Every method is unsafe, because it may run only on a machine that has the instruction set: a function that is generic
/// over `Simd` is called through [`simd_fn`], which an [`Isa`] makes sure of. Pointers need no alignment beyond a
/// float's, and no pointer is kept.
pub(crate) trait Simd: Copy + 'static {
    /// The vector register.
    type F: Copy;
    /// Floats in a vector.
    const LANES: usize;
    /// Columns of a packed GEMM panel: two vectors.
    const NR: usize = 2 * Self::LANES;
    /// Rows of the GEMM micro-kernel.
    const MR: usize;
    /// Rows of the transposed GEMM micro-kernel (weight gradients).
    const MT: usize;

    /// Every lane `x`.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn splat(x: f32) -> Self::F;
    /// Loads a vector.
    ///
    /// # Safety
    /// The machine has the instruction set; `p` is valid for reads of `LANES` floats.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Stores a vector.
    ///
    /// # Safety
    /// The machine has the instruction set; `p` is valid for writes of `LANES` floats.
    unsafe fn store(p: *mut f32, v: Self::F);
    /// Loads `n` floats; the other lanes are zero.
    ///
    /// # Safety
    /// The machine has the instruction set; `n` is less than `LANES`; `p` is valid for reads of `n` floats.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F;
    /// Stores the first `n` floats.
    ///
    /// # Safety
    /// The machine has the instruction set; `n` is less than `LANES`; `p` is valid for writes of `n` floats.
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize);
    /// a + b
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// a - b
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// a * b
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// a / b
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// The larger of both; b on x86 if one is NaN.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller of both; b on x86 if one is NaN.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c - a * b
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// To the nearest integer.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn round(a: Self::F) -> Self::F;
    /// v * 2^n for integral n in [-126, 127]; another n gives an unspecified number.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn scale2(v: Self::F, n: Self::F) -> Self::F;

    /// Sum of the lanes, in a fixed order.
    ///
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        const { assert!(Self::LANES <= MAX_LANES) };
        let mut lanes = [0f32; MAX_LANES];
        // SAFETY: the caller promises the instruction set, and a vector has at most `MAX_LANES` lanes.
        unsafe { Self::store(lanes.as_mut_ptr(), v) };
        lanes[..Self::LANES].iter().sum()
    }
    /// Largest lane.
    ///
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn max_lane(v: Self::F) -> f32 {
        const { assert!(Self::LANES <= MAX_LANES) };
        let mut lanes = [f32::NEG_INFINITY; MAX_LANES];
        // SAFETY: as in `sum`.
        unsafe { Self::store(lanes.as_mut_ptr(), v) };
        lanes[..Self::LANES].iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x))
    }
    /// Loads `n` floats, all lanes when `n >= LANES`.
    ///
    /// # Safety
    /// The machine has the instruction set; `p` is valid for reads of `n` floats, or of `LANES` if they are fewer.
    #[inline(always)]
    unsafe fn load_up_to(p: *const f32, n: usize) -> Self::F {
        // SAFETY: the caller promises the instruction set and the floats that either way reads.
        unsafe { if n >= Self::LANES { Self::load(p) } else { Self::load_part(p, n) } }
    }
    /// Stores `n` floats, all lanes when `n >= LANES`.
    ///
    /// # Safety
    /// The machine has the instruction set; `p` is valid for writes of `n` floats, or of `LANES` if they are fewer.
    #[inline(always)]
    unsafe fn store_up_to(p: *mut f32, v: Self::F, n: usize) {
        // SAFETY: the caller promises the instruction set and the floats that either way writes.
        unsafe { if n >= Self::LANES { Self::store(p, v) } else { Self::store_part(p, v, n) } }
    }
}

/// Methods of [`Simd`] from vectors to a vector, each one expression of intrinsics.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! vector_ops {
    ($($name:ident($($arg:ident),*) => $op:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: Self::F),*) -> Self::F {
            // SAFETY: the caller promises the instruction set, and the intrinsics ask for nothing else.
            unsafe { $op }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use vector_ops;

/// Defines `name(isa, args..)` from a body that is generic over [`Simd`], compiled once per instruction set.
///
/// The `# Safety` section is what the body relies on. That the machine has the instructions need not be said there: an
/// [`Isa`] is the proof.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident<$S:ident>($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis unsafe fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) {
            /// # Safety
            /// As outside, and the machine has the instruction set.
            #[inline(always)]
            unsafe fn body<$S: $crate::simd::Simd>($($arg: $ty),*) {
                // SAFETY: the whole body relies on what the caller promises, in the `# Safety` section above it.
                unsafe { $body }
            }
            /// # Safety
            /// As outside, and the machine has AVX-512 F.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            unsafe fn avx512($($arg: $ty),*) {
                // SAFETY: the caller's promise is passed on.
                unsafe { body::<$crate::simd::x86::Avx512>($($arg),*) }
            }
            /// # Safety
            /// As outside, and the machine has AVX2 and FMA.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($arg: $ty),*) {
                // SAFETY: the caller's promise is passed on.
                unsafe { body::<$crate::simd::x86::Avx2>($($arg),*) }
            }
            /// # Safety
            /// As outside, and the machine has NEON.
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            unsafe fn neon($($arg: $ty),*) {
                // SAFETY: the caller's promise is passed on.
                unsafe { body::<$crate::simd::neon::Neon>($($arg),*) }
            }
            // SAFETY: the caller promises the rest, and an `Isa` exists only for instruction sets that the machine has.
            unsafe {
                match isa.set() {
                    #[cfg(target_arch = "x86_64")]
                    $crate::simd::Set::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::simd::Set::Avx2 => avx2($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    $crate::simd::Set::Neon => neon($($arg),*),
                    $crate::simd::Set::Scalar => body::<$crate::simd::scalar::Scalar>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use simd_fn;
