//! A run built from parts: a prior, a likelihood and a method that may come from anywhere.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::Tensor;
use daps_core::tensors::{check_finite, check_rows};
use daps_core::{Method, Model, Problem};
use daps_methods::{Daps, DiscreteDaps, Preset};
use daps_priors::Analytic;

use crate::event::RunObserver;
use crate::run::{About, Directory, Run, check_chains, rows};
use crate::{Answer, Error, Format, Posterior, Result, Summary, task, tokens};

/// A run in the making. What is not said has a default: DAPS with the preset `best`, four chains, seed 0.
pub struct Parts {
    problem: Problem,
    analytic: Option<Arc<dyn Analytic>>,
    method: Chosen,
    chains: usize,
    batch: usize,
    seed: u64,
    answer: Answer,
    truth: Option<Tensor>,
    names: Vec<Cow<'static, str>>,
    numbers: Vec<u64>,
    formats: Vec<Format>,
    about: About,
}

/// Rows that run at once where nothing is said.
const BATCH: usize = 16;

/// A method, or a preset that chooses one by the likelihood.
pub enum Chosen {
    /// DAPS with a preset.
    Preset(Preset),
    /// A method as it is.
    Method(Arc<dyn Method>),
}

impl From<Preset> for Chosen {
    fn from(preset: Preset) -> Self {
        Self::Preset(preset)
    }
}

impl From<Daps> for Chosen {
    fn from(daps: Daps) -> Self {
        Self::Method(Arc::new(daps))
    }
}

impl From<Arc<dyn Method>> for Chosen {
    fn from(method: Arc<dyn Method>) -> Self {
        Self::Method(method)
    }
}

impl Run {
    /// A run that draws samples for every row of the problem's likelihood: each is one measurement.
    #[must_use]
    pub fn of(problem: Problem) -> Parts {
        let title = problem.likelihood.measured_by().map(|operator| operator.title().into_owned());
        let title = title.unwrap_or_else(|| problem.likelihood.name().to_owned());
        let about = About { title, prior: format!("over {}", problem.model.space()), ..About::default() };
        Parts {
            problem,
            analytic: None,
            method: Preset::Best.into(),
            chains: task::SAMPLES,
            batch: BATCH,
            seed: 0,
            answer: Answer::default(),
            truth: None,
            names: vec![],
            numbers: vec![],
            formats: vec![],
            about,
        }
    }
}

impl Parts {
    /// The method, or a preset of DAPS.
    #[must_use]
    pub fn method(self, method: impl Into<Chosen>) -> Self {
        Self { method: method.into(), ..self }
    }

    /// Samples of each measurement.
    #[must_use]
    pub fn chains(self, chains: usize) -> Self {
        Self { chains, ..self }
    }

    /// Rows that run at once: memory depends on it, results do not.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Seed of everything that is random.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// What is given as the one answer to a measurement: a sample, or the mean of all samples.
    #[must_use]
    pub fn answer(self, answer: Answer) -> Self {
        Self { answer, ..self }
    }

    /// The true samples, `[measurements, shape…]`, which answers are compared with; tokens as their grey values from -1 to 1.
    #[must_use]
    pub fn truth(self, truth: Tensor) -> Self {
        Self { truth: Some(truth), ..self }
    }

    /// The name of the next measurement, usable as a file's.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.names.push(name.into());
        self
    }

    /// What the task is called in reports.
    #[must_use]
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.about.title = title.into();
        self
    }

    /// What the prior is called in reports.
    #[must_use]
    pub fn prior_named(mut self, name: impl Into<String>) -> Self {
        self.about.prior = name.into();
        self
    }

    /// The prior in closed form, so that exact posterior means can be compared with.
    #[must_use]
    pub fn analytic(self, prior: Arc<dyn Analytic>) -> Self {
        Self { analytic: Some(prior), ..self }
    }

    /// With what a configuration says beside the parts.
    pub(crate) fn configured(self, numbers: Vec<u64>, formats: Vec<Format>, about: About) -> Self {
        Self { numbers, formats, about, ..self }
    }

    /// Checks that the parts fit together.
    pub fn build(self) -> Result<Run> {
        let Self { problem, analytic, method, chains, batch, seed, answer, truth, names, .. } = self;
        let Self { numbers, formats, about, .. } = self;
        for (what, value) in [("chains", chains), ("batch", batch)] {
            if value == 0 {
                return Err(Error::Config(format!("{what}: expected at least 1, got 0")));
            }
        }
        let (n, space) = (problem.likelihood.rows(), problem.model.space());
        check_chains(chains, n)?;
        let method = match method {
            Chosen::Method(method) => method,
            Chosen::Preset(preset) if space.symbols().is_some() => {
                Arc::new(DiscreteDaps::preset(preset)?) as Arc<dyn Method>
            }
            Chosen::Preset(preset) => {
                Arc::new(preset.settings(&*problem.likelihood, None, None)?) as Arc<dyn Method>
            }
        };
        let truth = match truth {
            None => None,
            Some(truth) => {
                if check_rows("truth", &truth, space.shape())? != n {
                    let expected = daps_core::tensors::batched(n, space.shape());
                    return Err(daps_core::Error::shape("truth", &expected, truth.dims()).into());
                }
                check_finite("truth", &truth)?;
                Some(match space.symbols() {
                    Some(symbols) => tokens::values(&tokens::tokens(&truth, symbols)?.0, symbols)?,
                    None => truth,
                })
            }
        };
        if names.len() > n {
            return Err(Error::Config(format!("names: expected {n} at most, got {}", names.len())));
        }
        let mut names: Vec<String> = names.into_iter().map(Cow::into_owned).collect();
        names.extend((names.len()..n).map(|i| format!("measurement-{i:03}")));
        let numbers = if numbers.is_empty() { (0..n as u64).collect() } else { numbers };
        let formats = if formats.is_empty() { vec![Format::of(&space); n] } else { formats };
        let rows = rows(n, chains);
        let run = Run {
            problem,
            space,
            analytic,
            method,
            truth,
            names,
            numbers,
            formats,
            seed,
            samples: chains,
            batch,
            rows,
            answer,
            about,
        };
        run.method.check(&run.task(&[0])?)?;
        Ok(run)
    }

    /// Draws all samples and keeps them in memory.
    pub fn sample(self, observer: &mut dyn RunObserver) -> Result<Posterior> {
        self.build()?.sample(observer)
    }

    /// Runs in a directory, with checkpoints, metrics and a report.
    pub fn execute(self, directory: &Directory, observer: &mut dyn RunObserver) -> Result<Summary> {
        self.build()?.execute(directory, observer)
    }
}

impl Run {
    /// The text that defines the run, which its directory keeps: its configuration, or what its parts say of themselves.
    pub(crate) fn text(&self) -> Result<String> {
        if let Some(text) = &self.about.text {
            return Ok(text.clone());
        }
        let said = |part: &str, text: Option<String>| {
            text.ok_or_else(|| {
                let what = "a run in a directory needs to know what defines it";
                Error::Config(format!("{what}: give the {part} a fingerprint, or call sample() instead"))
            })
        };
        let prior = match &self.problem.model {
            Model::Denoiser(model) => model.fingerprint(),
            Model::Tokens(model) => model.fingerprint(),
        };
        let of = |key: &str, value: toml::Value| (key.to_owned(), value);
        let names = self.names.iter().map(|n| n.as_str().into()).collect();
        let table = toml::Table::from_iter([
            of("version", env!("CARGO_PKG_VERSION").into()),
            of("seed", (self.seed as i64).into()),
            of("samples", (self.samples as i64).into()),
            of("batch", (self.batch as i64).into()),
            of("names", toml::Value::Array(names)),
            of("prior", said("prior", prior)?.into()),
            of("likelihood", said("likelihood", self.problem.likelihood.fingerprint())?.into()),
            of("method", said("method", self.method.fingerprint())?.into()),
        ]);
        toml::to_string(&table).map_err(|e| Error::Config(format!("configuration: {e}")))
    }
}
