//! Exact posteriors against brute-force Bayes, and draws and spreads against closed forms.

use std::sync::Arc;

use crate::common::{AT, Dense, Square, assert_close, mixture, normals, priors, random_full, tensor, values};
use daps_core::candle::Tensor;
use daps_core::linear_measurement;
use daps_core::{Beta, Cosines, Covariance, Denoiser, Frequency, Gaussian, Likelihood, Noise, RowCovariance};
use daps_metrics::moments::Moments;
use daps_priors::{Analytic, Empirical, GaussianMixture, Posterior, spread_table};

/// Two measurements of two values: each row with its own matrix, or one for both.
fn likelihood(matrices: Vec<Vec<f64>>, beta: impl Into<Beta>) -> Gaussian {
    let outputs = matrices[0].len() / 2;
    let operator = Dense { input: vec![2], output: vec![outputs], matrices };
    let y = tensor((0..2 * outputs).map(|i| 0.4 - 0.3 * i as f64).collect(), &[2, outputs]);
    Gaussian::new(Arc::new(operator), y, beta).unwrap()
}

fn likelihoods() -> Vec<Gaussian> {
    let wide = vec![0.8, -0.5];
    let tall = vec![1.0, 0.2, -0.4, 0.9, 0.5, 0.5];
    let square = vec![1.0, 0.3, -0.2, 0.7];
    let each = Beta::Each(tensor(vec![0.2, 0.5, 0.4, 0.3], &[2, 2]));
    vec![
        likelihood(vec![wide], 0.3),
        likelihood(vec![tall.clone()], Beta::Rows(vec![0.5, 0.2])),
        likelihood(vec![tall.clone(), tall.iter().map(|a| -a).collect()], 0.4),
        likelihood(vec![square], each),
    ]
}

/// Mean and covariance of p(x) p(y | x) on a grid over [-6, 6]².
fn by_grid(log_prior: &dyn Fn(&[f64]) -> f64, likelihood: &Gaussian, row: usize) -> (Vec<f64>, Vec<f64>) {
    let steps = 601;
    let node = |i: usize| -6.0 + 12.0 * i as f64 / (steps - 1) as f64;
    let points: Vec<f64> = (0..steps * steps).flat_map(|i| [node(i / steps), node(i % steps)]).collect();
    let n = points.len() / 2;
    let served = likelihood.select(&vec![row; n]).unwrap();
    let logs = served.log_prob(&tensor(points.clone(), &[n, 2])).unwrap();
    let weights: Vec<f64> =
        logs.iter().zip(points.chunks(2)).map(|(l, x)| (l + log_prior(x)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let moment = |f: &dyn Fn(&[f64]) -> f64| -> f64 {
        weights.iter().zip(points.chunks(2)).map(|(w, x)| w * f(x)).sum::<f64>() / total
    };
    let mean: Vec<f64> = (0..2).map(|i| moment(&|x| x[i])).collect();
    let cov = (0..4).map(|k| moment(&|x| (x[k / 2] - mean[k / 2]) * (x[k % 2] - mean[k % 2]))).collect();
    (mean, cov)
}

fn flat(m: &faer::Mat<f64>) -> Vec<f64> {
    (0..m.nrows() * m.ncols()).map(|i| m[(i / m.ncols(), i % m.ncols())]).collect()
}

#[test]
fn mixture_posteriors_are_bayes_rule_on_a_grid() {
    let ramp = RowCovariance::Diagonal(vec![0.2, 0.6]);
    let forms = [
        vec![RowCovariance::Scalar(0.3)],
        vec![random_full(2, 5)],
        vec![RowCovariance::Scalar(0.3), ramp, random_full(2, 5)],
    ];
    for covariances in forms {
        let prior = mixture(&[2], &[0.5, 0.2, 0.3], 7, covariances);
        for likelihood in likelihoods() {
            for row in 0..2 {
                let Posterior::Mixture { mixture: posterior, .. } =
                    prior.posterior(&likelihood, row).unwrap()
                else {
                    panic!()
                };
                let log_prior = |x: &[f64]| prior.mixture().log_prob(x).unwrap();
                let (mean, cov) = by_grid(&log_prior, &likelihood, row);
                assert_close(&posterior.mean(), &mean, 1e-6, "mean");
                assert_close(&flat(&posterior.covariance()), &cov, 1e-6, "covariance");
            }
        }
    }
}

/// Draws of every posterior have its moments: no |z| above what the largest of so many exceeds once in 10^5.
#[test]
fn posterior_draws_have_its_moments() {
    let likelihood = &likelihoods()[1];
    for (name, prior) in priors(&[2]) {
        let posterior = prior.posterior(likelihood, 1).unwrap();
        let draws = values(&posterior.draw(&Noise::chains(2, 20_000), AT).unwrap());
        let cov = match &posterior {
            Posterior::Mixture { mixture, .. } => flat(&mixture.covariance()),
            Posterior::Points { points, log_weights } => point_covariance(points, log_weights),
        };
        let compared = Moments::new(&draws, 2).unwrap().compare(&posterior.mean().unwrap(), &cov).unwrap();
        assert!(compared.agrees(1e-5), "{name}: {compared:?}");
    }
}

fn point_covariance(points: &Tensor, log_weights: &[f64]) -> Vec<f64> {
    let points = values(points);
    let moment = |f: &dyn Fn(&[f64]) -> f64| -> f64 {
        log_weights.iter().zip(points.chunks(2)).map(|(w, x)| w.exp() * f(x)).sum()
    };
    let mean: Vec<f64> = (0..2).map(|i| moment(&|x| x[i])).collect();
    (0..4).map(|k| moment(&|x| (x[k / 2] - mean[k / 2]) * (x[k % 2] - mean[k % 2]))).collect()
}

/// Draws of the priors themselves.
#[test]
fn prior_draws_have_the_priors_moments() {
    for (name, prior) in priors(&[2]) {
        let draws = values(&prior.draw(&Noise::chains(6, 20_000), AT).unwrap());
        // At a level far above the data, p(x0 | x_t) is the prior.
        let x = tensor(vec![0.0, 0.0], &[1, 2]);
        let far = daps_core::Sigma::Same(1e7);
        let mean = values(&prior.denoise(&x, &far).unwrap());
        let kind = daps_core::CovarianceKind::Full;
        let c = prior.as_covariance().unwrap().covariance(&x, &far, kind).unwrap().row(0).unwrap().matrix(2);
        let compared = Moments::new(&draws, 2).unwrap().compare(&mean, &flat(&c)).unwrap();
        assert!(compared.agrees(1e-5), "{name}: {compared:?}");
    }
}

/// Enumeration works for any likelihood: y = x² here.
#[test]
fn empirical_posteriors_enumerate_any_likelihood() {
    let points = normals(3, 300, &[2]);
    let prior = Empirical::new(&points).unwrap();
    let y = tensor(vec![1.0, 0.25, 0.5, 0.5], &[2, 2]);
    let likelihood = Gaussian::new(Arc::new(Square), y, 0.3).unwrap();
    let Posterior::Points { log_weights, .. } = prior.posterior(&likelihood, 1).unwrap() else { panic!() };
    let raw: Vec<f64> = values(&points)
        .chunks(2)
        .map(|x| (-((x[0] * x[0] - 0.5).powi(2) + (x[1] * x[1] - 0.5).powi(2)) / 0.18).exp())
        .collect();
    let total: f64 = raw.iter().sum();
    let exact: Vec<f64> = raw.iter().map(|w| w / total).collect();
    assert_close(&log_weights.iter().map(|w| w.exp()).collect::<Vec<_>>(), &exact, 1e-10, "weights");
    let refused = mixture(&[2], &[1.0], 0, vec![RowCovariance::Scalar(1.0)]).posterior(&likelihood, 0);
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, "dense algebra needs a linear operator; square has none");
}

#[test]
fn a_dense_matrix_is_found_from_either_side() {
    let a: Vec<f64> = (0..6).map(f64::from).collect();
    for (input, output) in [(2, 3), (3, 2)] {
        let operator = Dense { input: vec![input], output: vec![output], matrices: vec![a.clone()] };
        let y = Tensor::zeros((1, output), daps_core::candle::DType::F64, &daps_core::candle::Device::Cpu);
        let likelihood = Gaussian::new(Arc::new(operator), y.unwrap(), 0.5).unwrap();
        let (at, _) = linear_measurement(&likelihood, 0).unwrap();
        assert_eq!(at.matrix, a);
        assert_eq!(at.variance, vec![0.25; output]);
        assert!(linear_measurement(&likelihood, 1).is_err());
    }
}

/// r(σ) by Monte Carlo against the closed form of a Gaussian, within 4.5 standard errors.
#[test]
fn measured_spreads_are_the_closed_form() {
    let shape = [2, 3];
    let prior = GaussianMixture::gaussian(&shape, vec![0.2; 6], random_full(6, 8)).unwrap();
    let sigmas = [0.05, 0.3, 1.0, 10.0];
    let exact = prior.gaussian_spread(&sigmas).unwrap();
    let rows = 4000;
    let draws = prior.draw(&Noise::chains(1, rows), AT).unwrap();
    let measured = spread_table(&prior, &draws, &sigmas, &Noise::chains(2, rows)).unwrap();
    // One row's mean square has a relative deviation of at most √2, for a covariance of rank one.
    let bound = 4.5 * 0.5 * (2.0 / rows as f64).sqrt();
    for (m, e) in measured.r.iter().zip(&exact.r) {
        assert!((m / e - 1.0).abs() < bound, "{m} vs {e}");
    }
    assert!((measured.data_std / exact.data_std - 1.0).abs() < bound);
    assert!(measured.r.iter().zip(sigmas).all(|(r, s)| *r <= s.min(exact.data_std) * (1.0 + bound)));
    let two = mixture(&[2], &[0.5, 0.5], 0, vec![RowCovariance::Scalar(1.0)]);
    assert!(two.gaussian_spread(&sigmas).is_err());
    assert_eq!(two.shape(), [2]);
}

/// Grey pictures in three channels: what the channels have in common has an error, the colours have none, and yet a variance.
#[test]
fn colours_of_grey_pictures_have_a_small_spread() {
    let grey = normals(4, 8, &[1, 6, 6]);
    let points = Tensor::cat(&[&grey, &grey, &grey], 1).unwrap();
    let prior = Empirical::new(&points).unwrap();
    let table = spread_table(&prior, &points, &[5.0, 20.0], &Noise::chains(2, 8)).unwrap();
    let bands = table.bands.unwrap();
    let planes: Vec<&[f64]> = bands.variance[1].chunks(bands.frequency.len()).collect();
    assert!(planes[0].iter().all(|v| *v > 1e-3), "{planes:?}");
    assert!(planes[1..].iter().flat_map(|p| p.iter()).all(|v| *v > 0.0 && *v < 1e-6), "{planes:?}");
}

/// By frequency against the closed form σ²P/(σ² + P) of a prior whose variances P are a function of frequency.
#[test]
fn measured_spreads_by_frequency_are_the_closed_form() {
    let shape = [3, 8, 6];
    let cosines = Arc::new(Cosines::new(&shape).unwrap());
    let power = |channel: usize, f: f64| if f == 0.0 { 4.0 } else { 0.5 / (1.0 + channel as f64) };
    let variances =
        (0..3).flat_map(|c| cosines.frequencies().into_iter().map(move |f| power(c, f))).collect::<Vec<_>>();
    let form = Covariance::Frequency(Frequency::new(Arc::clone(&cosines), variances.clone()).unwrap());
    let prior = GaussianMixture::gaussian(&shape, vec![0.1; 144], form.row(0).unwrap()).unwrap();
    let (rows, sigmas) = (2000, [0.1, 1.0]);
    let draws = prior.draw(&Noise::chains(1, rows), AT).unwrap();
    let table = spread_table(&prior, &draws, &sigmas, &Noise::chains(2, rows)).unwrap();
    for sigma in sigmas {
        let measured = table.variances_at(sigma, &cosines).unwrap();
        for (k, (m, p)) in measured.iter().zip(&variances).enumerate() {
            let exact = sigma.powi(2) * p / (sigma.powi(2) + p);
            // The mean of a band has the error of at least one coefficient's mean square, 4.5 of which are allowed.
            assert!(
                (m / exact - 1.0).abs() < 4.5 * (2.0 / rows as f64).sqrt(),
                "{sigma} {k}: {m} vs {exact}"
            );
        }
    }
}
