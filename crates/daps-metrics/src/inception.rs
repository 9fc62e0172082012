//! Inception v3 as the Fréchet distance uses it: 2048 features of an image, from the weights of the original FID.
//!
//! Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception Architecture for Computer Vision", CVPR 2016. Every
//! convolution is followed by batch normalisation without a scale (ε = 0.001), which is folded into it, and a ReLU. Means over
//! 3x3 count what is inside the image, and the last block takes a maximum instead: both as in the network that FID was defined
//! with.

use candle_core::{DType, Tensor};
use daps_core::tensors::{check_finite, to_f64};
use daps_core::{Error, Result};
use rayon::prelude::*;

use crate::convnet::{Conv, Weights, avg_pool, images, max_pool, weight};

/// Side of the images that the network was trained on.
const SIDE: usize = 299;
/// Numbers that describe an image.
pub const FEATURES: usize = 2048;
/// What keeps batch normalisation defined.
const EPSILON: f64 = 1e-3;

/// The feature network.
pub struct Inception {
    stem: Vec<Conv>,
    blocks: Vec<Block>,
}

/// Parallel towers whose results are put side by side.
enum Block {
    /// Towers; `pooled` gives the place of the one that starts with a mean or maximum over 3x3.
    Towers { towers: Vec<Vec<Conv>>, pooled: Option<usize>, halves: bool },
    /// The last two, whose towers split in two.
    Split(Box<Split>),
}

struct Split {
    conv: Conv,
    /// Towers, each with the pair that its result goes through.
    towers: [(Vec<Conv>, [Conv; 2]); 2],
    pool: Conv,
    max: bool,
}

impl Inception {
    /// From `NAME.weight`, `.beta`, `.mean` and `.var` of every convolution, named as in the original graph.
    pub fn new(weights: &Weights) -> Result<Self> {
        let conv = |name: String, stride: usize, same: bool| folded(weights, &name, stride, same);
        let stem = ["conv", "conv_1", "conv_2", "conv_3", "conv_4"];
        // Of the five first convolutions only the third keeps the size.
        let stem = stem
            .iter()
            .enumerate()
            .map(|(k, name)| conv((*name).to_owned(), if k == 0 { 2 } else { 1 }, k == 2));
        let mut blocks = Vec::new();
        for k in 0..11 {
            let base = if k == 0 { "mixed".to_owned() } else { format!("mixed_{k}") };
            let tower = |name: &str, count: usize, halves: bool| -> Result<Vec<Conv>> {
                let each = (0..count).map(|i| {
                    let suffix = if i == 0 { String::new() } else { format!("_{i}") };
                    let last = halves && i + 1 == count;
                    let part = if name.is_empty() { base.clone() } else { format!("{base}.{name}") };
                    conv(format!("{part}.conv{suffix}"), if last { 2 } else { 1 }, !last)
                });
                each.collect()
            };
            blocks.push(match k {
                0..=2 => Block::Towers {
                    towers: vec![
                        tower("", 1, false)?,
                        tower("tower", 2, false)?,
                        tower("tower_1", 3, false)?,
                        tower("tower_2", 1, false)?,
                    ],
                    pooled: Some(3),
                    halves: false,
                },
                3 => Block::Towers {
                    towers: vec![tower("", 1, true)?, tower("tower", 3, true)?],
                    pooled: None,
                    halves: true,
                },
                4..=7 => Block::Towers {
                    towers: vec![
                        tower("", 1, false)?,
                        tower("tower", 3, false)?,
                        tower("tower_1", 5, false)?,
                        tower("tower_2", 1, false)?,
                    ],
                    pooled: Some(3),
                    halves: false,
                },
                8 => Block::Towers {
                    towers: vec![tower("tower", 2, true)?, tower("tower_1", 4, true)?],
                    pooled: None,
                    halves: true,
                },
                _ => {
                    let part = |name: &str| conv(format!("{base}.{name}"), 1, true);
                    let first =
                        (vec![part("tower_conv")?], [part("tower_mixed_conv")?, part("tower_mixed_conv_1")?]);
                    let second = (
                        vec![part("tower_1_conv")?, part("tower_1_conv_1")?],
                        [part("tower_1_mixed_conv")?, part("tower_1_mixed_conv_1")?],
                    );
                    let (conv, pool) = (part("conv")?, part("tower_2_conv")?);
                    Block::Split(Box::new(Split { conv, towers: [first, second], pool, max: k == 10 }))
                }
            });
        }
        Ok(Self { stem: stem.collect::<Result<_>>()?, blocks })
    }

    /// 2048 features of every image `[n, 3, height, width]` in [-1, 1], row by row.
    pub fn features(&self, x: &Tensor) -> Result<Vec<f64>> {
        check_finite("images", x)?;
        let x = images(x)?;
        let mut all = Vec::with_capacity(x.dims()[0] * FEATURES);
        for i in 0..x.dims()[0] {
            let mut x = resize(&x.narrow(0, i, 1)?, SIDE)?;
            for (k, conv) in self.stem.iter().enumerate() {
                x = conv.relu(&x)?;
                if k == 2 || k == 4 {
                    x = max_pool(&x, 3, 2, 0)?;
                }
            }
            for block in &self.blocks {
                x = block.run(&x)?;
            }
            all.extend(to_f64(&avg_pool(&x, 8, 8, 0)?)?);
        }
        Ok(all)
    }
}

fn chain(convs: &[Conv], x: &Tensor) -> Result<Tensor> {
    convs.iter().try_fold(x.clone(), |x, conv| conv.relu(&x))
}

impl Block {
    fn run(&self, x: &Tensor) -> Result<Tensor> {
        let mut parts = Vec::new();
        match self {
            Self::Towers { towers, pooled, halves } => {
                for (k, tower) in towers.iter().enumerate() {
                    let start = if Some(k) == *pooled { avg_pool(x, 3, 1, 1)? } else { x.clone() };
                    parts.push(chain(tower, &start)?);
                }
                if *halves {
                    parts.push(max_pool(x, 3, 2, 0)?);
                }
            }
            Self::Split(split) => {
                parts.push(split.conv.relu(x)?);
                for (tower, pair) in &split.towers {
                    let inner = chain(tower, x)?;
                    parts.push(pair[0].relu(&inner)?);
                    parts.push(pair[1].relu(&inner)?);
                }
                let pooled = if split.max { max_pool(x, 3, 1, 1)? } else { avg_pool(x, 3, 1, 1)? };
                parts.push(split.pool.relu(&pooled)?);
            }
        }
        Ok(Tensor::cat(&parts, 1)?)
    }
}

/// A convolution with its normalisation folded in; `same` pads so that the size stays.
fn folded(weights: &Weights, name: &str, stride: usize, same: bool) -> Result<Conv> {
    let part = |what: &str| weight(weights, &format!("{name}.{what}"));
    let w = part("weight")?;
    let &[out, _, kh, kw] = w.dims() else {
        return Err(Error::shape(format!("{name}.weight"), &[0, 0, 0, 0], w.dims()));
    };
    let (beta, mean, var) = (to_f64(&part("beta")?)?, to_f64(&part("mean")?)?, to_f64(&part("var")?)?);
    if [beta.len(), mean.len(), var.len()] != [out; 3] {
        return Err(Error::invalid(
            format!("normalisation of {name}"),
            format!("{out} numbers each"),
            format!("{}, {} and {}", beta.len(), mean.len(), var.len()),
        ));
    }
    let scale: Vec<f64> = var.iter().map(|v| 1.0 / (v + EPSILON).sqrt()).collect();
    let bias: Vec<f32> = (0..out).map(|k| (beta[k] - mean[k] * scale[k]) as f32).collect();
    let scale: Vec<f32> = scale.iter().map(|s| *s as f32).collect();
    let scaled = w.broadcast_mul(&Tensor::from_vec(scale, (out, 1, 1, 1), w.device())?)?;
    let padding = if same { (kh / 2, kw / 2) } else { (0, 0) };
    Conv::new(scaled, Tensor::from_vec(bias, out, w.device())?, stride, padding)
}

/// Bilinear resizing to a square, pixel centres aligned, without smoothing first.
fn resize(x: &Tensor, side: usize) -> Result<Tensor> {
    let &[n, c, h, w] = x.dims() else { return Err(Error::shape("images", &[1, 3, side, side], x.dims())) };
    if (h, w) == (side, side) {
        return Ok(x.clone());
    }
    let taps = |i: usize, from: usize| {
        let at = ((i as f64 + 0.5) * from as f64 / side as f64 - 0.5).max(0.0);
        let low = (at as usize).min(from - 1);
        (low, (low + 1).min(from - 1), (at - low as f64) as f32)
    };
    let values: Vec<f32> = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    let mut out = vec![0f32; n * c * side * side];
    out.par_chunks_mut(side).enumerate().for_each(|(line, out)| {
        let plane = &values[line / side * h * w..][..h * w];
        let (top, bottom, v) = taps(line % side, h);
        for (j, out) in out.iter_mut().enumerate() {
            let (left, right, u) = taps(j, w);
            let across = |row: usize| (1.0 - u) * plane[row * w + left] + u * plane[row * w + right];
            *out = (1.0 - v) * across(top) + v * across(bottom);
        }
    });
    Ok(Tensor::from_vec(out, (n, c, side, side), x.device())?)
}
