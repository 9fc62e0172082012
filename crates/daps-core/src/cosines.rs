//! Images by frequency: the orthonormal two-dimensional cosine transform of every channel. Natural images have nearly
//! uncorrelated coefficients there, and so have the errors of a denoiser.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::line::{Line, Number};
use crate::tensors::{BLOCK, Real, check_rows, map_rows, with_slice};
use crate::{Error, Result, with_real};

/// Red, green and blue into grey and two differences of colour, orthonormal.
const COLORS: [[f64; 3]; 3] = [
    [0.577_350_269_189_625_8, 0.577_350_269_189_625_8, 0.577_350_269_189_625_8],
    [std::f64::consts::FRAC_1_SQRT_2, 0.0, -std::f64::consts::FRAC_1_SQRT_2],
    [0.408_248_290_463_863, -0.816_496_580_927_726, 0.408_248_290_463_863],
];

/// The transform T of images `[channels, height, width]`: cosines along both sides and, of three
/// channels, grey and two differences of colour.
#[derive(Clone, Debug)]
pub struct Cosines {
    shape: [usize; 3],
    height: Arc<Line>,
    width: Arc<Line>,
}

impl Cosines {
    /// For samples of a shape `[channels, height, width]`.
    pub fn new(shape: &[usize]) -> Result<Self> {
        let &[channels, height, width] = shape else {
            return Err(Error::invalid(
                "frequencies",
                "images [channels, height, width]",
                format!("{shape:?}"),
            ));
        };
        Ok(Self {
            shape: [channels, height, width],
            height: Arc::new(Line::new(height)),
            width: Arc::new(Line::new(width)),
        })
    }

    /// Shape of an image and of its coefficients.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The frequency of every coefficient of a channel, in half periods a pixel: 0 for its mean, below √2 for all.
    #[must_use]
    pub fn frequencies(&self) -> Vec<f64> {
        let [_, height, width] = self.shape;
        (0..height * width).into_par_iter().map(|k| self.frequency(k)).collect()
    }

    /// That of one of them.
    pub(crate) fn frequency(&self, k: usize) -> f64 {
        let [_, height, width] = self.shape;
        ((k / width) as f64 / height as f64).hypot((k % width) as f64 / width as f64)
    }

    /// Some numbers at every frequency of a plane, `[number][frequency]`, from a function that writes them for one.
    pub(crate) fn at_frequencies<T: Real>(&self, count: usize, f: impl Fn(f64, &mut [f64]) + Sync) -> Vec<T> {
        let plane = self.shape[1] * self.shape[2];
        let mut out = vec![T::default(); count * plane];
        let mut tasks: Vec<Vec<&mut [T]>> = Vec::new();
        tasks.resize_with(plane.div_ceil(BLOCK), || Vec::with_capacity(count));
        for numbers in out.chunks_mut(plane) {
            tasks.iter_mut().zip(numbers.chunks_mut(BLOCK)).for_each(|(task, part)| task.push(part));
        }
        tasks.into_par_iter().enumerate().for_each(|(block, mut parts)| {
            let mut at = vec![0.0; count];
            for k in 0..parts[0].len() {
                f(self.frequency(block * BLOCK + k), &mut at);
                parts.iter_mut().zip(&at).for_each(|(part, v)| part[k] = T::of(*v));
            }
        });
        out
    }

    /// T x, row by row.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.colors(&self.waves(x)?)
    }

    /// Tᵀ c = T⁻¹ c, row by row.
    pub fn back(&self, c: &Tensor) -> Result<Tensor> {
        self.colors_back(&self.waves_back(c)?)
    }

    /// Cosines along both sides of every plane, colours as they are.
    pub fn waves(&self, x: &Tensor) -> Result<Tensor> {
        let [_, height, width] = self.shape;
        self.first_waves(x, [height, width])
    }

    /// The inverse of [`Self::waves`].
    pub fn waves_back(&self, c: &Tensor) -> Result<Tensor> {
        with_real!(c.dtype(), T => self.along_sides::<T>(c, [c.dims()[2], c.dims()[3]], true))
    }

    /// The coefficients of the first frequencies along both sides alone, `[rows, channels, …first]`; [`Self::waves_back`] takes them for
    /// all that there are.
    pub fn first_waves(&self, x: &Tensor, first: [usize; 2]) -> Result<Tensor> {
        with_real!(x.dtype(), T => self.along_sides::<T>(x, first, false))
    }

    /// The planes of three colours turned into grey and two differences of colour, of pixels or of coefficients; others as they are.
    pub fn colors(&self, x: &Tensor) -> Result<Tensor> {
        with_real!(x.dtype(), T => self.turn::<T>(x, false))
    }

    /// The inverse of [`Self::colors`].
    pub fn colors_back(&self, x: &Tensor) -> Result<Tensor> {
        with_real!(x.dtype(), T => self.turn::<T>(x, true))
    }

    /// Between planes and their first `p x q` coefficients.
    fn along_sides<T: Number>(&self, x: &Tensor, [p, q]: [usize; 2], back: bool) -> Result<Tensor> {
        let [channels, height, width] = self.shape;
        let (from, to) = if back { ([p, q], [height, width]) } else { ([height, width], [p, q]) };
        let batch = check_rows("image", x, &[channels, from[0], from[1]])?;
        if p > height || q > width {
            return Err(Error::shape("coefficients", &self.shape, x.dims()));
        }
        let (input, output) = (from[0] * from[1], to[0] * to[1]);
        let mut out = vec![T::default(); batch * channels * output];
        with_slice(x, |x: &[T]| {
            out.par_chunks_mut(output).zip(x.par_chunks(input)).for_each(|(out, x)| {
                // Columns, which then lie as rows, and rows.
                let mut turned = vec![T::default(); from[1] * to[0]];
                self.height.turn(x, from[0], &mut turned, to[0], back);
                self.width.turn(&turned, from[1], out, to[1], back);
            });
        })?;
        Ok(Tensor::from_vec(out, &[batch, channels, to[0], to[1]][..], &Device::Cpu)?)
    }

    fn turn<T: Number>(&self, x: &Tensor, back: bool) -> Result<Tensor> {
        let [channels, height, width] = self.shape;
        if channels != COLORS.len() {
            return Ok(x.clone());
        }
        let plane = height * width;
        let color = |i: usize, j: usize| T::of(if back { COLORS[j][i] } else { COLORS[i][j] });
        let turn: [[T; 3]; 3] = std::array::from_fn(|i| std::array::from_fn(|j| color(i, j)));
        map_rows::<T>("image", x, &self.shape, &self.shape, |_, x, out| {
            let (first, rest) = x.split_at(plane);
            let (second, third) = rest.split_at(plane);
            for (out, turn) in out.chunks_mut(plane).zip(&turn) {
                let seen = first.iter().zip(second).zip(third);
                for (out, ((a, b), c)) in out.iter_mut().zip(seen) {
                    *out = turn[0] * *a + turn[1] * *b + turn[2] * *c;
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{dot_rows, from_f64, to_f64};
    use crate::{Address, Noise, Purpose};
    use candle_core::DType;

    #[test]
    fn the_transform_is_orthonormal_and_turns_back() {
        for shape in [[3, 4, 6], [1, 5, 3], [2, 8, 8]] {
            let cosines = Cosines::new(&shape).unwrap();
            let noise = Noise::chains(1, 2);
            let at = |i| Address::new(0, Purpose::Instance, i);
            let draw = |i| noise.normal(at(i), &shape, DType::F64).unwrap();
            let (a, b) = (draw(0), draw(1));
            let (ta, tb) = (cosines.forward(&a).unwrap(), cosines.forward(&b).unwrap());
            for (x, y) in dot_rows(&a, &b).unwrap().iter().zip(dot_rows(&ta, &tb).unwrap()) {
                assert!((x - y).abs() < 1e-12);
            }
            for (x, y) in to_f64(&a).unwrap().iter().zip(to_f64(&cosines.back(&ta).unwrap()).unwrap()) {
                assert!((x - y).abs() < 1e-12);
            }
            let single = cosines.forward(&a.to_dtype(DType::F32).unwrap()).unwrap();
            for (x, y) in to_f64(&ta).unwrap().iter().zip(to_f64(&single).unwrap()) {
                assert!((x - y).abs() < 1e-5);
            }
        }
        assert!(Cosines::new(&[4, 4]).is_err());
    }

    /// The first coefficients alone are those of the whole transform, and what they stand for is what it gives with zeros for the others.
    #[test]
    fn the_first_coefficients_are_a_part_of_the_transform() {
        let cosines = Cosines::new(&[2, 5, 7]).unwrap();
        let at = Address::new(0, Purpose::Instance, 0);
        let x = Noise::chains(1, 3).normal(at, &[2, 5, 7], DType::F64).unwrap();
        let (all, first) = (cosines.waves(&x).unwrap(), cosines.first_waves(&x, [2, 3]).unwrap());
        let block = all.narrow(2, 0, 2).unwrap().narrow(3, 0, 3).unwrap();
        let padded = block.pad_with_zeros(2, 0, 3).unwrap().pad_with_zeros(3, 0, 4).unwrap();
        let close = |a: &Tensor, b: &Tensor| {
            assert_eq!(a.dims(), b.dims());
            assert!(to_f64(a).unwrap().iter().zip(to_f64(b).unwrap()).all(|(a, b)| (a - b).abs() < 1e-12));
        };
        close(&first, &block);
        close(&cosines.waves_back(&first).unwrap(), &cosines.waves_back(&padded).unwrap());
        assert!(cosines.first_waves(&x, [6, 3]).is_err());
    }

    /// A grey ramp of one cosine has one coefficient, at its frequency and in the grey channel.
    #[test]
    fn a_cosine_is_one_coefficient() {
        let (h, w, k) = (4, 6, 2);
        let wave =
            |i: usize| (std::f64::consts::PI * k as f64 * (2 * (i % w) + 1) as f64 / (2 * w) as f64).cos();
        let x = from_f64((0..3 * h * w).map(wave).collect(), &[1, 3, h, w], DType::F64).unwrap();
        let cosines = Cosines::new(&[3, h, w]).unwrap();
        let c = to_f64(&cosines.forward(&x).unwrap()).unwrap();
        let energy = (0..3 * h * w).map(wave).map(|v| v * v).sum::<f64>();
        assert!((c[k].powi(2) - energy).abs() < 1e-12, "{c:?}");
        assert!(c.iter().enumerate().all(|(i, v)| i == k || v.abs() < 1e-12));
        assert!((cosines.frequencies()[k] - k as f64 / w as f64).abs() < 1e-15);
    }
}
