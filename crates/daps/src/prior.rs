//! The prior of a run: a closed form, a network from a checkpoint, or one of the bundled networks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use daps_core::{Categorical, Denoiser, Model as CoreModel};
use daps_priors::checkpoint::{self, Checkpoint};
use daps_priors::network::Preconditioning;
use daps_priors::{Analytic, NetworkConfig, NetworkPrior, TokenPrior, spread_bound};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::{Error, Result, bundled, files};

/// `kind` of a prior that is a network.
pub const NETWORK: &str = "network";

/// Standard deviation of pictures in [-1, 1], where a checkpoint does not say its data's.
const DATA_STD: f64 = 0.5;

/// A prior that is ready to run.
#[derive(Clone)]
pub struct Model {
    /// The denoiser, or the model of tokens.
    pub model: CoreModel,
    /// The same, where it is a closed form.
    pub analytic: Option<Arc<dyn Analytic>>,
    /// What a user should know about it.
    pub notes: Vec<String>,
    /// A digest of what a network's file says beside its tensors and what samples depend on: its configuration and r(σ).
    pub about: String,
}

/// `kind = "network"`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    /// A bundled prior.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// A checkpoint: safetensors, or PyTorch.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    /// The network's configuration, where the checkpoint carries none: a name such as ffhq256, or a TOML file.
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<String>,
    /// The class to draw, for networks that were trained with classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<usize>,
    /// SHA-256 of the tensors; another checkpoint is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

/// The `[prior]` table that `--prior` stands for: a bundled name, a checkpoint, or a TOML file with a `[prior]` table of its own.
pub fn named(text: &str) -> Result<Table> {
    let path = Path::new(text);
    let network = |key: &str, value: &str| {
        Table::from_iter([("kind".to_owned(), NETWORK.into()), (key.to_owned(), Value::from(value))])
    };
    if bundled::prior(text).is_some() {
        return Ok(network("name", text));
    }
    if !path.is_file() {
        if text == NETWORK || daps_priors::registry().iter().any(|p| p.name == text) {
            let what =
                format!("'{text}' is a kind of prior: give a TOML file with a [prior] table of that kind");
            return Err(Error::Config(what));
        }
        let mut known: Vec<&str> = bundled::PRIORS.iter().map(|p| p.name).collect();
        known.extend(["the path of a checkpoint", "of a TOML file with a [prior] table"]);
        return Err(daps_core::Error::unknown("prior", text, known).into());
    }
    if path.extension().is_some_and(|e| e == "toml") {
        let content: Table =
            toml::from_str(&files::read_text(path)?).map_err(|e| Error::content(path, e.message().trim()))?;
        return match content.get("prior") {
            Some(Value::Table(prior)) => {
                let mut prior = prior.clone();
                crate::config::settle(&mut prior, path.parent().unwrap_or(Path::new("")))?;
                Ok(prior)
            }
            _ => Err(Error::content(path, "has no [prior] table")),
        };
    }
    let absolute = path.canonicalize().map_err(Error::file(path, "cannot read"))?;
    Ok(network("file", &absolute.to_string_lossy()))
}

/// Builds the prior of a table over samples of a shape (empty: the network's own), and completes the table.
pub fn build(table: &mut Table, shape: &[usize], base: &Path) -> Result<Model> {
    if table.get("kind").and_then(Value::as_str) != Some(NETWORK) {
        if shape.is_empty() {
            let what = "task.shape: expected positive sizes, got []; only a network knows its own";
            return Err(Error::Config(what.into()));
        }
        let analytic = daps_priors::build(table, shape, base).map_err(|e| with_network(e.into()))?;
        let model = CoreModel::Denoiser(analytic.clone());
        return Ok(Model { model, analytic: Some(analytic), notes: vec![], about: String::new() });
    }
    let mut settings = Network::of(table)?;
    let (name, checkpoint, config) = settings.read(base)?;
    let sha256 = checkpoint.sha256();
    if let Some(expected) = settings.sha256.as_ref().filter(|expected| **expected != sha256) {
        let what =
            format!("holds other weights (sha256 {sha256}) than the configuration asks for ({expected})");
        return Err(Error::content(&name, what));
    }
    settings.sha256 = Some(sha256);
    if config.is_discrete() {
        if settings.class.is_some() {
            return Err(daps_core::Error::missing("prior.class", "classes", "a prior over tokens").into());
        }
        let prior = TokenPrior::new(&config, checkpoint.tensors).map_err(|e| Error::content(&name, e))?;
        let own = prior.shape();
        if !shape.is_empty() && shape != own {
            let what = format!("was trained for shape {own:?}, the task has {shape:?}");
            return Err(Error::content(&name, what));
        }
        *table = settings.table()?;
        let (model, about) = (CoreModel::Tokens(Arc::new(prior)), files::sha256(config.to_toml()?));
        return Ok(Model { model, analytic: None, notes: vec![], about });
    }
    let spread = checkpoint.spread()?;
    let mut network = NetworkPrior::new(&config, checkpoint.tensors).map_err(|e| Error::content(&name, e))?;
    let own = network.shape().to_vec();
    if let [channels, height, width] = *shape
        && shape != own
    {
        if channels != own[0] {
            let what = format!("was trained for {} channels, the task has {channels}", own[0]);
            return Err(Error::content(&name, what));
        }
        network = network.with_size(height, width)?;
    } else if !shape.is_empty() && shape != own {
        return Err(Error::content(&name, format!("was trained for shape {own:?}, the task has {shape:?}")));
    }
    if let Some(class) = settings.class {
        network = network.with_class(class)?;
    }
    let mut notes = Vec::new();
    let spread = spread.unwrap_or_else(|| {
        notes.push(format!(
            "{}: carries no r(sigma); where one is asked for, a bound is used",
            name.display()
        ));
        spread_bound(match config.preconditioning {
            Preconditioning::Edm { sigma_data, .. } => sigma_data,
            _ => DATA_STD,
        })
    });
    *table = settings.table()?;
    let r = serde_json::to_string(&spread).map_err(|e| Error::content(&name, e))?;
    let about = files::sha256(config.to_toml()? + &r);
    let model = CoreModel::Denoiser(Arc::new(network.with_spread(spread)?));
    Ok(Model { model, analytic: None, notes, about })
}

/// The configuration of the network that a `[prior]` table names, if it names one; of a file, nothing else is read.
fn network_of(table: &Table, base: &Path) -> Result<Option<NetworkConfig>> {
    if table.get("kind").and_then(Value::as_str) != Some(NETWORK) {
        return Ok(None);
    }
    let mut table = table.clone();
    crate::config::settle(&mut table, base)?;
    let settings = Network::of(&table)?;
    Ok(Some(match (&settings.config, &settings.file) {
        (Some(config), _) => checkpoint::config_named(config)?,
        (None, Some(file)) => checkpoint::config_of(&base.join(file))?,
        (None, None) => settings.read(base)?.2,
    }))
}

/// Whether a `[prior]` table names a prior over tokens.
pub fn is_discrete(table: &Table, base: &Path) -> Result<bool> {
    Ok(network_of(table, base)?.is_some_and(|config| config.is_discrete()))
}

/// The shape of a sample, where the prior of a `[prior]` table knows it.
pub fn shape(table: &Table, base: &Path) -> Result<Option<[usize; 3]>> {
    Ok(network_of(table, base)?.map(|config| config.shape()))
}

impl Network {
    fn of(table: &Table) -> Result<Self> {
        let mut settings = table.clone();
        settings.remove("kind");
        settings
            .try_into()
            .map_err(|e: toml::de::Error| Error::Config(format!("prior: {}", e.message().trim())))
    }

    fn table(&self) -> Result<Table> {
        let mut table = Table::try_from(self).map_err(|e| Error::Config(format!("prior: {e}")))?;
        table.insert("kind".into(), NETWORK.into());
        Ok(table)
    }

    /// What it is called, its tensors, and its configuration.
    fn read(&self, base: &Path) -> Result<(PathBuf, Checkpoint, NetworkConfig)> {
        let given = self.config.as_deref().map(checkpoint::config_named).transpose()?;
        match (&self.name, &self.file) {
            (Some(name), None) => {
                let known = bundled::PRIORS.iter().map(|p| p.name);
                let prior = bundled::prior(name)
                    .ok_or_else(|| daps_core::Error::unknown("bundled prior", name, known))?;
                let checkpoint = Checkpoint::from_bytes(name, prior.bytes)?;
                let config = given.map_or_else(|| checkpoint.config(), |c| Ok(Some(c)))?;
                let config = config
                    .ok_or_else(|| Error::content(Path::new(name), "carries no network configuration"))?;
                Ok((PathBuf::from(name), checkpoint, config))
            }
            (None, Some(file)) => {
                let path = base.join(file);
                let config = given.map_or_else(|| checkpoint::config_of(&path), Ok)?;
                Ok((path.clone(), checkpoint::read(&path)?, config))
            }
            _ => Err(Error::Config("prior: a network needs either name or file".into())),
        }
    }
}

/// The closed forms' own message does not know of networks.
fn with_network(error: Error) -> Error {
    match error {
        Error::Prior(daps_priors::Error::Core(daps_core::Error::Unknown { kind, name, mut known })) => {
            known.push(NETWORK.into());
            daps_core::Error::Unknown { kind, name, known }.into()
        }
        other => other,
    }
}
