//! r(σ) of any denoiser, measured on draws of its prior, as one number a level and by frequency.

use std::collections::BTreeSet;

use candle_core::{DType, Tensor};
use daps_core::tensors::{check_rows, combine, squared_distance, to_f64};
use daps_core::{Address, Bands, Cosines, Denoiser, Error, Noise, Purpose, Result, Sigma, SpreadTable};

/// Rows that go through the denoiser at once.
const CHUNK: usize = 64;

/// The least variance of a band, as a share of the level's. Grey pictures in three channels leave no error in the colour
/// planes, and a Gaussian needs a variance.
const LEAST_BAND: f64 = 1e-9;

/// The largest correlation of two channels.
const MOST_CORRELATED: f64 = 0.999;

/// An upper bound of r(σ) for any data of standard deviation `data_std`, for priors that nobody has measured: the error of
/// the best linear denoiser, which is that of independent Gaussian values.
pub fn spread_bound(data_std: f64) -> SpreadTable {
    let sigma: Vec<f64> = (-16..=16).map(|i| 10f64.powf(f64::from(i) / 8.0)).collect();
    let r = sigma.iter().map(|s| s * data_std / s.hypot(data_std)).collect();
    SpreadTable { sigma, r, data_std, bands: None }
}

/// Measures r(σ)² = E‖x0 - D(x0 + σn, σ)‖²/d at rising levels, from draws of the prior `[rows, shape…]` and one row of noise
/// for each; of images, by frequency too. The relative Monte-Carlo error of r is about 1/√(2 · rows · effective dimension).
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
    let mut meter = Cosines::new(model.shape()).ok().map(BandMeter::new);
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
            if let Some(meter) = &mut meter {
                meter.add(&combine(&[(&[1.0], &x0), (&[-1.0], &denoised)])?)?;
            }
        }
        let variance = total / draws.elem_count() as f64;
        r.push(variance.sqrt());
        if let Some(meter) = &mut meter {
            meter.end_level(rows, LEAST_BAND * variance);
        }
    }
    let bands = meter.map(|m| m.bands);
    let table = SpreadTable { sigma: sigmas.to_vec(), r, data_std: deviation(&draws)?, bands };
    table.check()?;
    Ok(table)
}

/// Squares of coefficients, gathered in bands.
struct BandMeter {
    cosines: Cosines,
    /// The band of every coefficient of a channel.
    band: Vec<usize>,
    /// Coefficients of each band.
    size: Vec<f64>,
    sums: Vec<f64>,
    /// Of products of two channels, pair by pair.
    products: Vec<f64>,
    bands: Bands,
}

impl BandMeter {
    fn new(cosines: Cosines) -> Self {
        let frequencies = cosines.frequencies();
        let side = cosines.shape()[1].max(cosines.shape()[2]) as f64;
        // About three bands an octave, finer where there are few coefficients; bands without any are left out.
        let key = |f: &f64| (3.0 * (1.0 + side * f).log2()).round() as usize;
        let keys: BTreeSet<usize> = frequencies.iter().map(key).collect();
        let band: Vec<usize> = frequencies.iter().map(|f| keys.range(..key(f)).count()).collect();
        let (mut size, mut frequency) = (vec![0.0; keys.len()], vec![0.0; keys.len()]);
        for (b, f) in band.iter().zip(&frequencies) {
            size[*b] += 1.0;
            frequency[*b] += f;
        }
        frequency.iter_mut().zip(&size).for_each(|(f, n)| *f /= n);
        let channels = cosines.shape()[0];
        let sums = vec![0.0; keys.len() * channels];
        let products = vec![0.0; keys.len() * channels * (channels - 1) / 2];
        let correlation = (channels > 1).then(Vec::new);
        Self {
            cosines,
            band,
            size,
            sums,
            products,
            bands: Bands { frequency, variance: vec![], correlation },
        }
    }

    fn add(&mut self, error: &Tensor) -> Result<()> {
        let coefficients = to_f64(&self.cosines.forward(error)?)?;
        let (channels, plane, bands) = (self.cosines.shape()[0], self.band.len(), self.size.len());
        for image in coefficients.chunks(channels * plane) {
            let mut pair = 0;
            for i in 0..channels {
                let own = &image[i * plane..(i + 1) * plane];
                let sums = &mut self.sums[i * bands..];
                own.iter().zip(&self.band).for_each(|(v, b)| sums[*b] += v * v);
                for j in 0..i {
                    let sums = &mut self.products[pair * bands..];
                    let other = own.iter().zip(&image[j * plane..]);
                    other.zip(&self.band).for_each(|((v, w), b)| sums[*b] += v * w);
                    pair += 1;
                }
            }
        }
        Ok(())
    }

    /// The level's variances, at least `least` each and to four digits: more are not measured.
    fn end_level(&mut self, rows: usize, least: f64) {
        let digits = |v: f64| {
            if !v.is_normal() {
                return v;
            }
            let unit = 10f64.powi(v.log10().floor() as i32 - 3);
            (v / unit).round() * unit
        };
        let mean = |(i, sum): (usize, &f64)| {
            digits((sum / (rows as f64 * self.size[i % self.size.len()])).max(least))
        };
        self.bands.variance.push(self.sums.iter().enumerate().map(mean).collect());
        if let Some(rows) = &mut self.bands.correlation {
            let (bands, channels) = (self.size.len(), self.cosines.shape()[0]);
            let pairs = (0..channels).flat_map(|i| (0..i).map(move |j| (i, j)));
            let correlation = |(pair, (i, j)): (usize, (usize, usize)), b: usize| {
                let square = self.sums[i * bands + b] * self.sums[j * bands + b];
                let r = self.products[pair * bands + b] / square.sqrt();
                // Channels that are one and the same leave a Gaussian no variance; nor is there a correlation of nothing.
                if square > 0.0 {
                    (r.clamp(-MOST_CORRELATED, MOST_CORRELATED) * 1e4).round() / 1e4
                } else {
                    0.0
                }
            };
            let all = pairs.enumerate().flat_map(|pair| (0..bands).map(move |b| (pair, b)));
            rows.push(all.map(|(pair, b)| correlation(pair, b)).collect());
        }
        self.sums.fill(0.0);
        self.products.fill(0.0);
    }
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
