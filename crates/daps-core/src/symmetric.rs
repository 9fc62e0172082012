//! Eigenvalues and eigenvectors of very small symmetric matrices, of which there are as many as an image has frequencies.

use std::cmp::Ordering;

/// Rotations of all pairs; three or four bring any small matrix to rounding.
const SWEEPS: usize = 30;

/// The eigenvalues of a symmetric `n x n` matrix, rising, and its eigenvectors as rows, by Jacobi's rotations. The matrix is used up;
/// numbers that are not finite come out as such.
pub(crate) fn eigen_in_place(matrix: &mut [f64], values: &mut [f64], vectors: &mut [f64]) {
    let n = values.len();
    vectors.fill(0.0);
    (0..n).for_each(|i| vectors[i * (n + 1)] = 1.0);
    for _ in 0..SWEEPS {
        let mut rotated = false;
        for (p, q) in (0..n).flat_map(|q| (0..q).map(move |p| (p, q))) {
            rotated |= rotate(matrix, vectors, n, p, q);
        }
        if !rotated {
            break;
        }
    }
    (0..n).for_each(|i| values[i] = matrix[i * (n + 1)]);
    for i in 0..n {
        let least = (i..n).fold(i, |least, j| if values[j] < values[least] { j } else { least });
        values.swap(i, least);
        (0..n).for_each(|k| vectors.swap(i * n + k, least * n + k));
    }
}

/// Makes the entry (p, q) zero, if it is not zero to rounding.
fn rotate(a: &mut [f64], vectors: &mut [f64], n: usize, p: usize, q: usize) -> bool {
    let (pp, qq, pq) = (a[p * (n + 1)], a[q * (n + 1)], a[p * n + q]);
    // What is no number is left as it is.
    if pq.abs().partial_cmp(&(1e-17 * (pp * qq).abs().sqrt())) != Some(Ordering::Greater) {
        return false;
    }
    let half = 0.5 * (qq - pp) / pq;
    let t = half.signum() / (half.abs() + half.hypot(1.0));
    let c = 1.0 / t.hypot(1.0);
    let s = t * c;
    for k in (0..n).filter(|k| *k != p && *k != q) {
        let (kp, kq) = (a[k * n + p], a[k * n + q]);
        let (kp, kq) = (c * kp - s * kq, s * kp + c * kq);
        (a[k * n + p], a[p * n + k]) = (kp, kp);
        (a[k * n + q], a[q * n + k]) = (kq, kq);
    }
    a[p * (n + 1)] = pp - t * pq;
    a[q * (n + 1)] = qq + t * pq;
    (a[p * n + q], a[q * n + p]) = (0.0, 0.0);
    for k in 0..n {
        let (vp, vq) = (vectors[p * n + k], vectors[q * n + k]);
        (vectors[p * n + k], vectors[q * n + k]) = (c * vp - s * vq, s * vp + c * vq);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::eigen;
    use faer::Mat;

    /// The same as faer's, for well and badly conditioned matrices, diagonal ones, and multiples of one.
    #[test]
    fn small_matrices_agree_with_the_dense_solver() {
        for (n, seed) in (1..=4).flat_map(|n| (0..50).map(move |seed| (n, seed))) {
            let root = |i: usize, j: usize| {
                let entry =
                    ((7 * i + 3 * j + 11 * seed) as f64 * 1.3).sin() * 10f64.powi(-((i * seed % 4) as i32));
                if seed % 10 == 0 && i != j { 0.0 } else { entry }
            };
            let of = |i: usize, j: usize| {
                (0..n).map(|k| root(i, k) * root(j, k)).sum::<f64>() + f64::from(u8::from(i == j)) * 1e-6
            };
            let matrix = Mat::from_fn(n, n, of);
            let mut flat: Vec<f64> = (0..n * n).map(|k| matrix[(k / n, k % n)]).collect();
            let (mut values, mut vectors) = (vec![0.0; n], vec![0.0; n * n]);
            eigen_in_place(&mut flat, &mut values, &mut vectors);
            let (expected, _) = eigen(&matrix).unwrap();
            let scale = expected[n - 1];
            assert!(values.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-14 * scale), "{values:?}");
            for (i, j) in (0..n).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let back: f64 = (0..n).map(|k| values[k] * vectors[k * n + i] * vectors[k * n + j]).sum();
                assert!((back - matrix[(i, j)]).abs() < 1e-14 * scale, "{n}, {seed}");
                let dot: f64 = (0..n).map(|k| vectors[i * n + k] * vectors[j * n + k]).sum();
                assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-14);
            }
        }
        let (mut values, mut vectors) = ([0.0; 2], [0.0; 4]);
        eigen_in_place(&mut [f64::NAN; 4], &mut values, &mut vectors);
        assert!(values.iter().all(|v| v.is_nan()));
    }
}
