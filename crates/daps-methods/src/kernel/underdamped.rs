//! Langevin dynamics with momentum for smooth targets, in coordinates where no direction is stiff.
//!
//! In the coordinates u that make the prior's covariance diagonal (frequencies, where the estimate has its covariance there), a
//! mode has the mass m = 1/v + L, its prior precision and the largest curvature L of the likelihood: none then moves faster
//! than at frequency 1, and a mode that the data do not see moves at 1/√(1 + v L). The friction is critical for that one, or
//! larger where the steps would end before the modes that the data see have come to rest. There are as many steps as the
//! slowest mode needs to come to rest, up to N; where N is less, the friction leaves fast and slow modes equally far away.
//!
//! A step is BAOAB (Leimkuhler and Matthews 2013): half a kick, half a drift, the friction and its noise, half a drift, half
//! a kick, of which the last is taken together with the next step's first. On a Gaussian target its positions have the exact
//! law at any stable step, so nothing is rejected. The chain starts at a draw of p(x0 | x_t), which is right already where
//! the data say nothing.
//!
//! L is found at the start. Elsewhere a likelihood may be steeper, for example that of counts in the dark. The change of its gradient
//! over a step tells: where it is too large for a stable step, the row goes on with the larger L that it shows.

use daps_core::candle::Tensor;
use daps_core::tensors::{Real, batched, combine, from_f64, pick, to_f64};
use daps_core::{
    Address, Approx, ChainInfo, Conditional, Cost, Covariance, Error, Frequency, Kernel, Need, Noise,
    Purpose, Result, Step, with_real,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Registered, diverged_rows, smooth};
use crate::checks::check_some;

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

/// What may be left of the start's distance at the end, in deviations of the conditional, where N allows it.
const LEFT: f64 = 0.01;

/// The decay times that this takes: a start drawn from p(x0 | x_t) is √(1 + v L) deviations away where the data decide.
fn decays(slowness: f64) -> f64 {
    (slowness / LEFT).ln()
}

/// The decay times D of the fastest mode at which no mode is left farther away than others after a time too short for all.
///
/// With the friction 2D/T the fastest mode keeps e^-D of its distance S. One of frequency ω starts at ω S and keeps
/// e^(-ω² T²/2D) of it, at worst √D/(√e T) of S. Both are equal where D = ln(√e T/√D).
fn balance(time: f64) -> f64 {
    (0..8).fold(4.0, |d: f64, _| (0.5 + (time / d.sqrt()).ln()).max(1.0))
}

/// A mass is meant to be as large as the curvature. Where that is so many times larger, L is raised.
const STEEP: f64 = 1.25;

/// By how much a raised L exceeds what was seen.
const MARGIN: f64 = 1.2;

/// The coordinates u of x = mean + S u in which a covariance is diagonal, and its variances there, `[1 or rows, shape…]`.
struct Modes<'a> {
    frequency: Option<&'a Frequency>,
    variances: Tensor,
    /// By how much S enlarges a coordinate at most, squared, where it does.
    gain: Option<Tensor>,
}

impl<'a> Modes<'a> {
    fn of(approx: &'a Approx) -> Result<(Self, &'a Tensor)> {
        let lacks = |what| Error::missing("underdamped", "a Gaussian estimate with a diagonal spread", what);
        let Approx::Gaussian { mean, covariance, .. } = approx else { return Err(lacks(approx.name())) };
        let modes = match covariance {
            Covariance::Scalar(c) => {
                let dims: Vec<usize> =
                    std::iter::once(c.len()).chain(mean.dims()[1..].iter().map(|_| 1)).collect();
                Self { frequency: None, variances: from_f64(c.clone(), &dims, mean.dtype())?, gain: None }
            }
            Covariance::Diagonal(c) => {
                Self { frequency: None, variances: c.to_dtype(mean.dtype())?, gain: None }
            }
            Covariance::Frequency(c) => Self {
                frequency: Some(c),
                variances: c.variances().to_dtype(mean.dtype())?,
                gain: c.local_gain(|squares| squares.iter().copied().fold(0.0, f64::max))?,
            },
            Covariance::Dense(_) => return Err(lacks("a full covariance")),
        };
        Ok((modes, mean))
    }

    /// S u.
    fn spread(&self, u: &Tensor) -> Result<Tensor> {
        self.frequency.map_or_else(|| Ok(u.clone()), |c| c.spread(u))
    }

    /// Sᵀ x.
    fn gather(&self, x: &Tensor) -> Result<Tensor> {
        self.frequency.map_or_else(|| Ok(x.clone()), |c| c.gather(x))
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
    /// Steps of every row, or of all: a row takes no more of them for the sake of its neighbours.
    steps: Vec<usize>,
}

impl<T: Real> Rates<T> {
    fn new(settings: &Underdamped, modes: &Modes, curvature: Vec<f64>, shape: &[usize]) -> Result<Self> {
        let (h, n) = (settings.time_step, shape.iter().product::<usize>());
        let rows = curvature.len().max(modes.variances.dims()[0]);
        let rows = modes.gain.as_ref().map_or(rows, |gain| rows.max(gain.dims()[0]));
        let variance = to_f64(&modes.variances.broadcast_as(batched(rows, shape))?)?;
        let gain = match &modes.gain {
            Some(gain) => to_f64(&gain.broadcast_as(batched(rows, shape))?)?,
            None => vec![1.0],
        };
        let steepest = |k: usize| pick(&curvature, k / n) * pick(&gain, k);
        let mass: Vec<f64> = variance.iter().enumerate().map(|(k, v)| 1.0 / v + steepest(k)).collect();
        let slowness: Vec<f64> = mass.iter().zip(&variance).map(|(m, v)| (m * v).sqrt()).collect();
        let slowest: Vec<f64> =
            slowness.chunks(n).map(|row| row.iter().copied().fold(0.0, f64::max)).collect();
        let needed =
            |slowest: &f64| (decays(*slowest) * slowest / h).ceil().min(settings.steps as f64) as usize;
        let steps: Vec<usize> = slowest.iter().map(needed).collect();
        let keep = |(k, slowness): (usize, &f64)| {
            let time = pick(&steps, k / n) as f64 * h;
            let least = 2.0 * decays(pick(&slowest, k / n)).min(balance(time)) / time;
            (-h * (2.0 / slowness).max(least)).exp()
        };
        let keep: Vec<f64> = slowness.iter().enumerate().map(keep).collect();
        let typed = |values: &mut dyn Iterator<Item = f64>| values.map(T::of).collect::<Vec<T>>();
        Ok(Self {
            drift: typed(&mut mass.iter().map(|m| h / (2.0 * m.sqrt()))),
            kick: typed(&mut mass.iter().map(|m| h / m.sqrt())),
            precision: typed(&mut variance.iter().map(|v| 1.0 / v)),
            refresh: typed(&mut keep.iter().map(|k| (1.0 - k * k).sqrt())),
            keep: typed(&mut keep.into_iter()),
            steps,
        })
    }

    /// Until all rows are done.
    fn most_steps(&self) -> usize {
        self.steps.iter().copied().max().unwrap_or(0)
    }

    /// Step j from u and v, given the likelihood's gradient at u: a kick (half of one at the start), half a drift, friction and
    /// noise, half a drift. Rows whose steps are over stay.
    fn step(&self, u: &Tensor, v: &mut [T], data: &Tensor, noise: &Tensor, j: usize) -> Result<Tensor> {
        let (n, share) = (v.len() / u.dims()[0].max(1), T::of(if j == 0 { 0.5 } else { 1.0 }));
        let values = [u, data, noise].map(|t| t.flatten_all().and_then(|t| t.to_vec1::<T>()));
        let [old, data, noise] = values;
        let (mut out, data, noise) = (old?, data?, noise?);
        out.par_chunks_mut(n).zip(v.par_chunks_mut(n)).enumerate().for_each(|(row, (u, v))| {
            if j >= pick(&self.steps, row) {
                return;
            }
            let (at, row) = (row * n % self.kick.len(), row * n);
            let (drift, kick, precision) = (&self.drift[at..], &self.kick[at..], &self.precision[at..]);
            let (keep, refresh) = (&self.keep[at..], &self.refresh[at..]);
            let (data, noise) = (&data[row..], &noise[row..]);
            for k in 0..n {
                let force = data[k] - u[k] * precision[k];
                let before = v[k] + share * kick[k] * force;
                v[k] = keep[k] * before + refresh[k] * noise[k];
                u[k] += drift[k] * (before + v[k]);
            }
        });
        Ok(Tensor::from_vec(out, u.dims(), u.device())?)
    }
}

/// The curvature of the likelihood between two points, for every row where it is too large for the step: that of the gradient's change
/// along the way.
fn steep_rows<T: Real>(
    rates: &Rates<T>,
    time_step: f64,
    (u, data): (&Tensor, &Tensor),
    (last_u, last_data): (&Tensor, &Tensor),
) -> Result<Vec<Option<f64>>> {
    let rows = u.dims()[0].max(1);
    let values = [u, data, last_u, last_data].map(|t| t.flatten_all().and_then(|t| t.to_vec1::<T>()));
    let [u, data, last_u, last_data] = values;
    let (u, data, last_u, last_data) = (u?, data?, last_u?, last_data?);
    let n = u.len() / rows;
    let one = |row: usize| {
        let (at, row) = (row * n % rates.kick.len(), row * n);
        let (mut way, mut heavy_way, mut turn) = (0.0, 0.0, 0.0);
        for k in 0..n {
            let moved = (u[row + k] - last_u[row + k]).wide();
            let turned = (data[row + k] - last_data[row + k]).wide();
            let light = (rates.kick[at + k].wide() / time_step).powi(2);
            way += moved * moved;
            heavy_way += moved * moved / light;
            turn += turned * turned * light;
        }
        let share = (turn / heavy_way).sqrt();
        let is_steep = way > 0.0 && share > STEEP;
        is_steep.then(|| share * heavy_way / way)
    };
    Ok((0..rows).into_par_iter().map(one).collect())
}

impl Underdamped {
    fn run<T: Real>(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let likelihood = smooth("underdamped", target.likelihood)?;
        let (modes, mean) = Modes::of(target.approx)?;
        let (shape, dtype) = (&mean.dims()[1..], mean.dtype());
        let sample = |u: &Tensor| combine(&[(&[1.0], mean), (&[1.0], &modes.spread(u)?)]);
        let draw = |purpose, index| noise.normal(Address::new(step.index, purpose, index), shape, dtype);
        let e = draw(Purpose::Start, 0)?;
        let mut u = e.broadcast_mul(&modes.variances.sqrt()?)?;
        let mut curvature = likelihood.curvature_at(&sample(&u)?)?;
        let mut rates = Rates::<T>::new(self, &modes, curvature.clone(), shape)?;
        let mut v: Vec<T> = draw(Purpose::Velocity, 0)?.flatten_all()?.to_vec1()?;
        let mut last: Option<(Tensor, Tensor)> = None;
        let mut j = 0;
        while j < rates.most_steps() {
            let data = modes.gather(&likelihood.gradient(&sample(&u)?)?)?;
            if let Some((last_u, last_data)) = &last {
                let steep = steep_rows(&rates, self.time_step, (&u, &data), (last_u, last_data))?;
                if steep.iter().any(Option::is_some) {
                    let raised = |(row, steep): (usize, &Option<f64>)| {
                        let before = pick(&curvature, row);
                        steep.map_or(before, |seen| before.max(MARGIN * seen))
                    };
                    curvature = steep.iter().enumerate().map(raised).collect();
                    rates = Rates::new(self, &modes, curvature.clone(), shape)?;
                }
            }
            let next = rates.step(&u, &mut v, &data, &draw(Purpose::Kernel, j)?, j)?;
            last = Some((std::mem::replace(&mut u, next), data));
            j += 1;
        }
        let steps = j;
        let x = sample(&u)?;
        let cost = Cost { nfe: 0, operator_calls: 2 * steps };
        let info = ChainInfo { diverged: diverged_rows(&x)?, cost, ..ChainInfo::default() };
        Ok((x, info))
    }
}

impl Registered for Underdamped {
    const NEEDS: &'static [Need] = &[Need::SmoothLikelihood];

    fn check(&self) -> Result<()> {
        check_some("underdamped.steps", self.steps)?;
        if !(self.time_step > 0.0 && self.time_step < 2.0) {
            return Err(Error::invalid("underdamped.time_step", "a number between 0 and 2", self.time_step));
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn friction_balances_fast_and_slow_modes() {
        for time in [20.0, 96.0, 400.0] {
            let d = balance(time);
            // The slow mode that is left farthest, found by trying all of them.
            let left = |i: i32| {
                let w = f64::from(i) * 1e-3;
                w * (-w * w * time * time / (2.0 * d)).exp()
            };
            let worst = (1..1000).map(left).fold(0.0, f64::max);
            assert!((worst / (-d).exp() - 1.0).abs() < 1e-3, "{time}: {worst} and {}", (-d).exp());
        }
    }
}
