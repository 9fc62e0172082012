//! Langevin dynamics with momentum for smooth targets, in coordinates where no direction is stiff.
//!
//! In the coordinates u that make the prior's covariance diagonal (frequencies, where the estimate has its variances there), a
//! mode has the mass m = 1/v + L, its prior precision and the bound L of the likelihood's curvature: none then moves faster
//! than at frequency 1, and a mode that the data do not see moves at 1/√(1 + v L). The friction is critical for that one, or
//! larger where the steps would end before the modes that the data see have come to rest. There are as many steps as the
//! slowest mode needs to come to rest, up to N.
//!
//! A step is BAOAB (Leimkuhler and Matthews 2013): half a kick, half a drift, the friction and its noise, half a drift, half
//! a kick, of which the last is taken together with the next step's first. On a Gaussian target its positions have the exact
//! law at any stable step, so nothing is rejected. The chain starts at a draw of p(x0 | x_t), which is right already where
//! the data say nothing.

use daps_core::candle::{DType, Tensor};
use daps_core::real::{BLOCK, Real, batched, combine, from_f64, to_f64};
use daps_core::{
    Address, Approx, ChainInfo, Conditional, Cosines, Cost, Covariance, Error, Kernel, Noise, Purpose,
    Result, Step, with_real,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{check_steps, diverged_rows, smooth};

/// N steps of Langevin dynamics with momentum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Underdamped {
    /// N, steps at most.
    pub steps: usize,
    /// The step in time, where the fastest mode has the frequency 1; below 2.
    pub time_step: f64,
}

impl Default for Underdamped {
    fn default() -> Self {
        Self { steps: 60, time_step: 1.6 }
    }
}

/// Decay times of the slowest mode that a chain lasts, where N allows it.
const DECAYS: f64 = 5.0;

impl Underdamped {
    pub(super) fn checked(&self) -> Result<Self> {
        check_steps("underdamped", self.steps)?;
        if !(self.time_step > 0.0 && self.time_step < 2.0) {
            return Err(Error::invalid("underdamped.time_step", "a number between 0 and 2", self.time_step));
        }
        Ok(self.clone())
    }
}

impl Underdamped {
    /// Steps in which the slowest mode comes to rest, from the squares of the modes' slowness. Where rows differ, all take N:
    /// none may depend on its neighbours.
    fn steps_for(&self, slowness: &Tensor) -> Result<usize> {
        if slowness.dims()[0] != 1 {
            return Ok(self.steps);
        }
        let slowest = slowness.flatten_all()?.max(0)?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
        Ok((DECAYS * slowest.sqrt() / self.time_step).ceil().min(self.steps as f64) as usize)
    }
}

/// The coordinates in which a covariance is diagonal, and its variances there, `[1 or rows, shape…]`.
struct Modes<'a> {
    cosines: Option<&'a Cosines>,
    variances: Tensor,
}

impl<'a> Modes<'a> {
    fn of(approx: &'a Approx) -> Result<(Self, &'a Tensor, &'a Covariance)> {
        let lacks = |what| Error::missing("underdamped", "a Gaussian estimate with a diagonal spread", what);
        let Approx::Gaussian { mean, covariance, .. } = approx else { return Err(lacks(approx.name())) };
        let modes = match covariance {
            Covariance::Scalar(c) => {
                let dims: Vec<usize> =
                    std::iter::once(c.len()).chain(mean.dims()[1..].iter().map(|_| 1)).collect();
                Self { cosines: None, variances: from_f64(c.clone(), &dims, mean.dtype())? }
            }
            Covariance::Diagonal(c) => Self { cosines: None, variances: c.to_dtype(mean.dtype())? },
            Covariance::Frequency(c) => {
                Self { cosines: Some(c.cosines()), variances: c.variances().to_dtype(mean.dtype())? }
            }
            Covariance::Dense(_) => return Err(lacks("a full covariance")),
        };
        Ok((modes, mean, covariance))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.cosines.map_or_else(|| Ok(x.clone()), |c| c.forward(x))
    }

    fn back(&self, u: &Tensor) -> Result<Tensor> {
        self.cosines.map_or_else(|| Ok(u.clone()), |c| c.back(u))
    }
}

/// The numbers of a step for every mode, `[1 or rows, shape…]` each.
struct Rates<T> {
    /// h/(2√m): half a drift.
    drift: Vec<T>,
    /// h/√m: a kick.
    kick: Vec<T>,
    /// 1/v, the prior's precision.
    precision: Vec<T>,
    /// What the friction leaves of a velocity.
    keep: Vec<T>,
    /// The deviation of the noise that comes with it.
    refresh: Vec<T>,
}

impl<T: Real> Rates<T> {
    fn new(modes: &Modes, mass: &Tensor, shape: &[usize], h: f64, steps: usize) -> Result<Self> {
        let rows = mass.dims()[0];
        let whole = |of: &Tensor| -> Result<Vec<f64>> { to_f64(&of.broadcast_as(batched(rows, shape))?) };
        let (mass, variance) = (whole(mass)?, whole(&modes.variances)?);
        let least = 2.0 * DECAYS / (steps as f64 * h);
        let keep = |m: &f64, v: &f64| (-h * (2.0 / (m * v).sqrt()).max(least)).exp();
        let keep: Vec<f64> = mass.iter().zip(&variance).map(|(m, v)| keep(m, v)).collect();
        let typed = |values: &mut dyn Iterator<Item = f64>| values.map(T::of).collect::<Vec<T>>();
        Ok(Self {
            drift: typed(&mut mass.iter().map(|m| h / (2.0 * m.sqrt()))),
            kick: typed(&mut mass.iter().map(|m| h / m.sqrt())),
            precision: typed(&mut variance.iter().map(|v| 1.0 / v)),
            refresh: typed(&mut keep.iter().map(|k| (1.0 - k * k).sqrt())),
            keep: typed(&mut keep.into_iter()),
        })
    }

    /// One step from u and v, given the likelihood's gradient at u: a kick (half of one at the start), half a drift, friction
    /// and noise, half a drift.
    fn step(
        &self,
        u: &Tensor,
        v: &mut [T],
        center: &Tensor,
        data: &Tensor,
        noise: &Tensor,
        first: bool,
    ) -> Result<Tensor> {
        let n = self.kick.len();
        let share = T::of(if first { 0.5 } else { 1.0 });
        let mut out = vec![T::default(); v.len()];
        let all = [u, center, data, noise].map(|t| t.flatten_all().and_then(|t| t.to_vec1::<T>()));
        let [u_old, center, data, noise] = all;
        let (u_old, center, data, noise) = (u_old?, center?, data?, noise?);
        out.par_chunks_mut(BLOCK).zip(v.par_chunks_mut(BLOCK)).enumerate().for_each(|(block, (out, v))| {
            for (k, (out, v)) in (block * BLOCK..).zip(out.iter_mut().zip(v)) {
                let (at, u) = (k % n, u_old[k]);
                let force = data[k] + (center[k] - u) * self.precision[at];
                let before = *v + share * self.kick[at] * force;
                *v = self.keep[at] * before + self.refresh[at] * noise[k];
                *out = u + self.drift[at] * (before + *v);
            }
        });
        Ok(Tensor::from_vec(out, u.dims(), u.device())?)
    }
}

impl Underdamped {
    fn run<T: Real>(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let likelihood = smooth("underdamped", target.likelihood)?;
        let (modes, mean, covariance) = Modes::of(target.approx)?;
        let (shape, dtype, h) = (&mean.dims()[1..], mean.dtype(), self.time_step);
        let curvature = likelihood.curvature();
        let dims: Vec<usize> = std::iter::once(curvature.len()).chain(shape.iter().map(|_| 1)).collect();
        let mass = modes.variances.recip()?.broadcast_add(&from_f64(curvature, &dims, dtype)?)?;
        let steps = self.steps_for(&mass.broadcast_mul(&modes.variances)?)?;
        let rates = Rates::<T>::new(&modes, &mass, shape, h, steps)?;

        let center = modes.forward(mean)?;
        let draw = |purpose, index| noise.normal(Address::new(step.index, purpose, index), shape, dtype);
        let spread =
            covariance.sample(noise, Address::new(step.index, Purpose::Estimate, 0), shape, dtype)?;
        let mut u = combine(&[(&[1.0], &center), (&[1.0], &modes.forward(&spread)?)])?;
        let mut v: Vec<T> = draw(Purpose::Velocity, 0)?.flatten_all()?.to_vec1()?;
        for j in 0..steps {
            let data = modes.forward(&likelihood.gradient(&modes.back(&u)?)?)?;
            u = rates.step(&u, &mut v, &center, &data, &draw(Purpose::Kernel, j)?, j == 0)?;
        }
        let x = modes.back(&u)?;
        let cost = Cost { nfe: 0, operator_calls: 2 * steps };
        let info = ChainInfo { diverged: diverged_rows(&x)?, cost, ..ChainInfo::default() };
        Ok((x, info))
    }
}

impl Kernel for Underdamped {
    fn name(&self) -> &'static str {
        "underdamped"
    }

    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let dtype = target.approx.start()?.dtype();
        with_real!(dtype, T => self.run::<T>(target, noise, step))
    }
}
