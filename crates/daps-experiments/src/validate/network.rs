//! Are samples with a network prior calibrated? Nobody knows its posterior, but a truth that was drawn from the prior is a draw of it: so it
//! must lie among the samples as each of them lies among the others. Held-out images say the same, as far as the prior is right.
//!
//! Of n samples and the truth, the truth is the smallest or the largest with the probability 2/(n + 1): between the smallest and the
//! largest of 19 it lies in 90 % of all cases. This is counted for pixels, for coefficients of the cosine transform by
//! frequency, and for random projections of the whole image.

use std::path::Path;

use candle_core::{DType, Tensor};
use daps::event::Shown;
use daps::plot::{self, Line};
use daps::prior::PriorConfig;
use daps::progress::Progress;
use daps::{Error, Result, Run, RunConfig, TaskConfig, Truths, prior};
use daps_core::tensors::{batched, from_f64, to_f64};
use daps_core::{Address, Cosines, Model, Noise, Purpose};
use daps_methods::MethodConfig;
use daps_priors::training::draw_rows;
use serde::Serialize;

use super::mean_and_error;
use crate::experiment::{Source, images};

/// Upper ends of the bands of frequencies, in half periods a pixel.
const BANDS: [f64; 7] = [0.04, 0.08, 0.15, 0.25, 0.4, 0.7, 1.5];
/// Random directions onto which images are projected.
const PROJECTIONS: usize = 200;
/// Steps of the sampler that draws truths, and how many it draws at once.
const STEPS: usize = 60;
const AT_ONCE: usize = 16;

/// Where truths come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Draws of the prior itself.
    Prior,
    /// Images that the prior was not trained on.
    Images(Source),
}

/// What is validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The prior.
    pub prior: PriorConfig,
    /// Where truths come from.
    pub origin: Origin,
    /// How many truths.
    pub truths: usize,
    /// Operators.
    pub tasks: Vec<String>,
    /// Methods by what they are called.
    pub methods: Vec<(String, MethodConfig)>,
    /// Samples of every truth.
    pub chains: usize,
    /// Samples that run at once.
    pub batch: usize,
    /// Seed of truths, masks, noise and chains.
    pub seed: u64,
}

/// A mean over images and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The mean.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
}

/// The coverage of the coefficients of a band.
#[derive(Clone, Debug, Serialize)]
pub struct Band {
    /// Its upper end, in half periods a pixel.
    pub until: f64,
    /// The share of its coefficients whose truth lies between the smallest and the largest sample.
    pub coverage: Figure,
}

/// What one method does on one task.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The operator.
    pub task: String,
    /// The method.
    pub method: String,
    /// Truths.
    pub images: usize,
    /// Samples of each.
    pub chains: usize,
    /// What every coverage is of exact samples.
    pub nominal: f64,
    /// Coverage of pixels.
    pub pixels: Figure,
    /// Coverage of random projections.
    pub projections: Figure,
    /// Coverage by frequency.
    pub bands: Vec<Band>,
    /// E‖s - s'‖²/E‖s - truth‖²: 1 of exact samples, less where they are too much alike.
    pub diversity: Figure,
    /// χ² of samples: 1 of exact ones.
    pub chi2: Figure,
    /// PSNR of a sample in dB.
    pub psnr: Figure,
    /// PSNR of the mean of all samples in dB.
    pub mean_psnr: Figure,
    /// Denoiser calls of a sample.
    pub nfe: usize,
    /// Chains that diverged.
    pub diverged: usize,
}

/// Runs every method on every task. A stop is an error.
pub fn run(settings: &Settings, progress: &mut dyn Progress) -> Result<Vec<Row>> {
    let base = Path::new("");
    let mut config = settings.prior.clone();
    let built = prior::build(&mut config, &[], base)?;
    let Model::Denoiser(model) = &built.model else {
        return Err(Error::Config(
            "a validation of samples needs a prior over images, not over tokens".into(),
        ));
    };
    let (shape, n) = (model.shape().to_vec(), settings.truths);
    if settings.chains < 2 || n < 2 {
        return Err(Error::Config("expected at least two truths with two samples each".into()));
    }
    let truths = match &settings.origin {
        Origin::Images(source) => images(source, &shape, base)?,
        Origin::Prior => {
            progress.begin("drawing truths from the prior", n);
            let mut drawn = vec![];
            for first in (0..n).step_by(AT_ONCE) {
                let last = n.min(first + AT_ONCE);
                drawn.push(draw_rows(&**model, first..last, STEPS, settings.seed)?.to_dtype(DType::F64)?);
                if (first..last).any(|_| progress.step("").is_break()) {
                    return Err(daps_core::Error::Cancelled { level: last, of: n }.into());
                }
            }
            progress.end();
            let names = (0..n).map(|i| format!("prior-{i:03}")).collect();
            Truths { values: Tensor::cat(&drawn, 0)?, names, numbers: (0..n as u64).collect() }
        }
    };
    let count = Count::new(&shape, settings.seed)?;
    let mut rows = vec![];
    for task in &settings.tasks {
        for (name, method) in &settings.methods {
            let run = RunConfig {
                seed: settings.seed,
                samples: settings.chains,
                batch: settings.batch,
                ..RunConfig::new(TaskConfig::new(task.clone()), config.clone(), method.clone())
            };
            let run = Run::with(run, base, built.clone(), Some(&truths))?;
            progress.note(&format!("{task}, {name}"));
            let posterior = run.sample(&mut Shown(progress))?;
            let samples = to_f64(&posterior.samples)?;
            let covered = count.cover(&to_f64(&truths.values)?, &samples, settings.chains)?;
            rows.push(row(task, name, settings.chains, &covered, &posterior.summary));
        }
    }
    Ok(rows)
}

/// What the coverages of an image are.
struct Covered {
    pixels: f64,
    projections: f64,
    bands: Vec<f64>,
}

/// How truths are looked for among samples.
struct Count {
    size: usize,
    cosines: Option<Cosines>,
    directions: Vec<f64>,
}

impl Count {
    fn new(shape: &[usize], seed: u64) -> Result<Self> {
        let noise = Noise::chains(seed, PROJECTIONS);
        let at = Address::new(0, Purpose::Slices, 0);
        let directions = to_f64(&noise.normal(at, shape, DType::F64)?)?;
        Ok(Self { size: shape.iter().product(), cosines: Cosines::new(shape).ok(), directions })
    }

    /// Image by image.
    fn cover(&self, truths: &[f64], samples: &[f64], chains: usize) -> Result<Vec<Covered>> {
        let each = truths.chunks(self.size).zip(samples.chunks(chains * self.size));
        each.map(|(truth, samples)| {
            let inside = within(truth, samples);
            let share =
                |inside: &[bool]| inside.iter().filter(|i| **i).count() as f64 / inside.len().max(1) as f64;
            let project = |x: &[f64]| -> Vec<f64> {
                let dot = |direction: &[f64]| direction.iter().zip(x).map(|(a, b)| a * b).sum();
                self.directions.chunks(self.size).map(dot).collect()
            };
            let projected: Vec<f64> = samples.chunks(self.size).flat_map(project).collect();
            let bands = match &self.cosines {
                None => vec![],
                Some(cosines) => {
                    let of = |values: &[f64]| -> Result<Vec<f64>> {
                        let dims = batched(values.len() / self.size, cosines.shape());
                        Ok(to_f64(&cosines.forward(&from_f64(values.to_vec(), &dims, DType::F64)?)?)?)
                    };
                    let inside = within(&of(truth)?, &of(samples)?);
                    by_band(&inside, &cosines.frequencies())
                }
            };
            Ok(Covered {
                pixels: share(&inside),
                projections: share(&within(&project(truth), &projected)),
                bands,
            })
        })
        .collect()
    }
}

/// Which values of the truth lie between the smallest and the largest of the samples.
fn within(truth: &[f64], samples: &[f64]) -> Vec<bool> {
    let at = |k: usize| samples.chunks(truth.len()).map(move |s| s[k]);
    let inside = |(k, truth): (usize, &f64)| at(k).any(|s| s <= *truth) && at(k).any(|s| s >= *truth);
    truth.iter().enumerate().map(inside).collect()
}

/// The share of the coefficients of every band, of all channels.
fn by_band(inside: &[bool], frequencies: &[f64]) -> Vec<f64> {
    let (mut hits, mut all) = ([0.0; BANDS.len()], [0.0; BANDS.len()]);
    for (inside, f) in inside.iter().zip(frequencies.iter().cycle()) {
        let band = BANDS.iter().position(|until| f < until).unwrap_or(BANDS.len() - 1);
        hits[band] += f64::from(u8::from(*inside));
        all[band] += 1.0;
    }
    hits.iter().zip(all).map(|(h, a)| if a > 0.0 { h / a } else { f64::NAN }).collect()
}

fn figure(values: &[f64]) -> Figure {
    let kept: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let (mean, error) = mean_and_error(&kept);
    Figure { mean, error }
}

fn row(task: &str, method: &str, chains: usize, covered: &[Covered], found: &daps::Summary) -> Row {
    let of = |f: &dyn Fn(&Covered) -> f64| figure(&covered.iter().map(f).collect::<Vec<_>>());
    let each = |f: &dyn Fn(&daps::Measurement) -> Option<f64>| {
        figure(&found.measurements.iter().filter_map(f).collect::<Vec<_>>())
    };
    let bands = BANDS.iter().enumerate().filter(|(b, _)| covered.iter().any(|c| c.bands.len() > *b));
    let parts: Vec<(f64, f64)> =
        found.measurements.iter().filter_map(|m| Some((m.apart?, m.away?))).collect();
    Row {
        task: task.to_owned(),
        method: method.to_owned(),
        images: covered.len(),
        chains,
        nominal: (chains - 1) as f64 / (chains + 1) as f64,
        pixels: of(&|c| c.pixels),
        projections: of(&|c| c.projections),
        bands: bands.map(|(b, until)| Band { until: *until, coverage: of(&|c| c.bands[b]) }).collect(),
        diversity: ratio(&parts),
        chi2: each(&|m| Some(m.chi2).filter(|c| c.is_finite())),
        psnr: each(&|m| m.sample_psnr()),
        mean_psnr: each(&|m| m.mean_psnr),
        nfe: found.nfe,
        diverged: found.diverged,
    }
}

/// Σ a/Σ b over images, with the error of a ratio of means.
fn ratio(parts: &[(f64, f64)]) -> Figure {
    let n = parts.len() as f64;
    let (a, b) = parts.iter().fold((0.0, 0.0), |(a, b), p| (a + p.0, b + p.1));
    let mean = a / b;
    let square: f64 = parts.iter().map(|(x, y)| (x - mean * y).powi(2)).sum();
    Figure { mean, error: (square / (n - 1.0) * n).sqrt() / b }
}

/// Coverage by frequency, a line for every method on one task, as SVG.
pub fn drawing(task: &str, rows: &[&Row]) -> Result<String> {
    let nominal = rows.first().map_or(0.9, |r| r.nominal);
    let points = |row: &Row| row.bands.iter().map(|b| (b.until, b.coverage.mean)).collect();
    let mut lines: Vec<Line> =
        rows.iter().map(|row| Line { name: &row.method, points: points(row) }).collect();
    lines.push(Line { name: "exact samples", points: BANDS.iter().map(|f| (*f, nominal)).collect() });
    plot::log_lines(
        &format!("{task}: truth between the samples"),
        "frequency, half periods a pixel",
        "share",
        &lines,
        false,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Truths among samples of the same law are covered as often as they should be; among narrower ones less often.
    #[test]
    fn exact_samples_are_covered_at_the_nominal_rate() {
        let (shape, chains, n) = ([1, 8, 8], 19, 60);
        let count = Count::new(&shape, 3).unwrap();
        let draw = |rows: usize, index: usize, std: f64| -> Vec<f64> {
            let at = Address::new(0, Purpose::Reference, index);
            let z = Noise::chains(4, rows).normal(at, &shape, DType::F64).unwrap();
            to_f64(&z).unwrap().iter().map(|z| std * z).collect()
        };
        let truths = draw(n, 0, 1.0);
        let of = |std: f64| {
            let covered = count.cover(&truths, &draw(n * chains, 1, std), chains).unwrap();
            let pixels = figure(&covered.iter().map(|c| c.pixels).collect::<Vec<_>>());
            let projected = figure(&covered.iter().map(|c| c.projections).collect::<Vec<_>>());
            let high = figure(&covered.iter().map(|c| c.bands[6]).collect::<Vec<_>>());
            [pixels, projected, high]
        };
        for figure in of(1.0) {
            assert!((figure.mean - 0.9).abs() < 4.0 * figure.error, "{figure:?}");
        }
        assert!(of(0.6).iter().all(|figure| figure.mean < 0.8));
    }

    #[test]
    fn the_error_of_a_ratio_is_that_of_its_parts() {
        let same = ratio(&[(1.0, 2.0), (2.0, 4.0), (0.5, 1.0)]);
        assert!((same.mean - 0.5).abs() < 1e-15 && same.error < 1e-15);
        let other = ratio(&[(1.0, 2.0), (3.0, 2.0)]);
        assert!((other.mean - 1.0).abs() < 1e-15 && (other.error - 0.5).abs() < 1e-12, "{other:?}");
    }
}
