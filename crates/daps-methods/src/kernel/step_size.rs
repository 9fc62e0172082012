//! Step sizes: the decay rules of the presets, and steps bounded by the target's curvature.

use daps_core::tensors::pick;
use daps_core::{Approx, Likelihood, Result, Step};
use serde::{Deserialize, Serialize};

use crate::checks::check_positive;

/// η at a level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum StepSize {
    /// η0 at the first level, falling towards η0 δ at the last.
    Decay {
        /// η0.
        eta0: f64,
        /// δ.
        #[serde(default = "default_delta")]
        delta: f64,
        /// What the decay is linear in.
        #[serde(default)]
        by: DecayBy,
        /// Never above this many inverse curvatures of the target; absent: not cut.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<f64>,
    },
    /// `factor` inverse curvatures of the target at every level.
    Curvature {
        /// Below 2 a Gaussian target is stable, 1 is the fastest decay of the stiffest mode.
        factor: f64,
    },
}

/// What a decaying step is linear in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayBy {
    /// i/N (the paper's numbers, the 2024 code).
    #[default]
    Index,
    /// i/(N + 1) (the 2025 code).
    IndexPlusOne,
    /// σ/σ_max (the paper's text).
    Sigma,
}

/// The factor of a step's size after proposal `j` of a warm-up, accepted by `ratio` (in logs), so that the acceptance comes to
/// `best`: Robbins and Monro's rule on the logarithm; a ratio that is NaN counts as refused.
pub(super) fn adapt(ratio: f64, j: usize, best: f64) -> f64 {
    let rate = if ratio.is_nan() { 0.0 } else { ratio.exp().min(1.0) };
    (4.0 * (rate - best) / (1.0 + j as f64).powf(0.6)).exp()
}

/// δ of every preset but HMC's tuned ones.
pub(crate) fn default_delta() -> f64 {
    0.01
}

impl StepSize {
    /// η0 with the paper's decay.
    #[must_use]
    pub fn decay(eta0: f64) -> Self {
        Self::Decay { eta0, delta: default_delta(), by: DecayBy::Index, cut: None }
    }

    /// Refuses steps that are not positive.
    pub(crate) fn check(&self, who: &str) -> Result<()> {
        let positive = |name: &str, v: f64| check_positive(&format!("{who}.{name}"), v);
        match *self {
            Self::Decay { eta0, delta, cut, .. } => {
                positive("eta0", eta0)?;
                positive("delta", delta)?;
                cut.map_or(Ok(()), |c| positive("cut", c))
            }
            Self::Curvature { factor } => positive("factor", factor),
        }
    }

    /// η at a level whose target has the given curvature.
    #[must_use]
    pub fn value(&self, step: &Step, curvature: f64) -> f64 {
        match *self {
            Self::Decay { eta0, delta, by, cut } => {
                let i = step.index as f64;
                let eta = match by {
                    DecayBy::Index => eta0 * (1.0 + i / step.of as f64 * (delta - 1.0)),
                    DecayBy::IndexPlusOne => eta0 * (1.0 + i / (step.of + 1) as f64 * (delta - 1.0)),
                    DecayBy::Sigma => eta0 * (delta + step.sigma / step.start * (1.0 - delta)),
                };
                cut.map_or(eta, |cut| eta.min(cut / curvature))
            }
            Self::Curvature { factor } => factor / curvature,
        }
    }

    /// η per row, or one for all rows.
    pub(crate) fn at(&self, step: &Step, approx: &Approx, likelihood: &dyn Likelihood) -> Result<Vec<f64>> {
        // Only a rule that asks for the curvature needs a target that knows it.
        if let Self::Decay { cut: None, .. } = self {
            return Ok(vec![self.value(step, f64::NAN)]);
        }
        Ok(curvature(approx, likelihood)?.iter().map(|l| self.value(step, *l)).collect())
    }
}

/// The curvature of -log(p(x0 | x_t) p(y | x0)), per row or one for all: its bound, or where that is loose, about the largest
/// around the chain's start.
pub(crate) fn curvature(approx: &Approx, likelihood: &dyn Likelihood) -> Result<Vec<f64>> {
    let prior = approx.curvature()?;
    let data =
        super::smooth("a step bounded by the curvature", likelihood)?.curvature_at(&approx.start()?)?;
    let rows = prior.len().max(data.len());
    Ok((0..rows).map(|i| pick(&prior, i) + pick(&data, i)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Level 3 of 10 at σ = 4 of 10, from η0 = 1 towards δ = 0.2.
    #[test]
    fn decays_are_linear_in_what_they_say() {
        let step = Step { index: 3, of: 10, start: 10.0, sigma: 4.0, next: 3.0 };
        let eta = |by, cut| StepSize::Decay { eta0: 1.0, delta: 0.2, by, cut }.value(&step, 10.0);
        let cases = [
            (eta(DecayBy::Index, None), 1.0 - 0.3 * 0.8),
            (eta(DecayBy::IndexPlusOne, None), 1.0 - 3.0 / 11.0 * 0.8),
            (eta(DecayBy::Sigma, None), 0.2 + 0.4 * 0.8),
            // 1.9 inverse curvatures are less than that, 19 are not.
            (eta(DecayBy::Index, Some(1.9)), 0.19),
            (eta(DecayBy::Index, Some(19.0)), 0.76),
            (StepSize::Curvature { factor: 0.3 }.value(&step, 10.0), 0.03),
        ];
        for (k, (found, expected)) in cases.into_iter().enumerate() {
            assert!((found - expected).abs() < 1e-12, "case {k}: {found} vs {expected}");
        }
    }
}
