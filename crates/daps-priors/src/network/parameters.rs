//! Where a network's parameters come from: a checkpoint that must fit exactly, or a fresh initialisation to train.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use candle_core::{DType, Device, Tensor, Var};
use daps_core::{fill_normal, open01};
use daps_nn::{Conv2d, ConvConfig, GroupNorm, Linear, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::KeyMismatch;

/// How a fresh parameter is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Init {
    /// All the same.
    Constant(f32),
    /// Uniform in ± the bound.
    Uniform(f64),
    /// Normal with this deviation.
    Normal(f64),
}

/// How fresh convolutions and linear maps are drawn, weights and biases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scheme {
    /// PyTorch's default: both uniform in ± 1/√fan_in.
    Torch,
    /// Weights uniform in ± gain √(6/(fan_in + fan_out)), biases zero.
    Xavier(f64),
    /// Both uniform in ± gain √(3/fan_in).
    Kaiming(f64),
    /// Zeros.
    Zero,
}

impl Scheme {
    fn weight(self, fan_in: usize, fan_out: usize) -> Init {
        match self {
            Self::Torch => Init::Uniform((1.0 / fan_in as f64).sqrt()),
            Self::Xavier(gain) => Init::Uniform(gain * (6.0 / (fan_in + fan_out) as f64).sqrt()),
            Self::Kaiming(gain) => Init::Uniform(gain * (3.0 / fan_in as f64).sqrt()),
            Self::Zero => Init::Constant(0.0),
        }
    }

    fn bias(self, fan_in: usize) -> Init {
        match self {
            Self::Xavier(_) => Init::Constant(0.0),
            other => other.weight(fan_in, 0),
        }
    }
}

/// Hands out parameters by their public names and keeps account of them.
pub struct Parameters {
    source: Source,
    asked: RefCell<BTreeMap<String, Vec<usize>>>,
    optional: RefCell<BTreeSet<String>>,
    mismatch: RefCell<KeyMismatch>,
}

enum Source {
    Given(BTreeMap<String, Tensor>),
    Fresh { seed: u64, device: Device, vars: RefCell<BTreeMap<String, Var>> },
}

impl Parameters {
    /// From tensors, converted to f32. [`Parameters::finish`] refuses them unless they fit exactly.
    #[must_use]
    pub fn given(tensors: BTreeMap<String, Tensor>) -> Self {
        Self::new(Source::Given(tensors))
    }

    /// Fresh variables with the initialisation that the network was published with; the seed decides them all.
    #[must_use]
    pub fn fresh(seed: u64, device: &Device) -> Self {
        Self::new(Source::Fresh { seed, device: device.clone(), vars: RefCell::default() })
    }

    fn new(source: Source) -> Self {
        Self { source, asked: RefCell::default(), optional: RefCell::default(), mismatch: RefCell::default() }
    }

    /// The variables to train, by name; empty where the parameters were given.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, Var> {
        match &self.source {
            Source::Given(_) => BTreeMap::new(),
            Source::Fresh { vars, .. } => vars.borrow().clone(),
        }
    }

    /// Where the parameters live.
    #[must_use]
    pub fn device(&self) -> Device {
        match &self.source {
            Source::Given(tensors) => tensors.values().next().map_or(Device::Cpu, |t| t.device().clone()),
            Source::Fresh { device, .. } => device.clone(),
        }
    }

    /// Names and shapes that were asked for so far.
    #[must_use]
    pub fn asked(&self) -> BTreeMap<String, Vec<usize>> {
        self.asked.borrow().clone()
    }

    /// Lists what is missing, misshapen or left over, if anything is.
    #[must_use]
    pub fn finish(&self) -> Option<KeyMismatch> {
        let mut mismatch = self.mismatch.borrow().clone();
        if let Source::Given(tensors) = &self.source {
            let (asked, optional) = (self.asked.borrow(), self.optional.borrow());
            let known = |name: &String| asked.contains_key(name) || optional.contains(name);
            mismatch.extra = tensors
                .iter()
                .filter(|(n, _)| !known(n))
                .map(|(n, t)| (n.clone(), t.dims().to_vec()))
                .collect();
        }
        (!mismatch.is_empty()).then_some(mismatch)
    }

    /// A parameter. One that does not fit is booked for [`Parameters::finish`] and stands in as zeros that take no
    /// memory.
    pub(crate) fn get(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        let index = self.asked.borrow().len();
        self.asked.borrow_mut().insert(name.to_owned(), shape.to_vec());
        let tensors = match &self.source {
            Source::Given(tensors) => tensors,
            Source::Fresh { seed, device, vars } => {
                let values = Tensor::from_vec(draw(*seed, index as u64, shape, init), shape, device)?;
                let var = Var::from_tensor(&values)?;
                vars.borrow_mut().insert(name.to_owned(), var.clone());
                return Ok(var.as_tensor().clone());
            }
        };
        let mut mismatch = self.mismatch.borrow_mut();
        match tensors.get(name) {
            Some(found) if found.dims() == shape => {
                let values = found.to_dtype(DType::F32)?.contiguous()?;
                // A sum is not finite when one of its terms is not, or, of weights, by absurd size.
                if !values.sum_all()?.to_scalar::<f32>()?.is_finite() {
                    mismatch.not_finite.push(name.to_owned());
                }
                return Ok(values);
            }
            Some(found) => mismatch.misshapen.push((name.to_owned(), shape.to_vec(), found.dims().to_vec())),
            None => mismatch.missing.push((name.to_owned(), shape.to_vec())),
        }
        Ok(Tensor::zeros(1, DType::F32, &Device::Cpu)?.broadcast_as(shape)?)
    }

    /// A constant that some checkpoints carry along: it may be absent, but not different.
    pub(crate) fn constant(&self, name: &str, shape: &[usize], values: &[f32]) -> Result<()> {
        self.optional.borrow_mut().insert(name.to_owned());
        let Source::Given(tensors) = &self.source else { return Ok(()) };
        let Some(found) = tensors.get(name) else { return Ok(()) };
        let same = found.dims() == shape && {
            let found = found.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            found.iter().zip(values).all(|(a, b)| (a - b).abs() <= 1e-3 * b.abs())
        };
        if !same {
            let entry = (name.to_owned(), shape.to_vec(), found.dims().to_vec());
            self.mismatch.borrow_mut().misshapen.push(entry);
        }
        Ok(())
    }

    /// `name.weight` and `name.bias` of a convolution.
    pub(crate) fn conv(
        &self,
        name: &str,
        (c_in, c_out): (usize, usize),
        kernel: usize,
        config: ConvConfig,
        scheme: Scheme,
    ) -> Result<Conv2d> {
        let (weight, bias) = self.weights(name, &[c_out, c_in, kernel, kernel], scheme)?;
        Conv2d::new(weight, Some(bias), config)
    }

    /// A convolution of kernel 1 that was published as one over sequences, with weights out x in x 1.
    pub(crate) fn conv_1d(&self, name: &str, c_in: usize, c_out: usize, scheme: Scheme) -> Result<Conv2d> {
        let (weight, bias) = self.weights(name, &[c_out, c_in, 1], scheme)?;
        Conv2d::new(weight, Some(bias), ConvConfig::same(1))
    }

    /// `name.weight` and `name.bias` of a linear map.
    pub(crate) fn linear(&self, name: &str, c_in: usize, c_out: usize, scheme: Scheme) -> Result<Linear> {
        let (weight, bias) = self.weights(name, &[c_out, c_in], scheme)?;
        Linear::new(weight, Some(bias))
    }

    /// `name.weight` of a linear map without bias.
    pub(crate) fn matrix(&self, name: &str, c_in: usize, c_out: usize, init: Init) -> Result<Linear> {
        Linear::new(self.get(&format!("{name}.weight"), &[c_out, c_in], init)?, None)
    }

    /// The bound of [`Parameters::matrix`]'s fresh weights under a scheme.
    pub(crate) fn bound(scheme: Scheme, c_in: usize, c_out: usize) -> Init {
        scheme.weight(c_in, c_out)
    }

    fn weights(&self, name: &str, shape: &[usize], scheme: Scheme) -> Result<(Tensor, Tensor)> {
        let taps: usize = shape[2..].iter().product();
        let (fan_in, fan_out) = (shape[1] * taps, shape[0] * taps);
        let weight = self.get(&format!("{name}.weight"), shape, scheme.weight(fan_in, fan_out))?;
        let bias = self.get(&format!("{name}.bias"), &shape[..1], scheme.bias(fan_in))?;
        Ok((weight, bias))
    }

    /// `name.weight` and `name.bias` of a group norm.
    pub(crate) fn norm(&self, name: &str, channels: usize, groups: usize, epsilon: f64) -> Result<GroupNorm> {
        let weight = self.get(&format!("{name}.weight"), &[channels], Init::Constant(1.0))?;
        let bias = self.get(&format!("{name}.bias"), &[channels], Init::Constant(0.0))?;
        GroupNorm::new(weight, bias, groups, epsilon)
    }
}

/// The values of the `index`-th parameter.
fn draw(seed: u64, index: u64, shape: &[usize], init: Init) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(index);
    let mut values = vec![0f32; shape.iter().product()];
    match init {
        Init::Constant(value) => values.fill(value),
        Init::Uniform(bound) => {
            values.iter_mut().for_each(|v| *v = (bound * (2.0 * open01(&mut rng) - 1.0)) as f32);
        }
        Init::Normal(deviation) => {
            fill_normal(&mut rng, &mut values);
            values.iter_mut().for_each(|v| *v *= deviation as f32);
        }
    }
    values
}
