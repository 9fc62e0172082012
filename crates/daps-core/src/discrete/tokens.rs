//! The discrete prior in the loop (Algorithm 3): start at the chain's end, estimate p(x0 | x_t), corrupt anew.

use std::sync::Arc;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::{Categorical, ReverseChain};
use crate::{Address, Approx, Error, Estimated, Noise, Prior, Purpose, Result, Step};

/// How p(x0 | x_t) is approximated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TokenEstimate {
    /// exp(-Hamming(x0, x̂0) / r_t) around the reverse chain's end x̂0, with 1/r_t = ln((S-1)(1-a)/a) and
    /// a = (1-e^-σ)(1-1/S): the paper's.
    Hamming(ReverseChain),
    /// Π_i p(x0_i | x_t), each token's own law.
    Marginals,
    /// p(x0 | x_t) itself, of a prior whose samples can be listed.
    Exact,
}

/// A model of tokens and a way to estimate.
pub struct Tokens {
    model: Arc<dyn Categorical>,
    estimate: TokenEstimate,
}

impl Tokens {
    /// Refuses an estimate that the model cannot give.
    pub fn new(model: Arc<dyn Categorical>, estimate: TokenEstimate) -> Result<Self> {
        match estimate {
            TokenEstimate::Hamming(chain) => chain.check()?,
            TokenEstimate::Exact if model.as_enumerable().is_none() => {
                return Err(Error::missing("the exact estimate", "a list of all samples", "this prior"));
            }
            _ => {}
        }
        Ok(Self { model, estimate })
    }
}

impl Prior for Tokens {
    fn init(&self, _sigma: f64, noise: &Noise) -> Result<Tensor> {
        self.model.corruption().pure(self.model.shape(), noise, Address::new(0, Purpose::Init, 0))
    }

    fn estimate(&self, x_t: &Tensor, step: &Step, noise: &Noise) -> Result<Estimated<'_>> {
        let corruption = self.model.corruption();
        let symbols = corruption.symbols();
        match self.estimate {
            TokenEstimate::Hamming(chain) => {
                let end = chain.run(&*self.model, x_t, step.sigma, noise, step.index)?;
                let a = corruption.differs(step.sigma);
                let (same, other) = ((1.0 - a).ln(), (a / (symbols - 1) as f64).ln());
                let center: Vec<u8> = end.x0.flatten_all()?.to_vec1()?;
                let mut log_probs = vec![other; center.len() * symbols];
                for (site, token) in log_probs.chunks_mut(symbols).zip(center) {
                    site[usize::from(token)] = same;
                }
                Ok(Estimated { approx: Approx::Sites { start: end.x0, log_probs, symbols }, nfe: end.nfe })
            }
            TokenEstimate::Marginals => {
                let marginals = self.model.marginals(x_t, step.sigma)?;
                let at = Address::new(step.index, Purpose::Estimate, 0);
                let start = corruption.reverse_draw(x_t, &marginals, (step.sigma, 0.0), noise, at)?;
                let log_probs = marginals.iter().map(|p| p.ln()).collect();
                Ok(Estimated { approx: Approx::Sites { start, log_probs, symbols }, nfe: 1 })
            }
            TokenEstimate::Exact => match self.model.as_enumerable() {
                Some(listed) => Ok(Estimated { approx: listed.conditional(x_t, step.sigma)?, nfe: 1 }),
                None => Err(Error::missing("the exact estimate", "a list of all samples", "this prior")),
            },
        }
    }

    fn renoise(&self, x0_y: &Tensor, step: &Step, noise: &Noise) -> Result<Tensor> {
        let at = Address::new(step.index, Purpose::Renoise, 0);
        self.model.corruption().corrupt(x0_y, &[step.next], noise, at)
    }
}
