//! What a prior knows of its own error: r(σ) of the Tweedie mean, as one number a level and by frequency.

use serde::{Deserialize, Serialize};

use crate::{Cosines, Error, Result};

/// RMS error of the Tweedie mean at given levels: E‖x0 - D(x0 + σn, σ)‖²/d = r².
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpreadTable {
    /// Levels, rising.
    pub sigma: Vec<f64>,
    /// r at each level.
    pub r: Vec<f64>,
    /// Standard deviation of the data: r above the measured range.
    pub data_std: f64,
    /// The same by frequency, of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bands: Option<Bands>,
}

/// The variance of a coefficient of x0 - D in the basis of [`Cosines`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bands {
    /// The frequency of each band, rising; between them ln(variance) is linear.
    pub frequency: Vec<f64>,
    /// `[level][channel · bands + band]`.
    pub variance: Vec<Vec<f64>>,
    /// The correlations of two channels, `[level][pair · bands + band]` with the pairs (1, 0), (2, 0), (2, 1), (3, 0), …; between
    /// bands and levels they are linear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<Vec<Vec<f64>>>,
}

/// Where a level stands among the measured ones.
enum Place {
    Below,
    At(usize),
    /// After level i, at the fraction t of the way to the next in ln σ.
    After(usize, f64),
    Above,
}

impl SpreadTable {
    /// Checks that levels rise and all numbers are positive.
    pub fn check(&self) -> Result<()> {
        let positive = |v: &[f64]| v.iter().all(|v| v.is_finite() && *v > 0.0);
        let rises = |v: &[f64]| v.windows(2).all(|w| w[0] < w[1]);
        if self.sigma.is_empty() || self.sigma.len() != self.r.len() {
            let got = format!("{} levels and {} values", self.sigma.len(), self.r.len());
            return Err(Error::invalid("spread table", "as many values as levels, at least one", got));
        }
        if !positive(&self.sigma) || !positive(&self.r) || !positive(&[self.data_std]) {
            return Err(Error::invalid("spread table", "positive finite numbers", "others"));
        }
        if !rises(&self.sigma) {
            return Err(Error::invalid("spread table", "rising levels", "levels that do not rise"));
        }
        let Some(Bands { frequency, variance, correlation }) = &self.bands else { return Ok(()) };
        let whole = |row: &Vec<f64>| {
            row.len() == variance[0].len() && !row.is_empty() && row.len().is_multiple_of(frequency.len())
        };
        if frequency.is_empty() || variance.len() != self.sigma.len() || !variance.iter().all(whole) {
            return Err(Error::invalid("bands of a spread table", "as many variances as bands", "others"));
        }
        if !rises(frequency) || frequency[0] < 0.0 || !variance.iter().all(|row| positive(row)) {
            let expected = "rising frequencies and positive variances";
            return Err(Error::invalid("bands of a spread table", expected, "others"));
        }
        let channels = variance[0].len() / frequency.len();
        let pairs = frequency.len() * channels * (channels - 1) / 2;
        let fits = |row: &Vec<f64>| row.len() == pairs && row.iter().all(|r| r.abs() < 1.0);
        match correlation {
            Some(rows) if rows.len() != self.sigma.len() || !rows.iter().all(fits) => {
                let expected = "a correlation between -1 and 1 for every pair of channels";
                Err(Error::invalid("bands of a spread table", expected, "others"))
            }
            _ => Ok(()),
        }
    }

    /// r(σ): σ below the measured range, the data's deviation above it, log-log linear within.
    #[must_use]
    pub fn at(&self, sigma: f64) -> f64 {
        match self.place(sigma) {
            Place::Below => sigma,
            Place::At(i) => self.r[i],
            Place::After(i, t) => between(self.r[i], self.r[i + 1], t),
            Place::Above => self.data_std,
        }
    }

    /// What it says of every frequency at σ: variances σ² and no correlations below the measured range, those of the last level above it.
    pub fn spectrum_at(&self, sigma: f64, channels: usize) -> Result<Spectrum> {
        let Some(Bands { frequency, variance: rows, correlation }) = &self.bands else {
            return Err(Error::missing("the estimate", "variances by frequency", "this prior"));
        };
        let count = frequency.len();
        if rows[0].len() != count * channels {
            let got = format!("{} variances of {count} bands", rows[0].len());
            return Err(Error::invalid("bands of a spread table", format!("{channels} channels"), got));
        }
        let blend = |rows: &[Vec<f64>], i: usize, t: f64| -> Vec<f64> {
            rows[i].iter().zip(&rows[i + 1]).map(|(a, b)| (1.0 - t) * a + t * b).collect()
        };
        let logs = |row: &Vec<f64>| row.iter().map(|v| v.ln()).collect::<Vec<f64>>();
        let place = self.place(sigma);
        let log_variance = match place {
            Place::Below => vec![2.0 * sigma.ln(); rows[0].len()],
            Place::At(i) => logs(&rows[i]),
            Place::After(i, t) => blend(&[logs(&rows[i]), logs(&rows[i + 1])], 0, t),
            Place::Above => logs(&rows[rows.len() - 1]),
        };
        let correlation = correlation.as_ref().and_then(|rows| match place {
            Place::Below => None,
            Place::At(i) => Some(rows[i].clone()),
            Place::After(i, t) => Some(blend(rows, i, t)),
            Place::Above => rows.last().cloned(),
        });
        Ok(Spectrum { frequency: frequency.clone(), log_variance, correlation })
    }

    /// The variance of every coefficient at σ, as [`Self::spectrum_at`] has it.
    pub fn variances_at(&self, sigma: f64, cosines: &Cosines) -> Result<Vec<f64>> {
        let channels = cosines.shape()[0];
        let spectrum = self.spectrum_at(sigma, channels)?;
        Ok(cosines.at_frequencies(channels, |f, out| spectrum.variances(f, out)))
    }

    /// Appends the levels of a table of the same prior, measured above these.
    pub fn append(&mut self, above: Self) {
        self.sigma.extend(above.sigma);
        self.r.extend(above.r);
        self.data_std = above.data_std;
        match (&mut self.bands, above.bands) {
            (Some(bands), Some(above)) => {
                bands.variance.extend(above.variance);
                match (&mut bands.correlation, above.correlation) {
                    (Some(rows), Some(above)) => rows.extend(above),
                    (rows, _) => *rows = None,
                }
            }
            (bands, _) => *bands = None,
        }
    }

    fn place(&self, sigma: f64) -> Place {
        let upper = self.sigma.partition_point(|s| *s < sigma);
        match self.sigma.get(upper) {
            None => Place::Above,
            Some(s) if *s == sigma => Place::At(upper),
            _ if upper == 0 => Place::Below,
            Some(s) => {
                let low = self.sigma[upper - 1];
                Place::After(upper - 1, (sigma / low).ln() / (s / low).ln())
            }
        }
    }
}

/// Covariances of the channels at one level, as functions of frequency.
#[derive(Clone, Debug)]
pub struct Spectrum {
    /// Bands, rising.
    frequency: Vec<f64>,
    /// `[channel · bands + band]`.
    log_variance: Vec<f64>,
    /// `[pair · bands + band]`.
    correlation: Option<Vec<f64>>,
}

impl Spectrum {
    /// The variance of every channel.
    pub fn variances(&self, frequency: f64, out: &mut [f64]) {
        let place = self.place(frequency);
        let of_channel = |knots: &[f64]| at(knots, place).exp();
        out.iter_mut()
            .zip(self.log_variance.chunks(self.frequency.len()))
            .for_each(|(v, k)| *v = of_channel(k));
    }

    /// The covariance of the channels, `[channel][channel]`.
    pub fn covariance(&self, frequency: f64, out: &mut [f64]) {
        let (place, bands) = (self.place(frequency), self.frequency.len());
        let n = self.log_variance.len() / bands;
        let log_variance = |i: usize| at(&self.log_variance[i * bands..], place);
        (0..n).for_each(|i| out[i * (n + 1)] = log_variance(i).exp());
        for (pair, (i, j)) in (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).enumerate() {
            let covariance = self.correlation.as_ref().map_or(0.0, |knots| {
                at(&knots[pair * bands..], place) * (0.5 * (log_variance(i) + log_variance(j))).exp()
            });
            (out[i * n + j], out[j * n + i]) = (covariance, covariance);
        }
    }

    /// The band at or below a frequency, the next, and the fraction of the way to it.
    fn place(&self, frequency: f64) -> (usize, usize, f64) {
        let upper = self.frequency.partition_point(|f| *f <= frequency);
        match (upper.checked_sub(1), self.frequency.get(upper)) {
            (Some(band), Some(high)) => {
                let low = self.frequency[band];
                (band, upper, (frequency - low) / (high - low))
            }
            (band, _) => (band.unwrap_or(0), band.unwrap_or(0), 0.0),
        }
    }
}

/// Between two knots.
fn at(knots: &[f64], (band, next, t): (usize, usize, f64)) -> f64 {
    (1.0 - t) * knots[band] + t * knots[next]
}

/// Between a and b in the logarithm.
fn between(a: f64, b: f64, t: f64) -> f64 {
    if t == 0.0 { a } else { (a.ln() * (1.0 - t) + b.ln() * t).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(bands: Option<Bands>) -> SpreadTable {
        SpreadTable { sigma: vec![0.1, 1.0], r: vec![0.05, 0.4], data_std: 0.5, bands }
    }

    #[test]
    fn the_table_is_sigma_below_the_data_above_and_log_linear_between() {
        let table = table(None);
        assert_eq!(table.at(0.01), 0.01);
        assert_eq!(table.at(0.1), 0.05);
        assert_eq!(table.at(1.0), 0.4);
        assert_eq!(table.at(50.0), 0.5);
        assert!((table.at(0.1f64.sqrt()) - (0.05f64 * 0.4).sqrt()).abs() < 1e-12);
        assert!(SpreadTable { sigma: vec![1.0, 1.0], ..table }.check().is_err());
    }

    #[test]
    fn variances_by_frequency_follow_the_level_and_the_band() {
        let bands = Bands {
            frequency: vec![0.0, 0.5],
            variance: vec![vec![4.0, 1.0, 0.4, 0.1], vec![9.0, 4.0, 0.9, 0.4]],
            correlation: Some(vec![vec![0.5, 0.1], vec![0.7, 0.3]]),
        };
        let table = table(Some(bands.clone()));
        table.check().unwrap();
        let cosines = Cosines::new(&[2, 1, 4]).unwrap();
        // Frequencies 0, 1/4, 1/2, 3/4 of two channels.
        let close = |sigma: f64, expected: [f64; 8]| {
            let got = table.variances_at(sigma, &cosines).unwrap();
            assert!(got.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-12), "{got:?}");
        };
        close(0.1, [4.0, 2.0, 1.0, 1.0, 0.4, 0.2, 0.1, 0.1]);
        close(0.1f64.sqrt(), [6.0, 12f64.sqrt(), 2.0, 2.0, 0.6, 0.12f64.sqrt(), 0.2, 0.2]);
        close(0.05, [0.0025; 8]);
        close(7.0, [9.0, 6.0, 4.0, 4.0, 0.9, 0.6, 0.4, 0.4]);
        // Between levels and bands correlations are linear: .6 and .2 at the geometric mean, .4 at a quarter.
        let blocks_at = |sigma: f64| {
            let (spectrum, mut blocks) = (table.spectrum_at(sigma, 2).unwrap(), vec![0.0; 16]);
            let frequencies = cosines.frequencies();
            blocks.chunks_mut(4).zip(frequencies).for_each(|(block, f)| spectrum.covariance(f, block));
            blocks
        };
        let blocks = blocks_at(0.1f64.sqrt());
        let quarter = 0.4 * (12f64.sqrt() * 0.12f64.sqrt()).sqrt();
        for (got, expected) in blocks[4..8].iter().zip([12f64.sqrt(), quarter, quarter, 0.12f64.sqrt()]) {
            assert!((got / expected - 1.0).abs() < 1e-12, "{blocks:?}");
        }
        let below = blocks_at(0.05);
        assert!(
            (below[0] - 0.0025).abs() < 1e-15 && (below[3] / below[0], below[1], below[2]) == (1.0, 0.0, 0.0)
        );
        assert!(table.variances_at(0.1, &Cosines::new(&[1, 1, 4]).unwrap()).is_err());
        let bad =
            |bands: Bands| assert!(SpreadTable { bands: Some(bands), ..self::table(None) }.check().is_err());
        bad(Bands { frequency: vec![0.5, 0.0], ..bands.clone() });
        bad(Bands { variance: vec![vec![1.0; 4]], ..bands.clone() });
        bad(Bands { variance: vec![vec![1.0; 4], vec![0.0; 4]], ..bands.clone() });
        bad(Bands { variance: vec![vec![1.0; 3], vec![1.0; 3]], ..bands.clone() });
        bad(Bands { correlation: Some(vec![vec![0.5, 0.1]]), ..bands.clone() });
        bad(Bands { correlation: Some(vec![vec![0.5, 1.0]; 2]), ..bands });
    }
}
