//! Methods that descend on the measurement's misfit: DCDP and RED-diff.

use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Gaussian, Method, Noise, Ode, Operator, Problem, Purpose, RowCovariance, ScheduleRule,
};
use daps_methods::{Dcdp, RedDiff};
use daps_operators::{Border, Inpainting, NonlinearBlur, motion_kernel};
use daps_priors::GaussianMixture;

use super::law::{CHAINS, Law, MEAN, SINGULAR, STD, Y, agrees, denoiser, draw, levels};

/// Where the bound of a nonlinear operator is far above any picture's own, the steps are as long as the picture allows.
#[test]
fn dcdp_comes_to_the_measurement_of_a_nonlinear_blur() {
    let shape = [1, 12, 12];
    let kernel = motion_kernel(5, 0.5, 3, 0).unwrap();
    let operator: Arc<dyn Operator> =
        Arc::new(NonlinearBlur::new(&shape, kernel, Border::Reflect, 0.8, 2.0).unwrap());
    let noise = Noise::chains(3, 4);
    let truth = noise.normal(Address::new(0, Purpose::Instance, 0), &shape, DType::F64).unwrap();
    let y = operator.apply(&(truth * 0.4).unwrap()).unwrap();
    let prior =
        GaussianMixture::gaussian(&shape, vec![0.0; 144], RowCovariance::Diagonal(vec![0.16; 144])).unwrap();
    let likelihood = Arc::new(Gaussian::new(operator, y, 0.05).unwrap());
    let task = Problem::new(Arc::new(prior), likelihood.clone()).unwrap();
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
    // One step at one level: the answer still knows that it began at zero.
    let one = ScheduleRule::Levels { sigmas: vec![0.5, 0.0] };
    for (schedule, count) in [(Dcdp::default().schedule, 7), (one, 1)] {
        let method = Dcdp { schedule, steps: count, rate: 0.2, momentum: 0.5, ode: ode.clone() };
        let steps = levels(&method.schedule);
        agrees(&format!("{method:?}"), &draw(&method, CHAINS), |i| {
            let mut law = Law { mean: 0.0, variance: 0.0 };
            for &(sigma, _) in &steps {
                // Momentum steps on ½(s x - y)² are affine in x: follow 0 and 1.
                let (s, y) = (SINGULAR[i], if i < 3 { Y[i] } else { 0.0 });
                let eta = 0.2 / SINGULAR[0].powi(2);
                let descend = |mut x: f64| {
                    let mut b = 0.0;
                    for _ in 0..count {
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

/// The misfit is a mean over what was measured, which is less than what the operator gives: a mask hides half of it.
#[test]
fn red_diff_counts_what_a_mask_lets_through() {
    const SEEN: [f64; 4] = [1.0, 0.0, 1.0, 0.0];
    let mask = Tensor::new(&[[[SEEN]]], &Device::Cpu).unwrap();
    let operator: Arc<dyn Operator> = Arc::new(Inpainting::new(&[1, 1, 4], &mask).unwrap());
    let y = [0.8, 9.0, -0.4, 9.0];
    let measured = from_f64(y.to_vec(), &[1, 1, 1, 4], DType::F64).unwrap();
    let prior = GaussianMixture::gaussian(&[1, 1, 4], vec![0.0; 4], RowCovariance::Scalar(1.0)).unwrap();
    let task =
        Problem::new(Arc::new(prior), Arc::new(Gaussian::new(operator, measured, 0.3).unwrap())).unwrap();
    // Two steps: the first of Adam has the length of the rate whatever the gradient.
    let schedule = ScheduleRule::Levels { sigmas: vec![2.0, 1.0, 0.0] };
    let method = RedDiff { schedule, lambda: 0.7, rate: 0.1 };
    let draws = [[0.5, -0.4, 0.3, 0.2], [0.0; 4], [0.0; 4]];
    let scripted = draws.map(|z: [f64; 4]| from_f64(z.to_vec(), &[1, 1, 1, 4], DType::F64).unwrap());
    let samples = method.sample(&task, &Noise::scripted(1, scripted), None, &mut ()).unwrap();
    for (i, found) in to_f64(&samples.x).unwrap().iter().enumerate() {
        let (mut mu, mut m, mut v) = (draws[0][i], 0.0, 0.0);
        for (n, sigma) in [(1, 2.0f64), (2, 1.0)] {
            let denoised = mu / (1.0 + sigma * sigma);
            let gradient = SEEN[i] * (mu - y[i]) / 2.0 + 0.7 / 4.0 * (mu - denoised);
            m = 0.9 * m + 0.1 * gradient;
            v = 0.99 * v + 0.01 * gradient * gradient;
            mu -= 0.1 * (m / (1.0 - 0.9f64.powi(n))) / ((v / (1.0 - 0.99f64.powi(n))).sqrt() + 1e-8);
        }
        assert!((found - mu).abs() < 1e-12, "[{i}]: {found} vs {mu}");
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
