//! Counts: y ~ Poisson(λ), λ = gain · (A(x) + 1)/2 + background. The one home of this formula.
//!
//! Samples leave [-1, 1], so a rate may fall to 0 and below. Below the floor f, one hundredth of the gain (or the background,
//! where that is larger), the rate is continued by f · exp((λ - f)/f): value and slope agree at the floor, the log-rate is a
//! straight line below it, and every x has a finite likelihood.

use std::sync::Arc;

use candle_core::Tensor;
use rand_distr::{Distribution, Poisson as Counts};

use crate::curvature::{self, Weigh};
use crate::tensors::{
    Real, batched, check_finite, check_rows, from_f64, scale_each, sum_rows, to_f64, zip_rows,
};
use crate::{
    Address, Differentiable, Discrepancy, Error, Likelihood, Noise, Operator, Result, Smooth, Statistic,
    with_real,
};

/// The floor of the rate as a share of the gain.
const FLOOR: f64 = 0.01;

/// What a count is expected to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CountRate {
    /// Counts at A(x) = 1, without the background: the peak.
    pub gain: f64,
    /// Counts without light.
    pub background: f64,
}

impl CountRate {
    /// Refuses rates that no counts can have.
    pub fn check(&self) -> Result<()> {
        if !(self.gain.is_finite() && self.gain > 0.0) {
            return Err(Error::invalid("noise: peak", "a positive finite number", self.gain));
        }
        if !(self.background.is_finite() && self.background >= 0.0) {
            return Err(Error::invalid("noise: background", "a finite number from 0", self.background));
        }
        Ok(())
    }

    fn floor(&self) -> f64 {
        (FLOOR * self.gain).max(self.background)
    }

    /// λ at a = A(x), and dλ/da.
    #[must_use]
    pub fn at(&self, a: f64) -> (f64, f64) {
        let (half, floor) = (0.5 * self.gain, self.floor());
        let rate = half * (a + 1.0) + self.background;
        if rate >= floor {
            (rate, half)
        } else {
            let below = floor * ((rate - floor) / floor).exp();
            (below, half * below / floor)
        }
    }

    /// ln λ at a = A(x), and d ln λ/da: finite where λ itself is too small for a number.
    #[must_use]
    pub fn log_at(&self, a: f64) -> (f64, f64) {
        let (half, floor) = (0.5 * self.gain, self.floor());
        let rate = half * (a + 1.0) + self.background;
        if rate >= floor {
            (rate.ln(), half / rate)
        } else {
            (floor.ln() + (rate - floor) / floor, half / floor)
        }
    }

    /// Counts drawn for A(x); each row has a stream of its own.
    pub fn draw(&self, seen: &Tensor, noise: &Noise, at: Address) -> Result<Tensor> {
        self.check()?;
        let values = to_f64(seen)?;
        let rows = seen.dims()[0];
        if noise.len() != rows {
            return Err(Error::invalid("noise of the counts", format!("{rows} rows"), noise.len()));
        }
        let mut out = Vec::with_capacity(values.len());
        for (row, values) in values.chunks((values.len() / rows.max(1)).max(1)).enumerate() {
            let mut rng = noise.stream(row, at);
            for a in values {
                let rate = self.at(*a).0;
                let counts = Counts::new(rate)
                    .map_err(|e| Error::invalid("rate of a count", "a number that counts can have", e))?;
                out.push(counts.sample(&mut rng));
            }
        }
        from_f64(out, seen.dims(), seen.dtype())
    }
}

/// log p(y | x) of counts.
#[derive(Clone)]
pub struct Poisson {
    operator: Arc<dyn Operator>,
    /// Counts, `[rows, output shape…]`; [`UNSEEN`] where the operator shows nothing of x.
    y: Tensor,
    rate: CountRate,
}

/// Stands where nothing was measured.
const UNSEEN: f64 = -1.0;

impl Poisson {
    /// Checks that operator, counts and rate fit together.
    pub fn new(operator: Arc<dyn Operator>, counts: &Tensor, gain: f64, background: f64) -> Result<Self> {
        let rate = CountRate { gain, background };
        rate.check()?;
        let rows = check_rows("measurement", counts, operator.output_shape())?;
        check_finite("measurement", counts)?;
        if let Some(n) = operator.rows().filter(|n| *n != rows) {
            return Err(Error::shape("measurement", &batched(n, operator.output_shape()), counts.dims()));
        }
        let visible = operator.visible();
        let m = counts.elem_count() / rows.max(1);
        let seen = |k: usize| visible.as_ref().is_none_or(|v| v[if v.len() == 1 { 0 } else { k / m }][k % m]);
        let mut values = to_f64(counts)?;
        for (k, v) in values.iter_mut().enumerate() {
            if !seen(k) {
                *v = UNSEEN;
            } else if *v < 0.0 {
                return Err(Error::invalid("measurement", "counts from 0", *v));
            }
        }
        Ok(Self { operator, y: from_f64(values, counts.dims(), counts.dtype())?, rate })
    }

    /// The operator A.
    #[must_use]
    pub fn operator(&self) -> &Arc<dyn Operator> {
        &self.operator
    }

    /// The rate of its counts.
    #[must_use]
    pub fn rate(&self) -> CountRate {
        self.rate
    }

    /// Σ over what was measured of `f(A(x), y)`, for every row and, within a row, each of `factors` slices.
    fn sum(
        &self,
        seen: &Tensor,
        factors: usize,
        f: impl Fn(f64, f64) -> f64 + Send + Sync,
    ) -> Result<Vec<f64>> {
        let sliced =
            |t: &Tensor| t.reshape((t.dims()[0] * factors, t.elem_count() / (t.dims()[0] * factors)));
        let (a, y) = (sliced(seen)?, sliced(&self.y.to_dtype(seen.dtype())?)?);
        with_real!(a.dtype(), T => {
            sum_rows::<T>(&a, &y, |a, y| if y.wide() == UNSEEN { 0.0 } else { f(a.wide(), y.wide()) })
        })
    }

    /// `f(A(x), y)` at every measured count, 0 elsewhere.
    fn each(&self, seen: &Tensor, f: impl Fn(f64, f64) -> f64 + Send + Sync) -> Result<Tensor> {
        let shape = self.operator.output_shape();
        with_real!(seen.dtype(), T => {
            zip_rows::<T>("counts", (seen, shape), (&self.y, shape), shape, |_, a, y, out| {
                for ((out, a), y) in out.iter_mut().zip(a).zip(y) {
                    let y = y.wide();
                    *out = T::of(if y == UNSEEN { 0.0 } else { f(a.wide(), y) });
                }
            })
        })
    }

    /// log p(y | x) less that of the rate that fits every count: 0 at best. Per row and factor.
    fn log_prob_of(&self, seen: &Tensor, factors: usize) -> Result<Vec<f64>> {
        self.sum(seen, factors, |a, y| {
            let log = if y > 0.0 { y * (self.rate.log_at(a).0 - y.ln()) } else { 0.0 };
            log - self.rate.at(a).0 + y
        })
    }

    /// d log p/dA(x).
    fn slope(&self, seen: &Tensor) -> Result<Tensor> {
        self.each(seen, |a, y| y * self.rate.log_at(a).1 - self.rate.at(a).1)
    }

    fn differentiable(&self) -> Result<&dyn Differentiable> {
        self.operator.as_differentiable().ok_or_else(|| {
            Error::missing("a gradient of the likelihood", "a differentiable operator", self.operator.name())
        })
    }
}

impl Likelihood for Poisson {
    fn name(&self) -> &str {
        self.operator.name()
    }

    fn input_shape(&self) -> &[usize] {
        self.operator.input_shape()
    }

    fn rows(&self) -> usize {
        self.y.dims()[0]
    }

    fn log_prob(&self, x: &Tensor) -> Result<Vec<f64>> {
        self.log_prob_of(&self.operator.apply(x)?, 1)
    }

    fn select(&self, rows: &[usize]) -> Result<Arc<dyn Likelihood>> {
        let index: Vec<u32> = rows.iter().map(|&r| r as u32).collect();
        let index = Tensor::new(index, &candle_core::Device::Cpu)?;
        Ok(Arc::new(Self {
            operator: Arc::clone(&self.operator).select(rows)?,
            y: self.y.index_select(&index, 0)?,
            rate: self.rate,
        }))
    }

    fn factors(&self) -> usize {
        self.operator.factors()
    }

    fn measured_by(&self) -> Option<&Arc<dyn Operator>> {
        Some(&self.operator)
    }

    fn measurement(&self) -> Result<Option<Tensor>> {
        Ok(Some(self.y.maximum(0.0)?))
    }

    fn statistic(&self) -> Statistic {
        Statistic::Pearson
    }

    /// The variance of a term (y - λ)²/λ under the model is 2 + 1/λ.
    fn discrepancy(&self, x: &Tensor) -> Result<Vec<Discrepancy>> {
        let seen = self.operator.apply(x)?;
        let sum = |f: &(dyn Fn(f64, f64) -> f64 + Send + Sync)| self.sum(&seen, 1, f);
        let count = sum(&|_, _| 1.0)?;
        let pearson = sum(&|a, y| {
            let rate = self.rate.at(a).0;
            if y > 0.0 { (y - rate).powi(2) / rate } else { rate }
        })?;
        let variance = sum(&|a, _| 2.0 + 1.0 / self.rate.at(a).0)?;
        let square = sum(&|a, y| (y - self.rate.at(a).0).powi(2))?;
        let row = |i: usize| {
            let m = count[i].max(1.0);
            Discrepancy {
                value: pearson[i] / m,
                deviation: variance[i].sqrt() / m,
                error: (square[i] / m).sqrt(),
            }
        };
        Ok((0..count.len()).map(row).collect())
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("poisson, {:?}, {}", self.rate, self.operator.fingerprint()?))
    }

    fn as_smooth(&self) -> Option<&dyn Smooth> {
        self.operator.as_differentiable().is_some().then_some(self)
    }
}

impl Smooth for Poisson {
    fn gradient(&self, x: &Tensor) -> Result<Tensor> {
        self.differentiable()?.vjp_of(x, &mut |seen| self.slope(seen))
    }

    fn value_and_gradient(&self, x: &Tensor) -> Result<(Vec<f64>, Tensor)> {
        let mut value = vec![];
        let gradient = self.differentiable()?.vjp_of(x, &mut |seen| {
            value = self.log_prob_of(seen, self.factors())?;
            self.slope(seen)
        })?;
        Ok((value, gradient))
    }

    /// Fisher's information of a count is λ'²/λ, which is largest at the floor.
    fn curvature(&self) -> Option<Vec<f64>> {
        let bound = match self.operator.as_linear() {
            Some(linear) => linear.norm_squared()?,
            None => self.operator.as_differentiable()?.lipschitz_squared()?,
        };
        let information = (0.5 * self.rate.gain).powi(2) / self.rate.floor();
        Some(bound.iter().map(|b| b * information).collect())
    }

    /// The norm of JᵀWJ at x, W Fisher's information of the counts there.
    fn curvature_at(&self, x: &Tensor) -> Result<Vec<f64>> {
        let seen = self.operator.apply(x)?;
        let information = self.each(&seen, |a, _| self.rate.at(a).1 * self.rate.log_at(a).1)?;
        let weigh: &Weigh = &|change| scale_each(change, &information);
        curvature::gauss_newton(self.differentiable()?, x, &seen, weigh, self.curvature())
    }
}
