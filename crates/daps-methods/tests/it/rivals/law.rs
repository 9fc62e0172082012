//! The problem that all rivals meet, and the comparison of samples with a law in closed form.

use std::sync::Arc;

use daps_core::candle::DType;
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Denoiser, Gaussian, Method, Noise, Operator, Problem, RowCovariance, Schedule, ScheduleRule,
};
use daps_operators::Dense;
use daps_priors::GaussianMixture;

pub const CHAINS: usize = 4000;
pub const BETA: f64 = 0.3;
/// Prior means and deviations, singular values (the last coordinate is not measured) and measurements.
pub const MEAN: [f64; 4] = [0.2, -0.5, 0.1, 0.4];
pub const STD: [f64; 4] = [1.0, 0.5, 0.8, 0.7];
pub const SINGULAR: [f64; 4] = [2.0, 1.0, 0.05, 0.0];
pub const Y: [f64; 3] = [1.5, -0.2, 0.4];

pub fn prior() -> GaussianMixture {
    let variance = RowCovariance::Diagonal(STD.iter().map(|s| s * s).collect());
    GaussianMixture::gaussian(&[4], MEAN.to_vec(), variance).unwrap()
}

pub fn task(prior: Arc<dyn Denoiser>, chains: usize) -> Problem {
    let mut matrix = vec![0.0; 12];
    (0..3).for_each(|i| matrix[i * 4 + i] = SINGULAR[i]);
    let matrix = from_f64(matrix, &[1, 3, 4], DType::F64).unwrap();
    let operator: Arc<dyn Operator> = Arc::new(Dense::new(&[4], &matrix).unwrap());
    let y = from_f64(Y.repeat(chains), &[chains, 3], DType::F64).unwrap();
    Problem::new(prior, Arc::new(Gaussian::new(operator, y, BETA).unwrap())).unwrap()
}

pub fn draw(method: &dyn Method, chains: usize) -> Vec<f64> {
    let samples =
        method.sample(&task(Arc::new(prior()), chains), &Noise::chains(3, chains), None, &mut ()).unwrap();
    to_f64(&samples.x).unwrap()
}

/// A scalar Gaussian that is pushed through affine maps.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    pub mean: f64,
    pub variance: f64,
}

impl Law {
    pub fn pushed(self, a: f64, b: f64, c: f64) -> Self {
        Self { mean: a * self.mean + b, variance: a * a * self.variance + c }
    }
}

/// D(x, σ) = (p, q) with D = p x + q for coordinate i.
pub fn denoiser(i: usize, sigma: f64) -> (f64, f64) {
    let (v, s) = (STD[i] * STD[i], sigma * sigma);
    (v / (v + s), s / (v + s) * MEAN[i])
}

pub fn measured(i: usize) -> f64 {
    if i < 3 { Y[i] } else { f64::NAN }
}

/// Moments of every coordinate agree with a law to 4.5 standard errors.
pub fn agrees(name: &str, values: &[f64], law: impl Fn(usize) -> Law) {
    let n = (values.len() / 4) as f64;
    for i in 0..4 {
        let column: Vec<f64> = values.iter().skip(i).step_by(4).copied().collect();
        let mean = column.iter().sum::<f64>() / n;
        let variance = column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let law = law(i);
        let error = (law.variance / n).sqrt();
        assert!((mean - law.mean).abs() < 4.5 * error + 1e-9, "{name}[{i}]: mean {mean}, expected {law:?}");
        let relative = variance / law.variance - 1.0;
        assert!(
            law.variance < 1e-18 || relative.abs() < 4.5 * (2.0 / n).sqrt(),
            "{name}[{i}]: variance {variance}, expected {law:?}"
        );
    }
}

pub fn levels(rule: &ScheduleRule) -> Vec<(f64, f64)> {
    Schedule::new(rule).unwrap().steps().map(|s| (s.sigma, s.next)).collect()
}

/// A method's own levels, and a few at a time. What a method does at its first levels is forgotten by the last of many: of one
/// level the answer is D of the start; of two, the last noise is seen in it; the third choice has all weights large.
pub fn schedules(own: &ScheduleRule) -> Vec<ScheduleRule> {
    let few: [&[f64]; 3] = [&[0.4, 0.0], &[0.9, 0.31, 0.0], &[3.0, 1.0, 0.5, 0.0]];
    std::iter::once(own.clone()).chain(few.map(|l| ScheduleRule::Levels { sigmas: l.to_vec() })).collect()
}
