//! Convolution on a CPU: which kernel runs, with which weights, and the gradient.

use super::conv::{Conv2d, ConvCall};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::feature_map::{Dims, FeatureMap};
use crate::flops;
use crate::kernels::elementwise;
use crate::kernels::gather_conv::{self, Geometry, Packed};
use crate::kernels::winograd::{Finish, Grid};
use crate::kernels::winograd_conv::{self, Source, Target};
use crate::kernels::winograd_gradient;
use crate::kernels::winograd_weights::{self, Direction};
use crate::simd::Isa;
use crate::tape::{self, Grads, Wants};
use candle_core::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rearranged weights, for the kernel that reads them.
pub(crate) enum Weights {
    Winograd(Buffer),
    Gather(Packed),
}

impl Weights {
    fn bytes(&self) -> usize {
        match self {
            Weights::Winograd(u) => size_of_val(&u[..]),
            Weights::Gather(p) => p.bytes(),
        }
    }
}

/// Rearranged weights that a layer keeps, counted against the limit of the process.
pub(crate) struct Kept(Weights);

static KEPT: AtomicUsize = AtomicUsize::new(0);
/// All of a network of up to 16 million parameters or so. Larger ones have layers so slow that rearranging beside them does
/// not show: FFHQ-256's forward took as long with 0, 256 MiB and all (1.3 GiB) of its weights kept.
static KEPT_LIMIT: AtomicUsize = AtomicUsize::new(256 << 20);

/// Sets how many bytes of rearranged weights the process may keep (256 MiB at first). Layers beyond it rearrange
/// their weights at each call: slower, less memory, the same results to the bit.
pub fn set_kept_weights_limit(bytes: usize) {
    KEPT_LIMIT.store(bytes, Ordering::Relaxed);
}

impl Kept {
    /// Keeps the weights if the limit allows it.
    fn new(weights: Weights) -> std::result::Result<Self, Weights> {
        let (bytes, limit) = (weights.bytes(), KEPT_LIMIT.load(Ordering::Relaxed));
        let fits = |kept: usize| kept.checked_add(bytes).filter(|&sum| sum <= limit);
        match KEPT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Self(weights)),
            Err(_) => Err(weights),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.0.bytes(), Ordering::Relaxed);
    }
}

/// Everything about one convolution but its numbers.
#[derive(Clone, Copy)]
struct Plan {
    isa: Isa,
    geometry: Geometry,
    /// Whether the transform is possible (3x3, stride 1, same size) and the map is large enough for it.
    winograd: bool,
    c_in: usize,
    c_out: usize,
}

/// Pixels from which on the transformed weights, four times the originals, save more than they cost to read and keep.
fn winograd_pixels(c_in: usize, c_out: usize) -> usize {
    if c_in * c_out <= 512 * 256 { 64 } else { 100 }
}

/// Sums over fewer channels than this are too short to pay for the transforms.
const WINOGRAD_CHANNELS: usize = 12;

impl Plan {
    /// The choice looks at one sample only, so that a sample's result does not depend on its batch.
    fn new(conv: &Conv2d, input: Dims, output: Dims) -> Self {
        let geometry = Geometry {
            batch: input.batch,
            input: (input.height, input.width),
            output: (output.height, output.width),
            kernel: conv.kernel,
            stride: conv.config.stride,
            padding: conv.config.padding.0,
        };
        let same = conv.kernel == 3 && conv.config.stride == 1 && conv.config.padding == (1, 1);
        let winograd = same && input.pixels() >= winograd_pixels(input.channels, output.channels);
        Self { isa: Isa::active(), geometry, winograd, c_in: input.channels, c_out: output.channels }
    }

    fn grid(&self) -> Grid {
        let (height, width) = self.geometry.input;
        Grid { batch: self.geometry.batch, height, width }
    }

    fn uses_winograd(&self, direction: Direction) -> bool {
        let summed = match direction {
            Direction::Forward => self.c_in,
            Direction::Backward => self.c_out,
        };
        self.winograd && summed >= WINOGRAD_CHANNELS
    }

    fn rearrange(&self, weight: &Tensor, direction: Direction) -> Result<Weights> {
        let (isa, g, c_out, c_in) = (self.isa, &self.geometry, self.c_out, self.c_in);
        tape::with_values(weight, |w| match (self.uses_winograd(direction), direction) {
            (true, _) => Weights::Winograd(winograd_weights::transform(isa, w, c_out, c_in, direction)),
            (false, Direction::Forward) => Weights::Gather(gather_conv::pack_forward(isa, g, w, c_out, c_in)),
            (false, Direction::Backward) => {
                Weights::Gather(gather_conv::pack_backward(isa, g, w, c_out, c_in))
            }
        })
    }

    /// Calls `f` with the rearranged weights: kept ones if they are no variables, fresh ones otherwise.
    fn with_forward_weights(&self, conv: &Conv2d, f: impl FnOnce(&Weights)) -> Result<()> {
        let cache = if self.uses_winograd(Direction::Forward) { &conv.winograd } else { &conv.gather };
        if let Some(kept) = cache.get() {
            f(&kept.0);
            return Ok(());
        }
        let weights = self.rearrange(&conv.weight, Direction::Forward)?;
        f(&weights);
        if !conv.weight.track_op() {
            // If two threads come here at once, one result is kept.
            if let Ok(kept) = Kept::new(weights) {
                let _ = cache.set(kept);
            }
        }
        Ok(())
    }

    fn convolve(&self, direction: Direction, sources: &[Source], weights: &Weights, targets: &mut [Target]) {
        let g = &self.geometry;
        let (from, to) = match direction {
            Direction::Forward => (g.input, g.output),
            Direction::Backward => (g.output, g.input),
        };
        match weights {
            Weights::Winograd(u) => winograd_conv::convolve(self.isa, self.grid(), sources, u, targets),
            Weights::Gather(p) => gather_conv::convolve(self.isa, g.batch, (sources, from), p, (targets, to)),
        }
    }

    fn input_gradient(
        &self,
        weight: &Tensor,
        gradient: &[f32],
        channels: &[usize],
    ) -> Result<Vec<Option<Buffer>>> {
        let weights = self.rearrange(weight, Direction::Backward)?;
        let pixels = self.geometry.batch * self.geometry.input.0 * self.geometry.input.1;
        let mut maps: Vec<Buffer> = channels.iter().map(|c| Buffer::take(pixels * c)).collect();
        let mut targets: Vec<Target> = maps
            .iter_mut()
            .zip(channels)
            .map(|(values, &channels)| Target { values, channels, finish: Finish::NONE })
            .collect();
        let source = Source { values: gradient, channels: self.c_out };
        self.convolve(Direction::Backward, &[source], &weights, &mut targets);
        drop(targets);
        Ok(maps.into_iter().map(Some).collect())
    }

    fn weight_gradient(&self, sources: &[Source], gradient: &[f32]) -> Vec<f32> {
        let gradient = Source { values: gradient, channels: self.c_out };
        if self.winograd && self.c_in.min(self.c_out) >= WINOGRAD_CHANNELS {
            winograd_gradient::weight_gradient(self.isa, self.grid(), sources, gradient)
        } else {
            gather_conv::weight_gradient(self.isa, &self.geometry, sources, gradient)
        }
    }
}

/// Bias and shift together: one vector, or one per sample; with the stride between samples.
fn joint_bias(call: &ConvCall, output: Dims) -> Result<(Vec<f32>, usize)> {
    let c = output.channels;
    let mut bias = match &call.conv.bias {
        Some(bias) => tape::with_values(bias, <[f32]>::to_vec)?,
        None => vec![0.0; c],
    };
    let Some(shift) = call.shift else { return Ok((bias, 0)) };
    let shift = shift.data("convolution shift")?;
    bias = (0..output.batch * c).map(|i| shift[i] + bias[i % c]).collect();
    Ok((bias, c))
}

pub(super) fn run(call: &ConvCall, input: Dims, output: Dims) -> Result<FeatureMap> {
    let plan = Plan::new(call.conv, input, output);
    flops::count(output.len() * input.channels * call.conv.kernel * call.conv.kernel);
    let maps: Vec<&FeatureMap> = call.x.iter().collect();
    let data: Vec<Arc<Buffer>> =
        maps.iter().map(|m| m.data("convolution").cloned()).collect::<Result<_>>()?;
    let channels: Vec<usize> = maps.iter().map(|m| m.channels()).collect();
    let mut values = Buffer::take(output.len());
    {
        let (bias, bias_stride) = joint_bias(call, output)?;
        let residual = call.residual.map(|r| r.data("convolution residual")).transpose()?;
        let finish =
            Finish { bias: Some(&bias), bias_stride, residual: residual.map(|r| &r[..]), scale: call.scale };
        let target = Target { values: &mut values, channels: output.channels, finish };
        let sources = sources(&data, &channels);
        plan.with_forward_weights(call.conv, |weights| {
            plan.convolve(Direction::Forward, &sources, weights, &mut [target]);
        })?;
    }
    let mut tracks: Vec<_> = maps.iter().map(|m| m.track()).collect();
    let (residual_at, shift_at) = (tracks.len(), tracks.len() + usize::from(call.residual.is_some()));
    tracks.extend(call.residual.map(FeatureMap::track));
    tracks.extend(call.shift.map(FeatureMap::track));
    let mut params = vec![&call.conv.weight];
    params.extend(&call.conv.bias);
    let back = Backward {
        plan,
        weight: call.conv.weight.clone(),
        // The input is kept only if the weights will ask for it.
        data: if call.conv.weight.track_op() { data } else { vec![] },
        channels,
        output,
        scale: call.scale,
        residual_at: call.residual.map(|_| residual_at),
        shift_at: call.shift.map(|_| shift_at),
    };
    let track =
        tape::record(&tracks, &params, output.len(), move |gradient, wants| back.run(gradient, wants))?;
    Ok(FeatureMap::host(output, values, track))
}

fn sources<'a>(data: &'a [Arc<Buffer>], channels: &[usize]) -> Vec<Source<'a>> {
    data.iter().zip(channels).map(|(values, &channels)| Source { values, channels }).collect()
}

struct Backward {
    plan: Plan,
    weight: Tensor,
    data: Vec<Arc<Buffer>>,
    channels: Vec<usize>,
    output: Dims,
    scale: f32,
    residual_at: Option<usize>,
    shift_at: Option<usize>,
}

impl Backward {
    fn run(&self, mut gradient: Buffer, wants: &Wants) -> Result<Grads> {
        if self.scale != 1.0 {
            gradient = elementwise::scaled(&gradient, self.scale);
        }
        let mut inputs: Vec<Option<Buffer>> = wants.inputs.iter().map(|_| None).collect();
        let mut params: Vec<Option<Vec<f32>>> = wants.params.iter().map(|_| None).collect();
        if wants.inputs[..self.channels.len()].contains(&true) {
            let maps = self.plan.input_gradient(&self.weight, &gradient, &self.channels)?;
            inputs.splice(..self.channels.len(), maps);
        }
        if wants.params[0] {
            params[0] = Some(self.plan.weight_gradient(&sources(&self.data, &self.channels), &gradient));
        }
        let wants_bias = wants.params.get(1).copied().unwrap_or(false);
        let shift = self.shift_at.filter(|&i| wants.inputs[i]);
        if wants_bias || shift.is_some() {
            let sums = elementwise::channel_sums(self.plan.isa, &gradient, self.output);
            let c = self.output.channels;
            if wants_bias {
                let over_samples =
                    |ch: usize| sums.iter().skip(ch).step_by(c).map(|&x| f64::from(x)).sum::<f64>();
                params[1] = Some((0..c).map(|ch| over_samples(ch) as f32).collect());
            }
            if let Some(i) = shift {
                inputs[i] = Some(Buffer::from_slice(&sums));
            }
        }
        if let Some(i) = self.residual_at.filter(|&i| wants.inputs[i]) {
            inputs[i] = Some(gradient);
        }
        Ok(Grads { inputs, params })
    }
}
