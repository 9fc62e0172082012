//! Arithmetic on the modes of a singular value decomposition: a formula per row and singular value, in f64.

use daps_core::candle::Tensor;
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{Error, Gaussian, Result, Spectral};
use rayon::prelude::*;

/// The decomposition of a measurement's operator.
pub(crate) fn spectral<'a>(who: &'static str, gaussian: &'a Gaussian) -> Result<&'a dyn Spectral> {
    let operator = gaussian.operator();
    operator
        .as_spectral()
        .ok_or_else(|| Error::missing(who, "a singular value decomposition", operator.name()))
}

/// `f(row, singular value, values of the inputs there)` at every mode of every row; inputs are `[rows, modes]`.
pub(crate) fn map<const K: usize>(
    operator: &dyn Spectral,
    inputs: [&Tensor; K],
    f: impl Fn(usize, f64, [f64; K]) -> f64 + Send + Sync,
) -> Result<Tensor> {
    let mut values = Vec::with_capacity(K);
    for input in inputs {
        values.push(to_f64(input)?);
    }
    let (dims, dtype) = (inputs[0].dims().to_vec(), inputs[0].dtype());
    let modes = dims[1].max(1);
    let singular = operator.singular();
    let mut out = vec![0.0; dims[0] * dims[1]];
    out.par_chunks_mut(modes).enumerate().for_each(|(row, out)| {
        let s = if singular.len() == 1 { &singular[0] } else { &singular[row] };
        for (k, (out, &s)) in out.iter_mut().zip(s).enumerate() {
            *out = f(row, s, std::array::from_fn(|i| values[i][row * modes + k]));
        }
    });
    from_f64(out, &dims, dtype)
}
