//! Parallel loops over disjoint parts of one output.
#![allow(unsafe_code)]

use crate::team;
use rayon::prelude::*;

/// A pointer that threads may share because each writes its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared(*mut f32);

// SAFETY: the holder promises that no two threads write the same element (see each use).
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(slice: &mut [f32]) -> Self {
        Self(slice.as_mut_ptr())
    }
    pub(crate) fn ptr(self) -> *mut f32 {
        self.0
    }
    /// # Safety
    /// `start + len` must be inside the allocation, and no other thread may touch the range meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Runs `job(i)` for `i` in `0..jobs`, on all threads. What a job computes must not depend on which thread runs it.
pub(crate) fn for_each(jobs: usize, job: impl Fn(usize) + Send + Sync) {
    let threads = rayon::current_num_threads();
    if jobs <= 1 || threads == 1 || team::works() {
        (0..jobs).for_each(job);
    } else if !team::run(threads, jobs, &job) {
        (0..jobs).into_par_iter().with_max_len(1).for_each(job);
    }
}

/// Splits `0..len` into parts of `chunk` (the last may be shorter) and runs `job(start, end)` on all threads.
pub(crate) fn chunks(len: usize, chunk: usize, job: impl Fn(usize, usize) + Send + Sync) {
    let chunk = chunk.max(1);
    for_each(len.div_ceil(chunk), |i| job(i * chunk, ((i + 1) * chunk).min(len)));
}
