//! What the covariance of p(x0 | x_t) is worth, where the posterior is known: channels that are correlated, and places of which some
//! are far less certain than others.

use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Approx, BandSpread, Bands, Center, Conditional, Cosines, Covariance, Denoiser, Error, Estimate,
    Frequency, Gaussian, LocalDenoiser, LocalFactor, Method, Noise, Operator, Problem, Purpose, RHO, Row,
    Schedule, ScheduleRule, Sigma, Spread, SpreadTable, Step, linear_measurement,
};
use daps_methods::Daps;
use daps_methods::kernel::{Exact, KernelConfig, Underdamped};
use daps_metrics::moments::Moments;
use daps_operators::{Inpainting, SuperResolution, box_mask, random_mask};
use daps_priors::GaussianMixture;

fn daps(levels: usize, spread: BandSpread, kernel: KernelConfig) -> Daps {
    let schedule = ScheduleRule::Poly { levels, max: 300.0, min: 0.1, rho: RHO };
    let estimate = Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Bands(spread) };
    Daps { beta: None, schedule, estimate, kernel }
}

fn exact() -> KernelConfig {
    KernelConfig::Exact(Exact::default())
}

const SHAPE: [usize; 3] = [3, 4, 4];

/// A Gaussian prior whose channels are correlated at every frequency, with its table in closed form.
struct Correlated {
    prior: GaussianMixture,
    table: SpreadTable,
}

/// The covariance of the channels at a frequency, in the coordinates of the cosines: two large variances and a small one along axes that
/// are none of theirs.
fn block(f: f64) -> [f64; 9] {
    let scale = 1.0 / (1.0 + 10.0 * f * f);
    [1.0, 0.6, 0.1, 0.6, 0.5, 0.2, 0.1, 0.2, 0.3].map(|v| v * scale)
}

impl Correlated {
    fn new(schedule: &ScheduleRule) -> Self {
        let cosines = Arc::new(Cosines::new(&SHAPE).unwrap());
        let mut frequency = cosines.frequencies();
        let law = |f, out: &mut [f64]| out.copy_from_slice(&block(f));
        let whole = Frequency::correlated(Arc::clone(&cosines), law).unwrap();
        let matrix = Covariance::Frequency(whole).row(0).unwrap();
        let d = SHAPE.iter().product();
        let prior = GaussianMixture::gaussian(&SHAPE, vec![0.1; d], matrix).unwrap();
        frequency.sort_by(f64::total_cmp);
        frequency.dedup();
        let mut sigma: Vec<f64> = Schedule::new(schedule).unwrap().steps().map(|s| s.sigma).collect();
        sigma.reverse();
        let (mut variance, mut correlation) = (vec![], vec![]);
        for s in &sigma {
            // (Σ⁻¹ + I/σ²)⁻¹, one matrix for each frequency.
            let left: Vec<[f64; 9]> = frequency.iter().map(|f| conditional(block(*f), *s)).collect();
            variance.push((0..3).flat_map(|c| left.iter().map(move |m| m[4 * c])).collect());
            let pairs = [(1, 0), (2, 0), (2, 1)];
            let of = |(i, j): (usize, usize), m: &[f64; 9]| m[3 * i + j] / (m[4 * i] * m[4 * j]).sqrt();
            correlation.push(pairs.into_iter().flat_map(|p| left.iter().map(move |m| of(p, m))).collect());
        }
        let bands = Some(Bands { frequency, variance, correlation: Some(correlation) });
        let table = SpreadTable { r: vec![1.0; sigma.len()], sigma, data_std: 1.0, bands };
        table.check().unwrap();
        Self { prior, table }
    }
}

/// σ² Σ (Σ + σ² I)⁻¹ of a 3x3 matrix, by Cramer's rule.
fn conditional(m: [f64; 9], sigma: f64) -> [f64; 9] {
    let s = sigma * sigma;
    let mut a = m;
    (0..3).for_each(|i| a[4 * i] += s);
    let minor = |i: usize, j: usize| {
        let at = |r: usize, c: usize| a[3 * ((i + 1 + r) % 3) + (j + 1 + c) % 3];
        at(0, 0) * at(1, 1) - at(0, 1) * at(1, 0)
    };
    let det: f64 = (0..3).map(|j| a[j] * minor(0, j)).sum();
    std::array::from_fn(|k| {
        let (i, j) = (k / 3, k % 3);
        let solved: f64 = (0..3).map(|l| m[3 * i + l] * minor(j, l) / det).sum();
        s * solved
    })
}

impl Denoiser for Correlated {
    fn shape(&self) -> &[usize] {
        self.prior.shape()
    }
    fn dtype(&self) -> DType {
        self.prior.dtype()
    }
    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor, Error> {
        self.prior.denoise(x, sigma)
    }
    fn as_spread(&self) -> Option<&SpreadTable> {
        Some(&self.table)
    }
}

/// With the covariance of the channels the posterior comes out at any number of levels, without it, it does not.
#[test]
fn correlated_channels_have_their_posterior() {
    let chains = 8000;
    let mask = random_mask(4, 4, 0.5, 3).unwrap();
    let operators: [Arc<dyn Operator>; 2] = [
        Arc::new(SuperResolution::new(&SHAPE, 2).unwrap()),
        Arc::new(Inpainting::new(&SHAPE, &mask).unwrap()),
    ];
    let dynamics = KernelConfig::Underdamped(Underdamped { steps: 150, time_step: 1.0 });
    for operator in operators {
        let agrees = |levels: usize, channels: bool, kernel: &KernelConfig| {
            let daps = daps(levels, BandSpread { channels, ..BandSpread::default() }, kernel.clone());
            let prior = Arc::new(Correlated::new(&daps.schedule));
            let size: usize = operator.output_shape().iter().product();
            let one: Vec<f64> = (0..size).map(|i| (i as f64 * 1.3).sin()).collect();
            let dims = [&[chains], operator.output_shape()].concat();
            let y = from_f64(one.iter().copied().cycle().take(size * chains).collect(), &dims, DType::F64);
            let likelihood = Gaussian::new(Arc::clone(&operator), y.unwrap(), 0.2).unwrap();
            let (at, y) = linear_measurement(&likelihood, 0).unwrap();
            let posterior = prior.prior.mixture().posterior(&at, &y).unwrap();
            let task = Problem::new(prior, Arc::new(likelihood)).unwrap();
            let samples = daps.sample(&task, &Noise::chains(3, chains), None, &mut ()).unwrap();
            let (matrix, d) = (posterior.covariance(), 48);
            let dense: Vec<f64> = (0..d * d).map(|k| matrix[(k / d, k % d)]).collect();
            let moments = Moments::new(&to_f64(&samples.x).unwrap(), d).unwrap();
            moments.compare(&posterior.mean(), &dense).unwrap().agrees(1e-5)
        };
        for (levels, kernel) in [(1, exact()), (4, exact()), (4, dynamics.clone())] {
            assert!(agrees(levels, true, &kernel), "{}, {levels} levels, {kernel:?}", operator.name());
            assert!(!agrees(levels, false, &kernel), "{}: independent channels pass too", operator.name());
        }
    }
}

/// A covariance with a local factor that differs by ten from place to place: exact draws and dynamics have the posterior that it
/// says, through a blur and around a hole.
#[test]
fn draws_with_a_local_factor_have_the_posterior_of_their_covariance() {
    let (shape, chains, d) = ([1, 6, 8], 8000, 48);
    let cosines = Arc::new(Cosines::new(&shape).unwrap());
    let variances = cosines.frequencies().iter().map(|f| 0.5 / (1.0 + 30.0 * f * f)).collect();
    let factor = (0..d).map(|k| [0.2, 0.6, 1.0, 2.0][(k / 2 + k / 16) % 4]).collect();
    let local = LocalFactor { factor: from_f64(factor, &[1, 1, 6, 8], DType::F64).unwrap(), from: 0.3 };
    let covariance = Frequency::new(cosines, variances).unwrap().with_local(local).unwrap();
    let covariance = Covariance::Frequency(covariance);
    let mean: Vec<f64> = (0..d).map(|k| 0.2 * (k as f64 * 0.7).sin()).collect();
    let dense = GaussianMixture::gaussian(&shape, mean.clone(), covariance.row(0).unwrap()).unwrap();
    let rows =
        |values: &[f64]| values.iter().copied().cycle().take(values.len() * chains).collect::<Vec<_>>();
    let start = from_f64(rows(&mean), &[chains, 1, 6, 8], DType::F64).unwrap();
    let approx = Approx::Gaussian { mean: start.clone(), covariance, start };
    let operators: [Arc<dyn Operator>; 2] = [
        Arc::new(SuperResolution::new(&shape, 2).unwrap()),
        Arc::new(Inpainting::new(&shape, &box_mask(6, 8, 4, 0, 1).unwrap()).unwrap()),
    ];
    let step = Step { index: 0, of: 1, start: 1.0, sigma: 1.0, next: 0.0 };
    for operator in operators {
        let one: Vec<f64> =
            (0..operator.output_shape().iter().product()).map(|i| (i as f64 * 1.3).sin()).collect();
        let dims = [&[chains], operator.output_shape()].concat();
        let y = from_f64(rows(&one), &dims, DType::F64).unwrap();
        let likelihood = Gaussian::new(Arc::clone(&operator), y, 0.1).unwrap();
        let (at, y) = linear_measurement(&likelihood, 0).unwrap();
        let posterior = dense.mixture().posterior(&at, &y).unwrap();
        let matrix = posterior.covariance();
        let expected: Vec<f64> = (0..d * d).map(|k| matrix[(k / d, k % d)]).collect();
        let target = Conditional { approx: &approx, likelihood: &likelihood };
        for kernel in
            [exact(), KernelConfig::Underdamped(Underdamped { steps: 400, ..Underdamped::default() })]
        {
            let noise = Noise::chains(3, chains);
            let (x, info) = kernel.build().unwrap().draw(&target, &noise, &step).unwrap();
            assert!(!info.diverged.contains(&true));
            let moments = Moments::new(&to_f64(&x).unwrap(), d).unwrap();
            let comparison = moments.compare(&posterior.mean(), &expected).unwrap();
            assert!(comparison.agrees(1e-5), "{}, {kernel:?}: {comparison:?}", operator.name());
        }
    }
}

const SIDE: usize = 16;
const SCALES: [f64; 3] = [0.03, 0.2, 1.0];
const BETA: f64 = 0.1;

/// Blocks of 2x2 pixels, each N(0, s²) with one of three scales: quiet places and busy ones.
struct Blocks {
    shape: [usize; 3],
    table: SpreadTable,
}

/// What a block's values say of its scale: the weights of the three.
fn weights(values: &[f64], noise: f64) -> [f64; 3] {
    let square: f64 = values.iter().map(|v| v * v).sum();
    let n = values.len() as f64;
    let log = SCALES.map(|s| -0.5 * (square / (s * s + noise) + n * (s * s + noise).ln()));
    let top = log.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let w = log.map(|l| (l - top).exp());
    w.map(|v| v / w.iter().sum::<f64>())
}

/// E[x0 | x_t] of a block, and the mean of its variances given x_t.
fn block_law(x: [f64; 4], sigma: f64) -> ([f64; 4], f64) {
    let noise = sigma * sigma;
    let w = weights(&x, noise);
    let shrink = SCALES.map(|s| s * s / (s * s + noise));
    let mean: f64 = (0..3).map(|j| w[j] * shrink[j]).sum();
    let within: f64 = (0..3).map(|j| w[j] * shrink[j] * noise).sum();
    let between: f64 = (0..3).map(|j| w[j] * (shrink[j] - mean).powi(2)).sum();
    let square: f64 = x.iter().map(|v| v * v).sum();
    (x.map(|v| mean * v), within + between * square / 4.0)
}

/// Numbers that are uniform on [0, 1], `[rows][pixel]`.
fn uniform(noise: &Noise) -> Vec<f64> {
    let draw = |index| {
        let at = Address::new(0, Purpose::Start, index);
        to_f64(&noise.normal(at, &[1, SIDE, SIDE], DType::F64).unwrap()).unwrap()
    };
    let angle = |(a, b): (&f64, &f64)| 0.5 + a.atan2(*b) / std::f64::consts::TAU;
    draw(0).iter().zip(&draw(1)).map(angle).collect()
}

/// The pixels of a block in an image.
fn pixels(block: usize) -> [usize; 4] {
    let (y, x) = (block / (SIDE / 2) * 2, block % (SIDE / 2) * 2);
    [y * SIDE + x, y * SIDE + x + 1, (y + 1) * SIDE + x, (y + 1) * SIDE + x + 1]
}

impl Blocks {
    fn draw(noise: &Noise) -> Vec<f64> {
        let (at, shape) = (Address::new(0, Purpose::Reference, 0), [1, SIDE, SIDE]);
        let mut x = to_f64(&noise.normal(at, &shape, DType::F64).unwrap()).unwrap();
        for (x, u) in x.chunks_mut(SIDE * SIDE).zip(uniform(noise).chunks(SIDE * SIDE)) {
            for block in 0..SIDE * SIDE / 4 {
                let at = pixels(block);
                let s = SCALES[((3.0 * u[at[0]]) as usize).min(2)];
                at.into_iter().for_each(|k| x[k] *= s);
            }
        }
        x
    }

    /// With the mean variance at every level, measured on draws.
    fn new() -> Self {
        let sigma: Vec<f64> = (0..25).map(|i| 0.005 * 1.5f64.powi(i)).collect();
        let n = 60;
        let noise = Noise::chains(11, n);
        let x0 = Self::draw(&noise);
        let mut r = vec![];
        for (i, s) in sigma.iter().enumerate() {
            let z = noise.normal(Address::new(i, Purpose::Renoise, 0), &[1, SIDE, SIDE], DType::F64);
            let z = to_f64(&z.unwrap()).unwrap();
            let noisy: Vec<f64> = x0.iter().zip(z).map(|(x, z)| x + s * z).collect();
            let mut total = 0.0;
            for image in noisy.chunks(SIDE * SIDE) {
                for block in 0..SIDE * SIDE / 4 {
                    total += block_law(pixels(block).map(|k| image[k]), *s).1;
                }
            }
            r.push((total / (n * SIDE * SIDE / 4) as f64).sqrt());
        }
        let variance = r.iter().map(|r| vec![r * r]).collect();
        let bands = Some(Bands { frequency: vec![0.0], variance, correlation: None });
        let data_std = (SCALES.iter().map(|s| s * s).sum::<f64>() / 3.0).sqrt();
        Self { shape: [1, SIDE, SIDE], table: SpreadTable { sigma, r, data_std, bands } }
    }

    fn law(&self, x: &Tensor, sigma: f64) -> (Vec<f64>, Vec<f64>) {
        let x = to_f64(x).unwrap();
        let (mut mean, mut variance) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for first in (0..x.len()).step_by(SIDE * SIDE) {
            for block in 0..SIDE * SIDE / 4 {
                let at = pixels(block).map(|k| first + k);
                let (m, v) = block_law(at.map(|k| x[k]), sigma);
                at.into_iter().zip(m).for_each(|(k, m)| (mean[k], variance[k]) = (m, v));
            }
        }
        (mean, variance)
    }
}

impl Denoiser for Blocks {
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn dtype(&self) -> DType {
        DType::F64
    }
    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor, Error> {
        from_f64(self.law(x, sigma.row(0)).0, x.dims(), DType::F64)
    }
    fn as_spread(&self) -> Option<&SpreadTable> {
        Some(&self.table)
    }
    fn as_local(&self) -> Option<&dyn LocalDenoiser> {
        Some(self)
    }
}

impl LocalDenoiser for Blocks {
    fn denoise_local(&self, x: &Tensor, sigma: f64) -> Result<(Tensor, LocalFactor), Error> {
        let (mean, variance) = self.law(x, sigma);
        let usual = self.table.at(sigma);
        let factor = variance.iter().map(|v| v.sqrt() / usual).collect();
        let factor = from_f64(factor, x.dims(), DType::F64)?;
        Ok((from_f64(mean, x.dims(), DType::F64)?, LocalFactor { factor, from: 0.0 }))
    }
}

/// E‖s - s'‖²/E‖s - truth‖² over images with several samples each: 1 for exact ones.
fn diversity(samples: &[f64], truth: &[f64], chains: usize) -> f64 {
    let d = SIDE * SIDE;
    let (mut apart, mut away) = (0.0, 0.0);
    for (rows, truth) in samples.chunks(chains * d).zip(truth.chunks(d)) {
        for k in 0..d {
            let values: Vec<f64> = (0..chains).map(|c| rows[c * d + k]).collect();
            let mean = values.iter().sum::<f64>() / chains as f64;
            let spread = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (chains - 1) as f64;
            apart += 2.0 * spread;
            away += values.iter().map(|v| (v - truth[k]).powi(2)).sum::<f64>() / chains as f64;
        }
    }
    apart / away
}

/// One of four pixels of every block is measured. One variance for all places makes samples too much alike; the local factor brings them
/// most of the way to the exact posterior.
#[test]
fn a_local_factor_lifts_diversity_where_some_places_are_quiet_and_others_busy() {
    let (images, chains) = (40, 6);
    let of = |row: usize| (row / chains) as u64;
    let truth = Blocks::draw(&Noise::chains(21, images));
    let first = |k: usize| pixels(k / SIDE / 2 * (SIDE / 2) + k % SIDE / 2)[0] == k;
    let mask: Vec<u8> = (0..SIDE * SIDE).map(|k| u8::from(first(k))).collect();
    let mask = Tensor::from_vec(mask, (1, 1, SIDE, SIDE), &Device::Cpu).unwrap();
    let operator = Arc::new(Inpainting::new(&[1, SIDE, SIDE], &mask).unwrap());
    let shape = [1, SIDE, SIDE];
    let e = Noise::chains(5, images).normal(Address::new(0, Purpose::Measurement, 0), &shape, DType::F64);
    let e = to_f64(&e.unwrap()).unwrap();
    let measured: Vec<f64> = truth.iter().zip(&e).map(|(x, e)| x + BETA * e).collect();
    let d = SIDE * SIDE;
    let repeated: Vec<f64> =
        measured.chunks(d).flat_map(|y| y.iter().copied().cycle().take(chains * d)).collect();
    let y = from_f64(repeated, &[images * chains, 1, SIDE, SIDE], DType::F64).unwrap();
    let y = operator.apply(&y).unwrap();
    let likelihood = Arc::new(Gaussian::new(operator, y, BETA).unwrap());
    let rows = (0..images * chains).map(|r| Row { measurement: of(r), chain: (r % chains) as u64 }).collect();
    let noise = Noise::new(7, rows);
    let sample = |local: bool| {
        let mut daps = daps(50, BandSpread { local, ..BandSpread::default() }, exact());
        daps.schedule = ScheduleRule::Poly { levels: 50, max: 20.0, min: 0.01, rho: RHO };
        let task = Problem::new(Arc::new(Blocks::new()), likelihood.clone()).unwrap();
        let x = daps.sample(&task, &noise, None, &mut ()).unwrap().x;
        diversity(&to_f64(&x).unwrap(), &truth, chains)
    };
    // Exact samples: the scale given the measured pixel, then a normal.
    let z = noise.normal(Address::new(0, Purpose::Reference, 0), &shape, DType::F64).unwrap();
    let (mut z, u) = (to_f64(&z).unwrap(), uniform(&noise));
    for row in 0..images * chains {
        for block in 0..d / 4 {
            let at = pixels(block);
            let seen = measured[row / chains * d + at[0]];
            let w = weights(&[seen], BETA * BETA);
            let p = u[row * d + at[0]];
            let s = SCALES[usize::from(p > w[0]) + usize::from(p > w[0] + w[1])];
            let shrink = s * s / (s * s + BETA * BETA);
            for (i, k) in at.into_iter().enumerate() {
                let k = row * d + k;
                z[k] = if i == 0 { shrink * seen + shrink.sqrt() * BETA * z[k] } else { s * z[k] };
            }
        }
    }
    let best = diversity(&z, &truth, chains);
    let (same, local) = (sample(false), sample(true));
    let found = format!("one variance {same:.2}, local {local:.2}, exact {best:.2}");
    assert!((best - 1.0).abs() < 0.05, "{found}");
    assert!(same < 0.86 && local > same + 0.08 && (local - 1.0).abs() < 0.12, "{found}");
}
