//! Training a prior over tokens: what it draws, and how well it knows held-out images.

use std::path::Path;

use candle_core::Tensor;
use daps_core::tensors::to_f64;
use daps_core::{Address, Categorical, Noise, Purpose, ReverseChain};
use daps_priors::network::quantise;

use crate::{Result, picture};

/// Levels of the table; a token is redrawn with probability 1 - e^-σ.
pub(super) const LEVELS: [f64; 6] = [0.05, 0.2, 0.5, 1.0, 2.0, 5.0];
/// Samples of a grid.
const GRID: usize = 64;
/// The level at which samples start, where nothing is left of an image, and the chain that draws them.
const START: f64 = 20.0;
const CHAIN: ReverseChain = ReverseChain { steps: 64, min: 0.01 };

/// Draws samples by the reverse chain and writes them as a square of pictures, if they are pictures.
pub(super) fn write_samples(path: &Path, prior: &dyn Categorical, seed: u64) -> Result<()> {
    let &[c, h, w] = prior.shape() else { return Ok(()) };
    if !picture::is_image(prior.shape()) {
        return Ok(());
    }
    let noise = Noise::chains(seed, GRID);
    let pure = prior.corruption().pure(prior.shape(), &noise, Address::new(0, Purpose::Init, 0))?;
    let samples = CHAIN.run(prior, &pure, START, &noise, 0)?.x0;
    let images = (0..GRID).map(|i| Ok(to_f64(&samples.get(i)?)?)).collect::<Result<Vec<_>>>()?;
    let lightest = (prior.corruption().symbols() - 1) as f64;
    picture::write_grid(path, &images, [c, h, w], (0.0, lightest), GRID.isqrt(), 1)
}

/// The mean over tokens of -ln p(x0_i | x_t) on images that were not trained on, level by level, in nats.
pub(super) fn cross_entropy(
    prior: &dyn Categorical,
    held_out: &Tensor,
    seed: u64,
) -> Result<Vec<(f64, f64)>> {
    let (chain, noise) = (prior.corruption(), Noise::chains(seed, held_out.dims()[0]));
    let symbols = chain.symbols();
    let x0 = quantise(held_out, symbols)?;
    let tokens: Vec<u8> = x0.flatten_all()?.to_vec1()?;
    let level = |(k, &sigma): (usize, &f64)| {
        let x_t = chain.corrupt(&x0, &[sigma], &noise, Address::new(k, Purpose::Renoise, 0))?;
        let laws = prior.marginals(&x_t, sigma)?;
        let each = laws.chunks(symbols).zip(&tokens).map(|(law, token)| -law[usize::from(*token)].ln());
        Ok((sigma, each.sum::<f64>() / tokens.len() as f64))
    };
    LEVELS.iter().enumerate().map(level).collect()
}
