//! What the local factor of the bundled prior costs: a denoiser call with and without it, taking turns.
//!
//! `cargo run --release -p daps --example local_factor`

use std::path::Path;
use std::time::Instant;

use daps::core::candle::{DType, Device, Tensor};
use daps::core::{Model, Sigma};

const BATCH: usize = 16;
const ROUNDS: usize = 41;

fn median(mut ms: Vec<f64>) -> f64 {
    ms.sort_by(f64::total_cmp);
    ms[ms.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let built = daps::prior::build(&mut daps::prior::named("faces")?, &[], Path::new(""))?;
    let Model::Denoiser(prior) = &built.model else { return Err("the prior is no denoiser".into()) };
    let local = prior.as_local().ok_or("the prior has no local factor")?;
    let shape = [&[BATCH], prior.shape()].concat();
    let x = Tensor::randn(0f64, 1.0, shape, &Device::Cpu)?.to_dtype(DType::F32)?;
    let (mut plain, mut with) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        prior.denoise(&x, &Sigma::Same(0.5))?;
        plain.push(1e3 * start.elapsed().as_secs_f64());
        let start = Instant::now();
        local.denoise_local(&x, 0.5)?;
        with.push(1e3 * start.elapsed().as_secs_f64());
    }
    let (plain, with) = (median(plain), median(with));
    println!(
        "{BATCH} images: D {plain:.1} ms, D and the local factor {with:.1} ms, ratio {:.3}",
        with / plain
    );
    Ok(())
}
