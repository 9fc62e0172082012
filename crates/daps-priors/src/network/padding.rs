//! Images of any size for networks that halve them: reflected at the right and the bottom up to what the network divides by, and
//! cropped again.
//!
//! Pixels reflect about the last one, which is not repeated; where a side is shorter than what is added, they reflect again and again.

use candle_core::{Device, Result, Tensor};

/// The padding of images of one size to multiples of a factor.
pub(crate) struct Padding {
    sides: [Side; 2],
}

/// One side: its axis, its length, and that of the padded side.
struct Side {
    axis: usize,
    from: usize,
    to: usize,
}

impl Side {
    /// The pixel that each one of the padded side shows; nothing where none is added.
    fn shown(&self) -> Result<Option<Tensor>> {
        if self.from == self.to {
            return Ok(None);
        }
        // There and back again.
        let period = (2 * (self.from - 1)).max(1);
        let at = |i: usize| (i % period).min(period - i % period) as u32;
        let at = |i: usize| if self.from == 1 { 0 } else { at(i) };
        Tensor::from_vec((0..self.to).map(at).collect(), self.to, &Device::Cpu).map(Some)
    }
}

impl Padding {
    /// For a batch of images.
    pub(crate) fn of(x: &Tensor, factor: usize) -> Result<Self> {
        let (_, _, height, width) = x.dims4()?;
        let side = |axis, from: usize| Side { axis, from, to: from.next_multiple_of(factor) };
        Ok(Self { sides: [side(2, height), side(3, width)] })
    }

    /// Does something to one side after the other, where there is something to add.
    fn each(&self, x: &Tensor, f: impl Fn(&Tensor, &Side, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let mut x = x.clone();
        for side in &self.sides {
            if let Some(shown) = side.shown()? {
                x = f(&x, side, &shown)?;
            }
        }
        Ok(x)
    }

    /// The padded images.
    pub(crate) fn pad(&self, x: &Tensor) -> Result<Tensor> {
        self.each(x, |x, side, shown| x.contiguous()?.index_select(shown, side.axis))
    }

    /// The transpose of [`Self::pad`]: what was added goes to the pixels that it shows.
    pub(crate) fn fold(&self, gradient: &Tensor) -> Result<Tensor> {
        self.each(gradient, |gradient, side, shown| {
            let mut sizes = gradient.dims().to_vec();
            sizes[side.axis] = side.from;
            let zeros = Tensor::zeros(sizes, gradient.dtype(), gradient.device())?;
            zeros.index_add(shown, &gradient.contiguous()?, side.axis)
        })
    }

    /// The images that were padded.
    pub(crate) fn crop(&self, x: &Tensor) -> Result<Tensor> {
        self.each(x, |x, side, _| x.narrow(side.axis, 0, side.from)?.contiguous())
    }

    /// The transpose of [`Self::crop`]: zeros where something was added.
    pub(crate) fn fill(&self, gradient: &Tensor) -> Result<Tensor> {
        self.each(gradient, |gradient, side, _| gradient.pad_with_zeros(side.axis, 0, side.to - side.from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;
    use daps_core::tensors::to_f64;

    fn image(height: usize, width: usize, phase: f64) -> Tensor {
        let values = (0..2 * 3 * height * width).map(|i| (i as f64 * 0.7 + phase).sin()).collect();
        Tensor::from_vec(values, (2, 3, height, width), &Device::Cpu).unwrap()
    }

    fn dot(a: &Tensor, b: &Tensor) -> f64 {
        to_f64(a).unwrap().iter().zip(to_f64(b).unwrap()).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn pixels_reflect_as_often_as_it_takes() {
        for (side, factor, expected) in [
            (1, 4, vec![0.0, 0.0, 0.0, 0.0]),
            (2, 8, vec![0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]),
            (3, 8, vec![0.0, 1.0, 2.0, 1.0, 0.0, 1.0, 2.0, 1.0]),
            (5, 4, vec![0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]),
            (4, 4, vec![0.0, 1.0, 2.0, 3.0]),
        ] {
            let line = Tensor::arange(0.0, side as f64, &Device::Cpu).unwrap();
            for (height, width) in [(1, side), (side, 1)] {
                let x = line.reshape((1, 1, height, width)).unwrap();
                let padded = Padding::of(&x, factor).unwrap().pad(&x).unwrap();
                let (rows, columns) = (height.next_multiple_of(factor), width.next_multiple_of(factor));
                assert_eq!(padded.dims(), [1, 1, rows, columns]);
                let seen = to_f64(&padded).unwrap();
                let step = if width == side { 1 } else { columns };
                assert!((0..expected.len()).all(|i| seen[i * step] == expected[i]), "{side}: {seen:?}");
            }
        }
    }

    /// ⟨P x, y⟩ = ⟨x, Pᵀ y⟩, of padding and of cropping, and cropping undoes padding.
    #[test]
    fn transposes_are_transposes() {
        for (height, width, factor) in [(1, 1, 8), (3, 5, 8), (7, 16, 8), (8, 9, 4), (13, 2, 6), (8, 16, 8)] {
            let x = image(height, width, 0.0);
            let padding = Padding::of(&x, factor).unwrap();
            let padded = padding.pad(&x).unwrap();
            let y = image(padded.dims()[2], padded.dims()[3], 1.0);
            let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-10, "{height} x {width}: {a} and {b}");
            close(dot(&padded, &y), dot(&x, &padding.fold(&y).unwrap()));
            close(dot(&padding.crop(&y).unwrap(), &x), dot(&y, &padding.fill(&x).unwrap()));
            assert_eq!(to_f64(&padding.crop(&padded).unwrap()).unwrap(), to_f64(&x).unwrap());
            assert_eq!(x.dtype(), DType::F64);
        }
    }
}
