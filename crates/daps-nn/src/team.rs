//! Threads that stay awake between the loops of a network.
//!
//! A network is some hundred parallel loops, many shorter than the time in which an operating system wakes a thread. The
//! threads here spin for a moment after each loop, so that the next one begins at once, and sleep when none comes. One
//! loop runs at a time: a loop within a job runs on its thread alone, and another thread that finds the team busy takes
//! rayon's.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, TryLockError};

/// How often a helper looks for the next loop before it sleeps: about a fifth of a millisecond.
const LOOKS: usize = 10_000;
/// How often one who waits for others looks before it offers its core to them.
const PATIENCE: usize = 2_000;

/// A loop: `run(i)` for every i below `jobs`, with at most `helpers` threads beside the caller.
#[derive(Clone, Copy)]
struct Work {
    run: *const (dyn Fn(usize) + Sync),
    jobs: usize,
    helpers: usize,
}

struct Team {
    /// Held by the thread whose loop runs; the number of helpers that were started.
    leader: Mutex<usize>,
    work: UnsafeCell<Option<Work>>,
    /// Whether helpers may take jobs. `work` changes only while it is false and `inside` is zero.
    open: AtomicBool,
    /// Loops begun so far, so that a helper joins each once.
    rounds: AtomicUsize,
    /// The next job to be taken.
    next: AtomicUsize,
    /// Helpers that may be looking at `work`.
    inside: AtomicUsize,
    failed: AtomicBool,
    asleep: Mutex<usize>,
    bell: Condvar,
}

// SAFETY: `work` is written by the leader alone, while no helper reads it (see `open`); what it points to is shared
// between threads only as the `Sync` closure that it is.
unsafe impl Sync for Team {}

static TEAM: Team = Team {
    leader: Mutex::new(0),
    work: UnsafeCell::new(None),
    open: AtomicBool::new(false),
    rounds: AtomicUsize::new(0),
    next: AtomicUsize::new(0),
    inside: AtomicUsize::new(0),
    failed: AtomicBool::new(false),
    asleep: Mutex::new(0),
    bell: Condvar::new(),
};

thread_local! {
    /// Whether this thread runs a job of the team.
    static WORKS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a job of the team: a loop within it has no threads left.
pub(crate) fn works() -> bool {
    WORKS.get()
}

/// Runs `job(i)` for every i below `jobs` on this thread and up to `threads` - 1 others; gives false, and runs nothing,
/// if the team is busy.
pub(crate) fn run(threads: usize, jobs: usize, job: &(dyn Fn(usize) + Sync)) -> bool {
    let mut started = match TEAM.leader.try_lock() {
        Ok(started) => started,
        // A job that panicked left nothing half done here.
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    let helpers = (threads - 1).min(jobs - 1);
    while *started < helpers {
        let index = *started;
        let name = format!("daps-nn-{index}");
        if std::thread::Builder::new().name(name).spawn(move || TEAM.help(index)).is_err() {
            break;
        }
        *started += 1;
    }
    // SAFETY: only the lifetime changes; `Round` waits until nobody looks at it any more before this function ends.
    let run = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(job) };
    let work = Work { run, jobs, helpers };
    // SAFETY: this thread leads, and no helper is inside: the last round waited for that.
    unsafe { *TEAM.work.get() = Some(work) };
    TEAM.next.store(0, Ordering::Relaxed);
    TEAM.failed.store(false, Ordering::Relaxed);
    let round = Round;
    TEAM.open.store(true, Ordering::SeqCst);
    TEAM.rounds.fetch_add(1, Ordering::SeqCst);
    if *lock(&TEAM.asleep) > 0 {
        TEAM.bell.notify_all();
    }
    TEAM.take_jobs(work);
    drop(round);
    assert!(!TEAM.failed.load(Ordering::Relaxed), "a job of a parallel loop panicked");
    true
}

/// Marks this thread while it lives, also through a panic.
struct Working;

impl Working {
    fn begin() -> Self {
        WORKS.set(true);
        Self
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        WORKS.set(false);
    }
}

/// An open loop; ends it, also when the leader's own job panics.
struct Round;

impl Drop for Round {
    fn drop(&mut self) {
        TEAM.open.store(false, Ordering::SeqCst);
        let mut looks = 0;
        while TEAM.inside.load(Ordering::SeqCst) > 0 {
            wait(&mut looks);
        }
    }
}

impl Team {
    fn take_jobs(&self, work: Work) {
        let _working = Working::begin();
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= work.jobs {
                return;
            }
            // SAFETY: the round is open, or its leader waits for this helper: the closure is alive.
            unsafe { (*work.run)(i) };
        }
    }

    /// A helper's life.
    fn help(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_round(seen);
            self.inside.fetch_add(1, Ordering::SeqCst);
            if self.open.load(Ordering::SeqCst) {
                // SAFETY: entering came before seeing the round open, so its leader waits for this helper to leave.
                if let Some(work) = unsafe { *self.work.get() }
                    && index < work.helpers
                    && catch_unwind(AssertUnwindSafe(|| self.take_jobs(work))).is_err()
                {
                    self.failed.store(true, Ordering::Relaxed);
                }
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits until a round later than `seen` begins; gives its number.
    fn next_round(&self, seen: usize) -> usize {
        for _ in 0..LOOKS {
            let now = self.rounds.load(Ordering::SeqCst);
            if now != seen {
                return now;
            }
            std::hint::spin_loop();
        }
        let mut asleep = lock(&self.asleep);
        *asleep += 1;
        loop {
            // The leader counts the round before it asks who is asleep.
            let now = self.rounds.load(Ordering::SeqCst);
            if now != seen {
                *asleep -= 1;
                return now;
            }
            asleep = self.bell.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn wait(looks: &mut usize) {
    *looks += 1;
    if *looks < PATIENCE {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

fn lock(mutex: &Mutex<usize>) -> std::sync::MutexGuard<'_, usize> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::par;

    /// Each job once, from loops of any size, one after the other, nested, and from several threads at once.
    #[test]
    fn every_job_runs_once() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("thread pool");
        let count = |jobs: usize| {
            let counts: Vec<AtomicUsize> = (0..jobs).map(|_| AtomicUsize::new(0)).collect();
            par::for_each(jobs, |i| _ = counts[i].fetch_add(1, Ordering::Relaxed));
            counts.into_iter().all(|count| count.into_inner() == 1)
        };
        let all = || (0..2000).all(|i| count(i % 7));
        assert!(pool.install(all));
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| pool.install(all))).collect();
            assert!(threads.into_iter().all(|thread| thread.join().is_ok_and(|fine| fine)));
        });
        let nested = AtomicUsize::new(0);
        pool.install(|| {
            par::for_each(5, |_| par::for_each(4, |_| _ = nested.fetch_add(1, Ordering::Relaxed)));
        });
        assert_eq!(nested.into_inner(), 20);
    }

    /// A panic of any job reaches the caller, whoever ran it, and the next loop works.
    #[test]
    fn panics_reach_the_caller() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("thread pool");
        for bad in 0..8 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.install(|| par::for_each(8, |i| assert!(i != bad, "job {i}")));
            }));
            assert!(result.is_err(), "job {bad}");
            let sum = AtomicUsize::new(0);
            pool.install(|| par::for_each(8, |i| _ = sum.fetch_add(i, Ordering::Relaxed)));
            assert_eq!(sum.into_inner(), 28);
        }
    }
}
