//! What a run tells those who watch: owned messages that can be kept, sent and written down. Progress bars and programs watch;
//! none of them can change a sample. The trace has the same levels: a run's ledger keeps them, so that it resumes with them.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::numbers;
use crate::progress::Progress;

/// One message of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RunEvent {
    /// The run begins, or goes on.
    Begin {
        /// The task for people.
        title: String,
        /// The prior that it uses.
        prior: String,
        /// The method's name.
        method: String,
        /// What the measurements are called.
        measurements: Vec<String>,
        /// Samples of each.
        chains: usize,
        /// Levels in all, over all batches.
        levels: usize,
        /// Of these, levels that were done before.
        done: usize,
    },
    /// A level of a batch is done.
    Level(LevelDone),
    /// Something worth a line of its own.
    Note {
        /// The line.
        text: String,
    },
    /// A batch is done.
    Batch {
        /// Batches that are done.
        done: usize,
        /// Batches in all.
        of: usize,
    },
    /// The last batch is done, and everything is written.
    End,
}

/// The numbers of a level. A line of `trace.jsonl` is one of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LevelDone {
    /// The batch.
    pub batch: usize,
    /// The level within the batch.
    pub level: usize,
    /// Levels of a batch.
    pub of: usize,
    /// The noise level σ.
    #[serde(with = "numbers::one")]
    pub sigma: f64,
    /// Share of accepted proposals, where proposals are accepted or not.
    pub acceptance: Option<f64>,
    /// Chains of the batch that have diverged so far.
    pub diverged: usize,
    /// Iterations of a linear solver, where one ran.
    pub iterations: Option<usize>,
    /// Denoiser calls per sample so far.
    pub nfe: usize,
    /// Operator calls per sample so far.
    pub operator_calls: usize,
    /// (measurement, chain) of every row of the batch.
    pub rows: Vec<(u64, u64)>,
    /// How far x0|y is from the measurement, row by row, in units of the noise (`Likelihood::discrepancy`).
    #[serde(with = "numbers::list")]
    pub discrepancy: Vec<f64>,
    /// PSNR of x0|y in dB, row by row, where the truth is known; empty elsewhere.
    #[serde(default, with = "numbers::list", skip_serializing_if = "Vec::is_empty")]
    pub psnr: Vec<f64>,
    /// The same of SSIM.
    #[serde(default, with = "numbers::list", skip_serializing_if = "Vec::is_empty")]
    pub ssim: Vec<f64>,
    /// Small pictures of the first chain of every measurement in the batch, where somebody asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<LevelPicture>,
}

/// x0|y of a chain as a small picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelPicture {
    /// The measurement.
    pub measurement: u64,
    /// A PNG file in base64.
    pub png: String,
}

/// Someone who watches a run.
pub trait RunObserver {
    /// Takes a message; `Break` ends the run after this level, with a checkpoint where it has a directory.
    fn event(&mut self, event: &RunEvent) -> ControlFlow<()>;

    /// Whether levels should come with pictures.
    fn wants_pictures(&self) -> bool {
        false
    }
}

/// Nobody watches.
impl RunObserver for () {
    fn event(&mut self, _: &RunEvent) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(&RunEvent) -> ControlFlow<()>> RunObserver for F {
    fn event(&mut self, event: &RunEvent) -> ControlFlow<()> {
        self(event)
    }
}

/// A progress bar that watches a run.
pub struct Shown<'a>(pub &'a mut dyn Progress);

impl RunObserver for Shown<'_> {
    fn event(&mut self, event: &RunEvent) -> ControlFlow<()> {
        match event {
            RunEvent::Begin { title, levels, done, .. } => {
                self.0.begin(title, *levels);
                self.0.skip(*done);
            }
            RunEvent::Level(level) => {
                let note = format!("level {} of {}, sigma {:.3}", level.level + 1, level.of, level.sigma);
                return self.0.step(&note);
            }
            RunEvent::Note { text } => self.0.note(&format!("note: {text}")),
            RunEvent::Batch { .. } => {}
            RunEvent::End => self.0.end(),
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_survives_its_line_of_the_trace_whatever_its_numbers() {
        let level = LevelDone {
            sigma: f64::NAN,
            rows: vec![(0, 0), (0, 1)],
            discrepancy: vec![1.25, f64::NAN],
            ..LevelDone::default()
        };
        let line = serde_json::to_string(&RunEvent::Level(level.clone())).unwrap();
        let RunEvent::Level(back) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        assert_eq!((back.rows, back.discrepancy[0], back.psnr), (level.rows, 1.25, vec![]));
        assert!(back.sigma.is_nan() && back.discrepancy[1].is_nan(), "{line}");
        assert!(serde_json::from_str::<LevelDone>("{ \"batch\": 0 }").is_err());
    }

    #[test]
    fn every_message_survives_being_sent() {
        let words = |text: &str| text.to_owned();
        let messages = [
            RunEvent::Begin {
                title: words("deblurring"),
                prior: words("faces"),
                method: words("daps"),
                measurements: vec![words("a"), words("b")],
                chains: 3,
                levels: 48,
                done: 7,
            },
            RunEvent::Level(LevelDone {
                of: 3,
                rows: vec![(1, 2)],
                discrepancy: vec![1.0],
                ..LevelDone::default()
            }),
            RunEvent::Note { text: words("a line") },
            RunEvent::Batch { done: 1, of: 2 },
            RunEvent::End,
        ];
        for message in messages {
            let line = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<RunEvent>(&line).unwrap(), message, "{line}");
        }
    }
}
