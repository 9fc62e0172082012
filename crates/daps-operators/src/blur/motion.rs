//! Random camera shakes: a walk with inertia, drawn into a kernel.

use daps_core::{Error, Result, fill_normal, open01};

use super::BlurKernel;
use super::kernel::check_side;
use crate::rows::instance_stream;

/// Points of a walk.
const STEPS: usize = 2000;

/// A motion kernel of side `size` for problem `row` under `seed`. At intensity 0 the camera moves on a straight line; up to
/// 1 the path turns, trembles and jerks more and more.
pub fn motion_kernel(size: usize, intensity: f64, seed: u64, row: u64) -> Result<BlurKernel> {
    if size == 0 {
        return Err(Error::invalid("motion kernel size", "a positive number", size));
    }
    check_side("motion kernel size", size)?;
    if !(0.0..=1.0).contains(&intensity) {
        return Err(Error::invalid("motion kernel intensity", "a number from 0 to 1", intensity));
    }
    let path = walk(intensity, seed, row);
    let values = draw(&path, size);
    BlurKernel::new(&values, size, size)
}

/// A walk of unit speed whose direction drifts (a random curvature), trembles, and now and then jumps.
fn walk(intensity: f64, seed: u64, row: u64) -> Vec<[f64; 2]> {
    let mut rng = instance_stream(seed, row, 3);
    let mut direction = std::f64::consts::TAU * open01(&mut rng);
    let mut noise = vec![0.0; 2 * STEPS];
    fill_normal(&mut rng, &mut noise);
    let dt = 1.0 / STEPS as f64;
    // Curvature follows an Ornstein–Uhlenbeck process with a memory of a tenth of the exposure.
    let (memory, strength) = (0.1, 12.0 * intensity);
    let (mut position, mut curvature) = ([0.0; 2], strength * noise[0]);
    let mut path = Vec::with_capacity(STEPS);
    for step in noise.chunks(2) {
        path.push(position);
        curvature += -curvature * dt / memory + strength * (2.0 * dt / memory).sqrt() * step[0];
        direction += curvature * dt + intensity * 1.5 * dt.sqrt() * step[1];
        // One jerk per exposure on average at full intensity.
        if open01(&mut rng) < intensity * dt {
            direction += std::f64::consts::PI * (0.5 + open01(&mut rng));
        }
        position[0] += direction.sin() * dt;
        position[1] += direction.cos() * dt;
    }
    path
}

/// Spreads equal weights along the path, moved to the middle and scaled to fit, over the four nearest elements each.
fn draw(path: &[[f64; 2]], size: usize) -> Vec<f64> {
    let bounds = |axis: usize| {
        let values = path.iter().map(move |p| p[axis]);
        (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max))
    };
    let (y, x) = (bounds(0), bounds(1));
    let extent = (y.1 - y.0).max(x.1 - x.0).max(f64::MIN_POSITIVE);
    let room = (size - 1) as f64;
    // Two thirds of the kernel's side: shakes of full extent would always touch its edge.
    let scale = (room / 1.5) / extent;
    let place = |p: f64, bounds: (f64, f64)| (p - 0.5 * (bounds.0 + bounds.1)) * scale + 0.5 * room;
    let mut values = vec![0.0; size * size];
    for point in path {
        let (py, px) = (place(point[0], y), place(point[1], x));
        let (i, j) = (py.floor() as usize, px.floor() as usize);
        let (fy, fx) = (py - i as f64, px - j as f64);
        for (di, dj, w) in [
            (0, 0, (1.0 - fy) * (1.0 - fx)),
            (0, 1, (1.0 - fy) * fx),
            (1, 0, fy * (1.0 - fx)),
            (1, 1, fy * fx),
        ] {
            if i + di < size && j + dj < size {
                values[(i + di) * size + j + dj] += w;
            }
        }
    }
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_sparse_normalised_and_follow_the_seed() {
        let kernel = |seed, row| motion_kernel(61, 0.5, seed, row).unwrap();
        for seed in 0..50 {
            let k = kernel(seed, 0);
            assert!((k.values.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!(k.values.iter().all(|v| *v >= 0.0));
            let used = k.taps().len();
            assert!((30..400).contains(&used), "{used} taps");
        }
        assert_ne!(kernel(0, 0), kernel(1, 0));
        assert_ne!(kernel(0, 0), kernel(0, 1));
        assert_eq!(kernel(4, 2), kernel(4, 2));
        assert_eq!(motion_kernel(1, 0.5, 0, 0).unwrap().values, [1.0]);
        assert!(motion_kernel(9, 1.5, 0, 0).is_err() && motion_kernel(0, 0.5, 0, 0).is_err());
        // The square of the last one is 0 in 64 bits.
        for size in [100_000, 1 << 32] {
            let error = motion_kernel(size, 0.5, 0, 0).unwrap_err().to_string();
            assert_eq!(error, format!("motion kernel size: expected at most 2047, got {size}"));
        }
    }
}
