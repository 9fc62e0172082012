//! Progress of long work, for whoever shows it. The library itself prints nothing.

use std::ops::ControlFlow;

/// Someone who shows progress and may ask to stop.
pub trait Progress {
    /// A new piece of work of `of` parts begins.
    fn begin(&mut self, what: &str, of: usize);

    /// One more part is done.
    fn step(&mut self, note: &str) -> ControlFlow<()>;

    /// The part under way has come to this point.
    fn within(&mut self, note: &str) -> ControlFlow<()>;

    /// What is left will take about so many seconds: said where parts differ too much to tell from those that are done.
    fn expect(&mut self, _seconds: f64) {}

    /// Some parts were done before.
    fn skip(&mut self, parts: usize) {
        (0..parts).for_each(|_| _ = self.step("done before"));
    }

    /// Something worth a line of its own.
    fn note(&mut self, _line: &str) {}

    /// The work has ended.
    fn end(&mut self);
}

/// Nobody looks.
impl Progress for () {
    fn begin(&mut self, _: &str, _: usize) {}
    fn step(&mut self, _: &str) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    fn within(&mut self, _: &str) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    fn end(&mut self) {}
}
