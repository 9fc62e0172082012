//! The priors by name, built from a configuration table.

use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use daps_core::Denoiser;

use crate::{Analytic, EmpiricalConfig, Error, GaussianConfig, MixtureConfig, NetworkPriorConfig, Result};

type Build = fn(toml::Table, &[usize], &Path) -> Result<Prior>;

/// A prior as a configuration gives it.
#[derive(Clone)]
pub struct Prior {
    /// What methods speak to.
    pub denoiser: Arc<dyn Denoiser>,
    /// The same in closed form, where there is one: it can draw truths and knows its posterior.
    pub analytic: Option<Arc<dyn Analytic>>,
}

impl Prior {
    fn closed(prior: impl Analytic + 'static) -> Self {
        let prior = Arc::new(prior);
        Self { denoiser: prior.clone(), analytic: Some(prior) }
    }
}

/// A prior that a configuration can name.
pub struct PriorInfo {
    /// The value of `kind`.
    pub name: &'static str,
    /// What it is, in one sentence.
    pub summary: &'static str,
    /// A working configuration.
    pub example: &'static str,
    build: Build,
}

/// All priors.
#[must_use]
pub fn registry() -> &'static [PriorInfo] {
    &[
        PriorInfo {
            name: "gaussian",
            summary: "A Gaussian with a scalar, diagonal or full covariance.",
            example: "kind = \"gaussian\"\nmean = 0.0\nstd = 0.5\n",
            build: |t, shape, base| {
                Ok(Prior::closed(parse::<GaussianConfig>("gaussian", t)?.build(shape, base)?))
            },
        },
        PriorInfo {
            name: "mixture",
            summary: "A mixture of Gaussians with scalar, diagonal or full covariances.",
            example: "kind = \"mixture\"\nweights = [0.5, 0.5]\nmeans = [-1.0, 1.0]\nstd = 0.2\n",
            build: |t, shape, base| {
                Ok(Prior::closed(parse::<MixtureConfig>("mixture", t)?.build(shape, base)?))
            },
        },
        PriorInfo {
            name: "empirical",
            summary: "The points of a file or the pictures of a folder, each with its weight.",
            example: "kind = \"empirical\"\nfile = \"points.npy\"\n",
            build: |t, shape, base| {
                Ok(Prior::closed(parse::<EmpiricalConfig>("empirical", t)?.build(shape, base)?))
            },
        },
        PriorInfo {
            name: "network",
            summary: "A diffusion network with its weights from a checkpoint (safetensors, or PyTorch .pt, .pth, .ckpt).",
            example: "kind = \"network\"\nweights = \"model.safetensors\"\n",
            build: |t, shape, base| {
                let denoiser = parse::<NetworkPriorConfig>("network", t)?.build(shape, base)?;
                Ok(Prior { denoiser: Arc::new(denoiser), analytic: None })
            },
        },
    ]
}

/// Builds the prior that a `[prior]` table describes, over samples of a shape; file names are relative to `base`.
pub fn build(table: &toml::Table, shape: &[usize], base: &Path) -> Result<Prior> {
    let mut table = table.clone();
    let known = || registry().iter().map(|p| p.name);
    let kind = match table.remove("kind") {
        Some(toml::Value::String(kind)) => kind,
        Some(other) => return Err(daps_core::Error::unknown("prior", &other.to_string(), known()).into()),
        None => return Err(daps_core::Error::unknown("prior", "", known()).into()),
    };
    match registry().iter().find(|p| p.name == kind) {
        Some(prior) => (prior.build)(table, shape, base),
        None => Err(daps_core::Error::unknown("prior", &kind, known()).into()),
    }
}

fn parse<T: DeserializeOwned>(kind: &'static str, table: toml::Table) -> Result<T> {
    table.try_into().map_err(|e| Error::config(kind, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Tensor};
    use daps_core::Sigma;

    fn built(text: &str, shape: &[usize], base: &Path) -> Result<Prior> {
        build(&text.parse::<toml::Table>().unwrap(), shape, base)
    }

    /// `model.safetensors` with its `model.toml`: a network of one level for images of 1 x 4 x 4.
    fn tiny_network(directory: &Path) {
        let text = "[network]\nkind = 'adm'\nimage_size = 4\nchannels = 1\nmodel_channels = 4\nchannel_mult = [1, 1]\n\
                    num_res_blocks = 1\nattention_resolutions = []\nnum_heads = 1\nnorm_groups = 2\n\
                    [preconditioning]\nkind = 'vp'\n";
        std::fs::write(directory.join("model.toml"), text).unwrap();
        let (_, variables) = crate::NetworkConfig::parse(text).unwrap().fresh(0, &Device::Cpu).unwrap();
        let tensors: std::collections::HashMap<_, _> =
            variables.into_iter().map(|(name, v)| (name, v.as_tensor().clone())).collect();
        candle_core::safetensors::save(&tensors, directory.join("model.safetensors")).unwrap();
    }

    #[test]
    fn a_network_takes_its_size_from_the_task_and_its_configuration_from_beside_the_weights() {
        let dir = tempfile::tempdir().unwrap();
        tiny_network(dir.path());
        let text = "kind = 'network'\nweights = 'model.safetensors'\n";
        let larger = built(text, &[1, 8, 6], dir.path()).unwrap();
        assert_eq!(larger.denoiser.shape(), [1, 8, 6]);
        assert!(larger.analytic.is_none());
        assert!(built(&format!("{text}config = 'model.toml'"), &[1, 4, 4], dir.path()).is_ok());
        for (more, shape, part) in [
            ("config = 'ffhq'", &[1usize, 4, 4][..], "unknown network configuration 'ffhq'; known: ffhq256"),
            ("config = 'ffhq256'", &[3, 256, 256], "the tensors do not fit the network: "),
            ("", &[3, 4, 4], "images of 1 channels"),
            ("", &[16], "images of 1 channels"),
            ("", &[1, 5, 4], "a positive multiple of 2"),
            ("class = 3", &[1, 4, 4], "the network knows no classes"),
            ("wieghts = 'x'", &[1, 4, 4], "unknown field `wieghts`"),
        ] {
            let message = built(&format!("{text}{more}"), shape, dir.path()).err().unwrap().to_string();
            assert!(message.contains(part) && message.lines().count() == 1, "{more}: {message}");
        }
    }

    #[test]
    fn every_example_works() {
        let dir = tempfile::tempdir().unwrap();
        let points = Tensor::new(&[[0f64, 1.0], [2.0, 3.0]], &Device::Cpu).unwrap();
        points.write_npy(dir.path().join("points.npy")).unwrap();
        tiny_network(dir.path());
        for prior in registry() {
            let shape: &[usize] = if prior.name == "network" { &[1, 4, 4] } else { &[2] };
            let model = built(prior.example, shape, dir.path()).unwrap();
            let shape = daps_core::real::batched(3, shape);
            let x = Tensor::zeros(shape.as_slice(), candle_core::DType::F64, &Device::Cpu).unwrap();
            assert_eq!(
                model.denoiser.denoise(&x, &Sigma::Same(1.0)).unwrap().dims(),
                shape,
                "{}",
                prior.name
            );
            assert!(prior.summary.ends_with('.'));
        }
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
            assert!(
                built(text, &[2], dir.path()).is_ok(),
                "{text}: {:?}",
                built(text, &[2], dir.path()).err()
            );
        }
    }

    #[test]
    fn refusals_are_one_clear_sentence() {
        let base = Path::new(".");
        for (text, part) in [
            ("kind = 'gausian'", "unknown prior 'gausian'; known: gaussian, mixture, empirical, network"),
            ("mean = 1.0", "known: gaussian, mixture, empirical, network"),
            ("kind = 'gaussian'\nsdt = 1.0", "unknown field `sdt`, expected one of `mean`, `std`"),
            ("kind = 'gaussian'\nstd = -1.0", "std of a prior: expected a positive finite number, got -1"),
            ("kind = 'gaussian'\nmean = [1, 2, 3]", "expected one number or 2"),
            ("kind = 'gaussian'\nmean = 'x'", "expected a number or a list of numbers"),
            ("kind = 'mixture'", "missing field `means`"),
            ("kind = 'mixture'\nmeans = []", "at least one"),
            ("kind = 'mixture'\nmeans = [1, 2]\nweights = [1]", "one for each of 2"),
            ("kind = 'mixture'\nmeans = [1, 2]\nweights = [1, -1]", "finite numbers from 0"),
            ("kind = 'mixture'\nmeans = [1, 2]\nstd = [1]", "one entry for each of 2 components"),
            ("kind = 'empirical'", "give either file or folder"),
            ("kind = 'empirical'\nfile = 'none.npy'", "none.npy: no such file"),
        ] {
            let message = built(text, &[2], base).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(message.contains(part), "{text}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
