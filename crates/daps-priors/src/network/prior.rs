//! A network with its preconditioning, as the denoiser D(x, σ) that every method speaks to.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use daps_core::tensors::{check_rows, combine};
use daps_core::{
    Cotangent, Denoiser, DifferentiableDenoiser, LocalDenoiser, LocalFactor, Sigma, Space, SpreadTable,
};
use daps_nn::FeatureMap;

use super::config::{MOST_SIDE, whole};
use super::padding::Padding;
use super::patch::{shuffle, unshuffle};
use super::{AnySize, Coefficients, Network, NetworkConfig, Preconditioning, Prepared, Tiled, Tiling};
use crate::checkpoint::Opened;
use crate::{LocalHead, Memory, Result};

/// A denoising network: f32, any batch, one noise level for all rows or one for each.
#[derive(Clone)]
pub struct NetworkPrior {
    network: Arc<dyn Network>,
    preconditioning: Prepared,
    shape: Vec<usize>,
    patch: usize,
    factor: usize,
    classes: usize,
    needs_class: bool,
    class: Option<usize>,
    spread: Option<SpreadTable>,
    local: Option<Arc<LocalHead>>,
    config: Arc<NetworkConfig>,
}

impl NetworkPrior {
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

    /// From a checkpoint; without a configuration, the one in or beside the file.
    pub fn load(path: &Path, config: Option<&NetworkConfig>) -> Result<Self> {
        let opened = Opened::file(path)?;
        let found = match config {
            Some(config) => config.clone(),
            None => opened.needed_config()?,
        };
        let spread = opened.spread().map_err(|e| e.within(path))?;
        let local = opened.local().map_err(|e| e.within(path))?;
        let prior = Self::new(&found, opened.read()?.tensors).map_err(|e| e.within(path))?;
        Self { spread, ..prior }.with_local(local).map_err(|e| e.within(path))
    }

    /// The same network with a factor that says where its error is larger than usual.
    pub fn with_local(mut self, local: Option<LocalHead>) -> Result<Self> {
        if let Some(head) = &local {
            head.check(&self.shape)?;
        }
        self.local = local.map(Arc::new);
        Ok(self)
    }

    /// The same network with a measured r(σ), the RMS error of its Tweedie mean.
    pub fn with_spread(mut self, spread: SpreadTable) -> Result<Self> {
        spread.check()?;
        self.spread = Some(spread);
        Ok(self)
    }

    fn around(config: &NetworkConfig, network: Box<dyn Network>) -> Result<Self> {
        let other = match config.preconditioning {
            Preconditioning::Tokens { .. } => Some("a network over tokens"),
            Preconditioning::Classes => Some("a network for classes"),
            _ => None,
        };
        if let Some(whom) = other {
            return Err(
                daps_core::Error::missing("a prior over continuous samples", "a denoiser", whom).into()
            );
        }
        Ok(Self {
            network: network.into(),
            preconditioning: config.preconditioning.prepared(),
            shape: config.shape().to_vec(),
            patch: config.patch,
            factor: config.factor(),
            classes: config.classes(),
            needs_class: config.needs_class(),
            class: None,
            spread: None,
            local: None,
            config: Arc::new(config.clone()),
        })
    }

    /// The same network for images of another size, which are padded by reflection where it does not divide them.
    pub fn with_size(self, height: usize, width: usize) -> Result<Self> {
        Ok(self.at_size(height, width)?)
    }

    /// The same network on tiles where a call would take more memory than it may.
    pub fn within(self, memory: Memory) -> Result<Tiled<Self>> {
        let of = self.config.footprint();
        let (mut align, mut reach) = (self.factor, self.config.reach());
        let mut floats = [of.plain, of.taped];
        if let Some(head) = &self.local {
            align = lcm(align, LocalHead::FACTOR);
            reach = reach.map(|reach| reach + LocalHead::REACH);
            floats = floats.map(|floats| floats + head.floats());
        }
        let bytes = floats.map(|floats| floats * size_of::<f32>() as f64);
        Ok(Tiled::new(self, Tiling { align, reach, bytes, memory })?)
    }

    /// Whether an answer at a place depends on its surroundings alone, so that tiles do not change it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.config.reach().is_some()
    }

    /// The same network told a class.
    pub fn with_class(mut self, class: usize) -> Result<Self> {
        if class >= self.classes {
            let expected = match self.classes {
                0 => "none: the network knows no classes".to_owned(),
                n => format!("a number below {n}"),
            };
            return Err(daps_core::Error::invalid("class", expected, class).into());
        }
        self.class = Some(class);
        Ok(self)
    }

    /// What network it is.
    #[must_use]
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// The raw network.
    #[must_use]
    pub fn network(&self) -> &dyn Network {
        &*self.network
    }

    /// D(x, σ) with its history: differentiable in x and in the network's variables, for training, on images that the network divides.
    pub fn forward(&self, x: &Tensor, sigma: &Sigma) -> daps_core::Result<Tensor> {
        let c = self.coefficients(x, sigma)?;
        let column = |f: fn(&Coefficients) -> f64| -> daps_core::Result<Tensor> {
            let values: Vec<f32> = c.iter().map(|c| f(c) as f32).collect();
            Ok(Tensor::from_vec(values, (c.len(), 1, 1, 1), x.device())?)
        };
        let input = x.broadcast_mul(&column(|c| c.input)?)?;
        let raw = self.image(&self.raw(&input, &c)?)?;
        let skip = x.broadcast_mul(&column(|c| c.skip)?)?;
        Ok((skip + raw.broadcast_mul(&column(|c| c.out)?)?)?)
    }

    pub(crate) fn coefficients(&self, x: &Tensor, sigma: &Sigma) -> daps_core::Result<Vec<Coefficients>> {
        let rows = check_rows("network input", x, &self.shape)?;
        if let Sigma::Rows(sigmas) = sigma
            && sigmas.len() != rows
        {
            return Err(daps_core::Error::invalid(
                "sigma",
                format!("one for each of {rows} rows"),
                sigmas.len(),
            ));
        }
        if self.needs_class && self.class.is_none() {
            let expected =
                format!("a number below {}, for the network was trained with classes", self.classes);
            return Err(daps_core::Error::invalid("class", expected, "none"));
        }
        let at = |sigma: f64| match sigma.is_finite() && sigma > 0.0 {
            true => Ok(self.preconditioning.at(sigma)),
            false => Err(daps_core::Error::invalid("sigma", "a positive finite number", sigma)),
        };
        match sigma {
            Sigma::Same(sigma) => Ok(vec![at(*sigma)?; rows]),
            Sigma::Rows(sigmas) => sigmas.iter().map(|s| at(*s)).collect(),
        }
    }

    /// F(input, c_noise), as it leaves the network.
    pub(crate) fn raw(&self, input: &Tensor, c: &[Coefficients]) -> daps_core::Result<FeatureMap> {
        let noise: Vec<f32> = c.iter().map(|c| c.noise as f32).collect();
        let classes = self.class.map(|class| vec![class; c.len()]);
        let x = FeatureMap::from_nchw(&unshuffle(input, self.patch)?).map_err(tensor_error)?;
        self.network.forward(&x, &noise, classes.as_deref()).map_err(tensor_error)
    }

    /// F as an image, with its history; the learned-variance half, where there is one, has no part in it.
    pub(crate) fn image(&self, raw: &FeatureMap) -> daps_core::Result<Tensor> {
        let channels = self.shape[0] * self.patch * self.patch;
        let kept = raw.to_nchw().map_err(tensor_error)?.narrow(1, 0, channels)?.contiguous()?;
        Ok(shuffle(&kept, self.patch)?)
    }

    /// Pulls the derivative of some number in [`Self::image`] back to everything that led to `raw`.
    pub(crate) fn pull_back(&self, raw: &FeatureMap, gradient: &Tensor) -> daps_core::Result<GradStore> {
        let mut gradient = unshuffle(gradient, self.patch)?;
        let (rows, channels, height, width) = gradient.dims4()?;
        let dropped = raw.channels() - channels;
        if dropped > 0 {
            let zeros = Tensor::zeros((rows, dropped, height, width), DType::F32, gradient.device())?;
            gradient = Tensor::cat(&[&gradient, &zeros], 1)?;
        }
        let gradient = FeatureMap::from_nchw(&gradient).map_err(tensor_error)?;
        raw.backward(&gradient).map_err(tensor_error)
    }

    /// c_skip x + c_out F without the history.
    fn finish(
        &self,
        x: &Tensor,
        raw: &FeatureMap,
        c: &[Coefficients],
        padding: &Padding,
    ) -> daps_core::Result<Tensor> {
        let raw = padding.crop(&self.image(&raw.detach())?)?;
        combine(&[(&factors(c, |c| c.skip), x), (&factors(c, |c| c.out), &raw)])
    }
}

pub(crate) fn factors(c: &[Coefficients], f: fn(&Coefficients) -> f64) -> Vec<f64> {
    c.iter().map(f).collect()
}

/// The least common multiple.
fn lcm(a: usize, b: usize) -> usize {
    (1..=b).map(|k| k * a).find(|m| m.is_multiple_of(b)).unwrap_or(a * b)
}

pub(crate) fn tensor_error(error: daps_nn::Error) -> daps_core::Error {
    daps_core::Error::Tensor(error.into())
}

impl Denoiser for NetworkPrior {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn space(&self) -> Space {
        self.config.space(&self.shape)
    }

    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> daps_core::Result<Tensor> {
        let x = x.to_dtype(DType::F32)?.detach();
        let c = self.coefficients(&x, sigma)?;
        let padding = Padding::of(&x, self.factor)?;
        let raw = self.raw(&padding.pad(&combine(&[(&factors(&c, |c| c.input), &x)])?)?, &c)?;
        self.finish(&x, &raw, &c, &padding)
    }

    fn as_spread(&self) -> Option<&SpreadTable> {
        self.spread.as_ref()
    }

    fn as_local(&self) -> Option<&dyn LocalDenoiser> {
        self.local.as_ref().map(|_| self as &dyn LocalDenoiser)
    }

    fn as_differentiable(&self) -> Option<&dyn DifferentiableDenoiser> {
        Some(self)
    }
}

impl AnySize for NetworkPrior {
    fn at_size(&self, height: usize, width: usize) -> daps_core::Result<Self> {
        for side in [height, width] {
            whole("image size", side, 1, MOST_SIDE)?;
        }
        Ok(Self { shape: vec![self.shape[0], height, width], ..self.clone() })
    }
}

impl LocalDenoiser for NetworkPrior {
    fn denoise_local(&self, x: &Tensor, sigma: f64) -> daps_core::Result<(Tensor, LocalFactor)> {
        let Some(head) = &self.local else {
            return Err(daps_core::Error::missing("the estimate", "a local factor", "this prior"));
        };
        let denoised = self.denoise(x, &Sigma::Same(sigma))?;
        let factor = head.factor(x, &denoised, sigma)?;
        Ok((denoised, factor))
    }
}

impl DifferentiableDenoiser for NetworkPrior {
    fn denoise_vjp(
        &self,
        x: &Tensor,
        sigma: &Sigma,
        cotangent: &Cotangent,
    ) -> daps_core::Result<(Tensor, Tensor)> {
        let x = x.to_dtype(DType::F32)?.detach();
        let c = self.coefficients(&x, sigma)?;
        let padding = Padding::of(&x, self.factor)?;
        let input = Var::from_tensor(&padding.pad(&combine(&[(&factors(&c, |c| c.input), &x)])?)?)?;
        let raw = self.raw(input.as_tensor(), &c)?;
        let denoised = self.finish(&x, &raw, &c, &padding)?;
        let v = cotangent(&denoised)?.to_dtype(DType::F32)?;
        if check_rows("cotangent", &v, &self.shape)? != x.dims()[0] {
            return Err(daps_core::Error::shape("cotangent", x.dims(), v.dims()));
        }
        let gradient = combine(&[(&factors(&c, |c| c.out), &v)])?;
        let store = self.pull_back(&raw, &padding.fill(&gradient)?)?;
        let skip = factors(&c, |c| c.skip);
        let vjp = match store.get(input.as_tensor()) {
            Some(g) => combine(&[(&skip, &v), (&factors(&c, |c| c.input), &padding.fold(g)?)])?,
            None => combine(&[(&skip, &v)])?,
        };
        Ok((denoised, vjp))
    }
}
