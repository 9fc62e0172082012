//! Numbers as pictures: images, measurements, standard deviations, and the way that a chain took.

use std::borrow::Cow;
use std::path::Path;

use daps_core::{Operator, Shown, Step};
use image::{Rgb, RgbImage};

use crate::Result;
use crate::canvas::{self, Canvas};
use crate::font::{self, SMALL};

/// Small images are enlarged to about this side where they stand in a strip.
const SIDE: usize = 128;
/// Large images are shrunk to this side at most where they stand in a strip.
pub(crate) const STRIP: usize = 256;
/// The same where they stand alone.
pub(crate) const LARGE: usize = 512;

/// Whether values of this shape can be shown: `[C, H, W]` with one to three channels.
#[must_use]
pub fn is_image(shape: &[usize]) -> bool {
    matches!(*shape, [1..=3, h, w] if h > 1 && w > 1)
}

/// One plane or three of what can be shown; of two channels (a complex image) the magnitude.
#[must_use]
pub fn planes(values: &[f64], shape: [usize; 3]) -> (Cow<'_, [f64]>, [usize; 3]) {
    let [channels, h, w] = shape;
    if channels != 2 {
        return (values.into(), shape);
    }
    let (re, im) = values.split_at(h * w);
    (re.iter().zip(im).map(|(re, im)| 2.0 * re.hypot(*im) - 1.0).collect(), [1, h, w])
}

/// An image with values from -1 to 1; of two channels (a complex image) the magnitude.
#[must_use]
pub fn image(values: &[f64], shape: [usize; 3]) -> RgbImage {
    let (values, [channels, height, width]) = planes(values, shape);
    let n = height * width;
    let level = |v: f64| (127.5 * (v + 1.0)).round().clamp(0.0, 255.0) as u8;
    RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let at = y as usize * width + x as usize;
        match channels {
            3 => Rgb([0, 1, 2].map(|c| level(values[c * n + at]))),
            _ => Rgb([level(values[at]); 3]),
        }
    })
}

/// Side of the squares of pixels whose means make an image small.
fn square([_, h, w]: [usize; 3], most: usize) -> usize {
    h.max(w).div_ceil(most).max(1)
}

/// The shape of an image that is made [`small`].
#[must_use]
pub fn small_shape(shape: [usize; 3], most: usize) -> [usize; 3] {
    let ([channels, h, w], side) = (shape, square(shape, most));
    [channels, h.div_ceil(side), w.div_ceil(side)]
}

/// An image whose sides are at most `most`: the means of squares of pixels, as few as it takes.
#[must_use]
pub fn small(values: &[f64], shape: [usize; 3], most: usize) -> (Cow<'_, [f64]>, [usize; 3]) {
    let (side, [_, h, w]) = (square(shape, most), shape);
    if side == 1 {
        return (values.into(), shape);
    }
    let [channels, rows, columns] = small_shape(shape, most);
    let pixel = |k: usize| {
        let (c, i, j) = (k / (rows * columns), k / columns % rows * side, k % columns * side);
        let (below, right) = (h.min(i + side), w.min(j + side));
        let sum: f64 = (i..below).flat_map(|i| &values[(c * h + i) * w..][j..right]).sum();
        sum / ((below - i) * (right - j)) as f64
    };
    ((0..channels * rows * columns).map(pixel).collect(), [channels, rows, columns])
}

/// A small picture of an image.
#[must_use]
pub fn preview(values: &[f64], shape: [usize; 3], most: usize) -> RgbImage {
    let (values, shape) = small(values, shape, most);
    image(&values, shape)
}

/// Standard deviations, the RMS over channels, as colours from black (0) over violet and orange to white (`largest`).
#[must_use]
pub fn heat(values: &[f64], [channels, height, width]: [usize; 3], largest: f64) -> RgbImage {
    let n = height * width;
    RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let at = y as usize * width + x as usize;
        let square: f64 = (0..channels).map(|c| values[c * n + at].powi(2)).sum::<f64>() / channels as f64;
        Rgb(heat_color(square.sqrt() / largest))
    })
}

/// Evenly spaced points of the colour scale.
const SCALE: [[f64; 3]; 6] = [
    [0.0, 0.0, 0.0],
    [60.0, 15.0, 110.0],
    [150.0, 35.0, 110.0],
    [225.0, 90.0, 50.0],
    [250.0, 175.0, 50.0],
    [255.0, 250.0, 220.0],
];

/// The colour of a number from 0 to 1.
#[must_use]
pub fn heat_color(t: f64) -> [u8; 3] {
    let t = if t.is_finite() { t.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64 } else { 0.0 };
    let (i, f) = ((t as usize).min(SCALE.len() - 2), t - (t as usize).min(SCALE.len() - 2) as f64);
    [0, 1, 2].map(|c| (SCALE[i][c] * (1.0 - f) + SCALE[i + 1][c] * f).round() as u8)
}

/// The measurement of a row of the operator as an image, where it has a form that can be looked at: images as they are, with what
/// that row's mask hides in grey; Fourier magnitudes and spectra on a logarithmic scale; numbers of a few pixels at those pixels.
#[must_use]
pub fn measurement(y: &[f64], operator: &dyn Operator, row: usize) -> Option<(Vec<f64>, [usize; 3])> {
    match (operator.shown(), operator.output_shape()) {
        (Shown::LogMagnitudes, &[c, h, w]) if is_image(&[c, h, w]) => {
            let magnitudes: Vec<f64> = y.iter().map(|v| v.abs()).collect();
            Some((log_scaled(&magnitudes), [c, h, w]))
        }
        (Shown::CoilSpectra, &[coils, 2, h, w]) if h > 1 && w > 1 => {
            let n = h * w;
            let power = |at: usize| {
                (0..coils).map(|c| y[2 * c * n + at].hypot(y[(2 * c + 1) * n + at]).powi(2)).sum()
            };
            let magnitudes: Vec<f64> = (0..n).map(|at| f64::sqrt(power(at))).collect();
            Some((log_scaled(&magnitudes), [1, h, w]))
        }
        (Shown::Image, &[c, h, w]) if is_image(&[c, h, w]) => {
            let seen = operator.visible();
            let seen = seen.as_ref().map(|rows| if rows.len() == 1 { &rows[0] } else { &rows[row] });
            let shown = |(i, v): (usize, &f64)| if seen.is_some_and(|s| !s[i]) { 0.0 } else { *v };
            Some((y.iter().enumerate().map(shown).collect(), [c, h, w]))
        }
        (Shown::AtSites, _) => at_sites(y, operator, row),
        _ => None,
    }
}

/// A measurement whose numbers belong to a few pixels each, such as pairs: every pixel shows the number that it is part of, and
/// grey where it is part of none.
fn at_sites(y: &[f64], operator: &dyn Operator, row: usize) -> Option<(Vec<f64>, [usize; 3])> {
    let (local, &[1, h, w]) = (operator.as_local()?, operator.input_shape()) else { return None };
    let mut pixels = vec![0.0; h * w];
    for (k, v) in y.iter().enumerate() {
        local.sites_of(row, k).iter().for_each(|&site| pixels[site as usize] = *v);
    }
    is_image(&[1, h, w]).then_some((pixels, [1, h, w]))
}

/// ln(1 + v/median), stretched to [-1, 1].
fn log_scaled(magnitudes: &[f64]) -> Vec<f64> {
    let mut sorted = magnitudes.to_vec();
    sorted.sort_by(f64::total_cmp);
    let unit = sorted[sorted.len() / 2].max(1e-12);
    let logs: Vec<f64> = magnitudes.iter().map(|v| (v / unit).ln_1p()).collect();
    let largest = logs.iter().copied().fold(1e-12, f64::max);
    logs.iter().map(|v| 2.0 * v / largest - 1.0).collect()
}

/// Images in a row, enlarged without smoothing where small.
#[must_use]
pub fn strip(images: &[RgbImage]) -> RgbImage {
    let gap = 4;
    let (w, h) = images.first().map_or((1, 1), |i| (i.width() as usize, i.height() as usize));
    let zoom = (SIDE / w.max(h)).max(1);
    let mut canvas = Canvas::new(images.len() * (w * zoom + gap), h * zoom);
    for (k, image) in images.iter().enumerate() {
        canvas.paste(image, (k * (w * zoom + gap), 0), zoom);
    }
    canvas.into_picture()
}

/// Writes images in rows of `columns`, values from `range` as black to white, each pixel `zoom` pixels wide.
pub fn write_grid(
    path: &Path,
    images: &[Vec<f64>],
    shape: [usize; 3],
    range: (f64, f64),
    columns: usize,
    zoom: usize,
) -> Result<()> {
    let (gap, columns) = (4, columns.max(1));
    let (w, h) = (shape[2] * zoom + gap, shape[1] * zoom + gap);
    let mut canvas = Canvas::new(columns * w - gap, images.len().div_ceil(columns).max(1) * h - gap);
    for (k, values) in images.iter().enumerate() {
        let unit: Vec<f64> = values.iter().map(|v| 2.0 * (v - range.0) / (range.1 - range.0) - 1.0).collect();
        canvas.paste(&image(&unit, shape), (k % columns * w, k / columns * h), zoom);
    }
    canvas::write(path, &canvas.into_picture())
}

/// One level of a chain's way: x̂0, x0|y and the x_t that it ends with, as small images.
#[derive(Clone)]
pub struct Snapshot {
    /// The level's noise, and that of x_t.
    pub sigma: (f64, f64),
    /// The three images, flattened.
    pub images: [Vec<f64>; 3],
}

impl Snapshot {
    /// Of which levels the pictures are kept: about eight, evenly spaced, the first and the last among them.
    #[must_use]
    pub fn is_kept(step: &Step) -> bool {
        const COUNT: usize = 8;
        let last = step.of - 1;
        (0..COUNT).any(|k| k * last / (COUNT - 1) == step.index)
    }
}

/// The way of a chain: three rows of small images of a shape under the noise levels.
#[must_use]
pub fn way(snapshots: &[Snapshot], shape: [usize; 3]) -> RgbImage {
    let [_, h, w] = shape;
    let zoom = (SIDE / w.max(h)).max(1);
    let (cell, line, gap) = ((w * zoom, h * zoom), font::height(SMALL) + 6, 4);
    let names = ["x̂₀", "x₀|y", "xₜ"];
    let left = names.iter().map(|name| font::width(name, SMALL)).max().unwrap_or(0) + 10;
    let sigmas: Vec<String> = snapshots.iter().map(|s| format!("σ = {:.3}", s.sigma.0)).collect();
    // Narrow images stand as far apart as their labels need.
    let labels = sigmas.iter().map(|label| font::width(label, SMALL) + gap).max().unwrap_or(0);
    let pitch = cell.0.max(labels) + gap;
    let mut canvas = Canvas::new(left + snapshots.len() * pitch, line + 3 * (cell.1 + gap));
    for (row, name) in names.iter().enumerate() {
        let middle = cell.1.saturating_sub(font::height(SMALL)) / 2;
        canvas.text(name, (4, line + row * (cell.1 + gap) + middle), SMALL);
    }
    for (column, snapshot) in snapshots.iter().enumerate() {
        let x = left + column * pitch;
        canvas.text(&sigmas[column], (x, 2), SMALL);
        for (row, values) in snapshot.images.iter().enumerate() {
            // x_t is far outside [-1, 1] at first; at unit variance its noise and its picture are both seen.
            let scale = if row == 2 { 1.0 / (1.0 + snapshot.sigma.1.powi(2)).sqrt() } else { 1.0 };
            let values: Vec<f64> = values.iter().map(|v| v * scale).collect();
            canvas.paste(&image(&values, shape), (x, line + row * (cell.1 + gap)), zoom);
        }
    }
    canvas.into_picture()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_the_levels_that_they_say() {
        let picture = image(&[-1.0, 0.0, 1.0, 2.0], [1, 2, 2]);
        assert_eq!(picture.pixels().map(|p| p.0[0]).collect::<Vec<_>>(), [0, 128, 255, 255]);
        assert_eq!(heat_color(0.0), [0, 0, 0]);
        assert_eq!(heat_color(1.0), [255, 250, 220]);
        assert_eq!(heat_color(f64::NAN), [0, 0, 0]);
        let brightness = |t: f64| heat_color(t).iter().map(|v| u32::from(*v)).sum::<u32>();
        assert!((0..20).all(|i| brightness(f64::from(i) / 20.0) < brightness(f64::from(i + 1) / 20.0)));
    }

    /// Two measurements of white pictures through masks of their own: each shows what its mask hides.
    #[test]
    fn a_measurement_is_shown_with_its_own_mask() {
        let masks =
            candle_core::Tensor::new(&[[[[1u8, 0], [1, 1]]], [[[1, 1], [0, 0]]]], &candle_core::Device::Cpu);
        let operator = daps_operators::Inpainting::new(&[1, 2, 2], &masks.unwrap()).unwrap();
        let shown = |row: usize| {
            let (values, shape) = measurement(&[1.0; 4], &operator, row).unwrap();
            image(&values, shape).pixels().map(|p| p.0[0]).collect::<Vec<_>>()
        };
        assert_eq!((shown(0), shown(1)), (vec![255, 128, 255, 255], vec![255, 255, 128, 128]));
    }

    /// Means of 2 x 2 pixels, and of what is left at the right and below; an image that is small enough stays as it is.
    #[test]
    fn large_images_are_made_small() {
        let values: Vec<f64> = (0..2 * 15).map(f64::from).collect();
        let (less, shape) = small(&values, [2, 3, 5], 3);
        assert_eq!(shape, [2, 2, 3]);
        let first = [3.0, 5.0, 6.5, 10.5, 12.5, 14.0];
        assert_eq!(less[..6], first);
        assert_eq!(less[6..], first.map(|v| v + 15.0));
        assert_eq!(small(&values, [2, 3, 5], 5), (Cow::Borrowed(&values[..]), [2, 3, 5]));
        assert_eq!(small(&[1.0; 12_000_000], [3, 1000, 4000], LARGE).1, [3, 125, 500]);
    }

    #[test]
    fn eight_levels_are_kept_with_both_ends() {
        let kept = |of: usize| {
            (0..of)
                .filter(|&index| Snapshot::is_kept(&Step { index, of, start: 1.0, sigma: 1.0, next: 0.5 }))
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(kept(3), [0, 1, 2]);
        assert_eq!(kept(1), [0]);
        let many = kept(200);
        assert!(many.len() == 8 && many[0] == 0 && many[7] == 199);
    }
}
