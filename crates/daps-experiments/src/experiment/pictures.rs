//! The pictures that a cell leaves: truth, measurement and chains in a row, and single samples for FID.

use std::path::{Path, PathBuf};

use candle_core::DType;
use daps::canvas::{self, Canvas};
use daps::picture::{self, is_image};
use daps::{Error, Outcome, Result, Run, files};
use daps_core::tensors::{from_f64, to_f64};
use image::RgbImage;
use image::imageops::FilterType;

use super::Experiment;
use super::cell::Cell;

/// Chains of a cell that are shown.
const MOST_CHAINS: usize = 8;
/// Small images are enlarged to about this side.
const SIDE: usize = 128;
const GAP: usize = 4;

/// Where a cell's row of pictures lies.
pub(super) fn row_of(directory: &Path, cell: &Cell) -> PathBuf {
    directory.join("pictures").join(format!("{}.png", cell.key))
}

/// Where a cell's chosen sample lies.
pub(super) fn sample_of(directory: &Path, cell: &Cell) -> PathBuf {
    directory.join("samples").join(format!("{}.png", cell.key))
}

/// Copies the pictures of a cell that another directory has.
pub(super) fn copy(cell: &Cell, from: &Path, to: &Path) -> Result<()> {
    for place in [row_of, sample_of] {
        let (from, to) = (place(from, cell), place(to, cell));
        if from.exists() && !to.exists() {
            files::make_directory(to.parent().unwrap_or(Path::new("")), true)?;
            let bytes = std::fs::read(&from).map_err(Error::file(&from, "cannot read"))?;
            files::write(&to, &bytes)?;
        }
    }
    Ok(())
}

impl Experiment {
    /// The pictures that the file asks of a cell of an image, those for FID only where its weights are there.
    pub(super) fn wanted_pictures(
        &self,
        image: usize,
        directory: &Path,
        cell: &Cell,
    ) -> impl Iterator<Item = PathBuf> {
        let row = self.shows(image).then(|| row_of(directory, cell));
        let sample = self.is_enough_for_fid() && self.has_inception;
        row.into_iter().chain(sample.then(|| sample_of(directory, cell)))
    }

    fn shows(&self, image: usize) -> bool {
        image < self.config.pictures && is_image(self.model.model.shape())
    }

    /// Truth, measurement and chains of the first images; the chosen chain of all where FID will want it.
    pub(super) fn keep_pictures(
        &self,
        run: &Run,
        outcome: &Outcome,
        i: usize,
        cell: &Cell,
        directory: &Path,
    ) -> Result<()> {
        let &[c, h, w] = run.space.shape() else { return Ok(()) };
        if cell.failure.is_some() {
            return Ok(());
        }
        let (k, d) = (run.samples, c * h * w);
        let chain = |row: usize| picture::image(&outcome.values[row * d..(row + 1) * d], [c, h, w]);
        let image = self.images.truths.numbers.iter().position(|n| *n == run.numbers[i]);
        if image.is_some_and(|image| self.shows(image)) {
            files::make_directory(&directory.join("pictures"), true)?;
            let mut row = Vec::new();
            if let Some(truth) = &run.truth {
                row.push(picture::image(&to_f64(&truth.get(i)?)?, [c, h, w]));
            }
            row.extend(run.shown_measurement(i)?);
            row.extend((i * k..(i + 1) * k).take(MOST_CHAINS).map(chain));
            canvas::write(&row_of(directory, cell), &in_a_row(&row, h.max(w)))?;
        }
        if self.is_enough_for_fid() {
            files::make_directory(&directory.join("samples"), true)?;
            canvas::write(&sample_of(directory, cell), &chain(i * k + cell.chosen.unwrap_or(0)))?;
        }
        Ok(())
    }
}

/// An image with the channels that `turn` names turned by 180 degrees; a channel has `plane` values.
pub(super) fn half_turned(image: &[f64], plane: usize, turn: impl Fn(usize) -> bool) -> Vec<f64> {
    let mut turned = image.to_vec();
    turned.chunks_mut(plane).enumerate().filter(|(i, _)| turn(*i)).for_each(|(_, plane)| plane.reverse());
    turned
}

/// For every task whose measurement is blind to half turns: the first image with each of its channels turned or not, in a file,
/// and a caption that says how far their measurements differ.
pub(super) fn half_turns(experiment: &Experiment, directory: &Path) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    let pairs = if experiment.config.half_turns { experiment.pairs()? } else { vec![] };
    for (k, task) in experiment.config.tasks().enumerate().filter(|(_, t)| t.is_ambiguous()) {
        let pair = pairs.iter().find(|p| p.task.label == task.label && p.refusal.is_none());
        let Some(run) = pair.map(|p| experiment.run(p, experiment.config.seeds[0], &[0])).transpose()? else {
            continue;
        };
        let (&[c, h, w], Some(truth)) = (run.space.shape(), &run.truth) else { continue };
        let truth = to_f64(truth)?;
        let turned = |mask: usize| half_turned(&truth, h * w, |channel| mask >> channel & 1 == 1);
        let variants: Vec<Vec<f64>> = (0..1 << c).map(turned).collect();
        let batch = from_f64(variants.concat(), &[variants.len(), c, h, w], DType::F64)?;
        let Some(operator) = run.operator() else { continue };
        let y = to_f64(&operator.apply(&batch)?)?;
        let m = y.len() / variants.len();
        let apart = y.iter().enumerate().map(|(i, v)| (v - y[i % m]).abs()).fold(0.0, f64::max);
        let images: Vec<RgbImage> = variants.iter().map(|v| picture::image(v, [c, h, w])).collect();
        files::make_directory(&directory.join("pictures"), true)?;
        let file = format!("pictures/half-turns-{k}.png");
        canvas::write(&directory.join(&file), &in_a_row(&images, h.max(w)))?;
        let n = variants.len();
        let caption =
            format!("{}: {n} pictures whose measurements differ by at most {apart:.0e}", task.label);
        all.push((caption, file));
    }
    Ok(all)
}

/// Pictures in squares of one size: a smaller one is enlarged by a whole factor, a larger one made smaller.
fn in_a_row(pictures: &[RgbImage], side: usize) -> RgbImage {
    let square = side * (SIDE / side).max(1);
    let mut canvas = Canvas::new(pictures.len() * (square + GAP) - GAP, square);
    for (k, picture) in pictures.iter().enumerate() {
        let largest = picture.width().max(picture.height()) as usize;
        let small;
        let picture = if largest > square {
            let scaled = |s: u32| (s * square as u32 / largest as u32).max(1);
            small = image::imageops::resize(
                picture,
                scaled(picture.width()),
                scaled(picture.height()),
                FilterType::Triangle,
            );
            &small
        } else {
            picture
        };
        let (w, h) = (picture.width() as usize, picture.height() as usize);
        let zoom = (square / w.max(h)).max(1);
        let at = (k * (square + GAP) + (square - w * zoom) / 2, (square - h * zoom) / 2);
        canvas.paste(picture, at, zoom);
    }
    canvas.into_picture()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A half turn reverses a channel's pixels, which a mirror does not; the Fourier magnitudes do not see it.
    #[test]
    fn a_channel_is_turned_by_180_degrees() {
        let small = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        assert_eq!(half_turned(&small, 4, |channel| channel == 1), [1.0, 2.0, 3.0, 4.0, 8.0, 7.0, 6.0, 5.0]);
        let operator = daps_operators::build("phase_retrieval", &toml::Table::new(), &[1, 4, 4], 0).unwrap();
        let magnitudes = |x: &[f64]| {
            let x = from_f64(x.to_vec(), &[1, 1, 4, 4], DType::F64).unwrap();
            to_f64(&operator.apply(&x).unwrap()).unwrap()
        };
        let image: Vec<f64> = (0..16).map(|k| (0.37 * f64::from(k * k)).sin()).collect();
        let y = magnitudes(&image);
        let furthest =
            |x: &[f64]| magnitudes(x).iter().zip(&y).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(furthest(&half_turned(&image, 16, |_| true)) < 1e-12);
        // A mirror image has others.
        let mirrored: Vec<f64> = image.chunks(4).flat_map(|row| row.iter().rev()).copied().collect();
        assert!(furthest(&mirrored) > 0.01);
    }
}
