//! What the approximations of f(AᵀA) are for: conjugate gradients on I/r² + AᵀA/β² must need fewer iterations with them.

use candle_core::{DType, Tensor};
use daps_core::tensors::{combine, sum_rows};
use daps_core::{Address, Linear, Noise, Purpose};
use daps_operators::build;

const BETA: f64 = 0.05;

fn normal(seed: u64, shape: &[usize]) -> Tensor {
    let at = Address::new(0, Purpose::Reference, 0);
    Noise::chains(seed, 1).normal(at, shape, DType::F64).unwrap()
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    sum_rows::<f64>(a, b, |a, b| a * b).unwrap()[0]
}

/// Iterations until the residual is 1e-4 of the right-hand side, that of a perturb-and-MAP draw.
fn iterations(map: &dyn Linear, r: f64, precondition: bool) -> usize {
    let (prior, data) = (r.powi(-2), BETA.powi(-2));
    let y = map.apply(&normal(1, map.input_shape())).unwrap();
    let y = combine(&[(&[data], &y), (&[1.0 / BETA], &normal(2, map.output_shape()))]).unwrap();
    let b =
        combine(&[(&[1.0], &map.adjoint(&y).unwrap()), (&[1.0 / r], &normal(3, map.input_shape()))]).unwrap();
    let curvature = |v: &Tensor| {
        combine(&[(&[prior], v), (&[data], &map.adjoint(&map.apply(v).unwrap()).unwrap())]).unwrap()
    };
    let inverse = |_: usize, eigenvalue: f64| 1.0 / (prior + data * eigenvalue);
    let improve = |v: &Tensor| match precondition {
        true => map.approx_spectral_map(&inverse, v).unwrap().unwrap(),
        false => v.clone(),
    };
    let mut residual = b.clone();
    let mut z = improve(&residual);
    let mut direction = z.clone();
    let mut decrease = dot(&residual, &z);
    for k in 1..1000 {
        let curved = curvature(&direction);
        let step = decrease / dot(&direction, &curved);
        residual = combine(&[(&[1.0], &residual), (&[-step], &curved)]).unwrap();
        if dot(&residual, &residual) <= 1e-8 * dot(&b, &b) {
            return k;
        }
        z = improve(&residual);
        let next = dot(&residual, &z);
        direction = combine(&[(&[1.0], &z), (&[next / decrease], &direction)]).unwrap();
        decrease = next;
    }
    1000
}

#[test]
fn preconditioners_save_iterations() {
    for (name, params, shape, most) in [
        ("motion_blur", "size = 15", [1, 64, 64], 0.85),
        ("mri", "", [2, 64, 64], 0.9),
        ("motion_blur", "size = 15\nborder = 'circular'", [1, 64, 64], 0.05),
        ("gaussian_blur", "size = 15", [1, 64, 64], 0.05),
    ] {
        for seed in 0..2 {
            let operator = build(name, &params.parse().unwrap(), &shape, seed).unwrap();
            let map = operator.as_linear().unwrap();
            for r in [1.0, 3.0] {
                let (plain, better) = (iterations(map, r, false), iterations(map, r, true));
                let text = format!("{name} ({params}), r = {r}: {plain} iterations, {better} with");
                println!("{text}");
                assert!(better as f64 <= (most * plain as f64).max(2.0), "{text}");
            }
        }
    }
}
