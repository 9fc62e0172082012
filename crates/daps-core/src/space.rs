//! What a sample is: its shape, what its numbers mean, and what can be said of it.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The space that samples live in. Priors and operators name theirs; a run refuses parts whose spaces differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    shape: Vec<usize>,
    kind: Kind,
    scale: Scale,
}

/// What the numbers of a sample are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// `[channels, height, width]`: one channel is grey, three are colours.
    Image,
    /// `[2, height, width]`: real and imaginary parts.
    Complex,
    /// Symbols of an alphabet.
    Tokens {
        /// Its size.
        symbols: usize,
    },
    /// Numbers without a picture.
    Vector,
}

impl Kind {
    /// In words.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::Image => "images".into(),
            Self::Complex => "complex images".into(),
            Self::Tokens { symbols } => format!("tokens of {symbols} symbols"),
            Self::Vector => "numbers".into(),
        }
    }
}

/// What one unit of a sample means outside the program: `outside = offset + gain · x`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Units outside for one unit inside.
    pub gain: f64,
    /// What 0 inside means outside.
    #[serde(default)]
    pub offset: f64,
    /// The unit's name.
    #[serde(default)]
    pub unit: Cow<'static, str>,
}

impl Scale {
    /// [-1, 1] stands for 0 to 255.
    pub const BYTES: Self = Self { gain: 127.5, offset: 127.5, unit: Cow::Borrowed("of 255") };
    /// [-1, 1] stands for 0 to 65535.
    pub const SIXTEEN_BITS: Self = Self { gain: 32767.5, offset: 32767.5, unit: Cow::Borrowed("of 65535") };
    /// Numbers are what they are.
    pub const PLAIN: Self = Self { gain: 1.0, offset: 0.0, unit: Cow::Borrowed("") };

    /// A value outside.
    #[must_use]
    pub fn outside(&self, x: f64) -> f64 {
        self.offset + self.gain * x
    }

    /// A value inside.
    #[must_use]
    pub fn inside(&self, value: f64) -> f64 {
        (value - self.offset) / self.gain
    }

    /// A difference or a standard deviation in the unit outside, for people.
    #[must_use]
    pub fn words(&self, difference: f64) -> String {
        let value = (difference * self.gain).abs();
        let digits = if value < 10.0 { 2 } else { 1 };
        format!("{value:.digits$} {}", self.unit).trim_end().to_owned()
    }

    /// Refuses a scale that maps all values to one.
    pub fn check(&self) -> Result<()> {
        if self.gain.is_finite() && self.gain != 0.0 && self.offset.is_finite() {
            return Ok(());
        }
        Err(Error::invalid("scale", "a finite gain other than 0 and a finite offset", format!("{self:?}")))
    }
}

/// Which numbers a sample can be judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// PSNR and SSIM.
    pub quality: bool,
    /// LPIPS and FID, which know colour images.
    pub perceptual: bool,
    /// Ranks and coverage: values have an order without ties.
    pub ranks: bool,
}

impl Space {
    /// Samples of a kind, with the scale that is usual for it.
    #[must_use]
    pub fn new(shape: &[usize], kind: Kind) -> Self {
        let scale = match kind {
            Kind::Image | Kind::Tokens { .. } => Scale::BYTES,
            Kind::Complex | Kind::Vector => Scale::PLAIN,
        };
        Self { shape: shape.to_vec(), kind, scale }
    }

    /// The space that a shape suggests: `[1 or 3, h, w]` is an image, `[2, h, w]` a complex image, any other one a vector.
    #[must_use]
    pub fn of_shape(shape: &[usize]) -> Self {
        let kind = match *shape {
            [1 | 3, h, w] if h > 1 && w > 1 => Kind::Image,
            [2, h, w] if h > 1 && w > 1 => Kind::Complex,
            _ => Kind::Vector,
        };
        Self::new(shape, kind)
    }

    /// Tokens over an alphabet; in pictures they are grey values from dark to light.
    #[must_use]
    pub fn tokens(shape: &[usize], symbols: usize) -> Self {
        Self::new(shape, Kind::Tokens { symbols })
    }

    /// Numbers without a picture, whatever their shape.
    #[must_use]
    pub fn vector(shape: &[usize]) -> Self {
        Self::new(shape, Kind::Vector)
    }

    /// The same with another meaning of its unit.
    #[must_use]
    pub fn with_scale(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }

    /// Shape of one sample.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Numbers of one sample.
    #[must_use]
    pub fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// What the numbers are.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What one unit means.
    #[must_use]
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// The size of the alphabet, where samples are tokens.
    #[must_use]
    pub fn symbols(&self) -> Option<usize> {
        match self.kind {
            Kind::Tokens { symbols } => Some(symbols),
            _ => None,
        }
    }

    /// `[channels, height, width]`, where a sample can be shown: images as they are, complex ones by their magnitude, tokens as
    /// grey values.
    #[must_use]
    pub fn picture(&self) -> Option<[usize; 3]> {
        match (self.kind, self.shape.as_slice()) {
            (Kind::Vector, _) => None,
            (_, &[c @ 1..=3, h, w]) if h > 1 && w > 1 => Some([c, h, w]),
            _ => None,
        }
    }

    /// Which numbers a sample can be judged by.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let shown = self.picture().is_some();
        Metrics {
            quality: shown,
            perceptual: shown && self.kind == Kind::Image && self.shape[0] == 3,
            ranks: self.symbols().is_none(),
        }
    }

    /// Refuses another space in one sentence: `whose` says whose samples the other ones are.
    pub fn check(&self, whose: &str, other: &Self) -> Result<()> {
        let same = match (self.kind, other.kind) {
            // A vector is any list of numbers; only tokens are none.
            (Kind::Vector, kind) | (kind, Kind::Vector) => !matches!(kind, Kind::Tokens { .. }),
            (a, b) => a == b,
        };
        if !same {
            return Err(Error::invalid(whose, self.to_string(), other));
        }
        if self.shape != other.shape {
            return Err(Error::shape(whose, &self.shape, &other.shape));
        }
        Ok(())
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.shape.as_slice()) {
            (Kind::Image, &[1, h, w]) => write!(f, "a grey image of {h}x{w}"),
            (Kind::Image, &[_, h, w]) => write!(f, "a colour image of {h}x{w}"),
            (Kind::Complex, &[_, h, w]) => write!(f, "a complex image of {h}x{w}"),
            (Kind::Tokens { symbols }, shape) => write!(f, "tokens of {symbols} symbols, shape {shape:?}"),
            (_, shape) => write!(f, "numbers of shape {shape:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_suggests_a_space_and_the_space_says_what_can_be_shown_and_judged() {
        let colour = Space::of_shape(&[3, 8, 8]);
        assert_eq!((colour.picture(), colour.metrics().perceptual), (Some([3, 8, 8]), true));
        assert_eq!(colour.to_string(), "a colour image of 8x8");
        let complex = Space::of_shape(&[2, 8, 8]);
        assert_eq!((complex.kind(), complex.metrics().perceptual), (Kind::Complex, false));
        let vector = Space::of_shape(&[8]);
        assert_eq!((vector.picture(), vector.metrics().quality), (None, false));
        assert_eq!(Space::vector(&[3, 8, 8]).picture(), None);
        let tokens = Space::tokens(&[1, 8, 8], 2);
        assert_eq!((tokens.symbols(), tokens.metrics().ranks), (Some(2), false));
    }

    #[test]
    fn other_spaces_are_refused_in_one_sentence() {
        let image = Space::of_shape(&[3, 8, 8]);
        assert!(image.check("the prior", &Space::vector(&[3, 8, 8])).is_ok());
        let error = image.check("the prior", &Space::tokens(&[3, 8, 8], 2)).unwrap_err().to_string();
        assert_eq!(
            error,
            "the prior: expected a colour image of 8x8, got tokens of 2 symbols, shape [3, 8, 8]"
        );
        assert!(image.check("the prior", &Space::of_shape(&[3, 8, 9])).is_err());
        assert!(Space::vector(&[4]).check("the prior", &Space::tokens(&[4], 2)).is_err());
    }

    #[test]
    fn a_scale_goes_both_ways() {
        let kelvin = Scale { gain: 20.0, offset: 300.0, unit: "K".into() };
        assert_eq!((kelvin.outside(-1.0), kelvin.inside(320.0)), (280.0, 1.0));
        assert_eq!((kelvin.words(0.05), Scale::BYTES.words(0.1)), ("1.00 K".into(), "12.8 of 255".into()));
        assert!(Scale { gain: 0.0, ..Scale::PLAIN }.check().is_err());
    }
}
