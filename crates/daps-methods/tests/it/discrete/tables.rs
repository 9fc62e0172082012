//! Laws over all samples as tables: what a chain, a kernel or a method does, written as sums over everything possible.

use daps_core::candle::{Device, Tensor};
use daps_core::{Categorical, Corruption, Likelihood, Mismatch, ReverseChain, TokenEstimate};
use daps_priors::Listed;

/// A probability for each sample; sample k has the digits of k, the first token lowest.
pub type Law = Vec<f64>;

pub fn total_variation(a: &Law, b: &Law) -> f64 {
    0.5 * a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>()
}

/// The distance that `n` draws have to their own law on average, by the normal approximation.
pub fn floor(law: &Law, n: usize) -> f64 {
    0.5 * law.iter().map(|p| (2.0 * p * (1.0 - p) / (std::f64::consts::PI * n as f64)).sqrt()).sum::<f64>()
}

/// Shares of draws among all samples of tokens with `states` values.
pub fn law_of(x: &Tensor, states: usize) -> Law {
    let rows = x.flatten_from(1).unwrap().to_vec2::<u8>().unwrap();
    let mut law = vec![0.0; states.pow(rows[0].len() as u32)];
    for row in &rows {
        law[row.iter().rev().fold(0, |k, t| k * states + usize::from(*t))] += 1.0 / rows.len() as f64;
    }
    law
}

fn digits(k: usize, base: usize, sites: usize) -> Vec<u8> {
    (0..sites).map(|i| (k / base.pow(i as u32) % base) as u8).collect()
}

fn sites(prior: &Listed) -> usize {
    prior.shape().iter().product()
}

/// All samples over an alphabet, as one batch.
fn everything(prior: &Listed, base: usize) -> Tensor {
    let n = sites(prior);
    let count = base.pow(n as u32);
    let values: Vec<u8> = (0..count).flat_map(|k| digits(k, base, n)).collect();
    let dims: Vec<usize> = std::iter::once(count).chain(prior.shape().iter().copied()).collect();
    Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
}

/// Pushes a law through tokens that move apart from each other: `law(from, site)` gives a weight to every new token.
fn push(law: &Law, to: usize, sites: usize, each: impl Fn(usize, usize) -> Vec<f64>) -> Law {
    let mut out = vec![0.0; to.pow(sites as u32)];
    for (from, p) in law.iter().enumerate().filter(|(_, p)| **p > 0.0) {
        let mut product = vec![*p];
        for site in 0..sites {
            let weights = each(from, site);
            product = weights.iter().flat_map(|w| product.iter().map(move |p| p * w)).collect();
        }
        out.iter_mut().zip(product).for_each(|(o, p)| *o += p);
    }
    out
}

/// The law at level σ from one of clean samples.
pub fn forward(law: &Law, prior: &Listed, sigma: f64) -> Law {
    let (chain, n) = (prior.corruption(), sites(prior));
    push(law, chain.states(), n, |from, site| {
        let a = usize::from(digits(from, chain.symbols(), n)[site]);
        (0..chain.states()).map(|b| chain.transition(a, b, sigma)).collect()
    })
}

/// One reverse step for all tokens at once.
fn reverse_step(law: &Law, prior: &Listed, (sigma, next): (f64, f64)) -> Law {
    let (chain, n) = (prior.corruption(), sites(prior));
    let (symbols, states) = (chain.symbols(), chain.states());
    let marginals = prior.marginals(&everything(prior, states), sigma).unwrap();
    let moved = push(law, states, n, |from, site| {
        let mut out = vec![0.0; states];
        let at = (from * n + site) * symbols;
        let now = digits(from, states, n)[site];
        chain.reverse_law(now, &marginals[at..at + symbols], (sigma, next), &mut out);
        out
    });
    if next > 0.0 { moved } else { clean(&moved, chain, n) }
}

/// A law over states that has no masks, as one over symbols.
fn clean(law: &Law, chain: &Corruption, sites: usize) -> Law {
    let of = |k: usize| {
        let index = digits(k, chain.symbols(), sites)
            .iter()
            .rev()
            .fold(0, |i, t| i * chain.states() + usize::from(*t));
        law[index]
    };
    (0..chain.symbols().pow(sites as u32)).map(of).collect()
}

/// The law of the reverse chain's end.
pub fn reverse(law: &Law, prior: &Listed, chain: &ReverseChain, sigma: f64) -> Law {
    chain
        .levels(sigma)
        .windows(2)
        .fold(law.clone(), |law, pair| reverse_step(&law, prior, (pair[0], pair[1])))
}

/// The end of the forward chain.
fn pure(prior: &Listed) -> Law {
    let (chain, n) = (prior.corruption(), sites(prior));
    push(&vec![1.0], chain.states(), n, |_, _| (0..chain.states()).map(|b| chain.end(b)).collect())
}

/// ln p(y | x) of every clean sample.
fn fits(prior: &Listed, likelihood: &Mismatch) -> Vec<f64> {
    likelihood.select(&vec![0; prior.len()]).unwrap().log_prob(prior.points()).unwrap()
}

fn normalised(law: Law) -> Law {
    let total: f64 = law.iter().sum();
    law.iter().map(|p| p / total).collect()
}

/// The Hamming approximation around the rows of `start` at level σ, and the law of x0|y around the first one.
pub fn around(start: &Tensor, likelihood: &Mismatch, sigma: f64) -> (Vec<f64>, Law) {
    let a = 0.5 * (1.0 - (-sigma).exp());
    let rows = start.flatten_from(1).unwrap().to_vec2::<u8>().unwrap();
    let log_probs =
        rows.iter().flatten().flat_map(|t| [0, 1].map(|s| if s == *t { (1.0 - a).ln() } else { a.ln() }));
    let chain = Corruption::new(2, daps_core::Rate::Uniform).unwrap();
    let every = Listed::all(chain, &start.dims()[1..], |x| {
        x.iter().zip(&rows[0]).map(|(x, c)| if x == c { 1.0 - a } else { a }).product()
    });
    (log_probs.collect(), every.unwrap().posterior(likelihood, 0).unwrap())
}

/// The law of discrete DAPS with exact conditional draws: one table per level, multiplied.
pub fn annealed(prior: &Listed, likelihood: &Mismatch, estimate: TokenEstimate, sigmas: &[f64]) -> Law {
    let (n, symbols) = (sites(prior), prior.corruption().symbols());
    let fits: Vec<f64> = fits(prior, likelihood).iter().map(|f| f.exp()).collect();
    let weighed = |weights: Law| normalised(weights.iter().zip(&fits).map(|(w, f)| w * f).collect());
    let mut law = pure(prior);
    for pair in sigmas.windows(2) {
        let (mut x0_y, sigma) = (vec![0.0; prior.len()], pair[0]);
        let mut add =
            |p: f64, conditional: Law| x0_y.iter_mut().zip(conditional).for_each(|(o, c)| *o += p * c);
        match estimate {
            TokenEstimate::Hamming(chain) => {
                let a = (1.0 - (-sigma).exp()) * (1.0 - 1.0 / symbols as f64);
                for (center, p) in reverse(&law, prior, &chain, sigma).into_iter().enumerate() {
                    let c = digits(center, symbols, n);
                    let weight = |k: usize| -> f64 {
                        let each =
                            |(x, c): (u8, &u8)| if x == *c { 1.0 - a } else { a / (symbols - 1) as f64 };
                        digits(k, symbols, n).into_iter().zip(&c).map(each).product()
                    };
                    add(p, weighed((0..prior.len()).map(weight).collect()));
                }
            }
            _ => {
                let states = prior.corruption().states();
                let marginals = prior.marginals(&everything(prior, states), sigma).unwrap();
                for (from, p) in law.iter().enumerate().filter(|(_, p)| **p > 0.0) {
                    let each =
                        |_: usize, site: usize| marginals[(from * n + site) * symbols..][..symbols].to_vec();
                    add(*p, weighed(push(&vec![1.0], symbols, n, each)));
                }
            }
        }
        law = if pair[1] > 0.0 { forward(&x0_y, prior, pair[1]) } else { x0_y };
    }
    law
}

/// The law of the reverse chain over the given levels, from pure noise.
pub fn ancestral(prior: &Listed, sigmas: &[f64]) -> Law {
    sigmas.windows(2).fold(pure(prior), |law, pair| reverse_step(&law, prior, (pair[0], pair[1])))
}

/// The law of the best of `count` draws, the first one of equals.
pub fn best_of(law: &Law, prior: &Listed, likelihood: &Mismatch, count: usize) -> Law {
    let fits = fits(prior, likelihood);
    let share = |test: &dyn Fn(f64) -> bool| -> f64 {
        law.iter().zip(&fits).filter(|(_, f)| test(**f)).map(|(p, _)| p).sum()
    };
    let of = |(p, fit): (&f64, &f64)| {
        let (below, upto) = (share(&|f| f < *fit), share(&|f| f <= *fit));
        // Draw number k is the one: all before it fit less, none after it fits better.
        p * (0..count).map(|k| below.powi(k as i32) * upto.powi((count - 1 - k) as i32)).sum::<f64>()
    };
    law.iter().zip(&fits).map(of).collect()
}

/// The law of SVDD-PM with two proposals.
pub fn value_guided(prior: &Listed, likelihood: &Mismatch, sigmas: &[f64], alpha: f64) -> Law {
    let (chain, n) = (prior.corruption(), sites(prior));
    let (symbols, states) = (chain.symbols(), chain.states());
    let fits = fits(prior, likelihood);
    let mut law = pure(prior);
    for pair in sigmas.windows(2) {
        let values: Vec<f64> = if pair[1] > 0.0 {
            let marginals = prior.marginals(&everything(prior, states), pair[1]).unwrap();
            let mode = |p: &[f64]| usize::from(p[1] > p[0]);
            let index = |of: &[f64]| of.chunks(symbols).rev().fold(0, |k, p| k * symbols + mode(p));
            marginals.chunks(n * symbols).map(|of| fits[index(of)]).collect()
        } else {
            fits.clone()
        };
        // How likely the first is kept of two.
        let kept = |a: f64, b: f64| match alpha {
            0.0 if a == b => 0.5,
            0.0 => f64::from(u8::from(a > b)),
            _ => 1.0 / (1.0 + ((b - a) / alpha).exp()),
        };
        let mut next = vec![0.0; values.len()];
        for (from, p) in law.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            let mut here = vec![0.0; law.len()];
            here[from] = 1.0;
            let proposal = reverse_step(&here, prior, (pair[0], pair[1]));
            for (i, a) in proposal.iter().enumerate() {
                for (j, b) in proposal.iter().enumerate() {
                    next[i] += p * a * b * 2.0 * kept(values[i], values[j]);
                }
            }
        }
        law = next;
    }
    law
}
