//! What a step sees: images, mirrors, noise levels and noise, each a function of (seed, step, place in the batch).

use candle_core::{DType, Tensor};
use daps_core::{Address, Corruption, Noise, Purpose, Row, open01};
use rand_chacha::rand_core::Rng;

use super::data::{Dataset, Images};
use crate::Result;
use crate::network::quantise;

/// Running numbers of the choices that a step or an epoch makes.
const ORDER: usize = 0;
const MIRROR: usize = 1;
const LEVEL: usize = 2;
const SHIFT: usize = 3;
const PART: usize = 4;

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

/// One step's input for a classifier.
#[derive(Clone, Debug)]
pub struct LabelledBatch {
    /// Images of tokens 0 and 1.
    pub x: Tensor,
    /// What they show.
    pub labels: Vec<u8>,
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
        let (x0, noise) = self.shown(step, images)?;
        let sigma = self.levels(step, &noise);
        let at = Address::new(step as usize, Purpose::Renoise, 0);
        Ok(Batch { x0, noise: noise.normal(at, &images.shape(), DType::F32)?, sigma })
    }

    /// The batch of a step as tokens, clean and corrupted.
    pub fn tokens(&mut self, step: u64, images: &Images, chain: &Corruption) -> Result<TokenBatch> {
        let (x0, noise) = self.shown(step, images)?;
        let (x0, sigma) = (quantise(&x0, chain.symbols())?, self.levels(step, &noise));
        let x_t = chain.corrupt(&x0, &sigma, &noise, Address::new(step as usize, Purpose::Renoise, 0))?;
        Ok(TokenBatch { x0, x_t, sigma })
    }

    /// The batch of a step as binary images, each moved by up to `shift` pixels, with their labels.
    pub fn labelled(&mut self, step: u64, data: &Dataset, shift: usize) -> Result<LabelledBatch> {
        let (chosen, noise) = self.choose(step, data.train.len());
        let [_, height, width] = data.train.shape();
        let x = quantise(&data.train.select(&chosen)?, 2)?;
        let mut tokens = x.flatten_all().and_then(|x| x.to_vec1::<u8>()).map_err(daps_core::Error::from)?;
        let images = tokens.chunks_mut(data.train.shape().iter().product());
        for (place, image) in images.enumerate() {
            let mut rng = noise.stream(place, Address::new(step as usize, Purpose::Choice, SHIFT));
            let mut by = || (open01(&mut rng) * (2 * shift + 1) as f64) as isize - shift as isize;
            let by = (by(), by());
            image.chunks_mut(height * width).for_each(|plane| move_plane(plane, width, by));
        }
        let x = Tensor::from_vec(tokens, x.dims(), x.device()).map_err(daps_core::Error::from)?;
        Ok(LabelledBatch { x, labels: chosen.iter().map(|(index, _)| data.labels.train[*index]).collect() })
    }

    /// What a step shows, and its noise.
    fn shown(&mut self, step: u64, images: &Images) -> Result<(Tensor, Noise)> {
        let (chosen, noise) = self.choose(step, images.len());
        let at = Address::new(step as usize, Purpose::Choice, PART);
        Ok((images.shown(&chosen, &noise, at)?, noise))
    }

    /// Which images a step shows, those marked mirrored, and its noise.
    fn choose(&mut self, step: u64, of: usize) -> (Vec<(usize, bool)>, Noise) {
        let rows = (0..self.size as u64).map(|place| Row { measurement: place, chain: 0 }).collect();
        let noise = Noise::new(self.seed, rows);
        let mirrors = noise.uniform(Address::new(step as usize, Purpose::Choice, MIRROR));
        let each = |(place, mirror): (usize, &f64)| {
            (self.image(step * self.size as u64 + place as u64, of), self.flip && *mirror < 0.5)
        };
        (mirrors.iter().enumerate().map(each).collect(), noise)
    }

    /// A noise level for each image of a step.
    fn levels(&self, step: u64, noise: &Noise) -> Vec<f64> {
        // One level in each of `size` equally likely intervals: every level is as likely as without that, and the loss
        // of a batch varies less.
        let offset = open01(&mut noise.stream(0, Address::new(step as usize, Purpose::Choice, LEVEL)));
        let (mean, deviation) = self.log_sigma;
        let level = |place: usize| {
            (mean + deviation * normal_quantile((place as f64 + offset) / self.size as f64)).exp()
        };
        (0..self.size).map(level).collect()
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

/// Moves a picture down and right, by negative numbers up and left; what comes in is dark.
fn move_plane(plane: &mut [u8], width: usize, (down, right): (isize, isize)) {
    let (old, height) = (plane.to_vec(), plane.len() / width);
    for (n, token) in plane.iter_mut().enumerate() {
        let row = (n / width).checked_add_signed(-down).filter(|i| *i < height);
        let column = (n % width).checked_add_signed(-right).filter(|j| *j < width);
        *token = row.zip(column).map_or(0, |(i, j)| old[i * width + j]);
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

    #[test]
    fn labels_stay_with_their_images_and_images_move_as_a_whole() {
        // One light pixel in the middle; the label says in which half of the grey values.
        let grey: Vec<u8> = (0..12).flat_map(|i| [0, 0, 0, 0, 20 * i, 0, 0, 0, 0]).collect();
        let labels = (0..12).map(|i| u8::from(20 * i >= 128)).collect();
        let data = Dataset::split(Images::bytes([1, 3, 3], grey), 2).unwrap().labelled(labels, 2).unwrap();
        assert_eq!((data.labels.train.len(), data.labels.held_out.as_slice()), (10, [1u8, 1].as_slice()));
        let (mut batches, mut seen) = (Batches::new(1, 5, false, (0.0, 1.0)), [0; 9]);
        for step in 0..200 {
            let batch = batches.labelled(step, &data, 1).unwrap();
            let tokens: Vec<u8> = batch.x.flatten_all().unwrap().to_vec1().unwrap();
            for (image, label) in tokens.chunks(9).zip(&batch.labels) {
                let light: Vec<usize> = (0..9).filter(|n| image[*n] == 1).collect();
                assert_eq!(light.len(), usize::from(*label), "{image:?}");
                light.iter().for_each(|n| seen[*n] += 1);
            }
        }
        // Three of ten training images are light: each of nine places is as likely as any other.
        let n = seen.iter().sum::<usize>() as f64;
        assert_eq!(n, 300.0);
        assert!(seen.iter().all(|s| (*s as f64 - n / 9.0).abs() < 4.0 * (n / 9.0).sqrt()), "{seen:?}");
        let still = batches.labelled(3, &data, 0).unwrap();
        let tokens: Vec<u8> = still.x.flatten_all().unwrap().to_vec1().unwrap();
        assert!(tokens.chunks(9).zip(&still.labels).all(|(image, label)| image[4] == *label));
    }
}
