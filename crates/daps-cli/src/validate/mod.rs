//! `daps validate`: samplers beside posteriors that are known exactly, and samples beside truths, a file each.

mod discrete;
mod gaussian;
mod gmm;
mod network;
mod rivals;

use std::path::PathBuf;

use clap::Subcommand;
use daps::files;

use crate::Outcome;
use crate::table::{say, tell};

#[derive(Subcommand)]
pub enum Command {
    /// Samplers on 25-component Gaussian mixtures with a linear measurement: sliced W1 to the exact posterior
    Gmm(gmm::Args),
    /// Kernels, presets and exact draws on a Gaussian prior, against closed forms; exit code 1 on a disagreement
    Gaussian(gaussian::Args),
    /// Every method with its default settings on a Gaussian prior: the errors of its means and variances
    Rivals(rivals::Args),
    /// Samples with a network prior: how often truths lie among them, by pixel, by frequency and in random projections
    Network(network::Args),
    /// The discrete loop on images so small that the posterior is a table; exit code 1 if the exact loop disagrees
    Discrete(discrete::Args),
}

/// What all of them, and `daps toy`, take.
#[derive(clap::Args)]
pub struct Common {
    /// Random seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
    /// Write the results to this directory
    #[arg(long)]
    pub out: Option<PathBuf>,
}

impl Common {
    /// Makes the directory before the work starts.
    pub fn prepare(&self) -> anyhow::Result<()> {
        Ok(self.out.as_ref().map_or(Ok(()), |out| files::make_directory(out, false))?)
    }

    /// Prints the objects or the text.
    pub fn print(&self, objects: &[String], text: &str) {
        say(if self.json { objects.join("\n") } else { text.to_owned() }.as_str());
    }

    /// Writes files where a directory was asked for.
    pub fn write<const N: usize>(
        &self,
        contents: impl FnOnce() -> anyhow::Result<[(&'static str, String); N]>,
    ) -> anyhow::Result<()> {
        let Some(out) = &self.out else { return Ok(()) };
        let contents = contents()?;
        for (name, content) in &contents {
            files::write(&out.join(name), content.as_bytes())?;
        }
        let names = contents.map(|(name, _)| name);
        tell(&format!("wrote {} to {}", names.join(", "), out.display()));
        Ok(())
    }

    /// Prints, and writes `results.jsonl` and `table.txt`.
    fn present(&self, objects: &[String], text: &str) -> anyhow::Result<()> {
        self.print(objects, text);
        self.write(|| Ok([("results.jsonl", lines(objects)), ("table.txt", format!("{text}\n"))]))
    }
}

/// Every row as a JSON object.
pub fn objects(rows: &[impl serde::Serialize]) -> anyhow::Result<Vec<String>> {
    Ok(rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?)
}

/// JSON objects as the text of a file.
pub fn lines(objects: &[String]) -> String {
    objects.join("\n") + "\n"
}

pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Gmm(args) => gmm::run(args),
        Command::Gaussian(args) => gaussian::run(args),
        Command::Rivals(args) => rivals::run(args),
        Command::Network(args) => network::run(args),
        Command::Discrete(args) => discrete::run(args),
    }
}
