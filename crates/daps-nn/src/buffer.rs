//! Cache-line aligned `f32` buffers that go back to a pool when dropped.
//!
//! On a fresh buffer most of the time of a memory-bound operation is page faults, so a network that runs again
//! and again takes its activations, gradients and scratch from here.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

const FLOATS: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; FLOATS]);

/// A block of floats. What it holds when taken is unspecified (but initialised).
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

struct Pool {
    free: BTreeMap<usize, Vec<Vec<Line>>>,
    idle_lines: usize,
    /// Lines of all buffers, taken or idle, and the most that they were since idle ones were last released.
    held_lines: usize,
    most_lines: usize,
}

static POOL: Mutex<Pool> =
    Mutex::new(Pool { free: BTreeMap::new(), idle_lines: 0, held_lines: 0, most_lines: 0 });

/// Idle memory that the pool keeps, in bytes; what comes back above it is freed.
const MAX_IDLE: usize = 4 << 30;
/// Smaller blocks are left to the allocator's own free lists.
const MIN_POOLED_LINES: usize = 64;

fn pool() -> std::sync::MutexGuard<'static, Pool> {
    // The pool holds no invariant that a panic could break.
    POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Rounds up so that near sizes share a free list: an eighth of the power of two below.
fn size_class(lines: usize) -> usize {
    let step = (lines.max(1).next_power_of_two() / 16).max(1);
    lines.max(1).div_ceil(step) * step
}

impl Buffer {
    /// Takes a buffer of `len` floats with unspecified contents.
    pub fn take(len: usize) -> Self {
        let class = size_class(len.div_ceil(FLOATS));
        let reused = {
            let mut pool = pool();
            let fit = pool.free.range(class..=class + class / 4).next().map(|(size, _)| *size);
            fit.and_then(|size| {
                let list = pool.free.get_mut(&size)?;
                let lines = list.pop();
                if list.is_empty() {
                    pool.free.remove(&size);
                }
                pool.idle_lines -= size;
                lines
            })
            .or_else(|| {
                pool.held_lines += class;
                pool.most_lines = pool.most_lines.max(pool.held_lines);
                None
            })
        };
        let lines = reused.unwrap_or_else(|| vec![Line([0.0; FLOATS]); class]);
        Self { lines, len }
    }

    /// Takes a buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::take(len);
        buffer.fill(0.0);
        buffer
    }

    /// Copies a slice.
    pub fn from_slice(values: &[f32]) -> Self {
        let mut buffer = Self::take(values.len());
        buffer.copy_from_slice(values);
        buffer
    }
}

/// Frees all idle buffers.
pub fn release_idle() {
    let mut pool = pool();
    pool.free.clear();
    pool.held_lines -= pool.idle_lines;
    pool.most_lines = pool.held_lines;
    pool.idle_lines = 0;
}

/// The most bytes that buffers took at once, idle ones too, since [`release_idle`] was last called.
pub fn most_held() -> usize {
    pool().most_lines * size_of::<Line>()
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let size = lines.len();
        let mut pool = pool();
        if size >= MIN_POOLED_LINES && (pool.idle_lines + size) * size_of::<Line>() <= MAX_IDLE {
            pool.idle_lines += size;
            pool.free.entry(size).or_default().push(lines);
        } else {
            pool.held_lines -= size;
        }
    }
}

impl Deref for Buffer {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: `lines` holds at least `len` initialised floats, contiguous because `Line` is repr(C).
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} floats)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_cover_and_waste_little() {
        for lines in 1..5000 {
            let class = size_class(lines);
            assert!(class >= lines && class <= lines + lines / 7 + 1, "{lines} -> {class}");
        }
    }

    #[test]
    fn buffers_are_aligned_and_hold_what_is_written() {
        let mut b = Buffer::zeroed(1001);
        assert_eq!(b.as_ptr() as usize % 64, 0);
        assert!(b.iter().all(|&x| x == 0.0));
        b[1000] = 3.0;
        assert_eq!(b[1000], 3.0);
        assert_eq!(b.len(), 1001);
    }
}
