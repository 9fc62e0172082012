//! The largest curvature of a likelihood around a point, by power iteration: what step sizes follow where no bound is known.

use candle_core::Tensor;

use crate::real::{combine, dot_rows};
use crate::{Address, Differentiable, Noise, Purpose, Result, Row};

/// Power iterations, the step of their differences, and by how much the result exceeds what they found.
const TURNS: usize = 5;
const DIFFERENCE: f64 = 0.01;
const MARGIN: f64 = 1.2;

/// Multiplies a batch in measurement space by the curvature of the noise model there.
pub(crate) type Weigh<'a> = dyn Fn(&Tensor) -> Result<Tensor> + 'a;

/// About the norm of JᵀWJ at x for every row, J by differences; `seen` is A(x).
pub(crate) fn at(map: &dyn Differentiable, x: &Tensor, seen: &Tensor, weigh: &Weigh) -> Result<Vec<f64>> {
    let (rows, shape) = (x.dims()[0], &x.dims()[1..]);
    let size = shape.iter().product::<usize>() as f64;
    let same = Noise::new(0, vec![Row { measurement: 0, chain: 0 }; rows]);
    let mut v = same.normal(Address::new(0, Purpose::Instance, 0), shape, x.dtype())?.sign()?;
    let mut norms = vec![0.0; rows];
    for _ in 0..TURNS {
        let moved = map.apply(&combine(&[(&[1.0], x), (&[DIFFERENCE], &v)])?)?;
        let change = combine(&[(&[1.0 / DIFFERENCE], &moved), (&[-1.0 / DIFFERENCE], seen)])?;
        let pulled = map.vjp(x, &weigh(&change)?)?;
        norms = dot_rows(&pulled, &pulled)?.iter().map(|s| (s / size).sqrt()).collect();
        let shrink: Vec<f64> = norms.iter().map(|n| 1.0 / n.max(f64::MIN_POSITIVE)).collect();
        v = combine(&[(&shrink, &pulled)])?;
    }
    Ok(norms.iter().map(|n| MARGIN * n).collect())
}
