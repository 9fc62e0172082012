//! Blur kernels and what they do at the border of an image.

use daps_core::{Error, Result};
use faer::Mat;
use serde::{Deserialize, Serialize};

use crate::kronecker::Svd;
use crate::taps::Taps;

/// Second singular values below this fraction of the first are rounding: the kernel counts as separable. A kernel that was
/// ever stored in f32 has them at about 1e-8.
const SEPARABLE: f64 = 1e-6;

/// Differences below this fraction of the largest element are rounding: the kernel counts as symmetric.
const SYMMETRIC: f64 = 1e-9;

/// The largest side of a kernel that is made from numbers: in the paper's proportion, 61 of 256, that of an image of 8,500
/// pixels a side, which is more than any picture that is read has. Whether it fits its image is judged when the blur is built.
const MOST_SIDE: usize = 2047;

/// The largest standard deviation of a Gaussian kernel, in pixels: beyond it any kernel is flat, and folding would take long.
const WIDEST: f64 = 1e5;

/// What an image is beyond its border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Border {
    /// Mirrored at the outermost pixel, which is not repeated.
    #[default]
    Reflect,
    /// Periodic.
    Circular,
}

impl Border {
    /// The pixel that stands at position `p` of a line of `n`.
    pub(crate) fn source(self, p: isize, n: usize) -> usize {
        let last = n as isize - 1;
        let p = match self {
            Self::Circular => p.rem_euclid(n as isize),
            Self::Reflect if p < 0 => -p,
            Self::Reflect if p > last => 2 * last - p,
            Self::Reflect => p,
        };
        p as usize
    }

    /// Sources of the positions from `before` ahead of a line of `n` to `after` behind it.
    pub(crate) fn sources(self, n: usize, before: usize, after: usize) -> Vec<usize> {
        (-(before as isize)..(n + after) as isize).map(|p| self.source(p, n)).collect()
    }
}

/// A kernel: out[i, j] = Σ k[a, b] · x[i + a - height/2, j + b - width/2] (a correlation, as in neural networks). Of an even
/// side n, the centre is element n/2.
#[derive(Clone, Debug, PartialEq)]
pub struct BlurKernel {
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Rows above the centre.
    pub(crate) above: usize,
    /// Columns left of the centre.
    pub(crate) left: usize,
    pub(crate) values: Vec<f64>,
}

impl BlurKernel {
    /// From `height x width` values, row-major. Rows and columns of zeros around the edge cost nothing: they are cut off.
    pub fn new(values: &[f64], height: usize, width: usize) -> Result<Self> {
        if values.is_empty() || height.checked_mul(width) != Some(values.len()) {
            let expected = format!("{height} x {width} values, at least one");
            return Err(Error::invalid("blur kernel", expected, values.len()));
        }
        match values.iter().filter(|v| !v.is_finite()).count() {
            0 => {}
            count => {
                return Err(Error::NonFinite { what: "blur kernel".to_owned(), count, of: values.len() });
            }
        }
        if values.iter().all(|v| *v == 0.0) {
            return Err(Error::invalid("blur kernel", "a value that is not zero", "only zeros"));
        }
        let row_used = |i: usize| values[i * width..(i + 1) * width].iter().any(|v| *v != 0.0);
        let column_used = |j: usize| (0..height).any(|i| values[i * width + j] != 0.0);
        // The centre stays inside, so that offsets around it keep their meaning.
        let cut = |n: usize, used: &dyn Fn(usize) -> bool| {
            let first = (0..n / 2).find(|&i| used(i)).unwrap_or(n / 2);
            let last = (n / 2..n).rev().find(|&i| used(i)).unwrap_or(n / 2);
            first..last + 1
        };
        let (rows, columns) = (cut(height, &row_used), cut(width, &column_used));
        let kept = rows.clone().flat_map(|i| columns.clone().map(move |j| values[i * width + j]));
        Ok(Self {
            height: rows.len(),
            width: columns.len(),
            above: height / 2 - rows.start,
            left: width / 2 - columns.start,
            values: kept.collect(),
        })
    }

    pub(crate) fn below(&self) -> usize {
        self.height - 1 - self.above
    }

    pub(crate) fn right(&self) -> usize {
        self.width - 1 - self.left
    }

    /// `(row, column, weight)` of the values that are not zero.
    pub(crate) fn taps(&self) -> Vec<(usize, usize, f64)> {
        let all = self.values.iter().enumerate().map(|(i, &w)| (i / self.width, i % self.width, w));
        all.filter(|(_, _, w)| *w != 0.0).collect()
    }

    /// Refuses a kernel that reaches further than a reflected image does.
    pub(crate) fn check_fits(&self, border: Border, height: usize, width: usize) -> Result<()> {
        let reach = |before: usize, after: usize| before.max(after);
        for (axis, reach, side) in [
            ("height", reach(self.above, self.below()), height),
            ("width", reach(self.left, self.right()), width),
        ] {
            if border == Border::Reflect && reach >= side {
                let expected = format!("a reach below the image's {axis} {side} with reflect padding");
                return Err(Error::invalid("blur kernel", expected, reach));
            }
        }
        Ok(())
    }

    /// The column and the row whose outer product the kernel is, if it is one.
    pub(crate) fn factors(&self) -> Result<Option<(Vec<f64>, Vec<f64>)>> {
        let svd = Svd::new(&Mat::from_fn(self.height, self.width, |i, j| self.values[i * self.width + j]))?;
        let (s, modes) = (&svd.singular, svd.modes());
        if s.len() > 1 && s[1] > SEPARABLE * s[0] {
            return Ok(None);
        }
        let factor =
            |values: &[f64]| -> Vec<f64> { values.iter().step_by(modes).map(|v| v * s[0].sqrt()).collect() };
        Ok(Some((factor(svd.u.wide()), factor(svd.v.wide()))))
    }
}

/// The map of one axis: a line kernel with `before` elements ahead of its centre, borders folded in.
pub(crate) fn line_taps(kernel: &[f64], before: usize, border: Border, n: usize) -> Taps {
    let output = |i: usize| {
        let tap = |(k, &w): (usize, &f64)| (border.source(i as isize + k as isize - before as isize, n), w);
        kernel.iter().enumerate().map(tap).collect()
    };
    Taps::new(n, (0..n).map(output))
}

/// What the map of one axis with mirrored borders multiplies the waves cos(πki/(n-1)) by, where the line kernel is symmetric around its
/// centre.
pub(super) fn line_gains(kernel: &[f64], before: usize, n: usize) -> Option<Vec<f64>> {
    let reach = before.max(kernel.len() - 1 - before);
    let left = |d: usize| before.checked_sub(d).map_or(0.0, |at| kernel[at]);
    let right = |d: usize| kernel.get(before + d).copied().unwrap_or(0.0);
    let largest = kernel.iter().fold(0.0f64, |most, w| most.max(w.abs()));
    let is_symmetric = (1..=reach).all(|d| (left(d) - right(d)).abs() <= SYMMETRIC * largest);
    let angle = std::f64::consts::PI / (n.max(2) - 1) as f64;
    let gain = |k: usize| {
        (1..=reach).fold(kernel[before], |sum, d| sum + 2.0 * right(d) * (angle * (k * d) as f64).cos())
    };
    (n > 1 && is_symmetric).then(|| (0..n).map(gain).collect())
}

/// Refuses a side whose square would take more memory than any blur needs, before it takes it.
pub(super) fn check_side(what: &str, size: usize) -> Result<()> {
    if size > MOST_SIDE {
        return Err(Error::invalid(what, format!("at most {MOST_SIDE}"), size));
    }
    Ok(())
}

/// A Gaussian kernel of odd side `size` as scipy makes it from a single bright pixel: the Gaussian is cut off at four standard
/// deviations and normalised; what then lies beyond the kernel's box is folded back at its border.
pub fn gaussian_kernel(size: usize, std: f64) -> Result<BlurKernel> {
    if size.is_multiple_of(2) {
        return Err(Error::invalid("Gaussian kernel size", "an odd number", size));
    }
    check_side("Gaussian kernel size", size)?;
    if !(std > 0.0 && std <= WIDEST) {
        let expected = format!("a positive number up to {WIDEST}");
        return Err(Error::invalid("Gaussian kernel std", expected, std));
    }
    let (center, reach) = ((size / 2) as isize, (4.0 * std + 0.5) as isize);
    let weight = |d: isize| (-0.5 * (d as f64 / std).powi(2)).exp();
    let mut line = vec![0.0; size];
    let mut sum = 0.0;
    for d in -reach..=reach {
        line[folded(center + d, size)] += weight(d);
        sum += weight(d);
    }
    let values: Vec<f64> = line.iter().flat_map(|a| line.iter().map(move |b| a * b / (sum * sum))).collect();
    BlurKernel::new(&values, size, size)
}

/// The place in a line of `n` that position `p` is mirrored to, where the outermost place is repeated (d c b a | a b c d | d c b a).
fn folded(p: isize, n: usize) -> usize {
    let n = n as isize;
    let p = p.rem_euclid(2 * n);
    (if p < n { p } else { 2 * n - 1 - p }) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_cut_to_what_they_use() {
        let kernel = gaussian_kernel(61, 3.0).unwrap();
        assert_eq!((kernel.height, kernel.width, kernel.above, kernel.left), (25, 25, 12, 12));
        assert!((kernel.values.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(kernel.factors().unwrap().is_some());
        let corner = BlurKernel::new(&[0.0, 0.0, 0.0, 0.0, 0.0, 1.0], 2, 3).unwrap();
        assert_eq!((corner.height, corner.width, corner.above, corner.left), (1, 2, 0, 0));
    }

    /// Numbers of scipy 1.17.1: `gaussian_filter` of a pixel of 1 in the middle of zeros, the middle row up to its middle and the
    /// same columns of the first row. Tails fold up to ten times.
    #[test]
    fn tails_beyond_the_box_fold_back_as_in_scipy() {
        let cases: [(usize, f64, &[f64], &[f64]); 4] = [
            (
                9,
                5.0,
                &[
                    0.012349006725662696,
                    0.012373035387188942,
                    0.012412171942938565,
                    0.012445402865789887,
                    0.012458523827405013,
                ],
                &[
                    0.012240452337941733,
                    0.012264269774654706,
                    0.012303062299103572,
                    0.012336001104332507,
                    0.012349006725662696,
                ],
            ),
            (
                7,
                1.5,
                &[0.011593847478992784, 0.029354307913020666, 0.056665480144901886, 0.07073698608724026],
                &[0.0019002406916287023, 0.0048111940813427186, 0.009287516622685068, 0.011593847478992784],
            ),
            (
                3,
                7.5,
                &[0.11111241513318859, 0.11111632738308089],
                &[0.11110850302104108, 0.11111241513318858],
            ),
            // The outermost place of either tail folds.
            (
                5,
                0.8,
                &[0.011145946071790605, 0.11385317803856386, 0.24867820378576602],
                &[0.0004995697730802704, 0.005102985960173011, 0.011145946071790605],
            ),
        ];
        for (size, std, middle, first) in cases {
            let kernel = gaussian_kernel(size, std).unwrap();
            assert_eq!((kernel.height, kernel.width), (size, size));
            for (row, expected) in [(size / 2, middle), (0, first)] {
                for (column, expected) in expected.iter().enumerate() {
                    let found = kernel.values[row * size + column];
                    assert!((found - expected).abs() < 1e-15, "{size}, {std}: {found} vs {expected}");
                }
            }
        }
        assert!(gaussian_kernel(5, 1e9).is_err());
    }

    /// The plain formula, without folding.
    #[test]
    fn where_no_tail_folds_the_kernel_keeps_its_bits() {
        for (size, std) in [(61, 3.0), (15, 1.5), (7, 0.8), (9, 1.0)] {
            let center = (size / 2) as isize;
            let reach = (4.0f64 * std + 0.5) as isize;
            let weight =
                |d: isize| if d.abs() > reach { 0.0 } else { (-0.5 * (d as f64 / std).powi(2)).exp() };
            let line: Vec<f64> = (0..size as isize).map(|i| weight(i - center)).collect();
            let sum: f64 = line.iter().sum();
            let plain: Vec<f64> =
                line.iter().flat_map(|a| line.iter().map(move |b| a * b / (sum * sum))).collect();
            assert_eq!(gaussian_kernel(size, std).unwrap(), BlurKernel::new(&plain, size, size).unwrap());
        }
    }

    #[test]
    fn factors_multiply_to_the_kernel_and_a_cross_has_none() {
        let kernel = BlurKernel::new(&[1.0, -2.0, 0.5, 2.0, -4.0, 1.0], 2, 3).unwrap();
        let (column, row) = kernel.factors().unwrap().unwrap();
        for (i, v) in kernel.values.iter().enumerate() {
            assert!((column[i / 3] * row[i % 3] - v).abs() < 1e-14);
        }
        let cross = [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0];
        assert!(BlurKernel::new(&cross, 3, 3).unwrap().factors().unwrap().is_none());
    }

    /// A wave of a mirrored line comes out as itself, times its gain.
    #[test]
    fn gains_of_a_line_are_what_its_waves_are_multiplied_by() {
        let (kernel, n) = ([0.1, 0.25, 0.4, 0.25, 0.1], 6);
        let gains = line_gains(&kernel, 2, n).unwrap();
        let matrix = line_taps(&kernel, 2, Border::Reflect, n).dense();
        for (k, gain) in gains.iter().enumerate() {
            let wave = |i: usize| (std::f64::consts::PI * (k * i) as f64 / (n - 1) as f64).cos();
            for i in 0..n {
                let seen: f64 = (0..n).map(|j| matrix[(i, j)] * wave(j)).sum();
                assert!((seen - gain * wave(i)).abs() < 1e-14);
            }
        }
        assert!(line_gains(&[0.1, 0.2, 0.3], 1, n).is_none() && line_gains(&kernel, 1, n).is_none());
    }

    #[test]
    fn bad_kernels_are_refused() {
        assert!(BlurKernel::new(&[f64::NAN], 1, 1).is_err());
        assert!(BlurKernel::new(&[0.0], 1, 1).is_err());
        assert!(BlurKernel::new(&[1.0], 1, 2).is_err());
        let wide = BlurKernel::new(&[1.0; 9], 1, 9).unwrap();
        let error = wide.check_fits(Border::Reflect, 8, 4).unwrap_err().to_string();
        assert!(error.contains("below the image's width 4"), "{error}");
        assert!(wide.check_fits(Border::Circular, 8, 4).is_ok());
        assert!(gaussian_kernel(4, 1.0).is_err() && gaussian_kernel(5, 0.0).is_err());
        let error = gaussian_kernel(100_001, 1.5).unwrap_err().to_string();
        assert_eq!(error, "Gaussian kernel size: expected at most 2047, got 100001");
        assert!(gaussian_kernel(MOST_SIDE, 1.5).is_ok());
        assert!(
            BlurKernel::new(&[], 1 << 33, 1 << 33).is_err()
                && BlurKernel::new(&[1.0], 1 << 33, 1 << 33).is_err()
        );
    }
}
