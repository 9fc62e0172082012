//! Kernels for nonlinear operators against numerical integration, and DPS against its own law.

use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Approx, ChainInfo, Conditional, Covariance, Gaussian, Likelihood, Method, Noise, Operator,
    Problem, Purpose, RHO, RowCovariance, Schedule, ScheduleRule, Step,
};
use daps_methods::kernel::{KernelConfig, Langevin, Mala, Metropolis, StepSize, Underdamped};
use daps_methods::{Dps, Dynamics, Guidance};
use daps_metrics::moments::Moments;
use daps_operators::{Dense, Hdr, PhaseRetrieval, Toy2d};
use daps_priors::GaussianMixture;

const CHAINS: usize = 10_000;
const P: f64 = 1e-5;
const STEP: Step = Step { index: 0, of: 10, start: 10.0, sigma: 0.4, next: 0.2 };

/// Mean and covariance of a two-dimensional conditional by summation over a grid.
fn integrate(likelihood: &Gaussian, center: [f64; 2], spread: f64) -> ([f64; 2], [f64; 4]) {
    let (n, half) = (301usize, 6.0 * spread);
    let at = |i: usize| 2.0 * half * (i as f64 / (n - 1) as f64) - half;
    let points: Vec<f64> = (0..n * n).flat_map(|k| [center[0] + at(k / n), center[1] + at(k % n)]).collect();
    let shape: Vec<usize> = std::iter::once(n * n).chain(likelihood.input_shape().iter().copied()).collect();
    let x = from_f64(points.clone(), &shape, DType::F64).unwrap();
    let log = likelihood.select(&vec![0; n * n]).unwrap().log_prob(&x).unwrap();
    let log: Vec<f64> = (0..n * n)
        .map(|k| log[k] - (at(k / n).powi(2) + at(k % n).powi(2)) / (2.0 * spread * spread))
        .collect();
    let top = log.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut mass, mut first, mut second) = (0.0, [0.0; 2], [0.0; 4]);
    for (x, l) in points.chunks(2).zip(&log) {
        let w = (l - top).exp();
        mass += w;
        for i in 0..2 {
            first[i] += w * x[i];
            (0..2).for_each(|j| second[2 * i + j] += w * x[i] * x[j]);
        }
    }
    let mean = first.map(|f| f / mass);
    (mean, std::array::from_fn(|k| second[k] / mass - mean[k / 2] * mean[k % 2]))
}

fn chains(operator: Arc<dyn Operator>, y: &[f64], beta: f64) -> Gaussian {
    let shape: Vec<usize> = std::iter::once(CHAINS).chain(operator.output_shape().iter().copied()).collect();
    let y = from_f64(y.iter().copied().cycle().take(CHAINS * y.len()).collect(), &shape, DType::F64).unwrap();
    Gaussian::new(operator, y, beta).unwrap()
}

fn check(what: &str, kernel: KernelConfig, likelihood: &Gaussian, center: [f64; 2], spread: f64) -> f64 {
    let shape: Vec<usize> = std::iter::once(CHAINS).chain(likelihood.input_shape().iter().copied()).collect();
    let mean =
        from_f64(center.iter().copied().cycle().take(2 * CHAINS).collect(), &shape, DType::F64).unwrap();
    let covariance = Covariance::Scalar(vec![spread * spread]);
    let approx = Approx::Gaussian { mean: mean.clone(), covariance, start: mean };
    let target = Conditional { approx: &approx, likelihood };
    let (x, info) = kernel.build().unwrap().draw(&target, &Noise::chains(5, CHAINS), &STEP).unwrap();
    let (mean, covariance) = integrate(likelihood, center, spread);
    let comparison = Moments::new(&to_f64(&x).unwrap(), 2).unwrap().compare(&mean, &covariance).unwrap();
    assert!(comparison.agrees(P), "{what}: {comparison:?}");
    info.acceptance.map_or(f64::NAN, |a| a.iter().sum::<f64>() / a.len() as f64)
}

#[test]
fn mala_and_metropolis_draw_the_toys_conditional() {
    let likelihood = chains(Arc::new(Toy2d::new(&[2]).unwrap()), &[0.7], 0.3);
    let mala = KernelConfig::Mala(Mala { steps: 300, warmup: 50, c: 1.0 });
    let accepted = check("mala", mala, &likelihood, [0.3, 0.4], 0.25);
    assert!((0.4..0.75).contains(&accepted), "{accepted}");
    for blocks in [1, 2] {
        let step_size = StepSize::decay(0.05);
        let walk = KernelConfig::Metropolis(Metropolis { steps: 400, warmup: 0, step_size, blocks });
        check("metropolis", walk, &likelihood, [0.3, 0.4], 0.25);
        // From steps far too short or too long, the warm-up finds those that are accepted as often as they should be.
        for eta0 in [1e-6, 50.0] {
            let step_size = StepSize::decay(eta0);
            let walk = KernelConfig::Metropolis(Metropolis { steps: 400, warmup: 200, step_size, blocks });
            let accepted = check("adapted metropolis", walk, &likelihood, [0.3, 0.4], 0.25);
            assert!((0.15..0.4).contains(&accepted), "{eta0}: {accepted}");
        }
    }
}

/// The phase retrieval of an image of two values.
fn two_pixels(shape: [usize; 3]) -> Gaussian {
    let operator = Arc::new(PhaseRetrieval::new(&shape, 0.0).unwrap());
    let truth = from_f64(vec![0.4, -0.2], &[1, shape[0], shape[1], shape[2]], DType::F64).unwrap();
    let y = to_f64(&operator.apply(&truth).unwrap()).unwrap();
    chains(operator, &y, 0.1)
}

/// Two pixels of a phase-retrieval image, as one channel of 1x2 and as two channels accepted one by one.
#[test]
fn mala_draws_phase_retrievals_conditional_with_and_without_factors() {
    for shape in [[1, 1, 2], [2, 1, 1]] {
        let likelihood = two_pixels(shape);
        assert_eq!(likelihood.factors(), shape[0]);
        let mala = KernelConfig::Mala(Mala { steps: 300, warmup: 50, c: 1.0 });
        check("phase retrieval", mala, &likelihood, [0.3, -0.1], 0.1);
    }
}

/// Dynamics without an accept step: at a small step in time, the bias is below the error of the draws.
#[test]
fn underdamped_draws_phase_retrievals_conditional() {
    for shape in [[1, 1, 2], [2, 1, 1]] {
        let kernel = KernelConfig::Underdamped(Underdamped { steps: 100, time_step: 0.4 });
        check("phase retrieval", kernel, &two_pixels(shape), [0.3, -0.1], 0.1);
    }
}

/// An unadjusted chain of small steps comes close, and a step far too large is reported as divergence, not as zeros.
#[test]
fn divergence_is_marked_and_never_zeroed() {
    let matrix = Tensor::new(&[[[1.0f64, 0.0], [0.0, 0.5]]], &Device::Cpu).unwrap();
    let operator = Arc::new(Dense::new(&[2], &matrix).unwrap());
    let y = Tensor::new(&[[0.1f64, 0.2]; 3], &Device::Cpu).unwrap();
    let likelihood = Gaussian::new(operator, y, 0.01).unwrap();
    let mean = Tensor::zeros((3, 2), DType::F64, &Device::Cpu).unwrap();
    let approx =
        Approx::Gaussian { mean: mean.clone(), covariance: Covariance::Scalar(vec![1.0]), start: mean };
    let target = Conditional { approx: &approx, likelihood: &likelihood };
    let draw = |eta0| {
        let kernel = KernelConfig::Langevin(Langevin { steps: 100, step_size: StepSize::decay(eta0) });
        kernel.build().unwrap().draw(&target, &Noise::chains(1, 3), &STEP).unwrap()
    };
    assert!(draw(1e-5).1.diverged.iter().all(|d| !d));
    let (x, info) = draw(1e-2);
    assert!(info.diverged.iter().all(|d| *d));
    assert!(to_f64(&x).unwrap().iter().any(|v| !v.is_finite() || v.abs() > 1e6));
}

/// DPS on a scalar Gaussian prior is a linear recursion; its mean and variance are known level by level.
#[test]
fn dps_follows_its_own_recursion() {
    let (variance, a, y, beta) = (0.25, 0.8, 0.5, 0.4);
    let rule = ScheduleRule::Poly { levels: 40, max: 10.0, min: 0.05, rho: RHO };
    let prior = GaussianMixture::gaussian(&[1], vec![0.1], RowCovariance::Scalar(variance)).unwrap();
    let matrix = Tensor::new(&[[[a]]], &Device::Cpu).unwrap();
    let likelihood = chains(Arc::new(Dense::new(&[1], &matrix).unwrap()), &[y], beta);
    let task = Problem::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
    for (dynamics, scale) in [(Dynamics::Sde, 1.0), (Dynamics::Ode, 1.0), (Dynamics::Sde, 0.5)] {
        let dps = Dps { schedule: rule.clone(), dynamics, guidance: Guidance::Likelihood { scale } };
        let samples = dps.sample(&task, &Noise::chains(2, CHAINS), None, &mut ()).unwrap();
        let (mut mean, mut var) = (0.0, 100.0);
        for step in Schedule::new(&rule).unwrap().steps() {
            let (s2, n2) = (step.sigma.powi(2), step.next.powi(2));
            let w = variance / (variance + s2);
            // D = 0.1 + w (x - 0.1); the pull is scale · strength · w a (y - a D)/β².
            let (keep, noise, strength) = match dynamics {
                Dynamics::Sde => (n2 / s2, n2 * (1.0 - n2 / s2), s2 - n2),
                Dynamics::Ode => (step.next / step.sigma, 0.0, step.sigma * (step.sigma - step.next)),
            };
            let pull = scale * strength * w * a / (beta * beta);
            let gain = keep + (1.0 - keep) * w - pull * a * w;
            let offset = (1.0 - keep) * (0.1 - 0.1 * w) + pull * (y - a * (0.1 - 0.1 * w));
            mean = gain * mean + offset;
            var = gain * gain * var + noise;
        }
        let moments = Moments::new(&to_f64(&samples.x).unwrap(), 1).unwrap();
        let comparison = moments.compare(&[mean], &[var]).unwrap();
        assert!(comparison.agrees(P), "{dynamics:?}, {scale}: {comparison:?}, {moments:?}, {mean}, {var}");
    }
}

/// The norm guidance is ζ √((1+σ²)(1+σ'²)) times the gradient of -‖y - A(D)‖: two steps by hand.
#[test]
fn dps_norm_guidance_is_the_papers_step_in_vp_coordinates() {
    let prior = GaussianMixture::gaussian(&[1], vec![0.0], RowCovariance::Scalar(1.0)).unwrap();
    let matrix = Tensor::new(&[[[3.0f64]]], &Device::Cpu).unwrap();
    let y = Tensor::new(&[[5.0f64]], &Device::Cpu).unwrap();
    let likelihood = Gaussian::new(Arc::new(Dense::new(&[1], &matrix).unwrap()), y, 0.1).unwrap();
    let task = Problem::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
    let draws = || [0.5f64, -0.4, 0.0].map(|z| Tensor::new(&[[z]], &Device::Cpu).unwrap());
    for dynamics in [Dynamics::Ode, Dynamics::Sde] {
        let schedule = ScheduleRule::Levels { sigmas: vec![2.0, 1.0, 0.0] };
        // x = 2 · 0.5 = 1 and D = 1/5: the Euler step from 2 to 1, or the bridge's mean and noise.
        let unguided = match dynamics {
            Dynamics::Ode => 1.0 - (1.0 - 0.2) / 2.0,
            Dynamics::Sde => 1.0 - 0.75 * 0.8 - 0.4 * 0.75f64.sqrt(),
        };
        // The residual 3D - 5 is negative at both levels, and -∇‖·‖ in x is 3/5, then 3/2.
        let first = unguided + 0.7 * 10f64.sqrt() * 0.6;
        let expected = first / 2.0 + 0.7 * 2f64.sqrt() * 1.5;
        let dps = Dps { schedule, dynamics, guidance: Guidance::Norm { zeta: 0.7 } };
        let samples = dps.sample(&task, &Noise::scripted(1, draws()), None, &mut ()).unwrap();
        let found = to_f64(&samples.x).unwrap()[0];
        assert!((found - expected).abs() < 1e-12, "{dynamics:?}: {found}, {expected}");
    }
}

/// The norm is that of the whole residual: of (3, 4) it is 5, and from x = 0 with D = x/2 the pull is ζ√2 (3, 4)/10.
#[test]
fn dps_norm_guidance_follows_the_norm_of_all_that_is_measured() {
    let prior = GaussianMixture::gaussian(&[2], vec![0.0; 2], RowCovariance::Scalar(1.0)).unwrap();
    let unit = Tensor::new(&[[[1.0f64, 0.0], [0.0, 1.0]]], &Device::Cpu).unwrap();
    let y = Tensor::new(&[[3.0f64, 4.0]], &Device::Cpu).unwrap();
    let likelihood = Gaussian::new(Arc::new(Dense::new(&[2], &unit).unwrap()), y, 0.1).unwrap();
    let task = Problem::new(Arc::new(prior), Arc::new(likelihood)).unwrap();
    let schedule = ScheduleRule::Levels { sigmas: vec![1.0, 0.0] };
    let dps = Dps { schedule, dynamics: Dynamics::Sde, guidance: Guidance::Norm { zeta: 0.7 } };
    let zeros = [0, 1].map(|_| Tensor::zeros((1, 2), DType::F64, &Device::Cpu).unwrap());
    let samples = dps.sample(&task, &Noise::scripted(1, zeros), None, &mut ()).unwrap();
    for (found, part) in to_f64(&samples.x).unwrap().iter().zip([0.3, 0.4]) {
        let expected = 0.7 * 2f64.sqrt() * part;
        assert!((found - expected).abs() < 1e-12, "{found}, {expected}");
    }
}

/// One draw of `d` values around 0 with deviation 1, measured as 0 with the noise β.
fn one_chain(kernel: &KernelConfig, d: usize, beta: f64) -> (Vec<f64>, ChainInfo) {
    let zeros = from_f64(vec![0.0; d], &[1, d], DType::F64).unwrap();
    let operator = Arc::new(Hdr::new(&[d], 2.0).unwrap());
    let likelihood = Gaussian::new(operator, zeros.clone(), beta).unwrap();
    let covariance = Covariance::Scalar(vec![1.0]);
    let approx = Approx::Gaussian { mean: zeros.clone(), covariance, start: zeros };
    let target = Conditional { approx: &approx, likelihood: &likelihood };
    let (x, info) = kernel.build().unwrap().draw(&target, &Noise::chains(5, 1), &STEP).unwrap();
    (to_f64(&x).unwrap(), info)
}

/// Split methods draw the first step of their reverse diffusion at this address, right after the kernel.
#[test]
fn the_start_of_the_dynamics_shares_no_noise_with_the_reverse_diffusion() {
    let d = 2000;
    // One short step: the chain ends where it starts.
    let kernel = KernelConfig::Underdamped(Underdamped { steps: 1, time_step: 0.1 });
    let (x, _) = one_chain(&kernel, d, 100.0);
    let at = Address::new(STEP.index, Purpose::Estimate, 0);
    let z = to_f64(&Noise::chains(5, 1).normal(at, &[d], DType::F64).unwrap()).unwrap();
    let correlation = x.iter().zip(&z).map(|(x, z)| x * z).sum::<f64>() / d as f64;
    // 4.5 standard errors of independent draws.
    assert!(correlation.abs() < 4.5 / (d as f64).sqrt(), "{correlation}");
}

/// Five values in four blocks make three of at most two values. Steps this long are never accepted, empty ones would be.
#[test]
fn metropolis_proposes_no_empty_block() {
    let step_size = StepSize::decay(1e10);
    let kernel = KernelConfig::Metropolis(Metropolis { steps: 40, warmup: 0, step_size, blocks: 4 });
    assert_eq!(one_chain(&kernel, 5, 0.1).1.acceptance, Some(vec![0.0]));
}
