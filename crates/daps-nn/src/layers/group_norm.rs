//! Group normalisation with scale-shift and SiLU.

use super::check_vector;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::feature_map::{Dims, FeatureMap, Maps};
use crate::kernels::norm::{self, Affine, Stats};
use crate::kernels::winograd_conv::Source;
use crate::simd::Isa;
use crate::tape::{self, Grads, Wants};
use candle_core::{D, Tensor};
use std::sync::Arc;

/// Normalises groups of channels over all pixels of a sample.
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: usize,
    channels: usize,
    epsilon: f64,
}

impl GroupNorm {
    /// From parameters with one number per channel.
    pub fn new(weight: Tensor, bias: Tensor, groups: usize, epsilon: f64) -> Result<Self> {
        let channels = weight.elem_count();
        check_vector("group norm weight", &weight, channels)?;
        check_vector("group norm bias", &bias, channels)?;
        if groups == 0 || !channels.is_multiple_of(groups) {
            let expected = format!("a divisor of {channels} channels");
            return Err(Error::Value { what: "groups", expected, got: groups });
        }
        Ok(Self { weight, bias, groups, channels, epsilon })
    }

    /// Channels that it normalises.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Normalises one map, or two as if concatenated.
    pub fn forward<'a>(&'a self, x: impl Into<Maps<'a>>) -> Result<FeatureMap> {
        self.on(x).run()
    }
    /// Normalises and applies SiLU.
    pub fn forward_silu<'a>(&'a self, x: impl Into<Maps<'a>>) -> Result<FeatureMap> {
        self.on(x).silu().run()
    }
    /// A normalisation with what follows it; see [`GroupNormCall`].
    pub fn on<'a>(&'a self, x: impl Into<Maps<'a>>) -> GroupNormCall<'a> {
        GroupNormCall { norm: self, x: x.into(), scale_shift: None, silu: false }
    }
}

/// One use of a group norm: act(norm(x) * (1 + scale) + shift), in one pass.
#[derive(Clone, Copy)]
pub struct GroupNormCall<'a> {
    norm: &'a GroupNorm,
    x: Maps<'a>,
    scale_shift: Option<&'a FeatureMap>,
    silu: bool,
}

impl<'a> GroupNormCall<'a> {
    /// One vector per sample, N x 2C: the scales, then the shifts.
    pub fn scale_shift(mut self, rows: &'a FeatureMap) -> Self {
        self.scale_shift = Some(rows);
        self
    }
    /// Applies SiLU last.
    pub fn silu(mut self) -> Self {
        self.silu = true;
        self
    }

    /// Runs it.
    pub fn run(self) -> Result<FeatureMap> {
        let dims = self.x.dims("group norm input")?;
        let c = self.norm.channels;
        if dims.channels != c {
            let expected = format!("N x {c} x H x W");
            return Err(Error::Shape { what: "group norm input", expected, got: dims.nchw() });
        }
        let rows = Dims { height: 1, width: 1, channels: 2 * c, ..dims };
        if let Some(got) = self.scale_shift.map(FeatureMap::dims).filter(|&d| d != rows) {
            let expected = format!("{:?}", rows.nchw());
            return Err(Error::Shape { what: "group norm scale and shift", expected, got: got.nchw() });
        }
        if self.x.is_host() { self.run_on_cpu(dims) } else { self.run_with_candle(dims) }
    }

    fn run_on_cpu(&self, dims: Dims) -> Result<FeatureMap> {
        let maps: Vec<&FeatureMap> = self.x.iter().collect();
        let data: Vec<Arc<Buffer>> =
            maps.iter().map(|m| m.data("group norm").cloned()).collect::<Result<_>>()?;
        let scale_shift = self.scale_shift.map(|s| s.data("group norm scale").cloned()).transpose()?;
        let mut saved = Saved {
            dims,
            isa: Isa::active(),
            data,
            channels: maps.iter().map(|m| m.channels()).collect(),
            weight: tape::with_values(&self.norm.weight, <[f32]>::to_vec)?,
            bias: tape::with_values(&self.norm.bias, <[f32]>::to_vec)?,
            scale_shift,
            stats: Stats { mean: vec![], rstd: vec![], groups: self.norm.groups },
            silu: self.silu,
        };
        saved.stats =
            norm::statistics(saved.isa, dims, &saved.sources(), self.norm.groups, self.norm.epsilon);
        let values = norm::forward(saved.isa, dims, &saved.sources(), &saved.affine(), self.silu);
        let mut tracks: Vec<_> = maps.iter().map(|m| m.track()).collect();
        tracks.extend(self.scale_shift.map(FeatureMap::track));
        let params = [&self.norm.weight, &self.norm.bias];
        let track = tape::record(&tracks, &params, dims.len(), move |gradient, wants| {
            saved.backward(gradient, wants)
        })?;
        Ok(FeatureMap::host(dims, values, track))
    }

    fn run_with_candle(&self, d: Dims) -> Result<FeatureMap> {
        let x = self.x.tensor("group norm")?;
        let grouped = x.reshape((d.batch, self.norm.groups, d.len() / d.batch / self.norm.groups))?;
        let centred = grouped.broadcast_sub(&grouped.mean_keepdim(D::Minus1)?)?;
        let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
        let normal = centred.broadcast_div(&(variance + self.norm.epsilon)?.sqrt()?)?;
        let normal = normal.reshape((d.batch, d.channels, d.height, d.width))?;
        let column = |t: &Tensor| t.reshape((1, d.channels, 1, 1));
        let mut y =
            normal.broadcast_mul(&column(&self.norm.weight)?)?.broadcast_add(&column(&self.norm.bias)?)?;
        if let Some(rows) = self.scale_shift {
            let rows = rows.tensor("group norm scale")?;
            let (scale, shift) = (rows.narrow(1, 0, d.channels)?, rows.narrow(1, d.channels, d.channels)?);
            y = y.broadcast_mul(&(scale + 1.0)?)?.broadcast_add(&shift)?;
        }
        FeatureMap::device(if self.silu { y.silu()? } else { y })
    }
}

/// What the gradient needs of the forward pass.
struct Saved {
    dims: Dims,
    isa: Isa,
    data: Vec<Arc<Buffer>>,
    channels: Vec<usize>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    scale_shift: Option<Arc<Buffer>>,
    stats: Stats,
    silu: bool,
}

impl Saved {
    fn sources(&self) -> Vec<Source<'_>> {
        self.data.iter().zip(&self.channels).map(|(values, &channels)| Source { values, channels }).collect()
    }
    /// 1 + scale and shift of sample n, channel c.
    fn modulation(&self, n: usize, c: usize) -> (f64, f64) {
        let channels = self.dims.channels;
        self.scale_shift.as_ref().map_or((1.0, 0.0), |rows| {
            let row = &rows[n * 2 * channels..];
            (1.0 + f64::from(row[c]), f64::from(row[channels + c]))
        })
    }
    /// d(pre-activation) / d(normalised input), [N][C].
    fn gain(&self) -> Vec<f64> {
        let c = self.dims.channels;
        (0..self.dims.batch * c)
            .map(|i| f64::from(self.weight[i % c]) * self.modulation(i / c, i % c).0)
            .collect()
    }
    fn affine(&self) -> Affine {
        let c = self.dims.channels;
        let gain = self.gain();
        let (mut a, mut b) = (Vec::with_capacity(gain.len()), Vec::with_capacity(gain.len()));
        for (i, gain) in gain.iter().enumerate() {
            let (n, ch) = (i / c, i % c);
            let g = n * self.stats.groups + ch / (c / self.stats.groups);
            let (scale, shift) = self.modulation(n, ch);
            let slope = gain * self.stats.rstd[g];
            a.push(slope as f32);
            b.push((f64::from(self.bias[ch]) * scale + shift - self.stats.mean[g] * slope) as f32);
        }
        Affine { a, b }
    }

    fn backward(&self, mut gradient: Buffer, wants: &Wants) -> Result<Grads> {
        let (d, c) = (self.dims, self.dims.channels);
        let sources = self.sources();
        let affine = self.affine();
        let sums =
            norm::backward_sums(self.isa, d, &sources, (&self.stats, &affine, self.silu), &mut gradient);
        let mut inputs: Vec<Option<Buffer>> = wants.inputs.iter().map(|_| None).collect();
        if wants.inputs[..sources.len()].contains(&true) {
            let gain = self.gain();
            let maps = norm::backward_input(self.isa, d, &sources, (&self.stats, &sums, &gain), &gradient);
            inputs.splice(..sources.len(), maps.into_iter().map(Some));
        }
        if wants.inputs.get(sources.len()).copied().unwrap_or(false) {
            let mut rows = Buffer::take(d.batch * 2 * c);
            for (n, row) in rows.chunks_exact_mut(2 * c).enumerate() {
                for ch in 0..c {
                    let (plain, normalised) = (sums.plain[n * c + ch], sums.normalised[n * c + ch]);
                    row[ch] =
                        (f64::from(self.weight[ch]) * normalised + f64::from(self.bias[ch]) * plain) as f32;
                    row[c + ch] = plain as f32;
                }
            }
            inputs[sources.len()] = Some(rows);
        }
        let over_samples = |of: &[f64]| {
            let sum =
                |ch: usize| (0..d.batch).map(|n| of[n * c + ch] * self.modulation(n, ch).0).sum::<f64>();
            (0..c).map(|ch| sum(ch) as f32).collect::<Vec<f32>>()
        };
        let params = vec![
            wants.params[0].then(|| over_samples(&sums.normalised)),
            wants.params[1].then(|| over_samples(&sums.plain)),
        ];
        Ok(Grads { inputs, params })
    }
}
