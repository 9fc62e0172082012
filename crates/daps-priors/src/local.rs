//! The local factor of a denoiser's error: a small network sees x_t, D and σ, and says where x0 - D is larger than usual.
//!
//! Its answer is ln a for every pixel and colour axis, where a is the deviation of what is fine in x0 - D in units of what is usual at
//! this σ. It knows the denoiser only by D, so any denoiser of images can have one. It works at half the image's resolution and below,
//! normalises nothing over space and attends to nothing: the answer at a place depends on its surroundings alone, at any size.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_core::{DType, Device, Tensor, Var};
use daps_core::tensors::{check_rows, combine, from_f64, to_f64};
use daps_core::{Cosines, Error, LocalFactor, Result, Sigma, SpreadTable};
use daps_nn::{Conv2d, ConvConfig, FeatureMap, Linear};
use half::f16;
use serde::{Deserialize, Serialize, Serializer};

use crate::network::{Padding, Parameters, Scheme, shuffle, sinusoids, tensor_error, unshuffle};

/// Side of the patches that the network sees as one pixel.
const PATCH: usize = 2;
/// Resolutions, each half the one before.
const DEPTH: usize = 3;
/// By what the sides of an image must divide.
const FACTOR: usize = PATCH << (DEPTH - 1);
/// Waves of ln σ that the network is told, sines and cosines, and the step in frequency from one to the next.
const WAVES: usize = 8;
const WAVE_STEP: f32 = 0.35;
/// Width of what it makes of them.
const TOLD: usize = 64;
/// The largest |ln a|.
const MOST: f64 = 2.0;

/// What a network is, as a prior's file keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    /// The frequency above which structure is fine, in half periods a pixel.
    from: f64,
    /// Channels of an image.
    channels: usize,
    /// Channels of the network.
    width: usize,
    /// The levels that it was trained between; others are taken for the nearest.
    sigma: (f64, f64),
    /// The standard deviation of images, by which x_t is scaled.
    data_std: f64,
    /// All weights in the order of their names, f16 in base64.
    weights: String,
}

/// The network.
#[derive(Deserialize)]
#[serde(try_from = "Saved")]
pub struct LocalHead {
    saved: Saved,
    network: HeadNetwork,
}

impl Serialize for LocalHead {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.saved.serialize(serializer)
    }
}

impl TryFrom<Saved> for LocalHead {
    type Error = crate::Error;

    fn try_from(saved: Saved) -> crate::Result<Self> {
        let damaged = |what: String| crate::Error::config("local factor", what);
        let (low, high) = saved.sigma;
        let sizes = (1..=64).contains(&saved.channels) && (1..=1024).contains(&saved.width);
        let levels = low > 0.0 && low <= high && high.is_finite();
        if !(sizes && levels && saved.from >= 0.0 && saved.data_std > 0.0 && saved.data_std.is_finite()) {
            return Err(damaged("expected sizes, a frequency and a range of levels".into()));
        }
        let bytes = STANDARD.decode(&saved.weights).map_err(|e| damaged(e.to_string()))?;
        let asked = Parameters::given(BTreeMap::new());
        HeadNetwork::new(saved.channels, saved.width, &asked).map_err(tensor_error)?;
        let expected: usize = asked.asked().values().map(|shape| shape.iter().product::<usize>()).sum();
        if bytes.len() != 2 * expected {
            return Err(damaged(format!("expected {expected} weights, got {} bytes", bytes.len())));
        }
        let mut rest = &bytes[..];
        let mut tensors = BTreeMap::new();
        for (name, shape) in asked.asked() {
            let (own, others) = rest.split_at(2 * shape.iter().product::<usize>());
            rest = others;
            let tensor = Tensor::from_raw_buffer(own, DType::F16, &shape, &Device::Cpu);
            tensors.insert(name, tensor.map_err(Error::from)?);
        }
        let given = Parameters::given(tensors);
        let network = HeadNetwork::new(saved.channels, saved.width, &given).map_err(tensor_error)?;
        match given.finish() {
            None => Ok(Self { saved, network }),
            Some(mismatch) => Err(crate::Error::Keys(mismatch)),
        }
    }
}

/// Layers of one resolution: h + conv(silu(conv(silu(h)) + what σ says)).
struct Block {
    first: Conv2d,
    told: Linear,
    second: Conv2d,
}

/// The layers.
struct HeadNetwork {
    told: [Linear; 2],
    input: Conv2d,
    blocks: Vec<Block>,
    output: Conv2d,
}

impl HeadNetwork {
    fn new(channels: usize, width: usize, p: &Parameters) -> daps_nn::Result<Self> {
        let (same, torch, pixels) = (ConvConfig::same(3), Scheme::Torch, channels * PATCH * PATCH);
        let block = |k: usize| -> daps_nn::Result<Block> {
            Ok(Block {
                first: p.conv(&format!("block_{k}.first"), (width, width), 3, same, torch)?,
                told: p.linear(&format!("block_{k}.told"), TOLD, width, torch)?,
                second: p.conv(&format!("block_{k}.second"), (width, width), 3, same, torch)?,
            })
        };
        Ok(Self {
            told: [p.linear("told.0", 2 * WAVES, TOLD, torch)?, p.linear("told.1", TOLD, TOLD, torch)?],
            input: p.conv("input", (2 * pixels, width), 3, same, torch)?,
            blocks: (0..DEPTH).map(block).collect::<daps_nn::Result<_>>()?,
            // At first the factor is one everywhere.
            output: p.conv("output", (width, pixels), 3, same, Scheme::Zero)?,
        })
    }

    fn forward(&self, x: &FeatureMap, log_sigma: &[f32]) -> daps_nn::Result<FeatureMap> {
        let frequencies: [f32; WAVES] = std::array::from_fn(|k| WAVE_STEP * (k + 1) as f32);
        let waves = sinusoids(log_sigma, &frequencies, false, &Device::Cpu)?;
        let told = self.told[1].forward(&self.told[0].forward(&waves)?.silu()?)?.silu()?;
        // Down, then up again, adding what each resolution found.
        let mut found = vec![];
        let mut h = self.input.forward(x)?;
        for (k, block) in self.blocks.iter().enumerate() {
            if k > 0 {
                h = h.average_pool()?;
            }
            let shift = block.told.forward(&told)?;
            let inner = block.first.on(&h.silu()?).shift(&shift).run()?.silu()?;
            h = block.second.on(&inner).residual(&h).run()?;
            found.push(h.clone());
        }
        let mut sum = h;
        for finer in found.iter().rev().skip(1) {
            sum = sum.upsample_nearest()?.add(finer)?;
        }
        self.output.forward(&sum.silu()?)
    }
}

impl LocalHead {
    /// By what its own grid divides an image.
    pub(crate) const FACTOR: usize = FACTOR;
    /// How many pixels away it can see: two convolutions at each resolution, one before and one after, and the rest of a coarse pixel.
    pub(crate) const REACH: usize = PATCH * (1 + 2 * ((1 << DEPTH) - 1) + 1) + FACTOR;

    /// Numbers that a call holds at once for each pixel of an image: what every resolution found and what it works on.
    pub(crate) fn floats(&self) -> f64 {
        let (pixels, width) = (self.saved.channels as f64, self.saved.width as f64);
        8.0 * pixels + 12.0 * width / (PATCH * PATCH) as f64
    }

    /// A fresh network with the variables to train; the factor is one everywhere.
    pub(crate) fn fresh(
        channels: usize,
        width: usize,
        (from, sigma, data_std): (f64, (f64, f64), f64),
        seed: u64,
    ) -> Result<(Self, BTreeMap<String, Var>)> {
        let parameters = Parameters::fresh(seed, &Device::Cpu);
        let network = HeadNetwork::new(channels, width, &parameters).map_err(tensor_error)?;
        let saved = Saved { from, channels, width, sigma, data_std, weights: String::new() };
        Ok((Self { saved, network }, parameters.variables()))
    }

    /// The same network with these weights, rounded to what a file keeps.
    pub(crate) fn with_weights(&self, tensors: &BTreeMap<String, Tensor>) -> crate::Result<Self> {
        let mut bytes = vec![];
        for tensor in tensors.values() {
            let rounded = tensor.to_dtype(DType::F16).and_then(|t| t.flatten_all()?.to_vec1::<f16>());
            let rounded = rounded.map_err(Error::from)?;
            bytes.extend(rounded.into_iter().flat_map(f16::to_le_bytes));
        }
        Saved { weights: STANDARD.encode(bytes), ..self.saved.clone() }.try_into()
    }

    /// Whether such a network can be trained on images of a shape: it divides them.
    pub(crate) fn fits(shape: &[usize]) -> bool {
        matches!(shape, [_, height, width] if height.is_multiple_of(FACTOR) && width.is_multiple_of(FACTOR))
    }

    /// Refuses a prior whose images it cannot see.
    pub(crate) fn check(&self, shape: &[usize]) -> Result<()> {
        if self.saved.channels != shape[0] {
            let expected = format!("{} channels", shape[0]);
            return Err(Error::invalid("local factor", expected, self.saved.channels));
        }
        Ok(())
    }

    /// The frequency above which structure is fine.
    pub(crate) fn from(&self) -> f64 {
        self.saved.from
    }

    /// ln a with its history, for patches of pixels, [`Self::pixels`] of it for pixels.
    pub(crate) fn raw(&self, x: &Tensor, denoised: &Tensor, sigma: &Sigma) -> Result<FeatureMap> {
        let (low, high) = self.saved.sigma;
        let rows = x.dims()[0];
        let log: Vec<f32> = (0..rows).map(|i| sigma.row(i).clamp(low, high).ln() as f32).collect();
        let scale = |i: usize| 1.0 / sigma.row(i).hypot(self.saved.data_std);
        let scaled = combine(&[(&(0..rows).map(scale).collect::<Vec<_>>(), x)])?;
        let seen = Tensor::cat(&[&scaled, denoised], 1)?.to_dtype(DType::F32)?;
        let seen = FeatureMap::from_nchw(&unshuffle(&seen, PATCH)?).map_err(tensor_error)?;
        self.network.forward(&seen, &log).map_err(tensor_error)
    }

    /// What [`Self::raw`] is pixel by pixel, without its history.
    pub(crate) fn pixels(raw: &FeatureMap) -> Result<Tensor> {
        Ok(shuffle(&raw.detach().to_nchw().map_err(tensor_error)?, PATCH)?)
    }

    /// The derivatives of a number in ln a, pulled back to the variables.
    pub(crate) fn pull_back(raw: &FeatureMap, slope: &Tensor) -> Result<candle_core::backprop::GradStore> {
        let slope = FeatureMap::from_nchw(&unshuffle(slope, PATCH)?).map_err(tensor_error)?;
        raw.backward(&slope).map_err(tensor_error)
    }

    /// The factor for noisy images at σ, of which the denoised ones are known.
    pub fn factor(&self, x: &Tensor, denoised: &Tensor, sigma: f64) -> Result<LocalFactor> {
        let padding = Padding::of(denoised, FACTOR)?;
        let raw = self.raw(&padding.pad(x)?, &padding.pad(denoised)?, &Sigma::Same(sigma))?;
        let log = padding.crop(&Self::pixels(&raw)?)?;
        let factor = log.clamp(-MOST, MOST)?.exp()?.to_dtype(denoised.dtype())?;
        Ok(LocalFactor { factor, from: self.saved.from })
    }
}

/// What lies at or above a frequency, along the colour axes.
pub(crate) fn fine_part(x: &Tensor, cosines: &Cosines, from: f64) -> Result<Tensor> {
    let shape = cosines.shape();
    check_rows("images", x, shape)?;
    let coefficients = to_f64(&cosines.waves(&cosines.colors(x)?)?)?;
    let frequencies = cosines.frequencies();
    let fine = coefficients.iter().zip(frequencies.iter().cycle());
    let fine = fine.map(|(c, f)| if *f >= from { *c } else { 0.0 }).collect();
    cosines.waves_back(&from_f64(fine, x.dims(), x.dtype())?)
}

/// The deviation of a pixel of what is fine in x0 - D, of every colour axis, as a table by frequency has it.
pub(crate) fn usual(table: &SpreadTable, sigma: f64, from: f64, cosines: &Cosines) -> Result<Vec<f64>> {
    let (variances, frequencies) = (table.variances_at(sigma, cosines)?, cosines.frequencies());
    let mean = |plane: &[f64]| {
        let fine = plane.iter().zip(&frequencies).filter(|(_, f)| **f >= from).map(|(v, _)| v);
        (fine.sum::<f64>() / frequencies.len() as f64).sqrt()
    };
    Ok(variances.chunks(frequencies.len()).map(mean).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(rows: usize, [channels, height, width]: [usize; 3], phase: f32) -> Tensor {
        let values: Vec<f32> =
            (0..rows * channels * height * width).map(|i| 0.5 * (i as f32 * 0.37 + phase).sin()).collect();
        Tensor::from_vec(values, (rows, channels, height, width), &Device::Cpu).unwrap()
    }

    /// A fresh network whose weights are all moved, so that its answers differ.
    fn moved() -> LocalHead {
        let (head, variables) = LocalHead::fresh(3, 8, (0.2, (0.02, 50.0), 0.5), 3).unwrap();
        let moved = variables.into_iter().map(|(name, v)| (name, (v.as_tensor() + 0.02).unwrap())).collect();
        head.with_weights(&moved).unwrap()
    }

    #[test]
    fn a_fresh_factor_is_one_and_a_file_keeps_what_is_trained() {
        let (x, d) = (image(2, [3, 8, 16], 0.0), image(2, [3, 8, 16], 1.0));
        let values = |head: &LocalHead| to_f64(&head.factor(&x, &d, 0.5).unwrap().factor).unwrap();
        let (fresh, _) = LocalHead::fresh(3, 8, (0.2, (0.02, 50.0), 0.5), 3).unwrap();
        assert!(values(&fresh).iter().all(|a| *a == 1.0));
        let head = moved();
        assert!(values(&head).iter().all(|a| *a != 1.0));
        let text = serde_json::to_string(&head).unwrap();
        assert_eq!(values(&serde_json::from_str(&text).unwrap()), values(&head));
        assert!(serde_json::from_str::<LocalHead>(&text.replace("\"width\":8", "\"width\":9")).is_err());
        assert!(head.check(&[1, 8, 8]).is_err() && head.check(&[3, 8, 8]).is_ok());
        assert!(LocalHead::fits(&[3, 8, 16]) && !LocalHead::fits(&[3, 8, 12]) && !LocalHead::fits(&[3]));
    }

    /// Far from what changed, and from the border, the answer is the same: nothing is normalised over space.
    #[test]
    fn the_answer_at_a_place_depends_on_its_surroundings_alone() {
        let head = moved();
        let of = |x: &Tensor| to_f64(&head.factor(x, x, 0.5).unwrap().factor).unwrap();
        let one = image(1, [3, 16, 160], 0.0);
        let mut values = to_f64(&one).unwrap();
        values.iter_mut().enumerate().filter(|(i, _)| i % 160 < 8).for_each(|(_, v)| *v += 1.0);
        let other = from_f64(values, &[1, 3, 16, 160], DType::F32).unwrap();
        let (a, b) = (of(&one), of(&other));
        assert!((0..a.len()).any(|i| i % 160 < 8 && a[i] != b[i]));
        assert!((0..a.len()).filter(|i| i % 160 >= 112).all(|i| a[i] == b[i]));
    }

    /// Cropped from what it says of the reflected images.
    #[test]
    fn sides_that_it_does_not_divide_are_reflected() {
        let head = moved();
        let of = |x: &Tensor, d: &Tensor| head.factor(x, d, 0.5).unwrap().factor;
        for (height, width) in [(1, 1), (13, 9), (8, 3), (16, 17)] {
            let (x, d) = (image(2, [3, height, width], 0.0), image(2, [3, height, width], 1.0));
            let padding = Padding::of(&x, FACTOR).unwrap();
            let whole = of(&padding.pad(&x).unwrap(), &padding.pad(&d).unwrap());
            let cropped = whole.narrow(2, 0, height).unwrap().narrow(3, 0, width).unwrap();
            assert_eq!(to_f64(&of(&x, &d)).unwrap(), to_f64(&cropped).unwrap(), "{height} x {width}");
        }
    }

    /// A tile that starts where the coarsest pixels do agrees with the whole image from the reach on, and not before half of it.
    #[test]
    fn it_sees_as_far_as_it_says() {
        let head = moved();
        let of = |x: &Tensor| head.factor(x, &x.affine(0.5, 0.1).unwrap(), 0.5).unwrap().factor;
        let x = image(1, [3, 160, 8], 0.3);
        let (whole, tile) = (of(&x), of(&x.narrow(2, 24, 112).unwrap()));
        let off = (whole.narrow(2, 24, 112).unwrap() - tile).unwrap().abs().unwrap();
        let within = |from: usize, to: usize| {
            let part = off.narrow(2, from, to - from).unwrap();
            to_f64(&part).unwrap().into_iter().fold(0.0, f64::max)
        };
        assert!(within(LocalHead::REACH, 112 - LocalHead::REACH) < 1e-6);
        assert!(within(0, LocalHead::REACH / 2) > 1e-4);
    }
}
