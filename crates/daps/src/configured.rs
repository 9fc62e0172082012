//! From a configuration to the parts of a run.

use std::path::Path;

use candle_core::DType;
use daps_core::{Model, Problem};
use daps_methods::Facts;

use crate::config::RunConfig;
use crate::inputs::{by_content, prior_by_content};
use crate::measure::{Truths, measure, measured};
use crate::parts::Parts;
use crate::prior::Built;
use crate::run::{About, Run, check_chains};
use crate::{Result, files, prior, shapes};

impl Run {
    /// Builds everything, checks that it fits together, and resolves the configuration; relative paths start at `base`. Inputs of
    /// several shapes are refused: [`Runs`](crate::Runs) makes a run of each.
    pub fn new(mut config: RunConfig, base: &Path) -> Result<Self> {
        config.check()?;
        check_chains(config.samples, config.task.measurements)?;
        config.settle(base)?;
        // What is wrong with the method is said before any weight is read.
        let source = prior::open(&config.prior, base)?;
        config = shapes::only(shapes::split(config, &source)?)?;
        config.method.clone().over(source.is_discrete())?.check()?;
        daps_operators::registry::entry(&config.task.operator)?;
        let prior = source.build(&config.task.shape, config.memory)?;
        config.prior.complete(&prior);
        Self::with(config, base, prior, None)
    }

    /// The same with a prior that is built already, and with truths that are, where there are any.
    pub fn with(mut config: RunConfig, base: &Path, prior: Built, truths: Option<&Truths>) -> Result<Self> {
        let name = config.task.operator.clone();
        let prior_title = prior.title();
        let Built { model, analytic, mut notes, about, tiles, count, .. } = prior;
        let space = model.space();
        let method = config.method.clone().over(space.symbols().is_some())?;
        let entry = daps_operators::registry::entry(&name)?;
        let mut options = match space.symbols() {
            Some(_) => (entry.over_tokens)(),
            None => toml::Table::new(),
        };
        options.extend(config.task.options);
        let options = (entry.complete)(&options, space.shape())?;
        let operator = (entry.build)(&options, space.shape(), config.seed)?;
        if space.symbols().is_some() && operator.as_local().is_none() {
            let what = daps_core::Error::missing("a prior over tokens", "a measurement of tokens", &name);
            return Err(what.into());
        }
        (config.task.shape, config.task.options) = (space.shape().to_vec(), options);
        config.version = Some(env!("CARGO_PKG_VERSION").into());

        let measured = match truths {
            Some(truths) => measured(&config, &space, &*operator, truths.clone())?,
            None => measure(&config, &space, analytic.as_deref(), &*operator, base)?,
        };
        let noise = measured.noise(&config.task.noise);
        notes.extend(measured.notes);
        if let Some(what) = (entry.drawn)(&config.task.options)?.filter(|_| config.task.measurement.is_some())
        {
            let seed = config.seed;
            notes.push(format!(
                "{name}: {what} drawn from seed {seed}, as if the measurement had been made so here"
            ));
        }
        let y = measured.y;
        let dtype = match &model {
            Model::Denoiser(denoiser) => denoiser.dtype(),
            Model::Tokens(_) => DType::U8,
        };
        let title = operator.title().into_owned();
        let likelihood = noise.likelihood(operator, &y, &space, dtype)?;
        let noise = config.task.noise.to_string();
        // Presets ask the likelihood.
        config.method = method.resolved(&Facts::of(&*likelihood))?;
        let method = config.method.build(&Facts::of(&*likelihood))?;
        let options = by_content(&config.task.options)?;
        let prior = prior_by_content(&config.prior)?.to_table()?;
        let inputs = files::sha256(format!("{options}\n{prior}\n{about}\n"));
        let about = About {
            title,
            prior: prior_title,
            noise: Some(noise),
            text: Some(config.to_toml()?),
            inputs,
            tiles,
            count,
            notes,
            config: None,
        };
        let problem = Problem::of(model, likelihood)?;
        let parts = Self::of(problem).method(method).chains(config.samples).batch(config.batch);
        let parts = parts.answer(config.answer);
        let parts = measured.names.into_iter().fold(parts.seed(config.seed), Parts::named);
        let parts = measured.truth.into_iter().fold(parts, Parts::truth);
        let parts = analytic.into_iter().fold(parts, Parts::analytic);
        let about = About { config: Some(config), ..about };
        parts.configured(measured.numbers, measured.formats, about).build()
    }
}
