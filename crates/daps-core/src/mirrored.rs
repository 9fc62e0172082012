//! The waves cos(πki/(n-1)) along both sides of a plane: those of an image that is mirrored at its outermost pixels. Blurs with such
//! borders are diagonal in them, though the waves are orthogonal only nearly.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use rustdct::{Dct1, DctPlanner};

use crate::line::each_line;
use crate::tensors::map_rows;
use crate::{Error, Result};

/// The waves S of planes, each scaled to about unit length.
pub struct MirroredWaves {
    shape: [usize; 3],
    sides: [Arc<dyn Dct1<f64>>; 2],
}

impl fmt::Debug for MirroredWaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MirroredWaves({:?})", self.shape)
    }
}

impl MirroredWaves {
    /// For samples of a shape `[channels, height, width]` with sides of two pixels at least.
    pub fn new(shape: &[usize]) -> Result<Self> {
        let &[channels, height @ (2..), width @ (2..)] = shape else {
            let expected = "images [channels, height, width] of 2x2 pixels at least";
            return Err(Error::invalid("mirrored waves", expected, format!("{shape:?}")));
        };
        let mut planner = DctPlanner::new();
        let sides = [planner.plan_dct1(height), planner.plan_dct1(width)];
        Ok(Self { shape: [channels, height, width], sides })
    }

    /// S⁻¹ x for images in f64, row by row.
    pub fn coefficients(&self, x: &Tensor) -> Result<Tensor> {
        self.map(x, |side, line, scratch| {
            side.process_dct1_with_scratch(line, scratch);
            scale(line);
        })
    }

    /// S⁻ᵀ c.
    pub fn coefficients_transposed(&self, c: &Tensor) -> Result<Tensor> {
        self.map(c, |side, line, scratch| {
            scale(line);
            scale_ends(line, 2.0);
            side.process_dct1_with_scratch(line, scratch);
            scale_ends(line, 0.5);
        })
    }

    fn map(
        &self,
        x: &Tensor,
        change: impl Fn(&dyn Dct1<f64>, &mut [f64], &mut [f64]) + Sync,
    ) -> Result<Tensor> {
        let [_, height, width] = self.shape;
        let [down, across] = &self.sides;
        let x = x.to_dtype(DType::F64)?;
        map_rows::<f64>("image", &x, &self.shape, &self.shape, |_, x, out| {
            for (x, out) in x.chunks(height * width).zip(out.chunks_mut(height * width)) {
                let mut turned = vec![0.0; height * width];
                each_line(x, width, height, &mut turned, height, down.get_scratch_len(), |line, scratch| {
                    change(&**down, line, scratch);
                });
                each_line(&turned, height, width, out, width, across.get_scratch_len(), |line, scratch| {
                    change(&**across, line, scratch);
                });
            }
        })
    }
}

/// What makes coefficients of unit waves from sums: the inverse transform's factor, and the root of a wave's square sum.
fn scale(line: &mut [f64]) {
    let intervals = (line.len() - 1) as f64;
    let inner = (2.0 / intervals).sqrt();
    line.iter_mut().for_each(|v| *v *= inner);
    scale_ends(line, std::f64::consts::FRAC_1_SQRT_2);
}

fn scale_ends(line: &mut [f64], by: f64) {
    let last = line.len() - 1;
    line[0] *= by;
    line[last] *= by;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{dot_rows, from_f64, to_f64};
    use crate::{Address, Noise, Purpose};

    /// The coefficients of a sum of waves are its factors, and the transpose is one.
    #[test]
    fn coefficients_are_those_of_the_waves() {
        for (h, w) in [(2, 3), (5, 4), (9, 16)] {
            let waves = MirroredWaves::new(&[1, h, w]).unwrap();
            let draw = |i| {
                let at = Address::new(0, Purpose::Instance, i);
                Noise::chains(1, 2).normal(at, &[1, h, w], DType::F64).unwrap()
            };
            let (c, r) = (draw(0), draw(1));
            let unit = |k: usize, i: usize, n: usize| {
                let norm = (n - 1) as f64 * if k == 0 || k == n - 1 { 1.0 } else { 0.5 };
                (std::f64::consts::PI * (k * i) as f64 / (n - 1) as f64).cos() / norm.sqrt()
            };
            let sum = |c: &[f64], at: usize| {
                let wave = |k: usize| unit(k / w, at / w, h) * unit(k % w, at % w, w);
                (0..h * w).map(|k| c[k] * wave(k)).sum::<f64>()
            };
            let x = to_f64(&c)
                .unwrap()
                .chunks(h * w)
                .flat_map(|c| (0..h * w).map(|at| sum(c, at)).collect::<Vec<_>>())
                .collect();
            let x = from_f64(x, &[2, 1, h, w], DType::F64).unwrap();
            let back = to_f64(&waves.coefficients(&x).unwrap()).unwrap();
            assert!(back.iter().zip(to_f64(&c).unwrap()).all(|(a, b)| (a - b).abs() < 1e-12), "{h}x{w}");
            let one = dot_rows(&waves.coefficients(&x).unwrap(), &r).unwrap();
            let other = dot_rows(&x, &waves.coefficients_transposed(&r).unwrap()).unwrap();
            assert!(one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-11));
        }
        assert!(MirroredWaves::new(&[1, 1, 4]).is_err());
    }
}
