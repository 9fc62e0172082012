//! Settings of a method task by task, as `daps tune` finds them and experiments take them.

use std::collections::BTreeMap;
use std::path::Path;

use daps::fit::facts;
use daps::{Error, Result, files};
use daps_methods::MethodConfig;
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::experiment::ExperimentTask;

/// The settings of a method on a task with every default and preset spelled out, as a file has them.
pub(crate) fn resolved(method: &str, settings: &Table, task: &ExperimentTask) -> Result<Table> {
    let facts = facts(&task.operator, &task.noise)?;
    let mut table = MethodConfig::new(method, settings.clone())?.resolved(&facts)?.to_table()?;
    table.remove("name");
    Ok(table)
}

/// Settings by task, as `daps tune` writes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// The method.
    pub name: String,
    /// How they were found, for people, by the task's operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub found: BTreeMap<String, String>,
    /// Its settings by the task's operator.
    pub tasks: BTreeMap<String, Table>,
}

impl Tuned {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        toml::from_str(&files::read_text(path)?)
            .map_err(|e| Error::content(path, daps_core::with_suggestion(e.message())))
    }

    /// The method of a run on an operator.
    pub fn method(&self, operator: &str) -> Result<MethodConfig> {
        let known = self.tasks.keys();
        let settings = self.tasks.get(operator);
        let settings = settings.ok_or_else(|| daps_core::Error::unknown("tuned task", operator, known))?;
        Ok(MethodConfig::new(&self.name, settings.clone())?)
    }

    /// Writes a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = toml::to_string(self).map_err(|e| Error::content(path, e))?;
        let head = format!("# Settings of {} by task, found by daps tune.\n", self.name);
        files::write(path, (head + &text).as_bytes())
    }
}
