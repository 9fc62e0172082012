//! The largest curvature of a likelihood around a point, by power iteration: what step sizes follow where no bound is tight.

use candle_core::Tensor;

use crate::tensors::{combine, dot_rows, pick};
use crate::{Address, Differentiable, Noise, Purpose, Result, Row};

/// Power iterations where a bound holds besides and where none does, the step of differences, and by how much the result exceeds
/// what was found.
const TURNS: usize = 5;
pub(crate) const TURNS_WITHOUT_BOUND: usize = 12;
pub(crate) const DIFFERENCE: f64 = 0.01;
const MARGIN: f64 = 1.2;

/// Multiplies a batch in measurement space by the curvature of the noise model there.
pub(crate) type Weigh<'a> = dyn Fn(&Tensor) -> Result<Tensor> + 'a;

/// About the norm of JᵀWJ at x for every row, J by differences, and not more than the bound; `seen` is A(x).
pub(crate) fn gauss_newton(
    map: &dyn Differentiable,
    x: &Tensor,
    seen: &Tensor,
    weigh: &Weigh,
    bound: Option<Vec<f64>>,
) -> Result<Vec<f64>> {
    let turns = if bound.is_some() { TURNS } else { TURNS_WITHOUT_BOUND };
    let bound = bound.unwrap_or_else(|| vec![f64::INFINITY]);
    let found = largest_eigenvalue(x, turns, |v| {
        let moved = map.apply(&combine(&[(&[1.0], x), (&[DIFFERENCE], v)])?)?;
        let change = combine(&[(&[1.0 / DIFFERENCE], &moved), (&[-1.0 / DIFFERENCE], seen)])?;
        map.vjp(x, &weigh(&change)?)
    })?;
    Ok(found.iter().enumerate().map(|(row, n)| n.min(pick(&bound, row))).collect())
}

/// About the largest eigenvalue in size of a symmetric map of batches like x, per row, somewhat above what `turns` power
/// iterations find.
pub(crate) fn largest_eigenvalue(
    x: &Tensor,
    turns: usize,
    map: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<f64>> {
    let (rows, shape) = (x.dims()[0], &x.dims()[1..]);
    let size = shape.iter().product::<usize>() as f64;
    // Each row starts alike, so that it is the same in any batch.
    let same = Noise::new(0, vec![Row { measurement: 0, chain: 0 }; rows]);
    let mut v = same.normal(Address::new(0, Purpose::Instance, 0), shape, x.dtype())?.sign()?;
    let mut norms = vec![0.0; rows];
    for _ in 0..turns {
        let mapped = map(&v)?;
        norms = dot_rows(&mapped, &mapped)?.iter().map(|s| (s / size).sqrt()).collect();
        let shrink: Vec<f64> = norms.iter().map(|n| 1.0 / n.max(f64::MIN_POSITIVE)).collect();
        v = combine(&[(&shrink, &mapped)])?;
    }
    Ok(norms.into_iter().map(|n| MARGIN * n).collect())
}
