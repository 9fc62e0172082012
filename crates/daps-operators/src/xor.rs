//! Exclusive or of pixel pairs of a binary image, the paper's discrete task.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, WithDType};
use daps_core::real::{batched, check_rows, with_slice};
use daps_core::{Error, Operator, Result};

use crate::rows::{below, choose_distinct, instance_stream};

/// y_k = x_i xor x_j for a list of pairs (i, j) of positions in the flattened image. Values are 0 or 1, in u8, f32 or f64.
#[derive(Debug)]
pub struct Xor {
    shape: Vec<usize>,
    output: Vec<usize>,
    pairs: Vec<[usize; 2]>,
}

impl Xor {
    /// For images of the given shape.
    pub fn new(shape: &[usize], pairs: Vec<[usize; 2]>) -> Result<Self> {
        let n: usize = shape.iter().product();
        if pairs.is_empty() {
            return Err(Error::invalid("xor pairs", "at least one", "none"));
        }
        if let Some(bad) = pairs.iter().flatten().find(|i| **i >= n) {
            return Err(Error::invalid("xor pair index", format!("below {n}, the number of pixels"), bad));
        }
        Ok(Self { shape: shape.to_vec(), output: vec![pairs.len()], pairs })
    }

    /// The pairs.
    #[must_use]
    pub fn pairs(&self) -> &[[usize; 2]] {
        &self.pairs
    }

    fn typed<T: WithDType + Default + std::fmt::Display>(&self, x: &Tensor, one: T) -> Result<Tensor> {
        let batch = check_rows(self.name(), x, &self.shape)?;
        let n: usize = self.shape.iter().product();
        let zero = T::default();
        let out = with_slice(x, |x: &[T]| {
            if let Some(bad) = x.iter().find(|v| **v != zero && **v != one) {
                return Err(Error::invalid("input of xor", "only zeros and ones", bad));
            }
            let rows = x
                .chunks(n)
                .flat_map(|x| self.pairs.iter().map(move |&[i, j]| if x[i] == x[j] { zero } else { one }));
            Ok(rows.collect::<Vec<T>>())
        })??;
        Ok(Tensor::from_vec(out, batched(batch, &self.output), &Device::Cpu)?)
    }
}

/// `count` random pairs of two different positions below `n`; each position occurs in as few pairs as possible.
pub fn random_pairs(n: usize, count: usize, seed: u64) -> Result<Vec<[usize; 2]>> {
    if n < 2 {
        return Err(Error::invalid("xor pixels", "at least 2", n));
    }
    let mut rng = instance_stream(seed, 0, 2);
    let mut pairs = Vec::with_capacity(count);
    while pairs.len() < count {
        let order = choose_distinct(&mut rng, n, n);
        let room = count - pairs.len();
        pairs.extend(order.chunks_exact(2).take(room).map(|pair| [pair[0], pair[1]]));
        if n % 2 == 1 && pairs.len() < count {
            // The position left over goes with any other.
            let last = order[n - 1];
            let other = order[below(&mut rng, n - 1)];
            pairs.push([last, other]);
        }
    }
    Ok(pairs)
}

impl Operator for Xor {
    fn name(&self) -> &'static str {
        "xor"
    }

    fn input_shape(&self) -> &[usize] {
        &self.shape
    }

    fn output_shape(&self) -> &[usize] {
        &self.output
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        match x.dtype() {
            DType::U8 => self.typed::<u8>(x, 1),
            DType::F32 => self.typed::<f32>(x, 1.0),
            DType::F64 => self.typed::<f64>(x, 1.0),
            other => Err(Error::invalid("input of xor", "type u8, f32 or f64", format!("{other:?}"))),
        }
    }

    fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_agree_and_other_values_are_refused() {
        let xor = Xor::new(&[1, 2, 2], vec![[0, 1], [0, 3], [2, 2]]).unwrap();
        let x = Tensor::new(&[1u8, 0, 0, 1], &Device::Cpu).unwrap().reshape((1, 1, 2, 2)).unwrap();
        for dtype in [DType::U8, DType::F32, DType::F64] {
            let y = xor.apply(&x.to_dtype(dtype).unwrap()).unwrap();
            assert_eq!(y.dtype(), dtype);
            assert_eq!(daps_core::real::to_f64(&y).unwrap(), [1.0, 0.0, 0.0]);
        }
        let half = (x.to_dtype(DType::F32).unwrap() * 0.5).unwrap();
        assert!(xor.apply(&half).unwrap_err().to_string().contains("only zeros and ones"));
        assert!(Xor::new(&[1, 2, 2], vec![[0, 4]]).unwrap_err().to_string().contains("below 4"));
    }

    #[test]
    fn half_as_many_pairs_as_pixels_touch_every_pixel_once() {
        let mut seen: Vec<usize> = random_pairs(64, 32, 3).unwrap().into_iter().flatten().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..64).collect::<Vec<_>>());
        assert!(random_pairs(7, 20, 0).unwrap().iter().all(|[i, j]| i != j));
    }
}
