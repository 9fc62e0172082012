//! Parameters of operators: serde structs whose defaults are the paper's values, scaled with the image's side. Each stands beside
//! its operator.

use std::sync::Arc;

use daps_core::{Error, Operator, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Table;

use crate::registry::{FileParameter, FromFile};

/// Parameters that build an operator.
pub(crate) trait Params: Serialize + DeserializeOwned {
    /// Parameters that are files.
    const FILES: &'static [FileParameter] = &[];

    /// The options of `daps solve` that give what is drawn from the seed otherwise.
    const SUPPLY: &'static str = "";

    /// The operator that takes what is drawn or made here from a file.
    const FROM_FILE: Option<FromFile> = None;

    /// The operator that draws what a file says here.
    const WITHOUT_FILE: Option<&'static str> = None;

    /// Parameters that are not the defaults where images hold tokens.
    fn over_tokens() -> Table {
        Table::new()
    }

    /// The shape of the image behind a measurement, whose shape may have rows in front; none where it does not follow.
    fn image_shape(&self, measured: &[usize]) -> Result<Option<Vec<usize>>> {
        let _ = measured;
        Ok(None)
    }

    /// What is drawn from the seed.
    fn drawn(&self) -> Option<&'static str> {
        None
    }

    /// Fills what was not given with the defaults for images of this shape.
    fn complete(self, shape: &[usize]) -> Self {
        let _ = shape;
        self
    }

    /// Builds the operator; `self` is complete.
    fn operator(self, name: &'static str, shape: &[usize], seed: u64) -> Result<Arc<dyn Operator>>;

    /// Reads and completes a table.
    fn read(name: &str, table: &Table, shape: &[usize]) -> Result<Self> {
        let params: Self = table.clone().try_into().map_err(|error: toml::de::Error| {
            let missing = Self::FILES.iter().find(|f| f.required && !table.contains_key(f.name));
            if let Some(file) = missing.filter(|_| error.message().contains("missing field")) {
                let expected = format!("{} = FILE, {}", file.name, file.holds);
                return Error::invalid(format!("parameters of {name}"), expected, "none");
            }
            let message = error.to_string().trim().replace('\n', " ");
            Error::settings(format!("parameters of {name}"), message)
        })?;
        Ok(params.complete(shape))
    }

    /// The same table with every default for images of a shape spelled out.
    fn completed(name: &str, table: &Table, shape: &[usize]) -> Result<Table> {
        Table::try_from(Self::read(name, table, shape)?)
            .map_err(|e| Error::invalid(format!("parameters of {name}"), "values that TOML can hold", e))
    }

    /// The defaults for images of a shape; empty if some parameter is required.
    fn default_table(shape: &[usize]) -> Table {
        let params: std::result::Result<Self, _> = Table::new().try_into();
        params.ok().and_then(|p: Self| Table::try_from(p.complete(shape)).ok()).unwrap_or_default()
    }
}

pub(crate) const fn required(name: &'static str, option: &'static str, holds: &'static str) -> FileParameter {
    FileParameter { name, option, holds, required: true }
}

pub(crate) const fn optional(name: &'static str, option: &'static str, holds: &'static str) -> FileParameter {
    FileParameter { name, option, holds, required: false }
}

/// Refuses settings of what a file says.
pub(crate) fn beside(operator: &str, file: &str, given: &[(&str, bool)]) -> Result<()> {
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(Error::invalid(operator, format!("either {file} or {name}"), "both")),
        None => Ok(()),
    }
}

/// Channels, height and width at the end of a shape.
pub(crate) fn last_three(shape: &[usize]) -> Option<[usize; 3]> {
    shape.last_chunk().copied()
}

/// The image of an operator whose measurements have its shape.
pub(crate) fn same_shape(measured: &[usize]) -> Result<Option<Vec<usize>>> {
    Ok(last_three(measured).map(Vec::from))
}

/// The shorter side of an image.
pub(crate) fn side(shape: &[usize]) -> usize {
    shape.iter().skip(1).copied().min().unwrap_or(1)
}

/// The paper's 61 at a side of 256, in proportion, rounded to an odd number of at least 3.
pub(crate) fn kernel_size(shape: &[usize]) -> usize {
    let size = (61 * side(shape)) as f64 / 256.0;
    (2 * ((size - 1.0) / 2.0).round() as usize + 1).max(3)
}
