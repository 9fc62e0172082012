//! A covariance of images by frequency: at every frequency variances along axes of the channels, and perhaps a factor on what is fine
//! that differs from place to place.
//!
//! C = L Lᵀ. Without a local factor L = Tᵀ U √v, with T the transform of [`Cosines`] and U the axes. With one, the frequencies from
//! some bound on are multiplied by it: L = (S_low + a S_high) U √v, where S_low and S_high take coefficients to pixels and a is one
//! number for every pixel and colour axis.

use std::fmt;
use std::sync::{Arc, OnceLock};

use candle_core::{DType, Tensor};
use faer::Mat;
use rayon::prelude::*;

use crate::symmetric::eigen_in_place;
use crate::tensors::{Real, batched, check_rows, combine, from_f64, map_rows, scale_each, to_f64, zip_rows};
use crate::{Cosines, Error, Full, Result, with_real};

/// See the module.
#[derive(Clone, Debug)]
pub struct Frequency {
    cosines: Arc<Cosines>,
    /// Along the axes, `[1, shape…]` in f64.
    variances: Tensor,
    axes: Option<Arc<Axes>>,
    local: Option<LocalFactor>,
    /// Which coefficients of a plane the local factor multiplies, and the sides of the block with all the others.
    fine: Arc<Vec<bool>>,
    coarse: [usize; 2],
}

/// Writes the covariance of the channels at a frequency, `[channel][channel]`.
type Law = dyn Fn(f64, &mut [f64]) + Send + Sync;

/// The axes U of the channels, `[axis][channel][frequency]`: orthonormal at every frequency. They are large, so each number type has
/// them only once it is asked for.
struct Axes {
    cosines: Arc<Cosines>,
    law: Box<Law>,
    single: OnceLock<Vec<f32>>,
    double: OnceLock<Vec<f64>>,
}

trait Entry: Real {
    fn entries(of: &Axes) -> &[Self];
}

impl Entry for f32 {
    fn entries(of: &Axes) -> &[Self] {
        of.single.get_or_init(|| of.entries())
    }
}

impl Entry for f64 {
    fn entries(of: &Axes) -> &[Self] {
        of.double.get_or_init(|| of.entries())
    }
}

impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Axes({:?})", self.cosines.shape())
    }
}

/// How much larger than usual the deviation of what is fine is, at every place.
#[derive(Clone, Debug)]
pub struct LocalFactor {
    /// `[rows, shape…]`, along the colour axes of [`Cosines::colors`].
    pub factor: Tensor,
    /// The least frequency that it multiplies, in half periods a pixel.
    pub from: f64,
}

impl Axes {
    fn channels(&self) -> usize {
        self.cosines.shape()[0]
    }

    /// `[axis][frequency]`.
    fn variances(&self) -> Vec<f64> {
        let n = self.channels();
        self.cosines.at_frequencies(n, |f, values| {
            let (mut block, mut vectors) = (vec![0.0; n * n], vec![0.0; n * n]);
            (self.law)(f, &mut block);
            eigen_in_place(&mut block, values, &mut vectors);
        })
    }

    fn entries<T: Real>(&self) -> Vec<T> {
        let n = self.channels();
        self.cosines.at_frequencies(n * n, |f, vectors| {
            let (mut block, mut values) = (vec![0.0; n * n], vec![0.0; n]);
            (self.law)(f, &mut block);
            eigen_in_place(&mut block, &mut values, vectors);
        })
    }

    /// Coefficients along the axes from those of channels, or back.
    fn turn<T: Entry>(&self, c: &Tensor, back: bool) -> Result<Tensor> {
        self.weighted::<T>(c, back, |u| u)
    }

    /// Sums over channels, or axes, with a function of the axes' entries as weights.
    fn weighted<T: Entry>(&self, c: &Tensor, back: bool, weight: fn(T) -> T) -> Result<Tensor> {
        let (shape, n, entries) = (&c.dims()[1..], self.channels(), T::entries(self));
        map_rows::<T>("coefficients", c, shape, shape, |_, c, out| {
            let plane = c.len() / n;
            for (i, out) in out.chunks_mut(plane).enumerate() {
                for (j, c) in c.chunks(plane).enumerate() {
                    let at = if back { j * n + i } else { i * n + j };
                    let weighted = entries[at * plane..][..plane].iter().zip(c);
                    // The zeros that a fresh row has need not be read.
                    match j {
                        0 => out.iter_mut().zip(weighted).for_each(|(out, (u, c))| *out = weight(*u) * *c),
                        _ => out.iter_mut().zip(weighted).for_each(|(out, (u, c))| *out += weight(*u) * *c),
                    }
                }
            }
        })
    }
}

impl Frequency {
    /// From the variance of every coefficient; channels are independent.
    pub fn new(cosines: Arc<Cosines>, variances: Vec<f64>) -> Result<Self> {
        if let Some(bad) = variances.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
            return Err(Error::invalid("variance of a frequency", "a positive finite number", bad));
        }
        let variances = from_f64(variances, &batched(1, cosines.shape()), DType::F64)?;
        Ok(Self { cosines, variances, axes: None, local: None, fine: Arc::default(), coarse: [0; 2] })
    }

    /// From a covariance of the channels that is a function of frequency, in the coordinates of the cosines: it is given a frequency
    /// and writes `[channel][channel]`.
    pub fn correlated(
        cosines: Arc<Cosines>,
        law: impl Fn(f64, &mut [f64]) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (single, double) = (OnceLock::new(), OnceLock::new());
        let axes = Axes { cosines: Arc::clone(&cosines), law: Box::new(law), single, double };
        let alone = Self::new(cosines, axes.variances())?;
        Ok(Self { axes: Some(Arc::new(axes)), ..alone })
    }

    /// The same with a factor on what is fine.
    pub fn with_local(mut self, local: LocalFactor) -> Result<Self> {
        check_rows("local factor", &local.factor, self.cosines.shape())?;
        let ([_, height, width], _) = self.planes();
        let is_fine = |k: usize| self.cosines.frequency(k) >= local.from;
        // Along an edge of the plane a frequency is that of one side.
        let down = (0..height).filter(|i| !is_fine(i * width)).count();
        let across = (0..width).filter(|k| !is_fine(*k)).count();
        self.fine = Arc::new((0..height * width).into_par_iter().map(is_fine).collect());
        self.coarse = [down, across];
        self.local = Some(local);
        Ok(self)
    }

    /// The cosines.
    #[must_use]
    pub fn cosines(&self) -> &Cosines {
        &self.cosines
    }

    /// The variances along the axes, `[1, shape…]` in f64, without the local factor.
    #[must_use]
    pub fn variances(&self) -> &Tensor {
        &self.variances
    }

    /// The local factor, where there is one.
    #[must_use]
    pub fn local(&self) -> Option<&LocalFactor> {
        self.local.as_ref()
    }

    /// Coordinates in which C is diagonal but for the local factor: coefficients along the axes.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.turn(&self.cosines.forward(x)?, false)
    }

    /// The inverse of [`Self::forward`].
    pub fn back(&self, c: &Tensor) -> Result<Tensor> {
        self.cosines.back(&self.turn(c, true)?)
    }

    /// Coordinates from the coefficients of other waves of the same frequencies, channels as they are; orthonormal.
    pub fn along(&self, c: &Tensor) -> Result<Tensor> {
        self.turn(&self.cosines.colors(c)?, false)
    }

    /// The inverse of [`Self::along`].
    pub fn along_back(&self, c: &Tensor) -> Result<Tensor> {
        self.cosines.colors_back(&self.turn(c, true)?)
    }

    /// The samples that coordinates stand for once the local factor has multiplied what is fine; [`Self::back`] where there is none.
    pub fn spread(&self, c: &Tensor) -> Result<Tensor> {
        let Some(local) = &self.local else { return self.back(c) };
        let c = self.turn(c, true)?;
        let whole = self.cosines.waves_back(&c)?;
        if self.coarse.contains(&0) {
            return self.cosines.colors_back(&scale_each(&whole, &local.factor)?);
        }
        // a times all of it, and what that is too much of what is coarse.
        let coarse = self.cosines.waves_back(&self.coarse_of(&c)?)?;
        let fine = scale_each(&combine(&[(&[1.0], &whole), (&[-1.0], &coarse)])?, &local.factor)?;
        self.cosines.colors_back(&combine(&[(&[1.0], &coarse), (&[1.0], &fine)])?)
    }

    /// The transpose of [`Self::spread`].
    pub fn gather(&self, x: &Tensor) -> Result<Tensor> {
        let Some(local) = &self.local else { return self.forward(x) };
        let x = self.cosines.colors(x)?;
        let fine = self.cosines.waves(&scale_each(&x, &local.factor)?)?;
        if self.coarse.contains(&0) {
            return self.turn(&fine, false);
        }
        self.turn(&self.with_coarse(&fine, &self.cosines.first_waves(&x, self.coarse)?)?, false)
    }

    /// L e.
    pub fn root(&self, e: &Tensor) -> Result<Tensor> {
        self.spread(&scale_each(e, &self.variances.sqrt()?)?)
    }

    /// Lᵀ x.
    pub fn root_transposed(&self, x: &Tensor) -> Result<Tensor> {
        scale_each(&self.gather(x)?, &self.variances.sqrt()?)
    }

    /// C v.
    pub fn apply(&self, v: &Tensor) -> Result<Tensor> {
        self.spread(&scale_each(&self.gather(v)?, &self.variances)?)
    }

    /// C⁻¹ v.
    pub fn solve(&self, v: &Tensor) -> Result<Tensor> {
        if self.local.is_some() {
            return Err(Error::missing("the kernel", "an inverse of the covariance", "a local spread"));
        }
        self.back(&scale_each(&self.forward(v)?, &self.variances.recip()?)?)
    }

    /// About L⁻¹ x: exactly without a local factor. With one, what is fine in x is taken to come from what is fine alone.
    pub fn about_root_inverse(&self, x: &Tensor) -> Result<Tensor> {
        let precision = self.variances.sqrt()?.recip()?;
        let Some(local) = self.local.as_ref().filter(|_| !self.coarse.contains(&0)) else {
            return scale_each(&self.forward(x)?, &precision);
        };
        let x = self.cosines.colors(x)?;
        let coarse = self.cosines.first_waves(&x, self.coarse)?;
        let fine =
            combine(&[(&[1.0], &x), (&[-1.0], &self.cosines.waves_back(&self.only_coarse(&coarse)?)?)])?;
        let fine = self.cosines.waves(&scale_each(&fine, &local.factor.recip()?)?)?;
        scale_each(&self.turn(&self.with_coarse(&fine, &coarse)?, false)?, &precision)
    }

    /// The transpose of [`Self::about_root_inverse`].
    pub fn about_root_inverse_transposed(&self, c: &Tensor) -> Result<Tensor> {
        let c = scale_each(c, &self.variances.sqrt()?.recip()?)?;
        let Some(local) = self.local.as_ref().filter(|_| !self.coarse.contains(&0)) else {
            return self.back(&c);
        };
        let c = self.turn(&c, true)?;
        let coarse = self.coarse_of(&c)?;
        let fine = self.with_coarse(&c, &coarse.zeros_like()?)?;
        let fine = scale_each(&self.cosines.waves_back(&fine)?, &local.factor.recip()?)?;
        let leaked = self.only_coarse(&self.cosines.first_waves(&fine, self.coarse)?)?;
        let coarse = self.cosines.waves_back(&combine(&[(&[1.0], &coarse), (&[-1.0], &leaked)])?)?;
        self.cosines.colors_back(&combine(&[(&[1.0], &fine), (&[1.0], &coarse)])?)
    }

    /// Numbers of every coefficient as those of every coordinate: means over channels with the squares of the axes as weights.
    pub fn along_axes(&self, values: &Tensor) -> Result<Tensor> {
        let Some(axes) = &self.axes else { return Ok(values.clone()) };
        with_real!(values.dtype(), T => axes.weighted::<T>(values, false, |u| u * u))
    }

    /// A number of the squares of the local factor along every colour axis, as a factor of every coordinate, `[rows, shape…]` in f64;
    /// none where there is no factor. Their mean is what it does to a variance, and their largest bounds what it does to a curvature.
    pub fn local_gain(&self, of_squares: fn(&[f64]) -> f64) -> Result<Option<Tensor>> {
        let Some(local) = &self.local else { return Ok(None) };
        let (shape, plane) = (self.cosines.shape(), self.fine.len());
        let squares = local.factor.to_dtype(DType::F64)?.sqr()?;
        let gain = map_rows::<f64>("local factor", &squares, shape, shape, |_, squares, out| {
            for (squares, out) in squares.chunks(plane).zip(out.chunks_mut(plane)) {
                let gain = of_squares(squares);
                out.iter_mut().zip(&*self.fine).for_each(|(out, fine)| *out = if *fine { gain } else { 1.0 });
            }
        })?;
        Ok(Some(self.along_axes(&gain)?))
    }

    fn turn(&self, c: &Tensor, back: bool) -> Result<Tensor> {
        match &self.axes {
            None => Ok(c.clone()),
            Some(axes) => with_real!(c.dtype(), T => axes.turn::<T>(c, back)),
        }
    }

    /// The block of the coefficients that the local factor leaves alone, with zeros for others in it.
    fn coarse_of(&self, c: &Tensor) -> Result<Tensor> {
        let (shape, block) = self.planes();
        with_real!(c.dtype(), T => map_rows::<T>("coefficients", c, &shape, &block, |_, c, out| {
            self.each_coarse(|at, k| out[k] = c[at]);
        }))
    }

    /// A block without what the local factor multiplies.
    fn only_coarse(&self, block: &Tensor) -> Result<Tensor> {
        let (_, shape) = self.planes();
        with_real!(block.dtype(), T => map_rows::<T>("coefficients", block, &shape, &shape, |_, c, out| {
            self.each_coarse(|_, k| out[k] = c[k]);
        }))
    }

    /// Coefficients with those that the local factor leaves alone taken from a block.
    fn with_coarse(&self, c: &Tensor, coarse: &Tensor) -> Result<Tensor> {
        let (shape, block) = self.planes();
        with_real!(c.dtype(), T => {
            zip_rows::<T>("coefficients", (c, &shape), (coarse, &block), &shape, |_, c, coarse, out| {
                out.copy_from_slice(c);
                self.each_coarse(|at, k| out[at] = coarse[k]);
            })
        })
    }

    /// The shapes of a row and of its block.
    fn planes(&self) -> ([usize; 3], [usize; 3]) {
        let shape = self.cosines.shape();
        ([shape[0], shape[1], shape[2]], [shape[0], self.coarse[0], self.coarse[1]])
    }

    /// Where the coefficients that the local factor leaves alone stand in a row and in its block.
    fn each_coarse(&self, mut f: impl FnMut(usize, usize)) {
        let ([channels, height, width], [_, down, across]) = self.planes();
        for k in 0..channels * down * across {
            let (channel, at) = (k / (down * across), k / across % down * width + k % across);
            if !self.fine[at] {
                f(channel * height * width + at, k);
            }
        }
    }

    /// The full matrix of a row, for oracles and small problems.
    pub(crate) fn dense(&self, row: usize) -> Result<Full> {
        let d = self.variances.elem_count();
        let mut alone = self.clone();
        if let Some(local) = &mut alone.local {
            let row = if local.factor.dims()[0] == 1 { 0 } else { row };
            local.factor = local.factor.narrow(0, row, 1)?;
        }
        let unit = Tensor::eye(d, DType::F64, self.variances.device())?;
        let columns = to_f64(&alone.apply(&unit.reshape(batched(d, self.cosines.shape()))?)?)?;
        Full::new(Mat::from_fn(d, d, |i, j| columns[j * d + i]))
    }
}
