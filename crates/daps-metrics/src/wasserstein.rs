//! Wasserstein distances between sample sets: exact on the line, sliced in any dimension, exact W2 by optimal assignment.

use candle_core::DType;
use daps_core::tensors::to_f64;
use daps_core::{Address, Error, Noise, Purpose, Result};
use rayon::prelude::*;

use crate::assignment::assign_from;
use crate::count;

/// W1 between two sets of numbers of any sizes: ∫ |F_a - F_b|.
pub fn w1(a: &[f64], b: &[f64]) -> Result<f64> {
    count("samples", a, 1)?;
    count("samples", b, 1)?;
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    Ok(w1_in_place(&mut a, &mut b))
}

/// Sorts both sets and integrates.
fn w1_in_place(a: &mut [f64], b: &mut [f64]) -> f64 {
    a.sort_unstable_by(f64::total_cmp);
    b.sort_unstable_by(f64::total_cmp);
    if a.len() == b.len() {
        return a.iter().zip(b.iter()).map(|(a, b)| (a - b).abs()).sum::<f64>() / a.len() as f64;
    }
    // ∫ |Q_a(u) - Q_b(u)| du over the merged grid of both quantile functions, in units of 1/(n m).
    let (n, m) = (a.len(), b.len());
    let (mut i, mut j, mut at, mut total) = (0, 0, 0, 0.0);
    while i < n && j < m {
        let next = ((i + 1) * m).min((j + 1) * n);
        total += (next - at) as f64 * (a[i] - b[j]).abs();
        i += usize::from(next == (i + 1) * m);
        j += usize::from(next == (j + 1) * n);
        at = next;
    }
    total / (n as f64 * m as f64)
}

/// `n` random unit vectors of `dim` numbers, row-major; the same for the same seed.
pub fn directions(seed: u64, n: usize, dim: usize) -> Result<Vec<f64>> {
    let at = Address::new(0, Purpose::Slices, 0);
    let mut values = to_f64(&Noise::chains(seed, n).normal(at, &[dim], DType::F64)?)?;
    for direction in values.chunks_mut(dim.max(1)) {
        let norm = direction.iter().map(|v| v * v).sum::<f64>().sqrt();
        direction.iter_mut().for_each(|v| *v /= norm);
    }
    Ok(values)
}

/// Mean W1 of the projections of two point sets (row-major, `dim` numbers each) on the given directions.
pub fn sliced_w1(a: &[f64], b: &[f64], dim: usize, directions: &[f64]) -> Result<f64> {
    count("samples", a, dim)?;
    count("samples", b, dim)?;
    let n = count("directions", directions, dim)?;
    let project = |points: &[f64], u: &[f64]| -> Vec<f64> {
        points.chunks(dim).map(|x| x.iter().zip(u).map(|(x, u)| x * u).sum()).collect()
    };
    let each: Vec<f64> =
        directions.par_chunks(dim).map(|u| w1_in_place(&mut project(a, u), &mut project(b, u))).collect();
    Ok(each.iter().sum::<f64>() / n as f64)
}

/// Exact W2 between two point sets of equal size (row-major, `dim` numbers each), by optimal assignment.
pub fn w2(a: &[f64], b: &[f64], dim: usize) -> Result<f64> {
    let n = count("samples", a, dim)?;
    if count("samples", b, dim)? != n {
        let got = format!("{} and {n} points", b.len() / dim);
        return Err(Error::invalid("samples for W2", "two sets of equal size", got));
    }
    // W2² splits into the distance of the means and W2² of the centred sets.
    let ((a, mean_a), (b, mean_b)) = (centred(a, dim), centred(b, dim));
    let squared = |i: usize, j: usize| -> f64 {
        let pair = a[i * dim..(i + 1) * dim].iter().zip(&b[j * dim..(j + 1) * dim]);
        pair.map(|(a, b)| (a - b) * (a - b)).sum()
    };
    let cost: Vec<f64> = (0..n)
        .into_par_iter()
        .flat_map_iter(|i| {
            let squared = &squared;
            (0..n).map(move |j| squared(i, j))
        })
        .collect();
    let columns = assign_from(&cost, n, Some(gaussian_prices(&a, &b, dim)))?;
    let total: f64 = columns.iter().enumerate().map(|(i, &j)| cost[i * n + j]).sum();
    let shift: f64 = mean_a.iter().zip(&mean_b).map(|(a, b)| (a - b) * (a - b)).sum();
    Ok((shift + total / n as f64).sqrt())
}

/// Points around their mean, and the mean.
fn centred(points: &[f64], dim: usize) -> (Vec<f64>, Vec<f64>) {
    let n = (points.len() / dim) as f64;
    let mut mean = vec![0.0; dim];
    points.chunks(dim).for_each(|x| mean.iter_mut().zip(x).for_each(|(m, x)| *m += x / n));
    (points.chunks(dim).flat_map(|x| x.iter().zip(&mean).map(|(x, m)| x - m)).collect(), mean)
}

/// The dual potential of b if both sets were Gaussian with independent axes: the optimal map scales axis i by
/// t = std_a/std_b, and -2(tb - b) is the slope of the price at b.
fn gaussian_prices(a: &[f64], b: &[f64], dim: usize) -> Vec<f64> {
    let square = |points: &[f64], i: usize| points.iter().skip(i).step_by(dim).map(|v| v * v).sum::<f64>();
    let slopes: Vec<f64> = (0..dim)
        .map(|i| {
            let ratio = (square(a, i) / square(b, i)).sqrt();
            if ratio.is_finite() { 1.0 - ratio } else { 0.0 }
        })
        .collect();
    b.chunks(dim).map(|x| x.iter().zip(&slopes).map(|(x, s)| s * x * x).sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normals(seed: u64, n: usize, dim: usize) -> Vec<f64> {
        let at = Address::new(0, Purpose::Reference, 0);
        to_f64(&Noise::chains(seed, n).normal(at, &[dim], DType::F64).unwrap()).unwrap()
    }

    #[test]
    fn w1_on_the_line_has_hand_computed_values() {
        assert_eq!(w1(&[3.0, 1.0], &[2.0, 5.0]).unwrap(), 1.5);
        // {0} against {1, 2, 6}: the mean distance.
        assert!((w1(&[0.0], &[1.0, 2.0, 6.0]).unwrap() - 3.0).abs() < 1e-15);
        // {0, 1} against {0, 0, 1}: the quantile functions differ on (1/2, 2/3) by 1.
        assert!((w1(&[0.0, 1.0], &[0.0, 0.0, 1.0]).unwrap() - 1.0 / 6.0).abs() < 1e-15);
        assert!(w1(&[], &[1.0]).is_err());
        assert!(w1(&[f64::NAN], &[1.0]).is_err());
    }

    #[test]
    fn w1_of_repeated_points_is_that_of_the_points() {
        let (a, b) = (normals(0, 30, 1), normals(1, 20, 1));
        let repeat = |v: &[f64], k: usize| v.iter().flat_map(|x| vec![*x; k]).collect::<Vec<_>>();
        let both = w1(&repeat(&a, 2), &repeat(&b, 3)).unwrap();
        assert!((w1(&a, &b).unwrap() - both).abs() < 1e-12);
    }

    /// A shift by v moves every slice by u·v, and E|u·v| = |v| Γ(d/2)/(√π Γ((d+1)/2)).
    #[test]
    fn sliced_w1_of_a_shift_is_the_mean_projection() {
        let (dim, a) = (3, normals(2, 50, 3));
        let b: Vec<f64> = a.chunks(3).flat_map(|x| [x[0] + 1.0, x[1] - 2.0, x[2] + 2.0]).collect();
        let n = 20_000;
        let u = directions(7, n, dim).unwrap();
        // In three dimensions u·v/|v| is uniform on [-1, 1]: mean 1/2, variance of |u·v|/|v| 1/12.
        let got = sliced_w1(&a, &b, dim, &u).unwrap() / 3.0;
        assert!((got - 0.5).abs() < 4.0 * (1.0 / 12.0 / n as f64).sqrt(), "{got}");
    }

    #[test]
    fn w2_is_the_sorted_distance_on_the_line_and_the_shift_anywhere() {
        let (mut a, mut b) = (normals(3, 300, 1), normals(4, 300, 1));
        let got = w2(&a, &b, 1).unwrap();
        a.sort_by(f64::total_cmp);
        b.sort_by(f64::total_cmp);
        let sorted = (a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>() / 300.0).sqrt();
        assert!((got - sorted).abs() < 1e-12);
        let x = normals(5, 200, 2);
        let shifted: Vec<f64> = x.chunks(2).rev().flat_map(|x| [x[0] + 3.0, x[1] - 4.0]).collect();
        assert!((w2(&x, &shifted, 2).unwrap() - 5.0).abs() < 1e-12);
        assert!(w2(&x, &shifted[2..], 2).is_err());
    }
}
