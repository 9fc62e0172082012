//! Denoisers of closed-form priors against numerical integration, Tweedie's identity and finite differences.

use crate::common::{assert_close, denoised, jacobian, normals, priors, tensor, values};
use daps_core::tensors::{batched, to_f64};
use daps_core::{CovarianceKind, Sigma};
use daps_priors::{Analytic, Empirical, GaussianMixture};

/// E[x0 | x] by the trapezoidal rule on a grid over [-8, 8]^d, from a log-density.
fn integrated(log_prior: &dyn Fn(&[f64]) -> f64, x: &[f64], sigma: f64, steps: usize) -> Vec<f64> {
    let d = x.len();
    let node = |i: usize| -8.0 + 16.0 * i as f64 / (steps - 1) as f64;
    let (mut total, mut mean) = (0.0, vec![0.0; d]);
    for flat in 0..steps.pow(d as u32) {
        let x0: Vec<f64> = (0..d).map(|j| node(flat / steps.pow(j as u32) % steps)).collect();
        let r: f64 = x.iter().zip(&x0).map(|(x, x0)| (x - x0).powi(2)).sum();
        let weight = (log_prior(&x0) - 0.5 * r / (sigma * sigma)).exp();
        total += weight;
        mean.iter_mut().zip(&x0).for_each(|(m, x0)| *m += weight * x0);
    }
    mean.iter().map(|m| m / total).collect()
}

/// Priors with a density, over samples of a shape.
fn smooth_priors(shape: &[usize]) -> Vec<(&'static str, GaussianMixture)> {
    use crate::common::{mixture, random_full};
    use daps_core::RowCovariance::{Diagonal, Scalar};
    let d: usize = shape.iter().product();
    let ramp = |a: f64| Diagonal((0..d).map(|i| a * (1.0 + i as f64)).collect());
    vec![
        ("one full", GaussianMixture::gaussian(shape, vec![0.3; d], random_full(d, 1)).unwrap()),
        ("scalars", mixture(shape, &[0.6, 0.4], 3, vec![Scalar(0.3)])),
        ("diagonals", mixture(shape, &[0.6, 0.4], 3, vec![ramp(0.2), ramp(0.5)])),
        ("fulls", mixture(shape, &[0.6, 0.4], 3, vec![random_full(d, 1), random_full(d, 2)])),
    ]
}

#[test]
fn the_denoiser_is_the_numerical_integral() {
    for (shape, steps) in [(&[1][..], 4001), (&[2][..], 401), (&[1, 2][..], 401)] {
        for (name, prior) in smooth_priors(shape) {
            let log_prior = |x0: &[f64]| prior.mixture().log_prob(x0).unwrap();
            for (x, sigma) in [([0.4, -0.9], 0.3), ([1.5, 1.0], 1.0), ([-2.0, 3.0], 3.0)] {
                let x = &x[..shape.iter().product()];
                let exact = integrated(&log_prior, x, sigma, steps);
                assert_close(&denoised(&prior, x, sigma), &exact, 1e-6, &format!("{name} {shape:?} {sigma}"));
            }
        }
    }
}

/// D(x) = x + σ² ∇ log p_σ(x), where p_σ is the prior with σ²I added to every covariance.
#[test]
fn tweedies_identity_holds() {
    use daps_core::{Full, RowCovariance, mixture::Mixture};
    for (name, prior) in smooth_priors(&[3]) {
        let (m, sigma) = (prior.mixture(), 0.7);
        let noisy: Vec<RowCovariance> = (0..m.covariances.len())
            .map(|k| {
                let mut c = m.covariances[k].matrix(3);
                (0..3).for_each(|i| c[(i, i)] += sigma * sigma);
                RowCovariance::Full(Full::new(c).unwrap())
            })
            .collect();
        let blurred = Mixture::new(m.log_weights.clone(), m.means.to_vec(), noisy.into()).unwrap();
        let x = [0.3, -0.8, 1.1];
        let h = 1e-5;
        let score: Vec<f64> = (0..3)
            .map(|j| {
                let at = |e: f64| {
                    let mut moved = x;
                    moved[j] += e;
                    blurred.log_prob(&moved).unwrap()
                };
                (at(h) - at(-h)) / (2.0 * h)
            })
            .collect();
        let tweedie: Vec<f64> = x.iter().zip(&score).map(|(x, s)| x + sigma * sigma * s).collect();
        assert_close(&denoised(&prior, &x, sigma), &tweedie, 1e-8, name);
    }
}

#[test]
fn the_vector_jacobian_product_is_that_of_finite_differences() {
    for shape in [&[4][..], &[2, 1, 2]] {
        for (name, prior) in priors(shape) {
            for sigma in [0.1, 0.5, 4.0] {
                let x = normals(21, 1, shape);
                let v = normals(22, 1, shape);
                let (_, pulled) = prior
                    .as_differentiable()
                    .unwrap()
                    .denoise_vjp(&x, &Sigma::Same(sigma), &|_| Ok(v.clone()))
                    .unwrap();
                let (j, v) = (jacobian(&*prior, &values(&x), sigma), values(&v));
                let exact: Vec<f64> = (0..4).map(|c| (0..4).map(|r| j[r * 4 + c] * v[r]).sum()).collect();
                assert_close(&values(&pulled), &exact, 2e-6, &format!("{name} {sigma}"));
            }
        }
    }
}

/// The cotangent sees D(x), and the denoised batch that comes with the product is D(x).
#[test]
fn the_cotangent_sees_the_estimate() {
    for (name, prior) in priors(&[3]) {
        let (x, sigma) = (normals(5, 4, &[3]), Sigma::Rows(vec![0.2, 0.5, 1.0, 3.0]));
        let seen = std::cell::RefCell::new(None);
        let cotangent = |d: &daps_core::candle::Tensor| {
            *seen.borrow_mut() = Some(d.clone());
            Ok(d.clone())
        };
        let (d, _) = prior.as_differentiable().unwrap().denoise_vjp(&x, &sigma, &cotangent).unwrap();
        let direct = values(&prior.denoise(&x, &sigma).unwrap());
        assert_eq!(values(&d), direct, "{name}");
        assert_eq!(values(&seen.into_inner().unwrap()), direct, "{name}");
    }
}

/// Components so far away that their weights underflow, and x_t far from all of them.
#[test]
fn extreme_responsibilities_stay_finite() {
    for (name, prior) in priors(&[3]) {
        for (scale, sigma) in [(1e3, 1e-3), (1e6, 1e-2), (1e-3, 1e-6), (1.0, 1e8)] {
            let x: Vec<f64> = [0.5, -1.0, 0.7].iter().map(|v| v * scale).collect();
            let d = denoised(&*prior, &x, sigma);
            assert!(d.iter().all(|v| v.is_finite()), "{name} {scale} {sigma}: {d:?}");
        }
    }
    // Far from two points, the nearer one wins entirely.
    let two = Empirical::new(&tensor(vec![0.0, 1.0], &[2, 1])).unwrap();
    assert_eq!(denoised(&two, &[1e5], 0.01), [1.0]);
}

/// A row that left the finite numbers comes back with NaN in it, and its neighbours are untouched.
#[test]
fn a_diverged_row_stays_alone() {
    for (name, prior) in priors(&[2]) {
        let x = tensor(vec![0.3, 0.1, f64::NAN, 1.0, 0.5, f64::INFINITY, 0.3, 0.1], &[4, 2]);
        let sigma = Sigma::Same(0.5);
        let d = values(&prior.denoise(&x, &sigma).unwrap());
        assert_eq!(d[0..2], d[6..8], "{name}");
        assert!(d[2..6].chunks(2).all(|row| row.iter().any(|v| v.is_nan())), "{name}: {d:?}");
        for kind in [CovarianceKind::Scalar, CovarianceKind::Diagonal, CovarianceKind::Full] {
            let solved = |x: &daps_core::candle::Tensor| {
                let covariance = prior.as_covariance().unwrap().covariance(x, &sigma, kind).unwrap();
                covariance.solve(&x.ones_like().unwrap()).map(|solved| values(&solved))
            };
            // A prior of points may have a covariance without an inverse, with or without the neighbours.
            match (solved(&x), solved(&x.narrow(0, 0, 1).unwrap())) {
                (Ok(all), Ok(alone)) => {
                    assert_eq!([&all[..2], &all[6..]], [&alone[..]; 2], "{name} {kind:?}");
                }
                (all, alone) => assert_eq!(all.is_err(), alone.is_err(), "{name} {kind:?}"),
            }
        }
        prior.as_conditional().unwrap().conditional(&x, &sigma).unwrap();
    }
}

#[test]
fn wrong_inputs_are_refused() {
    for (_, prior) in priors(&[2]) {
        let x = normals(1, 2, &[2]);
        assert!(prior.denoise(&normals(1, 2, &[3]), &Sigma::Same(1.0)).is_err());
        assert!(prior.denoise(&x, &Sigma::Same(-1.0)).is_err());
        assert!(prior.denoise(&x, &Sigma::Rows(vec![1.0])).is_err());
        let mut_shape = |_: &_| Ok(normals(1, 1, &[2]));
        assert!(prior.as_differentiable().unwrap().denoise_vjp(&x, &Sigma::Same(1.0), &mut_shape).is_err());
    }
}

/// Rows do not know of each other, of their level's form or of the threads: equal to the bit.
#[test]
fn rows_are_the_same_bits_in_any_batch_and_thread_pool() {
    let shape = [2, 5];
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for (name, prior) in priors(&shape) {
        let x = normals(31, 5, &shape);
        let sigmas = [0.1, 0.4, 1.0, 0.4, 20.0];
        let outputs = |x: &_, sigma: &Sigma| -> Vec<Vec<f64>> {
            let v = |d: &_| Ok(Clone::clone(d));
            let (d, pulled) = prior.as_differentiable().unwrap().denoise_vjp(x, sigma, &v).unwrap();
            let model = prior.as_covariance().unwrap();
            let cov = model.covariance(x, sigma, CovarianceKind::Full).unwrap();
            let diagonal = model.covariance(x, sigma, CovarianceKind::Diagonal).unwrap();
            let all = [&d, &pulled, &cov.apply(x).unwrap(), &diagonal.apply(x).unwrap()];
            let mut rows = vec![vec![]; x.dims()[0]];
            for t in all {
                for (row, chunk) in rows.iter_mut().zip(to_f64(t).unwrap().chunks(10)) {
                    row.extend_from_slice(chunk);
                }
            }
            rows
        };
        let whole = outputs(&x, &Sigma::Rows(sigmas.to_vec()));
        for row in 0..5 {
            let single = x.narrow(0, row, 1).unwrap();
            let alone = one_thread.install(|| outputs(&single, &Sigma::Same(sigmas[row])));
            assert_eq!(alone[0], whole[row], "{name}, row {row}");
        }
    }
}

/// A diagonal covariance given as a full matrix, and a scalar one given as a diagonal: the same prior.
#[test]
fn forms_of_one_covariance_agree() {
    use daps_core::RowCovariance::{Diagonal, Full, Scalar};
    let d = 5;
    let forms = |c: daps_core::RowCovariance| {
        let dense = Full(c.dense(d).unwrap());
        [
            crate::common::mixture(&[d], &[0.3, 0.7], 4, vec![c]),
            crate::common::mixture(&[d], &[0.3, 0.7], 4, vec![dense]),
        ]
    };
    let scalar_as_diagonal = crate::common::mixture(&[d], &[0.3, 0.7], 4, vec![Diagonal(vec![0.4; d])]);
    let [diagonal, full] = forms(Diagonal((0..d).map(|i| 0.1 + 0.2 * i as f64).collect()));
    let [scalar, scalar_full] = forms(Scalar(0.4));
    for (a, b) in [(&diagonal, &full), (&scalar, &scalar_full), (&scalar, &scalar_as_diagonal)] {
        let (x, sigma) = (normals(8, 3, &[d]), Sigma::Same(0.6));
        let both = |p: &GaussianMixture| {
            let (d, v) = p.as_differentiable_pair(&x, &sigma);
            let model = p.as_covariance_of(&x, &sigma);
            (d, v, model)
        };
        let (a, b) = (both(a), both(b));
        assert_close(&a.0, &b.0, 1e-12, "denoised");
        assert_close(&a.1, &b.1, 1e-12, "vjp");
        a.2.iter().zip(&b.2).for_each(|(a, b)| assert_close(a, b, 1e-12, "covariance"));
    }
}

/// Shorthands for the comparison of forms.
trait Outputs {
    fn as_differentiable_pair(&self, x: &daps_core::candle::Tensor, sigma: &Sigma) -> (Vec<f64>, Vec<f64>);
    fn as_covariance_of(&self, x: &daps_core::candle::Tensor, sigma: &Sigma) -> Vec<Vec<f64>>;
}

impl<T: Analytic> Outputs for T {
    fn as_differentiable_pair(&self, x: &daps_core::candle::Tensor, sigma: &Sigma) -> (Vec<f64>, Vec<f64>) {
        let v = |d: &_| Ok(Clone::clone(d));
        let (d, v) = self.as_differentiable().unwrap().denoise_vjp(x, sigma, &v).unwrap();
        (values(&d), values(&v))
    }

    /// Cov v for the three kinds and a fixed v.
    fn as_covariance_of(&self, x: &daps_core::candle::Tensor, sigma: &Sigma) -> Vec<Vec<f64>> {
        let v = normals(77, x.dims()[0], self.shape());
        assert_eq!(v.dims(), batched(x.dims()[0], self.shape()));
        [CovarianceKind::Scalar, CovarianceKind::Diagonal, CovarianceKind::Full]
            .map(|kind| {
                let c = self.as_covariance().unwrap().covariance(x, sigma, kind).unwrap();
                values(&c.apply(&v).unwrap())
            })
            .to_vec()
    }
}
