//! AdamW (Loshchilov and Hutter), the limit on the gradient's norm and the averaged weights, in one pass over all numbers.

use std::cell::Cell;
use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor, Var};
use daps_core::real::with_slice;
use rayon::prelude::*;

use super::config::{EmaConfig, OptimizerConfig};
use crate::Result;

/// Numbers that one thread takes at a time; fixed, so that sums do not depend on the number of threads.
const BLOCK: usize = 1 << 14;

/// The step size after `images`: a linear warm-up, then constant, then falling as 1/√images.
#[must_use]
pub fn learning_rate(config: &OptimizerConfig, images: f64) -> f64 {
    let warm = if config.warmup > 0.0 { (images / config.warmup).min(1.0) } else { 1.0 };
    let late = if config.decay_after > 0.0 { (images / config.decay_after).max(1.0).sqrt() } else { 1.0 };
    config.learning_rate * warm / late
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
        let mut squares = 0.0;
        for slot in self.slots.values() {
            if let Some(gradient) = gradients.get(slot.variable.as_tensor()) {
                squares += with_slice(gradient, sum_of_squares)?;
            }
        }
        let norm = squares.sqrt();
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
        for slot in self.slots.values_mut() {
            let Some(gradient) = gradients.get(slot.variable.as_tensor()) else { continue };
            let variable = slot.variable.as_tensor().clone();
            with_slice(gradient, |gradient: &[f32]| {
                let job = Cell::new(Some((gradient, slot)));
                variable.inplace_op1(&Update { factors, job })
            })?
            .map_err(daps_core::Error::from)?;
        }
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

    /// Takes up the state of a checkpoint; the name of a tensor that does not fit is the error.
    pub fn restore(&mut self, tensors: &BTreeMap<String, Tensor>) -> std::result::Result<(), String> {
        for (name, slot) in &mut self.slots {
            let mut parts = PARTS.iter().map(|part| {
                let key = format!("{part}.{name}");
                match tensors.get(&key) {
                    Some(t) if t.dims() == slot.variable.dims() => {
                        with_slice(t, <[f32]>::to_vec).map_err(|e| e.to_string())
                    }
                    Some(t) => Err(format!("{key} has shape {:?}, not {:?}", t.dims(), slot.variable.dims())),
                    None => Err(format!("{key} is missing")),
                }
            });
            let mut next = || parts.next().unwrap_or_else(|| Err("a part is missing".to_owned()));
            let (weights, average, first, second) = (next()?, next()?, next()?, next()?);
            drop(parts);
            let weights = like(&weights, &slot.variable).map_err(|e| e.to_string())?;
            slot.variable.set(&weights).map_err(|e| e.to_string())?;
            (slot.average, slot.first, slot.second) = (average, first, second);
        }
        Ok(())
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
