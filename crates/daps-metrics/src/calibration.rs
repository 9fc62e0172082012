//! Calibration of posteriors: coverage of credible intervals, and ranks of the truth among posterior draws.

use daps_core::{Error, Result};

use crate::finite;
use crate::special::normal_quantile;

/// How often intervals held the truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage {
    /// Intervals that held it.
    pub inside: usize,
    /// Intervals in all.
    pub total: usize,
    /// The share that should hold it.
    pub nominal: f64,
}

impl Coverage {
    /// The share that held it.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.inside as f64 / self.total as f64
    }

    /// The binomial standard error of the rate if the nominal one is true.
    #[must_use]
    pub fn error(&self) -> f64 {
        (self.nominal * (1.0 - self.nominal) / self.total as f64).sqrt()
    }

    /// (rate - nominal) in standard errors.
    #[must_use]
    pub fn z(&self) -> f64 {
        (self.rate() - self.nominal) / self.error()
    }

    /// Counts intervals `(low, truth, high)`.
    pub fn count(nominal: f64, intervals: impl IntoIterator<Item = (f64, f64, f64)>) -> Result<Self> {
        check_level(nominal)?;
        let mut coverage = Self { inside: 0, total: 0, nominal };
        for (low, truth, high) in intervals {
            finite("credible interval", &[low, truth, high])?;
            coverage.inside += usize::from(low <= truth && truth <= high);
            coverage.total += 1;
        }
        if coverage.total == 0 {
            return Err(Error::invalid("coverage", "at least one interval", 0));
        }
        Ok(coverage)
    }

    /// Central intervals of Gaussians: mean ± z std.
    pub fn gaussian(level: f64, truth: &[f64], mean: &[f64], std: &[f64]) -> Result<Self> {
        if truth.len() != mean.len() || truth.len() != std.len() {
            let got = format!("{}, {} and {}", truth.len(), mean.len(), std.len());
            return Err(Error::invalid("coverage", "as many truths as means and deviations", got));
        }
        let z = normal_quantile(0.5 + 0.5 * level);
        let each = truth.iter().zip(mean).zip(std);
        Self::count(level, each.map(|((t, m), s)| (m - z * s, *t, m + z * s)))
    }

    /// Central intervals between order statistics of `draws` posterior draws, from the ranks of the truths. Where no
    /// two order statistics enclose the level exactly, the nominal share is the one they do enclose.
    pub fn of_ranks(level: f64, ranks: &[usize], draws: usize) -> Result<Self> {
        check_level(level)?;
        check_ranks(ranks, draws)?;
        // The rank is uniform on 0..=draws; the interval takes `width` of these values, centred as well as can be.
        let values = draws + 1;
        let width = ((level * values as f64).round() as usize).clamp(1, values);
        let low = (values - width) / 2;
        let inside = ranks.iter().filter(|r| (low..low + width).contains(*r)).count();
        Ok(Self { inside, total: ranks.len(), nominal: width as f64 / values as f64 })
    }
}

fn check_level(level: f64) -> Result<()> {
    if level > 0.0 && level < 1.0 {
        return Ok(());
    }
    Err(Error::invalid("credible level", "a number between 0 and 1", level))
}

fn check_ranks(ranks: &[usize], draws: usize) -> Result<()> {
    match ranks.iter().find(|r| **r > draws) {
        Some(bad) => Err(Error::invalid("rank", format!("at most the number of draws, {draws}"), bad)),
        None if ranks.is_empty() => Err(Error::invalid("ranks", "at least one", 0)),
        None => Ok(()),
    }
}

/// The number of draws below the truth.
#[must_use]
pub fn rank(truth: f64, draws: &[f64]) -> usize {
    draws.iter().filter(|d| **d < truth).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::{Address, Noise, Purpose, candle::DType, tensors::to_f64};

    #[test]
    fn counts_are_hand_computed() {
        let c = Coverage::count(0.5, [(0.0, 1.0, 2.0), (0.0, 3.0, 2.0), (1.0, 1.0, 1.0), (0.0, -1.0, 1.0)]);
        let c = c.unwrap();
        assert_eq!((c.inside, c.total, c.rate(), c.error(), c.z()), (2, 4, 0.5, 0.25, 0.0));
        assert_eq!(rank(0.5, &[0.1, 0.5, 0.4, 0.9]), 2);
        let c = Coverage::of_ranks(0.5, &[0, 1, 2, 3], 3).unwrap();
        assert_eq!((c.inside, c.nominal), (2, 0.5));
        assert!(Coverage::of_ranks(1.5, &[0], 3).is_err());
        assert!(Coverage::of_ranks(0.5, &[5], 4).is_err());
    }

    /// Truth and draws from one law: coverage agrees with it; draws too narrow by a quarter do not.
    #[test]
    fn a_right_posterior_passes_and_a_narrow_one_fails() {
        let (n, draws) = (4000, 99);
        let at = Address::new(0, Purpose::Reference, 0);
        let z = to_f64(&Noise::chains(8, n).normal(at, &[draws + 1], DType::F64).unwrap()).unwrap();
        for (scale, right) in [(1.0, true), (0.75, false)] {
            let ranks: Vec<usize> = z.chunks(draws + 1).map(|z| rank(z[0] * scale, &z[1..])).collect();
            let coverage = Coverage::of_ranks(0.9, &ranks, draws).unwrap();
            // 4 standard errors.
            assert_eq!(coverage.z().abs() < 4.0, right, "{coverage:?}");
            let truth: Vec<f64> = z.chunks(draws + 1).map(|z| z[0] * scale).collect();
            let g = Coverage::gaussian(0.9, &truth, &vec![0.0; n], &vec![1.0; n]).unwrap();
            assert_eq!(g.z().abs() < 4.0, right);
        }
    }
}
