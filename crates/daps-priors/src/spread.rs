//! r(σ) of any denoiser, measured on draws of its prior.

use candle_core::{DType, Tensor};
use daps_core::real::{check_rows, combine, squared_distance, to_f64};
use daps_core::{Address, Denoiser, Error, Noise, Purpose, Result, Sigma, SpreadTable};

/// Rows that go through the denoiser at once.
const CHUNK: usize = 64;

/// An upper bound of r(σ) for any data of standard deviation `data_std`, for priors that nobody has measured: the error of
/// the best linear denoiser, which is that of independent Gaussian values.
pub fn spread_bound(data_std: f64) -> SpreadTable {
    let sigma: Vec<f64> = (-16..=16).map(|i| 10f64.powf(f64::from(i) / 8.0)).collect();
    let r = sigma.iter().map(|s| s * data_std / s.hypot(data_std)).collect();
    SpreadTable { sigma, r, data_std }
}

/// Measures r(σ)² = E‖x0 - D(x0 + σn, σ)‖²/d at rising levels, from draws of the prior `[rows, shape…]` and one row of noise
/// for each. The relative Monte-Carlo error of r is about 1/√(2 · rows · effective dimension).
pub fn spread_table(
    model: &dyn Denoiser,
    draws: &Tensor,
    sigmas: &[f64],
    noise: &Noise,
) -> Result<SpreadTable> {
    let rows = check_rows("draws of the prior", draws, model.shape())?;
    if rows < 2 || rows != noise.len() {
        let got = format!("{rows} draws and {} rows of noise", noise.len());
        return Err(Error::invalid("spread table", "at least two draws, with noise for each", got));
    }
    let draws = draws.to_dtype(model.dtype())?;
    let mut r = Vec::with_capacity(sigmas.len());
    for (index, &sigma) in sigmas.iter().enumerate() {
        let at = Address::new(index, Purpose::Reference, 0);
        let mut total = 0.0;
        for first in (0..rows).step_by(CHUNK) {
            let n = CHUNK.min(rows - first);
            let x0 = draws.narrow(0, first, n)?;
            let z = noise.select(&(first..first + n).collect::<Vec<_>>()).normal(
                at,
                model.shape(),
                model.dtype(),
            )?;
            let denoised = model.denoise(&combine(&[(&[1.0], &x0), (&[sigma], &z)])?, &Sigma::Same(sigma))?;
            total += squared_distance(&x0, &denoised)?.iter().sum::<f64>();
        }
        r.push((total / draws.elem_count() as f64).sqrt());
    }
    let table = SpreadTable { sigma: sigmas.to_vec(), r, data_std: deviation(&draws)? };
    table.check()?;
    Ok(table)
}

/// √(tr Cov[x0] / d), unbiased in the variance.
fn deviation(draws: &Tensor) -> Result<f64> {
    let rows = draws.dims()[0];
    let wide = draws.to_dtype(DType::F64)?;
    let mean = wide.mean_keepdim(0)?;
    let squares: f64 = to_f64(&wide.broadcast_sub(&mean)?.sqr()?)?.iter().sum();
    let values = (draws.elem_count() / rows * (rows - 1)) as f64;
    Ok((squares / values).sqrt())
}
