//! Diagnostics of chains: split R̂ and effective sample size (Gelman et al., Bayesian Data Analysis, 3rd ed., 11.4–11.5; Geyer's
//! initial monotone sequence).

use daps_core::{Error, Result};

use crate::finite;

/// Split R̂ and effective sample size of one quantity over several chains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diagnosis {
    /// √(pooled variance / within-chain variance) of the half chains; near 1 where chains agree, infinite where chains stand
    /// still at different places.
    pub r_hat: f64,
    /// The number of independent draws whose mean would have the same variance.
    pub effective: f64,
}

/// Diagnoses chains of equal length, at least four draws each; a chain of odd length loses its last draw.
pub fn diagnose(chains: &[Vec<f64>]) -> Result<Diagnosis> {
    let length = chains.first().map_or(0, Vec::len);
    if length < 4 || chains.iter().any(|c| c.len() != length) {
        let got = format!("{:?}", chains.iter().map(Vec::len).collect::<Vec<_>>());
        return Err(Error::invalid("chains", "one or more of equal length, at least 4", got));
    }
    chains.iter().try_for_each(|c| finite("chain", c))?;
    let half = length / 2;
    let halves: Vec<&[f64]> = chains.iter().flat_map(|c| [&c[..half], &c[half..2 * half]]).collect();
    let n = half as f64;
    let means: Vec<f64> = halves.iter().map(|h| h.iter().sum::<f64>() / n).collect();
    let within = average(halves.iter().zip(&means).map(|(h, m)| autocovariance(h, *m, 0) * n / (n - 1.0)));
    let grand = average(means.iter().copied());
    let between = means.iter().map(|m| (m - grand).powi(2)).sum::<f64>() / (means.len() as f64 - 1.0);
    let pooled = within * (n - 1.0) / n + between;
    let draws = n * halves.len() as f64;
    if within == 0.0 {
        // All chains stand still: at one place there is nothing to mix, at several they never met.
        let r_hat = if between == 0.0 { 1.0 } else { f64::INFINITY };
        return Ok(Diagnosis { r_hat, effective: if between == 0.0 { draws } else { 1.0 } });
    }
    let rho = |lag: usize| {
        let covariance = average(halves.iter().zip(&means).map(|(h, m)| autocovariance(h, *m, lag)));
        1.0 - (within - covariance * n / (n - 1.0)) / pooled
    };
    // Sums of neighbouring correlations are positive and fall in a reversible chain; noise ends the sum.
    let (mut sum, mut last, mut lag) = (0.0, f64::INFINITY, 0);
    while lag + 1 < half {
        let pair = if lag == 0 { 1.0 + rho(1) } else { rho(lag) + rho(lag + 1) };
        if pair <= 0.0 {
            break;
        }
        last = pair.min(last);
        sum += last;
        lag += 2;
    }
    // Antithetic chains may beat independence, but not by more than the logarithm of their number.
    let time = (2.0 * sum - 1.0).max(1.0 / draws.log10().max(1.0));
    Ok(Diagnosis { r_hat: (pooled / within).sqrt(), effective: draws / time })
}

fn average(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len() as f64;
    values.sum::<f64>() / n
}

/// Σ (x_t - m)(x_{t+lag} - m)/n.
fn autocovariance(x: &[f64], mean: f64, lag: usize) -> f64 {
    let pairs = x.iter().zip(&x[lag..]);
    pairs.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>() / x.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::{Address, Noise, Purpose, candle::DType, real::to_f64};

    /// AR(1) chains x' = a x + √(1 - a²) z: n_eff/n → (1 - a)/(1 + a).
    fn autoregressive(a: f64, chains: usize, length: usize) -> Vec<Vec<f64>> {
        let at = Address::new(0, Purpose::Reference, 0);
        let z = to_f64(&Noise::chains(4, chains).normal(at, &[length], DType::F64).unwrap()).unwrap();
        let walk = |z: &[f64]| {
            let mut x = 0.0;
            let mut step = |(t, z): (usize, &f64)| {
                x = if t == 0 { *z } else { a * x + (1.0 - a * a).sqrt() * z };
                x
            };
            z.iter().enumerate().map(&mut step).collect()
        };
        z.chunks(length).map(walk).collect()
    }

    #[test]
    fn effective_size_of_autoregressive_chains_is_known() {
        for a in [0.0, 0.5, 0.9, -0.5] {
            let d = diagnose(&autoregressive(a, 4, 20_000)).unwrap();
            let exact = 80_000.0 * (1.0 - a) / (1.0 + a);
            assert!((d.effective / exact - 1.0).abs() < 0.15, "a = {a}: {} vs {exact}", d.effective);
            assert!((d.r_hat - 1.0).abs() < 0.005, "{}", d.r_hat);
        }
    }

    #[test]
    fn chains_that_disagree_are_seen() {
        let mut chains = autoregressive(0.0, 2, 1000);
        chains[1].iter_mut().for_each(|x| *x += 2.0);
        // Half chains of variance 1 at 0 and 2: between = 4/3, so R̂ = √(1 + 4/3), up to sampling error.
        let d = diagnose(&chains).unwrap();
        assert!((d.r_hat - (7.0f64 / 3.0).sqrt()).abs() < 0.06, "{}", d.r_hat);
        assert!(d.effective < 10.0, "{}", d.effective);
        assert_eq!(diagnose(&[vec![1.0; 8], vec![2.0; 8]]).unwrap().r_hat, f64::INFINITY);
        assert_eq!(diagnose(&[vec![1.0; 8], vec![1.0; 8]]).unwrap().r_hat, 1.0);
        assert!(diagnose(&[vec![1.0; 3]]).is_err());
    }
}
