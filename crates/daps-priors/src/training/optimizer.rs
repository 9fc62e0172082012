//! AdamW (Loshchilov and Hutter), the limit on the gradient's norm and the averaged weights, in one pass over all numbers.

use std::cell::Cell;
use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Tensor, Var};
use daps_core::tensors::with_slice;
use rayon::prelude::*;

use super::config::{EmaConfig, OptimizerConfig};
use crate::Result;

/// Numbers that one thread takes at a time; fixed, so that sums do not depend on the number of threads.
const BLOCK: usize = 1 << 14;

/// The step size after `images`, of which the optimiser saw `own`: a linear warm-up, then constant, then falling as 1/√images.
#[must_use]
pub fn learning_rate(config: &OptimizerConfig, images: f64, own: f64) -> f64 {
    let warm = if config.warmup > 0.0 { (own / config.warmup).min(1.0) } else { 1.0 };
    let late = if config.decay_after > 0.0 { (images / config.decay_after).max(1.0).sqrt() } else { 1.0 };
    config.learning_rate * warm / late
}

/// What a cooldown leaves of the step size, `left` images before the end.
#[must_use]
pub fn cooled(cooldown: f64, left: f64) -> f64 {
    if cooldown > 0.0 { (left / cooldown).clamp(0.0, 1.0) } else { 1.0 }
}

/// What stays of the average at a step of `batch` images after `images`.
#[must_use]
pub fn ema_decay(config: &EmaConfig, images: f64, batch: f64) -> f64 {
    let half_life = config.half_life.min(images * config.ramp);
    if half_life > 0.0 { 0.5f64.powf(batch / half_life) } else { 0.0 }
}

/// One parameter with what the optimiser knows of it.
struct Slot {
    variable: Var,
    first: Vec<f32>,
    second: Vec<f32>,
    average: Vec<f32>,
}

/// The optimiser's state.
pub struct AdamW {
    config: OptimizerConfig,
    slots: BTreeMap<String, Slot>,
}

/// The factors of one step.
#[derive(Clone, Copy)]
struct Factors {
    gradient: f32,
    beta1: f32,
    beta2: f32,
    /// Step size over the first moment's bias.
    rate: f32,
    /// One over the root of the second moment's bias.
    root: f32,
    epsilon: f32,
    keep: f32,
    average: f32,
}

impl AdamW {
    /// Fresh state for the variables; the average starts at their values.
    pub fn new(config: &OptimizerConfig, variables: BTreeMap<String, Var>) -> Result<Self> {
        let mut slots = BTreeMap::new();
        for (name, variable) in variables {
            let average = with_slice(variable.as_tensor(), <[f32]>::to_vec)?;
            let zeros = vec![0f32; average.len()];
            slots.insert(name, Slot { variable, first: zeros.clone(), second: zeros, average });
        }
        Ok(Self { config: config.clone(), slots })
    }

    /// Numbers that are trained.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.values().map(|slot| slot.average.len()).sum()
    }

    /// Whether nothing is trained.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// One step: `number` counts from 1, `rate` is the step size, `decay` what stays of the average. Gives the
    /// gradient's norm before it was limited; a norm that is not finite changes nothing.
    pub fn step(&mut self, gradients: &GradStore, number: u64, rate: f64, decay: f64) -> Result<f64> {
        let c = &self.config;
        // One parallel loop over all parameters: they are many and small.
        let squares = |(_, slot): (&String, &Slot)| match gradients.get(slot.variable.as_tensor()) {
            Some(gradient) => Ok(with_slice(gradient, sum_of_squares)?),
            None => Ok(0.0),
        };
        let squares: Vec<f64> = self.slots.par_iter().map(squares).collect::<Result<_>>()?;
        let norm = squares.iter().sum::<f64>().sqrt();
        if !norm.is_finite() {
            return Ok(norm);
        }
        let limit = if c.clip > 0.0 && norm > c.clip { c.clip / norm } else { 1.0 };
        let bias = |beta: f64| 1.0 - beta.powf(number as f64);
        let factors = Factors {
            gradient: limit as f32,
            beta1: c.beta1 as f32,
            beta2: c.beta2 as f32,
            rate: (rate / bias(c.beta1)) as f32,
            root: (1.0 / bias(c.beta2).sqrt()) as f32,
            epsilon: c.epsilon as f32,
            keep: (1.0 - rate * c.weight_decay) as f32,
            average: (1.0 - decay) as f32,
        };
        self.slots.par_iter_mut().try_for_each(|(_, slot)| {
            let Some(gradient) = gradients.get(slot.variable.as_tensor()) else { return Ok(()) };
            let variable = slot.variable.as_tensor().clone();
            with_slice(gradient, |gradient: &[f32]| {
                let job = Cell::new(Some((gradient, slot)));
                variable.inplace_op1(&Update { factors, job })
            })?
            .map_err(daps_core::Error::from)
        })?;
        Ok(norm)
    }

    /// The averaged weights.
    pub fn average(&self) -> Result<BTreeMap<String, Tensor>> {
        let mut tensors = BTreeMap::new();
        for (name, slot) in &self.slots {
            tensors.insert(name.clone(), like(&slot.average, &slot.variable)?);
        }
        Ok(tensors)
    }

    /// All numbers of the state by name, for a checkpoint.
    pub fn state(&self) -> Result<BTreeMap<String, Tensor>> {
        let mut tensors = BTreeMap::new();
        for (name, slot) in &self.slots {
            let weights = with_slice(slot.variable.as_tensor(), <[f32]>::to_vec)?;
            let parts = [&weights, &slot.average, &slot.first, &slot.second];
            for (part, values) in PARTS.iter().zip(parts) {
                tensors.insert(format!("{part}.{name}"), like(values, &slot.variable)?);
            }
        }
        Ok(tensors)
    }

    /// Takes these weights, of any type, for the variables and their average; the name of one that does not fit is the error.
    pub fn begin(&mut self, tensors: &BTreeMap<String, Tensor>) -> std::result::Result<(), String> {
        for (name, slot) in &mut self.slots {
            slot.average = slot.fitting(tensors, name)?;
            slot.take_weights(&slot.average)?;
        }
        Ok(())
    }

    /// Takes up the state of a checkpoint; the name of a tensor that does not fit is the error.
    pub fn restore(&mut self, tensors: &BTreeMap<String, Tensor>) -> std::result::Result<(), String> {
        for (name, slot) in &mut self.slots {
            let [weights, average, first, second] =
                PARTS.map(|part| slot.fitting(tensors, &format!("{part}.{name}")));
            slot.take_weights(&weights?)?;
            (slot.average, slot.first, slot.second) = (average?, first?, second?);
        }
        Ok(())
    }
}

impl Slot {
    /// The numbers of the tensor of that name, if it has the variable's shape.
    fn fitting(
        &self,
        tensors: &BTreeMap<String, Tensor>,
        name: &str,
    ) -> std::result::Result<Vec<f32>, String> {
        let tensor = tensors.get(name).ok_or_else(|| format!("{name} is missing"))?;
        if tensor.dims() != self.variable.dims() {
            return Err(format!("{name} has shape {:?}, not {:?}", tensor.dims(), self.variable.dims()));
        }
        let tensor = tensor.to_dtype(DType::F32).map_err(|e| e.to_string())?;
        with_slice(&tensor, <[f32]>::to_vec).map_err(|e| e.to_string())
    }

    fn take_weights(&self, values: &[f32]) -> std::result::Result<(), String> {
        let weights = like(values, &self.variable).map_err(|e| e.to_string())?;
        self.variable.set(&weights).map_err(|e| e.to_string())
    }
}

/// Prefixes of the tensors of a checkpoint.
const PARTS: [&str; 4] = ["weights", "average", "first_moment", "second_moment"];

fn like(values: &[f32], variable: &Var) -> Result<Tensor> {
    let tensor = Tensor::from_slice(values, variable.shape(), variable.device());
    Ok(tensor.map_err(daps_core::Error::from)?)
}

fn sum_of_squares(values: &[f32]) -> f64 {
    let part = |block: &[f32]| block.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>();
    let parts: Vec<f64> = values.par_chunks(BLOCK).map(part).collect();
    parts.iter().sum()
}

/// The step of one parameter, in place.
struct Update<'a> {
    factors: Factors,
    job: Cell<Option<(&'a [f32], &'a mut Slot)>>,
}

impl InplaceOp1 for Update<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let CpuStorage::F32(weights) = storage else {
            return Err(candle_core::Error::Msg("a parameter that is not f32".to_owned()));
        };
        let Some((gradient, slot)) = self.job.take() else { return Ok(()) };
        let weights = &mut weights[layout.start_offset()..][..gradient.len()];
        let f = self.factors;
        weights
            .par_chunks_mut(BLOCK)
            .zip(slot.first.par_chunks_mut(BLOCK))
            .zip(slot.second.par_chunks_mut(BLOCK))
            .zip(slot.average.par_chunks_mut(BLOCK))
            .zip(gradient.par_chunks(BLOCK))
            .for_each(|((((w, m), v), a), g)| f.apply(w, m, v, a, g));
        Ok(())
    }
}

impl Factors {
    fn apply(self, w: &mut [f32], m: &mut [f32], v: &mut [f32], a: &mut [f32], g: &[f32]) {
        let n = g.len();
        let (w, m, v, a) = (&mut w[..n], &mut m[..n], &mut v[..n], &mut a[..n]);
        for i in 0..n {
            let g = g[i] * self.gradient;
            m[i] += (1.0 - self.beta1) * (g - m[i]);
            v[i] += (1.0 - self.beta2) * (g * g - v[i]);
            w[i] = w[i] * self.keep - self.rate * m[i] / (v[i].sqrt() * self.root + self.epsilon);
            a[i] += self.average * (w[i] - a[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_rate_warms_up_and_falls_and_the_average_forgets_at_its_half_life() {
        let config = OptimizerConfig {
            learning_rate: 2.0,
            warmup: 100.0,
            decay_after: 400.0,
            ..OptimizerConfig::default()
        };
        for (images, rate) in [(0.0, 0.0), (50.0, 1.0), (100.0, 2.0), (400.0, 2.0), (1600.0, 1.0)] {
            assert!((learning_rate(&config, images, images) - rate).abs() < 1e-12, "{images}");
        }
        assert!(
            (learning_rate(&config, 1600.0, 25.0) - 0.25).abs() < 1e-12,
            "begun with weights of 1575 images"
        );
        let plain = OptimizerConfig { warmup: 0.0, decay_after: 0.0, ..config };
        assert_eq!([0.0, 1e9].map(|i| learning_rate(&plain, i, i)), [2.0, 2.0]);
        assert_eq!([300.0, 200.0, 50.0, 0.0].map(|left| cooled(200.0, left)), [1.0, 1.0, 0.25, 0.0]);
        assert_eq!(cooled(0.0, 0.0), 1.0, "no cooldown");
        let ema = EmaConfig { half_life: 1000.0, ramp: 0.1 };
        // Ten steps of a tenth of the half-life leave one half; before the ramp's end the half-life is shorter.
        assert!((ema_decay(&ema, 1e6, 100.0).powi(10) - 0.5).abs() < 1e-12);
        assert!((ema_decay(&ema, 2000.0, 200.0) - 0.5).abs() < 1e-12);
        assert_eq!(ema_decay(&ema, 0.0, 10.0), 0.0);
    }

    /// Three steps on two parameters against the textbook formulas in f64.
    #[test]
    fn steps_follow_the_formulas_by_hand() {
        let config = OptimizerConfig {
            weight_decay: 0.1,
            clip: 0.5,
            beta1: 0.8,
            beta2: 0.9,
            epsilon: 1e-3,
            ..OptimizerConfig::default()
        };
        let start = [0.5f64, -1.0, 2.0];
        let var = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
            Var::from_vec(values.clone(), values.len(), &Device::Cpu).unwrap()
        };
        let (a, b) = (var(&start[..2]), var(&start[2..]));
        let variables = BTreeMap::from([("a".to_owned(), a.clone()), ("b".to_owned(), b.clone())]);
        let mut adam = AdamW::new(&config, variables).unwrap();
        let (mut w, mut m, mut v, mut average) = (start, [0f64; 3], [0f64; 3], start);
        for (number, scale) in [(1, 1.0), (2, 0.01), (3, -2.0)] {
            // The loss is scale (a0²/2 + a1²/2 + 3 b): its gradient is scale (a0, a1, 3).
            let half = (a.as_tensor().sqr().unwrap().sum_all().unwrap() * 0.5).unwrap();
            let loss = ((half + (b.as_tensor().sum_all().unwrap() * 3.0).unwrap()).unwrap() * scale).unwrap();
            let (rate, decay) = (0.05 * number as f64, 0.7);
            let norm = adam.step(&loss.backward().unwrap(), number, rate, decay).unwrap();
            let g = [scale * w[0], scale * w[1], scale * 3.0];
            let expected = g.iter().map(|g| g * g).sum::<f64>().sqrt();
            assert!((norm - expected).abs() < 1e-5, "{norm} {expected}");
            let limit = (0.5 / expected).min(1.0);
            for i in 0..3 {
                let g = g[i] * limit;
                m[i] = 0.8 * m[i] + 0.2 * g;
                v[i] = 0.9 * v[i] + 0.1 * g * g;
                let (m, v) =
                    (m[i] / (1.0 - 0.8f64.powi(number as i32)), v[i] / (1.0 - 0.9f64.powi(number as i32)));
                w[i] -= rate * 0.1 * w[i] + rate * m / (v.sqrt() + 1e-3);
                average[i] = 0.7 * average[i] + 0.3 * w[i];
            }
            let got = [a.to_vec1::<f32>().unwrap(), b.to_vec1::<f32>().unwrap()].concat();
            let means = adam.average().unwrap();
            let means = ["a", "b"].map(|n| means[n].to_vec1::<f32>().unwrap()).concat();
            for i in 0..3 {
                assert!((f64::from(got[i]) - w[i]).abs() < 1e-5, "step {number}: {got:?} {w:?}");
                assert!((f64::from(means[i]) - average[i]).abs() < 1e-5, "step {number}: {means:?}");
            }
        }
        let infinite = (a.as_tensor().sum_all().unwrap() * f64::INFINITY).unwrap();
        let before = a.to_vec1::<f32>().unwrap();
        assert!(!adam.step(&infinite.backward().unwrap(), 4, 0.1, 0.5).unwrap().is_finite());
        assert_eq!(a.to_vec1::<f32>().unwrap(), before);
    }
}
