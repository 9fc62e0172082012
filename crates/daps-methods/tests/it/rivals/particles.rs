//! FPS-SMC, whose particles are a Kalman filter where everything is Gaussian.

use std::ops::ControlFlow;
use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Event, Gaussian, Method, Noise, Operator, Problem, Purpose, RowCovariance, ScheduleRule,
};
use daps_methods::FpsSmc;
use daps_operators::Dense;
use daps_priors::GaussianMixture;

use super::law::{BETA, CHAINS, Law, SINGULAR, Y, agrees, denoiser, draw, levels, schedules};

/// With one particle nothing is resampled: (x, y's own noise) is a Gaussian pair. With many, the law of x given the noised
/// measurements is that of a Kalman filter. Both are followed exactly; only right weights give the second.
#[test]
fn fps_smc_is_a_linear_recursion_with_one_particle_and_a_kalman_filter_with_many() {
    const FRESH: f64 = 0.6;
    let schedule = ScheduleRule::Geometric { levels: 6, max: 3.0, min: 0.4 };
    let law = |schedule: &ScheduleRule, i: usize, many: bool| {
        let steps = levels(schedule);
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
    for schedule in schedules(&schedule) {
        let one = FpsSmc { schedule, particles: 1, fresh: FRESH };
        agrees(&format!("{one:?}"), &draw(&one, CHAINS), |i| law(&one.schedule, i, false));
    }
    // 500 particles: the bias of order 1/500 is far below the error of 1500 samples.
    let many = FpsSmc { schedule, particles: 500, fresh: FRESH };
    agrees("fps-smc", &draw(&many, 1500), |i| law(&many.schedule, i, true));
    let of = |is_many| law(&many.schedule, 0, is_many).variance;
    let gap = of(true) / of(false);
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
    let task = Problem::new(Arc::new(prior), Arc::new(Gaussian::new(operator, y, 1e-6).unwrap())).unwrap();
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
