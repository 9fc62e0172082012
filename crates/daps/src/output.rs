//! What a finished run leaves in its directory: tensors, pictures of every measurement, and the report.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use daps_core::Statistic;
use daps_core::tensors::{batched, from_f64, to_f64};
use image::RgbImage;

use crate::outcome::Outcome;
use crate::picture::{self, LARGE, STRIP, Snapshot};
use crate::posterior::spreads;
use crate::run::Run;
use crate::{Answer, Error, Format, Result, canvas, files, report};

/// Samples of a measurement that become pictures of their own; all of them are in `samples.safetensors`.
const MOST_PICTURES: usize = 64;
/// Samples that stand in one row.
const MOST_IN_ROW: usize = 16;

/// Small pictures of one measurement; those in its files have their full size.
#[derive(Default)]
pub(crate) struct Gallery {
    pub truth: Option<RgbImage>,
    pub measurement: Option<RgbImage>,
    /// Those that stand in one row.
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

/// Where the pictures of a measurement are written, and what like.
struct Paper {
    directory: PathBuf,
    format: Format,
}

impl Paper {
    /// Writes a picture, and gives a small one whose sides are at most `most`.
    fn draw(&self, name: &str, values: &[f64], shape: [usize; 3], most: usize) -> Result<RgbImage> {
        self.write(name, &self.format.png(values, shape)?)?;
        let (values, shape) = self.format.planes(values, shape);
        Ok(picture::preview(&values, shape, most))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.directory.join(name);
        files::make_directory(path.parent().unwrap_or(&self.directory), true)?;
        files::write(&path, bytes)
    }
}

impl Gallery {
    /// Writes the pictures of a measurement.
    fn written(run: &Run, outcome: &Outcome, i: usize, directory: PathBuf) -> Result<Self> {
        let paper = Paper { directory, format: run.formats[i] };
        let mut gallery = Self::default();
        if let Some((y, shape)) = run.seen_measurement(i)? {
            gallery.measurement = Some(paper.draw("measurement.png", &y, shape, LARGE)?);
        }
        let Some(shape) = run.space.picture() else { return Ok(gallery) };
        let (d, k) = (run.space.size(), run.samples);
        let sample = |chain: usize| &outcome.values[(i * k + chain) * d..(i * k + chain + 1) * d];
        if let Some(truth) = &run.truth {
            gallery.truth = Some(paper.draw("truth.png", &to_f64(&truth.get(i)?)?, shape, LARGE)?);
        }
        for chain in 0..k.min(MOST_PICTURES) {
            let small = paper.draw(&format!("samples/{chain:02}.png"), sample(chain), shape, STRIP)?;
            gallery.samples.extend((chain < MOST_IN_ROW).then_some(small));
        }
        paper.write("samples.png", &canvas::png(&picture::strip(&gallery.samples))?)?;
        let best = sample(outcome.summary.measurements[i].chosen);
        gallery.best = Some(paper.draw("best.png", best, shape, LARGE)?);
        gallery.mean = Some(paper.draw("mean.png", &outcome.mean[i], shape, LARGE)?);
        let answer = match run.answer {
            Answer::Sample => best,
            Answer::Mean => &outcome.mean[i],
        };
        gallery.answer = Some(paper.draw("answer.png", answer, shape, LARGE)?);
        if let Some(std) = &outcome.std[i] {
            gallery.largest = std.iter().copied().filter(|v| v.is_finite()).fold(1e-9, f64::max);
            paper.write("std.png", &canvas::png(&picture::heat(std, shape, gallery.largest))?)?;
            let (std, shape) = picture::small(std, shape, LARGE);
            gallery.std = Some(picture::heat(&std, shape, gallery.largest));
        }
        let way: Vec<Snapshot> =
            outcome.snapshots.range((i as u64, 0)..(i as u64 + 1, 0)).map(|(_, s)| s.clone()).collect();
        if !way.is_empty() {
            let way = picture::way(&way, picture::small_shape(shape, STRIP));
            paper.write("trace.png", &canvas::png(&way)?)?;
            gallery.way = Some(way);
        }
        Ok(gallery)
    }
}

impl Run {
    /// A measurement as a picture, where it has a form that can be looked at.
    pub fn shown_measurement(&self, i: usize) -> Result<Option<RgbImage>> {
        Ok(self.seen_measurement(i)?.map(|(y, shape)| picture::image(&y, shape)))
    }

    /// The values of that picture.
    fn seen_measurement(&self, i: usize) -> Result<Option<(Vec<f64>, [usize; 3])>> {
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
        let own = if n == 1 { path.to_path_buf() } else { path.join(folder_name(name)) };
        let gallery = Gallery::written(run, outcome, i, own)?;
        if i < report::MOST_SHOWN {
            galleries.push(gallery);
        }
    }
    files::write(&path.join("report.html"), report::page(run, outcome, &galleries)?.as_bytes())
}
