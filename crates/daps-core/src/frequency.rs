//! A covariance of images by frequency: at every frequency variances along axes of the channels, and perhaps a factor on what is fine
//! that differs from place to place.
//!
//! C = L Lᵀ. Without a local factor L = Tᵀ U √v, with T the transform of [`Cosines`] and U the axes. With one, the frequencies from
//! some bound on are multiplied by it: L = (S_low + a S_high) U √v, where S_low and S_high take coefficients to pixels and a is one
//! number for every pixel and colour axis.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use faer::Mat;

use crate::linalg::eigen;
use crate::tensors::{Real, batched, check_rows, combine, from_f64, map_rows, scale_each, to_f64};
use crate::{Cosines, Error, Full, Result, with_real};

/// See the module.
#[derive(Clone, Debug)]
pub struct Frequency {
    cosines: Arc<Cosines>,
    /// Along the axes, `[1, shape…]` in f64.
    variances: Tensor,
    axes: Option<Arc<Axes>>,
    local: Option<LocalFactor>,
    /// Which coefficients of a plane the local factor multiplies.
    fine: Arc<Vec<bool>>,
}

/// The axes U of the channels, `[frequency][axis][channel]`: orthonormal at every frequency.
#[derive(Debug)]
struct Axes {
    channels: usize,
    entries: Vec<f64>,
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
    /// Coefficients along the axes from those of channels, or back.
    fn turn<T: Real>(&self, c: &Tensor, back: bool) -> Result<Tensor> {
        let (shape, n) = (&c.dims()[1..], self.channels);
        map_rows::<T>("coefficients", c, shape, shape, |_, c, out| {
            let plane = c.len() / n;
            for k in 0..plane {
                let axes = &self.entries[k * n * n..(k + 1) * n * n];
                for i in 0..n {
                    let entry = |j: usize| if back { axes[j * n + i] } else { axes[i * n + j] };
                    out[i * plane + k] = (0..n).map(|j| T::of(entry(j)) * c[j * plane + k]).sum();
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
        Ok(Self { cosines, variances, axes: None, local: None, fine: Arc::default() })
    }

    /// From a covariance of the channels at every frequency, `[frequency][channel][channel]`, in the coordinates of the cosines.
    pub fn correlated(cosines: Arc<Cosines>, blocks: &[f64]) -> Result<Self> {
        let (n, plane) = (cosines.shape()[0], cosines.shape()[1] * cosines.shape()[2]);
        if blocks.len() != n * n * plane {
            return Err(Error::invalid(
                "covariances by frequency",
                (n * n * plane).to_string(),
                blocks.len(),
            ));
        }
        let (mut entries, mut variances) = (vec![0.0; blocks.len()], vec![0.0; n * plane]);
        for (k, block) in blocks.chunks(n * n).enumerate() {
            let matrix = Mat::from_fn(n, n, |i, j| block[i * n + j]);
            let Some((values, vectors)) = eigen(&matrix) else {
                return Err(Error::invalid("covariance of a frequency", "finite numbers", "others"));
            };
            for axis in 0..n {
                variances[axis * plane + k] = values[axis];
                (0..n).for_each(|i| entries[(k * n + axis) * n + i] = vectors[(i, axis)]);
            }
        }
        let axes = Some(Arc::new(Axes { channels: n, entries }));
        Ok(Self { axes, ..Self::new(cosines, variances)? })
    }

    /// The same with a factor on what is fine.
    pub fn with_local(mut self, local: LocalFactor) -> Result<Self> {
        check_rows("local factor", &local.factor, self.cosines.shape())?;
        self.fine = Arc::new(self.cosines.frequencies().iter().map(|f| *f >= local.from).collect());
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

    /// The samples that coordinates stand for once the local factor has multiplied what is fine; [`Self::back`] where there is none.
    pub fn spread(&self, c: &Tensor) -> Result<Tensor> {
        let Some(local) = &self.local else { return self.back(c) };
        let (low, high) = self.split(&self.turn(c, true)?)?;
        let fine = scale_each(&self.cosines.waves_back(&high)?, &local.factor)?;
        let whole = combine(&[(&[1.0], &self.cosines.waves_back(&low)?), (&[1.0], &fine)])?;
        self.cosines.colors_back(&whole)
    }

    /// The transpose of [`Self::spread`].
    pub fn gather(&self, x: &Tensor) -> Result<Tensor> {
        let Some(local) = &self.local else { return self.forward(x) };
        let x = self.cosines.colors(x)?;
        let low = self.part(&self.cosines.waves(&x)?, false)?;
        let fine = self.cosines.waves(&scale_each(&x, &local.factor)?)?;
        let high = self.part(&fine, true)?;
        self.turn(&combine(&[(&[1.0], &low), (&[1.0], &high)])?, false)
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

    /// Numbers of every coefficient as those of every coordinate: means over channels with the squares of the axes as weights.
    pub fn along_axes(&self, values: &Tensor) -> Result<Tensor> {
        let Some(axes) = &self.axes else { return Ok(values.clone()) };
        let squares = axes.entries.iter().map(|u| u * u).collect();
        let squares = Axes { channels: axes.channels, entries: squares };
        with_real!(values.dtype(), T => squares.turn::<T>(values, false))
    }

    /// The mean square of the local factor along every colour axis, as a factor of every coordinate, `[rows, shape…]` in f64; none
    /// where there is no factor.
    pub fn local_gain(&self) -> Result<Option<Tensor>> {
        let Some(local) = &self.local else { return Ok(None) };
        let (shape, plane) = (self.cosines.shape(), self.fine.len());
        let gain = map_rows::<f64>(
            "local factor",
            &local.factor.to_dtype(DType::F64)?,
            shape,
            shape,
            |_, factor, out| {
                for (factor, out) in factor.chunks(plane).zip(out.chunks_mut(plane)) {
                    let mean = factor.iter().map(|a| a * a).sum::<f64>() / plane as f64;
                    out.iter_mut()
                        .zip(&*self.fine)
                        .for_each(|(out, fine)| *out = if *fine { mean } else { 1.0 });
                }
            },
        )?;
        Ok(Some(self.along_axes(&gain)?))
    }

    fn turn(&self, c: &Tensor, back: bool) -> Result<Tensor> {
        match &self.axes {
            None => Ok(c.clone()),
            Some(axes) => with_real!(c.dtype(), T => axes.turn::<T>(c, back)),
        }
    }

    /// The coefficients that the local factor leaves alone, and those that it multiplies.
    fn split(&self, c: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.part(c, false)?, self.part(c, true)?))
    }

    fn part(&self, c: &Tensor, fine: bool) -> Result<Tensor> {
        let shape = self.cosines.shape();
        with_real!(c.dtype(), T => map_rows::<T>("coefficients", c, shape, shape, |_, c, out| {
            let kept = self.fine.iter().cycle().map(|f| *f == fine);
            for ((out, c), kept) in out.iter_mut().zip(c).zip(kept) {
                *out = if kept { *c } else { T::of(0.0) };
            }
        }))
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
