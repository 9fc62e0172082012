//! The cells of a table by task and method, and their means.

use std::collections::HashMap;

use super::cell::{Cell, Column};
use super::statistics::{Average, average, column_average};
use super::{Experiment, ExperimentTask, MethodEntry};

/// The cells of a table by (task, method).
pub(super) struct Groups<'a> {
    pub experiment: &'a Experiment,
    cells: HashMap<&'a str, HashMap<&'a str, Vec<&'a Cell>>>,
}

impl<'a> Groups<'a> {
    pub fn new(experiment: &'a Experiment, cells: &'a [Cell]) -> Self {
        let mut groups: HashMap<_, HashMap<_, Vec<&Cell>>> = HashMap::new();
        for cell in cells {
            groups.entry(cell.task.as_str()).or_default().entry(cell.method.as_str()).or_default().push(cell);
        }
        Self { experiment, cells: groups }
    }

    /// The cells of a pair.
    pub fn get(&self, task: &str, method: &str) -> &[&'a Cell] {
        self.cells.get(task).and_then(|t| t.get(method)).map_or(&[], Vec::as_slice)
    }

    /// The mean of a number over a pair's images.
    pub fn average(&self, task: &str, method: &str, of: impl Fn(&Cell) -> Option<f64>) -> Option<Average> {
        average(self.get(task, method).iter().copied(), of)
    }

    /// The same of a column.
    pub fn column(&self, task: &str, method: &str, column: &Column) -> Option<Average> {
        column_average(self.get(task, method), column)
    }

    /// " (2 of 3)" where not all cells of a pair have a number, so that its mean is over fewer than those of others.
    pub fn part(&self, average: Option<Average>) -> String {
        let (n, of) = (average.map_or(0, |a| a.cells), self.cells_of_a_pair());
        if 0 < n && n < of { format!(" ({n} of {of})") } else { String::new() }
    }

    /// How many there should be.
    pub fn cells_of_a_pair(&self) -> usize {
        self.experiment.images() * self.experiment.config.seeds.len()
    }

    /// What the paper reports.
    pub fn paper(&self, task: &ExperimentTask, method: &MethodEntry, column: &str) -> Option<f64> {
        let name = method.paper.as_ref()?;
        self.experiment.paper.iter().find(|r| r.task == task.label && r.method == *name)?.get(column)
    }
}
