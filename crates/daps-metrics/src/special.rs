//! Tail probabilities of the normal and the Kolmogorov distribution.

/// P(Z ≤ z) for a standard normal Z.
#[must_use]
pub fn normal_cdf(z: f64) -> f64 {
    0.5 * libm::erfc(-z / std::f64::consts::SQRT_2)
}

/// The z with P(Z ≤ z) = p, by bisection on the tail that keeps its digits.
#[must_use]
pub fn normal_quantile(p: f64) -> f64 {
    if !(p > 0.0 && p < 1.0) {
        return if p == 0.0 {
            f64::NEG_INFINITY
        } else if p == 1.0 {
            f64::INFINITY
        } else {
            f64::NAN
        };
    }
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..90 {
        let middle = 0.5 * (low + high);
        if normal_cdf(middle) < p { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// The bound that the largest of `count` independent |z| exceeds with probability `p`: the tolerance for many comparisons.
#[must_use]
pub fn max_z_bound(count: usize, p: f64) -> f64 {
    // By Bonferroni's inequality, so it is safe for dependent comparisons as well.
    -normal_quantile(0.5 * p / count.max(1) as f64)
}

/// P(K > t) for Kolmogorov's limit distribution.
#[must_use]
pub fn kolmogorov_tail(t: f64) -> f64 {
    if t.is_nan() {
        return f64::NAN;
    }
    if t < 0.2 {
        return 1.0;
    }
    if t < 1.0 {
        // The dual series converges fast where the alternating one does not.
        let c = std::f64::consts::PI.powi(2) / (8.0 * t * t);
        let sum: f64 = (1..20).map(|k| (-f64::from(2 * k - 1).powi(2) * c).exp()).sum();
        return 1.0 - (2.0 * std::f64::consts::PI).sqrt() / t * sum;
    }
    let term = |k: i32| f64::from(if k % 2 == 1 { 2 } else { -2 }) * (-2.0 * f64::from(k * k) * t * t).exp();
    (1..20).map(term).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_invert_the_distribution_function() {
        assert!((normal_quantile(0.975) - 1.959_963_984_540_054).abs() < 1e-12);
        for p in [1e-9, 0.2, 0.5, 0.9] {
            assert!((normal_cdf(normal_quantile(p)) / p - 1.0).abs() < 1e-9);
        }
        assert!((max_z_bound(1, 0.05) - 1.959_963_984_540_054).abs() < 1e-9);
    }

    /// Critical values from the usual tables.
    #[test]
    fn kolmogorov_tails_match_the_tables() {
        for (t, p) in [(1.2238, 0.10), (1.3581, 0.05), (1.6276, 0.01), (0.8276, 0.5)] {
            assert!((kolmogorov_tail(t) - p).abs() < 1e-4, "{t}");
        }
        assert!((kolmogorov_tail(0.999_999_9) - kolmogorov_tail(1.000_000_1)).abs() < 1e-6);
    }
}
