//! Exact replay: the law of N Langevin steps for a linear operator, drawn at once mode by mode.
//!
//! With h = 1/r² + λ/β² and a = 1 - ηh, N steps from x give m + aᴺ(x - m) + √(2η Σ_{k<N} a²ᵏ) z, where m is the mode's
//! conditional mean. Same law as the loop, no loop: it proves parity with DAPS and removes its operator cost.

use daps_core::candle::Tensor;
use daps_core::tensors::{BLOCK, Real, combine, pick, with_slice};
use daps_core::{
    Address, Approx, ChainInfo, Conditional, Cost, Covariance, Error, Kernel, Need, Noise, Purpose, Result,
    Step, with_real,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Registered, StepSize, diverged_rows};
use crate::checks::check_some;

/// N Langevin steps in closed form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// N.
    pub steps: usize,
    /// η.
    pub step_size: StepSize,
}

impl Default for Replay {
    /// The paper's Langevin setting.
    fn default() -> Self {
        Self { steps: 100, step_size: StepSize::decay(1e-4) }
    }
}

/// By how much a recursion may grow over its steps before it counts as divergent. Official settings put ηh at 2 or a little
/// above: in super-resolution a hundred steps grow by 1e-6, which is rounding, and in Gaussian deblurring, where the borders of
/// a blur raise its largest singular value, the first level doubles some modes, which the following levels take back.
const STABLE: f64 = 10.0;

/// N steps of x ← m + a(x - m) + √(2η) z for one mode of curvature h: x_N = m + `decay` (x_0 - m) + `spread` z.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recursion {
    /// aᴺ.
    pub decay: f64,
    /// √(2η Σ_{k<N} a²ᵏ).
    pub spread: f64,
    /// It grows without end: |a| > 1, and by more than a few steps make good again.
    pub diverges: bool,
}

impl Recursion {
    /// The closed form of `steps` steps of size η at curvature h.
    #[must_use]
    pub fn new(eta: f64, h: f64, steps: usize) -> Self {
        let a = 1.0 - eta * h;
        let square = a * a;
        let gap = 1.0 - square;
        // At |a| = 1 the closed geometric sum is 0/0; near it, it loses all digits: add the terms up.
        let sum = if gap.abs() < 1e-6 {
            (0..steps).map(|k| square.powi(k as i32)).sum()
        } else {
            (1.0 - square.powi(steps as i32)) / gap
        };
        let decay = a.powi(steps as i32);
        Self { decay, spread: (2.0 * eta * sum).sqrt(), diverges: decay.abs() > STABLE }
    }
}

impl Registered for Replay {
    const NEEDS: &'static [Need] = &[Need::SpectralOperator];

    fn check(&self) -> Result<()> {
        check_some("replay.steps", self.steps)?;
        self.step_size.check("replay")?;
        Ok(())
    }
}

impl Kernel for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let Approx::Gaussian { mean, covariance: Covariance::Scalar(variance), start } = target.approx else {
            return Err(Error::missing(
                self.name(),
                "a Gaussian estimate of scalar spread",
                target.approx.name(),
            ));
        };
        let gaussian = target.likelihood.as_gaussian();
        let Some((gaussian, spectral)) = gaussian.and_then(|g| Some((g, g.operator().as_spectral()?))) else {
            return Err(Error::missing(
                self.name(),
                "a singular value decomposition",
                target.likelihood.name(),
            ));
        };
        let Some(beta) = gaussian.beta_rows() else {
            return Err(Error::missing(self.name(), "one noise level per measurement", "this likelihood"));
        };
        let eta = self.step_size.at(step, target.approx, target.likelihood)?;
        let mean_modes = spectral.v_t(mean)?;
        // Where the modes are a whole basis, the noise may as well be drawn along them: one transform less.
        let whole = mean_modes.elem_count() == mean.elem_count();
        let shape = if whole { &mean_modes.dims()[1..] } else { &mean.dims()[1..] };
        let z = noise.normal(Address::new(step.index, Purpose::Kernel, 0), shape, mean.dtype())?;

        // Outside the modes (λ = 0) the fixed point is the mean.
        let null: Vec<Recursion> = (0..mean.dims()[0])
            .map(|i| Recursion::new(pick(&eta, i), 1.0 / pick(variance, i), self.steps))
            .collect();
        let decay: Vec<f64> = null.iter().map(|r| r.decay).collect();
        let rest: Vec<f64> = null.iter().map(|r| 1.0 - r.decay).collect();
        let spread: Vec<f64> = null.iter().map(|r| r.spread).collect();
        // Inside, every mode moves from what that gives it to what its own recursion gives.
        let start_modes = if start.id() == mean.id() { mean_modes.clone() } else { spectral.v_t(start)? };
        let modes = Modes {
            mean: &mean_modes,
            start: &start_modes,
            z: &if whole { z.clone() } else { spectral.v_t(&z)? },
            y: &spectral.u_t(&gaussian.y().to_dtype(mean.dtype())?)?,
            singular: spectral.singular(),
            whole,
        };
        let settings = Settings { eta: &eta, variance, beta, steps: self.steps, null: &null };
        let (change, unstable) = with_real!(mean.dtype(), T => modes.change::<T>(&settings))?;
        let change = spectral.v(&change)?;
        let x = if whole {
            change
        } else {
            combine(&[(&decay, start), (&rest, mean), (&spread, &z), (&[1.0], &change)])?
        };
        let diverged = diverged_rows(&x)?.iter().zip(unstable).map(|(a, b)| *a || b).collect();
        let info = ChainInfo { diverged, cost: Cost { nfe: 0, operator_calls: 4 }, ..ChainInfo::default() };
        Ok((x, info))
    }
}

/// Coordinates along the modes, `[rows, modes]`.
struct Modes<'a> {
    mean: &'a Tensor,
    start: &'a Tensor,
    z: &'a Tensor,
    y: &'a Tensor,
    singular: &'a [Vec<f64>],
    whole: bool,
}

struct Settings<'a> {
    eta: &'a [f64],
    variance: &'a [f64],
    beta: &'a [f64],
    steps: usize,
    null: &'a [Recursion],
}

impl Modes<'_> {
    /// What to add to each mode (all of it, if the modes are a whole basis), and the rows in which a mode's recursion diverges.
    fn change<T: Real>(&self, settings: &Settings) -> Result<(Tensor, Vec<bool>)> {
        let (rows, modes) = self.mean.dims2()?;
        let mut change = vec![T::default(); rows * modes];
        let mut unstable = vec![false; rows];
        with_slice(self.mean, |mean: &[T]| {
            with_slice(self.start, |start: &[T]| {
                with_slice(self.z, |z: &[T]| {
                    with_slice(self.y, |y: &[T]| {
                        for (i, out) in change.chunks_mut(modes.max(1)).enumerate() {
                            let s = &self.singular[if self.singular.len() == 1 { 0 } else { i }];
                            let null = settings.null[i];
                            let diverges = |(block, out): (usize, &mut [T])| {
                                let mut mode = Mode::new(settings, i);
                                let mut diverges = null.diverges;
                                for (k, out) in (block * BLOCK..).zip(out) {
                                    let at = i * modes + k;
                                    let (m, x, z) = (mean[at].wide(), start[at].wide(), z[at].wide());
                                    let y = if s[k] == 0.0 { 0.0 } else { y[at].wide() };
                                    let (moved, bad) = mode.moved(s[k], m, x, z, y);
                                    diverges |= bad;
                                    let outside = null.decay * x + (1.0 - null.decay) * m + null.spread * z;
                                    *out = T::of(if self.whole { moved } else { moved - outside });
                                }
                                diverges
                            };
                            let parts: Vec<bool> =
                                out.par_chunks_mut(BLOCK).enumerate().map(diverges).collect();
                            unstable[i] = parts.contains(&true);
                        }
                    })
                })
            })
        })????;
        Ok((Tensor::from_vec(change, (rows, modes), self.mean.device())?, unstable))
    }
}

/// The recursion of one mode after another; it is only recomputed when the curvature changes, as masks and channels
/// repeat their singular values.
struct Mode {
    eta: f64,
    prior: f64,
    data: f64,
    steps: usize,
    curvature: f64,
    recursion: Recursion,
}

impl Mode {
    fn new(settings: &Settings, row: usize) -> Self {
        Self {
            eta: pick(settings.eta, row),
            prior: 1.0 / pick(settings.variance, row),
            data: pick(settings.beta, row).powi(-2),
            steps: settings.steps,
            curvature: f64::NAN,
            recursion: settings.null[row],
        }
    }

    /// Where N steps take a mode, and whether they diverge.
    #[inline]
    fn moved(&mut self, s: f64, mean: f64, start: f64, z: f64, y: f64) -> (f64, bool) {
        let h = self.prior + s * s * self.data;
        if self.curvature != h {
            self.curvature = h;
            self.recursion = Recursion::new(self.eta, h, self.steps);
        }
        let fixed = (mean * self.prior + s * y * self.data) / h;
        (fixed + self.recursion.decay * (start - fixed) + self.recursion.spread * z, self.recursion.diverges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed form against the recursion of mean and variance, step by step, also at and beyond |a| = 1.
    #[test]
    fn recursion_equals_the_loop() {
        for (eta, h, diverges) in [
            (1e-4, 1e4 / 2.0, false),
            (1e-4, 2e4, false),
            (1e-4, 2e4 + 1e-4, false),
            (1e-4, 1.0, false),
            (1e-4, 1e4, false),
            (5e-5, 2.1e4, false),
            // Twice as large after a hundred steps; 1e17 times.
            (1e-4, 2.007e4, false),
            (1e-4, 2.5e4, true),
        ] {
            let (mut mean, mut var) = (1.0, 0.0);
            let a: f64 = 1.0 - eta * h;
            for _ in 0..100 {
                mean *= a;
                var = a * a * var + 2.0 * eta;
            }
            let r = Recursion::new(eta, h, 100);
            assert!(
                (r.decay - mean).abs() <= 1e-6 * mean.abs().max(1e-12),
                "η {eta} h {h}: {} vs {mean}",
                r.decay
            );
            assert!(
                (r.spread.powi(2) - var).abs() <= 1e-6 * var,
                "η {eta} h {h}: {} vs {var}",
                r.spread.powi(2)
            );
            assert_eq!(r.diverges, diverges, "η {eta} h {h}");
        }
    }
}
