//! Pictures of image-shaped data: grids of samples, means and standard deviations as PNG.

use std::io::Cursor;
use std::path::Path;

use candle_core::Tensor;
use daps_core::real::to_f64;
use image::{ImageBuffer, ImageFormat, Rgb};

use crate::{Error, Result, files};

/// Most samples that a grid shows.
const MOST: usize = 16;
/// Small images are enlarged to about this side.
const SIDE: usize = 192;

/// Whether values of this shape can be shown: `[C, H, W]` with one to three channels.
#[must_use]
pub fn is_image(shape: &[usize]) -> bool {
    matches!(*shape, [1..=3, h, w] if h > 1 && w > 1)
}

/// Writes a row of images, values mapped from `range` to black and white, enlarged without smoothing where small.
pub fn write_row(path: &Path, images: &[Vec<f64>], shape: [usize; 3], range: (f64, f64)) -> Result<()> {
    let zoom = (SIDE / shape[1].max(shape[2])).max(1);
    write_grid(path, images, shape, range, images.len(), zoom)
}

/// Writes images in rows of `columns`, values mapped from `range` to black and white, each pixel `zoom` pixels wide.
pub fn write_grid(
    path: &Path,
    images: &[Vec<f64>],
    shape: [usize; 3],
    range: (f64, f64),
    columns: usize,
    zoom: usize,
) -> Result<()> {
    let [channels, height, width] = shape;
    let (gap, rows) = (4, images.len().div_ceil(columns.max(1)));
    let (w, h) = (columns * (width * zoom + gap), rows * (height * zoom + gap) - gap);
    let level = |v: f64| (255.0 * (v - range.0) / (range.1 - range.0)).round().clamp(0.0, 255.0) as u8;
    let picture = ImageBuffer::from_fn(w as u32, h as u32, |x, y| {
        let (column, row) = (x as usize / (width * zoom + gap), y as usize / (height * zoom + gap));
        let (i, j) = (y as usize % (height * zoom + gap) / zoom, x as usize % (width * zoom + gap) / zoom);
        let number = row * columns + column;
        if i >= height || j >= width || number >= images.len() {
            return Rgb([255u8, 255, 255]);
        }
        // Two channels are a complex image: show the first; one channel is grey.
        let value = |c: usize| level(images[number][(c * height + i) * width + j]);
        if channels == 3 { Rgb([value(0), value(1), value(2)]) } else { Rgb([value(0); 3]) }
    });
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).map_err(|e| Error::content(path, e))?;
    files::write(path, &bytes.into_inner())
}

/// The pictures of a run's first measurement, if its samples are images.
pub fn write_run(
    directory: &Path,
    truth: Option<&Tensor>,
    y: &Tensor,
    samples: &Tensor,
    mean: &Tensor,
    std: &Tensor,
) -> Result<()> {
    let rows = |t: &Tensor, most: usize| -> Result<Vec<Vec<f64>>> {
        let count = t.dims()[0].min(most);
        (0..count).map(|i| Ok(to_f64(&t.get(i)?)?)).collect()
    };
    if let [c, h, w] = samples.dims()[1..]
        && is_image(&[c, h, w])
    {
        let shape = [c, h, w];
        write_row(&directory.join("samples.png"), &rows(samples, MOST)?, shape, (-1.0, 1.0))?;
        write_row(&directory.join("mean.png"), &rows(mean, 1)?, shape, (-1.0, 1.0))?;
        let spread = rows(std, 1)?;
        let largest = spread[0].iter().copied().filter(|v| v.is_finite()).fold(1e-9, f64::max);
        write_row(&directory.join("std.png"), &spread, shape, (0.0, largest))?;
        if let Some(truth) = truth {
            write_row(&directory.join("truth.png"), &rows(truth, 1)?, shape, (-1.0, 1.0))?;
        }
    }
    match y.dims()[1..] {
        [c, h, w] if is_image(&[c, h, w]) => {
            write_row(&directory.join("measurement.png"), &rows(y, 1)?, [c, h, w], (-1.0, 1.0))
        }
        _ => Ok(()),
    }
}
