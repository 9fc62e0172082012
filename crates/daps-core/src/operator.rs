//! The measurement map and its powers. Powers are asked for through `as_*`, never assumed.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::tensors::{batched, check_rows, combine, dot_rows};
use crate::{Address, Error, Kind, Noise, Purpose, Result, Row};

/// How a measurement is shown as a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shown {
    /// As the image that it is; pixels that were not measured are grey.
    Image,
    /// Magnitudes `[channels, height, width]` on a logarithmic scale.
    LogMagnitudes,
    /// Complex spectra `[coils, 2, height, width]`: the magnitude over all coils, on a logarithmic scale.
    CoilSpectra,
    /// Each number at the pixels that it depends on.
    AtSites,
    /// Not at all.
    Hidden,
}

/// A measurement map A. Inputs and outputs are batches `[rows, shape…]` in f32 or f64, the type of the input.
///
/// An own operator gives `name`, the two shapes, `apply` and `select`, and one power: [`Linear::adjoint`] if it is linear,
/// [`Differentiable::vjp`] if it is not. Everything else has a default.
///
/// An operator may carry parameters (masks, kernels) that differ from row to row; then [`Operator::rows`] says how many
/// rows it serves and [`Operator::select`] takes some of them.
pub trait Operator: Send + Sync {
    /// Its name in messages; that of the registry, where it has one.
    fn name(&self) -> &str;

    /// Its name for people.
    fn title(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.name())
    }

    /// Whether several images give the same measurement (a shift, a half turn), so that chains end in several places and one of
    /// them has to be chosen.
    fn is_ambiguous(&self) -> bool {
        false
    }

    /// Whether a measurement can come as a picture; magnitudes and spectra cannot.
    fn is_measured_as_picture(&self) -> bool {
        true
    }

    /// How a measurement is shown: what has the shape of an image is one, what belongs to a few pixels is shown there.
    fn shown(&self) -> Shown {
        match *self.output_shape() {
            [1..=3, h, w] if h > 1 && w > 1 => Shown::Image,
            _ if self.as_local().is_some() => Shown::AtSites,
            _ => Shown::Hidden,
        }
    }

    /// What its inputs must be, where their shape alone does not tell.
    fn domain(&self) -> Option<Kind> {
        None
    }

    /// Shape of one input.
    fn input_shape(&self) -> &[usize];

    /// Shape of one output.
    fn output_shape(&self) -> &[usize];

    /// A(x), row by row.
    fn apply(&self, x: &Tensor) -> Result<Tensor>;

    /// The number of rows it has parameters for; `None` if one set serves all.
    fn rows(&self) -> Option<usize> {
        None
    }

    /// The operator for some of the rows (an index may occur several times).
    fn select(self: Arc<Self>, rows: &[usize]) -> Result<Arc<dyn Operator>>;

    /// Into how many equal leading slices (channels) x and y fall that A maps one to one, separately. A sampler may
    /// then accept or reject slice by slice.
    fn factors(&self) -> usize {
        1
    }

    /// Which outputs depend on x, `[1 or rows][outputs]`, where some do not: hidden pixels, lines that were not sampled. What a
    /// measurement holds at the others says nothing.
    fn visible(&self) -> Option<Vec<Vec<bool>>> {
        None
    }

    /// A short text of what defines it: a run in a directory resumes only where it is the same. If it does not say, the text is its
    /// name and a checksum of what it makes of a fixed signal.
    fn fingerprint(&self) -> Option<String> {
        crate::fingerprint::of_operator(self)
    }

    /// J(x)ᵀ r. Every linear map has it.
    fn as_differentiable(&self) -> Option<&dyn Differentiable> {
        self.as_linear().map(|linear| linear as &dyn Differentiable)
    }

    /// Aᵀ r.
    fn as_linear(&self) -> Option<&dyn Linear> {
        None
    }

    /// A = U S Vᵀ, applied fast.
    fn as_spectral(&self) -> Option<&dyn Spectral> {
        None
    }

    /// Fourier magnitudes, onto which a plane can be projected.
    fn as_magnitudes(&self) -> Option<&dyn Magnitudes> {
        None
    }

    /// Few tokens behind each measured one.
    fn as_local(&self) -> Option<&dyn Local> {
        None
    }

    /// The same piecewise-linear function at every value.
    fn as_pixelwise(&self) -> Option<&dyn Pixelwise> {
        None
    }
}

/// The power to pull a residual back through the derivative.
pub trait Differentiable: Operator {
    /// J(x)ᵀ r, where J is the Jacobian of `apply` at x.
    fn vjp(&self, x: &Tensor, r: &Tensor) -> Result<Tensor>;

    /// J(x)ᵀ f(A(x)), the gradient of a function of the measurement at x: what [`Differentiable::vjp`] makes of
    /// [`Operator::apply`], for operators whose two halves share work.
    fn vjp_of(&self, x: &Tensor, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        self.vjp(x, &f(&self.apply(x)?)?)
    }

    /// An upper bound of ‖J(x)‖² over all x, one entry for all rows or one per row, for step sizes. Where none is known, they
    /// follow from the slope around the chain.
    fn lipschitz_squared(&self) -> Option<Vec<f64>> {
        None
    }

    /// Whether that bound lies far above ‖J(x)‖² at most x, so that it pays to look there.
    fn bound_is_loose(&self) -> bool {
        false
    }
}

/// The power of a linear map. Every linear map is differentiable: its vjp is its adjoint.
pub trait Linear: Differentiable {
    /// Aᵀ r.
    fn adjoint(&self, r: &Tensor) -> Result<Tensor>;

    /// AᵀA x: what [`Linear::adjoint`] makes of [`Operator::apply`], for operators that save something in between.
    fn gram(&self, x: &Tensor) -> Result<Tensor> {
        self.adjoint(&self.apply(x)?)
    }

    /// An upper bound of ‖A‖², one entry for all rows or one per row; need not be tight, but should be within a factor of two.
    /// Where it is not given, [`crate::Gaussian::norm_squared`] finds it once.
    fn norm_squared(&self) -> Option<Vec<f64>> {
        None
    }

    /// The entries of A where it is a diagonal matrix, `[1 or rows][values]`.
    fn diagonal(&self) -> Option<&[Vec<f64>]> {
        None
    }

    /// The factors by which A multiplies the waves cos(πki/(n-1)) along both sides of a plane, where it does nothing else to them: a blur
    /// by a symmetric kernel with borders mirrored at the outermost pixel. `[1 or rows][height · width]`, the same for every channel.
    fn wave_gains(&self) -> Option<&[Vec<f64>]> {
        None
    }

    /// A cheap symmetric positive approximation of f(AᵀA), for preconditioning: applies v ↦ f(AᵀA) v approximately,
    /// given f(row, eigenvalue). `None` if the operator knows no such approximation.
    fn approx_spectral_map(
        &self,
        _f: &(dyn Fn(usize, f64) -> f64 + Sync),
        _v: &Tensor,
    ) -> Option<Result<Tensor>> {
        None
    }
}

impl<T: Linear> Differentiable for T {
    fn vjp(&self, x: &Tensor, r: &Tensor) -> Result<Tensor> {
        let batch = check_rows(self.name(), x, self.input_shape())?;
        match self.rows() {
            Some(n) if n != batch => {
                Err(Error::shape(self.name(), &batched(n, self.input_shape()), x.dims()))
            }
            _ => self.adjoint(r),
        }
    }

    fn lipschitz_squared(&self) -> Option<Vec<f64>> {
        self.norm_squared()
    }
}

/// Turns of the power iteration that finds a norm, and by how much its bound exceeds what was found. After 60 turns a random
/// start is on average within 0.87 ln(n)/59 of the largest eigenvalue, whatever the others are (Kuczyński and Woźniakowski,
/// 1992): 14 % for n = 12,288.
const TURNS: usize = 60;
const MARGIN: f64 = 1.2;

/// About ‖A‖², somewhat above it, by power iteration: one entry for all rows or one per row.
pub(crate) fn found_norm_squared(map: &dyn Linear) -> Result<Vec<f64>> {
    let (shape, rows) = (map.input_shape(), map.rows().unwrap_or(1));
    // Each row starts alike, so that its norm is the same in any batch.
    let same = Noise::new(0, vec![Row { measurement: 0, chain: 0 }; rows]);
    let mut v = same.normal(Address::new(0, Purpose::Instance, 0), shape, DType::F64)?;
    let mut norms = vec![0.0; rows];
    for _ in 0..TURNS {
        let lengths = dot_rows(&v, &v)?;
        let unit: Vec<f64> = lengths.iter().map(|l| 1.0 / l.sqrt().max(f64::MIN_POSITIVE)).collect();
        v = map.gram(&combine(&[(&unit, &v)])?)?;
        norms = dot_rows(&v, &v)?.iter().map(|square| square.sqrt()).collect();
    }
    Ok(norms.into_iter().map(|norm| MARGIN * norm).collect())
}

/// The power of a singular value decomposition A = U S Vᵀ with `modes` columns in U and V, where both transforms are fast.
/// Columns are orthonormal; directions outside their span are in the null space.
pub trait Spectral: Linear {
    /// Singular values, `[1 or rows][modes]`, zero allowed.
    fn singular(&self) -> &[Vec<f64>];

    /// Vᵀ x: `[rows, modes]`.
    fn v_t(&self, x: &Tensor) -> Result<Tensor>;

    /// V c for `c: [rows, modes]`.
    fn v(&self, c: &Tensor) -> Result<Tensor>;

    /// Uᵀ y: `[rows, modes]`; where a singular value is zero, the entry carries no information and may be anything.
    fn u_t(&self, y: &Tensor) -> Result<Tensor>;

    /// U c for `c: [rows, modes]`.
    fn u(&self, c: &Tensor) -> Result<Tensor>;
}

/// One piece of a scalar piecewise-linear function: `slope · x + offset` for `low <= x < high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// Left end, may be -∞.
    pub low: f64,
    /// Right end, may be +∞.
    pub high: f64,
    /// Slope on the piece.
    pub slope: f64,
    /// Value of the line at x = 0.
    pub offset: f64,
}

/// The power of a map that applies one scalar piecewise-linear function to every value.
pub trait Pixelwise: Operator {
    /// The pieces from left to right; they cover the line.
    fn pieces(&self) -> &[Piece];
}

/// The power of a map of tokens in which each measured token depends on few others, so that a change of one costs little.
pub trait Local: Operator {
    /// The size of the alphabet that it works on, where not any one will do.
    fn symbols(&self) -> Option<usize> {
        None
    }

    /// The positions in x that the measured token at `output` depends on; none if it carries no information.
    fn sites_of(&self, row: usize, output: usize) -> &[u32];

    /// That token, from all of one row's x.
    fn value(&self, row: usize, output: usize, x: &[u8]) -> u8;
}

/// The power of phase retrieval: A(x) = |F g|, where g is x, shifted to [0, 1], within a larger plane of zeros of the
/// measurement's shape, and F keeps lengths.
pub trait Magnitudes: Operator {
    /// g from x.
    fn embed(&self, x: &Tensor) -> Result<Tensor>;

    /// x from g; what lies outside the image is dropped.
    fn crop(&self, g: &Tensor) -> Result<Tensor>;

    /// The plane nearest to g whose Fourier magnitudes are y (below zero counts as zero).
    fn project(&self, g: &Tensor, y: &Tensor) -> Result<Tensor>;
}
