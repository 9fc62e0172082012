//! Whole networks to time: the FFHQ-256 configuration, and a U-Net of the size that a CPU can train.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor, Var};
use daps_nn::bench::{Case, Export, Workload, counted, tensor};
use daps_nn::{FeatureMap, Result, backward};
use rayon::prelude::*;

use super::{AdmConfig, Architecture, Network, NetworkConfig, Preconditioning, named};

/// About 104 GFLOP for eight 64 x 64 images: channels 64, 128, 128, 256, two blocks a level, attention at 16.
fn unet64() -> NetworkConfig {
    let config = AdmConfig {
        image_size: 64,
        model_channels: 64,
        channel_mult: vec![1, 2, 2, 4],
        num_res_blocks: 2,
        attention_resolutions: vec![16],
        num_head_channels: Some(32),
        learn_sigma: false,
        use_scale_shift_norm: false,
        resblock_updown: false,
        ..AdmConfig::ffhq256()
    };
    NetworkConfig {
        network: Architecture::Adm(config),
        preconditioning: Preconditioning::vp(),
        patch: 1,
        space: None,
    }
}

/// Weights that keep the signal's size and leave no layer at zero, so that another program's output can be compared.
fn weights(config: &NetworkConfig) -> crate::Result<BTreeMap<String, Tensor>> {
    let shapes: Vec<(String, Vec<usize>)> = config.parameters()?.into_iter().collect();
    let draw = |(seed, (name, shape)): (usize, &(String, Vec<usize>))| -> crate::Result<(String, Tensor)> {
        let (vector, fan_in) = (shape.len() == 1, shape[1..].iter().product::<usize>() as f32);
        let noise = tensor(shape, if vector { 0.1 } else { fan_in.powf(-0.5) }, seed as u64)?;
        let scale_of_norm = vector && name.ends_with(".weight");
        let values = if scale_of_norm { noise.affine(1.0, 1.0) } else { Ok(noise) };
        Ok((name.clone(), values.map_err(daps_nn::Error::from)?))
    };
    shapes.par_iter().enumerate().map(draw).collect()
}

/// A network over variables, the variables, and its input as one.
type Trained = (Box<dyn Network>, BTreeMap<String, Tensor>, Tensor);

/// A network on one batch: F(x, c_noise) from and to N x C x H x W.
struct Whole {
    config: NetworkConfig,
    x: Tensor,
    noise: Vec<f32>,
    weights: BTreeMap<String, Tensor>,
    fixed: Option<Box<dyn Network>>,
    trained: Option<Trained>,
    flops: f64,
}

impl Whole {
    fn network(&self, tensors: BTreeMap<String, Tensor>) -> Result<Box<dyn Network>> {
        self.config.network(tensors).map_err(|e| candle_core::Error::Msg(e.to_string()).into())
    }

    fn apply(network: &dyn Network, x: &Tensor, noise: &[f32]) -> Result<Tensor> {
        network.forward(&FeatureMap::from_nchw(x)?, noise, None)?.to_nchw()
    }

    fn run(&mut self) -> Result<Tensor> {
        if self.fixed.is_none() {
            self.fixed = Some(self.network(self.weights.clone())?);
        }
        let Some(network) = &self.fixed else { unreachable!("built above") };
        let (y, flops) = counted(|| Self::apply(&**network, &self.x, &self.noise))?;
        self.flops = flops;
        Ok(y)
    }

    fn run_back(&mut self) -> Result<(Tensor, BTreeMap<String, Tensor>)> {
        if self.trained.is_none() {
            let variable = |(name, t): (&String, &Tensor)| -> Result<(String, Tensor)> {
                Ok((name.clone(), Var::from_tensor(t)?.as_tensor().clone()))
            };
            let variables = self.weights.iter().map(variable).collect::<Result<BTreeMap<_, _>>>()?;
            let network = self.network(variables.clone())?;
            let shape = Self::apply(&*network, &self.x, &self.noise)?.dims().to_vec();
            self.trained = Some((network, variables, tensor(&shape, 1.0, 9)?));
        }
        let Some((network, variables, gradient)) = &self.trained else { unreachable!("built above") };
        let y = Self::apply(&**network, &self.x, &self.noise)?;
        let store = backward(&(y * gradient)?.sum_all()?)?;
        let gradients = variables.iter().filter_map(|(name, v)| Some((name.clone(), store.get(v)?.clone())));
        Ok((gradient.clone(), gradients.collect()))
    }
}

impl Workload for Whole {
    fn forward(&mut self) -> Result<()> {
        self.run().map(drop)
    }
    fn forward_backward(&mut self) -> Result<()> {
        self.run_back().map(drop)
    }
    fn flops(&self) -> f64 {
        self.flops
    }
    fn export(&mut self) -> Result<Export> {
        let noise = Tensor::from_vec(self.noise.clone(), self.noise.len(), &Device::Cpu)?;
        let mut io = BTreeMap::from([("x".to_owned(), self.x.clone()), ("noise".to_owned(), noise)]);
        io.insert("y".to_owned(), self.run()?);
        let (gradient, gradients) = self.run_back()?;
        io.insert("dy".to_owned(), gradient);
        io.extend(gradients.into_iter().map(|(name, g)| (format!("d.{name}"), g)));
        let config = self.config.to_toml().map_err(|e| candle_core::Error::Msg(e.to_string()))?;
        Ok(Export { weights: self.weights.clone(), io, config: Some(config) })
    }
}

fn case(name: &str, batch: usize, backward: bool, config: fn() -> crate::Result<NetworkConfig>) -> Case {
    let error = |e: crate::Error| daps_nn::Error::from(candle_core::Error::Msg(e.to_string()));
    let shape = config().map_or_else(|_| vec![], |c| [&[batch], &c.shape()[..]].concat());
    let sizes = shape.clone();
    let build = move || -> Result<Box<dyn Workload>> {
        let config = config().map_err(error)?;
        let weights = weights(&config).map_err(error)?;
        let (x, noise) = (tensor(&sizes, 1.0, 0)?, (0..batch).map(|i| 100.0 + i as f32).collect());
        Ok(Box::new(Whole { config, x, noise, weights, fixed: None, trained: None, flops: 0.0 }))
    };
    Case { name: name.to_owned(), kind: "network", shape, backward, build: Box::new(build) }
}

/// The networks.
#[must_use]
pub fn cases() -> Vec<Case> {
    vec![case("ffhq256", 1, false, || named("ffhq256")), case("unet64", 8, true, || Ok(unet64()))]
}
