//! Exact draw through a singular value decomposition: Matheron's rule mode by mode.
//!
//! x' = mean + r z is a draw of p(x0 | x_t). In every mode, x' moves by r²s/(r²s² + β²) (uᵀy - β e - s vᵀx'), which makes
//! it a draw of the conditional; directions outside the modes keep x'. One Vᵀ, one Uᵀ, one V.

use daps_core::candle::Tensor;
use daps_core::tensors::{Real, combine, pick, with_slice};
use daps_core::{Address, ChainInfo, Noise, Purpose, Result, Spectral, Step, with_real};
use rayon::prelude::*;

pub(super) fn draw(
    mean: &Tensor,
    variance: &[f64],
    beta: &[f64],
    y: &Tensor,
    operator: &dyn Spectral,
    noise: &Noise,
    step: &Step,
) -> Result<(Tensor, ChainInfo)> {
    let z = noise.normal(Address::new(step.index, Purpose::Kernel, 0), &mean.dims()[1..], mean.dtype())?;
    let spread: Vec<f64> = variance.iter().map(|v| v.sqrt()).collect();
    let prior = combine(&[(&[1.0], mean), (&spread, &z)])?;
    let c = operator.v_t(&prior)?;
    let y = operator.u_t(&y.to_dtype(mean.dtype())?)?;
    let e = noise.normal(Address::new(step.index, Purpose::Perturbation, 0), &c.dims()[1..], mean.dtype())?;
    let change = with_real!(mean.dtype(), T => shift::<T>(operator.singular(), variance, beta, &c, &y, &e))?;
    let x = combine(&[(&[1.0], &prior), (&[1.0], &operator.v(&change)?)])?;
    Ok((x, super::info(mean.dims()[0], 3)))
}

fn shift<T: Real>(
    singular: &[Vec<f64>],
    variance: &[f64],
    beta: &[f64],
    c: &Tensor,
    y: &Tensor,
    e: &Tensor,
) -> Result<Tensor> {
    let modes = c.elem_count() / c.dims()[0].max(1);
    let mut out = vec![T::default(); c.elem_count()];
    with_slice(c, |c: &[T]| {
        with_slice(y, |y: &[T]| {
            with_slice(e, |e: &[T]| {
                out.par_chunks_mut(modes.max(1)).enumerate().for_each(|(row, out)| {
                    let s = if singular.len() == 1 { &singular[0] } else { &singular[row] };
                    let (v, b) = (pick(variance, row), pick(beta, row));
                    for (k, (out, &s)) in out.iter_mut().zip(s).enumerate() {
                        let at = row * modes + k;
                        if s != 0.0 {
                            let gain = v * s / (v * s * s + b * b);
                            *out = T::of(gain * (y[at].wide() - b * e[at].wide() - s * c[at].wide()));
                        }
                    }
                });
            })
        })
    })???;
    Ok(Tensor::from_vec(out, c.dims(), c.device())?)
}
