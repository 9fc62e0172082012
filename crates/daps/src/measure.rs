//! What a run is to explain: a measurement from a file, or one of a truth that is known.

use std::path::Path;

use candle_core::Tensor;
use daps_core::tensors::{batched, check_finite};
use daps_core::{Address, Noise, NoiseModel, Operator, Purpose, Row, Space};
use daps_priors::Analytic;

use crate::config::RunConfig;
use crate::{Error, Format, Result, load, rounding, tokens};

/// Truths to be measured.
#[derive(Clone)]
pub struct Truths {
    /// `[n, shape…]` in f64.
    pub values: Tensor,
    /// What each is called.
    pub names: Vec<String>,
    /// What each one's noise is addressed by.
    pub numbers: Vec<u64>,
}

impl Truths {
    /// Some of them.
    pub fn select(&self, chosen: &[usize]) -> Result<Self> {
        let index: Vec<u32> = chosen.iter().map(|&i| i as u32).collect();
        let index = Tensor::new(index, &candle_core::Device::Cpu)?;
        Ok(Self {
            values: self.values.index_select(&index, 0)?,
            names: chosen.iter().map(|&i| self.names[i].clone()).collect(),
            numbers: chosen.iter().map(|&i| self.numbers[i]).collect(),
        })
    }
}

/// The truth, where it is known, and the measurement.
pub(crate) struct Measured {
    pub truth: Option<Tensor>,
    pub y: Tensor,
    pub names: Vec<String>,
    pub numbers: Vec<u64>,
    pub notes: Vec<String>,
    /// What the pictures were like that it comes from; empty where it comes from none.
    pub formats: Vec<Format>,
    /// The deviation that rounding to the steps of a file has added to the measurement.
    pub rounding: f64,
}

impl Measured {
    /// A noise model with what rounding has added; where the level is drawn, it finds that by itself.
    pub fn noise(&self, noise: &NoiseModel) -> NoiseModel {
        match noise {
            NoiseModel::Level(level) => NoiseModel::Level(level.hypot(self.rounding)),
            other => other.clone(),
        }
    }
}

/// Reads the measurement of a configuration, or measures the truth that it names or the prior draws.
pub(crate) fn measure(
    config: &RunConfig,
    space: &Space,
    analytic: Option<&dyn Analytic>,
    operator: &dyn Operator,
    base: &Path,
) -> Result<Measured> {
    let given = &config.task;
    if let Some(path) = &given.measurement {
        let path = base.join(path);
        let array = daps_files::is_array(&path);
        if !array && path.exists() && !operator.is_measured_as_picture() {
            let what =
                format!("a measurement of {} is not an image; pass .npy or .safetensors", given.operator);
            return Err(Error::content(&path, what));
        }
        // Counts are no brightness, whatever shape they have.
        let pictured = operator.is_measured_as_picture()
            && space.symbols().is_none()
            && matches!(given.noise, NoiseModel::Level(_) | NoiseModel::Unknown { .. });
        let meaning = match pictured && operator.output_shape().len() == 3 {
            true => load::Meaning::MeasuredPicture,
            false => load::Meaning::Measurement,
        };
        let load::Batch { values, names, mut notes, numbers, formats } =
            load::batch(&path, &given.images, operator.output_shape(), "y", meaning)?;
        check_finite("measurement", &values)?;
        let steps = if pictured { rounding::steps(&path)? } else { None };
        let rounding =
            steps.filter(|_| matches!(given.noise, NoiseModel::Level(_))).map_or(0.0, rounding::deviation);
        if rounding > 0.0 {
            let what = "counts as noise of its own beside the given one";
            notes.push(format!("{}: rounding to steps of the file {what} ({rounding:.1e})", path.display()));
        }
        // Before anybody asks for the mask of a measurement that has none.
        if let Some(n) = operator.rows().filter(|n| *n != names.len()) {
            let expected = batched(n, operator.output_shape());
            return Err(daps_core::Error::shape("measurement", &expected, values.dims()).into());
        }
        let values = match space.symbols() {
            None => values,
            Some(symbols) => tokens::measured(&values, symbols, operator, !array)?,
        };
        return Ok(Measured { truth: None, y: values, names, numbers, notes, formats, rounding });
    }
    let (truth, notes, formats) = match &given.truth {
        Some(path) => {
            let path = base.join(path);
            let meaning = match space.symbols() {
                None => load::Meaning::Pictures,
                Some(_) => load::Meaning::Tokens,
            };
            let load::Batch { values, names, notes, numbers, formats } =
                load::batch(&path, &given.images, &given.shape, "truth", meaning)?;
            let values = match space.symbols() {
                Some(symbols) if daps_files::is_array(&path) => {
                    tokens::values(&tokens::of_array(&values, symbols)?, symbols)?
                }
                _ => values,
            };
            (Truths { values, names, numbers }, notes, formats)
        }
        None => {
            let Some(prior) = analytic else {
                let what =
                    "task: expected a truth or a measurement; only a closed-form prior can draw one itself";
                return Err(Error::Config(what.into()));
            };
            let numbers: Vec<u64> = (0..given.measurements as u64).collect();
            let noise = measurement_noise(config.seed, &numbers);
            let values = prior.draw(&noise, Address::new(0, Purpose::Truth, 0))?;
            let names = (0..given.measurements).map(|i| format!("draw-{i:03}")).collect();
            (Truths { values, names, numbers }, vec![], vec![])
        }
    };
    let measured = measured(config, space, operator, truth)?;
    Ok(Measured { notes: [notes, measured.notes].concat(), formats, ..measured })
}

/// Measures truths.
pub(crate) fn measured(
    config: &RunConfig,
    space: &Space,
    operator: &dyn Operator,
    truths: Truths,
) -> Result<Measured> {
    let Truths { values, names, numbers } = truths;
    check_finite("truth", &values)?;
    let noise = measurement_noise(config.seed, &numbers);
    let measure = |x0: &Tensor| {
        config.task.noise.measure(operator, x0, space, &noise, Address::new(0, Purpose::Measurement, 0))
    };
    let Some(symbols) = space.symbols() else {
        let y = measure(&values)?;
        return Ok(Measured {
            truth: Some(values),
            y,
            names,
            numbers,
            notes: vec![],
            formats: vec![],
            rounding: 0.0,
        });
    };
    let (x0, off) = tokens::tokens(&values, symbols)?;
    let note = format!("images were cut to the {symbols} grey values of the prior's alphabet");
    let notes = if off { vec![note] } else { vec![] };
    let (truth, y) = (Some(tokens::values(&x0, symbols)?), measure(&x0)?);
    Ok(Measured { truth, y, names, numbers, notes, formats: vec![], rounding: 0.0 })
}

fn measurement_noise(seed: u64, numbers: &[u64]) -> Noise {
    Noise::new(seed, numbers.iter().map(|&measurement| Row { measurement, chain: 0 }).collect())
}
