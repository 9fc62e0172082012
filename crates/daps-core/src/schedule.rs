//! Noise levels: the annealing schedule and the poly-ρ grid that it shares with the inner ODE.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The exponent of EDM's grid, used by every preset.
pub const RHO: f64 = 7.0;

/// `n` levels from `a` to `b`, evenly spaced after a ρ-th root.
#[must_use]
pub fn poly_grid(n: usize, a: f64, b: f64, rho: f64) -> Vec<f64> {
    let (ra, rb) = (a.powf(1.0 / rho), b.powf(1.0 / rho));
    let fraction = |i: usize| if n > 1 { i as f64 / (n - 1) as f64 } else { 0.0 };
    (0..n).map(|i| (ra + fraction(i) * (rb - ra)).powf(rho)).collect()
}

/// How annealing levels are laid out; [`Schedule::new`] turns a rule into levels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScheduleRule {
    /// `levels` points from `max` to `min` on a poly-ρ grid, then 0 (the paper and the 2024 code).
    Poly {
        /// Levels above zero.
        levels: usize,
        /// Largest level.
        #[serde(default = "default_max")]
        max: f64,
        /// Smallest level above zero.
        #[serde(default = "default_min")]
        min: f64,
        /// Exponent of the grid.
        #[serde(default = "default_rho")]
        rho: f64,
    },
    /// `levels + 1` points from `max` to `min`, the last one replaced by 0, so that `min` is never used (the 2025 code).
    PolyCut {
        /// Levels above zero.
        levels: usize,
        /// Largest level.
        #[serde(default = "default_max")]
        max: f64,
        /// The level that 0 replaces.
        #[serde(default = "default_min")]
        min: f64,
        /// Exponent of the grid.
        #[serde(default = "default_rho")]
        rho: f64,
    },
    /// `levels` points from `max` to `min` with a constant ratio, then 0.
    Geometric {
        /// Levels above zero.
        levels: usize,
        /// Largest level.
        #[serde(default = "default_max")]
        max: f64,
        /// Smallest level above zero.
        #[serde(default = "default_min")]
        min: f64,
    },
    /// The levels of DDPM's linear β schedule (1e-4 to 0.02 in 1000 steps) at `levels` evenly spaced time steps, then 0:
    /// σ² = (1 - ᾱ)/ᾱ, which is what x/√ᾱ holds where a variance-preserving method holds x.
    Ddpm {
        /// Levels above zero.
        levels: usize,
        /// The first, noisiest time step.
        #[serde(default = "default_first")]
        first: usize,
        /// The last one.
        #[serde(default)]
        last: usize,
    },
    /// The levels themselves, in any order, ending at 0; they may rise again on the way.
    Levels {
        /// All levels, the last one 0.
        sigmas: Vec<f64>,
    },
}

/// Time steps of DDPM's schedule.
const DDPM_STEPS: usize = 1000;

fn default_first() -> usize {
    DDPM_STEPS - 1
}

/// σ at every time step of DDPM's linear β schedule.
fn ddpm_sigmas() -> Vec<f64> {
    let (from, to, last) = (1e-4, 0.02, (DDPM_STEPS - 1) as f64);
    let kept = (0..DDPM_STEPS).scan(1.0, |kept, t| {
        *kept *= 1.0 - (from + (to - from) * t as f64 / last);
        Some(*kept)
    });
    kept.map(|kept: f64| ((1.0 - kept) / kept).sqrt()).collect()
}

fn default_max() -> f64 {
    100.0
}
fn default_min() -> f64 {
    0.1
}
fn default_rho() -> f64 {
    RHO
}

/// Noise levels that end at zero, checked once.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    sigmas: Vec<f64>,
}

/// One passage of the loop, from level `sigma` to level `next`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Position in the schedule, from 0.
    pub index: usize,
    /// Number of steps in the schedule.
    pub of: usize,
    /// The schedule's first noise level.
    pub start: f64,
    /// Noise level at which the step starts.
    pub sigma: f64,
    /// Noise level at which it ends; 0 for the last step.
    pub next: f64,
}

impl Schedule {
    /// Lays out the levels of a rule.
    pub fn new(rule: &ScheduleRule) -> Result<Self> {
        let check = |levels: usize, max: f64, min: f64| {
            if levels == 0 {
                return Err(Error::invalid("schedule.levels", "at least 1", levels));
            }
            if !(min.is_finite() && max.is_finite() && min > 0.0 && max >= min) {
                return Err(Error::invalid(
                    "schedule",
                    "0 < min <= max < inf",
                    format!("min {min}, max {max}"),
                ));
            }
            Ok(())
        };
        let check_rho = |rho: f64| {
            let fits = rho.is_finite() && rho > 0.0;
            if fits { Ok(()) } else { Err(Error::invalid("schedule.rho", "a positive number", rho)) }
        };
        let mut sigmas = match *rule {
            ScheduleRule::Poly { levels, max, min, rho } => {
                check(levels, max, min)?;
                check_rho(rho)?;
                poly_grid(levels, max, min, rho)
            }
            ScheduleRule::PolyCut { levels, max, min, rho } => {
                check(levels, max, min)?;
                check_rho(rho)?;
                let mut grid = poly_grid(levels + 1, max, min, rho);
                grid.pop();
                grid
            }
            ScheduleRule::Geometric { levels, max, min } => {
                check(levels, max, min)?;
                let last = levels.saturating_sub(1).max(1) as f64;
                (0..levels).map(|i| max * (min / max).powf(i as f64 / last)).collect()
            }
            ScheduleRule::Ddpm { levels, first, last } => {
                check(levels, 1.0, 1.0)?;
                if first >= DDPM_STEPS || last > first || levels > first - last + 1 {
                    return Err(Error::invalid(
                        "schedule",
                        format!("distinct time steps with last <= first < {DDPM_STEPS}"),
                        format!("{levels} from {first} to {last}"),
                    ));
                }
                let (sigmas, span) = (ddpm_sigmas(), (first - last) as f64);
                let at = |i: usize| first as f64 - span * i as f64 / (levels.max(2) - 1) as f64;
                (0..levels).map(|i| sigmas[at(i).round() as usize]).collect()
            }
            ScheduleRule::Levels { ref sigmas } => return Self::from_levels(sigmas.clone()),
        };
        sigmas.push(0.0);
        Self::from_levels(sigmas)
    }

    /// Levels as given: all positive and finite but the last one, which is 0.
    pub fn from_levels(sigmas: Vec<f64>) -> Result<Self> {
        let Some((&last, above)) = sigmas.split_last() else {
            return Err(Error::invalid("schedule", "at least one level above zero, then 0", "no levels"));
        };
        if last != 0.0 {
            return Err(Error::invalid("schedule", "a last level of 0", last));
        }
        if above.is_empty() {
            return Err(Error::invalid("schedule", "at least one level above zero", "only 0"));
        }
        if let Some(bad) = above.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
            return Err(Error::invalid("schedule", "positive finite levels before the final 0", bad));
        }
        Ok(Self { sigmas })
    }

    /// All levels, the final 0 included.
    #[must_use]
    pub fn sigmas(&self) -> &[f64] {
        &self.sigmas
    }

    /// Number of steps: levels above zero.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sigmas.len() - 1
    }

    /// Never true: a schedule has at least one step.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The level at which the loop starts.
    #[must_use]
    pub fn start(&self) -> f64 {
        self.sigmas[0]
    }

    /// Lays out a rule for a method that can only go down: one that removes noise step by step knows no way back up.
    pub fn falling(method: &str, rule: &ScheduleRule) -> Result<Self> {
        let schedule = Self::new(rule)?;
        let rise = schedule.steps().find(|step| step.next > step.sigma);
        match rise {
            Some(Step { sigma, next, .. }) => Err(Error::invalid(
                format!("{method}.schedule"),
                "levels that fall",
                format!("{next} after {sigma}"),
            )),
            None => Ok(schedule),
        }
    }

    /// The passages in order.
    pub fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        let (of, start) = (self.len(), self.start());
        self.sigmas.windows(2).enumerate().map(move |(index, w)| Step {
            index,
            of,
            start,
            sigma: w[0],
            next: w[1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_lay_out_what_their_names_say() {
        let poly = |levels| ScheduleRule::Poly { levels, max: 100.0, min: 0.1, rho: RHO };
        let s = Schedule::new(&poly(5)).unwrap();
        assert_eq!(s.len(), 5);
        assert!((s.sigmas()[4] - 0.1).abs() < 1e-12 && s.sigmas()[5] == 0.0);
        let one = Schedule::new(&poly(1)).unwrap();
        assert!((one.start() - 100.0).abs() < 1e-9);
        let cut =
            Schedule::new(&ScheduleRule::PolyCut { levels: 5, max: 100.0, min: 0.1, rho: RHO }).unwrap();
        assert_eq!(cut.len(), 5);
        assert!(cut.sigmas()[4] > 0.1);
        let g = Schedule::new(&ScheduleRule::Geometric { levels: 3, max: 4.0, min: 1.0 }).unwrap();
        assert!((g.sigmas()[1] - 2.0).abs() < 1e-12);
    }

    /// β_t is known: σ_0² = 1e-4/(1 - 1e-4), and the last ᾱ of the schedule is 4.04e-5 (σ = 157.4).
    #[test]
    fn ddpm_levels_are_those_of_its_linear_schedule() {
        let s = Schedule::new(&ScheduleRule::Ddpm { levels: 20, first: 950, last: 0 }).unwrap();
        assert_eq!(s.len(), 20);
        assert!((s.sigmas()[19] - (1e-4f64 / (1.0 - 1e-4)).sqrt()).abs() < 1e-15);
        let all = Schedule::new(&ScheduleRule::Ddpm { levels: 1000, first: 999, last: 0 }).unwrap();
        assert!((all.start() - 157.4).abs() < 0.1, "{}", all.start());
        assert!((1..20).all(|i| s.sigmas()[i] == all.sigmas()[49 + 50 * i]));
        for (levels, first, last) in [(0, 999, 0), (5, 1000, 0), (5, 3, 0), (2, 0, 1)] {
            assert!(Schedule::new(&ScheduleRule::Ddpm { levels, first, last }).is_err());
        }
    }

    #[test]
    fn levels_may_rise_but_must_end_at_zero() {
        assert!(Schedule::from_levels(vec![1.0, 0.5, 0.8, 0.0]).is_ok());
        let levels = |sigmas: &[f64]| ScheduleRule::Levels { sigmas: sigmas.to_vec() };
        assert!(Schedule::falling("dps", &levels(&[1.0, 0.5, 0.0])).is_ok());
        let error = Schedule::falling("dps", &levels(&[1.0, 0.5, 0.8, 0.0])).unwrap_err().to_string();
        assert!(error.contains("dps.schedule") && error.contains("0.8 after 0.5"), "{error}");
        for bad in [
            vec![],
            vec![0.0],
            vec![1.0],
            vec![1.0, -0.1, 0.0],
            vec![f64::INFINITY, 0.0],
            vec![f64::NAN, 0.0],
            vec![1.0, 0.0, 0.0],
        ] {
            assert!(Schedule::from_levels(bad.clone()).is_err(), "{bad:?}");
        }
        let zero_rho = ScheduleRule::Poly { levels: 3, max: 1.0, min: 0.1, rho: 0.0 };
        assert!(Schedule::new(&zero_rho).is_err());
    }
}
