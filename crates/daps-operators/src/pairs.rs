//! A logical gate over pixel pairs of a binary image: exclusive or, the paper's discrete task, and AND, a harder one, which
//! says nothing of two pixels whenever one of them is dark.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, WithDType};
use daps_core::tensors::{batched, check_rows, with_slice};
use daps_core::{Error, Local, Operator, Result};
use serde::{Deserialize, Serialize};

use crate::example::{Example, registered};
use crate::params::Params;
use crate::registry;
use crate::rows::{below, choose_distinct, instance_stream};

/// Random pairs for each pixel, at most: far more than tell anything new, and no more memory than a few images take.
const MOST_EACH: usize = 64;

/// What a pair of pixels becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// 1 where they differ.
    Xor,
    /// 1 where both are 1.
    And,
}

impl Gate {
    fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::And => "and",
        }
    }

    fn of(self, a: bool, b: bool) -> bool {
        match self {
            Self::Xor => a != b,
            Self::And => a && b,
        }
    }
}

/// y_k = gate(x_i, x_j) for a list of pairs (i, j) of positions in the flattened image. Values are 0 or 1, in u8, f32 or f64.
#[derive(Debug)]
pub struct Pairs {
    gate: Gate,
    shape: Vec<usize>,
    output: Vec<usize>,
    pairs: Vec<[u32; 2]>,
}

impl Pairs {
    /// For images of the given shape.
    pub fn new(gate: Gate, shape: &[usize], pairs: &[[usize; 2]]) -> Result<Self> {
        let (n, name) = (shape.iter().product::<usize>(), gate.name());
        if pairs.is_empty() {
            return Err(Error::invalid(format!("{name} pairs"), "at least one", "none"));
        }
        if let Some(bad) = pairs.iter().flatten().find(|i| **i >= n) {
            let expected = format!("below {n}, the number of pixels");
            return Err(Error::invalid(format!("{name} pair index"), expected, bad));
        }
        let pairs: Vec<_> = pairs.iter().map(|pair| pair.map(|i| i as u32)).collect();
        Ok(Self { gate, shape: shape.to_vec(), output: vec![pairs.len()], pairs })
    }

    fn typed<T: WithDType + Default + std::fmt::Display>(&self, x: &Tensor, one: T) -> Result<Tensor> {
        let batch = check_rows(self.name(), x, &self.shape)?;
        let n: usize = self.shape.iter().product();
        let zero = T::default();
        let out = with_slice(x, |x: &[T]| {
            if let Some(bad) = x.iter().find(|v| **v != zero && **v != one) {
                let what = format!("input of {}", self.name());
                return Err(Error::invalid(what, "only zeros and ones", bad));
            }
            let bit = |set: bool| if set { one } else { zero };
            let rows = x.chunks(n).flat_map(|x| {
                let set = move |i: u32| x[i as usize] == one;
                self.pairs.iter().map(move |&[i, j]| bit(self.gate.of(set(i), set(j))))
            });
            Ok(rows.collect::<Vec<T>>())
        })??;
        Ok(Tensor::from_vec(out, batched(batch, &self.output), &Device::Cpu)?)
    }
}

/// Refuses pairs that cannot be drawn, or that would take more memory than there is.
fn check_count(n: usize, count: usize) -> Result<()> {
    if n < 2 {
        return Err(Error::invalid("pixels to pair", "at least 2", n));
    }
    let most = n.saturating_mul(MOST_EACH);
    if count > most {
        let expected = format!("at most {most}, {MOST_EACH} for each of {n} pixels");
        return Err(Error::invalid("random pairs", expected, count));
    }
    Ok(())
}

/// `count` random pairs of two different positions below `n`; each position occurs in as few pairs as possible.
pub fn random_pairs(n: usize, count: usize, seed: u64) -> Result<Vec<[usize; 2]>> {
    check_count(n, count)?;
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

/// `count` random pairs of two different positions below `n`, each drawn without regard to the others.
pub fn overlapping_pairs(n: usize, count: usize, seed: u64) -> Result<Vec<[usize; 2]>> {
    check_count(n, count)?;
    let mut rng = instance_stream(seed, 0, 3);
    let mut pair = || {
        let (first, other) = (below(&mut rng, n), below(&mut rng, n - 1));
        [first, other + usize::from(other >= first)]
    };
    Ok((0..count).map(|_| pair()).collect())
}

impl Operator for Pairs {
    fn name(&self) -> &str {
        self.gate.name()
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    fn is_measured_as_picture(&self) -> bool {
        false
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
            other => {
                let what = format!("input of {}", self.name());
                Err(Error::invalid(what, "type u8, f32 or f64", format!("{other:?}")))
            }
        }
    }

    fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }

    fn as_local(&self) -> Option<&dyn Local> {
        Some(self)
    }
}

impl Local for Pairs {
    fn symbols(&self) -> Option<usize> {
        Some(2)
    }

    fn sites_of(&self, _row: usize, output: usize) -> &[u32] {
        &self.pairs[output]
    }

    fn value(&self, _row: usize, output: usize, x: &[u8]) -> u8 {
        let [i, j] = self.pairs[output].map(|i| x[i as usize] == 1);
        self.gate.of(i, j).into()
    }
}

/// A number of random pairs, or pairs of positions in the flattened image.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PairsOf {
    Count(usize),
    List(Vec<[usize; 2]>),
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PairParams {
    /// How many pairs to draw, or which there are; half as many as pixels.
    pairs: Option<PairsOf>,
    /// Whether each pair is drawn without regard to the others, so that a pixel may be in several or in none; otherwise each is
    /// in as few as possible.
    overlapping: Option<bool>,
}

impl Params for PairParams {
    const SUPPLY: &'static str = "--set pairs=[[0,1],…]";

    fn complete(self, shape: &[usize]) -> Self {
        let half = PairsOf::Count(shape.iter().product::<usize>() / 2);
        Self { pairs: self.pairs.or(Some(half)), overlapping: self.overlapping.or(Some(false)) }
    }

    fn drawn(&self) -> Option<&'static str> {
        (!matches!(self.pairs, Some(PairsOf::List(_)))).then_some("its pairs")
    }

    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>> {
        let pairs = match self.pairs {
            Some(PairsOf::List(pairs)) => pairs,
            Some(PairsOf::Count(count)) => {
                let draw = if self.overlapping == Some(true) { overlapping_pairs } else { random_pairs };
                draw(shape.iter().product(), count, seed)?
            }
            None => vec![],
        };
        let gate = if name == "and" { Gate::And } else { Gate::Xor };
        Ok(Arc::new(Pairs::new(gate, shape, &pairs)?))
    }
}

pub(crate) fn xor_example(size: [usize; 3], seed: u64) -> Result<Example> {
    example("xor", size, seed)
}

pub(crate) fn and_example(size: [usize; 3], seed: u64) -> Result<Example> {
    example("and", size, seed)
}

fn example(name: &str, size: [usize; 3], seed: u64) -> Result<Example> {
    let example = registered(name, "", &size.map(|n| n.max(2)), seed)?;
    let x = example.x.ge(0.0)?.to_dtype(DType::F64)?;
    Ok(Example { x, ..example })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_agree_and_other_values_are_refused() {
        let x = Tensor::new(&[1u8, 0, 0, 1], &Device::Cpu).unwrap().reshape((1, 1, 2, 2)).unwrap();
        for (gate, expected) in [(Gate::Xor, [1.0, 0.0, 0.0]), (Gate::And, [0.0, 1.0, 0.0])] {
            let pairs = Pairs::new(gate, &[1, 2, 2], &[[0, 1], [0, 3], [2, 2]]).unwrap();
            for dtype in [DType::U8, DType::F32, DType::F64] {
                let y = pairs.apply(&x.to_dtype(dtype).unwrap()).unwrap();
                assert_eq!(y.dtype(), dtype);
                assert_eq!(daps_core::tensors::to_f64(&y).unwrap(), expected);
            }
            let half = (x.to_dtype(DType::F32).unwrap() * 0.5).unwrap();
            let message = pairs.apply(&half).unwrap_err().to_string();
            assert_eq!(message, format!("input of {}: expected only zeros and ones, got 0.5", gate.name()));
        }
        let message = Pairs::new(Gate::Xor, &[1, 2, 2], &[[0, 4]]).unwrap_err().to_string();
        assert_eq!(message, "xor pair index: expected below 4, the number of pixels, got 4");
    }

    #[test]
    fn half_as_many_pairs_as_pixels_touch_every_pixel_once() {
        let mut seen: Vec<usize> = random_pairs(64, 32, 3).unwrap().into_iter().flatten().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..64).collect::<Vec<_>>());
        assert!(random_pairs(7, 20, 0).unwrap().iter().all(|[i, j]| i != j));
    }

    #[test]
    fn more_pairs_than_memory_holds_are_refused() {
        for draw in [random_pairs, overlapping_pairs] {
            let error = draw(1024, 1_000_000_000_000, 0).unwrap_err().to_string();
            let expected =
                "random pairs: expected at most 65536, 64 for each of 1024 pixels, got 1000000000000";
            assert_eq!(error, expected);
            assert_eq!(draw(4, 256, 0).unwrap().len(), 256);
            assert!(draw(1, 1, 0).is_err());
        }
    }

    /// A pixel is in no pair of n/2 with probability (1 - 2/n)^(n/2), about e^-1.
    #[test]
    fn overlapping_pairs_leave_a_third_of_the_pixels_out() {
        let pairs = overlapping_pairs(10_000, 5_000, 3).unwrap();
        assert!(pairs.iter().all(|[i, j]| i != j && *i < 10_000 && *j < 10_000));
        let mut seen = vec![false; 10_000];
        pairs.iter().flatten().for_each(|&i| seen[i] = true);
        let out = seen.iter().filter(|s| !**s).count() as f64 / 10_000.0;
        assert!((out - (-1.0f64).exp()).abs() < 0.02, "{out}");
    }
}
