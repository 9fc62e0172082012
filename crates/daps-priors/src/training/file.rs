//! A training file: an error about a setting names the file and the line where the setting stands.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::config::TrainConfig;
use crate::{Error, Result};

impl TrainConfig {
    /// From a TOML file, checked.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::file(path, "no such file"),
            std::io::ErrorKind::InvalidData => Error::file(path, "is not a text file"),
            _ => Error::file(path, e),
        })?;
        Self::parse(&text).map_err(|e| match e {
            Error::Config { reason, .. } => Error::file(path, reason),
            other => Error::file(path, other),
        })
    }
}

/// The same error with the file and the line where the setting stands that it speaks of; as it was where it speaks of none.
#[must_use]
pub fn at_setting(path: &Path, error: Error) -> Error {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    match line_of(&text, &error) {
        Some(place) => Error::file(path, format!("{place}{error}")),
        None => error,
    }
}

/// The same error with the line where the setting stands that it speaks of.
pub(super) fn with_line(text: &str, error: Error) -> Error {
    match line_of(text, &error) {
        Some(place) => Error::config("training", format!("{place}{error}")),
        None => error,
    }
}

/// "line 3: ", where the error speaks of a setting that the text has. An error of the network as a whole is at its table.
fn line_of(text: &str, error: &Error) -> Option<String> {
    let Error::Core(daps_core::Error::Invalid { what, .. }) = error else { return None };
    let table = DeTable::parse(text).ok()?;
    // A check may say "image size" or "number of network.channel_mult".
    let of_network = format!("network.{}", what.replace(' ', "_"));
    let dotted = what.split(' ').find(|word| word.contains('.')).unwrap_or(what);
    let whole = if what == "training" { "classes" } else { "network" };
    let general = (what == "training" || what.contains("network")).then_some(whole);
    let mut candidates = [what.as_str(), of_network.as_str(), dotted].into_iter().chain(general);
    let span = candidates.find_map(|path| find(table.get_ref(), path))?;
    Some(daps_files::place(text, Some(span)))
}

/// Where the key of a dotted path stands.
fn find(table: &DeTable, path: &str) -> Option<std::ops::Range<usize>> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    match (rest, value.get_ref()) {
        (None, _) => Some(key.span()),
        (Some(rest), DeValue::Table(inner)) => find(inner, rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"tiny\"\nimages = 10\nbatch = 4\n[data]\nsource = \"none\"\n\n[network]\nkind = \"song\"\n\
                        image_size = 8\nchannels = 1\nmodel_channels = 16\nchannel_mult = [1, 1]\nnum_blocks = 1\n\
                        attn_resolutions = [4]\n[optimizer]\nbeta1 = 0.5\n";

    #[test]
    fn every_refusal_of_a_training_file_names_it_and_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        for (from, to, says) in [
            ("batch = 4", "batchs = 4", "line 3: unknown field `batchs`"),
            ("batch = 4", "batch = \"4\"", "line 3: invalid type: string \"4\""),
            ("batch = 4", "batch = 0", "line 3: batch: expected at least 1, got 0"),
            ("batch = 4", "batch = ", "line 3: "),
            ("[data]\n", "[data]\nflop = true\n", "line 5: unknown field `flop`"),
            ("images = 10\n", "", "missing field `images`"),
            ("beta1 = 0.5", "beta1 = 1.5", "line 16: optimizer.beta1: expected"),
            ("image_size = 8", "image_size = 9", "line 9: image size: expected a positive multiple of 2"),
            ("channel_mult = [1, 1]", "channel_mult = []", "line 12: number of network.channel_mult"),
            ("num_blocks = 1", "num_blocks = 0", "line 7: blocks of a level of the network"),
            ("batch = 4", "batch = 4\npatch = 3", "line 11: network.channels: expected a multiple of 9"),
            ("\"tiny\"", "\"a/b\"", "line 1: name: expected letters"),
            (
                "[optimizer]",
                "[tokens]\nsymbols = 2\n[classes]\nlabels = \"l\"\n[optimizer]",
                "line 17: training: ",
            ),
        ] {
            assert!(TEXT.contains(from), "{from}");
            std::fs::write(&path, TEXT.replacen(from, to, 1)).unwrap();
            let error = TrainConfig::read(&path).unwrap_err().to_string();
            let start = format!("{}: ", path.display());
            let rest = error.strip_prefix(&start).unwrap_or_else(|| panic!("{to}: {error}"));
            assert!(rest.starts_with(says) || (to.is_empty() && rest.contains(says)), "{to}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let none = TrainConfig::read(&dir.path().join("none.toml")).unwrap_err().to_string();
        assert!(none.ends_with("none.toml: no such file"), "{none}");
    }

    #[test]
    fn errors_about_other_things_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, TEXT).unwrap();
        let held_out = || daps_core::Error::invalid("data.held_out", "less", 9).into();
        assert_eq!(at_setting(&path, held_out()).to_string(), "data.held_out: expected less, got 9");
        std::fs::write(&path, TEXT.replace("[data]\n", "[data]\nheld_out = 9\n")).unwrap();
        let said = at_setting(&path, held_out()).to_string();
        assert!(said.ends_with("mine.toml: line 5: data.held_out: expected less, got 9"), "{said}");
        let other = at_setting(&path, Error::file(Path::new("a"), "is broken")).to_string();
        assert_eq!(other, "a: is broken");
    }
}
