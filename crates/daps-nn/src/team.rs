//! Threads that stay awake between the loops of a network.
//!
//! A network is some hundred parallel loops, many shorter than the time in which an operating system wakes a thread. The
//! threads here spin for a moment after each loop, so that the next one begins at once, and sleep when none comes. One
//! loop runs at a time: a loop within a job runs on its thread alone, and another thread that finds the team busy takes
//! rayon's.
//!
//! `loom_models.rs` checks the synchronisation in every order of events (`scripts/loom.sh`).
#![allow(unsafe_code)]

mod sync;

#[cfg(all(loom, test))]
mod loom_models;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, PoisonError, TryLockError};
use sync::{
    AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, UnsafeCell, spin_loop, thread_flag, yield_now,
};

/// How often a helper looks for the next loop before it sleeps: about a fifth of a millisecond. A model needs one look
/// to have both ways.
const LOOKS: usize = if cfg!(all(loom, test)) { 1 } else { 10_000 };
/// How often one who waits for others looks before it offers its core to them.
const PATIENCE: usize = if cfg!(all(loom, test)) { 0 } else { 2_000 };
/// The bit of [`Team::door`] that lets helpers take jobs; the bits below it count the helpers inside.
const OPEN: usize = 1 << (usize::BITS - 1);

/// A loop: `run(i)` for every i below `jobs`, with at most `helpers` threads beside the caller.
#[derive(Clone, Copy)]
struct Work {
    run: *const (dyn Fn(usize) + Sync),
    jobs: usize,
    helpers: usize,
}

// SAFETY: another thread only calls the closure, through a shared reference, and the closure is `Sync`.
unsafe impl Send for Work {}

struct Team {
    /// Held by the thread whose loop runs; the number of helpers that were started.
    leader: Mutex<usize>,
    /// The loop that runs. Helpers read it between entering an open door and leaving; the leader writes it while the
    /// door is closed and those who found it open have left.
    work: UnsafeCell<Option<Work>>,
    /// [`OPEN`] while helpers may take jobs, and the number of helpers inside. Both are in one number, so that entering and
    /// asking is one step, and a leader that closes the door knows whom to wait for.
    door: AtomicUsize,
    /// Loops begun so far, so that a helper joins each once.
    rounds: AtomicUsize,
    /// The next job to be taken.
    next: AtomicUsize,
    /// Whether a job of a helper panicked, and with what.
    failed: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Mutex<usize>,
    bell: Condvar,
}

// SAFETY: every field but `work` is `Sync`. `work` is written by the leader alone, while no helper reads it (see there), and
// is `Send`.
unsafe impl Sync for Team {}

static TEAM: LazyLock<Team> = LazyLock::new(Team::new);

thread_flag! {
    /// Whether this thread runs a job of the team.
    WORKS
}

/// Whether this thread runs a job of the team: a loop within it has no threads left.
pub(crate) fn works() -> bool {
    WORKS.with(std::cell::Cell::get)
}

/// Runs `job(i)` for every i below `jobs` on this thread and up to `threads` - 1 others; gives false, and runs nothing,
/// if the team is busy. A panic of a job reaches the caller once no job runs any more.
pub(crate) fn run(threads: usize, jobs: usize, job: &(dyn Fn(usize) + Sync)) -> bool {
    let helpers = threads.saturating_sub(1).min(jobs.saturating_sub(1));
    TEAM.lead(helpers, jobs, job, |index| {
        let name = format!("daps-nn-{index}");
        let life = move || {
            let mut seen = 0;
            loop {
                seen = TEAM.help(index, seen);
            }
        };
        std::thread::Builder::new().name(name).spawn(life).is_ok()
    })
}

/// Marks this thread while it lives, also through a panic.
struct Working;

impl Working {
    fn begin() -> Self {
        WORKS.with(|works| works.set(true));
        Self
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        WORKS.with(|works| works.set(false));
    }
}

impl Team {
    fn new() -> Self {
        Self {
            leader: Mutex::new(0),
            work: UnsafeCell::new(None),
            door: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            panic: Mutex::new(None),
            asleep: Mutex::new(0),
            bell: Condvar::new(),
        }
    }

    /// Runs a loop with up to `helpers` helpers, or gives false if the team is busy. Helpers that do not live yet are started
    /// by `spawn(index)`, which says whether it could; a helper calls [`Team::help`] again and again.
    fn lead(
        &self,
        helpers: usize,
        jobs: usize,
        job: &(dyn Fn(usize) + Sync),
        mut spawn: impl FnMut(usize) -> bool,
    ) -> bool {
        let mut started = match self.leader.try_lock() {
            Ok(started) => started,
            // A thread that could not be named left nothing half done here.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        while *started < helpers && spawn(*started) {
            *started += 1;
        }
        // SAFETY: only the lifetime changes. Nobody calls the closure after `close`, which every way out of this function
        // goes through: nothing between here and there unwinds.
        let run =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(job) };
        let work = Work { run, jobs, helpers };
        // SAFETY: this thread leads, and whoever found the door open has left: the last round's `close` waited for that.
        self.work.with_mut(|place| unsafe { *place = Some(work) });
        self.next.store(0, Ordering::Relaxed);
        self.failed.store(false, Ordering::Relaxed);
        // Who enters after this sees all of the above.
        self.door.fetch_add(OPEN, Ordering::Release);
        self.rounds.fetch_add(1, Ordering::Release);
        if *lock(&self.asleep) > 0 {
            self.bell.notify_all();
        }
        // SAFETY: the closure is borrowed until this function ends.
        let own = catch_unwind(AssertUnwindSafe(|| unsafe { self.take_jobs(work) }));
        self.close();
        let helpers_panic = if self.failed.load(Ordering::Relaxed) { lock(&self.panic).take() } else { None };
        drop(started);
        if let Some(panic) = own.err().or(helpers_panic) {
            resume_unwind(panic);
        }
        true
    }

    /// Lets no more helpers take jobs, and waits for those who do.
    fn close(&self) {
        self.door.fetch_sub(OPEN, Ordering::Relaxed);
        let mut looks = 0;
        // What the helpers wrote before they left is seen after this.
        while self.door.load(Ordering::Acquire) > 0 {
            looks += 1;
            if looks < PATIENCE {
                spin_loop();
            } else {
                yield_now();
            }
        }
    }

    /// Runs jobs of `work` until none is left.
    ///
    /// # Safety
    /// The closure of `work` lives until this function ends.
    unsafe fn take_jobs(&self, work: Work) {
        let _working = Working::begin();
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= work.jobs {
                return;
            }
            // SAFETY: the caller promises that the closure lives.
            unsafe { (*work.run)(i) };
        }
    }

    /// A helper's part in the next round after `seen`; gives the number of that round.
    fn help(&self, index: usize, seen: usize) -> usize {
        let round = self.next_round(seen);
        if self.door.fetch_add(1, Ordering::Acquire) & OPEN != 0 {
            self.work.with(|work| {
                // SAFETY: this helper entered an open door, so that the leader writes `work` only after it has left.
                let Some(work) = (unsafe { *work }) else { return };
                if index >= work.helpers {
                    return;
                }
                // SAFETY: the leader, which owns the closure, waits in `close` until this helper has left.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| unsafe { self.take_jobs(work) })) {
                    *lock(&self.panic) = Some(panic);
                    self.failed.store(true, Ordering::Relaxed);
                }
            });
        }
        self.door.fetch_sub(1, Ordering::Release);
        round
    }

    /// Waits until a round later than `seen` begins; gives its number.
    fn next_round(&self, seen: usize) -> usize {
        for _ in 0..LOOKS {
            let now = self.rounds.load(Ordering::Acquire);
            if now != seen {
                return now;
            }
            spin_loop();
        }
        let mut asleep = lock(&self.asleep);
        *asleep += 1;
        loop {
            // The leader counts the round before it asks who is asleep.
            let now = self.rounds.load(Ordering::Acquire);
            if now != seen {
                *asleep -= 1;
                return now;
            }
            asleep = self.bell.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Locks, also after a panic: none leaves anything half done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::par;
    use std::sync::atomic::AtomicUsize;

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
            let panic = result.expect_err("a job panics");
            assert_eq!(panic.downcast_ref(), Some(&format!("job {bad}")), "the job's own panic");
            let sum = AtomicUsize::new(0);
            pool.install(|| par::for_each(8, |i| _ = sum.fetch_add(i, Ordering::Relaxed)));
            assert_eq!(sum.into_inner(), 28);
        }
    }
}
