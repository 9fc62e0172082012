//! Noise levels and classes as vectors that a network reads.

use candle_core::{Device, Tensor};
use daps_nn::{FeatureMap, Result};

/// cos(x f) for all frequencies, then sin(x f), one row per sample. The product is rounded to f32, as in the networks'
/// training: at x = 999 the rounding is part of what they learned.
pub(crate) fn sinusoids(x: &[f32], frequencies: &[f32], swap: bool, device: &Device) -> Result<FeatureMap> {
    let mut values = Vec::with_capacity(x.len() * 2 * frequencies.len());
    for x in x {
        let angles = frequencies.iter().map(|f| f64::from(x * f));
        let cos = angles.clone().map(|a| a.cos() as f32);
        let sin = angles.map(|a| a.sin() as f32);
        if swap {
            values.extend(sin.chain(cos));
        } else {
            values.extend(cos.chain(sin));
        }
    }
    FeatureMap::from_rows(&Tensor::from_vec(values, (x.len(), 2 * frequencies.len()), device)?)
}

/// 10000^(-i/n) for i below `half`.
pub(crate) fn positional_frequencies(half: usize, n: f64) -> Vec<f32> {
    (0..half).map(|i| (-(10000f64.ln()) * i as f64 / n).exp() as f32).collect()
}

/// One row per sample, `value` at the class, zeros elsewhere.
pub(crate) fn one_hot(classes: &[usize], count: usize, value: f32, device: &Device) -> Result<FeatureMap> {
    let mut rows = vec![0f32; classes.len() * count];
    for (row, class) in rows.chunks_mut(count).zip(classes) {
        row[*class] = value;
    }
    FeatureMap::from_rows(&Tensor::from_vec(rows, (classes.len(), count), device)?)
}
