//! Every operator on a 256x256 RGB image in f32: A, its vjp, and the transforms to and from its modes.

use std::hint::black_box;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use criterion::{Criterion, criterion_group, criterion_main};
use daps_core::{Address, Noise, Operator, Purpose};
use daps_operators::{Blur, Border, Strategy, build, gaussian_kernel, motion_kernel};
use toml::Table;

const SHAPE: [usize; 3] = [3, 256, 256];

fn normal(shape: &[usize]) -> Tensor {
    let at = Address::new(0, Purpose::Reference, 0);
    Noise::chains(0, 1).normal(at, shape, DType::F32).unwrap()
}

fn bench(c: &mut Criterion, name: &str, operator: &dyn Operator) {
    let mut x = normal(operator.input_shape());
    if name == "xor" {
        x = x.ge(0.0).unwrap().to_dtype(DType::F32).unwrap();
    }
    let y = operator.apply(&x).unwrap();
    let mut group = c.benchmark_group(name);
    group.bench_function("apply", |b| b.iter(|| operator.apply(black_box(&x)).unwrap()));
    if let Some(map) = operator.as_differentiable() {
        group.bench_function("vjp", |b| b.iter(|| map.vjp(black_box(&x), black_box(&y)).unwrap()));
        let residual = &mut |seen: &Tensor| Ok((seen - &y)?);
        group.bench_function("both", |b| b.iter(|| map.vjp_of(black_box(&x), residual).unwrap()));
    }
    if let Some(map) = operator.as_linear().filter(|map| map.approx_spectral_map(&|_, _| 1.0, &x).is_some()) {
        let f = |_: usize, eigenvalue: f64| 1.0 / (1.0 + eigenvalue);
        group.bench_function("preconditioner", |b| {
            b.iter(|| map.approx_spectral_map(&f, black_box(&x)).unwrap().unwrap());
        });
    }
    if let Some(map) = operator.as_spectral() {
        let modes = map.v_t(&x).unwrap();
        group.bench_function("v_t", |b| b.iter(|| map.v_t(black_box(&x)).unwrap()));
        group.bench_function("v", |b| b.iter(|| map.v(black_box(&modes)).unwrap()));
        group.bench_function("u_t", |b| b.iter(|| map.u_t(black_box(&y)).unwrap()));
    }
    group.finish();
}

/// The tasks of the paper, by their names and with their defaults.
fn tasks(c: &mut Criterion) {
    for name in [
        "super_resolution",
        "inpaint_box",
        "inpaint_random",
        "gaussian_blur",
        "motion_blur",
        "phase_retrieval",
        "nonlinear_blur",
        "hdr",
        "mri",
        "xor",
    ] {
        let shape: &[usize] = if name == "mri" { &[2, 256, 256] } else { &SHAPE };
        let operator: Arc<dyn Operator> = build(name, &Table::new(), shape, 0).unwrap();
        bench(c, name, &*operator);
    }
}

/// The ways of applying one kernel, for the cost model.
fn ways(c: &mut Criterion) {
    let kernels = [("gaussian", gaussian_kernel(61, 3.0)), ("motion", motion_kernel(61, 0.5, 0, 0))];
    for (kernel_name, kernel) in kernels {
        let kernel = [kernel.unwrap()];
        for way in [Strategy::Separable, Strategy::Sparse, Strategy::Fourier] {
            if let Ok(blur) = Blur::with_strategy(&SHAPE, &kernel, Border::Reflect, way) {
                bench(c, &format!("way/{kernel_name}/{way:?}"), &blur);
            }
        }
    }
    let circular = Blur::new(&SHAPE, &[motion_kernel(61, 0.5, 0, 0).unwrap()], Border::Circular).unwrap();
    bench(c, "circular_motion_blur", &circular);
}

criterion_group! {
    name = operators;
    config = Criterion::default().sample_size(20).warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = tasks, ways
}
criterion_main!(operators);
