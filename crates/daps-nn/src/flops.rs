//! How much arithmetic the layers did, counted as if convolutions were computed directly.

use std::sync::atomic::{AtomicU64, Ordering};

static DONE: AtomicU64 = AtomicU64::new(0);

/// Additions and multiplications of convolutions, linear maps and attention on the CPU since the process started,
/// forward passes only.
pub fn done() -> u64 {
    DONE.load(Ordering::Relaxed)
}

/// Counts `products` multiplications, each with its addition.
pub(crate) fn count(products: usize) {
    DONE.fetch_add(2 * products as u64, Ordering::Relaxed);
}
