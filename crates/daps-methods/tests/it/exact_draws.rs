//! Exact draws against closed forms: for every linear operator of the registry, 20,000 draws of p(x0 | x_t) p(y | x0)
//! have the conditional's mean and covariance, whichever way they are drawn; replayed chains have the law of the loop.

use std::sync::Arc;

use daps_core::candle::{DType, Tensor};
use daps_core::mixture::Mixture;
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Approx, Beta, Conditional, Cosines, Covariance, Frequency, Gaussian, Noise, Operator, Purpose,
    Row, RowCovariance, Step, linear_measurement,
};
use daps_methods::kernel::{Exact, KernelConfig, Langevin, Replay, StepSize, Underdamped, Way};
use daps_metrics::moments::Moments;
use daps_operators::registry::OPERATORS;
use daps_operators::{Hdr, Inpainting, box_mask};

const DRAWS: usize = 20_000;
/// Chance that one correct comparison fails.
const P: f64 = 1e-5;
const STEP: Step = Step { index: 3, of: 10, start: 10.0, sigma: 0.4, next: 0.2 };

/// One row of an example operator, a measurement, and a centre for p(x0 | x_t).
struct TestBed {
    operator: Arc<dyn Operator>,
    y: Vec<f64>,
    center: Vec<f64>,
}

impl TestBed {
    fn new(name: &str) -> Option<Self> {
        let entry = OPERATORS.iter().find(|o| o.name == name).unwrap();
        let example = (entry.example)([1, 4, 5], 3).unwrap();
        let operator = Arc::clone(&example.operator);
        operator.as_linear()?;
        let one = example.x.narrow(0, 0, 1).unwrap().contiguous().unwrap();
        let operator = if operator.rows().is_some() { operator.select(&[0]).unwrap() } else { operator };
        Some(Self::measured(operator, &one))
    }

    fn measured(operator: Arc<dyn Operator>, x: &Tensor) -> Self {
        let y = to_f64(&operator.apply(x).unwrap()).unwrap().iter().map(|v| v + 0.1).collect();
        let center = to_f64(x).unwrap().iter().map(|v| 0.8 * v).collect();
        Self { operator, y, center }
    }

    fn repeated(&self, values: &[f64], rows: usize, shape: &[usize]) -> Tensor {
        let dims: Vec<usize> = std::iter::once(rows).chain(shape.iter().copied()).collect();
        from_f64(values.iter().copied().cycle().take(rows * values.len()).collect(), &dims, DType::F64)
            .unwrap()
    }

    fn likelihood(&self, rows: usize, beta: f64) -> Gaussian {
        let operator = Arc::clone(&self.operator);
        let operator =
            if operator.rows().is_some() { operator.select(&vec![0; rows]).unwrap() } else { operator };
        let y = self.repeated(&self.y, rows, self.operator.output_shape());
        Gaussian::new(operator, y, beta).unwrap()
    }

    fn approx(&self, rows: usize, covariance: Covariance) -> Approx<'static> {
        let mean = self.repeated(&self.center, rows, self.operator.input_shape());
        Approx::Gaussian { mean: mean.clone(), covariance, start: mean }
    }

    /// The conditional by dense algebra.
    fn exact(&self, likelihood: &Gaussian, covariance: &RowCovariance) -> Mixture {
        let (at, y) = linear_measurement(likelihood, 0).unwrap();
        let prior = Mixture::new(vec![0.0], self.center.clone(), Arc::new(vec![covariance.clone()])).unwrap();
        prior.posterior(&at, &y).unwrap()
    }

    fn check(&self, what: &str, kernel: &KernelConfig, covariance: &Covariance, likelihood: &Gaussian) {
        let approx = self.approx(DRAWS, covariance.clone());
        let target = Conditional { approx: &approx, likelihood };
        let (x, info) = kernel.build().unwrap().draw(&target, &Noise::chains(17, DRAWS), &STEP).unwrap();
        assert!(info.diverged.iter().all(|d| !d), "{what}");
        let exact = self.exact(likelihood, &covariance.row(0).unwrap());
        let d = self.center.len();
        let matrix = exact.covariance();
        let dense: Vec<f64> = (0..d * d).map(|k| matrix[(k / d, k % d)]).collect();
        let comparison =
            Moments::new(&to_f64(&x).unwrap(), d).unwrap().compare(&exact.mean(), &dense).unwrap();
        assert!(comparison.agrees(P), "{} {what}: {comparison:?}", self.operator.name());
    }
}

fn linear_problems() -> Vec<TestBed> {
    let problems: Vec<TestBed> = OPERATORS.iter().filter_map(|o| TestBed::new(o.name)).collect();
    assert!(problems.len() >= 8, "the registry has {} linear operators", problems.len());
    problems
}

#[test]
fn every_linear_operator_draws_its_conditional() {
    for problem in linear_problems() {
        let covariance = Covariance::Scalar(vec![0.16]);
        let likelihood = problem.likelihood(DRAWS, 0.3);
        problem.check("auto", &KernelConfig::Exact(Exact::default()), &covariance, &likelihood);
    }
}

#[test]
fn conjugate_gradients_draw_the_same_conditional() {
    for problem in linear_problems() {
        let kernel =
            KernelConfig::Exact(Exact { way: Way::ConjugateGradient, tolerance: 1e-7, ..Exact::default() });
        let likelihood = problem.likelihood(DRAWS, 0.3);
        problem.check("by conjugate gradients", &kernel, &Covariance::Scalar(vec![0.16]), &likelihood);
    }
}

#[test]
fn diagonal_spreads_and_noise_that_differs_from_value_to_value() {
    for problem in linear_problems() {
        let (d, m) = (problem.center.len(), problem.y.len());
        let variances: Vec<f64> = (0..d).map(|i| 0.05 + 0.3 * (i % 4) as f64).collect();
        let betas: Vec<f64> = (0..m).map(|i| 0.2 + 0.1 * (i % 3) as f64).collect();
        let shape = problem.operator.input_shape().to_vec();
        let covariance = Covariance::Diagonal(problem.repeated(&variances, DRAWS, &shape));
        let same = problem.likelihood(DRAWS, 0.3);
        let beta = Beta::Each(problem.repeated(&betas, 1, problem.operator.output_shape()));
        let likelihood = Gaussian::new(Arc::clone(same.operator()), same.y().clone(), beta).unwrap();
        problem.check("diagonal", &KernelConfig::Exact(Exact::default()), &covariance, &likelihood);
    }
}

#[test]
fn spreads_by_frequency() {
    // A hole that is wide enough to be treated as one.
    let shape = [1, 8, 7];
    let mask = box_mask(8, 7, 5, 1, 3).unwrap();
    let x = Noise::chains(5, 1).normal(Address::new(0, Purpose::Instance, 0), &shape, DType::F64).unwrap();
    let wide = TestBed::measured(Arc::new(Inpainting::new(&shape, &mask).unwrap()), &x);
    for problem in linear_problems().into_iter().chain([wide]) {
        let shape = problem.operator.input_shape();
        // Operators on vectors have no frequencies.
        let Ok(cosines) = Cosines::new(shape) else { continue };
        let variances = (0..problem.center.len()).map(|i| 2.0 / (1.0 + i as f64)).collect();
        let covariance = Covariance::Frequency(Frequency::new(Arc::new(cosines), variances).unwrap());
        problem.check(
            "by frequency",
            &KernelConfig::Exact(Exact::default()),
            &covariance,
            &problem.likelihood(DRAWS, 0.3),
        );
    }
}

/// On Gaussian targets the dynamics' positions have the conditional's law at any step in time, once the start is forgotten.
#[test]
fn underdamped_dynamics_end_in_the_conditional() {
    for name in ["super_resolution", "inpaint_random", "gaussian_blur", "motion_blur"] {
        let problem = TestBed::new(name).unwrap();
        let likelihood = problem.likelihood(DRAWS, 0.3);
        let kernel = KernelConfig::Underdamped(Underdamped { steps: 60, time_step: 1.0 });
        problem.check("dynamics", &kernel, &Covariance::Scalar(vec![0.16]), &likelihood);
        let cosines = Arc::new(Cosines::new(problem.operator.input_shape()).unwrap());
        let variances = (0..problem.center.len()).map(|i| 2.0 / (1.0 + i as f64)).collect();
        let covariance = Covariance::Frequency(Frequency::new(cosines, variances).unwrap());
        problem.check("dynamics by frequency", &kernel, &covariance, &likelihood);
    }
}

#[test]
fn full_covariances_go_through_dense_algebra() {
    for name in ["super_resolution", "motion_blur", "dense"] {
        let problem = TestBed::new(name).unwrap();
        let factor: Vec<f64> = (0..2 * problem.center.len()).map(|i| (i as f64 * 0.7).sin() * 0.4).collect();
        let row = RowCovariance::LowRank { diagonal: 0.05, factor };
        let likelihood = problem.likelihood(DRAWS, 0.3);
        let covariance = Covariance::Dense(vec![row; DRAWS]);
        problem.check("low rank", &KernelConfig::Exact(Exact::default()), &covariance, &likelihood);
    }
}

/// A hidden pixel carries no information: whatever stands in the measurement's hole changes nothing, to the bit.
#[test]
fn the_hole_of_a_mask_is_ignored() {
    let problem = TestBed::new("inpaint_box").unwrap();
    let draw = |filler: f64| {
        let hidden = to_f64(
            &problem
                .operator
                .apply(&problem.repeated(&vec![1.0; problem.center.len()], 1, problem.operator.input_shape()))
                .unwrap(),
        )
        .unwrap();
        assert!(hidden.contains(&0.0) && hidden.contains(&1.0));
        let y: Vec<f64> =
            problem.y.iter().zip(&hidden).map(|(y, seen)| if *seen == 0.0 { filler } else { *y }).collect();
        let y = problem.repeated(&y, 50, problem.operator.output_shape());
        let likelihood = Gaussian::new(Arc::clone(&problem.operator), y, 0.05).unwrap();
        let approx = problem.approx(50, Covariance::Scalar(vec![0.16]));
        let target = Conditional { approx: &approx, likelihood: &likelihood };
        let kernel = KernelConfig::Exact(Exact::default()).build().unwrap();
        to_f64(&kernel.draw(&target, &Noise::chains(1, 50), &STEP).unwrap().0).unwrap()
    };
    assert_eq!(draw(0.0), draw(123.0));
}

/// A chain that left the finite numbers stays there, and its neighbour draws what it draws alone.
#[test]
fn a_mean_that_is_not_a_number_ends_neither_the_pixelwise_draw_nor_the_neighbour() {
    let kernel = KernelConfig::Exact(Exact::default()).build().unwrap();
    let draw = |rows: &[(u64, f64)]| {
        let dims = [rows.len(), 6];
        let mean = rows.iter().flat_map(|(_, mean)| [*mean; 6]).collect();
        let mean = from_f64(mean, &dims, DType::F64).unwrap();
        let y = from_f64(vec![0.9; 6 * rows.len()], &dims, DType::F64).unwrap();
        let likelihood = Gaussian::new(Arc::new(Hdr::new(&[6], 2.0).unwrap()), y, 0.05).unwrap();
        let covariance = Covariance::Scalar(vec![0.16]);
        let approx = Approx::Gaussian { mean: mean.clone(), covariance, start: mean };
        let target = Conditional { approx: &approx, likelihood: &likelihood };
        let rows = rows.iter().map(|(chain, _)| Row { measurement: 0, chain: *chain }).collect();
        to_f64(&kernel.draw(&target, &Noise::new(7, rows), &STEP).unwrap().0).unwrap()
    };
    let both = draw(&[(0, f64::NAN), (1, 0.4)]);
    assert!(both[..6].iter().all(|v| v.is_nan()), "{both:?}");
    assert_eq!(draw(&[(1, 0.4)]), both[6..]);
}

/// The replayed law, draw by draw: its mean and covariance equal those of the looped chain.
#[test]
fn replay_has_the_moments_of_the_looped_chain() {
    for name in ["super_resolution", "inpaint_random", "gaussian_blur", "dense"] {
        let problem = TestBed::new(name).unwrap();
        let likelihood = problem.likelihood(DRAWS, 0.1);
        let approx = problem.approx(DRAWS, Covariance::Scalar(vec![0.16]));
        let target = Conditional { approx: &approx, likelihood: &likelihood };
        let step_size = StepSize::decay(2e-3);
        let draw = |kernel: KernelConfig, seed: u64| {
            let (x, _) = kernel.build().unwrap().draw(&target, &Noise::chains(seed, DRAWS), &STEP).unwrap();
            Moments::new(&to_f64(&x).unwrap(), problem.center.len()).unwrap()
        };
        let looped = draw(KernelConfig::Langevin(Langevin { steps: 30, step_size: step_size.clone() }), 1);
        let replayed = draw(KernelConfig::Replay(Replay { steps: 30, step_size }), 2);
        let z = |a: &[f64], ea: &[f64], b: &[f64], eb: &[f64]| {
            (0..a.len()).map(|i| (a[i] - b[i]).abs() / (ea[i].hypot(eb[i]) + 1e-12)).fold(0.0, f64::max)
        };
        let mean = z(&looped.mean, &looped.mean_error, &replayed.mean, &replayed.mean_error);
        let covariance =
            z(&looped.covariance, &looped.covariance_error, &replayed.covariance, &replayed.covariance_error);
        let limit = daps_metrics::special::max_z_bound(looped.covariance.len(), P);
        assert!(mean < limit && covariance < limit, "{name}: {mean:.2}, {covariance:.2}, limit {limit:.2}");
    }
}

/// Without noise the loop and its closed form are the same affine map: they agree to rounding in every direction.
#[test]
fn replay_without_noise_is_the_loop_to_rounding() {
    for problem in linear_problems().iter().filter(|p| p.operator.as_spectral().is_some()) {
        let likelihood = problem.likelihood(1, 0.1);
        let approx = problem.approx(1, Covariance::Scalar(vec![0.16]));
        let target = Conditional { approx: &approx, likelihood: &likelihood };
        let step_size = StepSize::decay(2e-3);
        let shape = problem.operator.input_shape();
        let d = problem.center.len();
        // Where the modes are a whole basis, replay draws its noise along them.
        let modes = problem.operator.as_spectral().map_or(0, |s| s.singular()[0].len());
        let along: &[usize] = if modes == d { &[d] } else { shape };
        let draw = |kernel: KernelConfig, draws: usize, shape: &[usize]| {
            let zero = || problem.repeated(&vec![0.0; d], 1, shape);
            let noise = Noise::scripted(1, (0..draws).map(|_| zero()));
            to_f64(&kernel.build().unwrap().draw(&target, &noise, &STEP).unwrap().0).unwrap()
        };
        let looped =
            draw(KernelConfig::Langevin(Langevin { steps: 40, step_size: step_size.clone() }), 40, shape);
        let replayed = draw(KernelConfig::Replay(Replay { steps: 40, step_size }), 1, along);
        let scale = looped.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let worst = looped.iter().zip(&replayed).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-6 * scale, "{}: {worst:e}", problem.operator.name());
    }
}
