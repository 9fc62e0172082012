//! The team in every order of events that the memory model allows, as loom explores them (`scripts/loom.sh`).
//!
//! The cells of a [`Board`] are plain memory: loom fails a model in which two threads may touch one without an order
//! between them, and one in which a thread can wait for ever.

use super::{Team, works};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::JoinHandle;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Plain numbers that jobs write and the leader reads.
struct Board(Vec<UnsafeCell<usize>>);

// SAFETY: loom checks every access to the cells, which is what these models are for.
unsafe impl Sync for Board {}

impl Board {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| UnsafeCell::new(0)).collect())
    }
    fn add(&self, i: usize, value: usize) {
        // SAFETY: loom fails the model before two threads get here at once.
        self.0[i].with_mut(|cell| unsafe { *cell += value });
    }
    fn get(&self, i: usize) -> usize {
        // SAFETY: as in `add`.
        self.0[i].with(|cell| unsafe { *cell })
    }
    fn all(&self) -> Vec<usize> {
        (0..self.0.len()).map(|i| self.get(i)).collect()
    }
}

/// A team whose helpers go home after a last round, so that a model ends.
struct Crew {
    team: Arc<Team>,
    /// Not loom's: it is set before the last round begins, and read after it.
    last: std::sync::Arc<AtomicBool>,
    helpers: RefCell<Vec<JoinHandle<()>>>,
}

impl Crew {
    fn new() -> Self {
        Self { team: Arc::new(Team::new()), last: Default::default(), helpers: RefCell::default() }
    }

    fn lead(&self, helpers: usize, jobs: usize, job: &(dyn Fn(usize) + Sync)) -> bool {
        self.team.lead(helpers, jobs, job, |index| {
            let (team, last) = (self.team.clone(), self.last.clone());
            self.helpers.borrow_mut().push(loom::thread::spawn(move || {
                let mut seen = 0;
                loop {
                    seen = team.help(index, seen);
                    if last.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }));
            true
        })
    }

    /// The last round.
    fn lead_last(self, helpers: usize, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        self.last.store(true, Ordering::Relaxed);
        assert!(self.lead(helpers, jobs, job), "nobody else leads");
        for helper in self.helpers.into_inner() {
            assert!(helper.join().is_ok(), "a helper died");
        }
    }
}

/// Runs a model in all orders with at most `preemptions` switches of thread that no thread asked for.
fn model(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.check(body);
}

/// One round: every job runs once, sees what the leader wrote before, and is seen by the leader after.
fn one_round(helpers: usize, jobs: usize) {
    let crew = Crew::new();
    let (input, output) = (Board::new(1), Board::new(jobs));
    input.add(0, 7);
    crew.lead_last(helpers, jobs, &|i| output.add(i, input.get(0) + i));
    assert_eq!(output.all(), (7..7 + jobs).collect::<Vec<_>>());
}

#[test]
fn every_job_runs_once_with_one_helper() {
    model(None, || one_round(1, 2));
}

#[test]
fn every_job_runs_once_with_two_helpers() {
    model(Some(3), || one_round(2, 3));
}

/// Rounds follow one another on the same memory, whoever ran what before; a helper that sleeps is woken.
#[test]
fn rounds_follow_one_another() {
    model(Some(3), || {
        let crew = Crew::new();
        let board = Board::new(2);
        assert!(crew.lead(1, 2, &|i| board.add(i, 1)));
        assert_eq!(board.all(), [1, 1]);
        board.add(0, 10);
        // Each job now reads what perhaps another thread wrote.
        let sum = Board::new(2);
        assert!(crew.lead(1, 2, &|i| sum.add(i, board.get(1 - i))));
        assert_eq!(sum.all(), [1, 11]);
        crew.lead_last(1, 2, &|i| board.add(i, 100));
        assert_eq!(board.all(), [111, 101]);
    });
}

/// A round that asks for fewer helpers than live leaves the others out.
#[test]
fn helpers_that_are_not_asked_for_stay_out() {
    model(Some(2), || {
        let crew = Crew::new();
        let board = Board::new(2);
        assert!(crew.lead(1, 2, &|i| board.add(i, 1)));
        let leader = loom::thread::current().id();
        crew.lead_last(0, 2, &|i| {
            assert_eq!(loom::thread::current().id(), leader);
            board.add(i, 1);
        });
        assert_eq!(board.all(), [2, 2]);
    });
}

/// Two threads that lead at once: one leads, and the other leads after it or is told that the team is busy. No job is lost
/// or runs twice, though one helper serves both.
#[test]
fn two_leaders_share_a_team() {
    model(Some(3), || {
        let crew = Crew::new();
        let first = Board::new(2);
        assert!(crew.lead(1, 2, &|i| first.add(i, 1)));
        let lead = |team: &Team| {
            let board = Board::new(2);
            let led = team.lead(1, 2, &|i| board.add(i, 1), |_| unreachable!("the helper lives already"));
            assert_eq!(board.all(), if led { [1, 1] } else { [0, 0] });
            led
        };
        let team = crew.team.clone();
        let other = loom::thread::spawn(move || lead(&team));
        let led = lead(&crew.team);
        assert!(other.join().expect("the other leader lives") || led, "both were told that the team is busy");
        crew.lead_last(1, 2, &|i| first.add(i, 1));
        assert_eq!(first.all(), [2, 2]);
    });
}

/// A panic reaches the leader, whoever ran the job, after all that run have ended; the next round works.
#[test]
fn panics_reach_the_leader() {
    for bad in 0..2 {
        model(Some(3), move || {
            let crew = Crew::new();
            let board = Board::new(2);
            let result = catch_unwind(AssertUnwindSafe(|| {
                crew.lead(1, 2, &|i| {
                    board.add(i, 1);
                    if i == bad {
                        // Without the hook that prints.
                        resume_unwind(Box::new(i));
                    }
                })
            }));
            let panic = result.expect_err("the panic reaches the leader");
            assert_eq!(panic.downcast_ref(), Some(&bad));
            assert!(!works(), "the leader is out of its job");
            // The leader may write again: nobody else does. Where it panicked itself, a job may be left out.
            board.add(0, 10);
            board.add(1, 10);
            assert!(board.get(bad) == 11 && [10, 11].contains(&board.get(1 - bad)));
            crew.lead_last(1, 2, &|i| board.add(i, 100));
            assert_eq!(board.get(bad), 111);
        });
    }
}

/// A job knows that it is one, and cannot lead a round.
#[test]
fn a_job_does_not_lead() {
    model(Some(3), || {
        let crew = Crew::new();
        let board = Board::new(2);
        let team = crew.team.clone();
        assert!(!works());
        crew.lead_last(1, 2, &|i| {
            assert!(works());
            assert!(
                !team.lead(1, 2, &|_| unreachable!("the team is busy"), |_| unreachable!("so nobody starts"))
            );
            board.add(i, 1);
        });
        assert!(!works());
        assert_eq!(board.all(), [1, 1]);
    });
}
