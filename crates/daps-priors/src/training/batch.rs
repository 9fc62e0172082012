//! What a step sees: images, mirrors, noise levels and noise, each a function of (seed, step, place in the batch).

use candle_core::{DType, Tensor};
use daps_core::{Address, Corruption, Noise, Purpose, Row, open01};
use rand_chacha::rand_core::Rng;

use super::data::Images;
use crate::Result;
use crate::network::quantise;

/// Running numbers of the choices that a step or an epoch makes.
const ORDER: usize = 0;
const MIRROR: usize = 1;
const LEVEL: usize = 2;

/// One step's input.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Images.
    pub x0: Tensor,
    /// Standard normal noise.
    pub noise: Tensor,
    /// A noise level for each image.
    pub sigma: Vec<f64>,
}

/// One step's input for a prior over tokens.
#[derive(Clone, Debug)]
pub struct TokenBatch {
    /// Clean tokens.
    pub x0: Tensor,
    /// The same, corrupted.
    pub x_t: Tensor,
    /// A noise level for each image.
    pub sigma: Vec<f64>,
}

/// All batches of a training run. Every image comes once in an epoch, in a new order each time.
#[derive(Clone, Debug)]
pub struct Batches {
    /// Seed of all choices.
    pub seed: u64,
    /// Images of a batch.
    pub size: usize,
    /// Whether images are mirrored half of the time.
    pub flip: bool,
    /// Mean and deviation of ln σ.
    pub log_sigma: (f64, f64),
    /// The order of the epoch that was asked for last.
    order: Option<(u64, Vec<usize>)>,
}

impl Batches {
    /// Batches with these settings.
    #[must_use]
    pub fn new(seed: u64, size: usize, flip: bool, log_sigma: (f64, f64)) -> Self {
        Self { seed, size, flip, log_sigma, order: None }
    }

    /// The batch of a step.
    pub fn at(&mut self, step: u64, images: &Images) -> Result<Batch> {
        let (x0, sigma, noise) = self.choose(step, images)?;
        let at = Address::new(step as usize, Purpose::Renoise, 0);
        Ok(Batch { x0, noise: noise.normal(at, &images.shape(), DType::F32)?, sigma })
    }

    /// The batch of a step as tokens, clean and corrupted.
    pub fn tokens(&mut self, step: u64, images: &Images, chain: &Corruption) -> Result<TokenBatch> {
        let (x0, sigma, noise) = self.choose(step, images)?;
        let x0 = quantise(&x0, chain.symbols())?;
        let x_t = chain.corrupt(&x0, &sigma, &noise, Address::new(step as usize, Purpose::Renoise, 0))?;
        Ok(TokenBatch { x0, x_t, sigma })
    }

    /// Images, levels and the noise of a step.
    fn choose(&mut self, step: u64, images: &Images) -> Result<(Tensor, Vec<f64>, Noise)> {
        let rows = (0..self.size as u64).map(|place| Row { measurement: place, chain: 0 }).collect();
        let noise = Noise::new(self.seed, rows);
        let at = |purpose, index| Address::new(step as usize, purpose, index);
        let mirrors = noise.uniform(at(Purpose::Choice, MIRROR));
        let chosen: Vec<(usize, bool)> = (0..self.size)
            .map(|place| {
                let index = self.image(step * self.size as u64 + place as u64, images.len());
                (index, self.flip && mirrors[place] < 0.5)
            })
            .collect();
        // One level in each of `size` equally likely intervals: every level is as likely as without that, and the loss
        // of a batch varies less.
        let offset = open01(&mut noise.stream(0, at(Purpose::Choice, LEVEL)));
        let sigma = (0..self.size).map(|place| {
            let (mean, deviation) = self.log_sigma;
            (mean + deviation * normal_quantile((place as f64 + offset) / self.size as f64)).exp()
        });
        let sigma = sigma.collect();
        Ok((images.select(&chosen)?, sigma, noise))
    }

    /// The `number`-th image that training sees.
    fn image(&mut self, number: u64, of: usize) -> usize {
        let (epoch, place) = (number / of as u64, (number % of as u64) as usize);
        if self.order.as_ref().is_none_or(|(known, order)| *known != epoch || order.len() != of) {
            let mut rng =
                Noise::chains(self.seed, 1).stream(0, Address::new(epoch as usize, Purpose::Choice, ORDER));
            let mut order: Vec<usize> = (0..of).collect();
            for i in (1..of).rev() {
                order.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
            }
            self.order = Some((epoch, order));
        }
        self.order.as_ref().map_or(0, |(_, order)| order[place])
    }
}

/// The number below which a standard normal one falls with probability `p`, by bisection.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        let below = 0.5 * libm::erfc(-middle * std::f64::consts::FRAC_1_SQRT_2);
        if below < p { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(count: usize) -> Images {
        Images::floats([1, 1, 2], (0..2 * count).map(|v| v as f32).collect())
    }

    #[test]
    fn an_epoch_shows_every_image_once_and_a_batch_depends_on_its_step_alone() {
        let (images, mut batches) = (images(10), Batches::new(3, 4, false, (0.0, 1.0)));
        let first = |b: &Batch| -> Vec<f32> {
            b.x0.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().step_by(2).collect()
        };
        let all: Vec<Batch> = (0..10).map(|step| batches.at(step, &images).unwrap()).collect();
        let seen: Vec<f32> = all.iter().flat_map(first).collect();
        for epoch in seen.chunks(10) {
            let mut epoch = epoch.to_vec();
            epoch.sort_by(f32::total_cmp);
            assert_eq!(epoch, (0..10).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
        }
        assert_ne!(seen[..10], seen[10..20]);
        let again = Batches::new(3, 4, false, (0.0, 1.0)).at(7, &images).unwrap();
        assert_eq!(first(&again), first(&all[7]));
        assert_eq!(again.sigma, all[7].sigma);
        let noise = |b: &Batch| b.noise.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(noise(&again), noise(&all[7]));
        assert_ne!(noise(&all[6]), noise(&all[7]));
    }

    #[test]
    fn levels_are_lognormal_and_mirrors_fair() {
        let (images, mut batches) = (images(1), Batches::new(0, 8, true, (-0.5, 1.5)));
        let steps = 2000;
        let (mut logs, mut mirrored) = (Vec::new(), 0);
        for step in 0..steps {
            let batch = batches.at(step, &images).unwrap();
            logs.extend(batch.sigma.iter().map(|s| (s.ln() + 0.5) / 1.5));
            let values = batch.x0.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            mirrored += values.chunks(2).filter(|v| v[0] > v[1]).count();
        }
        let n = logs.len() as f64;
        let moment = |k: i32| logs.iter().map(|z| z.powi(k)).sum::<f64>() / n;
        // Independent draws would have standard errors of 1/√n and √(2/n); strata have less.
        assert!(moment(1).abs() < 3.0 / n.sqrt(), "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 3.0 * (2.0 / n).sqrt(), "{}", moment(2));
        assert!((mirrored as f64 - n / 2.0).abs() < 4.0 * (n / 4.0).sqrt(), "{mirrored} of {n}");
        for (p, z) in [(0.5, 0.0), (0.975, 1.959_963_984_540_054), (1e-9, -5.997_807_015_007_7)] {
            assert!((normal_quantile(p) - z).abs() < 1e-9, "{p}: {}", normal_quantile(p));
        }
    }
}
