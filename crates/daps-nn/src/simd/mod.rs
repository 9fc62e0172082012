//! One vector interface over AVX-512, AVX2 + FMA, NEON and plain Rust, and the choice among them at run time.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use std::sync::OnceLock;

pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

/// A vector of `f32` lanes and the register blocking that suits it.
///
/// # Safety
/// Every method may only be called on a machine that has the instruction set, and pointers must be valid for
/// `LANES` floats (or for `n` in the partial forms). No alignment is required.
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

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    /// Loads `n < LANES` floats; the other lanes are zero.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F;
    /// Stores the first `n < LANES` floats.
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c - a * b
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// To the nearest integer.
    unsafe fn round(a: Self::F) -> Self::F;
    /// v * 2^n for integral n in [-126, 127].
    unsafe fn scale2(v: Self::F, n: Self::F) -> Self::F;

    /// Sum of the lanes, in a fixed order.
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        let mut lanes = [0f32; 16];
        Self::store(lanes.as_mut_ptr(), v);
        lanes[..Self::LANES].iter().sum()
    }
    /// Largest lane.
    #[inline(always)]
    unsafe fn max_lane(v: Self::F) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; 16];
        Self::store(lanes.as_mut_ptr(), v);
        lanes[..Self::LANES].iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x))
    }
    /// Loads `n` floats, all lanes when `n >= LANES`.
    #[inline(always)]
    unsafe fn load_up_to(p: *const f32, n: usize) -> Self::F {
        if n >= Self::LANES { Self::load(p) } else { Self::load_part(p, n) }
    }
    /// Stores `n` floats, all lanes when `n >= LANES`.
    #[inline(always)]
    unsafe fn store_up_to(p: *mut f32, v: Self::F, n: usize) {
        if n >= Self::LANES { Self::store(p, v) } else { Self::store_part(p, v, n) }
    }
}

/// An instruction set that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust.
    Scalar,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F.
    Avx512,
    /// ARM Advanced SIMD.
    Neon,
}

impl Isa {
    /// The instruction set in use: the best that the machine has, or what `DAPS_SIMD` names
    /// (`scalar`, `avx2`, `avx512`, `neon`). Chosen once per process.
    ///
    /// # Panics
    /// If `DAPS_SIMD` names something that this machine does not have.
    pub fn active() -> Isa {
        static ACTIVE: OnceLock<Isa> = OnceLock::new();
        *ACTIVE.get_or_init(|| {
            let wanted = std::env::var("DAPS_SIMD").ok();
            Isa::choose(wanted.as_deref()).unwrap_or_else(|e| panic!("{e}"))
        })
    }

    /// Whether [`Isa::active`] will find what `DAPS_SIMD` names, or what to say about it.
    pub fn check() -> Result<(), String> {
        Isa::choose(std::env::var("DAPS_SIMD").ok().as_deref()).map(|_| ())
    }

    fn choose(wanted: Option<&str>) -> Result<Isa, String> {
        let all = Isa::available();
        match wanted {
            None => Ok(*all.last().expect("scalar is always there")),
            Some(name) => all.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| {
                let names: Vec<&str> = all.iter().map(|isa| isa.name()).collect();
                format!("DAPS_SIMD: expected one of {} on this machine, got {name}", names.join(", "))
            }),
        }
    }

    /// What this machine can run, slowest first.
    pub fn available() -> Vec<Isa> {
        let mut all = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Isa::Avx2);
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(Isa::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        all.push(Isa::Neon);
        all
    }

    /// The name that `DAPS_SIMD` uses.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }

    /// Columns of a packed panel on this instruction set.
    pub(crate) fn nr(self) -> usize {
        match self {
            Isa::Scalar | Isa::Avx2 => 16,
            Isa::Avx512 => 32,
            Isa::Neon => 8,
        }
    }

    /// Rows of the micro-kernel on this instruction set.
    pub(crate) fn mr(self) -> usize {
        match self {
            Isa::Scalar => 4,
            Isa::Avx2 => 6,
            Isa::Avx512 => 14,
            Isa::Neon => 12,
        }
    }
}

/// Defines `name(isa, args..)` from a body that is generic over [`Simd`], compiled once per instruction set.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident<$S:ident>($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(unsafe_op_in_unsafe_fn)]
        $vis unsafe fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) {
            #[inline(always)]
            unsafe fn body<$S: $crate::simd::Simd>($($arg: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            unsafe fn avx512($($arg: $ty),*) { body::<$crate::simd::x86::Avx512>($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($arg: $ty),*) { body::<$crate::simd::x86::Avx2>($($arg),*) }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            unsafe fn neon($($arg: $ty),*) { body::<$crate::simd::neon::Neon>($($arg),*) }
            match isa {
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512 => avx512($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx2 => avx2($($arg),*),
                #[cfg(target_arch = "aarch64")]
                $crate::simd::Isa::Neon => neon($($arg),*),
                _ => body::<$crate::simd::scalar::Scalar>($($arg),*),
            }
        }
    };
}
pub(crate) use simd_fn;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_may_choose() {
        assert_eq!(Isa::choose(Some("scalar")), Ok(Isa::Scalar));
        assert_eq!(Isa::choose(None).ok(), Isa::available().last().copied());
        let error = Isa::choose(Some("mmx")).expect_err("no such set");
        assert!(error.contains("scalar") && error.contains("mmx"), "{error}");
    }

    #[test]
    fn blocking_constants_agree_with_the_trait() {
        assert_eq!((Isa::Scalar.nr(), Isa::Scalar.mr()), (scalar::Scalar::NR, scalar::Scalar::MR));
        #[cfg(target_arch = "x86_64")]
        {
            assert_eq!((Isa::Avx2.nr(), Isa::Avx2.mr()), (x86::Avx2::NR, x86::Avx2::MR));
            assert_eq!((Isa::Avx512.nr(), Isa::Avx512.mr()), (x86::Avx512::NR, x86::Avx512::MR));
        }
        #[cfg(target_arch = "aarch64")]
        assert_eq!((Isa::Neon.nr(), Isa::Neon.mr()), (neon::Neon::NR, neon::Neon::MR));
    }
}
