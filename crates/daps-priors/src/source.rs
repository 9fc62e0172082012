//! From the settings of a prior to the prior: its files are opened once, asked what they hold, and built.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use daps_core::{Categorical, Denoiser, Model};
use sha2::{Digest, Sha256};

use crate::checkpoint::{self, Opened, hexadecimal};
use crate::network::{Preconditioning, TileCount};
use crate::{
    Analytic, Error, Memory, NetworkConfig, NetworkPrior, PriorConfig, Result, TokenPrior, spread_bound,
};

/// Standard deviation of pictures in [-1, 1], where a checkpoint does not say its data's.
const DATA_STD: f64 = 0.5;
/// Digits of a digest that people are shown.
const SHOWN_DIGITS: usize = 12;

/// A prior that is ready to run.
#[derive(Clone)]
pub struct Built {
    /// The denoiser, or the model of tokens.
    pub model: Model,
    /// The same, where it is a closed form.
    pub analytic: Option<Arc<dyn Analytic>>,
    /// What people call it: a known name, a file's name without its ending, or the kind of a closed form.
    pub name: String,
    /// SHA-256 of the weights, where it has some.
    pub sha256: Option<String>,
    /// What a user should know about it.
    pub notes: Vec<String>,
    /// A digest of what a network's file says beside its tensors and what samples depend on: its configuration and r(σ).
    pub about: String,
    /// The tiles that a network runs on, where images do not fit in memory whole: samples depend on them.
    pub tiles: Option<String>,
    /// How far a call of such a network is.
    pub count: Option<Arc<TileCount>>,
}

impl Built {
    /// A prior that comes from no file.
    #[must_use]
    pub fn new(name: impl Into<String>, model: Model) -> Self {
        let (name, about) = (name.into(), String::new());
        Self { model, analytic: None, name, sha256: None, notes: vec![], about, tiles: None, count: None }
    }

    /// The first digits of the weights' digest.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        self.sha256.as_deref().map(|digest| digest.get(..SHOWN_DIGITS).unwrap_or(digest))
    }

    /// Name and digest in one line, such as `faces (15cabd7a8e19)`; without weights, name and shape: `gaussian over 1x16x16`.
    #[must_use]
    pub fn title(&self) -> String {
        match self.digest() {
            Some(digest) => format!("{} ({digest})", self.name),
            None => {
                let sizes: Vec<String> = self.model.shape().iter().map(usize::to_string).collect();
                format!("{} over {}", self.name, sizes.join("x"))
            }
        }
    }
}

/// A prior whose settings are checked and whose checkpoint is open.
pub struct Source(Kind);

enum Kind {
    Closed { config: PriorConfig, base: PathBuf },
    Network(Box<Network>),
}

struct Network {
    name: String,
    opened: Opened,
    config: NetworkConfig,
    class: Option<usize>,
    sha256: Option<String>,
}

impl PriorConfig {
    /// Opens what the settings name: files are relative to `base`, and `known` opens the weights of a known prior.
    pub fn open<E: From<Error>>(
        &self,
        base: &Path,
        known: impl FnOnce(&str) -> std::result::Result<Opened, E>,
    ) -> std::result::Result<Source, E> {
        let Self::Network(settings) = self else {
            return Ok(Source(Kind::Closed { config: self.clone(), base: base.to_owned() }));
        };
        let settings = settings.clone().checked()?;
        let (mut name, opened) = match (settings.name, settings.file) {
            (Some(name), _) => (name.clone(), known(&name)?),
            (None, file) => {
                let path = base.join(file.unwrap_or_default());
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                (stem, Opened::file(&path)?)
            }
        };
        let config = match &settings.config {
            Some(text) => checkpoint::config_named(text, base)?,
            None => opened.needed_config()?,
        };
        if let Some(class) = settings.class {
            name += &format!(", class {class}");
        }
        let (class, sha256) = (settings.class, settings.sha256);
        Ok(Source(Kind::Network(Box::new(Network { name, opened, config, class, sha256 }))))
    }
}

impl Source {
    /// The shape of a sample, where the prior knows it.
    #[must_use]
    pub fn shape(&self) -> Option<[usize; 3]> {
        match &self.0 {
            Kind::Closed { .. } => None,
            Kind::Network(network) => Some(network.config.shape()),
        }
    }

    /// Whether samples may have any size, so that a run's follows from its input.
    #[must_use]
    pub fn works_at_any_size(&self) -> bool {
        matches!(&self.0, Kind::Network(network) if network.config.works_at_any_size())
    }

    /// Whether it is a prior over tokens.
    #[must_use]
    pub fn is_discrete(&self) -> bool {
        matches!(&self.0, Kind::Network(network) if network.config.is_discrete())
    }

    /// The prior over samples of a shape (empty: its own). A call of a network over images takes no more than `memory`.
    pub fn build(self, shape: &[usize], memory: Memory) -> Result<Built> {
        match self.0 {
            Kind::Closed { config, base } => closed(&config, shape, &base),
            Kind::Network(network) => network.build(shape, memory),
        }
    }
}

fn closed(config: &PriorConfig, shape: &[usize], base: &Path) -> Result<Built> {
    if shape.is_empty() {
        let what = "expected the shape of a sample, got none; only a network knows its own";
        return Err(Error::config(config.info().name, what));
    }
    let (name, analytic): (_, Arc<dyn Analytic>) = match config {
        PriorConfig::Gaussian(config) => ("gaussian".to_owned(), Arc::new(config.build(shape, base)?)),
        PriorConfig::Mixture(config) => {
            (format!("mixture of {}", config.means.len()), Arc::new(config.build(shape, base)?))
        }
        PriorConfig::Empirical(config) => {
            let prior = config.build(shape, base)?;
            (format!("empirical of {} points", prior.points().dims()[0]), Arc::new(prior))
        }
        PriorConfig::Network(_) => return Err(Error::config("network", "has no closed form")),
    };
    let model = Model::Denoiser(analytic.clone());
    Ok(Built { analytic: Some(analytic), ..Built::new(name, model) })
}

impl Network {
    fn build(self, shape: &[usize], memory: Memory) -> Result<Built> {
        let Self { name, opened, config, class, sha256: expected } = self;
        let path = opened.name().to_owned();
        let refuse = |what: String| Error::file(&path, what);
        let spread = opened.spread().map_err(|e| e.within(&path))?;
        let local = opened.local().map_err(|e| e.within(&path))?;
        let weights = opened.read()?;
        let sha256 = weights.sha256();
        if let Some(expected) = expected.filter(|expected| *expected != sha256) {
            return Err(refuse(format!(
                "holds other weights (sha256 {sha256}) than the configuration asks for ({expected})"
            )));
        }
        let other_shape =
            |own: &[usize]| refuse(format!("was trained for shape {own:?}, the task has {shape:?}"));
        if config.is_discrete() {
            if class.is_some() {
                return Err(daps_core::Error::missing("prior.class", "classes", "a prior over tokens").into());
            }
            let prior = TokenPrior::new(&config, weights.tensors).map_err(|e| refuse(e.to_string()))?;
            if !shape.is_empty() && shape != prior.shape() {
                return Err(other_shape(prior.shape()));
            }
            let about = sha256_of(&config.to_toml()?);
            let built = Built::new(name, Model::Tokens(Arc::new(prior)));
            return Ok(Built { sha256: Some(sha256), about, ..built });
        }
        let mut network = NetworkPrior::new(&config, weights.tensors).map_err(|e| refuse(e.to_string()))?;
        let own = network.shape().to_vec();
        if let [channels, height, width] = *shape
            && shape != own
        {
            if channels != own[0] {
                let what = format!("was trained for {} channels, the task has {channels}", own[0]);
                return Err(refuse(what));
            }
            network = network.with_size(height, width)?;
        } else if !shape.is_empty() && shape != own {
            return Err(other_shape(&own));
        }
        if let Some(class) = class {
            network = network.with_class(class)?;
        }
        let mut notes = Vec::new();
        let spread = spread.unwrap_or_else(|| {
            let what = "carries no r(sigma); where one is asked for, a bound is used";
            notes.push(format!("{}: {what}", path.display()));
            spread_bound(match config.preconditioning {
                Preconditioning::Edm { sigma_data, .. } => sigma_data,
                _ => DATA_STD,
            })
        });
        let r = serde_json::to_string(&spread).map_err(|e| refuse(e.to_string()))?;
        let where_larger = local.as_ref().map(serde_json::to_string).transpose();
        let where_larger = where_larger.map_err(|e| refuse(e.to_string()))?.unwrap_or_default();
        let about = sha256_of(&(config.to_toml()? + &r + &where_larger));
        let network = network.with_spread(spread)?.with_local(local).map_err(|e| refuse(e.to_string()))?;
        let is_local = network.is_local();
        let network = network.within(memory)?;
        let tiles = network.describe();
        if let Some(tiles) = &tiles {
            let changes = match is_local {
                true => "",
                false => "; its norms or attention see one tile at a time, which changes samples",
            };
            notes.push(format!("the network runs on {tiles} to stay within {memory} (--memory){changes}"));
        }
        let count = tiles.as_ref().map(|_| Arc::clone(network.count()));
        let built = Built::new(name, Model::Denoiser(Arc::new(network)));
        Ok(Built { sha256: Some(sha256), notes, about, tiles, count, ..built })
    }
}

fn sha256_of(text: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(text);
    hexadecimal(hash)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use daps_core::Sigma;

    use super::*;
    use crate::registry;

    fn open(text: &str, base: &Path) -> Result<Source> {
        let table = text.parse::<toml::Table>().unwrap();
        let unknown = |name: &str| Err(daps_core::Error::unknown("prior", name, ["none"]).into());
        PriorConfig::from_table(table)?.open(base, unknown)
    }

    fn built(text: &str, shape: &[usize], base: &Path) -> Result<Built> {
        open(text, base)?.build(shape, Memory::default())
    }

    #[test]
    fn every_closed_example_works_and_has_a_title() {
        let dir = tempfile::tempdir().unwrap();
        let points = Tensor::new(&[[0f64, 1.0], [2.0, 3.0]], &Device::Cpu).unwrap();
        points.write_npy(dir.path().join("points.npy")).unwrap();
        let mut titles = Vec::new();
        for info in registry().iter().filter(|info| info.name != "network") {
            let prior = built(info.example, &[2], dir.path()).unwrap();
            let x = Tensor::zeros((3, 2), DType::F64, &Device::Cpu).unwrap();
            let analytic = prior.analytic.as_ref().unwrap();
            assert_eq!(analytic.denoise(&x, &Sigma::Same(1.0)).unwrap().dims(), [3, 2], "{}", info.name);
            assert!(info.summary.ends_with('.'));
            titles.push(prior.title());
        }
        assert_eq!(titles, ["gaussian over 2", "mixture of 2 over 2", "empirical of 2 points over 2"]);
    }

    #[test]
    fn all_forms_of_numbers_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let c = Tensor::new(&[[1f64, 0.5], [0.5, 2.0]], &Device::Cpu).unwrap();
        c.write_npy(dir.path().join("c.npy")).unwrap();
        for text in [
            "kind = 'gaussian'",
            "kind = 'gaussian'\nmean = [0, 1]\nstd = [1, 0.5]",
            "kind = 'gaussian'\ncovariance = 'c.npy'",
            "kind = 'mixture'\nmeans = [[0, 1], 2]\nstd = [1, [1, 2]]",
            "kind = 'mixture'\nmeans = [[0, 1], 2]\ncovariances = 'c.npy'",
        ] {
            let prior = built(text, &[2], dir.path());
            assert!(prior.is_ok(), "{text}: {:?}", prior.err());
        }
    }

    #[test]
    fn refusals_are_one_clear_sentence() {
        let base = Path::new(".");
        for (text, part) in [
            ("kind = 'gaussian'\nstd = -1.0", "std of a prior: expected a positive finite number, got -1"),
            ("kind = 'gaussian'\nmean = [1, 2, 3]", "expected one number or 2"),
            ("kind = 'mixture'\nmeans = []", "at least one"),
            ("kind = 'mixture'\nmeans = [1, 2]\nweights = [1]", "one for each of 2"),
            ("kind = 'mixture'\nmeans = [1, 2]\nweights = [1, -1]", "finite numbers from 0"),
            ("kind = 'mixture'\nmeans = [1, 2]\nstd = [1]", "one entry for each of 2 components"),
            ("kind = 'empirical'", "give either file or folder"),
            ("kind = 'empirical'\nfile = 'none.npy'", "none.npy: no such file"),
            ("kind = 'network'\nfile = 'none.pt'", "none.pt: no such file"),
            ("kind = 'network'\nname = 'nobody'", "unknown prior 'nobody'; known: none"),
        ] {
            let message = built(text, &[2], base).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(message.contains(part), "{text}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
        let message = built("kind = 'gaussian'", &[], base).err().unwrap().to_string();
        assert!(message.contains("only a network knows its own"), "{message}");
    }

    /// The checkpoint and the file of its configuration both start at the base directory, which is not the current one.
    #[test]
    fn a_network_and_its_configuration_are_relative_to_the_base() {
        let dir = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/adm_tiny.pt");
        std::fs::copy(golden, dir.path().join("weights.pt")).unwrap();
        let network = "[network]\nkind = 'adm'\nimage_size = 32\nmodel_channels = 32\nchannel_mult = [1, 2]\n\
                       num_res_blocks = 1\nattention_resolutions = [16]\nnum_head_channels = 32\nlearn_sigma = true\n\
                       use_scale_shift_norm = true\nresblock_updown = true\n[preconditioning]\nkind = 'vp'\n";
        std::fs::write(dir.path().join("net.toml"), network).unwrap();
        let text = "kind = 'network'\nfile = 'weights.pt'\nconfig = 'net.toml'";
        let source = open(text, dir.path()).unwrap();
        assert_eq!((source.shape(), source.is_discrete()), (Some([3, 32, 32]), false));
        let prior = source.build(&[], Memory::default()).unwrap();
        assert_eq!(prior.title(), format!("weights ({})", &prior.sha256.as_ref().unwrap()[..12]));
        assert_eq!(prior.notes.len(), 1, "{:?}", prior.notes);
        // Pinned, the same weights are taken and no others.
        let pinned = |sha256: &str| built(&format!("{text}\nsha256 = '{sha256}'"), &[3, 16, 16], dir.path());
        assert_eq!(pinned(prior.sha256.as_ref().unwrap()).unwrap().model.shape(), [3, 16, 16]);
        let message = pinned("abc").err().unwrap().to_string();
        assert!(message.contains("weights.pt: holds other weights (sha256 "), "{message}");
        let message = open("kind = 'network'\nfile = 'weights.pt'", dir.path()).err().unwrap().to_string();
        assert!(message.contains("carries no network configuration and there is no"), "{message}");
    }
}
