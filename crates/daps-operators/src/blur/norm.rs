//! A bound of the norm of a blur whose singular values are not known.

use daps_core::fill_normal;

use super::fourier::Fourier;
use super::padded::Padding;
use super::sparse::Sparse;
use super::{BlurKernel, Border};
use crate::rows::instance_stream;

/// Steps and margin of power iteration. From a random start in n dimensions, the estimate is below 1/margin of the largest
/// eigenvalue with a probability of about √n margin^-steps: 1e-10 for a 256x256 image.
const STEPS: usize = 80;
const MARGIN: f64 = 1.5;

/// An upper bound of ‖A‖²: the smallest of ‖A‖₁ ‖A‖∞, which is tight for kernels of one sign; the norm of the periodic
/// convolution on the padded plane times that of padding; and, for kernels of both signs, where these two can be four times
/// too large, a power iteration with a margin.
pub(super) fn norm_bound(kernel: &BlurKernel, border: Border, h: usize, w: usize) -> f64 {
    let absolute = BlurKernel { values: kernel.values.iter().map(|v| v.abs()).collect(), ..kernel.clone() };
    let blur = Sparse::new(&absolute, border, h, w);
    let largest = |f: &dyn Fn(&[f64], &mut [f64])| {
        let mut out = vec![0.0; h * w];
        f(&vec![1.0; h * w], &mut out);
        out.iter().copied().fold(0.0, f64::max)
    };
    let sums = largest(&|x, out| blur.apply(x, out)) * largest(&|r, out| blur.adjoint(r, out));
    let padding = Padding::new(kernel, border, h, w).multiplicity() as f64;
    let periodic = Fourier::new(kernel, border, h, w).largest_squared() * padding;
    let mixed = kernel.values.iter().any(|v| *v < 0.0) && kernel.values.iter().any(|v| *v > 0.0);
    let estimate = if mixed { MARGIN * largest_eigenvalue(kernel, border, h, w) } else { f64::INFINITY };
    sums.min(periodic).min(estimate)
}

/// The largest eigenvalue of AᵀA, from below.
fn largest_eigenvalue(kernel: &BlurKernel, border: Border, h: usize, w: usize) -> f64 {
    let blur = Sparse::new(kernel, border, h, w);
    let mut v = vec![0.0f64; h * w];
    let mut seen = vec![0.0; h * w];
    fill_normal(&mut instance_stream(0, 0, 6), &mut v);
    let square = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>();
    let mut eigenvalue = 0.0;
    for _ in 0..STEPS {
        let scale = 1.0 / square(&v).sqrt();
        v.iter_mut().for_each(|v| *v *= scale);
        blur.apply(&v, &mut seen);
        eigenvalue = square(&seen);
        blur.adjoint(&seen, &mut v);
    }
    eigenvalue
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kronecker::Svd;

    #[test]
    fn bounds_of_mixed_kernels_hold_and_are_within_a_factor_of_two() {
        for seed in 0..12 {
            let side = 2 + seed as usize % 5;
            let mut values = vec![0.0; side * side];
            fill_normal(&mut instance_stream(seed, 0, 7), &mut values);
            let kernel = BlurKernel::new(&values, side, side).unwrap();
            let (h, w) = (9, 12);
            let bound = norm_bound(&kernel, Border::Reflect, h, w);
            let blur = Sparse::new(&kernel, Border::Reflect, h, w);
            let column = |j: usize| {
                let (mut unit, mut out) = (vec![0.0; h * w], vec![0.0; h * w]);
                unit[j] = 1.0;
                blur.apply(&unit, &mut out);
                out
            };
            let columns: Vec<Vec<f64>> = (0..h * w).map(column).collect();
            let matrix = faer::Mat::from_fn(h * w, h * w, |i, j| columns[j][i]);
            let exact = Svd::new(&matrix).unwrap().singular[0].powi(2);
            assert!(exact <= bound && bound <= 2.0 * exact, "{bound} and {exact}");
        }
    }
}
