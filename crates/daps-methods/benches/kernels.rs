//! Cost of a conditional draw on a 256x256 RGB image: noise, A, Aᵀ, 100 Langevin steps, and exact or replayed draws.
//!
//! `cargo bench -p daps-methods` times all of them in one run; ratios within a run are what counts.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use daps_core::candle::{DType, Tensor};
use daps_core::tensors::combine;
use daps_core::{
    Address, Approx, Conditional, Covariance, Gaussian, Kernel, Likelihood, Noise, Operator, Purpose, Step,
};
use daps_methods::kernel::{Exact, KernelConfig, Langevin, Replay, StepSize};

/// The allocator of the command line.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SHAPE: [usize; 3] = [3, 256, 256];
const STEP: Step = Step { index: 0, of: 200, start: 100.0, sigma: 0.3, next: 0.28 };
const TASKS: [&str; 7] = [
    "super_resolution",
    "inpaint_box",
    "inpaint_random",
    "gaussian_blur",
    "motion_blur",
    "phase_retrieval",
    "hdr",
];

struct TestBed {
    operator: Arc<dyn Operator>,
    likelihood: Gaussian,
    x: Tensor,
}

impl TestBed {
    fn new(name: &str) -> Self {
        let operator = daps_operators::build(name, &toml::Table::new(), &SHAPE, 0).expect("a known operator");
        let noise = Noise::chains(3, 1);
        let x = noise.normal(Address::new(0, Purpose::Instance, 0), &SHAPE, DType::F32).expect("noise");
        let x = (x * 0.3).expect("a tensor");
        let at = Address::new(0, Purpose::Measurement, 0);
        let error = noise.normal(at, operator.output_shape(), DType::F32).expect("noise");
        let y = operator
            .apply(&x)
            .and_then(|y| combine(&[(&[1.0], &y), (&[0.05], &error)]))
            .expect("a measurement");
        let likelihood = Gaussian::new(Arc::clone(&operator), y, 0.05).expect("a likelihood");
        Self { operator, likelihood, x }
    }

    fn draw(&self, kernel: &dyn Kernel) -> Tensor {
        let covariance = Covariance::Scalar(vec![STEP.sigma * STEP.sigma]);
        let approx = Approx::Gaussian { mean: self.x.clone(), covariance, start: self.x.clone() };
        let target = Conditional { approx: &approx, likelihood: &self.likelihood };
        // As the annealing loop calls it: from inside the thread pool.
        rayon::scope(|_| kernel.draw(&target, &Noise::chains(1, 1), &STEP)).expect("a draw").0
    }
}

fn kernels(c: &mut Criterion) {
    let noise = Noise::chains(1, 1);
    c.bench_function("noise", |b| {
        b.iter(|| noise.normal(Address::new(0, Purpose::Kernel, 0), &SHAPE, DType::F32).expect("noise"));
    });
    for name in TASKS {
        let problem = TestBed::new(name);
        let mut group = c.benchmark_group(name);
        let map = problem.operator.as_differentiable().expect("every task is differentiable");
        let y = problem.likelihood.y().clone();
        group.bench_function("A", |b| b.iter(|| black_box(problem.operator.apply(&problem.x))));
        group.bench_function("At", |b| b.iter(|| black_box(map.vjp(&problem.x, &y))));
        let step_size = StepSize::decay(1e-4);
        let langevin = KernelConfig::Langevin(Langevin { steps: 100, step_size: step_size.clone() })
            .build()
            .expect("a kernel");
        group.bench_function("100 Langevin steps", |b| b.iter(|| black_box(problem.draw(&*langevin))));
        if problem.operator.as_spectral().is_some() {
            let replay = KernelConfig::Replay(Replay { steps: 100, step_size }).build().expect("a kernel");
            group.bench_function("replay of 100 steps", |b| b.iter(|| black_box(problem.draw(&*replay))));
        }
        let powers = (problem.operator.as_linear().is_some(), problem.operator.as_pixelwise().is_some());
        if powers != (false, false) {
            let exact = KernelConfig::Exact(Exact { tolerance: 1e-4, ..Exact::default() });
            let exact = exact.build().expect("a kernel");
            group.bench_function("exact draw", |b| b.iter(|| black_box(problem.draw(&*exact))));
        }
        assert_eq!(problem.likelihood.input_shape(), SHAPE);
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = kernels
}
criterion_main!(benches);
