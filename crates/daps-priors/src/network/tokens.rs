//! A network as a prior over tokens: it gives p(x0_i | x_t), the law of each clean token given all corrupted ones.
//!
//! It sees tokens as one channel per state (0 or 1) and gives one logit per symbol. What a token's own corrupted value says is
//! known, ln p(x_t,i | x0_i; σ), and added to the logits, so that the network learns what the *other* tokens say: at small σ
//! tokens stay what they are, and unmasked ones are certain, before any training.
//!
//! Why p(x0 | x_t) and not the concrete score: it is a law at every level (the score's range grows without bound as σ falls), its
//! cross-entropy has no weights to choose and the true law as its minimiser, and the score follows from it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use daps_core::tensors::{check_rows, pick, with_slice};
use daps_core::{Categorical, Corruption};
use daps_nn::FeatureMap;

use super::patch::{shuffle, unshuffle};
use super::prior::tensor_error;
use super::{Network, NetworkConfig, Prepared};
use crate::Result;
use crate::checkpoint::Opened;

/// A network over tokens: f32, any batch.
#[derive(Clone)]
pub struct TokenPrior {
    network: Arc<dyn Network>,
    preconditioning: Prepared,
    corruption: Corruption,
    shape: Vec<usize>,
    patch: usize,
}

impl TokenPrior {
    /// From given parameters, which must fit the configuration exactly.
    pub fn new(config: &NetworkConfig, tensors: BTreeMap<String, Tensor>) -> Result<Self> {
        Self::around(config, config.network(tensors)?)
    }

    /// From fresh parameters, with the variables to train.
    pub fn fresh(
        config: &NetworkConfig,
        seed: u64,
        device: &Device,
    ) -> Result<(Self, BTreeMap<String, Var>)> {
        let (network, variables) = config.fresh(seed, device)?;
        Ok((Self::around(config, network)?, variables))
    }

    /// From a checkpoint with its configuration in or beside it.
    pub fn load(path: &Path) -> Result<Self> {
        let opened = Opened::file(path)?;
        let config = opened.needed_config()?;
        Self::new(&config, opened.read()?.tensors).map_err(|e| e.within(path))
    }

    fn around(config: &NetworkConfig, network: Box<dyn Network>) -> Result<Self> {
        let Some(corruption) = config.preconditioning.corruption()? else {
            return Err(
                daps_core::Error::missing("a prior over tokens", "an alphabet", "this network").into()
            );
        };
        Ok(Self {
            network: network.into(),
            preconditioning: config.preconditioning.prepared(),
            corruption,
            shape: config.shape().to_vec(),
            patch: config.patch,
        })
    }

    /// Tokens as channels: 1 where a token has the channel's state.
    fn channels(&self, x_t: &Tensor) -> daps_core::Result<Tensor> {
        let (states, plane) = (self.corruption.states(), self.shape[1] * self.shape[2]);
        let rows = x_t.dims()[0];
        let values = with_slice(x_t, |x: &[u8]| -> Vec<f32> {
            let of = |plane: &[u8]| -> Vec<f32> {
                let channel = |s: usize| plane.iter().map(move |t| f32::from(u8::from(usize::from(*t) == s)));
                (0..states).flat_map(channel).collect()
            };
            x.chunks(plane).flat_map(of).collect()
        })?;
        let dims = (rows, self.shape[0] * states, self.shape[1], self.shape[2]);
        Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
    }

    /// The network's output for tokens at one level for all rows, or one for each.
    fn raw(&self, x_t: &Tensor, sigma: &[f64]) -> daps_core::Result<FeatureMap> {
        let rows = check_rows("network input", x_t, &self.shape)?;
        self.corruption.check("network input", x_t, true)?;
        if let Some(bad) = sigma.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
            return Err(daps_core::Error::invalid("sigma", "a positive finite number", bad));
        }
        let noise = |row: usize| self.preconditioning.at(pick(sigma, row)).noise as f32;
        let noise: Vec<f32> = (0..rows).map(noise).collect();
        let input =
            FeatureMap::from_nchw(&unshuffle(&self.channels(x_t)?, self.patch)?).map_err(tensor_error)?;
        self.network.forward(&input, &noise, None).map_err(tensor_error)
    }

    /// p(x0_i = a | x_t) from the network's output: row by row, site by site, symbol by symbol.
    fn laws(&self, raw: &FeatureMap, x_t: &Tensor, sigma: &[f64]) -> daps_core::Result<Vec<f64>> {
        let (symbols, states) = (self.corruption.symbols(), self.corruption.states());
        let seen = raw.detach().to_nchw().map_err(tensor_error)?;
        let image = shuffle(&seen.narrow(1, 0, self.seen_channels())?.contiguous()?, self.patch)?;
        let logits: Vec<f32> = image.flatten_all()?.to_vec1()?;
        let tokens: Vec<u8> = x_t.flatten_all()?.to_vec1()?;
        let (plane, sites) = (self.shape[1] * self.shape[2], self.shape.iter().product::<usize>());
        let mut out = vec![0.0; tokens.len() * symbols];
        for (k, (law, token)) in out.chunks_mut(symbols).zip(&tokens).enumerate() {
            let sigma = pick(sigma, k / sites);
            for (a, p) in law.iter_mut().enumerate() {
                let logit = logits[(k / plane * states + a) * plane + k % plane];
                *p = f64::from(logit) + self.corruption.transition(a, usize::from(*token), sigma).ln();
            }
            let norm = daps_core::mixture::log_sum_exp(law);
            if !norm.is_finite() {
                return Err(daps_core::Error::invalid("output of the network", "finite numbers", norm));
            }
            law.iter_mut().for_each(|p| *p = (*p - norm).exp());
        }
        Ok(out)
    }

    /// Channels that the network sees and gives.
    fn seen_channels(&self) -> usize {
        self.shape[0] * self.corruption.states() * self.patch * self.patch
    }

    /// The mean over tokens of -ln p(x0_i | x_t), and its gradient in every variable of the network.
    pub fn cross_entropy(
        &self,
        x0: &Tensor,
        x_t: &Tensor,
        sigma: &[f64],
    ) -> daps_core::Result<(f64, GradStore)> {
        let (symbols, states) = (self.corruption.symbols(), self.corruption.states());
        let raw = self.raw(x_t, sigma)?;
        let mut laws = self.laws(&raw, x_t, sigma)?;
        let clean: Vec<u8> = x0.flatten_all()?.to_vec1()?;
        let count = clean.len() as f64;
        let mut loss = 0.0;
        // The derivative in a logit is p - [it is the true symbol].
        for (law, token) in laws.chunks_mut(symbols).zip(&clean) {
            loss -= law[usize::from(*token)].ln() / count;
            law[usize::from(*token)] -= 1.0;
        }
        let plane = self.shape[1] * self.shape[2];
        let mut gradient = vec![0f32; clean.len() * states];
        for (k, law) in laws.chunks(symbols).enumerate() {
            for (a, d) in law.iter().enumerate() {
                gradient[(k / plane * states + a) * plane + k % plane] = (d / count) as f32;
            }
        }
        let dims = (x0.dims()[0], self.shape[0] * states, self.shape[1], self.shape[2]);
        let gradient = unshuffle(&Tensor::from_vec(gradient, dims, &Device::Cpu)?, self.patch)?;
        let gradient = FeatureMap::from_nchw(&gradient).map_err(tensor_error)?;
        Ok((loss, raw.backward(&gradient).map_err(tensor_error)?))
    }
}

/// Numbers in [-1, 1] as tokens: S equal parts from dark to light; two are a threshold at 0.
pub fn quantise(x: &Tensor, symbols: usize) -> daps_core::Result<Tensor> {
    let part = |v: f32| (((f64::from(v) + 1.0) / 2.0 * symbols as f64) as usize).min(symbols - 1) as u8;
    let tokens =
        with_slice(&x.to_dtype(DType::F32)?, |x: &[f32]| x.iter().map(|v| part(*v)).collect::<Vec<u8>>())?;
    Ok(Tensor::from_vec(tokens, x.dims(), &Device::Cpu)?)
}

impl Categorical for TokenPrior {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn corruption(&self) -> &Corruption {
        &self.corruption
    }

    fn marginals(&self, x_t: &Tensor, sigma: f64) -> daps_core::Result<Vec<f64>> {
        self.laws(&self.raw(x_t, &[sigma])?, x_t, &[sigma])
    }
}
