//! The shapes of a run's inputs: with a prior that works at any size a run has its input's, and inputs of several shapes become a run of
//! each, in one directory with one report.

use std::path::Path;
use std::sync::Arc;

use daps_files::{Choice, is_array};
use daps_operators::registry::entry;
use daps_priors::Source;
use daps_priors::network::TileCount;

use crate::config::RunConfig;
use crate::event::{RunEvent, RunObserver};
use crate::load::listed;
use crate::record::{self, CONFIG, METRICS};
use crate::run::{Directory, Run};
use crate::summary::Summary;
use crate::{Error, Result, files, prior, report};

/// A run of a configuration, or a run for each shape of its inputs.
pub struct Runs {
    /// In the order in which their shapes appear among the inputs.
    runs: Vec<Run>,
    /// The configuration of all of them.
    config: RunConfig,
}

impl Runs {
    /// Builds all runs, so that what cannot be carried out is said before any of them begins; relative paths start at `base`.
    pub fn new(mut config: RunConfig, base: &Path) -> Result<Self> {
        config.check()?;
        config.settle(base)?;
        let each = split(config.clone(), &prior::open(&config.prior, base)?)?;
        let runs = each.into_iter().map(|one| Run::new(one, base)).collect::<Result<Vec<_>>>()?;
        if let Some(built) = runs.first().and_then(Run::config) {
            config.prior = built.prior.clone();
            config.version.clone_from(&built.version);
        }
        Ok(Self { runs, config })
    }

    /// How far a call of the denoiser is, of every run that has it on tiles.
    #[must_use]
    pub fn tiles(&self) -> Vec<Arc<TileCount>> {
        self.runs.iter().filter_map(Run::tiles).collect()
    }

    /// Runs all to the end, or until asked to stop. One run has the directory to itself; of several each has a folder, `HEIGHTxWIDTH`,
    /// and the directory holds the report and the numbers of all. What is finished is only read back.
    pub fn execute(&self, directory: &Directory, observer: &mut dyn RunObserver) -> Result<Summary> {
        if let [one] = &self.runs[..] {
            return one.execute(directory, observer);
        }
        let (path, config) = (&directory.path, self.config.to_toml()?);
        let (_lock, _) = record::enter(directory, &config)?;
        files::write(&path.join(CONFIG), config.as_bytes())?;
        let mut parts = Vec::new();
        for run in &self.runs {
            let (folder, n) = (folder(run.space.shape()), run.names.len());
            let images = if n == 1 { "1 image".to_owned() } else { format!("{n} images") };
            _ = observer.event(&RunEvent::Note { text: format!("{folder}: {images}") });
            let own = Directory { path: path.join(&folder), ..directory.clone() };
            let summary = run.execute(&own, observer)?;
            parts.push((folder, run.space.size(), summary));
        }
        let summary = Summary::of_parts(parts, self.config.answer, self.config.samples);
        let page = report::of_shapes(&self.runs[0].about.title, &config, &summary);
        files::write(&path.join("report.html"), page.as_bytes())?;
        files::write(&path.join(METRICS), (summary.to_json(path)? + "\n").as_bytes())?;
        Ok(summary)
    }
}

/// Where the run of a shape lies.
fn folder(shape: &[usize]) -> String {
    let sides: Vec<String> = shape.iter().skip(1).map(usize::to_string).collect();
    sides.join("x")
}

/// A settled configuration for each shape of the inputs, where the prior works at any size and no shape is given; else the
/// configuration as it is. Paths are absolute.
pub(crate) fn split(config: RunConfig, source: &Source) -> Result<Vec<RunConfig>> {
    let own = source.shape().filter(|_| config.task.shape.is_empty() && source.works_at_any_size());
    let Some([channels, _, _]) = own else { return Ok(vec![config]) };
    let task = &config.task;
    let mut shapes: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    for (dims, file) in inputs(&config, channels)? {
        let shape = match task.measurement {
            None => dims.last_chunk::<3>().map(Vec::from),
            Some(_) => (entry(&task.operator)?.image_shape)(&task.options, &dims)?,
        };
        let shape = shape.ok_or_else(|| {
            let what = format!("the image's does not follow from an input of shape {dims:?}; pass --shape");
            Error::Config(format!("task.shape: {what}"))
        })?;
        check_size(&shape)?;
        match shapes.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, files)) => files.push(file),
            None => shapes.push((shape, vec![file])),
        }
    }
    if let [(shape, _)] = &mut shapes[..] {
        let shape = std::mem::take(shape);
        return Ok(vec![with_shape(&config, shape, task.images.clone())]);
    }
    Ok(shapes.into_iter().map(|(shape, files)| with_shape(&config, shape, files)).collect())
}

fn with_shape(config: &RunConfig, shape: Vec<usize>, images: Vec<String>) -> RunConfig {
    let mut config = config.clone();
    (config.task.shape, config.task.images) = (shape, images);
    config
}

/// The shape of every picture, with its file's name, or of an array.
fn inputs(config: &RunConfig, channels: usize) -> Result<Vec<(Vec<usize>, String)>> {
    let task = &config.task;
    let (path, tensor) = match (&task.truth, &task.measurement) {
        (Some(path), _) => (path, "truth"),
        (None, Some(path)) => (path, "y"),
        (None, None) => {
            let what = "task: expected a truth or a measurement, whose size the run has, or a shape";
            return Err(Error::Config(what.into()));
        }
    };
    if !path.exists() {
        return Err(Error::content(path, "no such file"));
    }
    if !path.is_dir() && is_array(path) {
        let array = daps_files::read_array(path, Choice::Preferred(tensor));
        let array = array.map_err(|e| Error::content(path, e))?;
        return Ok(vec![(array.dims().to_vec(), String::new())]);
    }
    let mut all = Vec::new();
    for one in listed(path, &task.images)? {
        let header = one.header()?;
        all.push((vec![channels, header.height as usize, header.width as usize], one.file()));
    }
    Ok(all)
}

/// Refuses an image that no file could hold.
fn check_size(shape: &[usize]) -> Result<()> {
    let pixels = shape.iter().skip(1).try_fold(1usize, |n, side| n.checked_mul(*side));
    if pixels.is_some_and(|n| n as u64 <= daps_files::MOST_PIXELS) {
        return Ok(());
    }
    let most = daps_files::MOST_PIXELS / 1_000_000;
    Err(Error::Config(format!("task.shape: expected at most {most} megapixels, got {}", folder(shape))))
}

/// The only one of several configurations that differ in shape.
pub(crate) fn only(mut configs: Vec<RunConfig>) -> Result<RunConfig> {
    match (configs.len(), configs.pop()) {
        (1, Some(config)) => Ok(config),
        (n, _) => Err(Error::Config(format!("task: expected inputs of one shape, got {n} shapes"))),
    }
}
