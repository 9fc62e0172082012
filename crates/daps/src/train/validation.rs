//! How well a training knows held-out images: a line to read, and a table that grows with the checkpoints.

use std::fmt::Write;
use std::path::Path;

use crate::{Result, files};

/// One measurement on held-out images.
pub(super) struct Validation {
    /// What was measured, for people.
    pub what: &'static str,
    /// The same as the head of a column.
    pub column: &'static str,
    /// Decimal places.
    pub digits: usize,
    /// By noise level; a classifier has none.
    pub found: Vec<(Option<f64>, f64)>,
}

impl Validation {
    /// "held-out denoising, dB  σ 0.05: 31.20, σ 0.1: 28.04, …"
    pub fn line(&self) -> String {
        let one = |(sigma, value): &(Option<f64>, f64)| {
            let level = sigma.map(|s| format!("σ {s}: ")).unwrap_or_default();
            format!("{level}{value:.0$}", self.digits)
        };
        format!("{}  {}", self.what, self.found.iter().map(one).collect::<Vec<_>>().join(", "))
    }

    /// Adds rows to a table, and begins it if there is none of this kind.
    pub fn append(&self, path: &Path, images: u64) -> Result<()> {
        let head = format!("images,sigma,{}\n", self.column);
        let before = if path.exists() { files::read_text(path)? } else { String::new() };
        let mut table = if before.starts_with(&head) { before } else { head };
        for (sigma, value) in &self.found {
            let sigma = sigma.map(|s| s.to_string()).unwrap_or_default();
            let _ = writeln!(table, "{images},{sigma},{value}");
        }
        files::write(path, table.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_a_table_say_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("validation.csv");
        std::fs::write(&path, "32,0.05: 31.20\n").unwrap();
        let found = vec![(Some(0.05), 31.25), (Some(0.1), 28.0)];
        let denoising = Validation { what: "held-out denoising, dB", column: "psnr", digits: 1, found };
        assert_eq!(denoising.line(), "held-out denoising, dB  σ 0.05: 31.2, σ 0.1: 28.0");
        denoising.append(&path, 64).unwrap();
        denoising.append(&path, 96).unwrap();
        let table = std::fs::read_to_string(&path).unwrap();
        assert_eq!(table, "images,sigma,psnr\n64,0.05,31.25\n64,0.1,28\n96,0.05,31.25\n96,0.1,28\n");
        let classes =
            Validation { what: "held-out accuracy", column: "accuracy", digits: 3, found: vec![(None, 0.5)] };
        assert_eq!(classes.line(), "held-out accuracy  0.500");
        classes.append(&dir.path().join("other.csv"), 32).unwrap();
        let table = std::fs::read_to_string(dir.path().join("other.csv")).unwrap();
        assert_eq!(table, "images,sigma,accuracy\n32,,0.5\n");
    }
}
