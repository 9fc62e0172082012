//! A prior over tokens in closed form: a list of samples with their weights, all of a small space or those of a data set.

use candle_core::{Device, Tensor};
use daps_core::mixture::{choose, log_sum_exp};
use daps_core::tensors::{batched, with_slice};
use daps_core::{
    Address, Approx, Categorical, Corruption, Enumerable, Error, Likelihood, Noise, Result, open01,
};
use rayon::prelude::*;

/// Samples that are worth listing.
const MOST: usize = 1 << 16;

/// Weighted samples.
#[derive(Clone, Debug)]
pub struct Listed {
    corruption: Corruption,
    shape: Vec<usize>,
    tensor: Tensor,
    points: Vec<u8>,
    log_weights: Vec<f64>,
}

impl Listed {
    /// From samples `[count, shape…]` and their weights, which need not sum to one.
    pub fn new(corruption: Corruption, points: &Tensor, weights: &[f64]) -> Result<Self> {
        corruption.check("listed samples", points, false)?;
        let (count, shape) = points.dims().split_first().map_or((0, vec![]), |(n, s)| (*n, s.to_vec()));
        if count == 0 || points.elem_count() == 0 {
            return Err(Error::invalid("listed samples", "at least one", "none"));
        }
        if weights.len() != count {
            return Err(Error::invalid("weights", format!("one for each of {count} samples"), weights.len()));
        }
        if let Some(bad) = weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
            return Err(Error::invalid("weights", "finite numbers from 0", bad));
        }
        let log: Vec<f64> = weights.iter().map(|w| w.ln()).collect();
        let norm = log_sum_exp(&log);
        if !norm.is_finite() {
            return Err(Error::invalid("weights", "at least one above 0", "none"));
        }
        Ok(Self {
            corruption,
            shape,
            tensor: points.clone(),
            points: points.flatten_all()?.to_vec1()?,
            log_weights: log.iter().map(|w| w - norm).collect(),
        })
    }

    /// All samples of a shape, weighted by a function; sample k has the digits of k to base S, the first token lowest.
    pub fn all(corruption: Corruption, shape: &[usize], weight: impl Fn(&[u8]) -> f64) -> Result<Self> {
        let (sites, symbols) = (shape.iter().product::<usize>(), corruption.symbols());
        let Some(count) = symbols.checked_pow(sites as u32).filter(|count| *count <= MOST) else {
            let got = format!("{symbols}^{sites}");
            return Err(Error::invalid("listed samples", format!("at most {MOST}"), got));
        };
        let digit = |k: usize, i: usize| (k / symbols.pow(i as u32) % symbols) as u8;
        let points: Vec<u8> = (0..count).flat_map(|k| (0..sites).map(move |i| digit(k, i))).collect();
        let weights: Vec<f64> = points.chunks(sites).map(weight).collect();
        Self::new(corruption, &Tensor::from_vec(points, batched(count, shape), &Device::Cpu)?, &weights)
    }

    /// How many samples there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.log_weights.len()
    }

    /// A list is never empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.log_weights.is_empty()
    }

    /// The samples, `[count, shape…]`.
    #[must_use]
    pub fn points(&self) -> &Tensor {
        &self.tensor
    }

    /// The probability of each sample.
    #[must_use]
    pub fn probabilities(&self) -> Vec<f64> {
        self.log_weights.iter().map(|w| w.exp()).collect()
    }

    /// Draws of the prior, one per row.
    pub fn draw(&self, noise: &Noise, at: Address) -> Result<Tensor> {
        let pick = |row| choose(&self.log_weights, open01(&mut noise.stream(row, at))) as u32;
        let index: Vec<u32> = (0..noise.len()).map(pick).collect();
        Ok(self.tensor.index_select(&Tensor::new(index, &Device::Cpu)?, 0)?)
    }

    /// p(x0 | y) of each sample for one row of a likelihood, by Bayes' rule.
    pub fn posterior(&self, likelihood: &dyn Likelihood, row: usize) -> Result<Vec<f64>> {
        let fits = likelihood.select(&vec![row; self.len()])?.log_prob(&self.tensor)?;
        let log: Vec<f64> = self.log_weights.iter().zip(fits).map(|(w, fit)| w + fit).collect();
        let norm = log_sum_exp(&log);
        Ok(log.iter().map(|l| (l - norm).exp()).collect())
    }

    /// ln p(x0 = sample | x_t) of each row, normalised.
    fn responsibilities(&self, x_t: &Tensor, sigma: f64) -> Result<Vec<Vec<f64>>> {
        if x_t.dims()[1..] != self.shape {
            return Err(Error::shape("x_t", &batched(x_t.dims()[0], &self.shape), x_t.dims()));
        }
        self.corruption.check("x_t", x_t, true)?;
        let (sites, states) = (self.shape.iter().product::<usize>(), self.corruption.states());
        let log: Vec<f64> = (0..self.corruption.symbols() * states)
            .map(|k| self.corruption.transition(k / states, k % states, sigma).ln())
            .collect();
        let row = |x: &[u8]| {
            let of = |(k, w): (usize, &f64)| {
                let tokens = self.points[k * sites..(k + 1) * sites].iter().zip(x);
                w + tokens.map(|(a, b)| log[usize::from(*a) * states + usize::from(*b)]).sum::<f64>()
            };
            let all: Vec<f64> = self.log_weights.iter().enumerate().map(of).collect();
            let norm = log_sum_exp(&all);
            // No sample of the list can have become x_t (masks never lie): the prior is all that is left.
            if norm.is_finite() { all.iter().map(|l| l - norm).collect() } else { self.log_weights.clone() }
        };
        with_slice(x_t, |x: &[u8]| x.par_chunks(sites).map(row).collect())
    }
}

impl Categorical for Listed {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn corruption(&self) -> &Corruption {
        &self.corruption
    }

    fn marginals(&self, x_t: &Tensor, sigma: f64) -> Result<Vec<f64>> {
        let (sites, symbols) = (self.shape.iter().product::<usize>(), self.corruption.symbols());
        let row = |weights: Vec<f64>| {
            let mut sums = vec![0.0; sites * symbols];
            for (weight, point) in weights.iter().map(|w| w.exp()).zip(self.points.chunks(sites)) {
                for (site, token) in point.iter().enumerate() {
                    sums[site * symbols + usize::from(*token)] += weight;
                }
            }
            sums
        };
        let rows: Vec<Vec<f64>> = self.responsibilities(x_t, sigma)?.into_par_iter().map(row).collect();
        Ok(rows.concat())
    }

    fn as_enumerable(&self) -> Option<&dyn Enumerable> {
        Some(self)
    }
}

impl Enumerable for Listed {
    fn conditional(&self, x_t: &Tensor, sigma: f64) -> Result<Approx<'_>> {
        let log_weights = self.responsibilities(x_t, sigma)?;
        Ok(Approx::Draws { points: self.tensor.unsqueeze(0)?, log_weights })
    }
}
