//! Clean measurements: exact draws at noise levels of 1e-3 and 1e-4 have the posterior of the dense algebra, for every linear
//! operator of the tasks, in both number types, with channels that are correlated and a local factor.

use std::sync::Arc;

use daps_core::candle::{DType, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Approx, Beta, Conditional, Cosines, Covariance, Frequency, Gaussian, Likelihood, LocalFactor,
    Noise, Operator, Purpose, Row, Step, linear_measurement,
};
use daps_methods::kernel::{Exact, KernelConfig};
use daps_metrics::moments::Moments;
use daps_operators::{
    Blur, BlurKernel, Border, Inpainting, SuperResolution, box_mask, gaussian_kernel, motion_kernel,
    random_mask,
};
use daps_priors::GaussianMixture;

const SHAPE: [usize; 3] = [3, 8, 8];
const SIZE: usize = 192;

/// As of a network at a high level: far less is known of low frequencies than of high ones.
fn covariance(local: bool) -> Covariance {
    let law = |f: f64, out: &mut [f64]| {
        let scale = 8.0 / (1.0 + (20.0 * f).powi(3));
        let block = [1.0, 0.02, 0.01, 0.02, 0.15, 0.03, 0.01, 0.03, 0.1];
        out.iter_mut().zip(block).for_each(|(out, v)| *out = v * scale);
    };
    let cosines = Arc::new(Cosines::new(&SHAPE).unwrap());
    let covariance = Frequency::correlated(cosines, law).unwrap();
    if !local {
        return Covariance::Frequency(covariance);
    }
    let factor = (0..SIZE).map(|k| [0.4, 0.8, 1.0, 2.0][(k / 2 + k / 16) % 4]).collect();
    let factor = from_f64(factor, &[1, 3, 8, 8], DType::F64).unwrap();
    Covariance::Frequency(covariance.with_local(LocalFactor { factor, from: 0.3 }).unwrap())
}

fn operators() -> Vec<Arc<dyn Operator>> {
    let blur = |kernel: BlurKernel| Arc::new(Blur::new(&SHAPE, &[kernel], Border::Reflect).unwrap());
    vec![
        blur(gaussian_kernel(7, 0.9).unwrap()),
        blur(motion_kernel(5, 0.5, 1, 0).unwrap()),
        Arc::new(SuperResolution::new(&SHAPE, 2).unwrap()),
        Arc::new(Inpainting::new(&SHAPE, &random_mask(8, 8, 0.6, 3).unwrap()).unwrap()),
        Arc::new(Inpainting::new(&SHAPE, &box_mask(8, 8, 4, 1, 2).unwrap()).unwrap()),
    ]
}

const STEP: Step = Step { index: 0, of: 1, start: 1.0, sigma: 1.0, next: 0.0 };

/// Means within 1e-2 deviations, variances within Monte-Carlo error, residuals of the size of the noise.
#[test]
fn draws_have_the_posterior() {
    let chains = 500;
    for (operator, local) in operators().into_iter().flat_map(|o| [(o.clone(), false), (o, true)]) {
        let covariance = covariance(local);
        let mean: Vec<f64> = (0..SIZE).map(|k| 0.2 * (k as f64 * 0.7).sin()).collect();
        let dense = GaussianMixture::gaussian(&SHAPE, mean.clone(), covariance.row(0).unwrap()).unwrap();
        for (beta, dtype) in [(1e-3, DType::F64), (1e-4, DType::F64), (1e-4, DType::F32)] {
            let what = format!("{}, local {local}, {beta}, {dtype:?}", operator.name());
            // A truth of the prior, measured.
            let one = Noise::chains(5, 1);
            let at = |purpose| Address::new(0, purpose, 0);
            let z = covariance.sample(&one, at(Purpose::Truth), &SHAPE, DType::F64).unwrap();
            let truth = (z + from_f64(mean.clone(), &[1, 3, 8, 8], DType::F64).unwrap()).unwrap();
            let e = one.normal(at(Purpose::Measurement), operator.output_shape(), DType::F64).unwrap();
            let y = (operator.apply(&truth).unwrap() + (seen(&*operator, e) * beta).unwrap()).unwrap();
            let rows = |t: &Tensor| {
                let dims = [&[chains], &t.dims()[1..]].concat();
                t.broadcast_as(dims).unwrap().contiguous().unwrap().to_dtype(dtype).unwrap()
            };
            let likelihood = Gaussian::new(operator.clone(), rows(&y), beta).unwrap();
            let (map, measured) = linear_measurement(&likelihood, 0).unwrap();
            let posterior = dense.mixture().posterior(&map, &measured).unwrap();
            let start = rows(&from_f64(mean.clone(), &[1, 3, 8, 8], DType::F64).unwrap());
            let approx = Approx::Gaussian {
                mean: start.clone(),
                covariance: covariance.clone(),
                start: start.clone(),
            };
            let target = Conditional { approx: &approx, likelihood: &likelihood };
            let kernel = KernelConfig::Exact(Exact::default()).build().unwrap();
            let (x, info) = kernel.draw(&target, &Noise::chains(3, chains), &STEP).unwrap();
            let (matrix, values) = (posterior.covariance(), to_f64(&x).unwrap());
            let flat: Vec<f64> = (0..SIZE * SIZE).map(|k| matrix[(k / SIZE, k % SIZE)]).collect();
            let comparison = Moments::new(&values, SIZE).unwrap().compare(&posterior.mean(), &flat).unwrap();
            assert!(comparison.agrees(1e-5), "{what}, {:?} iterations: {comparison:?}", info.iterations);
            let one = Exact::default().mean(
                &start.narrow(0, 0, 1).unwrap(),
                &covariance,
                &likelihood_of(&likelihood),
                &STEP,
            );
            for (k, (a, b)) in to_f64(&one.unwrap().0).unwrap().iter().zip(posterior.mean()).enumerate() {
                assert!((a - b).abs() < 1e-2 * flat[k * (SIZE + 1)].sqrt() + 1e-6, "{what}: {a} and {b}");
            }
            let chi = likelihood.discrepancy(&x).unwrap();
            let chi = chi.iter().map(|d| d.value).sum::<f64>() / chains as f64;
            assert!((0.5..1.6).contains(&chi), "{what}: {chi}");
        }
    }
}

/// Noise where something is measured, as a measurement of a run has it.
fn seen(operator: &dyn Operator, noise: Tensor) -> Tensor {
    let Some(visible) = operator.visible() else { return noise };
    let mask = visible[0].iter().map(|v| f64::from(u8::from(*v))).collect();
    (noise * from_f64(mask, &[&[1], operator.output_shape()].concat(), DType::F64).unwrap()).unwrap()
}

/// The first row of a likelihood.
fn likelihood_of(likelihood: &Gaussian) -> Gaussian {
    let row = likelihood.y().narrow(0, 0, 1).unwrap();
    let beta = likelihood.beta_rows().unwrap()[0];
    Gaussian::new(likelihood.operator().clone(), row, beta).unwrap()
}

/// Rows with a clean measurement and others in one batch: each has the bits that it has alone.
#[test]
fn clean_rows_and_others_do_not_depend_on_each_other() {
    let beta = [1e-4, 0.5, 2e-3, 1.0];
    for (operator, dtype) in operators().into_iter().flat_map(|o| [(o.clone(), DType::F32), (o, DType::F64)])
    {
        let noise = Noise::chains(9, 4);
        let x = noise.normal(Address::new(0, Purpose::Instance, 0), &SHAPE, dtype).unwrap();
        let y = operator.apply(&x).unwrap();
        let whole = Gaussian::new(operator.clone(), y, Beta::Rows(beta.to_vec())).unwrap();
        let sample = |rows: &[usize]| {
            let likelihood = whole.select(rows).unwrap();
            let start = x.narrow(0, 0, rows.len()).unwrap().zeros_like().unwrap();
            let approx = Approx::Gaussian { mean: start.clone(), covariance: covariance(false), start };
            let target = Conditional { approx: &approx, likelihood: &*likelihood };
            let noise =
                Noise::new(1, rows.iter().map(|r| Row { measurement: *r as u64, chain: 0 }).collect());
            let kernel = KernelConfig::Exact(Exact::default()).build().unwrap();
            to_f64(&kernel.draw(&target, &noise, &STEP).unwrap().0).unwrap()
        };
        let all = sample(&[0, 1, 2, 3]);
        for row in 0..4 {
            assert_eq!(sample(&[row]), all[row * SIZE..(row + 1) * SIZE], "{}, row {row}", operator.name());
        }
    }
}
