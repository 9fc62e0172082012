//! Helpers for tests: reproducible normal numbers and comparisons.

/// `n` standard normal numbers from a seed (splitmix64 and Box-Muller).
pub fn normal(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1);
    let mut uniform = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let one = |u: f64, v: f64| (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    (0..n).map(|_| one(uniform(), uniform()) as f32).collect()
}

/// Largest absolute difference over the largest expected magnitude (at least 1e-3, so that zeros compare).
pub fn relative_max(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
    largest(got.iter().zip(expected).map(|(&g, &e)| (f64::from(g) - e).abs())) / scale
}

/// The largest of some numbers; one that is none is larger than any.
pub fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |m, v| if v.is_nan() { f64::INFINITY } else { m.max(v) })
}

/// Panics unless [`relative_max`] is at most `tolerance`.
#[track_caller]
pub fn assert_close(got: &[f32], expected: &[f64], tolerance: f64) {
    let error = relative_max(got, expected);
    assert!(error <= tolerance, "relative max error {error:.2e} > {tolerance:.1e}");
}
