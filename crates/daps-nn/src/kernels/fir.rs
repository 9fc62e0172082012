//! Halving and doubling the size of a map with a small separable filter, each the other's transpose.

use super::elementwise::build;
use crate::buffer::Buffer;
use crate::feature_map::Dims;

/// The sum over taps of one row of the result: `out += weight * pixel` for the channels of one pixel.
fn add_pixel(out: &mut [f32], pixel: &[f32], weight: f32) {
    out.iter_mut().zip(pixel).for_each(|(o, x)| *o += weight * x);
}

/// y[i, j] = scale * sum over a, b of f[a] f[b] x[2i + a - p, 2j + b - p], with p = (len - 1) / 2 and zeros outside.
/// `d` describes x and has even sides; y has half of them.
pub(crate) fn down(x: &[f32], d: Dims, filter: &[f32], scale: f32) -> Buffer {
    let (h, w, c) = (d.height / 2, d.width / 2, d.channels);
    let pad = (filter.len() - 1) / 2;
    build(d.batch * h * w * c, w * c, |start, out| {
        let row = start / (w * c);
        let (n, i) = (row / h, row % h);
        out.fill(0.0);
        for (a, fa) in filter.iter().enumerate() {
            let Some(y) = (2 * i + a).checked_sub(pad).filter(|&y| y < d.height) else { continue };
            let line = &x[(n * d.height + y) * d.width * c..][..d.width * c];
            for (j, pixel) in out.chunks_exact_mut(c).enumerate() {
                for (b, fb) in filter.iter().enumerate() {
                    let Some(column) = (2 * j + b).checked_sub(pad).filter(|&v| v < d.width) else {
                        continue;
                    };
                    add_pixel(pixel, &line[column * c..][..c], scale * fa * fb);
                }
            }
        }
    })
}

/// The transpose of [`down`]: `d` describes x, the result has twice its sides.
pub(crate) fn up(x: &[f32], d: Dims, filter: &[f32], scale: f32) -> Buffer {
    let (h, w, c) = (2 * d.height, 2 * d.width, d.channels);
    let pad = (filter.len() - 1) / 2;
    // Pixel u of the result takes tap a of pixel i where 2i + a - pad = u.
    let source = |u: usize, a: usize, size: usize| {
        let twice = (u + pad).checked_sub(a)?;
        (twice.is_multiple_of(2) && twice / 2 < size).then_some(twice / 2)
    };
    build(d.batch * h * w * c, w * c, |start, out| {
        let row = start / (w * c);
        let (n, u) = (row / h, row % h);
        out.fill(0.0);
        for (a, fa) in filter.iter().enumerate() {
            let Some(i) = source(u, a, d.height) else { continue };
            let line = &x[(n * d.height + i) * d.width * c..][..d.width * c];
            for (v, pixel) in out.chunks_exact_mut(c).enumerate() {
                for (b, fb) in filter.iter().enumerate() {
                    let Some(j) = source(v, b, d.width) else { continue };
                    add_pixel(pixel, &line[j * c..][..c], scale * fa * fb);
                }
            }
        }
    })
}
