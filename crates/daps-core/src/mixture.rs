//! A Gaussian mixture over one sample in f64: the closed form behind analytic priors, exact conditionals and posteriors.

use std::borrow::Cow;
use std::sync::Arc;

use faer::Mat;
use rand_chacha::ChaCha8Rng;

use crate::covariance::{Full, RowCovariance};
use crate::linalg::times;
use crate::{Error, Result, open01};

/// Σ_k w_k N(m_k + shift, C_k). Many mixtures (the rows of a batch) share covariances, and means but for a shift, through the
/// `Arc`s.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// ln w_k, normalised.
    pub log_weights: Vec<f64>,
    /// m_k, `k x d`, row-major.
    pub means: Arc<Vec<f64>>,
    /// What is added to every mean, if anything.
    pub shift: Option<Vec<f64>>,
    /// C_k: one per component, or one for all.
    pub covariances: Arc<Vec<RowCovariance>>,
}

/// A dense `m x d` matrix of a linear measurement with its noise levels: what a mixture is conditioned on.
#[derive(Clone, Debug)]
pub struct LinearMeasurement {
    /// A, row-major.
    pub matrix: Vec<f64>,
    /// Variance of the noise of each measured number.
    pub variance: Vec<f64>,
}

/// The parts of conditioning that depend on (C_k, A, β) but not on m_k or y; computed once for many rows.
pub struct Gain {
    /// S_k = A C_k Aᵀ + diag(β²), for every distinct covariance.
    innovation: Vec<Full>,
    /// ln det S_k.
    log_det: Vec<f64>,
    /// C_k Aᵀ, column i is C_k aᵢ.
    cross: Vec<Vec<Vec<f64>>>,
    /// The means of the mixture that asked, and A m_k.
    means: Arc<Vec<f64>>,
    projected: Vec<Vec<f64>>,
}

impl Mixture {
    /// Checks sizes and normalises the weights.
    pub fn new(log_weights: Vec<f64>, means: Vec<f64>, covariances: Arc<Vec<RowCovariance>>) -> Result<Self> {
        let k = log_weights.len();
        if k == 0 || means.is_empty() || !means.len().is_multiple_of(k) {
            let got = format!("{} means' values for {k} weights", means.len());
            return Err(Error::invalid("mixture", "as many means as weights, at least one", got));
        }
        if covariances.len() != 1 && covariances.len() != k {
            return Err(Error::invalid("mixture", format!("1 or {k} covariances"), covariances.len()));
        }
        let norm = log_sum_exp(&log_weights);
        if !norm.is_finite() {
            return Err(Error::invalid("mixture", "weights with a positive finite sum", norm));
        }
        let log_weights = log_weights.iter().map(|w| w - norm).collect();
        Ok(Self { log_weights, means: Arc::new(means), shift: None, covariances })
    }

    /// Number of components.
    #[must_use]
    pub fn len(&self) -> usize {
        self.log_weights.len()
    }

    /// Never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Number of values of a sample.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.means.len() / self.len()
    }

    /// The mean of a component, its shift included.
    #[must_use]
    pub fn mean_of(&self, k: usize) -> Cow<'_, [f64]> {
        match &self.shift {
            None => Cow::Borrowed(self.base(k)),
            Some(shift) => Cow::Owned(self.base(k).iter().zip(shift).map(|(m, s)| m + s).collect()),
        }
    }

    /// The mean of a component without the shift.
    fn base(&self, k: usize) -> &[f64] {
        &self.means[k * self.dim()..(k + 1) * self.dim()]
    }

    /// C_k.
    #[must_use]
    pub fn covariance_of(&self, k: usize) -> &RowCovariance {
        if self.covariances.len() == 1 { &self.covariances[0] } else { &self.covariances[k] }
    }

    /// The overall mean.
    #[must_use]
    pub fn mean(&self) -> Vec<f64> {
        let mut mean = self.shift.clone().unwrap_or_else(|| vec![0.0; self.dim()]);
        for (k, w) in self.log_weights.iter().enumerate() {
            mean.iter_mut().zip(self.base(k)).for_each(|(o, m)| *o += w.exp() * m);
        }
        mean
    }

    /// The overall covariance, `d x d`.
    #[must_use]
    pub fn covariance(&self) -> Mat<f64> {
        let (d, mean) = (self.dim(), self.mean());
        let mut total = Mat::zeros(d, d);
        for (k, w) in self.log_weights.iter().map(|w| w.exp()).enumerate() {
            let c = self.covariance_of(k).matrix(d);
            let r: Vec<f64> = self.mean_of(k).iter().zip(&mean).map(|(m, o)| m - o).collect();
            total += Mat::from_fn(d, d, |i, j| w * (c[(i, j)] + r[i] * r[j]));
        }
        total
    }

    /// A draw.
    #[must_use]
    pub fn sample(&self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let k = choose(&self.log_weights, open01(rng));
        let mut x = self.covariance_of(k).sample(rng, self.dim());
        x.iter_mut().zip(self.mean_of(k).iter()).for_each(|(x, m)| *x += m);
        x
    }

    /// Precomputes what conditioning on a measurement shares between mixtures with these covariances.
    pub fn gain(&self, measurement: &LinearMeasurement) -> Result<Gain> {
        let (d, m) = (self.dim(), measurement.variance.len());
        let rows: Vec<&[f64]> = measurement.matrix.chunks(d).collect();
        if rows.len() != m || measurement.matrix.len() != m * d {
            let got = format!("{} values", measurement.matrix.len());
            return Err(Error::invalid("measurement matrix", format!("{m} x {d} values"), got));
        }
        let projected = (0..self.len()).map(|k| forward(measurement, self.base(k))).collect();
        let means = Arc::clone(&self.means);
        let mut gain = Gain { innovation: vec![], log_det: vec![], cross: vec![], means, projected };
        for covariance in self.covariances.iter() {
            let cross: Vec<Vec<f64>> = rows.iter().map(|a| covariance.apply(a)).collect();
            let s = Mat::from_fn(m, m, |i, j| {
                let noise = if i == j { measurement.variance[i] } else { 0.0 };
                rows[i].iter().zip(&cross[j]).map(|(a, c)| a * c).sum::<f64>() + noise
            });
            let full = Full::new(s)?;
            gain.log_det.push(full.log_det());
            gain.innovation.push(full);
            gain.cross.push(cross);
        }
        Ok(gain)
    }

    /// Weights and means after seeing y; covariances stay implicit (see [`Mixture::sample_given`] and
    /// [`Mixture::posterior`]).
    pub fn condition(&self, at: &LinearMeasurement, gain: &Gain, y: &[f64]) -> Result<Self> {
        let mut log_weights = Vec::with_capacity(self.len());
        let mut means = Vec::with_capacity(self.means.len());
        for (k, (log_weight, solved)) in self.innovations(at, gain, y).into_iter().enumerate() {
            log_weights.push(log_weight);
            means.extend(shifted(&self.mean_of(k), &gain.cross[gain.of(k)], &solved));
        }
        Self::new(log_weights, means, Arc::clone(&self.covariances))
    }

    /// p(x | y) as a mixture of its own, with full covariances: exact, for problems small enough for dense algebra.
    pub fn posterior(&self, at: &LinearMeasurement, y: &[f64]) -> Result<Self> {
        let gain = self.gain(at)?;
        let conditioned = self.condition(at, &gain, y)?;
        let covariances: Result<Vec<_>> = (0..self.covariances.len())
            .map(|g| gain.posterior_covariance(g, at, &self.covariances[g], self.dim()))
            .collect();
        Ok(Self { covariances: Arc::new(covariances?), ..conditioned })
    }

    /// For every component, ln w_k p(y | k) up to a constant, and S_k⁻¹ (y - A m_k).
    fn innovations(&self, at: &LinearMeasurement, gain: &Gain, y: &[f64]) -> Vec<(f64, Vec<f64>)> {
        let target = match &self.shift {
            None => Cow::Borrowed(y),
            Some(shift) => Cow::Owned(difference(y, &forward(at, shift))),
        };
        let shared = Arc::ptr_eq(&self.means, &gain.means);
        (0..self.len())
            .map(|k| {
                let residual = match shared {
                    true => difference(&target, &gain.projected[k]),
                    false => difference(&target, &forward(at, self.base(k))),
                };
                let g = gain.of(k);
                let solved = gain.innovation[g].solve(&residual);
                let quad: f64 = residual.iter().zip(&solved).map(|(r, s)| r * s).sum();
                (self.log_weights[k] - 0.5 * (quad + gain.log_det[g]), solved)
            })
            .collect()
    }

    /// An exact draw of p(x | y): a component by its posterior weight, then Matheron's rule within it.
    pub fn sample_given(
        &self,
        at: &LinearMeasurement,
        gain: &Gain,
        y: &[f64],
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<f64>> {
        let log_weights: Vec<f64> = self.innovations(at, gain, y).iter().map(|i| i.0).collect();
        let k = choose(&log_weights, open01(rng));
        let g = gain.of(k);
        let mut x = self.covariance_of(k).sample(rng, self.dim());
        x.iter_mut().zip(self.mean_of(k).iter()).for_each(|(x, m)| *x += m);
        let mut e = vec![0.0; y.len()];
        crate::fill_normal(rng, &mut e);
        let perturbed: Vec<f64> =
            y.iter().zip(&e).zip(&at.variance).map(|((y, e), v)| y - v.sqrt() * e).collect();
        let solved = gain.innovation[g].solve(&difference(&perturbed, &forward(at, &x)));
        Ok(shifted(&x, &gain.cross[g], &solved))
    }

    /// ln p(x) up to the constant of the Gaussian density.
    pub fn log_prob(&self, x: &[f64]) -> Result<f64> {
        Ok(log_sum_exp(&self.log_joint(x)?))
    }

    /// ln w_k N(x; m_k, C_k) for every component, without (2π)^(-d/2).
    pub fn log_joint(&self, x: &[f64]) -> Result<Vec<f64>> {
        let d = self.dim();
        (0..self.len())
            .map(|k| {
                let r: Vec<f64> = x.iter().zip(self.mean_of(k).iter()).map(|(x, m)| x - m).collect();
                let c = self.covariance_of(k);
                let quad: f64 = c.solve(&r)?.iter().zip(&r).map(|(s, r)| s * r).sum();
                Ok(self.log_weights[k] - 0.5 * (quad + c.log_det(d)))
            })
            .collect()
    }
}

impl Gain {
    /// The entry of a component: there is one per component, or one for all.
    fn of(&self, k: usize) -> usize {
        if self.innovation.len() == 1 { 0 } else { k }
    }

    /// (I - KA) C (I - KA)ᵀ + K diag(β²) Kᵀ with K = C Aᵀ S⁻¹: Joseph's form, a sum of positive matrices, which stays
    /// positive where C - K S Kᵀ would cancel.
    fn posterior_covariance(
        &self,
        g: usize,
        at: &LinearMeasurement,
        prior: &RowCovariance,
        d: usize,
    ) -> Result<RowCovariance> {
        let m = at.variance.len();
        let a = Mat::from_fn(m, d, |i, j| at.matrix[i * d + j]);
        let cross = Mat::from_fn(d, m, |i, j| self.cross[g][j][i]);
        let mut kt = cross.transpose().to_owned();
        for i in 0..d {
            let solved = self.innovation[g].solve(kt.col_as_slice(i));
            kt.col_as_slice_mut(i).copy_from_slice(&solved);
        }
        let rest = Mat::<f64>::identity(d, d) - times(kt.transpose(), a.as_ref());
        let noise = Mat::from_fn(m, d, |i, j| at.variance[i] * kt[(i, j)]);
        let within = times(times(rest.as_ref(), prior.matrix(d).as_ref()).as_ref(), rest.transpose());
        let c = within + times(kt.transpose(), noise.as_ref());
        Ok(RowCovariance::Full(Full::new(c)?))
    }
}

/// A x.
fn forward(at: &LinearMeasurement, x: &[f64]) -> Vec<f64> {
    at.matrix.chunks(x.len()).map(|a| a.iter().zip(x).map(|(a, x)| a * x).sum()).collect()
}

/// a - b.
fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// x + C Aᵀ s.
fn shifted(x: &[f64], cross: &[Vec<f64>], s: &[f64]) -> Vec<f64> {
    let mut out = x.to_vec();
    for (column, s) in cross.iter().zip(s) {
        out.iter_mut().zip(column).for_each(|(o, c)| *o += c * s);
    }
    out
}

/// ln Σ exp(v).
#[must_use]
pub fn log_sum_exp(values: &[f64]) -> f64 {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !max.is_finite() {
        return max;
    }
    max + values.iter().map(|v| (v - max).exp()).sum::<f64>().ln()
}

/// The index that a uniform number u picks among unnormalised log-weights.
#[must_use]
pub fn choose(log_weights: &[f64], u: f64) -> usize {
    let norm = log_sum_exp(log_weights);
    let mut left = u;
    for (k, w) in log_weights.iter().enumerate() {
        left -= (w - norm).exp();
        if left <= 0.0 {
            return k;
        }
    }
    // Rounding left a crumb: the last index that has any weight.
    log_weights.iter().rposition(|w| w.is_finite()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Noise, Purpose};

    /// Two scalar components: posterior weights and mean against Bayes' rule written out.
    #[test]
    fn conditioning_is_bayes_rule() {
        let prior = Mixture::new(
            vec![0.3f64.ln(), 0.7f64.ln()],
            vec![-1.0, 2.0],
            Arc::new(vec![RowCovariance::Scalar(0.5), RowCovariance::Scalar(1.5)]),
        )
        .unwrap();
        let at = LinearMeasurement { matrix: vec![2.0], variance: vec![0.25] };
        let gain = prior.gain(&at).unwrap();
        let y = 0.8;
        let post = prior.condition(&at, &gain, &[y]).unwrap();
        let normal = |x: f64, v: f64| (-0.5 * x * x / v).exp() / v.sqrt();
        let e = [0.3 * normal(y + 2.0, 4.0 * 0.5 + 0.25), 0.7 * normal(y - 4.0, 4.0 * 1.5 + 0.25)];
        assert!((post.log_weights[0].exp() - e[0] / (e[0] + e[1])).abs() < 1e-12);
        let v = 1.0 / (1.0 / 0.5 + 4.0 / 0.25);
        assert!((post.means[0] - v * (-1.0 / 0.5 + 2.0 * y / 0.25)).abs() < 1e-12);

        let n = 40_000;
        let noise = Noise::chains(3, n);
        let at_address = Address::new(0, Purpose::Reference, 0);
        let draws: Vec<f64> = (0..n)
            .map(|i| prior.sample_given(&at, &gain, &[y], &mut noise.stream(i, at_address)).unwrap()[0])
            .collect();
        let mean = draws.iter().sum::<f64>() / n as f64;
        let var = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        let exact = post.mean()[0];
        assert!((mean - exact).abs() < 4.5 * (var / n as f64).sqrt(), "{mean} vs {exact}");
    }

    /// The posterior's covariance is the inverse of the summed precisions, also where the noise is tiny.
    #[test]
    fn posterior_covariance_is_the_inverse_of_summed_precisions() {
        let c = RowCovariance::LowRank { diagonal: 0.3, factor: vec![1.0, 0.5, -0.2] };
        let prior = Mixture::new(vec![0.0], vec![0.1, 0.2, 0.3], Arc::new(vec![c.clone()])).unwrap();
        for variance in [0.4, 1e-12] {
            let a = [1.0, -0.5, 0.25];
            let at = LinearMeasurement { matrix: a.to_vec(), variance: vec![variance] };
            let post = prior.posterior(&at, &[1.0]).unwrap();
            let RowCovariance::Full(got) = post.covariance_of(0) else { panic!() };
            // (C⁻¹ + aaᵀ/v) P = I, applied to P's columns.
            for j in 0..3 {
                let column = got.matrix().col_as_slice(j).to_vec();
                let along: f64 = column.iter().zip(&a).map(|(p, a)| p * a).sum();
                for (i, solved) in c.solve(&column).unwrap().iter().enumerate() {
                    let unit = solved + a[i] * along / variance;
                    assert!((unit - f64::from(u8::from(i == j))).abs() < 1e-4, "{i} {j}: {unit}");
                }
            }
        }
    }

    /// Means given as a shared base and a shift: the same mixture, whether the gain knows the base or not.
    #[test]
    fn a_shift_is_part_of_every_mean() {
        let covariances = Arc::new(vec![RowCovariance::Scalar(0.5)]);
        let (base, shift) = (vec![-1.0, 0.5, 2.0, 0.0], vec![0.3, -0.7]);
        let moved = base.iter().enumerate().map(|(i, m)| m + shift[i % 2]).collect();
        let plain = Mixture::new(vec![0.0, 0.5], moved, Arc::clone(&covariances)).unwrap();
        let mut shifted = Mixture::new(vec![0.0, 0.5], base, covariances).unwrap();
        shifted.shift = Some(shift);
        let at = LinearMeasurement { matrix: vec![1.0, -0.5, 0.2, 0.8], variance: vec![0.1, 0.3] };
        let (x, y) = ([0.4, 0.9], [0.2, -0.6]);
        let draw = |m: &Mixture, gain: &Gain| {
            let mut rng = Noise::chains(0, 1).stream(0, Address::new(0, Purpose::Reference, 0));
            m.sample_given(&at, gain, &y, &mut rng).unwrap()
        };
        let (own, other) = (shifted.gain(&at).unwrap(), plain.gain(&at).unwrap());
        let exact = [draw(&plain, &other), plain.mean(), vec![plain.log_prob(&x).unwrap()]].concat();
        for gain in [&own, &other] {
            let got = [draw(&shifted, gain), shifted.mean(), vec![shifted.log_prob(&x).unwrap()]].concat();
            assert!(got.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?} vs {exact:?}");
        }
    }

    #[test]
    fn choose_follows_the_weights_and_survives_rounding() {
        let w = [0.2f64.ln(), f64::NEG_INFINITY, 0.8f64.ln()];
        assert_eq!(choose(&w, 0.1), 0);
        assert_eq!(choose(&w, 0.2000001), 2);
        assert_eq!(choose(&w, 1.0 - 1e-17), 2);
    }
}
