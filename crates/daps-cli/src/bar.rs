//! Progress bars on standard error, and Ctrl-C as a request to stop after the current step.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use daps::priors::network::TileCount;
use daps::progress::Progress;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use crate::table::tell;

/// Between two lines of progress, where there is no terminal for a bar.
const QUIET: Duration = Duration::from_secs(60);

/// A bar with the time left; where standard error is no terminal, a line now and then.
pub struct Bar {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    told: Instant,
    end: Arc<Mutex<Option<Instant>>>,
    tiles: Vec<Arc<TileCount>>,
}

impl Bar {
    /// A bar that Ctrl-C turns into a request to stop.
    pub fn new() -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        ctrlc::set_handler(move || {
            // The second Ctrl-C does not wait for the step to end.
            if flag.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        })?;
        Ok(Self {
            bar: ProgressBar::hidden(),
            stop,
            told: Instant::now(),
            end: Arc::default(),
            tiles: vec![],
        })
    }

    /// Shows how many tiles of the denoiser's call under way are done, of whichever denoiser is at work.
    pub fn watch(&mut self, tiles: Vec<Arc<TileCount>>) {
        self.tiles = tiles;
    }

    /// Whether a stop was asked for.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Says what is under way.
    pub fn note(&self, note: &str) {
        self.bar.set_message(note.to_owned());
    }

    /// Prints something while the bar steps aside.
    pub fn aside(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }
}

/// How long something may take in silence.
const SOON: Duration = Duration::from_secs(1);

/// Does something that cannot say how far it is. If it takes a while, a spinner with the time shows what is under way, or a line where
/// standard error is no terminal.
pub fn waiting<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(SOON) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let spinner = ProgressBar::new_spinner().with_message(what.to_owned()).with_elapsed(SOON);
            if spinner.is_hidden() {
                return tell(&format!("{what} …"));
            }
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(Duration::from_millis(100));
            // The work's end drops the other side.
            _ = is_done.recv();
            spinner.finish_and_clear();
        });
        let result = work();
        drop(done);
        result
    })
}

impl Progress for Bar {
    fn begin(&mut self, what: &str, of: usize) {
        let style = ProgressStyle::with_template(
            "{prefix} [{bar:32}] {pos}/{len} {elapsed} + {left} left  {tiles}{wide_msg}",
        );
        self.end = Arc::default();
        self.bar = ProgressBar::new(of as u64).with_prefix(what.to_owned());
        if let Ok(style) = style {
            let end = Arc::clone(&self.end);
            let left = move |state: &ProgressState, to: &mut dyn std::fmt::Write| {
                _ = match left(&end, || state.eta()) {
                    Some(left) => write!(to, "{:#}", HumanDuration(left)),
                    None => write!(to, "?"),
                };
            };
            let counts = self.tiles.clone();
            let tiles = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
                if let Some((done, of)) = counts.iter().map(|count| count.now()).find(|(done, of)| done < of)
                {
                    _ = write!(to, "tile {done} of {of}, ");
                }
            };
            self.bar.set_style(style.with_key("left", left).with_key("tiles", tiles).progress_chars("=> "));
        }
        if !self.tiles.is_empty() {
            self.bar.enable_steady_tick(SOON);
        }
        self.told = Instant::now();
    }

    fn step(&mut self, note: &str) -> ControlFlow<()> {
        self.bar.inc(1);
        self.within(note)
    }

    fn within(&mut self, note: &str) -> ControlFlow<()> {
        self.bar.set_message(note.to_owned());
        if self.bar.is_hidden() && self.told.elapsed() >= QUIET {
            self.told = Instant::now();
            let (done, of) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let left = left(&self.end, || self.bar.eta());
            let left =
                left.map_or(String::new(), |left| format!(", about {} min left", left.as_secs() / 60 + 1));
            tell(&format!("{}: {done} of {of}{left}  {note}", self.bar.prefix()));
        }
        if self.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn expect(&mut self, seconds: f64) {
        let end = Duration::try_from_secs_f64(seconds).ok().and_then(|left| Instant::now().checked_add(left));
        *self.end.lock().expect("nobody panics with it") = end;
    }

    fn skip(&mut self, parts: usize) {
        self.bar.inc(parts as u64);
        self.bar.reset_eta();
    }

    fn note(&mut self, line: &str) {
        if self.bar.is_hidden() {
            self.told = Instant::now();
            tell(line);
        } else {
            self.bar.println(line);
        }
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The time left: until the end that was announced, else by the parts that are done; unknown as long as there are none.
fn left(end: &Mutex<Option<Instant>>, by_parts: impl FnOnce() -> Duration) -> Option<Duration> {
    match *end.lock().expect("nobody panics with it") {
        Some(end) => Some(end.saturating_duration_since(Instant::now())),
        None => Some(by_parts()).filter(|left| !left.is_zero()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_a_part_is_done_the_time_left_is_unknown() {
        let bar = ProgressBar::new(10);
        assert_eq!(left(&Mutex::default(), || bar.eta()), None);
        let soon = Mutex::new(Some(Instant::now() + Duration::from_secs(60)));
        assert!(left(&soon, || bar.eta()).is_some_and(|left| left > Duration::from_secs(50)));
        std::thread::sleep(Duration::from_millis(20));
        bar.inc(1);
        assert!(left(&Mutex::default(), || bar.eta()).is_some());
    }
}
