//! The local factor of a denoiser's error, predicted from the denoised image: where it has fine structure, x0 - D is larger.
//!
//! Of every colour axis the energy above a frequency is averaged over windows of three sizes. A small network, the same at every
//! pixel, takes the logarithms of these energies and σ to ln a, where a is the deviation of what is fine in x0 - D in units of what is usual
//! at this σ. It depends on D and σ alone, so any denoiser can have one, at any size of image.

use candle_core::{DType, Tensor};
use daps_core::tensors::{check_rows, map_rows, to_f64};
use daps_core::{Cosines, Error, LocalFactor, Result, SpreadTable};
use serde::{Deserialize, Serialize};

/// Sides of the windows.
const WINDOWS: [usize; 3] = [3, 7, 15];
/// Waves of ln σ that the network is told, sines and cosines.
const WAVES: usize = 8;
/// The step in frequency from one wave of ln σ to the next.
const WAVE_STEP: f64 = 0.35;
/// What is added to an energy before its logarithm.
const DARK: f64 = 1e-6;
/// The largest |ln a|.
const MOST: f32 = 2.0;
/// Pixels that go through the network at once.
const BLOCK: usize = 64;

/// The network with its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalHead {
    /// The frequency above which structure is fine, in half periods a pixel.
    pub from: f64,
    /// Channels of an image.
    pub channels: usize,
    /// Units of each of the two hidden layers.
    pub hidden: usize,
    /// The levels that it was trained between; others are taken for the nearest.
    pub sigma: (f64, f64),
    /// All weights: the first layer, the second, the last.
    pub weights: Vec<f32>,
}

/// Where weights are in their list.
struct Layout {
    inputs: usize,
    hidden: usize,
    outputs: usize,
}

impl Layout {
    /// The first layer, `[hidden][energies and waves of σ]`.
    fn first(&self) -> std::ops::Range<usize> {
        0..self.hidden * (self.inputs + 2 * WAVES + 1)
    }

    /// The second, `[hidden][hidden and one]`.
    fn second(&self) -> std::ops::Range<usize> {
        let start = self.first().end;
        start..start + self.hidden * (self.hidden + 1)
    }

    /// The last, `[channels][hidden and one]`.
    fn last(&self) -> std::ops::Range<usize> {
        let start = self.second().end;
        start..start + self.outputs * (self.hidden + 1)
    }
}

/// The activations of one block of pixels, unit by unit.
pub(crate) struct Activations {
    first: Vec<[f32; BLOCK]>,
    second: Vec<[f32; BLOCK]>,
    /// ln a of every channel.
    pub out: Vec<[f32; BLOCK]>,
}

impl LocalHead {
    /// Refuses weights that are not as many as there must be.
    pub fn check(&self) -> Result<()> {
        let expected = self.layout().last().end;
        let (low, high) = self.sigma;
        if self.weights.len() != expected || !self.weights.iter().all(|w| w.is_finite()) {
            let got = format!("{} numbers", self.weights.len());
            return Err(Error::invalid("local factor", format!("{expected} finite weights"), got));
        }
        if !(self.from >= 0.0 && low > 0.0 && low <= high && high.is_finite()) {
            return Err(Error::invalid("local factor", "a frequency and a range of levels", "others"));
        }
        Ok(())
    }

    /// Fresh weights: the last layer is zero, so that the factor is one everywhere.
    pub(crate) fn fresh(from: f64, channels: usize, hidden: usize, sigma: (f64, f64), seed: u64) -> Self {
        let mut head = Self { from, channels, hidden, sigma, weights: vec![] };
        let layout = head.layout();
        let mut values = vec![0.0; layout.second().end];
        let noise = daps_core::Noise::chains(seed, 1);
        let at = daps_core::Address::new(0, daps_core::Purpose::Init, 0);
        daps_core::fill_normal(&mut noise.stream(0, at), &mut values);
        let scale = |k: usize| match layout.first().contains(&k) {
            true => (2.0 / (layout.inputs + WAVES) as f64).sqrt(),
            false => (2.0 / hidden as f64).sqrt(),
        };
        head.weights = values.iter().enumerate().map(|(k, v)| (scale(k) * v) as f32).collect();
        head.weights.resize(layout.last().end, 0.0);
        head
    }

    fn layout(&self) -> Layout {
        Layout { inputs: WINDOWS.len() * self.channels, hidden: self.hidden, outputs: self.channels }
    }

    /// The factor for denoised images at σ.
    pub fn factor(&self, denoised: &Tensor, sigma: f64, cosines: &Cosines) -> Result<LocalFactor> {
        let shape = cosines.shape().to_vec();
        check_rows("denoised images", denoised, &shape)?;
        let energies = self.energies(denoised, cosines)?;
        let (layout, waves) = (self.layout(), self.waves(sigma));
        let plane = shape[1] * shape[2];
        let factor = map_rows::<f32>(
            "energies",
            &energies,
            &[layout.inputs, shape[1], shape[2]],
            &shape,
            |_, energies, out| {
                for start in (0..plane).step_by(BLOCK) {
                    let count = BLOCK.min(plane - start);
                    let seen = self.forward(&block(energies, plane, start, count), &waves);
                    for (c, values) in seen.out.iter().enumerate() {
                        for (out, v) in out[c * plane + start..][..count].iter_mut().zip(values) {
                            *out = v.clamp(-MOST, MOST).exp();
                        }
                    }
                }
            },
        )?;
        Ok(LocalFactor { factor: factor.to_dtype(denoised.dtype())?, from: self.from })
    }

    /// Logarithms of the energies, `[rows, windows · channels, height, width]`.
    pub(crate) fn energies(&self, denoised: &Tensor, cosines: &Cosines) -> Result<Tensor> {
        let shape = cosines.shape();
        let (height, width) = (shape[1], shape[2]);
        let fine = fine_part(denoised, cosines, self.from)?.to_dtype(DType::F32)?;
        let inputs = self.layout().inputs;
        map_rows::<f32>("fine structure", &fine, shape, &[inputs, height, width], |_, fine, out| {
            let plane = height * width;
            for (channel, fine) in fine.chunks(plane).enumerate() {
                let sums = summed_areas(fine, width);
                for (w, side) in WINDOWS.iter().enumerate() {
                    let out = &mut out[(w * shape[0] + channel) * plane..][..plane];
                    for (k, out) in out.iter_mut().enumerate() {
                        let mean = window_mean(&sums, (height, width), (k / width, k % width), side / 2);
                        *out = ((mean + DARK).ln() / 3.0 + 1.0) as f32;
                    }
                }
            }
        })
    }

    /// Sines and cosines of ln σ.
    pub(crate) fn waves(&self, sigma: f64) -> [f32; 2 * WAVES] {
        let log = sigma.clamp(self.sigma.0, self.sigma.1).ln();
        std::array::from_fn(|k| {
            let angle = log * WAVE_STEP * (k % WAVES + 1) as f64;
            (if k < WAVES { angle.sin() } else { angle.cos() }) as f32
        })
    }

    /// The network on a block of pixels.
    pub(crate) fn forward(&self, inputs: &[[f32; BLOCK]], waves: &[f32; 2 * WAVES]) -> Activations {
        let layout = self.layout();
        let first = self.weights[layout.first()].chunks(layout.inputs + 2 * WAVES + 1);
        let first = first.map(|w| {
            let (own, rest) = w.split_at(layout.inputs);
            let told: f32 = rest[1..].iter().zip(waves).map(|(w, t)| w * t).sum();
            relu(affine(rest[0] + told, own, inputs))
        });
        let first: Vec<_> = first.collect();
        let dense = |range: std::ops::Range<usize>, inputs: &[[f32; BLOCK]]| -> Vec<[f32; BLOCK]> {
            self.weights[range].chunks(self.hidden + 1).map(|w| affine(w[0], &w[1..], inputs)).collect()
        };
        let second: Vec<_> = dense(layout.second(), &first).into_iter().map(relu).collect();
        let out = dense(layout.last(), &second);
        Activations { first, second, out }
    }

    /// Adds the gradient of a loss whose derivatives in ln a are `slope` to `gradient`.
    pub(crate) fn backward(
        &self,
        inputs: &[[f32; BLOCK]],
        waves: &[f32; 2 * WAVES],
        seen: &Activations,
        slope: &[[f32; BLOCK]],
        gradient: &mut [f64],
    ) {
        let layout = self.layout();
        let through = |range: std::ops::Range<usize>, slope: &[[f32; BLOCK]], below: &[[f32; BLOCK]]| {
            let mut out = vec![[0f32; BLOCK]; below.len()];
            for (w, slope) in self.weights[range].chunks(self.hidden + 1).zip(slope) {
                for (out, w) in out.iter_mut().zip(&w[1..]) {
                    out.iter_mut().zip(slope).for_each(|(o, s)| *o += w * s);
                }
            }
            for (out, below) in out.iter_mut().zip(below) {
                out.iter_mut().zip(below).for_each(|(o, b)| *o *= f32::from(u8::from(*b > 0.0)));
            }
            out
        };
        let dot = |a: &[f32; BLOCK], b: &[f32; BLOCK]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum()
        };
        let total = |a: &[f32; BLOCK]| a.iter().map(|v| f64::from(*v)).sum::<f64>();
        let mut add = |range: std::ops::Range<usize>, slope: &[[f32; BLOCK]], below: &[[f32; BLOCK]]| {
            for (g, slope) in gradient[range].chunks_mut(below.len() + 1).zip(slope) {
                g[0] += total(slope);
                g[1..].iter_mut().zip(below).for_each(|(g, b)| *g += dot(slope, b));
            }
        };
        add(layout.last(), slope, &seen.second);
        let second = through(layout.last(), slope, &seen.second);
        add(layout.second(), &second, &seen.first);
        let first = through(layout.second(), &second, &seen.first);
        for (g, slope) in gradient[layout.first()].chunks_mut(layout.inputs + 2 * WAVES + 1).zip(&first) {
            let (own, rest) = g.split_at_mut(layout.inputs);
            own.iter_mut().zip(inputs).for_each(|(g, input)| *g += dot(slope, input));
            let sum = total(slope);
            rest[0] += sum;
            rest[1..].iter_mut().zip(waves).for_each(|(g, t)| *g += sum * f64::from(*t));
        }
    }
}

/// What lies at or above a frequency, along the colour axes.
pub(crate) fn fine_part(x: &Tensor, cosines: &Cosines, from: f64) -> Result<Tensor> {
    let (shape, frequencies) = (cosines.shape(), cosines.frequencies());
    let coefficients = cosines.waves(&cosines.colors(x)?)?;
    let cut =
        map_rows::<f32>("coefficients", &coefficients.to_dtype(DType::F32)?, shape, shape, |_, c, out| {
            for ((out, c), f) in out.iter_mut().zip(c).zip(frequencies.iter().cycle()) {
                *out = if *f >= from { *c } else { 0.0 };
            }
        })?;
    cosines.waves_back(&cut)
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

/// Some pixels of all planes; what is missing of a block is zero.
pub(crate) fn block(planes: &[f32], plane: usize, start: usize, count: usize) -> Vec<[f32; BLOCK]> {
    let one = |values: &[f32]| {
        let mut out = [0.0; BLOCK];
        out[..count].copy_from_slice(&values[start..start + count]);
        out
    };
    planes.chunks(plane).map(one).collect()
}

/// The starts of the blocks of a plane, with the pixels of each.
pub(crate) fn blocks(plane: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..plane).step_by(BLOCK).map(move |start| (start, BLOCK.min(plane - start)))
}

/// The numbers of a batch.
pub(crate) fn numbers(x: &Tensor) -> Result<Vec<f32>> {
    Ok(to_f64(x)?.into_iter().map(|v| v as f32).collect())
}

fn affine(bias: f32, weights: &[f32], inputs: &[[f32; BLOCK]]) -> [f32; BLOCK] {
    let mut out = [bias; BLOCK];
    for (w, input) in weights.iter().zip(inputs) {
        out.iter_mut().zip(input).for_each(|(o, x)| *o += w * x);
    }
    out
}

fn relu(mut values: [f32; BLOCK]) -> [f32; BLOCK] {
    values.iter_mut().for_each(|v| *v = v.max(0.0));
    values
}

/// Sums of squares over all rectangles that begin in a corner, `[height + 1][width + 1]`.
fn summed_areas(values: &[f32], width: usize) -> Vec<f64> {
    let mut sums = vec![0.0; width + 1];
    for row in values.chunks(width) {
        let above = sums.len() - width - 1;
        let mut line = 0.0;
        sums.push(0.0);
        for (x, v) in row.iter().enumerate() {
            line += f64::from(*v).powi(2);
            sums.push(sums[above + x + 1] + line);
        }
    }
    sums
}

/// The mean over a window, as much of it as lies in the image.
fn window_mean(sums: &[f64], (height, width): (usize, usize), (y, x): (usize, usize), reach: usize) -> f64 {
    let (top, bottom) = (y.saturating_sub(reach), (y + reach + 1).min(height));
    let (left, right) = (x.saturating_sub(reach), (x + reach + 1).min(width));
    let at = |y: usize, x: usize| sums[y * (width + 1) + x];
    let sum = at(bottom, right) - at(top, right) - at(bottom, left) + at(top, left);
    sum.max(0.0) / ((bottom - top) * (right - left)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_means_of_squares() {
        let values: Vec<f32> = (0..20).map(|i| (i as f32 * 0.9).sin()).collect();
        let sums = summed_areas(&values, 5);
        for (y, x, reach) in [(0, 0, 1), (2, 3, 1), (3, 4, 3), (1, 2, 0)] {
            let near = |a: usize, b: usize| a.abs_diff(b) <= reach;
            let seen: Vec<f64> = (0..20)
                .filter(|k| near(k / 5, y) && near(k % 5, x))
                .map(|k| f64::from(values[k]).powi(2))
                .collect();
            let expected = seen.iter().sum::<f64>() / seen.len() as f64;
            assert!((window_mean(&sums, (4, 5), (y, x), reach) - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let mut head = LocalHead::fresh(0.2, 1, 4, (0.02, 50.0), 3);
        let last = head.layout().last();
        head.weights[last].iter_mut().enumerate().for_each(|(k, w)| *w = 0.1 + 0.2 * (k as f32).sin());
        let value = |i: usize, k: usize| ((i * BLOCK + k) as f32 * 0.37).sin();
        let inputs: Vec<[f32; BLOCK]> = (0..3).map(|i| std::array::from_fn(|k| value(i, k))).collect();
        let waves = head.waves(0.5);
        let loss = |head: &LocalHead| -> f64 {
            head.forward(&inputs, &waves).out[0].iter().map(|v| 0.5 * f64::from(*v).powi(2)).sum()
        };
        let seen = head.forward(&inputs, &waves);
        let mut gradient = vec![0.0; head.weights.len()];
        head.backward(&inputs, &waves, &seen, &seen.out, &mut gradient);
        for k in 0..head.weights.len() {
            let moved = |by: f32| {
                let mut other = head.clone();
                other.weights[k] += by;
                loss(&other)
            };
            let slope = (moved(1e-3) - moved(-1e-3)) / 2e-3;
            assert!((slope - gradient[k]).abs() < 0.02 * (1.0 + slope.abs()), "{k}: {slope} {}", gradient[k]);
        }
    }

    /// A fresh head says nothing: one everywhere. Weights of another number are refused.
    #[test]
    fn a_fresh_factor_is_one() {
        let head = LocalHead::fresh(0.2, 3, 8, (0.02, 50.0), 1);
        head.check().unwrap();
        let cosines = Cosines::new(&[3, 9, 7]).unwrap();
        let x = Tensor::randn(0f32, 1.0, (2, 3, 9, 7), &candle_core::Device::Cpu).unwrap();
        let factor = head.factor(&x, 0.3, &cosines).unwrap().factor;
        assert!(to_f64(&factor).unwrap().iter().all(|a| *a == 1.0));
        assert!(LocalHead { weights: vec![0.0; 5], ..head }.check().is_err());
    }
}
