//! The paper's figures, which stand beside ours: a TOML file of rows.

use std::path::Path;

use daps::{Error, Result, files};
use serde::Deserialize;

/// What the paper reports for a method on a task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    /// The task's label.
    pub task: String,
    /// The method's name in the paper.
    pub method: String,
    pub psnr: Option<f64>,
    pub ssim: Option<f64>,
    pub lpips: Option<f64>,
    pub fid: Option<f64>,
    pub accuracy: Option<f64>,
    /// Seconds of a sample, of a whole image at once on one A100.
    pub seconds: Option<f64>,
}

impl Row {
    /// The figure of a column.
    pub fn get(&self, column: &str) -> Option<f64> {
        match column {
            "psnr" => self.psnr,
            "ssim" => self.ssim,
            "lpips" => self.lpips,
            "fid" => self.fid,
            "accuracy" => self.accuracy,
            "seconds" => self.seconds,
            _ => None,
        }
    }
}

/// Reads a file of `[[row]]` tables.
pub(super) fn read(path: &Path) -> Result<Vec<Row>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Rows {
        row: Vec<Row>,
    }
    let rows: Rows = toml::from_str(&files::read_text(path)?)
        .map_err(|e| Error::content(path, daps_core::with_suggestion(e.message())))?;
    Ok(rows.row)
}
