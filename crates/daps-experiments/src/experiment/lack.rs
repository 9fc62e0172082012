//! What a directory lacks of an experiment: cells that never ran, and finished ones that run again, with the reason.

use std::path::Path;

use super::cell::Cell;
use super::store::Cells;
use super::{Block, Experiment, pictures};

/// Why a cell has to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// It never did.
    Cell,
    /// It ran without the weights of LPIPS, and they are there now.
    Lpips,
    /// It ran when the file did not ask for the levels.
    Levels,
    /// It ran with levels, but without the weights of LPIPS.
    LevelsLpips,
    /// Its row of pictures is not in the directory.
    Pictures,
    /// Its sample, which FID reads, is not in the directory.
    Sample,
}

/// Why finished cells run again: what has changed, and what they run for.
const AGAIN: [(Lack, &str, &str); 5] = [
    (Lack::Lpips, "LPIPS weights are here now", "LPIPS"),
    (Lack::Levels, "the file asks for levels now", "the quality along the levels"),
    (Lack::LevelsLpips, "LPIPS weights are here now", "LPIPS along the levels"),
    (Lack::Pictures, "the report shows pictures that the directory lacks", "these pictures"),
    (Lack::Sample, "FID needs samples that the directory lacks", "these samples"),
];

impl Experiment {
    /// What a finished cell lacks of the numbers that the file asks for.
    fn lacks_numbers(&self, cell: &Cell) -> Option<Lack> {
        // A cell without a result has none when it runs again.
        if cell.failure.is_some() {
            return None;
        }
        if self.has_lpips() && cell.lpips.is_none() {
            return Some(Lack::Lpips);
        }
        if !self.follows() || self.has_levels(cell) {
            return None;
        }
        Some(if cell.levels.is_empty() { Lack::Levels } else { Lack::LevelsLpips })
    }

    /// Whether a cell has all numbers that the file asks for: LPIPS too, once its weights are there, and levels where wanted.
    pub(super) fn is_complete(&self, cell: &Cell) -> bool {
        self.lacks_numbers(cell).is_none()
    }

    /// Why an image's cell has to run; nothing where it is there, complete, with its pictures.
    fn lack(&self, cells: &Cells, directory: &Path, key: &str, image: usize) -> Option<Lack> {
        let Some(cell) = cells.get(key) else { return Some(Lack::Cell) };
        let pictured = || {
            let mut wanted = self.wanted_pictures(image, directory, cell).filter(|file| !file.exists());
            let file = wanted.next().filter(|_| cell.failure.is_none())?;
            Some(if file == pictures::row_of(directory, cell) { Lack::Pictures } else { Lack::Sample })
        };
        self.lacks_numbers(cell).or_else(pictured)
    }

    /// Which of the first images of a block are not there yet.
    pub(super) fn missing(
        &self,
        cells: &Cells,
        directory: &Path,
        block: &Block,
        images: usize,
    ) -> Vec<usize> {
        (0..images).filter(|&i| self.lack(cells, directory, &block.keys[i], i).is_some()).collect()
    }

    /// A line for every reason for which finished cells run again, with the number of cells.
    pub(super) fn run_again(
        &self,
        cells: &Cells,
        directory: &Path,
        wanted: &[(&Block, usize)],
    ) -> Vec<String> {
        let mut seen = std::collections::HashSet::new();
        let mut lacks = Vec::new();
        for (block, images) in wanted {
            // Blocks of two labels may share their cells, which run once.
            for (i, key) in block.keys[..*images].iter().enumerate().filter(|(_, key)| seen.insert(*key)) {
                lacks.extend(self.lack(cells, directory, key, i));
            }
        }
        let line = |(why, reason, what): &(Lack, &str, &str)| {
            let count = lacks.iter().filter(|lack| *lack == why).count();
            let run = if count == 1 { "cell runs" } else { "cells run" };
            (count > 0).then(|| format!("{reason}: {count} {run} again for {what}"))
        };
        AGAIN.iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use daps::progress::Progress;

    use super::super::tests::{GAUSSIAN, small};

    /// Keeps what it is told.
    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Progress for Notes {
        fn begin(&mut self, _: &str, _: usize) {}
        fn step(&mut self, _: &str) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
        fn within(&mut self, _: &str) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
        fn note(&mut self, line: &str) {
            self.0.push(line.to_owned());
        }
        fn end(&mut self) {}
    }

    /// A file that grows, pictures that are lost: each reason has its line, and a cell keeps its first timing.
    #[test]
    fn cells_that_run_again_say_why_and_keep_their_timing() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let run = |more: &str| {
            let top = format!("{GAUSSIAN}\n{more}\nbatch = 3\ntasks = ['inpaint_random']");
            let method = "[[method]]\nschedule = { rule = 'levels', sigmas = [10.0, 0.1, 0.0] }\nkernel = 'exact'\n\
                          estimate = { kind = 'gaussian', center = 'tweedie', spread = 'sigma' }\n";
            let (experiment, mut notes) = (small(dir.path(), &top, method), Notes::default());
            let told = experiment.estimate(&out, &[], &mut Notes::default()).map(|e| e[0].missing).unwrap();
            let done = experiment.execute(&out, &[], &mut notes).unwrap();
            assert_eq!(told, done.ran, "a dry run counts what will run");
            let timings = std::fs::read_to_string(out.join("timings.csv")).unwrap();
            (notes.0.join("\n"), done.ran, timings)
        };
        let (notes, ran, first) = run("");
        assert_eq!((notes.as_str(), ran), ("", 3), "what is new needs no reason");
        // So long that no second run takes as long.
        let cells = out.join("cells.jsonl");
        let slow = |line: &str| {
            let mut cell: serde_json::Value = serde_json::from_str(line).unwrap();
            cell["seconds"] = 1234.5.into();
            cell.to_string() + "\n"
        };
        let text: String = std::fs::read_to_string(&cells).unwrap().lines().map(slow).collect();
        std::fs::write(&cells, text).unwrap();
        let (notes, ran, second) = run("levels = true");
        let why = "the file asks for levels now: 3 cells run again for the quality along the levels";
        assert_eq!((notes.as_str(), ran), (why, 3));
        assert_eq!(second.matches(",1234.5000,").count(), 3, "{second} after {first}");
        let (notes, ran, third) = run("levels = true\npictures = 1");
        let why = "the report shows pictures that the directory lacks: 1 cell runs again for these pictures";
        assert_eq!((notes.as_str(), ran), (why, 1));
        assert_eq!(third, second, "in the next process too");
        assert_eq!(run("levels = true\npictures = 1"), (String::new(), 0, second));
    }
}
