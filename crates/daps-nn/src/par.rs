//! Parallel loops over disjoint parts of one output.
#![allow(unsafe_code)]

use crate::team;
use rayon::prelude::*;
use std::marker::PhantomData;

/// A slice that threads may write at once because each writes its own part. The slice stays borrowed as long as it lives.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    start: *mut f32,
    len: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: safe code gets nothing but a pointer out of it; who uses the pointer promises that no two threads touch the same
// element (see each use).
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }
    /// The first element.
    pub(crate) fn ptr(self) -> *mut f32 {
        self.start
    }
    /// The element at `index`, or the end.
    ///
    /// # Safety
    /// `index` is at most the slice's length.
    pub(crate) unsafe fn at(self, index: usize) -> *mut f32 {
        debug_assert!(index <= self.len, "{index} of {}", self.len);
        // SAFETY: the caller promises that it is inside the slice or its end.
        unsafe { self.start.add(index) }
    }
    /// A part of the slice.
    ///
    /// # Safety
    /// `start + len` is at most the slice's length, and nobody else touches the range while the part lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(self, start: usize, len: usize) -> &'a mut [f32] {
        debug_assert!(start + len <= self.len, "{start} + {len} of {}", self.len);
        // SAFETY: the caller promises that the range is inside and its own; the borrow keeps the memory alive.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
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
