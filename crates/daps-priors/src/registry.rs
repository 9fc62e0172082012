//! The closed-form priors by name, built from a configuration table.

use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::{Analytic, EmpiricalConfig, Error, GaussianConfig, MixtureConfig, Result};

type Build = fn(toml::Table, &[usize], &Path) -> Result<Arc<dyn Analytic>>;

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

/// All closed-form priors.
#[must_use]
pub fn registry() -> &'static [PriorInfo] {
    &[
        PriorInfo {
            name: "gaussian",
            summary: "A Gaussian with a scalar, diagonal or full covariance.",
            example: "kind = \"gaussian\"\nmean = 0.0\nstd = 0.5\n",
            build: |t, shape, base| Ok(Arc::new(parse::<GaussianConfig>("gaussian", t)?.build(shape, base)?)),
        },
        PriorInfo {
            name: "mixture",
            summary: "A mixture of Gaussians with scalar, diagonal or full covariances.",
            example: "kind = \"mixture\"\nweights = [0.5, 0.5]\nmeans = [-1.0, 1.0]\nstd = 0.2\n",
            build: |t, shape, base| Ok(Arc::new(parse::<MixtureConfig>("mixture", t)?.build(shape, base)?)),
        },
        PriorInfo {
            name: "empirical",
            summary: "The points of a file or the pictures of a folder, each with its weight.",
            example: "kind = \"empirical\"\nfile = \"points.npy\"\n",
            build: |t, shape, base| {
                Ok(Arc::new(parse::<EmpiricalConfig>("empirical", t)?.build(shape, base)?))
            },
        },
    ]
}

/// Builds the prior that a `[prior]` table describes, over samples of a shape; file names are relative to `base`.
pub fn build(table: &toml::Table, shape: &[usize], base: &Path) -> Result<Arc<dyn Analytic>> {
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

    fn built(text: &str, shape: &[usize], base: &Path) -> Result<Arc<dyn Analytic>> {
        build(&text.parse::<toml::Table>().unwrap(), shape, base)
    }

    #[test]
    fn every_example_works() {
        let dir = tempfile::tempdir().unwrap();
        let points = Tensor::new(&[[0f64, 1.0], [2.0, 3.0]], &Device::Cpu).unwrap();
        points.write_npy(dir.path().join("points.npy")).unwrap();
        for prior in registry() {
            let model = built(prior.example, &[2], dir.path()).unwrap();
            let x = Tensor::zeros((3, 2), candle_core::DType::F64, &Device::Cpu).unwrap();
            assert_eq!(model.denoise(&x, &Sigma::Same(1.0)).unwrap().dims(), [3, 2], "{}", prior.name);
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
            ("kind = 'gausian'", "unknown prior 'gausian'; known: gaussian, mixture, empirical"),
            ("mean = 1.0", "known: gaussian, mixture, empirical"),
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
