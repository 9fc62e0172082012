//! What an experiment leaves beside its cells: tables that are the same for any way of getting there, and the report.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::Path;

use candle_core::{Device, Tensor};
use daps::progress::Progress;
use daps::{Error, Result, assets, files, load};
use daps_methods::MethodConfig;
use daps_metrics::fid::frechet_distance;
use daps_metrics::inception::{FEATURES, Inception};
use serde_json::{Value, json};

use super::cell::{COLUMNS, Cell, LEVEL_COLUMNS};
use super::document::Piece;
use super::{Block, Experiment, Progressed, pictures, report};

/// Writes everything; cells are in the table's order.
pub(super) fn all(
    experiment: &Experiment,
    blocks: &[Block],
    cells: &[Cell],
    progressed: &Progressed,
    directory: &Path,
    progress: &mut dyn Progress,
) -> Result<()> {
    let text = toml::to_string(&experiment.config).map_err(|e| Error::content(directory, e))?;
    files::write(&directory.join("config.toml"), text.as_bytes())?;
    files::write(&directory.join("settings.toml"), settings(blocks, directory)?.as_bytes())?;
    files::write(&directory.join("results.csv"), results(cells).as_bytes())?;
    files::write(&directory.join("timings.csv"), timings(cells).as_bytes())?;
    if experiment.follows() {
        files::write(&directory.join("levels.csv"), levels(cells).as_bytes())?;
    }
    let fid = fid(experiment, cells, directory, progress)?;
    files::write(&directory.join("results.json"), json_of(cells, &fid, directory)?.as_bytes())?;
    let (mut document, drawings) = report::document(experiment, cells, progressed, &fid, directory);
    let turns = pictures::half_turns(experiment, directory)?;
    if !turns.is_empty() {
        document.pieces.push(Piece::Heading("The same measurement".into()));
        document.pieces.extend(turns.into_iter().map(|(caption, file)| Piece::Picture(caption, file)));
    }
    if !drawings.is_empty() {
        files::make_directory(&directory.join("plots"), true)?;
    }
    for (file, svg) in &drawings {
        files::write(&directory.join(file), svg.as_bytes())?;
    }
    files::write(&directory.join("report.md"), document.markdown().as_bytes())?;
    files::write(&directory.join("report.html"), document.html(directory)?.as_bytes())
}

/// What every method ran with on every task, presets, tuned settings and defaults spelled out.
fn settings(blocks: &[Block], directory: &Path) -> Result<String> {
    let mut tasks: BTreeMap<&str, BTreeMap<&str, &MethodConfig>> = BTreeMap::new();
    for block in blocks {
        let (task, method) = (&block.pair.task.label, &block.pair.method.label);
        tasks.entry(task).or_default().insert(method, &block.settings);
    }
    toml::to_string(&tasks).map_err(|e| Error::content(directory, e))
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn number(value: Option<f64>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

fn place(cell: &Cell) -> String {
    format!("{},{},{},{}", quoted(&cell.method), quoted(&cell.task), quoted(&cell.image), cell.seed)
}

/// One line a cell, without its cost, so that a table that was killed and resumed, or ran in other batches, is the same to the byte.
fn results(cells: &[Cell]) -> String {
    let heads: Vec<&str> = COLUMNS.iter().map(|c| c.name).collect();
    let mut text = format!("method,task,image,seed,samples,diverged,{},failure\n", heads.join(","));
    for cell in cells {
        let numbers: Vec<String> = COLUMNS.iter().map(|c| number((c.of)(cell))).collect();
        let failure = quoted(cell.failure.as_deref().unwrap_or_default());
        let _ = writeln!(
            text,
            "{},{},{},{},{failure}",
            place(cell),
            cell.samples,
            cell.diverged,
            numbers.join(",")
        );
    }
    text
}

/// What a chain cost in its batch, by cell.
fn timings(cells: &[Cell]) -> String {
    let mut text = String::from("method,task,image,seed,seconds_per_sample,operator_calls\n");
    for cell in cells {
        let calls = cell.operator_calls.map(|n| n.to_string()).unwrap_or_default();
        let _ = writeln!(text, "{},{:.4},{calls}", place(cell), cell.seconds);
    }
    text
}

/// One line for every level of a cell.
fn levels(cells: &[Cell]) -> String {
    let heads = LEVEL_COLUMNS.map(|(name, _)| name).join(",");
    let mut text = format!("method,task,image,seed,sigma,{heads}\n");
    for cell in cells {
        for level in &cell.levels {
            let numbers = LEVEL_COLUMNS.map(|(_, of)| number(of(level))).join(",");
            let _ = writeln!(text, "{},{},{numbers}", place(cell), level.sigma);
        }
    }
    text
}

/// The cells with every chain and level, without their cost, and FID by task and method.
fn json_of(cells: &[Cell], fid: &HashMap<(String, String), f64>, directory: &Path) -> Result<String> {
    let cell = |c: &Cell| -> Result<Value> {
        let mut value = serde_json::to_value(c).map_err(|e| Error::content(directory, e))?;
        if let Some(map) = value.as_object_mut() {
            ["seconds", "operator_calls"].iter().for_each(|cost| _ = map.remove(*cost));
        }
        Ok(value)
    };
    let cells = cells.iter().map(cell).collect::<Result<Vec<_>>>()?;
    let fid: BTreeMap<_, _> = fid.iter().collect();
    let fid: Vec<Value> = fid
        .iter()
        .map(|((task, method), fid)| json!({ "task": task, "method": method, "fid": fid }))
        .collect();
    let whole = json!({ "version": env!("CARGO_PKG_VERSION"), "cells": cells, "fid": fid });
    let text = serde_json::to_string(&whole);
    Ok(text.map_err(|e| Error::content(directory, e))? + "\n")
}

/// FID by (task, method), where all images of the first seed are there, they are at least 100, and so are the weights.
fn fid(
    experiment: &Experiment,
    cells: &[Cell],
    directory: &Path,
    progress: &mut dyn Progress,
) -> Result<HashMap<(String, String), f64>> {
    let weights = match experiment.is_enough_for_fid() {
        true => assets::load(assets::INCEPTION)?,
        false => None,
    };
    let Some(weights) = weights else { return Ok(HashMap::new()) };
    let network = Inception::new(&weights)?;
    distances(experiment, cells, directory, &|images| Ok(network.features(images)?), FEATURES, progress)
}

/// Fréchet distances between the features of the truths and of the samples, `dim` numbers an image. What was computed once is kept
/// in `fid.json`; whoever asks to stop gets those that are done.
fn distances(
    experiment: &Experiment,
    cells: &[Cell],
    directory: &Path,
    features: &dyn Fn(&Tensor) -> Result<Vec<f64>>,
    dim: usize,
    progress: &mut dyn Progress,
) -> Result<HashMap<(String, String), f64>> {
    let mut found = HashMap::new();
    let path = directory.join("fid.json");
    let mut known: BTreeMap<String, f64> =
        files::read_text(&path).ok().and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default();
    progress.note("FID: the features of all images");
    let truth = features(&experiment.images.truths.values.clamp(-1.0, 1.0)?)?;
    let mut groups: BTreeMap<(String, String), Vec<&Cell>> = BTreeMap::new();
    for cell in cells.iter().filter(|c| c.seed == experiment.config.seeds[0] && c.failure.is_none()) {
        groups.entry((cell.task.clone(), cell.method.clone())).or_default().push(cell);
    }
    let is_whole = |cells: &[&Cell]| {
        cells.len() == experiment.images() && cells.iter().all(|c| pictures::sample_of(directory, c).exists())
    };
    groups.retain(|_, cells| is_whole(cells));
    progress.begin("FID", groups.len());
    for (pair, cells) in groups {
        let keys: String = cells.iter().map(|c| c.key.as_str()).collect();
        let digest = files::sha256(keys);
        if !known.contains_key(&digest) {
            let shape = experiment.model.model.shape();
            let mut values = Vec::new();
            for cell in &cells {
                let file = pictures::sample_of(directory, cell);
                let bytes = std::fs::read(&file).map_err(Error::file(&file, "cannot read"))?;
                values.extend(load::decode(&file, &bytes, shape, false)?.0);
            }
            let images =
                Tensor::from_vec(values, daps_core::tensors::batched(cells.len(), shape), &Device::Cpu)?;
            let value = frechet_distance(&features(&images)?, &truth, dim)?;
            known.insert(digest.clone(), value);
            let text = serde_json::to_string(&known).map_err(|e| Error::content(&path, e))?;
            files::write(&path, text.as_bytes())?;
        }
        found.insert(pair, known[&digest]);
        if progress.step("").is_break() {
            break;
        }
    }
    progress.end();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell as Counter;

    use super::super::ExperimentConfig;
    use super::super::store::Store;
    use super::*;

    /// A hundred pictures of one colour each, seen wholly and with hardly any noise: the features, a picture's mean colour, are
    /// those of the truths but for the eight bits of a stored sample. The group with a missing picture is left out, and what is
    /// known is not computed again.
    #[test]
    fn fid_compares_stored_samples_with_the_truths() {
        let dir = tempfile::tempdir().unwrap();
        let colours: Vec<f32> = (0..300).map(|k| 0.9 * (k as f32 * 0.7).sin()).collect();
        let colours = Tensor::from_vec(colours, (100, 3, 1, 1), &Device::Cpu).unwrap();
        let images = colours.broadcast_as((100, 3, 4, 4)).unwrap().contiguous().unwrap();
        images.write_npy(dir.path().join("images.npy")).unwrap();
        let text = "name = 'fid'\ntitle = 'fid'\nhours = 0.1\nshape = [3, 4, 4]\n\
            prior = { kind = 'gaussian', std = 0.5 }\n\
            tasks = [{ operator = 'super_resolution', noise = 0.001, options = { factor = 1 } }]\n\
            [data]\nsource = 'images.npy'\nimages = 100\n[[method]]\nname = 'pseudo_inverse'\n[[method]]\nname = 'wiener'\n";
        let experiment = Experiment::open(ExperimentConfig::parse(text).unwrap(), dir.path()).unwrap();
        let out = dir.path().join("out");
        // The cells alone: a report would hold the distances of Inception's features where its weights are in the cache.
        let pairs = experiment.pairs().unwrap();
        let blocks = experiment.blocks(&pairs).unwrap();
        let wanted: Vec<_> = blocks.iter().map(|b| (b, experiment.images())).collect();
        let mut store = Store::open(&out).unwrap();
        assert!(experiment.fill(&wanted, &mut store, &out, &mut ()).unwrap());
        let keys = blocks.iter().flat_map(|b| &b.keys);
        let cells: Vec<Cell> = keys.map(|key| store.get(key).unwrap().clone()).collect();
        let calls = Counter::new(0);
        let colour = |x: &Tensor| -> Result<Vec<f64>> {
            calls.set(calls.get() + 1);
            Ok(daps_core::tensors::to_f64(&x.mean((2, 3))?)?)
        };
        let of = |cells: &[Cell]| distances(&experiment, cells, &out, &colour, 3, &mut ()).unwrap();
        let found = of(&cells);
        let pair = |method: &str| ("super_resolution".to_owned(), method.to_owned());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[&pair("pseudo_inverse")].abs() < 1e-4, "{found:?}");
        assert_eq!((of(&cells), calls.get()), (found, 4));
        // Of a group that is not whole there is nothing, and pictures that differ are at a distance.
        let lost = cells.iter().find(|c| c.method == "wiener").unwrap();
        std::fs::remove_file(pictures::sample_of(&out, lost)).unwrap();
        assert_eq!(of(&cells).keys().collect::<Vec<_>>(), [&pair("pseudo_inverse")]);
        std::fs::remove_file(out.join("fid.json")).unwrap();
        for cell in cells.iter().filter(|c| c.method == "pseudo_inverse") {
            let black = image::RgbImage::new(4, 4);
            black.save(pictures::sample_of(&out, cell)).unwrap();
        }
        assert!(of(&cells)[&pair("pseudo_inverse")] > 1.0);
    }
}
