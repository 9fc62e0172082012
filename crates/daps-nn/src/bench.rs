//! Timings of the layers on this machine, beside its practical peak.

use crate::error::Result;
use crate::testing::normal;
use crate::{Conv2d, ConvConfig, FeatureMap, GroupNorm, Linear, QkvOrder, self_attention};
use candle_core::{Device, Tensor, Var};
use std::time::{Duration, Instant};

/// One line of a benchmark.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Record {
    /// What ran.
    pub name: String,
    /// conv, norm, attention, network or gemm.
    pub kind: &'static str,
    /// Sizes, batch first.
    pub shape: Vec<usize>,
    /// Median milliseconds without gradients.
    pub ms_forward: f64,
    /// Median milliseconds with the gradients of input and parameters, if there are any.
    pub ms_forward_backward: Option<f64>,
    /// Arithmetic (as a direct computation) per nanosecond of the forward pass.
    pub gflops_forward: f64,
    /// The process's largest memory up to now, where the system tells it.
    pub peak_mib: Option<f64>,
}

/// Batch, channels and side of the square maps of the convolution benchmark; output channels equal input channels.
pub const CONVOLUTIONS: [(usize, usize, usize); 6] =
    [(1, 128, 256), (1, 128, 64), (1, 256, 32), (1, 512, 16), (8, 64, 64), (16, 64, 32)];

/// How long each median is taken over.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Time per figure.
    pub time: Duration,
    /// Fewest repetitions.
    pub repeats: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { time: Duration::from_millis(1000), repeats: 7 }
    }
}

/// The median of repeated runs in milliseconds, after two that are not counted.
pub fn median_ms(effort: Effort, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    run()?;
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < effort.repeats || start.elapsed() < effort.time {
        let before = Instant::now();
        run()?;
        times.push(before.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The largest resident memory of this process up to now, in MiB (Linux).
pub fn peak_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}

fn tensor(shape: &[usize], scale: f32, seed: u64) -> Result<Tensor> {
    let values = normal(shape.iter().product(), seed).iter().map(|v| v * scale).collect();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

fn variable(t: &Tensor) -> Result<Tensor> {
    Ok(Var::from_tensor(t)?.as_tensor().clone())
}

/// Times `build(parameters)(input)` without and with gradients.
fn layer<L>(
    effort: Effort,
    input: &Tensor,
    parameters: &[Tensor],
    build: impl Fn(&[Tensor]) -> Result<L>,
    apply: impl Fn(&L, &FeatureMap) -> Result<FeatureMap>,
) -> Result<(f64, f64)> {
    let x = FeatureMap::from_nchw(input)?;
    let fixed = build(parameters)?;
    let forward = median_ms(effort, || apply(&fixed, &x).map(drop))?;
    let gradient = apply(&fixed, &x)?;
    let variables = parameters.iter().map(variable).collect::<Result<Vec<Tensor>>>()?;
    let trained = build(&variables)?;
    // The input is the output of a cheap operation on one pixel's worth of tape, so that its gradient is asked for
    // without the copy to and from N x C x H x W.
    let x = x.requiring_gradient()?;
    let both = median_ms(effort, || apply(&trained, &x)?.backward(&gradient).map(drop))?;
    Ok((forward, both))
}

/// 3x3 convolutions with bias.
pub fn convolutions(effort: Effort) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for (n, c, size) in CONVOLUTIONS {
        let input = tensor(&[n, c, size, size], 1.0, 1)?;
        let parameters = [tensor(&[c, c, 3, 3], 0.05, 2)?, tensor(&[c], 1.0, 3)?];
        let build = |p: &[Tensor]| Conv2d::new(p[0].clone(), Some(p[1].clone()), ConvConfig::same(3));
        let (forward, both) = layer(effort, &input, &parameters, build, |conv, x| conv.forward(x))?;
        records.push(Record {
            name: format!("conv3x3 {n}x{c}x{size}x{size}"),
            kind: "conv",
            shape: vec![n, c, size, size],
            ms_forward: forward,
            ms_forward_backward: Some(both),
            gflops_forward: (2 * n * c * c * 9 * size * size) as f64 / forward / 1e6,
            peak_mib: peak_mib(),
        });
    }
    Ok(records)
}

/// GroupNorm(32) + SiLU.
pub fn norms(effort: Effort) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for (n, c, size) in [(1, 128, 256), (8, 64, 64)] {
        let input = tensor(&[n, c, size, size], 1.0, 1)?;
        let parameters = [tensor(&[c], 1.0, 2)?, tensor(&[c], 1.0, 3)?];
        let build = |p: &[Tensor]| GroupNorm::new(p[0].clone(), p[1].clone(), 32, 1e-5);
        let (forward, both) = layer(effort, &input, &parameters, build, |norm, x| norm.forward_silu(x))?;
        records.push(Record {
            name: format!("groupnorm32+silu {n}x{c}x{size}x{size}"),
            kind: "norm",
            shape: vec![n, c, size, size],
            ms_forward: forward,
            ms_forward_backward: Some(both),
            gflops_forward: (10 * n * c * size * size) as f64 / forward / 1e6,
            peak_mib: peak_mib(),
        });
    }
    Ok(records)
}

/// Self-attention without its projections: batch, heads, channels per head, side of the map.
pub fn attentions(effort: Effort) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for (n, heads, dim, size) in [(8, 4, 32, 16), (1, 8, 64, 16), (1, 4, 64, 64)] {
        let input = tensor(&[n, 3 * heads * dim, size, size], 1.0, 1)?;
        let apply = |_: &(), x: &FeatureMap| self_attention(x, heads, QkvOrder::HeadFirst);
        let (forward, both) = layer(effort, &input, &[], |_| Ok(()), apply)?;
        records.push(Record {
            name: format!("attention {n}x{heads}x{dim}x{size}x{size}"),
            kind: "attention",
            shape: vec![n, heads, dim, size, size],
            ms_forward: forward,
            ms_forward_backward: Some(both),
            gflops_forward: (4 * n * heads * dim * size.pow(4)) as f64 / forward / 1e6,
            peak_mib: peak_mib(),
        });
    }
    Ok(records)
}

/// A 2048 x 2048 x 2048 product on all threads, by candle (the `gemm` crate) and by the kernel under the layers: the
/// faster is what this machine can do in practice.
pub fn peak(effort: Effort) -> Result<Vec<Record>> {
    let n = 2048;
    let (a, b) = (tensor(&[n, n], 1.0, 1)?, tensor(&[n, n], 1.0, 2)?);
    let candle = median_ms(effort, || a.matmul(&b).map(drop).map_err(Into::into))?;
    let (rows, linear) = (FeatureMap::from_rows(&a)?, Linear::new(b, None)?);
    let ours = median_ms(effort, || linear.forward(&rows).map(drop))?;
    let record = |name: &str, ms: f64| Record {
        name: format!("sgemm {n} ({name})"),
        kind: "gemm",
        shape: vec![n, n, n],
        ms_forward: ms,
        ms_forward_backward: None,
        gflops_forward: (2 * n * n * n) as f64 / ms / 1e6,
        peak_mib: peak_mib(),
    };
    Ok(vec![record("candle", candle), record("daps-nn", ours)])
}

/// All of them, the machine's peak first.
pub fn all(effort: Effort) -> Result<Vec<Record>> {
    let mut records = peak(effort)?;
    records.extend(convolutions(effort)?);
    records.extend(norms(effort)?);
    records.extend(attentions(effort)?);
    Ok(records)
}
