//! Progress bars on standard error, and Ctrl-C as a request to stop after the current step.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daps::progress::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::table::tell;

/// Between two lines of progress, where there is no terminal for a bar.
const QUIET: Duration = Duration::from_secs(60);

/// A bar with the time left; where standard error is no terminal, a line now and then.
pub struct Bar {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    told: Instant,
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
        Ok(Self { bar: ProgressBar::hidden(), stop, told: Instant::now() })
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

impl Progress for Bar {
    fn begin(&mut self, what: &str, of: usize) {
        let style = ProgressStyle::with_template(
            "{prefix} [{bar:32}] {pos}/{len} {elapsed} + {eta} left  {wide_msg}",
        );
        self.bar = ProgressBar::new(of as u64).with_prefix(what.to_owned());
        if let Ok(style) = style {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.told = Instant::now();
    }

    fn step(&mut self, note: &str) -> ControlFlow<()> {
        self.bar.set_message(note.to_owned());
        self.bar.inc(1);
        if self.bar.is_hidden() && self.told.elapsed() >= QUIET {
            self.told = Instant::now();
            let (done, of, left) =
                (self.bar.position(), self.bar.length().unwrap_or(0), self.bar.eta().as_secs() / 60 + 1);
            tell(&format!("{}: {done} of {of}, about {left} min left  {note}", self.bar.prefix()));
        }
        if self.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
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
