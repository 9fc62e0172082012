//! The plain answers: pseudo-inverse, Wiener, total variation, harmonic, and HIO for phase retrieval.

use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{Gaussian, Method, Noise, Operator, Problem, RowCovariance};
use daps_methods::{Harmonic, Hio, PseudoInverse, Tv, Wiener};
use daps_operators::{Blur, BlurKernel, Border, Dense, Inpainting, PhaseRetrieval};
use daps_priors::GaussianMixture;

use super::law::{BETA, SINGULAR, Y, draw};

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
    let task = Problem::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
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
    let kernel = BlurKernel::new(&values, 3, 3).unwrap();
    let operator: Arc<dyn Operator> = Arc::new(Blur::new(&shape, &[kernel], Border::Reflect).unwrap());
    assert!(operator.as_spectral().is_none());
    let y: Vec<f64> = (0..36).map(|k| (f64::from(k) * 0.71).sin()).collect();
    let y = from_f64(y, &[1, 1, 6, 6], DType::F64).unwrap();
    let prior = GaussianMixture::gaussian(&shape, vec![0.0; 36], RowCovariance::Scalar(1.0)).unwrap();
    let likelihood = Gaussian::new(operator.clone(), y.clone(), BETA).unwrap();
    let task = Problem::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
    let method = PseudoInverse { cutoff: 0.2 };
    let x = method.sample(&task, &Noise::chains(0, 1), None, &mut ()).unwrap().x;
    let linear = operator.as_linear().unwrap();
    let normal = to_f64(&linear.adjoint(&operator.apply(&x).unwrap()).unwrap()).unwrap();
    let (data, x) = (to_f64(&linear.adjoint(&y).unwrap()).unwrap(), to_f64(&x).unwrap());
    let damping = 0.04 * linear.norm_squared().unwrap()[0];
    assert!(damping > 0.01);
    for i in 0..36 {
        let left = normal[i] + damping * x[i];
        assert!((left - data[i]).abs() < 1e-4, "[{i}]: {left}, {}", data[i]);
    }
}

/// A row of five pixels of which some are seen.
fn strip(seen: [f64; 5], y: [f64; 5], beta: f64) -> Problem {
    picture([1, 5], &seen, &y, beta)
}

/// A grey picture of which some pixels are seen.
fn picture([h, w]: [usize; 2], seen: &[f64], y: &[f64], beta: f64) -> Problem {
    let mask = Tensor::from_slice(seen, (1, 1, h, w), &Device::Cpu).unwrap();
    let operator = Inpainting::new(&[1, h, w], &mask).unwrap();
    let y = from_f64(y.to_vec(), &[1, 1, h, w], DType::F64).unwrap();
    let prior = GaussianMixture::gaussian(&[1, h, w], vec![0.0; h * w], RowCovariance::Scalar(1.0)).unwrap();
    Problem::new(Arc::new(prior), Arc::new(Gaussian::new(Arc::new(operator), y, beta).unwrap())).unwrap()
}

fn solve(method: &dyn Method, task: &Problem) -> Vec<f64> {
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
    let task = Problem::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
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
    let task = Problem::new(Arc::new(prior), Arc::new(likelihood.clone())).unwrap();
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

/// The same steps from row to row, and a corner, whose gradient has both directions: of height 1 over three pixels at 0 it pays
/// for √2 of its height (2 if each direction were penalised alone), and they share what it loses.
#[test]
fn the_gradient_goes_down_as_well_as_across() {
    let shift = 3.0 * 0.04;
    let column = picture([5, 1], &[1.0; 5], &[0.0, 0.0, 1.0, 1.0, 1.0], 0.2);
    let x = solve(&Tv { lambda: 3.0, iterations: 4000 }, &column);
    let (low, high) = (shift / 2.0, 1.0 - shift / 3.0);
    for (x, expected) in x.iter().zip([low, low, high, high, high]) {
        assert!((x - expected).abs() < 1e-4, "{x} vs {expected}");
    }
    let corner = picture([2, 2], &[1.0; 4], &[1.0, 0.0, 0.0, 0.0], 0.2);
    let x = solve(&Tv { lambda: 3.0, iterations: 4000 }, &corner);
    let paid = 2f64.sqrt() * shift;
    for (x, expected) in x.iter().zip([1.0 - paid, paid / 3.0, paid / 3.0, paid / 3.0]) {
        assert!((x - expected).abs() < 1e-4, "{x} vs {expected}");
    }
    let ends = picture([5, 1], &[1.0, 0.0, 0.0, 0.0, 1.0], &[-1.0, 9.0, 9.0, 9.0, 1.0], 0.1);
    let x = solve(&Harmonic { gamma: 0.2, iterations: 4000 }, &ends);
    let slope = 2.0 / (4.0 + 2.0 * 0.25);
    for (k, x) in x.iter().enumerate() {
        let expected = slope * (k as f64 - 2.0);
        assert!((x - expected).abs() < 1e-4, "{x} vs {expected}");
    }
}
