//! `daps compare`: how close reconstructions are to the truth.

use std::path::PathBuf;

use daps::quality;

use crate::Outcome;
use crate::table::{say, table};

#[derive(clap::Args)]
pub struct Args {
    /// Reconstructions: an image, a folder of images, or .npy or .safetensors of shape [n, channels, height, width] or
    /// of one image, with values in [-1, 1] or bytes (for a run: samples.safetensors)
    images: PathBuf,
    /// The truth, in the same form (for a run: measurement.safetensors). One truth may serve several reconstructions
    truth: PathBuf,
    /// The tensor to read from the reconstructions' file, such as mean [default: samples, or the only one]
    #[arg(long)]
    tensor: Option<String>,
    /// Print one JSON object per metric instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let (images, truth) = quality::read(&args.images, &args.truth, args.tensor.as_deref())?;
    let metrics = quality::compare(&images, &truth)?;
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
