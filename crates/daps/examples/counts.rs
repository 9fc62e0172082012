//! Counts instead of Gaussian noise: deblurring of the bundled faces from few photons, with the right noise model and with a wrong one.
//!
//! `cargo run --release -p daps --example counts` prints a table. The wrong model is Gaussian with one standard deviation for all
//! pixels, the best of its kind: the RMS of the counts' own noise.

use std::path::Path;
use std::sync::Arc;

use daps::core::candle::{DType, Device, Tensor};
use daps::core::tensors::to_f64;
use daps::core::{
    Address, Gaussian, Likelihood, Model, Noise, NoiseModel, Poisson, Problem, Purpose, Row, Space,
};
use daps::methods::Preset;
use daps::{Run, bundled, load, operators, prior};

const PEAK: f64 = 30.0;
const CHAINS: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = prior::build(&mut prior::named("faces")?, &[], Path::new(""))?.model;
    let Model::Denoiser(faces) = &model else { return Err("faces is a denoiser".into()) };
    let &[c, h, w] = faces.shape() else { return Err("faces are images".into()) };
    let n = bundled::FACES.len();
    let mut values = Vec::new();
    for face in bundled::FACES {
        values.extend(load::decode(Path::new(face.name), face.bytes, &[c, h, w], true)?.0);
    }
    let truth = Tensor::from_vec(values, (n, c, h, w), &Device::Cpu)?;
    let operator = operators::build("gaussian_blur", &Default::default(), &[c, h, w], 0)?;

    let rows = (0..n as u64).map(|measurement| Row { measurement, chain: 0 }).collect();
    let (noise, space) = (NoiseModel::Poisson { peak: PEAK, background: 0.0 }, Space::of_shape(&[c, h, w]));
    let at = Address::new(0, Purpose::Measurement, 0);
    let counts = noise.measure(&*operator, &truth, &space, &Noise::new(0, rows), at)?.to_dtype(DType::F32)?;
    let right: Arc<dyn Likelihood> = Arc::new(Poisson::new(operator.clone(), &counts, PEAK, 0.0)?);

    // The same counts as brightness, whose noise has the variance λ (2/peak)².
    let mean = to_f64(&counts)?.iter().sum::<f64>() / counts.elem_count() as f64;
    let (level, brightness) = (2.0 / PEAK * mean.sqrt(), (&counts * (2.0 / PEAK))?.affine(1.0, -1.0)?);
    let wrong: Arc<dyn Likelihood> = Arc::new(Gaussian::new(operator.clone(), brightness, level)?);

    println!(
        "| model | discrepancy of the counts | of the darkest quarter | of the brightest quarter | PSNR of a sample | PSNR of the mean of {CHAINS} | diversity | truth between the samples ({:.2} for exact ones) |",
        (CHAINS - 1) as f64 / (CHAINS + 1) as f64
    );
    println!("|---|---|---|---|---|---|---|---|");
    let seen = to_f64(&counts)?;
    let chains: Vec<usize> = (0..n * CHAINS).map(|k| k / CHAINS).collect();
    let judge = right.select(&chains)?;
    for (name, likelihood) in [("Poisson", right), (&*format!("Gaussian, {level:.3}"), wrong)] {
        let run = Run::of(Problem::of(model.clone(), likelihood)?).method(Preset::Fast).chains(CHAINS);
        let posterior = run.truth(truth.clone()).sample(&mut ())?;
        let samples = posterior.samples.flatten(0, 1)?;
        let fits = judge.discrepancy(&samples)?;
        let whole = fits.iter().zip(&posterior.diverged).filter(|(_, lost)| !**lost);
        let fit = whole.clone().map(|(d, _)| d.value).sum::<f64>() / whole.count() as f64;
        let rates = to_f64(&operator.apply(&samples)?.affine(PEAK / 2.0, PEAK / 2.0)?)?;
        let (dark, bright) = by_brightness(&seen, &rates, &posterior.diverged);
        let (found, lost) = (&posterior.summary.measurements, posterior.summary.diverged);
        if lost > 0 {
            eprintln!("{name}: {lost} chains diverged and are left out");
        }
        let over = |f: &dyn Fn(&daps::Measurement) -> Option<f64>| {
            found.iter().filter_map(f).sum::<f64>() / found.len() as f64
        };
        println!(
            "| {name} | {fit:.3} | {dark:.3} | {bright:.3} | {:.2} | {:.2} | {:.2} | {:.2} |",
            posterior.summary.psnr.unwrap_or(f64::NAN),
            over(&|m| m.mean_psnr),
            over(&|m| m.apart) / over(&|m| m.away),
            over(&|m| m.coverage),
        );
    }
    Ok(())
}

/// Σ (y - λ)² / Σ λ over the quarter of a sample's pixels where it is darkest, and over the one where it is brightest: 1 for exact
/// samples.
fn by_brightness(counts: &[f64], rates: &[f64], diverged: &[bool]) -> (f64, f64) {
    let n = rates.len() / diverged.len();
    let mut sums = [(0.0, 0.0); 2];
    for (k, rates) in rates.chunks(n).enumerate().filter(|(k, _)| !diverged[*k]) {
        let counts = &counts[k / CHAINS * n..][..n];
        let mut pixels: Vec<(f64, f64)> = rates.iter().copied().zip(counts.iter().copied()).collect();
        pixels.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (sum, quarter) in sums.iter_mut().zip([&pixels[..n / 4], &pixels[n - n / 4..]]) {
            sum.0 += quarter.iter().map(|(rate, count)| (count - rate).powi(2)).sum::<f64>();
            sum.1 += quarter.iter().map(|(rate, _)| rate).sum::<f64>();
        }
    }
    let [dark, bright] = sums.map(|(squares, rates)| squares / rates);
    (dark, bright)
}
