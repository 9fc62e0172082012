//! Priors of every form and a dense operator, for tests.
#![allow(dead_code)]

pub mod golden;

use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::mixture::Mixture;
use daps_core::tensors::{batched, map_rows, to_f64};
use daps_core::{Address, Full, Linear, Noise, Operator, Purpose, Result, RowCovariance, Sigma};
use daps_priors::{Analytic, Empirical, GaussianMixture};
use faer::Mat;

pub const AT: Address = Address { level: 0, purpose: Purpose::Reference, index: 0 };

pub fn tensor(values: Vec<f64>, shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

pub fn values(t: &Tensor) -> Vec<f64> {
    to_f64(t).unwrap()
}

pub fn normals(seed: u64, rows: usize, shape: &[usize]) -> Tensor {
    Noise::chains(seed, rows).normal(AT, shape, DType::F64).unwrap()
}

pub fn full(d: usize, values: &[f64]) -> RowCovariance {
    RowCovariance::Full(Full::new(Mat::from_fn(d, d, |i, j| values[i * d + j])).unwrap())
}

/// A positive definite matrix that depends on a seed.
pub fn random_full(d: usize, seed: u64) -> RowCovariance {
    let z = values(&normals(seed, d, &[d]));
    let c = Mat::from_fn(d, d, |i, j| {
        let product: f64 = (0..d).map(|k| z[i * d + k] * z[j * d + k]).sum();
        0.3 * product / d as f64 + if i == j { 0.2 } else { 0.0 }
    });
    RowCovariance::Full(Full::new(c).unwrap())
}

pub fn mixture(shape: &[usize], weights: &[f64], seed: u64, covs: Vec<RowCovariance>) -> GaussianMixture {
    let d: usize = shape.iter().product();
    let means = values(&normals(seed, weights.len(), &[d]));
    let logs = weights.iter().map(|w| w.ln()).collect();
    GaussianMixture::new(shape, Mixture::new(logs, means, Arc::new(covs)).unwrap()).unwrap()
}

/// One prior of every form over samples of a shape.
pub fn priors(shape: &[usize]) -> Vec<(&'static str, Box<dyn Analytic>)> {
    use RowCovariance::{Diagonal, Scalar};
    let d: usize = shape.iter().product();
    let ramp = |a: f64| Diagonal((0..d).map(|i| a * (1.0 + i as f64 / d as f64)).collect());
    let mean: Vec<f64> = (0..d).map(|i| (i as f64).sin()).collect();
    let w = [0.5, 0.2, 0.3];
    let gaussian = |c| Box::new(GaussianMixture::gaussian(shape, mean.clone(), c).unwrap());
    let mixed = |covs| Box::new(mixture(shape, &w, 7, covs));
    let points = normals(9, 40, shape);
    let logs = (0..40).map(|i| -0.05 * f64::from(i)).collect();
    vec![
        ("gaussian scalar", gaussian(Scalar(0.4))),
        ("gaussian diagonal", gaussian(ramp(0.3))),
        ("gaussian full", gaussian(random_full(d, 1))),
        ("mixture of one scalar", mixed(vec![Scalar(0.2)])),
        ("mixture of scalars", mixed(vec![Scalar(0.2), Scalar(0.5), Scalar(0.1)])),
        ("mixture of one diagonal", mixed(vec![ramp(0.2)])),
        ("mixture of diagonals", mixed(vec![ramp(0.2), ramp(0.1), ramp(0.4)])),
        ("mixture of one full", mixed(vec![random_full(d, 2)])),
        ("mixture of fulls", mixed(vec![random_full(d, 2), random_full(d, 3), random_full(d, 4)])),
        ("mixture of all forms", mixed(vec![Scalar(0.2), ramp(0.3), random_full(d, 4)])),
        ("empirical", Box::new(Empirical::new(&points).unwrap())),
        ("weighted empirical", Box::new(Empirical::weighted(&points, logs).unwrap())),
    ]
}

/// D at one point.
pub fn denoised(prior: &dyn Analytic, x: &[f64], sigma: f64) -> Vec<f64> {
    let x = tensor(x.to_vec(), &batched(1, prior.shape()));
    values(&prior.denoise(&x, &Sigma::Same(sigma)).unwrap())
}

/// ∂D/∂x at one point by central differences, `d x d` with ∂D_i/∂x_j at (i, j).
pub fn jacobian(prior: &dyn Analytic, x: &[f64], sigma: f64) -> Vec<f64> {
    let (d, h) = (x.len(), 1e-5 * sigma.min(1.0));
    let mut out = vec![0.0; d * d];
    for j in 0..d {
        let mut moved = x.to_vec();
        moved[j] = x[j] + h;
        let up = denoised(prior, &moved, sigma);
        moved[j] = x[j] - h;
        let down = denoised(prior, &moved, sigma);
        (0..d).for_each(|i| out[i * d + j] = (up[i] - down[i]) / (2.0 * h));
    }
    out
}

pub fn assert_close(got: &[f64], exact: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), exact.len(), "{what}");
    let scale = exact.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
    for (i, (g, e)) in got.iter().zip(exact).enumerate() {
        assert!((g - e).abs() <= tolerance * scale, "{what}, entry {i}: {g} vs {e}");
    }
}

/// y = A x with a matrix for every row of the batch, or one for all.
pub struct Dense {
    pub input: Vec<usize>,
    pub output: Vec<usize>,
    pub matrices: Vec<Vec<f64>>,
}

impl Dense {
    fn times(&self, v: &Tensor, from: &[usize], to: &[usize], transpose: bool) -> Result<Tensor> {
        let d: usize = self.input.iter().product();
        map_rows::<f64>("x", v, from, to, |row, v, out| {
            let a = &self.matrices[if self.matrices.len() == 1 { 0 } else { row }];
            let at = |o: usize, i: usize| if transpose { a[i * d + o] } else { a[o * d + i] };
            for (o, out) in out.iter_mut().enumerate() {
                *out = v.iter().enumerate().map(|(i, v)| at(o, i) * v).sum();
            }
        })
    }
}

impl Operator for Dense {
    fn name(&self) -> &'static str {
        "dense"
    }
    fn input_shape(&self) -> &[usize] {
        &self.input
    }
    fn output_shape(&self) -> &[usize] {
        &self.output
    }
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        self.times(x, &self.input, &self.output, false)
    }
    fn rows(&self) -> Option<usize> {
        (self.matrices.len() > 1).then_some(self.matrices.len())
    }
    fn select(self: Arc<Self>, rows: &[usize]) -> Result<Arc<dyn Operator>> {
        if self.matrices.len() == 1 {
            return Ok(self);
        }
        let matrices = rows.iter().map(|&r| self.matrices[r].clone()).collect();
        Ok(Arc::new(Self { input: self.input.clone(), output: self.output.clone(), matrices }))
    }
    fn as_linear(&self) -> Option<&dyn Linear> {
        Some(self)
    }
}

impl Linear for Dense {
    fn adjoint(&self, r: &Tensor) -> Result<Tensor> {
        self.times(r, &self.output, &self.input, true)
    }
    fn norm_squared(&self) -> Option<Vec<f64>> {
        Some(self.matrices.iter().map(|m| m.iter().map(|a| a * a).sum()).collect())
    }
}

/// y = x², which is not linear.
pub struct Square;

impl Operator for Square {
    fn name(&self) -> &'static str {
        "square"
    }
    fn input_shape(&self) -> &[usize] {
        &[2]
    }
    fn output_shape(&self) -> &[usize] {
        &[2]
    }
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.sqr()?)
    }
    fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }
}
