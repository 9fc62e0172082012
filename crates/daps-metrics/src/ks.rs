//! The Kolmogorov–Smirnov test of samples against a distribution function.

use daps_core::Result;

use crate::count;
use crate::special::kolmogorov_tail;

/// A test's outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ks {
    /// The largest distance between the distribution functions.
    pub statistic: f64,
    /// The probability of a larger one if both were the same: asymptotic with Stephens' correction, good to about 0.01
    /// from ten samples on.
    pub p_value: f64,
}

/// Compares samples with a continuous distribution function.
pub fn ks_one_sample(samples: &[f64], cdf: impl Fn(f64) -> f64) -> Result<Ks> {
    let n = count("samples", samples, 1)? as f64;
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let gap = |(i, x): (usize, &f64)| {
        let f = cdf(*x);
        (f - i as f64 / n).max((i + 1) as f64 / n - f)
    };
    // A NaN from the distribution function must not look like agreement.
    let statistic = sorted
        .iter()
        .enumerate()
        .map(gap)
        .fold(0.0, |m: f64, g| if m.is_nan() || g.is_nan() { f64::NAN } else { m.max(g) });
    Ok(outcome(statistic, n))
}

fn outcome(statistic: f64, n: f64) -> Ks {
    let root = n.sqrt();
    Ks { statistic, p_value: kolmogorov_tail((root + 0.12 + 0.11 / root) * statistic) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::{Address, Noise, Purpose};

    #[test]
    fn statistics_have_hand_computed_values() {
        // Uniform on [0, 1]; the empirical function jumps at 0.1, 0.2 and 0.9: largest gap 2/3 - 0.2 before 0.9.
        let one = ks_one_sample(&[0.9, 0.1, 0.2], |x| x).unwrap();
        assert!((one.statistic - (2.0 / 3.0 - 0.2)).abs() < 1e-15);
        for bad in [0.1, 0.5, 0.9] {
            let cdf = |x: f64| if x == bad { f64::NAN } else { x };
            assert!(ks_one_sample(&[0.1, 0.5, 0.9], cdf).unwrap().p_value.is_nan(), "{bad}");
        }
    }

    /// Exact critical values of the one-sample test from the tables: n = 20, 5 % at 0.29408; n = 50, 1 % at 0.22604.
    #[test]
    fn p_values_match_exact_tables() {
        assert!((outcome(0.29408, 20.0).p_value - 0.05).abs() < 0.002);
        assert!((outcome(0.22604, 50.0).p_value - 0.01).abs() < 0.001);
    }

    #[test]
    fn p_values_of_uniform_samples_are_uniform() {
        let at = |i| Address::new(i, Purpose::Reference, 0);
        let p: Vec<f64> = (0..500)
            .map(|t| ks_one_sample(&Noise::chains(3, 200).uniform(at(t)), |x| x).unwrap().p_value)
            .collect();
        // A test of tests: 500 p-values, refused at one in ten thousand.
        assert!(ks_one_sample(&p, |x| x).unwrap().p_value > 1e-4);
        let shifted: Vec<f64> = Noise::chains(3, 200).uniform(at(0)).iter().map(|u| 0.3 + u).collect();
        assert!(ks_one_sample(&shifted, |x| x.clamp(0.0, 1.0)).unwrap().p_value < 1e-6);
    }
}
