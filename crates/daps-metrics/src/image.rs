//! Image quality: PSNR and SSIM as the piq package defines them.

use daps_core::{Error, Result};

use crate::finite;

/// Added to the mean square error, as piq does: equal images count 80 dB.
const LEAST_ERROR: f64 = 1e-8;

/// -10 log10(MSE/range² + 1e-8), as the piq package defines it. `range` is 2 for images in [-1, 1].
pub fn psnr(a: &[f64], b: &[f64], range: f64) -> Result<f64> {
    check_pair(a, b)?;
    if !(range.is_finite() && range > 0.0) {
        return Err(Error::invalid("range of the values", "a positive finite number", range));
    }
    let mse = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>() / a.len() as f64;
    Ok(-10.0 * (mse / (range * range) + LEAST_ERROR).log10())
}

fn check_pair(a: &[f64], b: &[f64]) -> Result<()> {
    if a.len() != b.len() || a.is_empty() {
        let got = format!("{} and {} values", a.len(), b.len());
        return Err(Error::invalid("images", "two of the same size, not empty", got));
    }
    finite("image", a)?;
    finite("image", b)
}

/// Side of SSIM's window.
const WINDOW: usize = 11;
/// Its standard deviation in pixels.
const WINDOW_STD: f64 = 1.5;
/// Squares of k1 = 0.01 and k2 = 0.03 for values in [0, 1].
const C: [f64; 2] = [1e-4, 9e-4];

/// Mean structural similarity of two `[channels, height, width]` images in [0, 1]: 11x11 Gaussian window of deviation
/// 1.5, no padding, averaged over positions and channels. An image whose smaller side is 384 pixels or more is first averaged over squares so that
/// it is near 256, as the package does by default.
pub fn ssim(a: &[f64], b: &[f64], shape: [usize; 3]) -> Result<f64> {
    check_pair(a, b)?;
    let [channels, height, width] = shape;
    if a.len() != channels * height * width {
        return Err(Error::invalid("image", format!("{shape:?} values"), a.len()));
    }
    let factor = ((height.min(width) as f64 / 256.0).round_ties_even() as usize).max(1);
    let (h, w) = (height / factor, width / factor);
    if h.min(w) < WINDOW {
        let got = format!("{h}x{w} pixels");
        return Err(Error::invalid("image for SSIM", format!("at least {WINDOW} pixels a side"), got));
    }
    let planes = a.chunks(height * width).zip(b.chunks(height * width));
    let each = planes
        .map(|(a, b)| plane_ssim(&shrink(a, height, width, factor), &shrink(b, height, width, factor), h, w));
    Ok(each.sum::<f64>() / channels as f64)
}

/// Means of `factor x factor` squares; what is left at the borders is dropped.
fn shrink(plane: &[f64], height: usize, width: usize, factor: usize) -> Vec<f64> {
    if factor == 1 {
        return plane.to_vec();
    }
    let (h, w) = (height / factor, width / factor);
    let mean = |y: usize, x: usize| {
        let rows = (y * factor..(y + 1) * factor).map(|y| &plane[y * width + x * factor..][..factor]);
        rows.flatten().sum::<f64>() / (factor * factor) as f64
    };
    (0..h * w).map(|i| mean(i / w, i % w)).collect()
}

fn plane_ssim(a: &[f64], b: &[f64], h: usize, w: usize) -> f64 {
    let product = |p: &[f64], q: &[f64]| p.iter().zip(q).map(|(p, q)| p * q).collect::<Vec<_>>();
    let maps =
        [a.to_vec(), b.to_vec(), product(a, a), product(b, b), product(a, b)].map(|m| window_means(&m, h, w));
    let [ma, mb, aa, bb, ab] = &maps;
    let at = |i: usize| {
        let (m_ab, m_aa, m_bb) = (ma[i] * mb[i], ma[i] * ma[i], mb[i] * mb[i]);
        let contrast = (2.0 * (ab[i] - m_ab) + C[1]) / (aa[i] - m_aa + bb[i] - m_bb + C[1]);
        (2.0 * m_ab + C[0]) / (m_aa + m_bb + C[0]) * contrast
    };
    (0..ma.len()).map(at).sum::<f64>() / ma.len() as f64
}

/// Gaussian means over all windows that lie within the image; the window is separable.
fn window_means(plane: &[f64], h: usize, w: usize) -> Vec<f64> {
    let middle = (WINDOW - 1) as f64 / 2.0;
    let raw: Vec<f64> =
        (0..WINDOW).map(|i| (-0.5 * ((i as f64 - middle) / WINDOW_STD).powi(2)).exp()).collect();
    let sum: f64 = raw.iter().sum();
    let kernel: Vec<f64> = raw.iter().map(|k| k / sum).collect();
    let (oh, ow) = (h - WINDOW + 1, w - WINDOW + 1);
    let mut across = vec![0.0; h * ow];
    for (out, row) in across.chunks_mut(ow).zip(plane.chunks(w)) {
        for (k, x) in kernel.iter().enumerate().map(|(i, k)| (k, &row[i..i + ow])) {
            out.iter_mut().zip(x).for_each(|(o, x)| *o += k * x);
        }
    }
    let mut out = vec![0.0; oh * ow];
    for (y, out) in out.chunks_mut(ow).enumerate() {
        for (i, k) in kernel.iter().enumerate() {
            let row = &across[(y + i) * ow..(y + i + 1) * ow];
            out.iter_mut().zip(row).for_each(|(o, x)| *o += k * x);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psnr_has_its_closed_form() {
        let expected = -10.0 * (0.01f64 + 1e-8).log10();
        assert!((psnr(&[0.0, 1.0], &[0.2, 0.8], 2.0).unwrap() - expected).abs() < 1e-12);
        assert!((psnr(&[1.0], &[1.0], 2.0).unwrap() - 80.0).abs() < 1e-12);
        assert!(psnr(&[1.0], &[1.0, 2.0], 2.0).is_err());
        assert!(psnr(&[f64::NAN], &[1.0], 2.0).is_err());
    }

    /// Constant images a and b: no contrast, so SSIM is (2ab + c1)/(a² + b² + c1).
    #[test]
    fn ssim_of_constants_is_the_luminance_term() {
        let (a, b) = (vec![0.3; 3 * 12 * 15], vec![0.7; 3 * 12 * 15]);
        let exact = (2.0 * 0.21 + 1e-4) / (0.09 + 0.49 + 1e-4);
        assert!((ssim(&a, &b, [3, 12, 15]).unwrap() - exact).abs() < 1e-9);
        assert!((ssim(&a, &a, [3, 12, 15]).unwrap() - 1.0).abs() < 1e-12);
        assert!(ssim(&a, &b, [3, 6, 30]).is_err());
    }

    /// One 11x11 window written out in two dimensions.
    #[test]
    fn ssim_of_one_window_is_the_formula() {
        let a: Vec<f64> = (0..121).map(|i| 0.5 + 0.4 * (f64::from(i) * 0.9).sin()).collect();
        let b: Vec<f64> = (0..121).map(|i| 0.4 + 0.3 * (f64::from(i) * 1.1).cos()).collect();
        let weight = |i: usize| {
            let (y, x) = ((i / 11) as f64 - 5.0, (i % 11) as f64 - 5.0);
            (-(y * y + x * x) / 4.5).exp()
        };
        let total: f64 = (0..121).map(weight).sum();
        let mean = |f: &dyn Fn(usize) -> f64| (0..121).map(|i| weight(i) * f(i)).sum::<f64>() / total;
        let (ma, mb) = (mean(&|i| a[i]), mean(&|i| b[i]));
        let va = mean(&|i| a[i] * a[i]) - ma * ma;
        let vb = mean(&|i| b[i] * b[i]) - mb * mb;
        let cov = mean(&|i| a[i] * b[i]) - ma * mb;
        let exact =
            (2.0 * ma * mb + 1e-4) * (2.0 * cov + 9e-4) / ((ma * ma + mb * mb + 1e-4) * (va + vb + 9e-4));
        assert!((ssim(&a, &b, [1, 11, 11]).unwrap() - exact).abs() < 1e-12);
    }

    #[test]
    fn large_images_are_averaged_first() {
        assert_eq!(shrink(&[1.0, 3.0, 9.0, 5.0, 7.0, 9.0], 2, 3, 2), [4.0]);
        let big: Vec<f64> = (0..512 * 512).map(|i| f64::from((i / 1024 + i % 512 / 2) % 7) / 7.0).collect();
        let other: Vec<f64> = big.iter().map(|v| 0.5 * v + 0.1).collect();
        let direct = ssim(&big, &other, [1, 512, 512]).unwrap();
        let (s, t) = (shrink(&big, 512, 512, 2), shrink(&other, 512, 512, 2));
        assert_eq!(direct, ssim(&s, &t, [1, 256, 256]).unwrap());
    }
}
