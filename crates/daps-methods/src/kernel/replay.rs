//! Exact replay: the law of N Langevin steps for a linear operator, drawn at once mode by mode.
//!
//! With h = 1/r² + λ/β² and a = 1 - ηh, N steps from x give m + aᴺ(x - m) + √(2η Σ_{k<N} a²ᵏ) z, where m is the mode's
//! conditional mean. Same law as the loop, no loop: it proves parity with DAPS and removes its operator cost.

use daps_core::candle::Tensor;
use daps_core::real::{combine, from_f64, pick, to_f64};
use daps_core::{
    Address, Approx, ChainInfo, Conditional, Cost, Covariance, Error, Kernel, Noise, Purpose, Result, Step,
};
use serde::{Deserialize, Serialize};

use super::{StepSize, check_steps, diverged_rows};

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

/// How far |a| may exceed 1 before the recursion counts as divergent. The official super-resolution setting puts ηh at
/// 2 + 1e-8; its hundred steps grow by 1e-6, which is rounding, not divergence.
const STABLE: f64 = 1.0 + 1e-6;

/// N steps of x ← m + a(x - m) + √(2η) z for one mode of curvature h: x_N = m + `decay` (x_0 - m) + `spread` z.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recursion {
    /// aᴺ.
    pub decay: f64,
    /// √(2η Σ_{k<N} a²ᵏ).
    pub spread: f64,
    /// |a| > 1.
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
        Self { decay: a.powi(steps as i32), spread: (2.0 * eta * sum).sqrt(), diverges: a.abs() > STABLE }
    }
}

impl Replay {
    pub(super) fn checked(&self) -> Result<Self> {
        check_steps("replay", self.steps)?;
        self.step_size.check("replay")?;
        Ok(self.clone())
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
        let rows = mean.dims()[0];
        let shape = &mean.dims()[1..];
        let eta = self.step_size.at(step, target.approx, target.likelihood)?;
        let z = noise.normal(Address::new(step.index, Purpose::Kernel, 0), shape, mean.dtype())?;

        // Outside the modes (λ = 0) the fixed point is the mean.
        let null: Vec<Recursion> =
            (0..rows).map(|i| Recursion::new(pick(&eta, i), 1.0 / pick(variance, i), self.steps)).collect();
        let decay: Vec<f64> = null.iter().map(|r| r.decay).collect();
        let rest: Vec<f64> = null.iter().map(|r| 1.0 - r.decay).collect();
        let spread: Vec<f64> = null.iter().map(|r| r.spread).collect();
        let base = combine(&[(&decay, start), (&rest, mean), (&spread, &z)])?;

        // Inside, move every mode from what `base` gave it to what its own recursion gives.
        let (c_mean, c_start) = (to_f64(&spectral.v_t(mean)?)?, to_f64(&spectral.v_t(start)?)?);
        let (c_z, c_y) = (to_f64(&spectral.v_t(&z)?)?, to_f64(&spectral.u_t(gaussian.y())?)?);
        let modes = c_mean.len() / rows.max(1);
        let singular = spectral.singular();
        let mut change = vec![0.0; rows * modes];
        let mut unstable = null.iter().map(|r| r.diverges).collect::<Vec<_>>();
        for i in 0..rows {
            let s = if singular.len() == 1 { &singular[0] } else { &singular[i] };
            let (prior, data) = (1.0 / pick(variance, i), pick(beta, i).powi(-2));
            // Modes repeat their singular value over channels and, for masks, over pixels: recompute only on a change.
            let mut known = (f64::NAN, null[i]);
            for k in 0..modes {
                let at = i * modes + k;
                let h = prior + s[k] * s[k] * data;
                if known.0 != h {
                    known = (h, Recursion::new(pick(&eta, i), h, self.steps));
                    unstable[i] |= known.1.diverges;
                }
                let (m, y) = (c_mean[at], if s[k] == 0.0 { 0.0 } else { c_y[at] });
                let fixed = (m * prior + s[k] * y * data) / h;
                let moved = fixed + known.1.decay * (c_start[at] - fixed) + known.1.spread * c_z[at];
                change[at] = moved - (decay[i] * c_start[at] + rest[i] * m + spread[i] * c_z[at]);
            }
        }
        let change = from_f64(change, &[rows, modes], mean.dtype())?;
        let x = combine(&[(&[1.0], &base), (&[1.0], &spectral.v(&change)?)])?;
        let diverged = diverged_rows(&x)?.iter().zip(unstable).map(|(a, b)| *a || b).collect();
        let info = ChainInfo { diverged, cost: Cost { nfe: 0, operator_calls: 5 }, ..ChainInfo::default() };
        Ok((x, info))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed form against the recursion of mean and variance, step by step, also at and beyond |a| = 1.
    #[test]
    fn recursion_equals_the_loop() {
        for (eta, h) in
            [(1e-4, 1e4 / 2.0), (1e-4, 2e4), (1e-4, 2e4 + 1e-4), (1e-4, 1.0), (1e-4, 1e4), (5e-5, 2.1e4)]
        {
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
            assert_eq!(r.diverges, a.abs() > 1.0 + 1e-6);
        }
    }
}
