//! What a finished run leaves in its directory: tensors, pictures of every measurement, and the report.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Tensor};
use daps_core::Statistic;
use daps_core::tensors::{batched, from_f64, to_f64};
use image::RgbImage;

use crate::outcome::Outcome;
use crate::picture::{self, Snapshot};
use crate::posterior::spreads;
use crate::run::Run;
use crate::{Answer, Error, Result, canvas, files, report};

/// Samples of a measurement that become pictures of their own; all of them are in `samples.safetensors`.
const MOST_PICTURES: usize = 64;
/// Samples that stand in one row.
const MOST_IN_ROW: usize = 16;

/// The pictures of one measurement.
#[derive(Default)]
pub(crate) struct Gallery {
    pub truth: Option<RgbImage>,
    pub measurement: Option<RgbImage>,
    pub samples: Vec<RgbImage>,
    pub best: Option<RgbImage>,
    pub mean: Option<RgbImage>,
    /// One of these two.
    pub answer: Option<RgbImage>,
    pub std: Option<RgbImage>,
    /// What the brightest colour of `std` stands for.
    pub largest: f64,
    pub way: Option<RgbImage>,
}

impl Gallery {
    fn new(run: &Run, outcome: &Outcome, i: usize) -> Result<Self> {
        let mut gallery = Self { measurement: run.shown_measurement(i)?, ..Self::default() };
        let Some(shape) = run.space.picture() else { return Ok(gallery) };
        let (d, k) = (run.space.size(), run.samples);
        let sample = |chain: usize| {
            let at = (i * k + chain) * d;
            picture::image(&outcome.values[at..at + d], shape)
        };
        gallery.truth = match &run.truth {
            Some(truth) => Some(picture::image(&to_f64(&truth.get(i)?)?, shape)),
            None => None,
        };
        gallery.samples = (0..k.min(MOST_PICTURES)).map(sample).collect();
        gallery.best = Some(sample(outcome.summary.measurements[i].chosen));
        gallery.mean = Some(picture::image(&outcome.mean[i], shape));
        gallery.answer = match run.answer {
            Answer::Sample => gallery.best.clone(),
            Answer::Mean => gallery.mean.clone(),
        };
        if let Some(std) = &outcome.std[i] {
            gallery.largest = std.iter().copied().filter(|v| v.is_finite()).fold(1e-9, f64::max);
            gallery.std = Some(picture::heat(std, shape, gallery.largest));
        }
        let way: Vec<Snapshot> =
            outcome.snapshots.range((i as u64, 0)..(i as u64 + 1, 0)).map(|(_, s)| s.clone()).collect();
        gallery.way = (!way.is_empty()).then(|| picture::way(&way, shape));
        Ok(gallery)
    }

    fn write(&self, directory: &Path) -> Result<()> {
        let one = |name: &str, picture: &Option<RgbImage>| match picture {
            Some(picture) => canvas::write(&directory.join(name), picture),
            None => Ok(()),
        };
        one("truth.png", &self.truth)?;
        one("measurement.png", &self.measurement)?;
        one("best.png", &self.best)?;
        one("mean.png", &self.mean)?;
        one("answer.png", &self.answer)?;
        one("std.png", &self.std)?;
        one("trace.png", &self.way)?;
        if !self.samples.is_empty() {
            let folder = directory.join("samples");
            files::make_directory(&folder, true)?;
            for (k, sample) in self.samples.iter().enumerate() {
                canvas::write(&folder.join(format!("{k:02}.png")), sample)?;
            }
            let row = &self.samples[..self.samples.len().min(MOST_IN_ROW)];
            canvas::write(&directory.join("samples.png"), &picture::strip(row))?;
        }
        Ok(())
    }
}

impl Run {
    /// A measurement as a picture, where it has a form that can be looked at.
    pub fn shown_measurement(&self, i: usize) -> Result<Option<RgbImage>> {
        let likelihood = &self.problem.likelihood;
        let (Some(operator), Some(y)) = (self.operator(), likelihood.measurement()?) else { return Ok(None) };
        let mut y = to_f64(&self.values(&y.get(i)?)?)?;
        if likelihood.statistic() == Statistic::Pearson {
            // Counts have no range of their own.
            let most = y.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
            y.iter_mut().for_each(|v| *v = 2.0 * *v / most - 1.0);
        }
        Ok(picture::measurement(&y, &**operator, i))
    }
}

/// The folder of a measurement: its name, but never that of a file of the run. No measurement's name has a `+`.
fn folder_name(name: &str) -> String {
    const OURS: [&str; 7] = ["html", "json", "jsonl", "lock", "safetensors", "tmp", "toml"];
    let ending = name.rsplit_once('.').map_or(String::new(), |(_, ending)| ending.to_lowercase());
    if OURS.contains(&ending.as_str()) { format!("{name}+") } else { name.to_owned() }
}

/// Writes everything but `metrics.json`. Of one measurement the pictures lie in the directory itself, of several in a folder
/// for each.
pub(crate) fn write(run: &Run, outcome: &Outcome, path: &Path) -> Result<()> {
    let (n, shape) = (run.names.len(), run.space.shape());
    // Of tokens both: what they stand for, as everything else in the directory has it, and the symbols themselves.
    let of_run = |t: &Tensor| Ok::<_, Error>(t.reshape(batched(n, &batched(run.samples, shape)))?);
    let samples = of_run(&run.values(&outcome.samples)?)?;
    let symbols = run.space.symbols().is_some().then(|| of_run(&outcome.samples)).transpose()?;
    let mean = from_f64(outcome.mean.concat(), &batched(n, shape), DType::F64)?;
    let std = spreads(&outcome.std, shape.iter().product());
    let std: Option<Tensor> = std.map(|s| from_f64(s, &batched(n, shape), DType::F64)).transpose()?;
    let mut tensors = vec![("samples", &samples), ("mean", &mean)];
    tensors.extend(std.as_ref().map(|s| ("std", s)));
    tensors.extend(symbols.as_ref().map(|s| ("symbols", s)));
    files::write_tensors(&path.join("samples.safetensors"), &tensors, HashMap::new())?;

    let mut galleries = Vec::new();
    for (i, name) in run.names.iter().enumerate() {
        let gallery = Gallery::new(run, outcome, i)?;
        if n == 1 {
            gallery.write(path)?;
        } else if gallery.measurement.is_some() || !gallery.samples.is_empty() {
            let folder = path.join(folder_name(name));
            files::make_directory(&folder, true)?;
            gallery.write(&folder)?;
        }
        if i < report::MOST_SHOWN {
            galleries.push(gallery);
        }
    }
    files::write(&path.join("report.html"), report::page(run, outcome, &galleries)?.as_bytes())
}
