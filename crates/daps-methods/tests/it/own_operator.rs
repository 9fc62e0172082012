//! Operators that give no more than they must, under the presets: a linear one has an adjoint, any other a vjp, and neither a
//! norm, a bound nor a name that anything knows.

use std::sync::Arc;

use daps_core::candle::{DType, Tensor};
use daps_core::tensors::{from_f64, map_rows, to_f64, zip_rows};
use daps_core::{
    Differentiable, Estimate, Gaussian, Linear, Method, Noise, Operator, Problem, Result, RowCovariance,
    Schedule, Smooth, Spectral, linear_measurement,
};
use daps_methods::kernel::{KernelConfig, Recursion, StepSize};
use daps_methods::{Daps, Preset};
use daps_metrics::moments::Moments;
use daps_operators::Dense;
use daps_priors::GaussianMixture;

const SHAPE: [usize; 3] = [1, 2, 3];
const D: usize = 6;
const CHAINS: usize = 8000;
const P: f64 = 1e-5;
/// The prior of every pixel.
const MEAN: f64 = 0.2;
const VARIANCE: f64 = 0.3;

/// y_i = w_i x_i + c x_(i+1), whose name is made when the program runs.
struct Weighted {
    name: String,
    weights: [f64; D],
    next: f64,
}

impl Weighted {
    fn new(weights: [f64; D], next: f64) -> Arc<Self> {
        Arc::new(Self { name: format!("own-{}", 1 + 1), weights, next })
    }
}

impl Operator for Weighted {
    fn name(&self) -> &str {
        &self.name
    }
    fn input_shape(&self) -> &[usize] {
        &SHAPE
    }
    fn output_shape(&self) -> &[usize] {
        &[D]
    }
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        map_rows::<f64>(&self.name, x, &SHAPE, &[D], |_, x, out| {
            for i in 0..D {
                out[i] = self.weights[i] * x[i] + self.next * x.get(i + 1).copied().unwrap_or(0.0);
            }
        })
    }
    fn select(self: Arc<Self>, _: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }
    fn as_linear(&self) -> Option<&dyn Linear> {
        Some(self)
    }
}

impl Linear for Weighted {
    fn adjoint(&self, r: &Tensor) -> Result<Tensor> {
        map_rows::<f64>(&self.name, r, &[D], &SHAPE, |_, r, out| {
            for i in 0..D {
                let before = if i > 0 { self.next * r[i - 1] } else { 0.0 };
                out[i] = self.weights[i] * r[i] + before;
            }
        })
    }
}

/// y = x + 0.4 sin 2x, pixel by pixel, which it does not tell.
struct Wavy;

impl Wavy {
    fn value(x: f64) -> f64 {
        x + 0.4 * (2.0 * x).sin()
    }
}

impl Operator for Wavy {
    fn name(&self) -> &str {
        "wavy"
    }
    fn input_shape(&self) -> &[usize] {
        &SHAPE
    }
    fn output_shape(&self) -> &[usize] {
        &SHAPE
    }
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        map_rows::<f64>("wavy", x, &SHAPE, &SHAPE, |_, x, out| {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = Self::value(*x));
        })
    }
    fn select(self: Arc<Self>, _: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }
    fn as_differentiable(&self) -> Option<&dyn Differentiable> {
        Some(self)
    }
}

impl Differentiable for Wavy {
    fn vjp(&self, x: &Tensor, r: &Tensor) -> Result<Tensor> {
        zip_rows::<f64>("wavy", (x, &SHAPE), (r, &SHAPE), &SHAPE, |_, x, r, out| {
            for i in 0..D {
                out[i] = (1.0 + 0.8 * (2.0 * x[i]).cos()) * r[i];
            }
        })
    }
}

const Y: [f64; D] = [0.9, -0.4, 0.1, 1.3, -1.1, 0.5];

/// Chains that all explain the same measurement.
fn task(operator: Arc<dyn Operator>, beta: f64) -> (Problem, Arc<Gaussian>) {
    let dims = [&[CHAINS], operator.output_shape()].concat();
    let y = from_f64(Y.iter().copied().cycle().take(CHAINS * D).collect(), &dims, DType::F64).unwrap();
    let prior = GaussianMixture::gaussian(&SHAPE, vec![MEAN; D], RowCovariance::Scalar(VARIANCE)).unwrap();
    let likelihood = Arc::new(Gaussian::new(operator, y, beta).unwrap());
    (Problem::new(Arc::new(prior), likelihood.clone()).unwrap(), likelihood)
}

fn drawn(daps: &Daps, task: &Problem) -> Moments {
    daps.check(task).unwrap();
    let samples = daps.sample(task, &Noise::chains(3, CHAINS), None, &mut ()).unwrap();
    assert!(samples.diverged.iter().all(|d| !d));
    Moments::new(&to_f64(&samples.x).unwrap(), D).unwrap()
}

/// The norm that nobody gave is found, and is an upper bound within a factor of two.
#[test]
fn a_norm_that_is_not_given_is_found() {
    let (_, likelihood) = task(Weighted::new([1.0, 0.7, 0.4, 1.2, 0.1, 0.9], 0.5), 0.2);
    let (at, _) = linear_measurement(&likelihood, 0).unwrap();
    let matrix = from_f64(at.matrix, &[1, D, D], DType::F64).unwrap();
    let largest = Dense::new(&SHAPE, &matrix).unwrap().singular()[0][0].powi(2);
    let found = likelihood.norm_squared().unwrap();
    assert!(found.len() == 1 && found[0] > largest && found[0] < 2.0 * largest, "{found:?} {largest}");
    let curvature = likelihood.curvature().unwrap();
    assert!((curvature[0] - found[0] / 0.04).abs() < 1e-9 * curvature[0]);
}

/// Exact draws through conjugate gradients, against dense algebra.
#[test]
fn best_draws_the_posterior_of_a_linear_operator_that_has_an_adjoint_alone() {
    let (task, likelihood) = task(Weighted::new([1.0, 0.7, 0.4, 1.2, 0.1, 0.9], 0.5), 0.2);
    let daps = Preset::Best.settings(&*task.likelihood, None, None).unwrap();
    assert!(matches!(daps.kernel, KernelConfig::Exact(_)), "{:?}", daps.kernel);
    let (at, y) = linear_measurement(&likelihood, 0).unwrap();
    let prior = GaussianMixture::gaussian(&SHAPE, vec![MEAN; D], RowCovariance::Scalar(VARIANCE)).unwrap();
    let posterior = prior.mixture().posterior(&at, &y).unwrap();
    let matrix = posterior.covariance();
    let dense: Vec<f64> = (0..D * D).map(|k| matrix[(k / D, k % D)]).collect();
    let comparison = drawn(&daps, &task).compare(&posterior.mean(), &dense).unwrap();
    assert!(comparison.agrees(P), "{comparison:?}");
}

/// The paper's preset is over-confident by design; what it draws has the law of its own recursion, pixel by pixel, with steps of
/// half an inverse curvature.
#[test]
fn paper_follows_its_own_law_with_steps_from_the_curvature() {
    let weights = [1.0, 0.7, 0.4, 1.2, 0.1, 0.9];
    let (task, likelihood) = task(Weighted::new(weights, 0.0), 0.05);
    let daps = Preset::Paper.settings(&*task.likelihood, Some("50"), None).unwrap();
    let KernelConfig::Langevin(langevin) = &daps.kernel else { panic!("{:?}", daps.kernel) };
    assert_eq!(langevin.step_size, StepSize::Curvature { factor: 0.5 });
    let Estimate::Gaussian { center: daps_core::Center::Ode(ode), .. } = &daps.estimate else { panic!() };
    let (norm, beta) = (likelihood.norm_squared().unwrap()[0], daps.beta.unwrap());
    let schedule = Schedule::new(&daps.schedule).unwrap();
    let prior = GaussianMixture::gaussian(&[1], vec![MEAN], RowCovariance::Scalar(VARIANCE)).unwrap();
    let (mut mean, mut variance) = ([0.0; D], [schedule.sigmas()[0].powi(2); D]);
    for step in schedule.steps() {
        // The ODE's endpoint is an affine function of x_t: from two points, its offset and slope.
        let probes = from_f64(vec![0.0, 1.0], &[2, 1], DType::F64).unwrap();
        let ends = to_f64(&ode.solve(&prior, &probes, &step).unwrap().0).unwrap();
        let (offset, slope) = (ends[0], ends[1] - ends[0]);
        let (tight, data) = (step.sigma.powi(-2), beta.powi(-2));
        let eta = 0.5 / (tight + data * norm);
        for i in 0..D {
            let h = tight + data * weights[i].powi(2);
            let recursion = Recursion::new(eta, h, langevin.steps);
            // x0|y = m + decay (x̂0 - m) + spread z with m = (x̂0/σ² + w y/β²)/h.
            let gain = recursion.decay + (1.0 - recursion.decay) * tight / h;
            let pull = (1.0 - recursion.decay) * data * weights[i] * Y[i] / h;
            mean[i] = gain * (offset + slope * mean[i]) + pull;
            variance[i] = (gain * slope).powi(2) * variance[i] + recursion.spread.powi(2) + step.next.powi(2);
        }
    }
    let covariance: Vec<f64> =
        (0..D * D).map(|k| if k / D == k % D { variance[k / D] } else { 0.0 }).collect();
    let comparison = drawn(&daps, &task).compare(&mean, &covariance).unwrap();
    assert!(comparison.agrees(P), "{comparison:?}");
}

/// Dynamics whose steps follow the slope around the chain, against numerical integration of every pixel.
#[test]
fn best_draws_the_posterior_of_a_nonlinear_operator_that_has_a_vjp_alone() {
    let beta = 0.3;
    let (task, likelihood) = task(Arc::new(Wavy), beta);
    assert_eq!(likelihood.curvature(), None);
    let daps = Preset::Best.settings(&*task.likelihood, None, None).unwrap();
    assert!(matches!(daps.kernel, KernelConfig::Underdamped(_)), "{:?}", daps.kernel);
    let (mut mean, mut covariance) = ([0.0; D], [0.0; D * D]);
    for i in 0..D {
        let (mut mass, mut first, mut second) = (0.0, 0.0, 0.0);
        for k in -40_000..=40_000 {
            let x = f64::from(k) * 1e-4;
            let log = -(x - MEAN).powi(2) / (2.0 * VARIANCE)
                - (Wavy::value(x) - Y[i]).powi(2) / (2.0 * beta * beta);
            let w = log.exp();
            (mass, first, second) = (mass + w, first + w * x, second + w * x * x);
        }
        mean[i] = first / mass;
        covariance[i * D + i] = second / mass - mean[i].powi(2);
    }
    let moments = drawn(&daps, &task);
    let comparison = moments.compare(&mean, &covariance).unwrap();
    assert!(comparison.agrees(P), "{comparison:?}");
}

/// Around a point where the slope is known, the curvature is that of the steepest pixel, with the margin of 1.2.
#[test]
fn the_curvature_of_a_map_without_a_bound_is_found_where_the_chain_is() {
    let (_, likelihood) = task(Arc::new(Wavy), 0.5);
    let point = [0.3, 0.9, -0.2, 1.4, 0.6, -1.0];
    let x =
        from_f64(point.iter().copied().cycle().take(CHAINS * D).collect(), &[CHAINS, 1, 2, 3], DType::F64);
    let found = likelihood.curvature_at(&x.unwrap()).unwrap();
    let steepest = point.iter().map(|x| (1.0 + 0.8 * (2.0 * x).cos()).powi(2)).fold(0.0, f64::max) / 0.25;
    assert!(found.iter().all(|f| (f / steepest - 1.2).abs() < 0.1), "{} vs {steepest}", found[0]);
}
