//! Dense linear algebra, compiled once: faer's algorithms are generic, and every crate that calls them would compile its own. Whoever
//! comes through here also leaves the vector registers clean.

use faer::linalg::matmul::matmul;
use faer::traits::ComplexField;
use faer::{Accum, Mat, MatMut, MatRef, Par, Side};

use crate::tensors::Real;
use crate::with_faer;

/// The two number types of [`product`].
pub trait Factor: Real + ComplexField {
    /// out = a b, on one thread.
    fn product(out: MatMut<'_, Self>, a: MatRef<'_, Self>, b: MatRef<'_, Self>);
}

macro_rules! factor {
    ($t:ty) => {
        impl Factor for $t {
            #[inline(never)]
            fn product(out: MatMut<'_, Self>, a: MatRef<'_, Self>, b: MatRef<'_, Self>) {
                with_faer(|| matmul(out, Accum::Replace, a, b, 1.0, Par::Seq));
            }
        }
    };
}
factor!(f32);
factor!(f64);

/// out = a b, on one thread: the order of sums does not depend on how many there are.
pub fn product<T: Factor>(out: MatMut<'_, T>, a: MatRef<'_, T>, b: MatRef<'_, T>) {
    T::product(out, a, b);
}

/// a b.
#[must_use]
pub fn times(a: MatRef<'_, f64>, b: MatRef<'_, f64>) -> Mat<f64> {
    let mut out = Mat::zeros(a.nrows(), b.ncols());
    product(out.as_mut(), a, b);
    out
}

/// The eigenvalues of a symmetric matrix, rising, and its eigenvectors as columns; none where they do not converge.
#[must_use]
pub fn eigen(matrix: &Mat<f64>) -> Option<(Vec<f64>, Mat<f64>)> {
    let eigen = with_faer(|| matrix.self_adjoint_eigen(Side::Lower)).ok()?;
    Some(((0..matrix.nrows()).map(|i| eigen.S()[i]).collect(), eigen.U().to_owned()))
}

/// U, the singular values falling, and V of a matrix U S Vᵀ with as few columns as it needs; none where they do not converge.
#[must_use]
pub fn thin_svd(matrix: &Mat<f64>) -> Option<(Mat<f64>, Vec<f64>, Mat<f64>)> {
    let svd = with_faer(|| matrix.thin_svd()).ok()?;
    let (singular, modes) = (svd.S().column_vector(), matrix.nrows().min(matrix.ncols()));
    Some((svd.U().to_owned(), (0..modes).map(|i| singular[i]).collect(), svd.V().to_owned()))
}

/// L with L Lᵀ a symmetric matrix; none where that is not positive definite.
#[must_use]
pub fn cholesky(matrix: &Mat<f64>) -> Option<Mat<f64>> {
    with_faer(|| matrix.llt(Side::Lower)).ok().map(|llt| llt.L().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_give_the_matrix_back() {
        let a = Mat::from_fn(4, 3, |i, j| ((3 * i + j) as f64 * 0.7).sin());
        let near = |x: &Mat<f64>, y: &Mat<f64>| {
            (0..x.nrows()).all(|i| (0..x.ncols()).all(|j| (x[(i, j)] - y[(i, j)]).abs() < 1e-12))
        };
        let (u, s, v) = thin_svd(&a).unwrap();
        let scaled = Mat::from_fn(4, 3, |i, j| u[(i, j)] * s[j]);
        assert!(near(&times(scaled.as_ref(), v.transpose()), &a));
        let mut gram = times(a.transpose(), a.as_ref());
        (0..3).for_each(|i| gram[(i, i)] += 0.1);
        let (values, vectors) = eigen(&gram).unwrap();
        assert!(values.windows(2).all(|w| w[0] <= w[1]));
        let scaled = Mat::from_fn(3, 3, |i, j| vectors[(i, j)] * values[j]);
        assert!(near(&times(scaled.as_ref(), vectors.transpose()), &gram));
        let lower = cholesky(&gram).unwrap();
        assert!(near(&times(lower.as_ref(), lower.transpose()), &gram));
        gram[(0, 0)] = -1.0;
        assert!(cholesky(&gram).is_none());
    }
}
