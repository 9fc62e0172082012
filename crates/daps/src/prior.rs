//! The prior of a run by what a user calls it: a known name, a checkpoint, or a `[prior]` table.

use std::path::Path;

use toml::{Table, Value};

pub use daps_priors::{Built, Memory, PriorConfig, Source};

use crate::library::Library;
use crate::{Error, Result, files, manifest};

/// The settings that `--prior` stands for: a known name, a checkpoint, or a TOML file with a `[prior]` table of its own.
pub fn named(text: &str) -> Result<PriorConfig> {
    let path = Path::new(text);
    let manifest = manifest::standard()?;
    if manifest.prior(text).is_ok() {
        return Ok(PriorConfig::named(text));
    }
    if !path.is_file() {
        if daps_priors::registry().iter().any(|kind| kind.name == text) {
            let what =
                format!("'{text}' is a kind of prior: give a TOML file with a [prior] table of that kind");
            return Err(Error::Config(what));
        }
        let mut known: Vec<&str> = manifest.priors().map(|entry| entry.name.as_str()).collect();
        known.push("or the path of a checkpoint or of a TOML file");
        return Err(daps_core::Error::unknown("prior", text, known).into());
    }
    if path.extension().is_some_and(|e| e == "toml") {
        let mut content: Table =
            toml::from_str(&files::read_text(path)?).map_err(|e| Error::content(path, e.message().trim()))?;
        return match content.remove("prior") {
            Some(Value::Table(table)) => {
                let mut prior = PriorConfig::from_table(table).map_err(|e| Error::content(path, e))?;
                prior.settle(path.parent().unwrap_or(Path::new("")))?;
                Ok(prior)
            }
            _ => Err(Error::content(path, "has no [prior] table")),
        };
    }
    Ok(PriorConfig::checkpoint(&path.canonicalize().map_err(Error::file(path, "cannot read"))?))
}

/// Opens the files that settings name, relative to `base`; known priors are looked up in the standard library.
pub fn open(config: &PriorConfig, base: &Path) -> Result<Source> {
    config.open(base, |name| Library::standard()?.open(name))
}

/// Builds the prior of settings over samples of a shape (empty: the network's own) within the usual memory, and pins them to its weights.
pub fn build(config: &mut PriorConfig, shape: &[usize], base: &Path) -> Result<Built> {
    let built = open(config, base)?.build(shape, Memory::default())?;
    config.complete(&built);
    Ok(built)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;

    /// A run's directory repeats the run and is compared by its text, so the pinned settings are written as they always were.
    #[test]
    fn a_known_prior_is_pinned_and_written_by_name() {
        let mut config = named("digits").unwrap();
        let source = open(&config, Path::new("")).unwrap();
        assert_eq!((source.shape(), source.is_discrete()), (Some([1, 32, 32]), false));
        let built = source.build(&[], Memory::default()).unwrap();
        config.complete(&built);
        assert_eq!(built.title(), "digits (3b1721dcd28b)");
        let digest = "3b1721dcd28b7bcfa3fca0b53dd6ea76e28286abc58838f6e463a2bf764a1649";
        let run = "[task]\noperator = 'hdr'\n[prior]\nkind = 'network'\nname = 'digits'\n";
        let run = RunConfig { prior: config, ..RunConfig::parse(run).unwrap() };
        let text = run.to_toml().unwrap();
        let table = format!("[prior]\nkind = \"network\"\nname = \"digits\"\nsha256 = \"{digest}\"\n");
        assert!(text.contains(&table), "{text}");
        assert_eq!(RunConfig::parse(&text).unwrap(), run);
        assert!(open(&named("binary-digits").unwrap(), Path::new("")).unwrap().is_discrete());
    }

    #[test]
    fn a_toml_file_stands_for_its_table_and_its_paths_start_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prior.toml");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            named(path.to_str().unwrap())
        };
        let found = of("[prior]\nkind = 'network'\nfile = 'w.pt'\nconfig = 'net.toml'\n").unwrap();
        let table = found.to_table().unwrap();
        for (key, name) in [("file", "w.pt"), ("config", "net.toml")] {
            assert_eq!(table[key].as_str(), dir.path().join(name).to_str());
        }
        for (text, says) in [
            ("[priors]\n", "prior.toml: has no [prior] table"),
            ("[prior]\nkind = 'gausian'\n", "prior.toml: unknown prior 'gausian'; known: gaussian, "),
            ("[prior]\nkind = 'gaussian'\nsdt = 1\n", "unknown field `sdt`"),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(says) && error.lines().count() == 1, "{error}");
        }
        let error = named("nobody").unwrap_err().to_string();
        assert!(
            error.contains("unknown prior 'nobody'; known: faces, digits, binary-digits, or the path of"),
            "{error}"
        );
    }
}
