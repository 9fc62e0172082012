//! Addressed randomness: every draw is a function of (seed, measurement, chain, level, purpose, index), never of what was drawn before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use crate::tensors::{BLOCK, Real, batched};
use crate::{Error, Result, with_real};

/// What a draw is for; two purposes never share a stream. Numbers are part of the reproducible result: append, do not reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// The start x_T.
    Init = 0,
    /// Renoising after a level.
    Renoise = 1,
    /// The kernel's proposals or diffusion.
    Kernel = 2,
    /// A kernel's velocity.
    Velocity = 3,
    /// Accept decisions.
    Accept = 4,
    /// Draws of p(x0 | x_t).
    Estimate = 5,
    /// Choice of a component or of one of several draws.
    Choice = 6,
    /// Noise of a simulated measurement.
    Measurement = 7,
    /// Exact samples of a prior or posterior.
    Reference = 8,
    /// Problem instances, masks, kernels and other data that a test bed makes.
    Instance = 9,
    /// Perturbation in measurement space (perturb-and-MAP).
    Perturbation = 10,
    /// Random directions of a sliced metric.
    Slices = 11,
    /// Where a kernel's chain starts.
    Start = 12,
    /// Noise that a method adds to a measurement on its way through the levels.
    Diffusion = 13,
    /// Truths that a prior draws, to be measured by an operator that may be drawn too.
    Truth = 14,
    /// Parameters of a likelihood that are drawn along with x.
    Nuisance = 15,
}

/// Where a draw stands within a row's randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Level of the schedule.
    pub level: usize,
    /// What the draw is for.
    pub purpose: Purpose,
    /// Running number within the purpose, such as the kernel's step.
    pub index: usize,
}

impl Address {
    /// The address (level, purpose, index).
    #[must_use]
    pub fn new(level: usize, purpose: Purpose, index: usize) -> Self {
        Self { level, purpose, index }
    }
}

/// Which sample a row of a batch is; its noise depends on this and on nothing else of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The measurement that the chain belongs to.
    pub measurement: u64,
    /// The chain's number within the measurement.
    pub chain: u64,
}

/// The randomness of a batch: one counter-based stream family per row, or a recording to replay.
#[derive(Clone, Debug)]
pub struct Noise {
    rows: Vec<Row>,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Streams { seed: u64 },
    Scripted(Arc<Mutex<VecDeque<Tensor>>>),
}

impl Noise {
    /// Streams for the given rows.
    #[must_use]
    pub fn new(seed: u64, rows: Vec<Row>) -> Self {
        Self { rows, source: Source::Streams { seed } }
    }

    /// Streams for chains 0..n of measurement 0.
    #[must_use]
    pub fn chains(seed: u64, n: usize) -> Self {
        Self::new(seed, (0..n as u64).map(|chain| Row { measurement: 0, chain }).collect())
    }

    /// Replays recorded normal draws in order, whatever the address.
    #[must_use]
    pub fn scripted(rows: usize, draws: impl IntoIterator<Item = Tensor>) -> Self {
        let rows = (0..rows as u64).map(|chain| Row { measurement: 0, chain }).collect();
        Self { rows, source: Source::Scripted(Arc::new(Mutex::new(draws.into_iter().collect()))) }
    }

    /// The rows of the batch.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Batch size.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the batch has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Standard normal draws, `shape` for each row.
    pub fn normal(&self, at: Address, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let dims = batched(self.len(), shape);
        match &self.source {
            Source::Streams { seed } => with_real!(dtype, T => {
                let n = shape.iter().product::<usize>();
                let mut values = vec![T::default(); self.len() * n];
                for (row, out) in self.rows.iter().zip(values.chunks_mut(n.max(1))) {
                    out.par_chunks_mut(BLOCK).enumerate().for_each(|(block, out)| {
                        fill_normal(&mut stream(*seed, *row, at, block), out);
                    });
                }
                Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
            }),
            Source::Scripted(queue) => {
                let mut queue = queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let Some(next) = queue.pop_front() else {
                    return Err(Error::invalid("scripted noise", "one more recorded draw", "an empty queue"));
                };
                if next.dims() != dims {
                    return Err(Error::shape("scripted noise", &dims, next.dims()));
                }
                Ok(next.to_dtype(dtype)?)
            }
        }
    }

    /// The generator of one row at one address, for draws of any kind (uniforms, indices).
    #[must_use]
    pub fn stream(&self, row: usize, at: Address) -> ChaCha8Rng {
        let seed = match self.source {
            Source::Streams { seed } => seed,
            Source::Scripted(_) => 0,
        };
        stream(seed, self.rows[row], at, 0)
    }

    /// One uniform number in (0, 1) per row.
    #[must_use]
    pub fn uniform(&self, at: Address) -> Vec<f64> {
        (0..self.len()).map(|row| open01(&mut self.stream(row, at))).collect()
    }

    /// The noise of some of the rows.
    #[must_use]
    pub fn select(&self, rows: &[usize]) -> Self {
        Self { rows: rows.iter().map(|&r| self.rows[r]).collect(), source: self.source.clone() }
    }
}

/// A uniform number in the open interval (0, 1).
#[must_use]
pub fn open01(rng: &mut ChaCha8Rng) -> f64 {
    ((rng.next_u64() >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// Fills a slice with standard normal draws; f32 draws are the rounded f64 ones.
pub fn fill_normal<T: Real>(rng: &mut ChaCha8Rng, out: &mut [T]) {
    for v in out {
        let z: f64 = StandardNormal.sample(rng);
        *v = T::of(z);
    }
}

/// The key is (seed, measurement, chain, level), the nonce (purpose, index), and blocks lie far apart in the counter.
fn stream(seed: u64, row: Row, at: Address, block: usize) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (part, value) in key.chunks_mut(8).zip([seed, row.measurement, row.chain, at.level as u64]) {
        part.copy_from_slice(&value.to_le_bytes());
    }
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(((at.purpose as u64) << 32) | at.index as u64);
    rng.set_word_pos((block as u128) << 24);
    rng
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_noise_in_any_batch_and_any_thread_pool() {
        let at = Address::new(3, Purpose::Kernel, 7);
        let shape = [3, 50, 60];
        let whole = Noise::chains(5, 4).normal(at, &shape, DType::F32).unwrap();
        let alone = Noise::new(5, vec![Row { measurement: 0, chain: 2 }]);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let alone = pool.install(|| alone.normal(at, &shape, DType::F32)).unwrap();
        let row = whole.narrow(0, 2, 1).unwrap();
        let bits = |t: &Tensor| {
            t.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(&row), bits(&alone));
    }

    #[test]
    fn every_part_of_the_address_matters() {
        let base = Noise::chains(1, 1);
        let at = Address::new(0, Purpose::Init, 0);
        let first = |noise: &Noise, at| noise.stream(0, at).next_u64();
        let reference = first(&base, at);
        let others = [
            first(&Noise::chains(2, 1), at),
            first(&Noise::new(1, vec![Row { measurement: 1, chain: 0 }]), at),
            first(&Noise::new(1, vec![Row { measurement: 0, chain: 1 }]), at),
            first(&base, Address::new(1, Purpose::Init, 0)),
            first(&base, Address::new(0, Purpose::Renoise, 0)),
            first(&base, Address::new(0, Purpose::Init, 1)),
        ];
        assert!(others.iter().all(|o| *o != reference), "{others:?}");
    }

    #[test]
    fn draws_are_standard_normal() {
        let z = Noise::chains(0, 1)
            .normal(Address::new(0, Purpose::Init, 0), &[200_000], DType::F64)
            .and_then(|t| crate::tensors::to_f64(&t))
            .unwrap();
        let n = z.len() as f64;
        let moment = |k: i32| z.iter().map(|v| v.powi(k)).sum::<f64>() / n;
        // Standard errors of the first four moments of n normal draws: 1, √2, √15, √96 over √n.
        for (k, exact, spread) in
            [(1, 0.0, 1.0), (2, 1.0, 2.0f64.sqrt()), (3, 0.0, 15f64.sqrt()), (4, 3.0, 96f64.sqrt())]
        {
            assert!((moment(k) - exact).abs() < 4.0 * spread / n.sqrt(), "moment {k}: {}", moment(k));
        }
    }

    #[test]
    fn a_script_is_replayed_in_order_and_its_end_is_an_error() {
        let draw = Tensor::new(&[[1f32, 2.0]], &Device::Cpu).unwrap();
        let noise = Noise::scripted(1, [draw]);
        let at = Address::new(0, Purpose::Init, 0);
        assert_eq!(noise.normal(at, &[2], DType::F32).unwrap().to_vec2::<f32>().unwrap(), [[1.0, 2.0]]);
        assert!(noise.normal(at, &[2], DType::F32).is_err());
    }
}
