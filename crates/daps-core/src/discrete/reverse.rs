//! The reverse chain, from x_t at level σ down to clean tokens.
//!
//! Each step draws every token from its own p(x_s,i | x_t) = Σ_a p(x0_i = a | x_t) p(x_s,i | x0_i = a, x_t,i), which is exact
//! for one token; that tokens move apart from each other is the error of a step, and vanishes as steps get short.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::{Categorical, Corruption, map_tokens};
use crate::{Address, Error, Noise, Purpose, Result, open01};

/// How the reverse chain is cut into steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReverseChain {
    /// Steps in all; the last one goes to 0.
    pub steps: usize,
    /// The level before the last step, where there are several; levels before it have a constant ratio.
    pub min: f64,
}

impl Default for ReverseChain {
    fn default() -> Self {
        Self { steps: 8, min: 0.02 }
    }
}

/// Where a reverse chain ended.
pub struct Reversed {
    /// Clean tokens.
    pub x0: Tensor,
    /// Calls of the model.
    pub nfe: usize,
}

impl ReverseChain {
    /// Refuses settings that give no levels.
    pub fn check(&self) -> Result<()> {
        if self.steps == 0 {
            return Err(Error::invalid("reverse chain steps", "at least 1", 0));
        }
        if self.min.is_finite() && self.min > 0.0 {
            return Ok(());
        }
        Err(Error::invalid("reverse chain min", "a positive number", self.min))
    }

    /// σ, …, min, 0; from near or below `min` it is one step.
    #[must_use]
    pub fn levels(&self, sigma: f64) -> Vec<f64> {
        if self.steps == 1 || sigma <= 2.0 * self.min {
            return vec![sigma, 0.0];
        }
        let last = (self.steps - 1) as f64;
        let level = |k: usize| sigma * (self.min / sigma).powf(k as f64 / last);
        (0..self.steps).map(level).chain([0.0]).collect()
    }

    /// Draws x̂0 from x_t; `level` is the schedule's, for the address of the draws.
    pub fn run(
        &self,
        model: &dyn Categorical,
        x_t: &Tensor,
        sigma: f64,
        noise: &Noise,
        level: usize,
    ) -> Result<Reversed> {
        self.check()?;
        let levels = self.levels(sigma);
        let mut x = x_t.clone();
        for (k, pair) in levels.windows(2).enumerate() {
            let marginals = model.marginals(&x, pair[0])?;
            let at = Address::new(level, Purpose::Estimate, k);
            x = model.corruption().reverse_draw(&x, &marginals, (pair[0], pair[1]), noise, at)?;
        }
        Ok(Reversed { x0: x, nfe: levels.len() - 1 })
    }
}

impl Corruption {
    /// The law of one token at level `next`, given its state `now` at `sigma` and p(x0 | x_t), over all states.
    pub fn reverse_law(&self, now: u8, x0: &[f64], (sigma, next): (f64, f64), out: &mut [f64]) {
        let now = usize::from(now);
        let (kept, redrawn) = ((-next).exp(), -(-next).exp_m1());
        // p(x0 = a | x_t) / p(now | a; σ); where the divisor is zero, so is the dividend.
        let ratio = |a: usize| match self.transition(a, now, sigma) {
            p if p > 0.0 => x0[a] / p,
            _ => 0.0,
        };
        let total: f64 = (0..self.symbols()).map(ratio).sum();
        for (b, out) in out.iter_mut().enumerate() {
            let own = if b < self.symbols() { kept * ratio(b) } else { 0.0 };
            *out = self.transition(b, now, sigma - next) * (own + redrawn * self.end(b) * total);
        }
    }

    /// Draws all tokens at level `next` given those at `sigma` and their p(x0_i | x_t).
    pub fn reverse_draw(
        &self,
        x_t: &Tensor,
        marginals: &[f64],
        levels: (f64, f64),
        noise: &Noise,
        at: Address,
    ) -> Result<Tensor> {
        let (symbols, states) = (self.symbols(), self.states());
        let sites = x_t.elem_count() / x_t.dims()[0].max(1);
        if marginals.len() != x_t.elem_count() * symbols {
            let expected = format!("{} numbers", x_t.elem_count() * symbols);
            return Err(Error::invalid("p(x0 | x_t) of tokens", expected, marginals.len()));
        }
        map_tokens(x_t, noise, at, |row, rng, x| {
            let mut law = vec![0.0; states];
            let each = marginals[row * sites * symbols..].chunks(symbols);
            for (token, x0) in x.iter_mut().zip(each) {
                self.reverse_law(*token, x0, levels, &mut law);
                *token = pick(&law, open01(rng));
            }
        })
    }
}

/// The index that a uniform number picks among weights; rounding leaves no weight to an index of none.
pub(super) fn pick(weights: &[f64], u: f64) -> u8 {
    let mut left = u * weights.iter().sum::<f64>();
    for (k, w) in weights.iter().enumerate() {
        left -= w;
        if left < 0.0 {
            return k as u8;
        }
    }
    weights.iter().rposition(|w| *w > 0.0).unwrap_or(0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    /// SEDD's analytic step, (e^-ΔQ s)_b · p(now | b; Δ) with the concrete score s, is the same law for one token.
    #[test]
    fn a_step_is_the_analytic_one_of_the_concrete_score() {
        let (x0, sigma, next) = ([0.2, 0.5, 0.3], 0.9, 0.4);
        let chain = Corruption::new(3, Rate::Uniform).unwrap();
        for now in 0..3u8 {
            let score = |b: usize| -> f64 {
                let p = |c: usize, a: usize| chain.transition(a, c, sigma);
                (0..3).map(|a| p(b, a) / p(usize::from(now), a) * x0[a]).sum()
            };
            // Running the uniform chain backwards by Δ: e^Δ s + (1 - e^Δ) mean(s).
            let delta: f64 = sigma - next;
            let mean = (0..3).map(score).sum::<f64>() / 3.0;
            let mut law = [0.0; 3];
            chain.reverse_law(now, &x0, (sigma, next), &mut law);
            for (b, got) in law.iter().enumerate() {
                let back = delta.exp() * score(b) + (1.0 - delta.exp()) * mean;
                let expected = back * chain.transition(b, usize::from(now), delta);
                assert!((got - expected).abs() < 1e-13, "{now} {b}: {got} is not {expected}");
            }
            assert!((law.iter().sum::<f64>() - 1.0).abs() < 1e-13);
        }
    }

    #[test]
    fn what_is_unmasked_stays_and_the_last_step_draws_the_marginals() {
        let chain = Corruption::new(2, Rate::Absorbing).unwrap();
        let mut law = [0.0; 3];
        chain.reverse_law(1, &[0.0, 1.0], (2.0, 0.5), &mut law);
        assert!((law[1] - 1.0).abs() < 1e-14 && law[0] == 0.0 && law[2] == 0.0, "{law:?}");
        chain.reverse_law(2, &[0.25, 0.75], (2.0, 0.0), &mut law);
        assert!((law[0] - 0.25).abs() < 1e-14 && (law[1] - 0.75).abs() < 1e-14 && law[2] == 0.0, "{law:?}");
    }

    #[test]
    fn levels_fall_by_a_constant_ratio_to_zero() {
        let levels = ReverseChain { steps: 4, min: 0.125 }.levels(1.0);
        for (got, expected) in levels.iter().zip([1.0, 0.5, 0.25, 0.125, 0.0]) {
            assert!((got - expected).abs() < 1e-14, "{levels:?}");
        }
        assert_eq!(ReverseChain { steps: 4, min: 0.125 }.levels(0.2), [0.2, 0.0]);
    }
}
