//! Synthetic problems for magnetic resonance imaging: smooth coil maps and undersampled line masks.

use candle_core::{Device, Tensor};
use daps_core::{Error, Result, open01};

use crate::rows::{choose_distinct, instance_stream};

/// Coils, at most: scanners have up to about a hundred.
const MOST_COILS: usize = 256;

/// Smooth maps `[1, coils, 2, height, width]` of coils around the image: sensitivity falls with the distance to the coil, the
/// phase varies slowly, and Σ |S|² = 1 at every pixel.
pub fn coil_maps(coils: usize, height: usize, width: usize, seed: u64) -> Result<Tensor> {
    if coils > MOST_COILS {
        return Err(Error::invalid("mri coils", format!("at most {MOST_COILS}"), coils));
    }
    if coils * height * width == 0 {
        let got = format!("{coils} coils of {height} x {width}");
        return Err(Error::invalid("coil maps", "at least one coil and one pixel", got));
    }
    let mut rng = instance_stream(seed, 0, 4);
    let mut uniform = |low: f64, high: f64| low + (high - low) * open01(&mut rng);
    let turn = uniform(0.0, 1.0);
    let pixels = height * width;
    let mut values = vec![0.0; coils * 2 * pixels];
    for (c, plane) in values.chunks_mut(2 * pixels).enumerate() {
        let angle = std::f64::consts::TAU * (turn + c as f64 / coils as f64);
        let distance = uniform(1.1, 1.4);
        let (cy, cx) = (distance * angle.sin(), distance * angle.cos());
        let (phase, slope_y, slope_x) = (uniform(-3.1, 3.1), uniform(-1.5, 1.5), uniform(-1.5, 1.5));
        let (re, im) = plane.split_at_mut(pixels);
        for p in 0..pixels {
            let y = 2.0 * (p / width) as f64 / height as f64 - 1.0;
            let x = 2.0 * (p % width) as f64 / width as f64 - 1.0;
            let strength = 1.0 / (0.3 + (y - cy).powi(2) + (x - cx).powi(2));
            let angle = phase + slope_y * y + slope_x * x;
            (re[p], im[p]) = (strength * angle.cos(), strength * angle.sin());
        }
    }
    for p in 0..pixels {
        let energy: f64 = values.iter().skip(p).step_by(pixels).map(|v| v * v).sum();
        let scale = 1.0 / energy.sqrt();
        values.iter_mut().skip(p).step_by(pixels).for_each(|v| *v *= scale);
    }
    Ok(Tensor::from_vec(values, (1, coils, 2, height, width), &Device::Cpu)?)
}

/// A mask `[1, 1, width]` of whole columns: the `center` fraction around frequency 0 (the autocalibration lines) and random
/// others, `width / acceleration` columns in all.
pub fn line_mask(width: usize, acceleration: f64, center: f64, seed: u64) -> Result<Tensor> {
    if !(acceleration.is_finite() && acceleration >= 1.0) {
        return Err(Error::invalid("mri acceleration", "a finite number of at least 1", acceleration));
    }
    if !(0.0..=1.0).contains(&center) {
        return Err(Error::invalid("mri center fraction", "a number from 0 to 1", center));
    }
    let lines = ((width as f64 / acceleration).round() as usize).clamp(1, width);
    let middle = ((center * width as f64).round() as usize).clamp(1, lines);
    let first = width / 2 - middle / 2;
    let mut mask = vec![0u8; width];
    mask[first..first + middle].fill(1);
    let others: Vec<usize> = (0..width).filter(|k| mask[*k] == 0).collect();
    let mut rng = instance_stream(seed, 0, 5);
    for k in choose_distinct(&mut rng, others.len(), lines - middle) {
        mask[others[k]] = 1;
    }
    Ok(Tensor::from_vec(mask, (1, 1, width), &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_have_unit_energy_at_every_pixel() {
        let maps = coil_maps(5, 6, 8, 1).unwrap();
        let energy = maps.sqr().unwrap().sum((1, 2)).unwrap();
        for v in daps_core::tensors::to_f64(&energy).unwrap() {
            assert!((v - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn masks_have_the_lines_they_promise() {
        for (acceleration, lines) in [(4.0, 16), (8.0, 8), (1.0, 64)] {
            let mask = line_mask(64, acceleration, 0.08, 3).unwrap();
            let mask = daps_core::tensors::to_f64(&mask).unwrap();
            assert_eq!(mask.iter().sum::<f64>() as usize, lines);
            assert!((30..35).all(|k| mask[k] == 1.0), "autocalibration lines");
        }
        assert!(line_mask(64, 0.5, 0.1, 0).is_err() && line_mask(64, 4.0, f64::NAN, 0).is_err());
        assert!(coil_maps(0, 4, 4, 0).is_err());
        // Times 2 x 4 x 4, the last one is 0 in 64 bits.
        for coils in [1_000_000_000_000, 1 << 59] {
            let error = coil_maps(coils, 4, 4, 0).unwrap_err().to_string();
            assert_eq!(error, format!("mri coils: expected at most 256, got {coils}"));
        }
    }
}
