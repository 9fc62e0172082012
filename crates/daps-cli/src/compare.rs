//! `daps compare`: how close reconstructions are to the truth.

use std::path::PathBuf;

use daps::quality;

use crate::Outcome;
use crate::table::{say, table};

#[derive(clap::Args)]
pub struct Args {
    /// Reconstructions: .npy or .safetensors of shape [n, channels, height, width] (or one image), values in [-1, 1] or bytes
    images: PathBuf,
    /// What they should be, in the same form
    truth: PathBuf,
    /// Print one JSON object for each metric instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let metrics = quality::compare(&quality::read(&args.images)?, &quality::read(&args.truth)?)?;
    if args.json {
        for metric in &metrics {
            say(&serde_json::to_string(metric)?);
        }
        return Ok(Outcome::Done);
    }
    let row = |m: &quality::Metric| {
        let shown = m.mean().map_or("-".to_owned(), |v| format!("{v:.4}"));
        vec![m.name.to_owned(), shown, m.note.clone().unwrap_or_default()]
    };
    say(&table(&["metric", "mean", "note"], &metrics.iter().map(row).collect::<Vec<_>>(), 3));
    Ok(Outcome::Done)
}
