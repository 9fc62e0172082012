//! Noise models in the loop: counts against numerical integration, and an unknown noise level against its exact law.

use std::sync::Arc;

use daps_core::candle::{DType, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Approx, Center, Conditional, CountRate, Covariance, Discrepancy, Estimate, Likelihood, Method,
    Need, Noise, Observer, Operator, Poisson, Problem, Purpose, RHO, RowCovariance, Samples, Schedule,
    ScheduleRule, Smooth, Spread, Statistic, UnknownNoise,
};
use daps_methods::Daps;
use daps_methods::kernel::{Exact, KernelConfig, Mala, Underdamped};
use daps_operators::Dense;
use daps_priors::GaussianMixture;

const CHAINS: usize = 6000;
/// Deviation of the prior, whose mean is 0.
const PRIOR: f64 = 0.5;
/// A law is called wrong beyond so many standard errors.
const FAR: f64 = 4.5;

fn diagonal(values: &[f64]) -> Arc<dyn Operator> {
    let n = values.len();
    let matrix: Vec<f64> = (0..n * n).map(|k| if k % (n + 1) == 0 { values[k / n] } else { 0.0 }).collect();
    Arc::new(Dense::new(&[n], &from_f64(matrix, &[1, n, n], DType::F64).unwrap()).unwrap())
}

fn repeated(y: &[f64], rows: usize) -> Tensor {
    from_f64(y.iter().copied().cycle().take(rows * y.len()).collect(), &[rows, y.len()], DType::F64).unwrap()
}

fn prior(d: usize) -> Arc<GaussianMixture> {
    let covariance = RowCovariance::Diagonal(vec![PRIOR * PRIOR; d]);
    Arc::new(GaussianMixture::gaussian(&[d], vec![0.0; d], covariance).unwrap())
}

fn daps(levels: usize, kernel: KernelConfig) -> Daps {
    Daps {
        beta: None,
        schedule: ScheduleRule::Poly { levels, max: 20.0, min: 0.05, rho: RHO },
        estimate: Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Prior },
        kernel,
    }
}

fn mean_and_variance(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / n;
    (mean, values.map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0))
}

/// Mean, variance and standardised fourth moment of a density that is known in logs up to a constant.
fn integrate(range: (f64, f64), log: impl Fn(f64) -> f64) -> (f64, f64, f64) {
    const POINTS: usize = 20_001;
    let at = |i: usize| range.0 + (range.1 - range.0) * i as f64 / (POINTS - 1) as f64;
    let logs: Vec<f64> = (0..POINTS).map(|i| log(at(i))).collect();
    let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logs.iter().map(|l| (l - top).exp()).collect();
    let mass: f64 = weights.iter().sum();
    let expect =
        |f: &dyn Fn(f64) -> f64| weights.iter().enumerate().map(|(i, w)| w * f(at(i))).sum::<f64>() / mass;
    let mean = expect(&|x| x);
    let variance = expect(&|x| (x - mean).powi(2));
    (mean, variance, expect(&|x| (x - mean).powi(4)) / variance.powi(2))
}

/// Asserts that draws have a mean and a variance, within their Monte-Carlo error.
fn agree(what: &str, draws: impl Iterator<Item = f64> + Clone, (mean, variance, fourth): (f64, f64, f64)) {
    let n = draws.clone().count() as f64;
    let (m, v) = mean_and_variance(draws);
    let (m_error, v_error) = ((variance / n).sqrt(), variance * ((fourth - 1.0) / n).sqrt());
    assert!((m - mean).abs() < FAR * m_error, "{what}: mean {m} is not {mean} ± {m_error}");
    assert!((v - variance).abs() < FAR * v_error, "{what}: variance {v} is not {variance} ± {v_error}");
}

/// The counts' own formula, written once more for the tests: log Poisson(y; λ) without its constant.
fn log_counts(rate: CountRate, a: f64, y: f64) -> f64 {
    let lambda = rate.at(a).0;
    y * lambda.ln() - lambda
}

/// Pixels that are dark, middling and bright, one of them with a background, seen through gains of their own.
#[test]
fn daps_draws_the_posterior_of_counts() {
    let (scales, y) = ([1.0, 0.7, 1.3], [0.0, 11.0, 36.0]);
    for (gain, background) in [(30.0, 0.0), (30.0, 4.0)] {
        let rate = CountRate { gain, background };
        let likelihood = Poisson::new(diagonal(&scales), &repeated(&y, CHAINS), gain, background).unwrap();
        let task = Problem::new(prior(3), Arc::new(likelihood)).unwrap();
        let method = daps(8, KernelConfig::Mala(Mala { steps: 60, warmup: 20, c: 1.0 }));
        let samples = method.sample(&task, &Noise::chains(1, CHAINS), None, &mut ()).unwrap();
        let x = to_f64(&samples.x).unwrap();
        for (i, (scale, y)) in scales.iter().zip(y).enumerate() {
            let exact =
                integrate((-4.0, 4.0), |x| log_counts(rate, scale * x, y) - x * x / (2.0 * PRIOR * PRIOR));
            agree(
                &format!("pixel {i}, background {background}"),
                x.iter().copied().skip(i).step_by(3),
                exact,
            );
        }
    }
}

/// From a bright start the likelihood of counts is flat, in the dark it is steep: dynamics that keep the first step are thrown far out of
/// the data's range from there. With the step that they find on the way they have the exact law.
#[test]
fn dynamics_with_momentum_do_not_fall_over_steep_places() {
    let (y, mean, deviation) = ([1.0, 3.0, 8.0], 1.0, 1.5);
    let rate = CountRate { gain: 30.0, background: 0.0 };
    let likelihood = Poisson::new(diagonal(&[1.0; 3]), &repeated(&y, CHAINS), 30.0, 0.0).unwrap();
    let covariance = Covariance::Scalar(vec![deviation * deviation]);
    let center = repeated(&[mean; 3], CHAINS);
    let approx = Approx::Gaussian { mean: center.clone(), covariance, start: center };
    let step = Schedule::from_levels(vec![1.0, 0.0]).unwrap().steps().next().unwrap();
    let kernel = KernelConfig::Underdamped(Underdamped { steps: 1000, time_step: 0.4 }).build().unwrap();
    let target = Conditional { approx: &approx, likelihood: &likelihood };
    let (x, info) = kernel.draw(&target, &Noise::chains(3, CHAINS), &step).unwrap();
    assert!(info.diverged.iter().all(|d| !d));
    let x = to_f64(&x).unwrap();
    for (i, y) in y.into_iter().enumerate() {
        let exact = integrate((-4.0, 4.0), |x| {
            log_counts(rate, x, y) - (x - mean).powi(2) / (2.0 * deviation * deviation)
        });
        agree(&format!("pixel {i}"), x.iter().copied().skip(i).step_by(3), exact);
    }
}

/// Above the floor and below it, where samples beyond black would have no rate; at the floor both agree.
#[test]
fn the_gradient_of_counts_is_their_slope_and_value_and_slope_are_continuous() {
    let rate = CountRate { gain: 30.0, background: 0.0 };
    let x = [-1.7, -1.02, -0.97, -0.5, 0.4, 1.6];
    let y = [0.0, 3.0, 1.0, 0.0, 25.0, 30.0];
    let likelihood = Poisson::new(diagonal(&[1.0; 6]), &repeated(&y, 1), 30.0, 0.0).unwrap();
    let of = |x: &[f64]| from_f64(x.to_vec(), &[1, 6], DType::F64).unwrap();
    let gradient = to_f64(&likelihood.gradient(&of(&x)).unwrap()).unwrap();
    let (value, same) = likelihood.value_and_gradient(&of(&x)).unwrap();
    assert_eq!(to_f64(&same).unwrap(), gradient);
    assert_eq!(value, likelihood.log_prob(&of(&x)).unwrap());
    for i in 0..6 {
        const STEP: f64 = 1e-6;
        let moved = |by: f64| {
            let mut x = x;
            x[i] += by;
            likelihood.log_prob(&of(&x)).unwrap()[0]
        };
        let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        assert!(
            (gradient[i] - slope).abs() < 1e-5 * slope.abs().max(1.0),
            "{i}: {} is not {slope}",
            gradient[i]
        );
    }
    let floor = -1.0 + 2.0 * 0.01;
    let ((below, slope_below), (above, slope_above)) = (rate.at(floor - 1e-9), rate.at(floor + 1e-9));
    assert!((below - above).abs() < 1e-6 && (slope_below - slope_above).abs() < 1e-5);
    assert!(rate.at(-1.3).0 > 0.0);
    // So far below black that the rate is no number any more, counts still pull back, and nothing is NaN.
    let dark = of(&[-50.0; 6]);
    let pulled = to_f64(&likelihood.gradient(&dark).unwrap()).unwrap();
    assert!(pulled.iter().zip(y).all(|(g, y)| g.is_finite() && (*g > 0.0) == (y > 0.0)), "{pulled:?}");
    assert!(likelihood.log_prob(&dark).unwrap()[0].is_finite());
    assert!(likelihood.curvature_at(&dark).unwrap()[0].is_finite());
    assert!(!likelihood.discrepancy(&dark).unwrap()[0].value.is_nan());
    // The bound holds for what power iteration finds.
    let (bound, found) = (likelihood.curvature().unwrap(), likelihood.curvature_at(&of(&x)).unwrap());
    assert!(found[0] <= bound[0] && found[0] > 0.0, "{found:?}, {bound:?}");
}

/// Counts have the mean and the variance of their rate, and their discrepancy is 1 at the truth; hidden pixels do not count.
#[test]
fn counts_are_drawn_as_they_are_believed() {
    let n = 20_000;
    let rate = CountRate { gain: 30.0, background: 1.0 };
    let seen = Tensor::full(-0.4, (1, n), &daps_core::candle::Device::Cpu).unwrap();
    let at = Address::new(0, Purpose::Measurement, 0);
    let counts = rate.draw(&seen, &Noise::chains(2, 1), at).unwrap();
    let lambda = 30.0 * 0.3 + 1.0;
    agree("counts", to_f64(&counts).unwrap().into_iter(), (lambda, lambda, 3.0 + 1.0 / lambda));
    let again = rate.draw(&seen, &Noise::chains(2, 1), at).unwrap();
    assert_eq!(to_f64(&again).unwrap(), to_f64(&counts).unwrap());

    let mask: Vec<u8> = (0..n).map(|k| u8::from(k % 4 != 0)).collect();
    let mask = Tensor::from_vec(mask, (1, 1, 1, n), &daps_core::candle::Device::Cpu).unwrap();
    let operator = Arc::new(daps_operators::Inpainting::new(&[1, 1, n], &mask).unwrap());
    let x = seen.reshape((1, 1, 1, n)).unwrap();
    let y = rate.draw(&operator.apply(&x).unwrap(), &Noise::chains(3, 1), at).unwrap();
    let likelihood = Poisson::new(operator, &y, 30.0, 1.0).unwrap();
    assert_eq!(likelihood.statistic(), Statistic::Pearson);
    let found: Discrepancy = likelihood.discrepancy(&x).unwrap()[0];
    let deviation = ((2.0 + 1.0 / lambda) / (0.75 * n as f64)).sqrt();
    assert!((found.deviation / deviation - 1.0).abs() < 1e-6, "{found:?}");
    assert!(found.z().abs() < FAR && (found.error / lambda.sqrt() - 1.0).abs() < 0.05, "{found:?}");
    // Twice the light is no chance.
    let twice = ((&x + 1.0).unwrap() * 2.0).unwrap();
    assert!(likelihood.discrepancy(&(twice - 1.0).unwrap()).unwrap()[0].z() > 50.0);
}

/// What needs Gaussian noise says so in one sentence.
#[test]
fn methods_that_need_gaussian_noise_refuse_counts() {
    let likelihood = Poisson::new(diagonal(&[1.0; 2]), &repeated(&[3.0, 4.0], 1), 30.0, 0.0).unwrap();
    let task = Problem::new(prior(2), Arc::new(likelihood)).unwrap();
    let error = daps(4, KernelConfig::Exact(Exact::default())).check(&task).unwrap_err().to_string();
    assert_eq!(error, "daps needs Gaussian measurement noise; this measurement has none");
    assert!(!Need::LinearOperator.met_by(&task) && Need::SmoothLikelihood.met_by(&task));
    assert!(Poisson::new(diagonal(&[1.0]), &repeated(&[-1.5], 1), 30.0, 0.0).is_err());
}

const MEASURED: [f64; 12] = [0.9, -0.6, 0.3, 1.1, -0.2, 0.5, -1.2, 0.1, 0.7, -0.4, 0.2, -0.8];

fn unknown(rows: usize) -> UnknownNoise {
    UnknownNoise::new(diagonal(&[1.0; 12]), repeated(&MEASURED, rows), 0.3, 4.0).unwrap()
}

/// y = x + n with x ~ N(0, 0.5²) and 1/v ~ Gamma: given v, y is Gaussian, so p(v | y) is one integral and x | v, y is Gaussian.
#[test]
fn an_unknown_noise_level_is_drawn_from_its_posterior() {
    let task = Problem::new(prior(12), Arc::new(unknown(CHAINS))).unwrap();
    let method = daps(40, KernelConfig::Exact(Exact::default()));
    let samples = method.sample(&task, &Noise::chains(4, CHAINS), None, &mut ()).unwrap();
    let levels = to_f64(&samples.memory[0]).unwrap();
    let (shape, rate, p) = (2.0, 2.0 * 0.3f64.powi(2), PRIOR * PRIOR);
    // In s = ln v; the Gamma law of 1/v has the density v^(-shape) e^(-rate/v) there.
    let log_level = |s: f64| {
        let v = s.exp();
        let fit: f64 = MEASURED.iter().map(|y| -0.5 * ((p + v).ln() + y * y / (p + v))).sum();
        fit - shape * s - rate / v
    };
    let range = (-12.0, 6.0);
    agree("log of the variance", levels.iter().map(|l| 2.0 * l.ln()), integrate(range, log_level));
    // E[x_0 | y] and Var[x_0 | y] are those of a mixture over v.
    const POINTS: usize = 8001;
    let at = |i: usize| range.0 + (range.1 - range.0) * i as f64 / (POINTS - 1) as f64;
    let (mut mass, mut first, mut second) = (0.0, 0.0, 0.0);
    for s in (0..POINTS).map(at) {
        let (w, v) = (log_level(s).exp(), s.exp());
        let (mean, variance) = (p / (p + v) * MEASURED[0], p * v / (p + v));
        (mass, first, second) = (mass + w, first + w * mean, second + w * (variance + mean * mean));
    }
    let (mean, square) = (first / mass, second / mass);
    let x = to_f64(&samples.x).unwrap();
    // The fourth moment is that of a Gaussian or less, but for the tails of the mixture.
    agree("x_0", x.iter().copied().step_by(12), (mean, square - mean * mean, 4.0));
}

/// The levels that were drawn are part of the state, so that a run goes on with them to the same bits.
#[test]
fn an_unknown_noise_level_is_resumed() {
    let task = Problem::new(prior(12), Arc::new(unknown(3))).unwrap();
    let (method, noise) = (daps(6, KernelConfig::Exact(Exact::default())), Noise::chains(9, 3));
    let whole: Samples = method.sample(&task, &noise, None, &mut ()).unwrap();
    let mut kept = None;
    let mut watch = |event: &daps_core::Event| {
        let daps_core::Event::Level { state, .. } = event else {
            return std::ops::ControlFlow::Continue(());
        };
        kept = Some((*state).clone());
        if state.level == 3 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    };
    let observer: &mut dyn Observer = &mut watch;
    assert!(method.sample(&task, &noise, None, observer).is_err());
    let rest = method.sample(&task, &noise, kept, &mut ()).unwrap();
    assert_eq!(to_f64(&rest.x).unwrap(), to_f64(&whole.x).unwrap());
    assert_eq!(to_f64(&rest.memory[0]).unwrap(), to_f64(&whole.memory[0]).unwrap());
}
