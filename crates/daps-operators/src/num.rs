//! The number types of this crate's inner loops, and constants that are kept in both of them.

use realfft::num_complex::Complex;
use rustfft::FftNum;

use crate::fft::{Fft2, Plans};

/// f32 or f64 with what the fast paths need of it: Fourier transforms, matrix products, typed constants.
pub(crate) trait Num: FftNum + daps_core::linalg::Factor {
    /// The constants in this type.
    fn values(of: &Values) -> &[Self];
    /// The complex constants in this type.
    fn spectrum(of: &Spectrum) -> &[Complex<Self>];
    /// The transforms in this type, planned at the first call.
    fn fft(plans: &Plans) -> &Fft2<Self>;
}

macro_rules! num {
    ($t:ty, $field:ident) => {
        impl Num for $t {
            fn values(of: &Values) -> &[Self] {
                &of.$field
            }
            fn spectrum(of: &Spectrum) -> &[Complex<Self>] {
                &of.$field
            }
            fn fft(plans: &Plans) -> &Fft2<Self> {
                plans.$field()
            }
        }
    };
}
num!(f32, single);
num!(f64, double);

/// Constants computed in f64 and kept rounded to f32 too, so that no call converts them again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    single: Vec<f32>,
    double: Vec<f64>,
}

impl Values {
    pub fn new(double: Vec<f64>) -> Self {
        Self { single: double.iter().map(|&v| v as f32).collect(), double }
    }

    pub fn wide(&self) -> &[f64] {
        &self.double
    }
}

/// Complex constants in both types.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spectrum {
    single: Vec<Complex<f32>>,
    double: Vec<Complex<f64>>,
}

impl Spectrum {
    pub fn new(double: Vec<Complex<f64>>) -> Self {
        Self { single: double.iter().map(|v| Complex::new(v.re as f32, v.im as f32)).collect(), double }
    }

    pub fn wide(&self) -> &[Complex<f64>] {
        &self.double
    }
}
