//! Every rival alone, on a Gaussian prior, against what its own equations give in closed form.
//!
//! Prior and operator are diagonal, so each coordinate is a scalar recursion x ← a x + b + √c z, whose mean and variance are
//! known exactly. Where a paper writes its method in variance-preserving form, the recursion here is in that form, which
//! tests the translation as well.

use std::ops::ControlFlow;
use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::real::{from_f64, to_f64};
use daps_core::{
    Address, Event, Gaussian, Method, Noise, Ode, Operator, Purpose, RowCovariance, Schedule, ScheduleRule,
    Task,
};
use daps_methods::*;
use daps_operators::{Blur, Border, Dense, Inpainting, Kernel, PhaseRetrieval};
use daps_priors::GaussianMixture;

const CHAINS: usize = 4000;
const BETA: f64 = 0.3;
/// Prior means and deviations, singular values (the last coordinate is not measured) and measurements.
const MEAN: [f64; 4] = [0.2, -0.5, 0.1, 0.4];
const STD: [f64; 4] = [1.0, 0.5, 0.8, 0.7];
const SINGULAR: [f64; 4] = [2.0, 1.0, 0.05, 0.0];
const Y: [f64; 3] = [1.5, -0.2, 0.4];

fn task(chains: usize) -> Task {
    let mut matrix = vec![0.0; 12];
    (0..3).for_each(|i| matrix[i * 4 + i] = SINGULAR[i]);
    let matrix = from_f64(matrix, &[1, 3, 4], DType::F64).unwrap();
    let operator: Arc<dyn Operator> = Arc::new(Dense::new(&[4], &matrix).unwrap());
    let y = from_f64(Y.repeat(chains), &[chains, 3], DType::F64).unwrap();
    let variance = RowCovariance::Diagonal(STD.iter().map(|s| s * s).collect());
    let prior = GaussianMixture::gaussian(&[4], MEAN.to_vec(), variance).unwrap();
    Task::new(Arc::new(prior), Arc::new(Gaussian::new(operator, y, BETA).unwrap())).unwrap()
}

fn draw(method: &dyn Method, chains: usize) -> Vec<f64> {
    let samples = method.sample(&task(chains), &Noise::chains(3, chains), None, &mut ()).unwrap();
    to_f64(&samples.x).unwrap()
}

/// A scalar Gaussian that is pushed through affine maps.
#[derive(Clone, Copy, Debug)]
struct Law {
    mean: f64,
    variance: f64,
}

impl Law {
    fn pushed(self, a: f64, b: f64, c: f64) -> Self {
        Self { mean: a * self.mean + b, variance: a * a * self.variance + c }
    }
}

/// D(x, σ) = (p, q) with D = p x + q for coordinate i.
fn denoiser(i: usize, sigma: f64) -> (f64, f64) {
    let (v, s) = (STD[i] * STD[i], sigma * sigma);
    (v / (v + s), s / (v + s) * MEAN[i])
}

fn measured(i: usize) -> f64 {
    if i < 3 { Y[i] } else { f64::NAN }
}

/// Moments of every coordinate agree with a law to 4.5 standard errors.
fn agrees(name: &str, values: &[f64], law: impl Fn(usize) -> Law) {
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

fn levels(rule: &ScheduleRule) -> Vec<(f64, f64)> {
    Schedule::new(rule).unwrap().steps().map(|s| (s.sigma, s.next)).collect()
}

#[test]
fn ddrm_follows_its_recursion_in_every_kind_of_mode() {
    for (eta, eta_b) in [(0.85, 1.0), (0.3, 0.6)] {
        let method = Ddrm { eta, eta_b, ..Ddrm::default() };
        let steps = levels(&method.schedule);
        agrees("ddrm", &draw(&method, CHAINS), |i| {
            let (spread, y) = (BETA / SINGULAR[i], measured(i) / SINGULAR[i]);
            let first = steps[0].0;
            let mut law = if SINGULAR[i] > 0.0 && first > spread {
                Law { mean: y, variance: first * first - spread * spread }
            } else {
                Law { mean: 0.0, variance: first * first }
            };
            for &(sigma, next) in &steps {
                let (p, q) = denoiser(i, sigma);
                let keep = (1.0 - eta * eta).sqrt();
                law = if SINGULAR[i] == 0.0 {
                    let r = keep * next / sigma;
                    law.pushed(p + r * (1.0 - p), q - r * q, (eta * next).powi(2))
                } else if next < spread {
                    let r = keep * next / spread;
                    law.pushed(p * (1.0 - r), q * (1.0 - r) + r * y, (eta * next).powi(2))
                } else {
                    let c = next * next - (eta_b * spread).powi(2);
                    law.pushed((1.0 - eta_b) * p, (1.0 - eta_b) * q + eta_b * y, c)
                };
            }
            law
        });
    }
}

/// The recursion in the variable u = √ᾱ x of the paper, with ε the predicted noise.
#[test]
fn ddnm_follows_its_variance_preserving_recursion() {
    let method = Ddnm { eta: 0.7, ..Ddnm::default() };
    let steps = levels(&method.schedule);
    let keep = (1.0 - 0.7f64 * 0.7).sqrt();
    agrees("ddnm", &draw(&method, CHAINS), |i| {
        let alpha = |sigma: f64| 1.0 / (1.0 + sigma * sigma);
        let first = alpha(steps[0].0);
        let mut law = Law { mean: 0.0, variance: 1.0 - first };
        for &(sigma, next) in &steps {
            let (a, b) = (alpha(sigma), alpha(next));
            let (p, q) = denoiser(i, sigma);
            let p = p / a.sqrt();
            let (noise, s) = ((1.0 - b).sqrt(), SINGULAR[i]);
            law = if s == 0.0 {
                // ε = (u - √ᾱ D)/√(1-ᾱ)
                let e = keep * noise / (1.0 - a).sqrt();
                law.pushed(
                    b.sqrt() * p + e * (1.0 - a.sqrt() * p),
                    (b.sqrt() - e * a.sqrt()) * q,
                    (0.7 * noise).powi(2),
                )
            } else {
                let limit = b.sqrt() * BETA / s;
                let y = measured(i) / s;
                let lambda = if noise >= limit { 1.0 } else { s * noise * keep / (b.sqrt() * BETA) };
                let variance =
                    if noise >= limit { noise * noise - limit * limit } else { (0.7 * noise).powi(2) };
                law.pushed(
                    b.sqrt() * (1.0 - lambda) * p,
                    b.sqrt() * ((1.0 - lambda) * q + lambda * y),
                    variance,
                )
            };
        }
        law
    });
}

#[test]
fn diffpir_follows_its_variance_preserving_recursion() {
    let method = DiffPir { lambda: 2.0, zeta: 0.4, ..DiffPir::default() };
    let steps = levels(&method.schedule);
    agrees("diffpir", &draw(&method, CHAINS), |i| {
        let alpha = |sigma: f64| 1.0 / (1.0 + sigma * sigma);
        let mut law = Law { mean: 0.0, variance: 1.0 - alpha(steps[0].0) };
        for &(sigma, next) in &steps {
            let (a, b) = (alpha(sigma), alpha(next));
            let (p, q) = denoiser(i, sigma);
            let p = p / a.sqrt();
            // argmin (y - s x)² + ρ (x - D)², ρ = λ β² ᾱ/(1 - ᾱ)
            let rho = 2.0 * BETA * BETA * a / (1.0 - a);
            let s = SINGULAR[i];
            let (w, pull) =
                (rho / (s * s + rho), if s > 0.0 { s * measured(i) / (s * s + rho) } else { 0.0 });
            let (m, c) = (w * p, w * q + pull);
            let e = ((1.0 - b) * (1.0 - 0.4) / (1.0 - a)).sqrt();
            law = law.pushed(
                b.sqrt() * m + e * (1.0 - a.sqrt() * m),
                (b.sqrt() - e * a.sqrt()) * c,
                0.4 * (1.0 - b),
            );
        }
        law
    });
}

/// Their claim is the posterior as the coupling vanishes: the recursion is exact at any coupling, and a long chain at a fixed
/// one reaches the coupled target's own posterior.
#[test]
fn split_gibbs_samplers_follow_their_recursion_and_reach_the_posterior_of_the_coupled_target() {
    let reverse = Reverse { steps: 60, max: 80.0, min: 0.002 };
    // The reverse diffusion is affine: x' = a x + b + √c z.
    let affine = |i: usize, rho: f64| {
        let mut map = (1.0, 0.0, 0.0);
        for w in reverse.levels(rho).windows(2) {
            let keep = (w[1] / w[0]).powi(2);
            let (p, q) = denoiser(i, w[0]);
            let (a, b) = (keep + (1.0 - keep) * p, (1.0 - keep) * q);
            map = (a * map.0, a * map.1 + b, a * a * map.2 + w[1] * w[1] * (1.0 - keep));
        }
        map
    };
    let step = |law: Law, i: usize, rho: f64| {
        let (s, precision) = (SINGULAR[i], rho.powi(-2) + (SINGULAR[i] / BETA).powi(2));
        let data = if s > 0.0 { s * measured(i) / (BETA * BETA) } else { 0.0 };
        let z = law.pushed(rho.powi(-2) / precision, data / precision, 1.0 / precision);
        let (a, b, c) = affine(i, rho);
        z.pushed(a, b, c)
    };
    let pnp = PnpDm { iterations: 25, rho: 4.0, decay: 0.8, rho_min: 0.2, reverse, ..PnpDm::default() };
    let couplings = |k: usize| (4.0 * 0.8f64.powi(k as i32)).max(0.2);
    agrees("pnp_dm", &draw(&pnp, CHAINS), |i| {
        (0..25).fold(Law { mean: 0.0, variance: 0.0 }, |law, k| step(law, i, couplings(k)))
    });
    let dpnp = Dpnp { iterations: 12, hold: 2, eta: 2.0, eta_min: 0.2, reverse, ..Dpnp::default() };
    agrees("dpnp", &draw(&dpnp, CHAINS), |i| {
        (0..12).fold(Law { mean: 0.0, variance: 0.0 }, |law, k: usize| {
            let t = k.saturating_sub(2) as f64 / 9.0;
            step(law, i, 2.0 * 0.1f64.powf(t))
        })
    });
    // With a long chain and a fine grid the law is that of x in the coupled target: the measurement blurred by ρ.
    let fine = Reverse { steps: 1000, max: 80.0, min: 0.002 };
    let long =
        PnpDm { iterations: 60, rho: 0.3, decay: 1.0, rho_min: 0.3, reverse: fine, ..PnpDm::default() };
    let as_long = Dpnp { iterations: 60, hold: 0, eta: 0.3, eta_min: 0.3, reverse: fine, ..Dpnp::default() };
    for (name, values) in [("pnp_dm", draw(&long, 1500)), ("dpnp", draw(&as_long, 1500))] {
        for i in 0..4 {
            let blurred = BETA * BETA + (SINGULAR[i] * 0.3).powi(2);
            let precision = STD[i].powi(-2) + SINGULAR[i].powi(2) / blurred;
            let data = if i < 3 { SINGULAR[i] * Y[i] / blurred } else { 0.0 };
            let mean = (MEAN[i] / STD[i].powi(2) + data) / precision;
            let column: Vec<f64> = values.iter().skip(i).step_by(4).copied().collect();
            let n = column.len() as f64;
            let found = column.iter().sum::<f64>() / n;
            let error = (1.0 / precision / n).sqrt();
            // 2 % of a deviation for the grid that is left.
            let slack = 0.02 / precision.sqrt();
            assert!((found - mean).abs() < 4.5 * error + slack, "{name} [{i}]: {found} vs {mean}");
            let ratio = column.iter().map(|v| (v - found).powi(2)).sum::<f64>() / (n - 1.0) * precision;
            assert!((ratio - 1.0).abs() < 4.5 * (2.0 / n).sqrt() + 0.04, "{name} [{i}]: variance x {ratio}");
        }
    }
}

/// Where the bound of a nonlinear operator is far above any picture's own, the steps are as long as the picture allows.
#[test]
fn dcdp_comes_to_the_measurement_of_a_nonlinear_blur() {
    let shape = [1, 12, 12];
    let kernel = daps_operators::motion_kernel(5, 0.5, 3, 0).unwrap();
    let operator: Arc<dyn Operator> =
        Arc::new(daps_operators::NonlinearBlur::new(&shape, kernel, Border::Reflect, 0.8, 2.0).unwrap());
    let noise = Noise::chains(3, 4);
    let truth = noise.normal(Address::new(0, Purpose::Instance, 0), &shape, DType::F64).unwrap();
    let y = operator.apply(&(truth * 0.4).unwrap()).unwrap();
    let prior =
        GaussianMixture::gaussian(&shape, vec![0.0; 144], RowCovariance::Diagonal(vec![0.16; 144])).unwrap();
    let likelihood = Arc::new(Gaussian::new(operator, y, 0.05).unwrap());
    let task = Task::new(Arc::new(prior), likelihood.clone()).unwrap();
    // One level of little noise: the answer is where the gradient steps came to.
    let method = Dcdp {
        schedule: ScheduleRule::Poly { levels: 1, max: 0.01, min: 0.01, rho: 7.0 },
        steps: 20,
        rate: 0.1,
        ..Dcdp::default()
    };
    let samples = method.sample(&task, &noise, None, &mut ()).unwrap();
    let misfit = |x: &Tensor| {
        let r = to_f64(&likelihood.residual(x).unwrap()).unwrap();
        r.iter().map(|r| r * r).sum::<f64>()
    };
    let (before, after) = (misfit(&samples.x.zeros_like().unwrap()), misfit(&samples.x));
    assert!(after < 0.2 * before, "{after} of {before}");
}

#[test]
fn dcdp_follows_its_recursion() {
    let ode = Ode::paper(5);
    let method = Dcdp { steps: 7, rate: 0.2, momentum: 0.5, ode: ode.clone(), ..Dcdp::default() };
    let steps = levels(&method.schedule);
    agrees("dcdp", &draw(&method, CHAINS), |i| {
        let mut law = Law { mean: 0.0, variance: 0.0 };
        for &(sigma, _) in &steps {
            // Seven momentum steps on ½(s x - y)² are affine in x: follow 0 and 1.
            let (s, y) = (SINGULAR[i], if i < 3 { Y[i] } else { 0.0 });
            let eta = 0.2 / SINGULAR[0].powi(2);
            let descend = |mut x: f64| {
                let mut b = 0.0;
                for _ in 0..7 {
                    b = 0.5 * b + s * (s * x - y);
                    x -= eta * b;
                }
                x
            };
            law = law.pushed(descend(1.0) - descend(0.0), descend(0.0), sigma * sigma);
            for w in ode.grid(sigma, 5).windows(2) {
                let (p, q) = denoiser(i, w[0]);
                let r = w[1] / w[0];
                law = law.pushed(r + (1.0 - r) * p, (1.0 - r) * q, 0.0);
            }
        }
        law
    });
}

/// With one particle nothing is resampled: (x, y's own noise) is a Gaussian pair. With many, the law of x given the noised
/// measurements is that of a Kalman filter. Both are followed exactly; only right weights give the second.
#[test]
fn fps_smc_is_a_linear_recursion_with_one_particle_and_a_kalman_filter_with_many() {
    const FRESH: f64 = 0.6;
    let schedule = ScheduleRule::Geometric { levels: 6, max: 3.0, min: 0.4 };
    let steps = levels(&schedule);
    let law = |i: usize, many: bool| {
        let (s, first) = (SINGULAR[i], steps[0].0);
        let y = if i < 3 { Y[i] } else { 0.0 };
        // x = m + N(0, P) given the measurement's noise; (m, e) has mean (mean, 0) and covariance (mm, me, ee).
        let (mut mean, mut within) = (0.0, first * first);
        let (mut mm, mut me, mut ee) = (0.0, 0.0, (first * s).powi(2));
        for &(sigma, next) in &steps {
            let (keep, v) = ((1.0 - FRESH).sqrt() * next / sigma, FRESH * next * next);
            let (p, q) = denoiser(i, sigma);
            let (a, b) = (keep + (1.0 - keep) * p, (1.0 - keep) * q);
            // e' = κ e + √v s n, then the gain applied to y + e' - s (a m + b).
            let (prior, fresh) = if many { (a * a * within + v, 0.0) } else { (v, a * a * within) };
            let gain = prior * s / (prior * s * s + BETA * BETA);
            let hold = 1.0 - gain * s;
            within = hold * prior + hold * hold * fresh;
            mean = hold * (a * mean + b) + gain * y;
            let (ee1, me1) = (keep * keep * ee + v * s * s, a * keep * me);
            (mm, me) = (
                hold * hold * a * a * mm + 2.0 * hold * gain * me1 + gain * gain * ee1,
                hold * me1 + gain * ee1,
            );
            ee = ee1;
        }
        Law { mean, variance: mm + within }
    };
    let one = FpsSmc { schedule: schedule.clone(), particles: 1, fresh: FRESH };
    agrees("fps, one particle", &draw(&one, CHAINS), |i| law(i, false));
    // 500 particles: the bias of order 1/500 is far below the error of 1500 samples.
    let many = FpsSmc { schedule, particles: 500, fresh: FRESH };
    agrees("fps-smc", &draw(&many, 1500), |i| law(i, true));
    let gap = law(0, true).variance / law(0, false).variance;
    assert!((gap - 1.0).abs() > 0.3, "the two laws must differ for the test to tell weights apart: {gap}");
}

/// With fresh noise only and hardly any of the measurement's own, the first level takes x to y plus the noise that y is diffused
/// with. A simulated measurement took its noise from another address.
#[test]
fn fps_smc_does_not_diffuse_the_measurement_with_the_noise_it_was_simulated_with() {
    let unit = Tensor::eye(4, DType::F64, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let operator: Arc<dyn Operator> = Arc::new(Dense::new(&[4], &unit).unwrap());
    let y = from_f64(vec![0.0; 4], &[1, 4], DType::F64).unwrap();
    let prior = GaussianMixture::gaussian(&[4], vec![0.0; 4], RowCovariance::Scalar(1.0)).unwrap();
    let task = Task::new(Arc::new(prior), Arc::new(Gaussian::new(operator, y, 1e-6).unwrap())).unwrap();
    let schedule = ScheduleRule::Geometric { levels: 2, max: 3.0, min: 1.0 };
    let method = FpsSmc { schedule, particles: 1, fresh: 1.0 };
    let noise = Noise::chains(3, 1);
    let mut first = vec![];
    let mut watch = |event: &Event| {
        let Event::Level { step, state, .. } = event else { return ControlFlow::Continue(()) };
        if step.index == 0 {
            first = to_f64(&state.x_t).unwrap();
        }
        ControlFlow::Continue(())
    };
    method.sample(&task, &noise, None, &mut watch).unwrap();
    let normal =
        |purpose| to_f64(&noise.normal(Address::new(0, purpose, 0), &[4], DType::F64).unwrap()).unwrap();
    let gap = |purpose| first.iter().zip(normal(purpose)).map(|(x, z)| (x - z).abs()).fold(0.0, f64::max);
    assert!(gap(Purpose::Diffusion) < 1e-4, "{first:?}");
    assert!(gap(Purpose::Measurement) > 0.1, "{first:?}");
}

/// The same draws of ε, the paper's VP loss and a scalar Adam written out: the same numbers.
#[test]
fn red_diff_takes_adam_steps_on_its_loss() {
    let method =
        RedDiff { schedule: ScheduleRule::Ddpm { levels: 40, first: 900, last: 0 }, lambda: 0.7, rate: 0.1 };
    let noise = Noise::chains(3, 2);
    let normal = |level, purpose| {
        to_f64(&noise.normal(Address::new(level, purpose, 0), &[4], DType::F64).unwrap()).unwrap()
    };
    let found = draw(&method, 2);
    for (k, found) in found.iter().enumerate() {
        let i = k % 4;
        let (mut mu, mut m, mut v) = (normal(0, Purpose::Init)[k], 0.0, 0.0);
        for (t, (sigma, _)) in levels(&method.schedule).into_iter().enumerate() {
            let kept = 1.0 / (1.0 + sigma * sigma);
            let eps = normal(t, Purpose::Renoise)[k];
            let u = kept.sqrt() * mu + (1.0 - kept).sqrt() * eps;
            let (p, q) = denoiser(i, sigma);
            let predicted = (u - kept.sqrt() * (p * u / kept.sqrt() + q)) / (1.0 - kept).sqrt();
            let weight = 0.7 * ((1.0 - kept) / kept).sqrt();
            let data = if i < 3 { SINGULAR[i] * (SINGULAR[i] * mu - Y[i]) / 3.0 } else { 0.0 };
            let gradient = data + weight * (predicted - eps) / 4.0;
            m = 0.9 * m + 0.1 * gradient;
            v = 0.99 * v + 0.01 * gradient * gradient;
            let n = t as i32 + 1;
            mu -= 0.1 * (m / (1.0 - 0.9f64.powi(n))) / ((v / (1.0 - 0.99f64.powi(n))).sqrt() + 1e-8);
        }
        assert!((found - mu).abs() < 1e-9, "[{i}]: {found} vs {mu}");
    }
}

/// At one level the regulariser is that of a Gaussian of precision w = λ m σ²/((s² + σ²) d) around the prior's mean, and what
/// Adam's small steps end at, mean over the draws of ε, is the mode of it and the measurement.
#[test]
fn red_diff_ends_at_the_mode_that_it_seeks() {
    const LAMBDA: f64 = 0.7;
    let schedule = ScheduleRule::Geometric { levels: 4000, max: 1.001, min: 0.999 };
    let values = draw(&RedDiff { schedule, lambda: LAMBDA, rate: 0.005 }, 200);
    for i in 0..4 {
        let column: Vec<f64> = values.iter().skip(i).step_by(4).copied().collect();
        let n = column.len() as f64;
        let found = column.iter().sum::<f64>() / n;
        let variance = column.iter().map(|v| (v - found).powi(2)).sum::<f64>() / (n - 1.0);
        let w = LAMBDA * 3.0 / 4.0 / (STD[i].powi(2) + 1.0);
        let data = if i < 3 { SINGULAR[i] * Y[i] } else { 0.0 };
        let mode = (data + w * MEAN[i]) / (SINGULAR[i].powi(2) + w);
        // The last step is of the size of the rate.
        let error = 4.5 * (variance / n).sqrt() + 0.005;
        assert!((found - mode).abs() < error, "[{i}]: {found} vs {mode}, {error}");
    }
}

#[test]
fn wiener_is_the_posterior_mean_and_the_pseudo_inverse_inverts_what_it_keeps() {
    // Samples that are not images: independent values.
    let wiener = draw(&Wiener { std: 0.6 }, 1);
    for i in 0..4 {
        let (s, r) = (SINGULAR[i], BETA * BETA / 0.36);
        let data = if i < 3 { s * Y[i] / (s * s + r) } else { 0.0 };
        assert!((wiener[i] - data).abs() < 1e-12, "[{i}]: {}", wiener[i]);
    }
    let inverse = draw(&PseudoInverse { cutoff: 0.04 }, 1);
    for (found, expected) in inverse.iter().zip([0.75, -0.2, 0.0, 0.0]) {
        assert!((found - expected).abs() < 1e-12, "{found} vs {expected}");
    }
    let inverse = draw(&PseudoInverse { cutoff: 0.02 }, 1);
    assert!((inverse[2] - 8.0).abs() < 1e-10, "{}", inverse[2]);
}

/// A row with a weak operator beside one with a strong operator has the answer that it has alone.
#[test]
fn the_pseudo_inverse_cuts_off_by_each_rows_own_largest_singular_value() {
    let matrix = from_f64(vec![10.0, 0.0, 0.0, 1.0, 0.4, 0.0, 0.0, 0.2], &[2, 2, 2], DType::F64).unwrap();
    let operator: Arc<dyn Operator> = Arc::new(Dense::new(&[2], &matrix).unwrap());
    let y = from_f64(vec![5.0, 3.0, 0.8, 0.1], &[2, 2], DType::F64).unwrap();
    let prior = GaussianMixture::gaussian(&[2], vec![0.0; 2], RowCovariance::Scalar(1.0)).unwrap();
    let likelihood = Gaussian::new(operator, y, BETA).unwrap();
    let task = Task::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
    let samples = PseudoInverse { cutoff: 0.2 }.sample(&task, &Noise::chains(0, 2), None, &mut ()).unwrap();
    for (found, expected) in to_f64(&samples.x).unwrap().iter().zip([0.5, 0.0, 2.0, 0.5]) {
        assert!((found - expected).abs() < 1e-12, "{found} vs {expected}");
    }
}

/// Without a decomposition it solves (AᵀA + ε) x = Aᵀy with ε = (cutoff ‖A‖)².
#[test]
fn the_pseudo_inverse_of_an_operator_without_a_decomposition_is_its_damped_one() {
    let shape = [1, 6, 6];
    let values = [0.0, 0.3, 0.1, 0.2, 0.1, 0.0, 0.0, 0.1, 0.2];
    let kernel = Kernel::new(&values, 3, 3).unwrap();
    let operator: Arc<dyn Operator> = Arc::new(Blur::new(&shape, &[kernel], Border::Reflect).unwrap());
    assert!(operator.as_spectral().is_none());
    let y: Vec<f64> = (0..36).map(|k| (f64::from(k) * 0.71).sin()).collect();
    let y = from_f64(y, &[1, 1, 6, 6], DType::F64).unwrap();
    let prior = GaussianMixture::gaussian(&shape, vec![0.0; 36], RowCovariance::Scalar(1.0)).unwrap();
    let likelihood = Gaussian::new(operator.clone(), y.clone(), BETA).unwrap();
    let task = Task::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
    let method = PseudoInverse { cutoff: 0.2 };
    let x = method.sample(&task, &Noise::chains(0, 1), None, &mut ()).unwrap().x;
    let linear = operator.as_linear().unwrap();
    let normal = to_f64(&linear.adjoint(&operator.apply(&x).unwrap()).unwrap()).unwrap();
    let (data, x) = (to_f64(&linear.adjoint(&y).unwrap()).unwrap(), to_f64(&x).unwrap());
    let damping = 0.04 * linear.norm_squared()[0];
    assert!(damping > 0.01);
    for i in 0..36 {
        let left = normal[i] + damping * x[i];
        assert!((left - data[i]).abs() < 1e-4, "[{i}]: {left}, {}", data[i]);
    }
}

/// A row of five pixels of which some are seen.
fn strip(seen: [f64; 5], y: [f64; 5], beta: f64) -> Task {
    let mask = Tensor::from_slice(&seen, (1, 1, 1, 5), &Device::Cpu).unwrap();
    let operator = Inpainting::new(&[1, 1, 5], &mask).unwrap();
    let y = from_f64(y.to_vec(), &[1, 1, 1, 5], DType::F64).unwrap();
    let prior = GaussianMixture::gaussian(&[1, 1, 5], vec![0.0; 5], RowCovariance::Scalar(1.0)).unwrap();
    Task::new(Arc::new(prior), Arc::new(Gaussian::new(Arc::new(operator), y, beta).unwrap())).unwrap()
}

fn solve(method: &dyn Method, task: &Task) -> Vec<f64> {
    to_f64(&method.sample(task, &Noise::chains(0, 1), None, &mut ()).unwrap().x).unwrap()
}

/// Of images it is the minimiser of ‖Ax - y‖²/(2β²) + xᵀC⁻¹x/2: at every cosine the prior's pull balances the data's.
#[test]
fn wiener_balances_the_spectrum_of_photographs_with_the_data() {
    let (seen, y, beta, std) = ([1.0, 0.0, 0.0, 1.0, 1.0], [0.8, 0.0, 0.0, -0.3, 0.1], 0.2, 0.6);
    let x = solve(&Wiener { std }, &strip(seen, y, beta));
    let law: Vec<f64> = (0..5).map(|k| 25.0 / f64::from(k * k + 1)).collect();
    let total: f64 = law.iter().sum();
    for (k, law) in law.iter().enumerate() {
        let wave = |i: usize| {
            let size = if k == 0 { 0.2f64 } else { 0.4 };
            size.sqrt() * (std::f64::consts::PI * k as f64 * (i as f64 + 0.5) / 5.0).cos()
        };
        let variance = std * std * 5.0 * law / total;
        let prior: f64 = (0..5).map(|i| wave(i) * x[i]).sum::<f64>() / variance;
        let data: f64 = (0..5).map(|i| wave(i) * seen[i] * (y[i] - x[i])).sum::<f64>() / (beta * beta);
        assert!((prior - data).abs() < 1e-2, "cosine {k}: {prior} and {data}");
    }
}

#[test]
fn variational_answers_are_the_minimisers_in_closed_form() {
    // Steps 0 0 | 1 1 1 of height 1: the two plateaus move towards each other by λβ²/width.
    let x = solve(&Tv { lambda: 3.0, iterations: 4000 }, &strip([1.0; 5], [0.0, 0.0, 1.0, 1.0, 1.0], 0.2));
    let shift = 3.0 * 0.04;
    for (x, expected) in
        x.iter().zip([shift / 2.0, shift / 2.0, 1.0 - shift / 3.0, 1.0 - shift / 3.0, 1.0 - shift / 3.0])
    {
        assert!((x - expected).abs() < 1e-4, "{x} vs {expected}");
    }
    // Of two channels with steps of 1 and 2 in every row, |∇x| is the length of both together: each pays its share of it.
    let (shape, heights) = ([2, 3, 5], [1.0, 2.0]);
    let mask = Tensor::ones((1, 2, 3, 5), DType::F64, &Device::Cpu).unwrap();
    let y = (0..30).map(|k| if k % 5 < 2 { 0.0 } else { heights[k / 15] }).collect();
    let y = from_f64(y, &[1, 2, 3, 5], DType::F64).unwrap();
    let operator = Inpainting::new(&shape, &mask).unwrap();
    let prior = GaussianMixture::gaussian(&shape, vec![0.0; 30], RowCovariance::Scalar(1.0)).unwrap();
    let likelihood = Gaussian::new(Arc::new(operator), y, 0.2).unwrap();
    let task = Task::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
    let x = solve(&Tv { lambda: 3.0, iterations: 4000 }, &task);
    for (k, x) in x.iter().enumerate() {
        let height = heights[k / 15];
        let share = shift * height / 5f64.sqrt();
        let expected = if k % 5 < 2 { share / 2.0 } else { height - share / 3.0 };
        assert!((x - expected).abs() < 1e-4, "[{k}]: {x} vs {expected}");
    }
    // Only the ends are seen: a ramp whose slope balances noise and gradient, (y₄ - y₀)/(4 + 2β²/γ²).
    let task = strip([1.0, 0.0, 0.0, 0.0, 1.0], [-1.0, 9.0, 9.0, 9.0, 1.0], 0.1);
    let x = solve(&Harmonic { gamma: 0.2, iterations: 4000 }, &task);
    let slope = 2.0 / (4.0 + 2.0 * 0.25);
    for (k, x) in x.iter().enumerate() {
        let expected = slope * (k as f64 - 2.0);
        assert!((x - expected).abs() < 1e-4, "{x} vs {expected}");
    }
}

/// Noise-free magnitudes of a small picture: the best of a few starts explains them.
#[test]
fn hio_finds_a_picture_with_the_measured_magnitudes() {
    let shape = [1, 6, 6];
    let operator = Arc::new(PhaseRetrieval::new(&shape, 8.0).unwrap());
    let truth: Vec<f64> = (0..36).map(|k| (f64::from(k * k) * 0.37).sin() * 0.8).collect();
    let y = operator.apply(&from_f64(truth, &[1, 1, 6, 6], DType::F64).unwrap()).unwrap();
    let norm = to_f64(&y).unwrap().iter().map(|v| v * v).sum::<f64>();
    let rows = 8;
    let y = Tensor::cat(&vec![y; rows], 0).unwrap();
    let likelihood = Gaussian::new(operator, y, 0.01).unwrap();
    let prior = GaussianMixture::gaussian(&shape, vec![0.0; 36], RowCovariance::Scalar(1.0)).unwrap();
    let task = Task::new(Arc::new(prior), Arc::new(likelihood.clone())).unwrap();
    let misfit = |iterations: usize| {
        let method = Hio { iterations, ..Hio::default() };
        let x = method.sample(&task, &Noise::chains(5, rows), None, &mut ()).unwrap().x;
        let r = to_f64(&likelihood.residual(&x).unwrap()).unwrap();
        let each = r.chunks(r.len() / rows).map(|r| (r.iter().map(|v| v * v).sum::<f64>() / norm).sqrt());
        each.fold(f64::INFINITY, f64::min)
    };
    let (early, late) = (misfit(2), misfit(2000));
    assert!(late < 0.01 && early > 10.0 * late, "{early} to {late}");
}
