//! Blur kernels and what they do at the border of an image.

use daps_core::{Error, Result};
use faer::Mat;
use serde::{Deserialize, Serialize};

use crate::kronecker::Svd;
use crate::taps::Taps;

/// Second singular values below this fraction of the first are rounding: the kernel counts as separable. A kernel that was
/// ever stored in f32 has them at about 1e-8.
const SEPARABLE: f64 = 1e-6;

/// The largest side of a kernel that is made from numbers: in the paper's proportion, 61 of 256, that of an image of 8,500
/// pixels a side, which is more than any picture that is read has. Whether it fits its image is judged when the blur is built.
const MOST_SIDE: usize = 2047;

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
pub struct Kernel {
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Rows above the centre.
    pub(crate) above: usize,
    /// Columns left of the centre.
    pub(crate) left: usize,
    pub(crate) values: Vec<f64>,
}

impl Kernel {
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

/// Refuses a side whose square would take more memory than any blur needs, before it takes it.
pub(super) fn check_side(what: &str, size: usize) -> Result<()> {
    if size > MOST_SIDE {
        return Err(Error::invalid(what, format!("at most {MOST_SIDE}"), size));
    }
    Ok(())
}

/// A Gaussian kernel of odd side `size`, cut off at four standard deviations (as scipy does) and normalised.
pub fn gaussian_kernel(size: usize, std: f64) -> Result<Kernel> {
    if size.is_multiple_of(2) {
        return Err(Error::invalid("Gaussian kernel size", "an odd number", size));
    }
    check_side("Gaussian kernel size", size)?;
    if !(std.is_finite() && std > 0.0) {
        return Err(Error::invalid("Gaussian kernel std", "a positive finite number", std));
    }
    let center = (size / 2) as isize;
    let reach = ((4.0 * std + 0.5) as usize).min(size / 2) as isize;
    let weight = |d: isize| {
        if d.abs() > reach { 0.0 } else { (-0.5 * (d as f64 / std).powi(2)).exp() }
    };
    let line: Vec<f64> = (0..size as isize).map(|i| weight(i - center)).collect();
    let sum: f64 = line.iter().sum();
    let values: Vec<f64> = line.iter().flat_map(|a| line.iter().map(move |b| a * b / (sum * sum))).collect();
    Kernel::new(&values, size, size)
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
        let corner = Kernel::new(&[0.0, 0.0, 0.0, 0.0, 0.0, 1.0], 2, 3).unwrap();
        assert_eq!((corner.height, corner.width, corner.above, corner.left), (1, 2, 0, 0));
    }

    #[test]
    fn factors_multiply_to_the_kernel_and_a_cross_has_none() {
        let kernel = Kernel::new(&[1.0, -2.0, 0.5, 2.0, -4.0, 1.0], 2, 3).unwrap();
        let (column, row) = kernel.factors().unwrap().unwrap();
        for (i, v) in kernel.values.iter().enumerate() {
            assert!((column[i / 3] * row[i % 3] - v).abs() < 1e-14);
        }
        let cross = [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0];
        assert!(Kernel::new(&cross, 3, 3).unwrap().factors().unwrap().is_none());
    }

    #[test]
    fn bad_kernels_are_refused() {
        assert!(Kernel::new(&[f64::NAN], 1, 1).is_err());
        assert!(Kernel::new(&[0.0], 1, 1).is_err());
        assert!(Kernel::new(&[1.0], 1, 2).is_err());
        let wide = Kernel::new(&[1.0; 9], 1, 9).unwrap();
        let error = wide.check_fits(Border::Reflect, 8, 4).unwrap_err().to_string();
        assert!(error.contains("below the image's width 4"), "{error}");
        assert!(wide.check_fits(Border::Circular, 8, 4).is_ok());
        assert!(gaussian_kernel(4, 1.0).is_err() && gaussian_kernel(5, 0.0).is_err());
        let error = gaussian_kernel(100_001, 1.5).unwrap_err().to_string();
        assert_eq!(error, "Gaussian kernel size: expected at most 2047, got 100001");
        assert!(gaussian_kernel(MOST_SIDE, 1.5).is_ok());
        assert!(
            Kernel::new(&[], 1 << 33, 1 << 33).is_err() && Kernel::new(&[1.0], 1 << 33, 1 << 33).is_err()
        );
    }
}
