//! Bicubic up-sampling: what any viewer does with a small image, the obvious answer to super-resolution.
//!
//! Paper: Keys, "Cubic convolution interpolation for digital image processing", IEEE TASSP 1981, a = -1/2: pixel i of the large
//! image lies at (i + ½)/f - ½ of the small one, after a shift that keeps the middle where the sides were rounded up; borders are
//! mirrored. It uses neither the prior nor the noise level.

use daps_core::candle::Tensor;
use daps_core::tensors::{Real, map_rows};
use daps_core::{
    Error, Level, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, State, Walk, shrink_factor,
    with_real,
};
use serde::{Deserialize, Serialize};

use crate::rivals::{gaussian, iterations};

/// Bicubic up-sampling has no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bicubic {}

static INFO: MethodInfo = MethodInfo {
    name: "bicubic",
    summary: "bicubic up-sampling of a measured image that is smaller by a whole factor",
    paper: "Keys, Cubic convolution interpolation for digital image processing, 1981",
};

/// Keys' kernel with a = -1/2.
fn keys(t: f64) -> f64 {
    let t = t.abs();
    match t {
        _ if t < 1.0 => (1.5 * t - 2.5) * t * t + 1.0,
        _ if t < 2.0 => ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0,
        _ => 0.0,
    }
}

/// The four places and weights from which pixel i of the large axis is made, `large` pixels from `n`.
fn taps(i: usize, factor: usize, large: usize, n: usize) -> [(usize, f64); 4] {
    let beyond = (factor * n) as f64 - large as f64;
    let at = (i as f64 + 0.5 + 0.5 * beyond) / factor as f64 - 0.5;
    let first = at.floor() as isize - 1;
    std::array::from_fn(|k| {
        let place = first + k as isize;
        // Mirrored about the border between pixels, as often as it takes.
        let turn = place.rem_euclid(2 * n as isize) as usize;
        (if turn < n { turn } else { 2 * n - 1 - turn }, keys(at - place as f64))
    })
}

/// `[c, h, w]` planes made larger by a whole factor.
fn enlarge<T: Real>(y: &Tensor, small: &[usize], large: &[usize], factor: usize) -> Result<Tensor> {
    let (&[_, h, w], &[_, lh, lw]) = (small, large) else {
        return Err(Error::shape("image", large, small));
    };
    let (rows, columns): (Vec<_>, Vec<_>) = (
        (0..lh).map(|i| taps(i, factor, lh, h)).collect(),
        (0..lw).map(|j| taps(j, factor, lw, w)).collect(),
    );
    map_rows::<T>("bicubic", y, small, large, |_, y, out| {
        for (y, out) in y.chunks(h * w).zip(out.chunks_mut(lh * lw)) {
            for (out, row) in out.chunks_mut(lw).zip(&rows) {
                let line: Vec<f64> = (0..w)
                    .map(|j| row.iter().map(|(i, weight)| weight * y[i * w + j].wide()).sum())
                    .collect();
                for (out, column) in out.iter_mut().zip(&columns) {
                    *out = T::of(column.iter().map(|(j, weight)| weight * line[*j]).sum());
                }
            }
        }
    })
}

impl Method for Bicubic {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::SmallerImage]
    }

    fn schedule(&self) -> Result<Schedule> {
        iterations(1)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let (model, likelihood) = (&**task.denoiser("bicubic")?, gaussian("bicubic", task)?);
        let small = likelihood.operator().output_shape();
        let factor = shrink_factor(model.shape(), small).ok_or_else(|| {
            Error::missing("bicubic", Need::SmallerImage.words(), likelihood.operator().name())
        })?;
        let y = likelihood.y().to_dtype(model.dtype())?;
        let x = with_real!(y.dtype(), T => enlarge::<T>(&y, small, model.shape(), factor))?;
        walk.run(
            || Ok(State::start(x)),
            |state, _| Ok(Level::new(state.x_t.clone(), state.x_t.clone(), 0, 0)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::candle::Device;
    use daps_core::tensors::to_f64;

    /// Cubic convolution reproduces second-degree polynomials away from borders, and constants everywhere.
    #[test]
    fn parabolas_are_reproduced() {
        let (h, w, f) = (7, 9, 3);
        let value = |u: f64, v: f64| 0.1 + 0.3 * u - 0.2 * v + 0.05 * u * u - 0.04 * u * v;
        let small: Vec<f64> = (0..h * w).map(|k| value((k / w) as f64, (k % w) as f64)).collect();
        let y = Tensor::from_vec(small, (1, 1, h, w), &Device::Cpu).unwrap();
        let x = to_f64(&enlarge::<f64>(&y, &[1, h, w], &[1, h * f, w * f], f).unwrap()).unwrap();
        let place = |i: usize| (i as f64 + 0.5) / f as f64 - 0.5;
        for i in 2 * f..(h - 2) * f {
            for j in 2 * f..(w - 2) * f {
                let expected = value(place(i), place(j));
                assert!((x[i * w * f + j] - expected).abs() < 1e-12, "({i}, {j})");
            }
        }
        // One row and two columns less: their middle is that of the small image.
        let x = to_f64(&enlarge::<f64>(&y, &[1, h, w], &[1, h * f - 1, w * f - 2], f).unwrap()).unwrap();
        for i in 2 * f..(h - 2) * f {
            for j in 2 * f..(w - 2) * f {
                let place = |i: usize, less: f64| (i as f64 + 0.5 * less + 0.5) / f as f64 - 0.5;
                let expected = value(place(i, 1.0), place(j, 2.0));
                assert!((x[i * (w * f - 2) + j] - expected).abs() < 1e-12, "({i}, {j})");
            }
        }
        let ones = Tensor::ones((1, 1, 2, 3), daps_core::candle::DType::F64, &Device::Cpu).unwrap();
        let large = to_f64(&enlarge::<f64>(&ones, &[1, 2, 3], &[1, 8, 12], 4).unwrap()).unwrap();
        assert!(large.iter().all(|v| (v - 1.0).abs() < 1e-12));
    }

    /// A row of 0 and 1, twice as large: left of 0 lie 0 and 1 again, so that pixel 0 has the weights of -1.75 and 1.25 of the 1.
    #[test]
    fn borders_are_mirrored() {
        let y = Tensor::new(&[[[[0.0f64, 1.0]]]], &Device::Cpu).unwrap();
        let x = to_f64(&enlarge::<f64>(&y, &[1, 1, 2], &[1, 2, 4], 2).unwrap()).unwrap();
        assert!((x[0] + 0.09375).abs() < 1e-12, "{}", x[0]);
        assert!((x[3] - 1.09375).abs() < 1e-12, "{}", x[3]);
    }
}
