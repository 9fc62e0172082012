//! p(x0 | x_t) of closed-form priors: covariances against finite differences, and draws against both.

use crate::common::{assert_close, jacobian, mixture, normals, priors, values};
use daps_core::candle::Tensor;
use daps_core::mixture::choose;
use daps_core::{Approx, Covariance, CovarianceKind, Noise, RowCovariance, Sigma, open01};
use daps_metrics::moments::Moments;
use daps_priors::Analytic;

const SHAPE: [usize; 2] = [2, 2];

fn covariance(prior: &dyn Analytic, x: &Tensor, sigma: f64, kind: CovarianceKind) -> Covariance {
    prior.as_covariance().unwrap().covariance(x, &Sigma::Same(sigma), kind).unwrap()
}

/// Row 0 as a `d x d` matrix.
fn matrix(c: &Covariance, d: usize) -> Vec<f64> {
    let m = c.row(0).unwrap().matrix(d);
    (0..d * d).map(|i| m[(i / d, i % d)]).collect()
}

/// Cov[x0 | x_t] = σ² ∂D/∂x; the scalar and diagonal kinds are its parts.
#[test]
fn covariances_are_sigma_squared_times_the_jacobian() {
    for (name, prior) in priors(&SHAPE) {
        for sigma in [0.2, 0.6, 5.0] {
            let x = normals(13, 1, &SHAPE);
            let exact: Vec<f64> =
                jacobian(&*prior, &values(&x), sigma).iter().map(|j| sigma * sigma * j).collect();
            let what = format!("{name} at {sigma}");
            let full = matrix(&covariance(&*prior, &x, sigma, CovarianceKind::Full), 4);
            assert_close(&full, &exact, 2e-6, &what);
            let diagonal = matrix(&covariance(&*prior, &x, sigma, CovarianceKind::Diagonal), 4);
            let scalar = matrix(&covariance(&*prior, &x, sigma, CovarianceKind::Scalar), 4);
            let trace: f64 = (0..4).map(|i| full[i * 5]).sum();
            for i in 0..4 {
                assert!((diagonal[i * 5] / full[i * 5] - 1.0).abs() < 1e-10, "{what}");
                assert!((scalar[i * 5] * 4.0 / trace - 1.0).abs() < 1e-10, "{what}");
            }
        }
    }
}

/// Draws of p(x0 | x_t) by the conditional that the prior gives.
fn draws(approx: &Approx, n: usize) -> Vec<f64> {
    let noise = Noise::chains(17, n);
    let rng = |i| noise.stream(i, crate::common::AT);
    match approx {
        Approx::Mixture { rows, .. } => (0..n).flat_map(|i| rows[0].sample(&mut rng(i))).collect(),
        Approx::Gaussian { mean, covariance, .. } => {
            let (mean, c) = (values(mean), covariance.row(0).unwrap());
            let one = |i| c.sample(&mut rng(i), mean.len()).into_iter().zip(mean.clone()).map(|(z, m)| z + m);
            (0..n).flat_map(one).collect()
        }
        Approx::Draws { points, log_weights } => {
            let points = values(points);
            let d = points.len() / log_weights[0].len();
            let pick = |i| choose(&log_weights[0], open01(&mut rng(i)));
            (0..n).flat_map(|i| points[pick(i) * d..][..d].to_vec()).collect()
        }
        Approx::Score { .. } | Approx::Sites { .. } => panic!("no closed form gives a score or sites"),
    }
}

/// Mean and covariance of 20,000 draws against D and Cov: no |z| above what the largest of so many exceeds once in 10^5.
#[test]
fn draws_of_the_conditional_have_its_moments() {
    for (name, prior) in priors(&SHAPE) {
        for sigma in [0.3, 2.0] {
            let x = normals(14, 1, &SHAPE);
            let approx = prior.as_conditional().unwrap().conditional(&x, &Sigma::Same(sigma)).unwrap();
            let moments = Moments::new(&draws(&approx, 20_000), 4).unwrap();
            let mean = values(&prior.denoise(&x, &Sigma::Same(sigma)).unwrap());
            let c = matrix(&covariance(&*prior, &x, sigma, CovarianceKind::Full), 4);
            let compared = moments.compare(&mean, &c).unwrap();
            assert!(compared.agrees(1e-5), "{name} at {sigma}: {compared:?}");
            assert_close(&values(&approx.start().unwrap()), &mean, 1e-12, name);
        }
    }
}

/// Prior draws with noise added, kept where x_t falls in a small box: the law of total covariance without any formula.
#[test]
fn covariances_are_those_of_rejection_sampling() {
    let prior = mixture(&[1], &[0.6, 0.4], 2, vec![RowCovariance::Scalar(0.3), RowCovariance::Scalar(0.1)]);
    let (n, sigma, at, width) = (400_000, 0.8, 0.2, 0.02);
    let x0 = values(&prior.draw(&Noise::chains(3, n), crate::common::AT).unwrap());
    let noise = values(&normals(4, n, &[1]));
    let kept: Vec<f64> = x0
        .iter()
        .zip(&noise)
        .filter(|(x, z)| (**x + sigma * **z - at).abs() < width)
        .map(|(x, _)| *x)
        .collect();
    let x = crate::common::tensor(vec![at], &[1, 1]);
    let mean = values(&daps_core::Denoiser::denoise(&prior, &x, &Sigma::Same(sigma)).unwrap());
    let c = matrix(&covariance(&prior, &x, sigma, CovarianceKind::Full), 1);
    let moments = Moments::new(&kept, 1).unwrap();
    // The box adds width²/3 times the Jacobian squared to the variance, below 2e-4 of it.
    assert!(moments.compare(&mean, &c).unwrap().agrees(1e-4), "{moments:?} vs {mean:?} {c:?}");
}

/// All-scalar mixtures keep a low rank: at most the number of components, less where few matter.
#[test]
fn scalar_mixtures_give_low_rank() {
    let (k, d) = (25, 60);
    let prior = mixture(&[d], &vec![1.0; k], 6, vec![RowCovariance::Scalar(1.0)]);
    for (sigma, most) in [(50.0, k), (0.05, k / 2)] {
        let x = prior.draw(&Noise::chains(5, 4), crate::common::AT).unwrap();
        let Covariance::Dense(rows) = covariance(&prior, &x, sigma, CovarianceKind::Full) else { panic!() };
        for row in rows {
            let RowCovariance::LowRank { factor, .. } = row else { panic!("{row:?}") };
            assert!(factor.len() / d <= most, "rank {} at {sigma}", factor.len() / d);
        }
    }
}

/// A level for every row: the same as one call for each.
#[test]
fn rows_have_their_own_levels() {
    for (name, prior) in priors(&SHAPE) {
        let x = normals(15, 3, &SHAPE);
        let sigmas = [0.3, 1.0, 7.0];
        let model = prior.as_conditional().unwrap();
        let all = model.conditional(&x, &Sigma::Rows(sigmas.to_vec())).unwrap().start().unwrap();
        for (row, sigma) in sigmas.iter().enumerate() {
            let one = x.narrow(0, row, 1).unwrap();
            let start = model.conditional(&one, &Sigma::Same(*sigma)).unwrap().start().unwrap();
            assert_eq!(values(&start), values(&all.narrow(0, row, 1).unwrap()), "{name}");
        }
        for kind in [CovarianceKind::Scalar, CovarianceKind::Diagonal, CovarianceKind::Full] {
            let c =
                prior.as_covariance().unwrap().covariance(&x, &Sigma::Rows(sigmas.to_vec()), kind).unwrap();
            for (row, sigma) in sigmas.iter().enumerate() {
                let one = x.narrow(0, row, 1).unwrap();
                let alone = matrix(&covariance(&*prior, &one, *sigma, kind), 4);
                let m = c.row(row).unwrap().matrix(4);
                let here: Vec<f64> = (0..16).map(|i| m[(i / 4, i % 4)]).collect();
                assert_eq!(here, alone, "{name} {kind:?}");
            }
        }
    }
}
