//! The images of metrics.json and its values, for every test that compares with it; the hash is make_metrics.py's.

use serde_json::Value;

/// metrics.json.
pub fn golden() -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/metrics.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A list of numbers.
pub fn list(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// Numbers in [0, 1): the 32-bit finaliser of murmur3 over a counter.
pub fn hashed(seed: u64, n: usize) -> Vec<f64> {
    let mix = |k: usize| {
        let mut x = (k as u64).wrapping_add(seed * 0x9E37_79B9) as u32;
        x ^= x >> 16;
        x = x.wrapping_mul(0x85EB_CA6B);
        x ^= x >> 13;
        x = x.wrapping_mul(0xC2B2_AE35);
        x ^= x >> 16;
        f64::from(x) / 4_294_967_296.0
    };
    (0..n).map(mix).collect()
}

/// Numbers in [-bound, bound).
#[allow(dead_code)]
pub fn signed(seed: u64, n: usize, bound: f64) -> Vec<f64> {
    hashed(seed, n).iter().map(|u| (2.0 * u - 1.0) * bound).collect()
}

/// An image and a noisier one, both in [0, 1].
pub fn pair(shape: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let n = shape.iter().product();
    let a = hashed(1, n);
    let b = a.iter().zip(hashed(2, n)).map(|(a, u)| 0.7 * a + 0.3 * u).collect();
    (a, b)
}

/// Every 64th of 2048 features, and the mean and mean square of all, per image.
pub fn inception_agrees(features: &[f64], golden: &Value) {
    for (i, row) in features.chunks(2048).enumerate() {
        let size = list(&golden["square"])[i].sqrt();
        for (found, expected) in row.iter().step_by(64).zip(list(&golden["every_64th"][i])) {
            assert!((found - expected).abs() < 1e-3 * size, "{found} vs {expected}");
        }
        let mean = row.iter().sum::<f64>() / 2048.0;
        assert!((mean - list(&golden["mean"])[i]).abs() < 1e-3 * size, "{mean}");
        let square = row.iter().map(|v| v * v).sum::<f64>() / 2048.0;
        assert!((square.sqrt() / size - 1.0).abs() < 1e-3, "{square}");
    }
}
