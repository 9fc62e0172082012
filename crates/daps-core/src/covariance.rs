//! Covariances of p(x0 | x_t): from one number for an image to a full matrix for a small problem.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{Mat, Par};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::linalg::cholesky;
use crate::noise::fill_normal;
use crate::tensors::{batched, check_rows, combine, from_f64, pick, to_f64};
use crate::{Address, Error, Frequency, Noise, Result, with_faer};

/// The covariance of a batch.
#[derive(Clone, Debug)]
pub enum Covariance {
    /// v · I, with one variance for all rows or one per row.
    Scalar(Vec<f64>),
    /// Variances of every value, `[rows, shape…]`.
    Diagonal(Tensor),
    /// Variances of every frequency of an image, one set for all rows, perhaps times a local factor of every row.
    Frequency(Frequency),
    /// One [`RowCovariance`] per row, for problems small enough for dense algebra.
    Dense(Vec<RowCovariance>),
}

/// The covariance of one sample, in f64.
#[derive(Clone, Debug)]
pub enum RowCovariance {
    /// v · I.
    Scalar(f64),
    /// Variances.
    Diagonal(Vec<f64>),
    /// a · I + FᵀF, where F is `k x d`, row-major.
    LowRank {
        /// a.
        diagonal: f64,
        /// F.
        factor: Vec<f64>,
    },
    /// A full matrix with its Cholesky factor.
    Full(Full),
}

/// A positive definite matrix C = L Lᵀ. A clone shares the matrices, so one may stand in every row of a batch.
#[derive(Clone, Debug)]
pub struct Full {
    matrix: Arc<Mat<f64>>,
    lower: Arc<Mat<f64>>,
}

impl Full {
    /// Factorises a symmetric positive definite matrix.
    pub fn new(matrix: Mat<f64>) -> Result<Self> {
        match cholesky(&matrix) {
            Some(lower) => Ok(Self { matrix: Arc::new(matrix), lower: Arc::new(lower) }),
            None => Err(Error::invalid("covariance", "a positive definite matrix", "one that is not")),
        }
    }

    /// C.
    #[must_use]
    pub fn matrix(&self) -> &Mat<f64> {
        &self.matrix
    }

    /// L with C = L Lᵀ.
    #[must_use]
    pub fn lower(&self) -> &Mat<f64> {
        &self.lower
    }

    /// C⁻¹ b by two triangular solves.
    #[must_use]
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = Mat::from_fn(b.len(), 1, |i, _| b[i]);
        with_faer(|| {
            solve_lower_triangular_in_place(self.lower.as_ref().as_ref(), x.as_mut(), Par::Seq);
            solve_upper_triangular_in_place(self.lower.transpose(), x.as_mut(), Par::Seq);
        });
        x.col_as_slice(0).to_vec()
    }

    /// ln det C.
    #[must_use]
    pub fn log_det(&self) -> f64 {
        (0..self.lower.nrows()).map(|i| 2.0 * self.lower[(i, i)].ln()).sum()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl RowCovariance {
    /// C v.
    #[must_use]
    pub fn apply(&self, v: &[f64]) -> Vec<f64> {
        match self {
            Self::Scalar(c) => v.iter().map(|x| c * x).collect(),
            Self::Diagonal(c) => v.iter().zip(c).map(|(x, c)| c * x).collect(),
            Self::LowRank { diagonal, factor } => {
                let mut out: Vec<f64> = v.iter().map(|x| diagonal * x).collect();
                for f in factor.chunks(v.len()) {
                    let w = dot(f, v);
                    out.iter_mut().zip(f).for_each(|(o, f)| *o += w * f);
                }
                out
            }
            Self::Full(c) => times(&c.matrix, v),
        }
    }

    /// C⁻¹ v.
    pub fn solve(&self, v: &[f64]) -> Result<Vec<f64>> {
        match self {
            Self::Scalar(c) => Ok(v.iter().map(|x| x / c).collect()),
            Self::Diagonal(c) => Ok(v.iter().zip(c).map(|(x, c)| x / c).collect()),
            Self::LowRank { diagonal, factor } => {
                // Woodbury: (aI + FᵀF)⁻¹ v = (v - Fᵀ (aI + FFᵀ)⁻¹ F v) / a.
                let rows: Vec<&[f64]> = factor.chunks(v.len()).collect();
                let inner = Full::new(small_gram(*diagonal, &rows))?
                    .solve(&rows.iter().map(|f| dot(f, v)).collect::<Vec<_>>());
                let mut out = v.to_vec();
                for (f, w) in rows.iter().zip(&inner) {
                    out.iter_mut().zip(*f).for_each(|(o, f)| *o -= w * f);
                }
                out.iter_mut().for_each(|o| *o /= diagonal);
                Ok(out)
            }
            Self::Full(c) => Ok(c.solve(v)),
        }
    }

    /// A draw of N(0, C).
    #[must_use]
    pub fn sample(&self, rng: &mut ChaCha8Rng, dim: usize) -> Vec<f64> {
        let mut z = vec![0.0; dim];
        fill_normal(rng, &mut z);
        match self {
            Self::Scalar(c) => z.iter().map(|z| c.sqrt() * z).collect(),
            Self::Diagonal(c) => z.iter().zip(c).map(|(z, c)| c.sqrt() * z).collect(),
            Self::LowRank { diagonal, factor } => {
                let mut w = vec![0.0; factor.len() / dim.max(1)];
                fill_normal(rng, &mut w);
                let mut out: Vec<f64> = z.iter().map(|z| diagonal.sqrt() * z).collect();
                for (f, w) in factor.chunks(dim).zip(&w) {
                    out.iter_mut().zip(f).for_each(|(o, f)| *o += w * f);
                }
                out
            }
            Self::Full(c) => times(&c.lower, &z),
        }
    }

    /// ln det C for a sample of `dim` values.
    #[must_use]
    pub fn log_det(&self, dim: usize) -> f64 {
        match self {
            Self::Scalar(c) => dim as f64 * c.ln(),
            Self::Diagonal(c) => c.iter().map(|c| c.ln()).sum(),
            Self::LowRank { diagonal, factor } => {
                // Sylvester: det(aI + FᵀF) = a^(d-k) det(aI + FFᵀ).
                let rows: Vec<&[f64]> = factor.chunks(dim.max(1)).collect();
                let rest = (dim as f64 - rows.len() as f64) * diagonal.ln();
                Full::new(small_gram(*diagonal, &rows)).map_or(f64::NAN, |small| rest + small.log_det())
            }
            Self::Full(c) => c.log_det(),
        }
    }

    /// The full matrix with its Cholesky factor, for oracles and small problems.
    pub fn dense(&self, dim: usize) -> Result<Full> {
        match self {
            Self::Full(c) => Ok(c.clone()),
            _ => Full::new(self.matrix(dim)),
        }
    }

    /// The full matrix.
    #[must_use]
    pub fn matrix(&self, dim: usize) -> Mat<f64> {
        if let Self::Full(c) = self {
            return c.matrix().clone();
        }
        let mut unit = vec![0.0; dim];
        let mut matrix = Mat::zeros(dim, dim);
        for j in 0..dim {
            unit[j] = 1.0;
            matrix.col_as_slice_mut(j).copy_from_slice(&self.apply(&unit));
            unit[j] = 0.0;
        }
        matrix
    }
}

fn times(matrix: &Mat<f64>, v: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; matrix.nrows()];
    for (j, &x) in v.iter().enumerate() {
        out.iter_mut().zip(matrix.col_as_slice(j)).for_each(|(o, m)| *o += m * x);
    }
    out
}

/// aI + FFᵀ for the rows of F.
fn small_gram(a: f64, rows: &[&[f64]]) -> Mat<f64> {
    Mat::from_fn(rows.len(), rows.len(), |i, j| dot(rows[i], rows[j]) + if i == j { a } else { 0.0 })
}

impl Covariance {
    /// C v, row by row.
    pub fn apply(&self, v: &Tensor) -> Result<Tensor> {
        match self {
            Self::Scalar(c) => combine(&[(c, v)]),
            Self::Diagonal(c) => Ok((v * c.to_dtype(v.dtype())?)?),
            Self::Frequency(c) => c.apply(v),
            Self::Dense(rows) => dense_rows(rows, v, |row, v| Ok(row.apply(v))),
        }
    }

    /// C⁻¹ v, row by row.
    pub fn solve(&self, v: &Tensor) -> Result<Tensor> {
        match self {
            Self::Scalar(c) => combine(&[(&c.iter().map(|c| 1.0 / c).collect::<Vec<_>>(), v)]),
            Self::Diagonal(c) => Ok((v / c.to_dtype(v.dtype())?)?),
            Self::Frequency(c) => c.solve(v),
            Self::Dense(rows) => dense_rows(rows, v, RowCovariance::solve),
        }
    }

    /// A draw of N(0, C) for every row.
    pub fn sample(&self, noise: &Noise, at: Address, shape: &[usize], dtype: DType) -> Result<Tensor> {
        match self {
            Self::Scalar(c) => {
                let roots: Vec<f64> = c.iter().map(|c| c.sqrt()).collect();
                combine(&[(&roots, &noise.normal(at, shape, dtype)?)])
            }
            Self::Diagonal(c) => Ok((noise.normal(at, shape, dtype)? * c.to_dtype(dtype)?.sqrt()?)?),
            Self::Frequency(c) => c.root(&noise.normal(at, shape, dtype)?),
            Self::Dense(rows) => {
                let dim = shape.iter().product();
                let draw = |i: usize| rows[i].sample(&mut noise.stream(i, at), dim);
                let values = (0..rows.len()).into_par_iter().flat_map_iter(draw).collect();
                from_f64(values, &batched(rows.len(), shape), dtype)
            }
        }
    }

    /// The covariance of one row, in f64.
    pub fn row(&self, row: usize) -> Result<RowCovariance> {
        match self {
            Self::Scalar(c) => Ok(RowCovariance::Scalar(pick(c, row))),
            Self::Diagonal(c) => Ok(RowCovariance::Diagonal(to_f64(&c.get(row)?)?)),
            Self::Frequency(c) => Ok(RowCovariance::Full(c.dense(row)?)),
            Self::Dense(rows) => Ok(rows[row].clone()),
        }
    }
}

fn dense_rows(
    rows: &[RowCovariance],
    v: &Tensor,
    f: impl Fn(&RowCovariance, &[f64]) -> Result<Vec<f64>> + Sync,
) -> Result<Tensor> {
    let batch = check_rows("rows of a covariance", v, &v.dims()[1..])?;
    if batch != rows.len() {
        return Err(Error::invalid("rows of a covariance", format!("{} rows", rows.len()), batch));
    }
    let values = to_f64(v)?;
    let n = values.len() / batch.max(1);
    let out: Vec<Vec<f64>> = (0..batch)
        .into_par_iter()
        .map(|i| f(&rows[i], &values[i * n..(i + 1) * n]))
        .collect::<Result<_>>()?;
    from_f64(out.concat(), v.dims(), v.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All four forms of one 3x3 matrix agree with the full one.
    #[test]
    fn forms_agree_with_the_full_matrix() {
        let v = [0.3, -1.2, 0.7];
        let forms = [
            RowCovariance::Scalar(0.4),
            RowCovariance::Diagonal(vec![0.2, 0.5, 1.5]),
            RowCovariance::LowRank { diagonal: 0.3, factor: vec![1.0, 0.5, -0.2, 0.1, -0.7, 0.4] },
        ];
        for form in forms {
            let full = RowCovariance::Full(form.dense(3).unwrap());
            let close = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close(form.apply(&v), full.apply(&v)), "{form:?}");
            assert!(close(form.solve(&v).unwrap(), full.solve(&v).unwrap()), "{form:?}");
            assert!(close(form.solve(&form.apply(&v)).unwrap(), v.to_vec()), "{form:?}");
            assert!((form.log_det(3) - full.log_det(3)).abs() < 1e-12);
        }
    }

    /// By frequency: apply, solve and draws agree with the full matrix.
    #[test]
    fn frequencies_agree_with_the_full_matrix() {
        let shape = [3, 2, 3];
        let cosines = Arc::new(crate::Cosines::new(&shape).unwrap());
        let variances = (0..18).map(|i| 0.1 + 0.3 * f64::from(i % 5)).collect();
        let form = Covariance::Frequency(Frequency::new(cosines, variances).unwrap());
        let full = form.row(0).unwrap();
        let n = 40_000;
        let noise = Noise::chains(1, n);
        let at = Address::new(0, crate::Purpose::Reference, 0);
        let draws = form.sample(&noise, at, &shape, DType::F64).unwrap();
        let two = draws.narrow(0, 0, 2).unwrap();
        let close = |a: Tensor, b: Tensor| {
            let (a, b) = (to_f64(&a).unwrap(), to_f64(&b).unwrap());
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12));
        };
        let dense = Covariance::Dense(vec![full.clone(); 2]);
        close(form.apply(&two).unwrap(), dense.apply(&two).unwrap());
        close(form.solve(&two).unwrap(), dense.solve(&two).unwrap());
        check_draws(&to_f64(&draws).unwrap(), &full.matrix(18));
    }

    /// Second moments of draws against a matrix.
    fn check_draws(draws: &[f64], c: &Mat<f64>) {
        let d = c.nrows();
        let n = (draws.len() / d) as f64;
        for i in 0..d {
            for j in 0..d {
                let mean = draws.chunks(d).map(|x| x[i] * x[j]).sum::<f64>() / n;
                // Var of a product of two Gaussians: C_ii C_jj + C_ij².
                let se = ((c[(i, i)] * c[(j, j)] + c[(i, j)].powi(2)) / n).sqrt();
                assert!((mean - c[(i, j)]).abs() < 4.5 * se, "({i},{j}): {mean} vs {}", c[(i, j)]);
            }
        }
    }

    #[test]
    fn draws_have_the_covariance() {
        let form = RowCovariance::LowRank { diagonal: 0.3, factor: vec![1.0, 0.5, -0.2] };
        let exact = form.dense(3).unwrap();
        let n = 40_000;
        let noise = Noise::chains(1, n);
        let at = Address::new(0, crate::Purpose::Reference, 0);
        let draws: Vec<f64> = (0..n).flat_map(|i| form.sample(&mut noise.stream(i, at), 3)).collect();
        check_draws(&draws, exact.matrix());
    }
}
