//! What to time: layers on this machine, beside its practical peak, each as a case with a name.

use crate::error::Result;
use crate::testing::normal;
use crate::{Conv2d, ConvConfig, FeatureMap, GroupNorm, Linear, QkvOrder, flops, self_attention};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use std::collections::BTreeMap;
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
    /// Median milliseconds with the gradients of the parameters (and, of a layer, of its input), if there are any.
    pub ms_forward_backward: Option<f64>,
    /// Arithmetic (as a direct computation) per nanosecond of the forward pass.
    pub gflops_forward: f64,
    /// The process's largest memory up to now, where the system tells it.
    pub peak_mib: Option<f64>,
}

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

/// Something to time.
pub struct Case {
    /// What it is called.
    pub name: String,
    /// conv, norm, attention, network or gemm.
    pub kind: &'static str,
    /// Sizes, batch first.
    pub shape: Vec<usize>,
    /// Whether a backward pass is timed as well.
    pub backward: bool,
    /// Makes it ready to run.
    pub build: Box<dyn Fn() -> Result<Box<dyn Workload>>>,
}

/// A case that is ready to run.
pub trait Workload {
    /// One forward pass.
    fn forward(&mut self) -> Result<()>;
    /// One forward and one backward pass.
    fn forward_backward(&mut self) -> Result<()>;
    /// Arithmetic of a forward pass, once one has run.
    fn flops(&self) -> f64;
    /// The numbers behind it, for another program that runs the same.
    fn export(&mut self) -> Result<Export>;
}

/// The numbers of a case.
#[derive(Default)]
pub struct Export {
    /// Parameters by name.
    pub weights: BTreeMap<String, Tensor>,
    /// Input `x`, output `y`; with a backward pass the output's gradient `dy` and the gradients `d.NAME`.
    pub io: BTreeMap<String, Tensor>,
    /// What a network's weights belong to, as TOML.
    pub config: Option<String>,
}

impl Case {
    /// Times it: medians of repeated runs.
    pub fn measure(&self, effort: Effort) -> Result<Record> {
        let mut work = (self.build)()?;
        let ms_forward = median_ms(effort, || work.forward())?;
        let ms_forward_backward =
            self.backward.then(|| median_ms(effort, || work.forward_backward())).transpose()?;
        Ok(Record {
            name: self.name.clone(),
            kind: self.kind,
            shape: self.shape.clone(),
            ms_forward,
            ms_forward_backward,
            gflops_forward: work.flops() / ms_forward / 1e6,
            peak_mib: peak_mib(),
        })
    }
}

/// The mean of `n` runs in milliseconds, after one that is not counted.
pub fn mean_ms(n: u32, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let before = Instant::now();
    for _ in 0..n {
        run()?;
    }
    Ok(before.elapsed().as_secs_f64() * 1e3 / f64::from(n))
}

/// The median of repeated runs in milliseconds, after two that are not counted.
fn median_ms(effort: Effort, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
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

/// The arithmetic of `run`, as the layers count it.
pub fn counted<T>(run: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let before = flops::done();
    let result = run()?;
    Ok((result, (flops::done() - before) as f64))
}

/// Reproducible normal numbers of a deviation.
pub fn tensor(shape: &[usize], deviation: f32, seed: u64) -> Result<Tensor> {
    let values = normal(shape.iter().product(), seed).iter().map(|v| v * deviation).collect();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

type Parameters = Vec<(&'static str, Tensor)>;
type Build<L> = Box<dyn Fn(&[Tensor]) -> Result<L>>;
type Apply<L> = fn(&L, &FeatureMap) -> Result<FeatureMap>;

/// A layer on one input, without history for the forward pass and with it for the backward pass.
struct Layer<L> {
    x: FeatureMap,
    parameters: Parameters,
    build: Build<L>,
    apply: Apply<L>,
    fixed: Option<L>,
    trained: Option<Trained<L>>,
    flops: f64,
}

/// The layer with variables, an input that asks for its gradient, and a gradient of the output.
struct Trained<L> {
    layer: L,
    variables: Vec<Tensor>,
    x: FeatureMap,
    gradient: FeatureMap,
}

impl<L> Layer<L> {
    fn values(&self) -> Vec<Tensor> {
        self.parameters.iter().map(|(_, tensor)| tensor.clone()).collect()
    }

    fn run(&mut self) -> Result<FeatureMap> {
        if self.fixed.is_none() {
            self.fixed = Some((self.build)(&self.values())?);
        }
        let Some(layer) = &self.fixed else { unreachable!("built above") };
        let (y, flops) = counted(|| (self.apply)(layer, &self.x))?;
        // Operations that count nothing are passes over memory: about ten steps a number.
        self.flops = if flops > 0.0 { flops } else { 10.0 * y.dims().len() as f64 };
        Ok(y)
    }

    fn run_back(&mut self) -> Result<(&Trained<L>, GradStore)> {
        if self.trained.is_none() {
            let dims = self.run()?.dims();
            let gradient = tensor(&[dims.batch, dims.channels, dims.height, dims.width], 1.0, 9)?;
            let variable = |t: &Tensor| -> Result<Tensor> { Ok(Var::from_tensor(t)?.as_tensor().clone()) };
            let variables = self.values().iter().map(variable).collect::<Result<Vec<Tensor>>>()?;
            let layer = (self.build)(&variables)?;
            // Its gradient is asked for without the copy to and from N x C x H x W.
            let (x, gradient) = (self.x.requiring_gradient()?, FeatureMap::from_nchw(&gradient)?);
            self.trained = Some(Trained { layer, variables, x, gradient });
        }
        let Some(trained) = &self.trained else { unreachable!("built above") };
        let store = (self.apply)(&trained.layer, &trained.x)?.backward(&trained.gradient)?;
        Ok((trained, store))
    }
}

impl<L> Workload for Layer<L> {
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
        let mut io =
            BTreeMap::from([("x".to_owned(), self.x.to_nchw()?), ("y".to_owned(), self.run()?.to_nchw()?)]);
        let weights: BTreeMap<String, Tensor> =
            self.parameters.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
        let names: Vec<&str> = self.parameters.iter().map(|(name, _)| *name).collect();
        let apply = self.apply;
        let (trained, store) = self.run_back()?;
        io.insert("dy".to_owned(), trained.gradient.to_nchw()?);
        for (name, variable) in names.iter().zip(&trained.variables) {
            if let Some(gradient) = store.get(variable) {
                io.insert(format!("d.{name}"), gradient.clone());
            }
        }
        // The input's own gradient, this time through a variable.
        let x = Var::from_tensor(&io["x"])?;
        let store = apply(&trained.layer, &FeatureMap::from_nchw(&x)?)?.backward(&trained.gradient)?;
        if let Some(gradient) = store.get(&x) {
            io.insert("d.x".to_owned(), gradient.clone());
        }
        Ok(Export { weights, io, config: None })
    }
}

/// A layer's case; `parameters` and `build` are what it is made of.
fn case<L: 'static>(
    kind: &'static str,
    name: &str,
    shape: &[usize],
    (channels, parameters): (usize, fn(usize) -> Result<Parameters>),
    build: fn(&[Tensor], &[usize]) -> Result<L>,
    apply: Apply<L>,
) -> Case {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    let owned = shape.to_vec();
    let make = move || -> Result<Box<dyn Workload>> {
        let side = owned[owned.len() - 1];
        let (x, shape) = (tensor(&[owned[0], channels, side, side], 1.0, 1)?, owned.clone());
        Ok(Box::new(Layer {
            x: FeatureMap::from_nchw(&x)?,
            parameters: parameters(channels)?,
            build: Box::new(move |tensors| build(tensors, &shape)),
            apply,
            fixed: None,
            trained: None,
            flops: 0.0,
        }))
    };
    let (name, shape) = (format!("{name} {}", sizes.join("x")), shape.to_vec());
    Case { name, kind, shape, backward: true, build: Box::new(make) }
}

/// Batch, channels and side of the square maps of the convolution cases; output channels equal input channels.
const CONVOLUTIONS: [(usize, usize, usize); 6] =
    [(1, 128, 256), (1, 128, 64), (1, 256, 32), (1, 512, 16), (8, 64, 64), (16, 64, 32)];
/// The same of the norms.
const NORMS: [(usize, usize, usize); 2] = [(1, 128, 256), (8, 64, 64)];
/// Batch, heads, channels per head and side of the attention cases.
const ATTENTIONS: [(usize, usize, usize, usize); 3] = [(8, 4, 32, 16), (1, 8, 64, 16), (1, 4, 64, 64)];

/// A 3x3 convolution with bias.
fn convolution((n, c, size): (usize, usize, usize)) -> Case {
    let parameters =
        |c| Ok(vec![("weight", tensor(&[c, c, 3, 3], 0.05, 2)?), ("bias", tensor(&[c], 1.0, 3)?)]);
    let build =
        |p: &[Tensor], _: &[usize]| Conv2d::new(p[0].clone(), Some(p[1].clone()), ConvConfig::same(3));
    case("conv", "conv3x3", &[n, c, size, size], (c, parameters), build, |conv, x| conv.forward(x))
}

/// GroupNorm(32) + SiLU.
fn norm((n, c, size): (usize, usize, usize)) -> Case {
    let parameters = |c| Ok(vec![("weight", tensor(&[c], 1.0, 2)?), ("bias", tensor(&[c], 1.0, 3)?)]);
    let build = |p: &[Tensor], _: &[usize]| GroupNorm::new(p[0].clone(), p[1].clone(), 32, 1e-5);
    let apply = |norm: &GroupNorm, x: &FeatureMap| norm.forward_silu(x);
    case("norm", "groupnorm32+silu", &[n, c, size, size], (c, parameters), build, apply)
}

/// Self-attention without its projections.
fn attention((n, heads, dim, size): (usize, usize, usize, usize)) -> Case {
    let shape = [n, heads, dim, size, size];
    let (channels, build) = ((3 * heads * dim, |_| Ok(vec![])), |_: &[Tensor], shape: &[usize]| Ok(shape[1]));
    let apply = |heads: &usize, x: &FeatureMap| self_attention(x, *heads, QkvOrder::HeadFirst);
    case("attention", "attention", &shape, (channels.0, channels.1), build, apply)
}

/// A 2048 x 2048 x 2048 product on all threads.
struct Gemm {
    factors: (Tensor, Tensor),
    ours: Option<(FeatureMap, Linear)>,
}

const GEMM: usize = 2048;

impl Workload for Gemm {
    fn forward(&mut self) -> Result<()> {
        match &self.ours {
            Some((rows, linear)) => linear.forward(rows).map(drop),
            None => Ok(self.factors.0.matmul(&self.factors.1).map(drop)?),
        }
    }
    fn forward_backward(&mut self) -> Result<()> {
        self.forward()
    }
    fn flops(&self) -> f64 {
        2.0 * (GEMM * GEMM * GEMM) as f64
    }
    fn export(&mut self) -> Result<Export> {
        let io = BTreeMap::from([("x".to_owned(), self.factors.0.clone())]);
        let weights = BTreeMap::from([("weight".to_owned(), self.factors.1.t()?.contiguous()?)]);
        Ok(Export { weights, io, config: None })
    }
}

/// By candle (the `gemm` crate) or by the kernel under the layers: the faster is what this machine can do in practice.
fn gemm(ours: bool) -> Case {
    let build = move || -> Result<Box<dyn Workload>> {
        let (a, b) = (tensor(&[GEMM, GEMM], 1.0, 1)?, tensor(&[GEMM, GEMM], 1.0, 2)?);
        let linear = ours.then(|| -> Result<_> {
            Ok((FeatureMap::from_rows(&a)?, Linear::new(b.t()?.contiguous()?, None)?))
        });
        Ok(Box::new(Gemm { ours: linear.transpose()?, factors: (a, b) }))
    };
    let name = format!("sgemm {GEMM} ({})", if ours { "daps-nn" } else { "candle" });
    Case { name, kind: "gemm", shape: vec![GEMM; 3], backward: false, build: Box::new(build) }
}

/// All layers, the machine's peak first.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![gemm(false), gemm(true)];
    cases.extend(CONVOLUTIONS.map(convolution));
    cases.extend(NORMS.map(norm));
    cases.extend(ATTENTIONS.map(attention));
    cases
}
