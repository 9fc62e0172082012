//! The settings under `[prior]` in a configuration, typed: one variant for every kind of prior in the registry.

use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::{Table, Value};

use crate::registry::{PriorInfo, registry};
use crate::{Built, EmpiricalConfig, Error, GaussianConfig, MixtureConfig, Result, network};

/// A `[prior]` table: `kind` and the settings of that kind.
#[derive(Clone, Debug, PartialEq)]
pub enum PriorConfig {
    /// `kind = "gaussian"`.
    Gaussian(GaussianConfig),
    /// `kind = "mixture"`.
    Mixture(MixtureConfig),
    /// `kind = "empirical"`.
    Empirical(EmpiricalConfig),
    /// `kind = "network"`.
    Network(TrainedConfig),
}

/// `kind = "network"`: a trained network, by the name of a known prior or from a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainedConfig {
    /// The name of a known prior.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A checkpoint: safetensors, or PyTorch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The network's configuration, where the checkpoint carries none: a name such as ffhq256, or a TOML file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The class to draw, for networks that were trained with classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<usize>,
    /// SHA-256 of the tensors; another checkpoint is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl PriorConfig {
    /// The known prior of a name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::Network(TrainedConfig { name: Some(name.to_owned()), ..TrainedConfig::default() })
    }

    /// The network in a checkpoint.
    #[must_use]
    pub fn checkpoint(file: &Path) -> Self {
        Self::Network(TrainedConfig { file: Some(file.to_owned()), ..TrainedConfig::default() })
    }

    /// What the registry says of its kind.
    #[must_use]
    pub fn info(&self) -> &'static PriorInfo {
        let at = match self {
            Self::Gaussian(_) => 0,
            Self::Mixture(_) => 1,
            Self::Empirical(_) => 2,
            Self::Network(_) => 3,
        };
        &registry()[at]
    }

    /// Whether it knows the shape of a sample by itself.
    #[must_use]
    pub fn knows_its_shape(&self) -> bool {
        matches!(self, Self::Network(_))
    }

    /// From the table of a file.
    pub fn from_table(mut table: Table) -> Result<Self> {
        let unknown =
            |kind: &str| daps_core::Error::unknown("prior", kind, registry().iter().map(|p| p.name));
        let kind = match table.remove("kind") {
            Some(Value::String(kind)) => kind,
            Some(other) => return Err(unknown(&other.to_string()).into()),
            None => {
                let known: Vec<&str> = registry().iter().map(|p| p.name).collect();
                let what = format!("prior.kind is missing; known: {}", known.join(", "));
                return Err(daps_core::Error::Settings(what).into());
            }
        };
        let info = registry().iter().find(|p| p.name == kind).ok_or_else(|| unknown(&kind))?;
        (info.parse)(table)
    }

    /// The table for a file: only what was set, by name.
    pub fn to_table(&self) -> Result<Table> {
        let kind = self.info().name;
        let settings = match self {
            Self::Gaussian(config) => Table::try_from(config),
            Self::Mixture(config) => Table::try_from(config),
            Self::Empirical(config) => Table::try_from(config),
            Self::Network(config) => Table::try_from(config),
        };
        let mut table = settings.map_err(|e| Error::config(kind, e))?;
        table.insert("kind".into(), kind.into());
        Ok(table)
    }

    /// Gives every file and folder that the settings name another path.
    pub fn map_paths<E>(
        &mut self,
        mut to: impl FnMut(&Path) -> std::result::Result<PathBuf, E>,
    ) -> std::result::Result<(), E> {
        let paths = match self {
            Self::Gaussian(config) => [config.covariance.as_mut(), None],
            Self::Mixture(config) => [config.covariances.as_mut(), None],
            Self::Empirical(config) => [config.file.as_mut(), config.folder.as_mut()],
            Self::Network(config) => {
                // A network's configuration is a known one or a file.
                if let Some(text) = config.config.as_mut().filter(|text| network::named(text).is_err()) {
                    *text = to(Path::new(text.as_str()))?.to_string_lossy().into_owned();
                }
                [config.file.as_mut(), None]
            }
        };
        for path in paths.into_iter().flatten() {
            *path = to(path)?;
        }
        Ok(())
    }

    /// Makes the paths of files absolute; they start at `base`.
    pub fn settle(&mut self, base: &Path) -> Result<()> {
        self.map_paths(|path| std::path::absolute(base.join(path)).map_err(|e| Error::file(path, e)))
    }

    /// Pins a network to the weights that it was built with.
    pub fn complete(&mut self, built: &Built) {
        if let Self::Network(config) = self {
            config.sha256.clone_from(&built.sha256);
        }
    }
}

impl TrainedConfig {
    /// Refuses settings that name no weights, or two.
    pub(crate) fn checked(self) -> Result<Self> {
        match self.name.is_some() ^ self.file.is_some() {
            true => Ok(self),
            false => Err(Error::config("network", "give either name or file")),
        }
    }
}

impl Serialize for PriorConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.to_table().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PriorConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Self::from_table(Table::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> PriorConfig {
        toml::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    /// A run's configuration is compared by its text: what is read is written as it stood, key by key.
    #[test]
    fn a_table_is_written_as_it_was_read() {
        for text in [
            "kind = \"gaussian\"\n",
            "kind = \"gaussian\"\nmean = 0.0\nstd = [1.0, 0.5]\n",
            "covariance = \"c.npy\"\nkind = \"gaussian\"\n",
            "kind = \"mixture\"\nmeans = [[0.0, 1.0], 2.0]\nstd = [1.0, [1.0, 2.0]]\nweights = [0.5, 0.5]\n",
            "folder = \"pictures\"\nkind = \"empirical\"\nresize = true\n",
            "file = \"a.safetensors\"\nkind = \"empirical\"\ntensor = \"x\"\n",
            "kind = \"network\"\nname = \"faces\"\nsha256 = \"15ca\"\n",
            "class = 3\nconfig = \"ffhq256\"\nfile = \"a.pt\"\nkind = \"network\"\n",
        ] {
            assert_eq!(toml::to_string(&parsed(text)).unwrap(), text);
        }
    }

    #[test]
    fn every_kind_of_the_registry_is_a_variant_and_says_so() {
        for info in registry() {
            assert_eq!(parsed(info.example).info().name, info.name);
        }
    }

    /// Names stay names, even where something of the same name lies about; everything else is a path.
    #[test]
    fn paths_become_absolute_and_names_stay() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ffhq256", "points", "faces"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let settled = |text: &str| {
            let mut config = parsed(text);
            config.settle(dir.path()).unwrap();
            config.to_table().unwrap()
        };
        let at = |name: &str| Value::from(dir.path().join(name).to_string_lossy().into_owned());
        let network = settled("kind = 'network'\nfile = 'w.pt'\nconfig = 'ffhq256'");
        assert_eq!((&network["file"], network["config"].as_str()), (&at("w.pt"), Some("ffhq256")));
        let network = settled("kind = 'network'\nname = 'faces'\nconfig = 'net.toml'");
        assert_eq!((&network["config"], network["name"].as_str()), (&at("net.toml"), Some("faces")));
        let points = settled("kind = 'empirical'\nfile = 'p.safetensors'\ntensor = 'points'");
        assert_eq!((&points["file"], points["tensor"].as_str()), (&at("p.safetensors"), Some("points")));
        assert_eq!(settled("kind = 'empirical'\nfolder = 'points'")["folder"], at("points"));
        assert_eq!(settled("kind = 'gaussian'\ncovariance = 'c.npy'")["covariance"], at("c.npy"));
        let mixture = settled("kind = 'mixture'\nmeans = [0]\ncovariances = 'c.npy'");
        assert_eq!(mixture["covariances"], at("c.npy"));
    }

    #[test]
    fn refusals_are_one_clear_sentence() {
        let known = "known: gaussian, mixture, empirical, network";
        for (text, part) in [
            ("kind = 'gausian'", format!("unknown prior 'gausian'; {known}")),
            ("mean = 1.0", format!("prior.kind is missing; {known}")),
            ("kind = 3", format!("unknown prior '3'; {known}")),
            ("kind = 'gaussian'\nsdt = 1.0", "unknown field `sdt`, expected one of `mean`, `std`".into()),
            ("kind = 'gaussian'\nmean = 'x'", "expected a number or a list of numbers".into()),
            ("kind = 'mixture'", "missing field `means`".into()),
            ("kind = 'network'", "prior 'network': give either name or file".into()),
            ("kind = 'network'\nname = 'a'\nfile = 'b'", "give either name or file".into()),
            ("kind = 'network'\nfiel = 'a'", "prior 'network': unknown field `fiel`".into()),
        ] {
            let message = PriorConfig::from_table(text.parse().unwrap()).unwrap_err().to_string();
            assert!(message.contains(&part), "{text}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
