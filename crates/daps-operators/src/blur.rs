//! Blur by any kernel, one for all rows or one per row, with reflected or periodic borders, by whichever way is fastest.

mod fourier;
mod kernel;
mod motion;
mod norm;
mod padded;
mod sparse;
pub(crate) mod tasks;

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::tensors::map_rows;
use daps_core::{Error, Linear, Operator, Result, Spectral, with_real};
use rayon::prelude::*;

pub use kernel::{BlurKernel, Border, gaussian_kernel};
pub use motion::motion_kernel;

use crate::fft::{Plans, fast_length};
use crate::kronecker::Kronecker;
use crate::num::Num;
use crate::registry;
use crate::rows::{PerRow, check_batch, each_plane, image_shape};
use crate::taps::Separable;
use fourier::Fourier;
use kernel::{line_gains, line_taps};
use norm::norm_bound;
use sparse::Sparse;

/// What the border adds to small eigenvalues, as a fraction of the largest one. A wave that the periodic blur removes survives
/// near a reflecting border; without this, a preconditioner would take it for unseen and slow conjugate gradients down.
/// Measured: 0.03 to 0.3 save a quarter to a third of the iterations on motion blur, 0 saves none.
const BORDER_SHIFT: f64 = 0.1;

/// How a kernel is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// One pass along each axis; the kernel is an outer product.
    Separable,
    /// One multiply-add per element of the kernel that is not zero.
    Sparse,
    /// A product of spectra.
    Fourier,
}

/// Blur of `[channels, height, width]` images; the measurement has the image's shape.
#[derive(Debug)]
pub struct Blur {
    name: &'static str,
    shape: Vec<usize>,
    modes: Vec<usize>,
    kernels: PerRow<OneBlur>,
    singular: Vec<Vec<f64>>,
    /// Of all rows, or of none: see [`Linear::wave_gains`].
    gains: Vec<Vec<f64>>,
}

/// One kernel, ready to be applied.
#[derive(Debug)]
struct OneBlur {
    way: Way,
    modes: Option<Modes>,
    singular: Vec<f64>,
    /// The blur as if it were periodic: the exact one with a circular border, else an approximation.
    periodic: Fourier,
    norm_squared: f64,
    /// What each side multiplies the waves of a mirrored image by, where the kernel is symmetric along both.
    gains: Option<[Vec<f64>; 2]>,
}

#[derive(Debug)]
enum Way {
    Separable(Box<Separable>),
    Sparse(Sparse),
    Fourier(Fourier),
}

#[derive(Debug)]
enum Modes {
    Kronecker(Box<Kronecker>),
    Hartley,
}

impl Blur {
    /// With one kernel for all rows, or one per row, each applied in the way that the cost model finds fastest.
    pub fn new(shape: &[usize], kernels: &[BlurKernel], border: Border) -> Result<Self> {
        Self::build("blur", shape, kernels, border, None)
    }

    /// With a given way of application; a kernel that is no outer product cannot be applied separably.
    pub fn with_strategy(
        shape: &[usize],
        kernels: &[BlurKernel],
        border: Border,
        strategy: Strategy,
    ) -> Result<Self> {
        Self::build("blur", shape, kernels, border, Some(strategy))
    }

    pub(crate) fn build(
        name: &'static str,
        shape: &[usize],
        kernels: &[BlurKernel],
        border: Border,
        strategy: Option<Strategy>,
    ) -> Result<Self> {
        let (_, h, w) = image_shape(name, shape)?;
        if kernels.is_empty() {
            return Err(Error::invalid("blur kernels", "one, or one per row", "none"));
        }
        let plans = Plans::new(h, w);
        let one = |kernel: &BlurKernel| OneBlur::new(kernel, border, shape, &plans, strategy);
        let kernels = PerRow::new(kernels.par_iter().map(one).collect::<Result<Vec<_>>>()?);
        let spectral = kernels.iter().all(|k| k.modes.is_some());
        let symmetric = kernels.iter().all(|k| k.gains.is_some());
        Ok(Self::from_parts(name, shape.to_vec(), kernels, spectral, symmetric))
    }

    /// `spectral` says whether the decomposition is offered, `symmetric` whether wave gains are. Rows selected from an operator inherit its answer: which way a
    /// row is solved must not depend on its neighbours in the batch.
    fn from_parts(
        name: &'static str,
        shape: Vec<usize>,
        kernels: PerRow<OneBlur>,
        spectral: bool,
        symmetric: bool,
    ) -> Self {
        let modes = vec![shape.iter().product()];
        let singular =
            if spectral { kernels.iter().map(|k| k.singular.clone()).collect() } else { Vec::new() };
        let plane = |[down, across]: &[Vec<f64>; 2]| -> Vec<f64> {
            down.iter().flat_map(|a| across.iter().map(move |b| a * b)).collect()
        };
        let gains =
            kernels.iter().filter(|_| symmetric).filter_map(|k| k.gains.as_ref().map(plane)).collect();
        Self { name, shape, modes, kernels, singular, gains }
    }

    /// How the kernel of a row is applied.
    #[must_use]
    pub fn strategy(&self, row: usize) -> Strategy {
        match self.kernels.get(row).way {
            Way::Separable(_) => Strategy::Separable,
            Way::Sparse(_) => Strategy::Sparse,
            Way::Fourier(_) => Strategy::Fourier,
        }
    }

    fn pixels(&self) -> usize {
        self.shape[1] * self.shape[2]
    }

    fn map(
        &self,
        x: &Tensor,
        input: &[usize],
        output: &[usize],
        plane: impl OnPlane + Sync,
    ) -> Result<Tensor> {
        check_batch(self.name, x, input, self.kernels.rows())?;
        let n = self.pixels();
        with_real!(x.dtype(), T => map_rows::<T>(self.name, x, input, output, |row, x, out| {
            let blur = self.kernels.get(row);
            each_plane(x, n, out, n, |_, x, out| plane.run(blur, x, out));
        }))
    }
}

/// A transform of one plane; a trait because a closure cannot be generic over the number type.
trait OnPlane {
    fn run<T: Num>(&self, blur: &OneBlur, x: &[T], out: &mut [T]);
}

macro_rules! on_plane {
    ($name:ident, |$blur:ident, $x:ident, $out:ident| $body:expr) => {
        struct $name;
        impl OnPlane for $name {
            fn run<T: Num>(&self, $blur: &OneBlur, $x: &[T], $out: &mut [T]) {
                $body
            }
        }
    };
}

on_plane!(Apply, |blur, x, out| match &blur.way {
    Way::Separable(way) => way.apply(x, out),
    Way::Sparse(way) => way.apply(x, out),
    Way::Fourier(way) => way.apply(x, out),
});
on_plane!(Adjoint, |blur, x, out| match &blur.way {
    Way::Separable(way) => way.adjoint(x, out),
    Way::Sparse(way) => way.adjoint(x, out),
    Way::Fourier(way) => way.adjoint(x, out),
});
on_plane!(Gram, |blur, x, out| {
    if let Way::Fourier(way) = &blur.way {
        return way.gram(x, out);
    }
    let mut seen = vec![T::default(); x.len()];
    Apply.run(blur, x, &mut seen);
    Adjoint.run(blur, &seen, out);
});
on_plane!(VT, |blur, x, out| match &blur.modes {
    Some(Modes::Kronecker(modes)) => modes.v_t(x, out),
    _ => blur.periodic.hartley(x, out),
});
on_plane!(V, |blur, x, out| match &blur.modes {
    Some(Modes::Kronecker(modes)) => modes.v(x, out),
    _ => blur.periodic.hartley(x, out),
});
on_plane!(UT, |blur, x, out| match &blur.modes {
    Some(Modes::Kronecker(modes)) => modes.u_t(x, out),
    _ => {
        let mut turned = vec![T::default(); x.len()];
        blur.periodic.hartley(x, &mut turned);
        blur.periodic.rotate(-1.0, &turned, out);
    }
});
on_plane!(U, |blur, x, out| match &blur.modes {
    Some(Modes::Kronecker(modes)) => modes.u(x, out),
    _ => {
        let mut turned = vec![T::default(); x.len()];
        blur.periodic.rotate(1.0, x, &mut turned);
        blur.periodic.hartley(&turned, out);
    }
});

impl OneBlur {
    fn new(
        kernel: &BlurKernel,
        border: Border,
        shape: &[usize],
        plans: &Arc<Plans>,
        strategy: Option<Strategy>,
    ) -> Result<Self> {
        let [c, h, w] = *shape else { unreachable!("checked by the caller") };
        kernel.check_fits(border, h, w)?;
        let factors = kernel.factors()?;
        let gains = match (&factors, border) {
            (Some((column, row)), Border::Reflect) => {
                line_gains(column, kernel.above, h).zip(line_gains(row, kernel.left, w)).map(|(a, b)| [a, b])
            }
            _ => None,
        };
        let separable = factors.map(|(column, row)| {
            Separable::new(
                line_taps(&column, kernel.above, border, h),
                line_taps(&row, kernel.left, border, w),
            )
        });
        let periodic = Fourier::periodic(kernel, Arc::clone(plans), h, w);
        let modes = match (&separable, border) {
            (_, Border::Circular) => Some(Modes::Hartley),
            (Some(map), Border::Reflect) => Some(Modes::Kronecker(Box::new(Kronecker::new(map)?))),
            (None, Border::Reflect) => None,
        };
        let (singular, norm_squared) = match &modes {
            Some(Modes::Hartley) => (periodic.singular().repeat(c), periodic.largest_squared()),
            Some(Modes::Kronecker(modes)) => (modes.singular(c), modes.largest().powi(2)),
            None => (Vec::new(), norm_bound(kernel, border, h, w)),
        };
        let strategy = strategy.unwrap_or_else(|| cheapest(kernel, separable.is_some(), border, h, w));
        let way = match (strategy, separable) {
            (Strategy::Separable, Some(map)) => Way::Separable(Box::new(map)),
            (Strategy::Separable, None) => {
                return Err(Error::invalid("blur strategy", "one that fits the kernel", "separable"));
            }
            (Strategy::Sparse, _) => Way::Sparse(Sparse::new(kernel, border, h, w)),
            (Strategy::Fourier, _) => Way::Fourier(Fourier::new(kernel, border, h, w)),
        };
        Ok(Self { way, modes, singular, periodic, norm_squared, gains })
    }

    /// f(AᵀA) on one plane: exact where the decomposition is known, else as if the border were periodic.
    fn spectral_map<T: Num>(&self, f: &(dyn Fn(f64) -> f64 + Sync), x: &[T], out: &mut [T]) {
        match &self.modes {
            Some(Modes::Kronecker(modes)) => modes.spectral_map(f, x, out),
            Some(Modes::Hartley) => self.periodic.spectral_map(f, x, out),
            None => {
                let shift = BORDER_SHIFT * self.periodic.largest_squared();
                self.periodic.spectral_map(&|eigenvalue| f(eigenvalue + shift), x, out);
            }
        }
    }
}

/// The way of least cost. Costs are in multiply-adds of the sparse way, fitted to `benches/operators.rs` (the mean of A and
/// Aᵀ, 256x256, f32): Fourier transforms there and back take about two per stage, a separable pass half of one per element.
fn cheapest(kernel: &BlurKernel, separable: bool, border: Border, h: usize, w: usize) -> Strategy {
    let pixels = (h * w) as f64;
    // Lengths with large prime factors take about three times as long.
    let length = |n: usize| if fast_length(n) == n { n as f64 } else { 3.0 * n as f64 };
    let transformed = match border {
        Border::Circular => length(h) * length(w),
        Border::Reflect => {
            length(fast_length(h + kernel.height - 1)) * length(fast_length(w + kernel.width - 1))
        }
    };
    let costs = [
        (Strategy::Separable, pixels * (0.5 * (kernel.height + kernel.width) as f64 + 15.0)),
        (Strategy::Sparse, pixels * 1.2 * kernel.taps().len() as f64),
        (Strategy::Fourier, transformed * 2.1 * transformed.log2()),
    ];
    let allowed = costs.iter().filter(|(way, _)| separable || *way != Strategy::Separable);
    allowed.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(Strategy::Fourier, |(way, _)| *way)
}

impl Operator for Blur {
    fn name(&self) -> &str {
        self.name
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    fn input_shape(&self) -> &[usize] {
        &self.shape
    }

    fn output_shape(&self) -> &[usize] {
        &self.shape
    }

    fn factors(&self) -> usize {
        self.shape[0]
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        self.map(x, &self.shape, &self.shape, Apply)
    }

    fn rows(&self) -> Option<usize> {
        self.kernels.rows()
    }

    fn select(self: Arc<Self>, rows: &[usize]) -> Result<Arc<dyn Operator>> {
        if self.kernels.rows().is_none() {
            return Ok(self);
        }
        let (spectral, symmetric) = (self.as_spectral().is_some(), self.wave_gains().is_some());
        let kernels = self.kernels.select(rows)?;
        Ok(Arc::new(Self::from_parts(self.name, self.shape.clone(), kernels, spectral, symmetric)))
    }

    fn as_linear(&self) -> Option<&dyn Linear> {
        Some(self)
    }

    fn as_spectral(&self) -> Option<&dyn Spectral> {
        (!self.singular.is_empty()).then_some(self)
    }
}

impl Linear for Blur {
    fn adjoint(&self, r: &Tensor) -> Result<Tensor> {
        self.map(r, &self.shape, &self.shape, Adjoint)
    }

    fn gram(&self, x: &Tensor) -> Result<Tensor> {
        self.map(x, &self.shape, &self.shape, Gram)
    }

    fn norm_squared(&self) -> Option<Vec<f64>> {
        Some(self.kernels.iter().map(|k| k.norm_squared).collect())
    }

    fn wave_gains(&self) -> Option<&[Vec<f64>]> {
        (!self.gains.is_empty()).then_some(&self.gains)
    }

    fn approx_spectral_map(
        &self,
        f: &(dyn Fn(usize, f64) -> f64 + Sync),
        v: &Tensor,
    ) -> Option<Result<Tensor>> {
        if let Err(error) = check_batch(self.name, v, &self.shape, self.kernels.rows()) {
            return Some(Err(error));
        }
        let n = self.pixels();
        Some(with_real!(v.dtype(), T => map_rows::<T>(self.name, v, &self.shape, &self.shape, |row, v, out| {
            let (blur, of_row) = (self.kernels.get(row), |eigenvalue: f64| f(row, eigenvalue));
            each_plane(v, n, out, n, |_, v, out| blur.spectral_map(&of_row, v, out));
        })))
    }
}

impl Spectral for Blur {
    fn singular(&self) -> &[Vec<f64>] {
        &self.singular
    }

    fn v_t(&self, x: &Tensor) -> Result<Tensor> {
        self.map(x, &self.shape, &self.modes, VT)
    }

    fn v(&self, c: &Tensor) -> Result<Tensor> {
        self.map(c, &self.modes, &self.shape, V)
    }

    fn u_t(&self, y: &Tensor) -> Result<Tensor> {
        self.map(y, &self.shape, &self.modes, UT)
    }

    fn u(&self, c: &Tensor) -> Result<Tensor> {
        self.map(c, &self.modes, &self.shape, U)
    }
}
