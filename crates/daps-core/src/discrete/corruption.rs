//! The forward chain: every token, on its own, is kept with probability e^-σ and else redrawn from the chain's end law π.
//!
//! With the uniform rate matrix π is uniform over the S symbols; with the absorbing one it sits on a further state, the
//! mask. Both are p(b | a; σ) = e^-σ [a = b] + (1 - e^-σ) π(b), and levels add: σ then τ is σ + τ.

use candle_core::{DType, Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::tensors::{batched, pick, with_slice};
use crate::{Address, Error, Noise, Result, open01};

/// What a token turns into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// Any symbol, all equally likely.
    #[default]
    Uniform,
    /// The mask, which no clean sample contains.
    Absorbing,
}

/// The chain over an alphabet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    symbols: usize,
    rate: Rate,
}

impl Corruption {
    /// For clean tokens 0, 1, …, `symbols` - 1.
    pub fn new(symbols: usize, rate: Rate) -> Result<Self> {
        if !(2..=255).contains(&symbols) {
            return Err(Error::invalid("alphabet", "2 to 255 symbols", symbols));
        }
        Ok(Self { symbols, rate })
    }

    /// S, the number of symbols of a clean sample.
    #[must_use]
    pub fn symbols(&self) -> usize {
        self.symbols
    }

    /// The number of states of a corrupted token: one more with a mask.
    #[must_use]
    pub fn states(&self) -> usize {
        self.symbols + usize::from(self.rate == Rate::Absorbing)
    }

    /// π(b), where the chain ends.
    #[must_use]
    pub fn end(&self, b: usize) -> f64 {
        match self.rate {
            Rate::Uniform => 1.0 / self.symbols as f64,
            Rate::Absorbing => f64::from(u8::from(b == self.symbols)),
        }
    }

    /// p(b | a; σ).
    #[must_use]
    pub fn transition(&self, a: usize, b: usize, sigma: f64) -> f64 {
        f64::from(u8::from(a == b)) * (-sigma).exp() + self.end(b) * -(-sigma).exp_m1()
    }

    /// (1 - e^-σ)(1 - 1/S): how likely a token is wrong that was redrawn uniformly with probability 1 - e^-σ.
    #[must_use]
    pub fn differs(&self, sigma: f64) -> f64 {
        -(-sigma).exp_m1() * (1.0 - 1.0 / self.symbols as f64)
    }

    /// Refuses tensors that are no tokens, or tokens of another alphabet; corrupted ones may be masks.
    pub fn check(&self, what: &str, x: &Tensor, corrupted: bool) -> Result<()> {
        let count = if corrupted { self.states() } else { self.symbols };
        if x.dtype() != DType::U8 {
            return Err(Error::invalid(what, "tokens of type u8", format!("{:?}", x.dtype())));
        }
        match with_slice(x, |x: &[u8]| x.iter().copied().find(|v| usize::from(*v) >= count))? {
            Some(bad) => Err(Error::invalid(what, format!("tokens below {count}, the alphabet's size"), bad)),
            None => Ok(()),
        }
    }

    /// Runs the chain from clean tokens to level σ, one for all rows or one for each.
    pub fn corrupt(&self, x0: &Tensor, sigma: &[f64], noise: &Noise, at: Address) -> Result<Tensor> {
        self.check("tokens to corrupt", x0, false)?;
        map_tokens(x0, noise, at, |row, rng, x| {
            let kept = (-pick(sigma, row)).exp();
            for token in x {
                // One number decides whether, another one what, so that streams stay in step.
                let (u, v) = (open01(rng), open01(rng));
                if u >= kept {
                    *token = self.end_draw(v);
                }
            }
        })
    }

    /// Tokens of the chain's end.
    pub fn pure(&self, shape: &[usize], noise: &Noise, at: Address) -> Result<Tensor> {
        let zeros = Tensor::zeros(batched(noise.len(), shape), DType::U8, &Device::Cpu)?;
        map_tokens(&zeros, noise, at, |_, rng, x| x.iter_mut().for_each(|t| *t = self.end_draw(open01(rng))))
    }

    fn end_draw(&self, u: f64) -> u8 {
        match self.rate {
            Rate::Uniform => ((u * self.symbols as f64) as usize).min(self.symbols - 1) as u8,
            Rate::Absorbing => self.symbols as u8,
        }
    }
}

/// Changes every row of a batch of tokens in place, each with its own stream, rows in parallel.
pub fn map_tokens(
    x: &Tensor,
    noise: &Noise,
    at: Address,
    f: impl Fn(usize, &mut ChaCha8Rng, &mut [u8]) + Sync,
) -> Result<Tensor> {
    if x.dims()[0] != noise.len() {
        return Err(Error::shape("tokens", &batched(noise.len(), &x.dims()[1..]), x.dims()));
    }
    let mut values: Vec<u8> = x.flatten_all()?.to_vec1()?;
    let n = (values.len() / noise.len().max(1)).max(1);
    values.par_chunks_mut(n).enumerate().for_each(|(row, x)| f(row, &mut noise.stream(row, at), x));
    Ok(Tensor::from_vec(values, x.dims(), &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    #[test]
    fn transitions_are_laws_and_levels_add() {
        for (symbols, rate) in [(2, Rate::Uniform), (5, Rate::Uniform), (3, Rate::Absorbing)] {
            let chain = Corruption::new(symbols, rate).unwrap();
            let (n, s, t) = (chain.states(), 0.3, 1.1);
            for a in 0..n {
                let total: f64 = (0..n).map(|b| chain.transition(a, b, s)).sum();
                assert!((total - 1.0).abs() < 1e-14);
                for b in 0..n {
                    let two: f64 =
                        (0..n).map(|k| chain.transition(a, k, s) * chain.transition(k, b, t)).sum();
                    assert!((two - chain.transition(a, b, s + t)).abs() < 1e-14, "{rate:?} {a} {b}");
                }
            }
            assert_eq!(chain.transition(1, 1, 0.0), 1.0);
        }
        let chain = Corruption::new(4, Rate::Uniform).unwrap();
        assert!((1.0 - chain.transition(2, 2, 0.7) - chain.differs(0.7)).abs() < 1e-14);
    }

    #[test]
    fn corrupted_tokens_have_the_transition_law() {
        let draws = 200_000;
        for (symbols, rate) in [(3, Rate::Uniform), (3, Rate::Absorbing)] {
            let chain = Corruption::new(symbols, rate).unwrap();
            let x0 = Tensor::full(1u8, (1, draws), &Device::Cpu).unwrap();
            let at = Address::new(0, Purpose::Renoise, 0);
            let x_t = chain.corrupt(&x0, &[0.8], &Noise::chains(1, 1), at).unwrap();
            chain.check("x_t", &x_t, true).unwrap();
            let x_t: Vec<u8> = x_t.flatten_all().unwrap().to_vec1().unwrap();
            for b in 0..chain.states() {
                let p = chain.transition(1, b, 0.8);
                let share = x_t.iter().filter(|v| usize::from(**v) == b).count() as f64 / draws as f64;
                let error = (p * (1.0 - p) / draws as f64).sqrt();
                assert!((share - p).abs() <= 4.0 * error, "{rate:?} {b}: {share} is not {p} ± {error}");
            }
        }
    }

    #[test]
    fn other_alphabets_are_refused_in_one_sentence() {
        let chain = Corruption::new(2, Rate::Absorbing).unwrap();
        let x = Tensor::new(&[[0u8, 2]], &Device::Cpu).unwrap();
        assert!(chain.check("x_t", &x, true).is_ok());
        let message = chain.check("image", &x, false).unwrap_err().to_string();
        assert_eq!(message, "image: expected tokens below 2, the alphabet's size, got 2");
        let grey = Tensor::new(&[[0.5f32]], &Device::Cpu).unwrap();
        let message = chain.check("image", &grey, false).unwrap_err().to_string();
        assert_eq!(message, "image: expected tokens of type u8, got F32");
        assert!(Corruption::new(1, Rate::Uniform).unwrap_err().to_string().contains("2 to 255 symbols"));
    }
}
