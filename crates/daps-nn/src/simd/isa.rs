//! Which instruction sets the kernels are written for, and which of them this machine has.

use std::sync::OnceLock;

/// An instruction set that this machine has. A value is the proof of that: there is no way to make one for an instruction
/// set that the machine lacks, so that a function that is given one may use its instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

/// The instruction sets of this architecture that the kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    /// Plain Rust.
    Scalar,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// ARM Advanced SIMD.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// Plain Rust, which every machine runs.
    pub const SCALAR: Isa = Isa(Set::Scalar);

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
        let mut all = vec![Isa::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Isa(Set::Avx2));
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(Isa(Set::Avx512));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            all.push(Isa(Set::Neon));
        }
        all
    }

    /// The name that `DAPS_SIMD` uses.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Set::Neon => "neon",
        }
    }

    /// Which one it is.
    pub(crate) fn set(self) -> Set {
        self.0
    }

    /// Columns of a packed panel on this instruction set.
    pub(crate) fn nr(self) -> usize {
        match self.0 {
            Set::Scalar => 16,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => 16,
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => 32,
            #[cfg(target_arch = "aarch64")]
            Set::Neon => 8,
        }
    }

    /// Rows of the micro-kernel on this instruction set.
    pub(crate) fn mr(self) -> usize {
        match self.0 {
            Set::Scalar => 4,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => 6,
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => 14,
            #[cfg(target_arch = "aarch64")]
            Set::Neon => 12,
        }
    }
}

impl std::fmt::Debug for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Simd;

    #[test]
    fn the_environment_may_choose() {
        assert_eq!(Isa::choose(Some("scalar")), Ok(Isa::SCALAR));
        assert_eq!(Isa::choose(None).ok(), Isa::available().last().copied());
        let error = Isa::choose(Some("mmx")).expect_err("no such set");
        assert!(error.contains("scalar") && error.contains("mmx"), "{error}");
    }

    #[test]
    fn blocking_constants_agree_with_the_trait() {
        fn check<S: Simd>(set: Set) {
            assert_eq!((Isa(set).nr(), Isa(set).mr()), (S::NR, S::MR));
        }
        check::<crate::simd::scalar::Scalar>(Set::Scalar);
        #[cfg(target_arch = "x86_64")]
        {
            check::<crate::simd::x86::Avx2>(Set::Avx2);
            check::<crate::simd::x86::Avx512>(Set::Avx512);
        }
        #[cfg(target_arch = "aarch64")]
        check::<crate::simd::neon::Neon>(Set::Neon);
    }
}
