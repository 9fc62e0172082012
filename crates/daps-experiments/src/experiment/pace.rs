//! How long the rest of an experiment will take, by the cells that are done. Methods differ by a factor of thousands, so that
//! neither cells nor levels can be counted alike.

use super::Block;
use super::cell::Cell;
use super::store::Cells;

/// Seconds that so many more cells of each block will take; nothing as long as no cell is done. A cell is thought to take as long
/// as those of its method on its task; if there are none, as those of its method; if there are none either, as all of them.
pub(super) fn seconds(left: &[(&Block, usize)], done: &Cells) -> Option<f64> {
    let one = |method: &str, task: &str| {
        mean(done, |c| c.method == method && c.task == task)
            .or_else(|| mean(done, |c| c.method == method))
            .or_else(|| mean(done, |_| true))
    };
    let block = |(b, n): &(&Block, usize)| Some(*n as f64 * one(&b.pair.method.label, &b.pair.task.label)?);
    left.iter().filter(|(_, n)| *n > 0).map(block).sum()
}

/// Seconds of a cell, mean over some.
fn mean(done: &Cells, which: impl Fn(&Cell) -> bool) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for cell in done.values().filter(|c| which(c)) {
        sum += cell.seconds * cell.samples as f64;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GAUSSIAN, small};
    use super::*;

    fn add(done: &mut Cells, method: &str, task: &str, samples: usize, seconds: f64) {
        let cell = Cell { method: method.into(), task: task.into(), samples, seconds, ..Cell::default() };
        done.insert(done.len().to_string(), cell);
    }

    #[test]
    fn a_cell_takes_as_long_as_its_nearest_kin() {
        let dir = tempfile::tempdir().unwrap();
        let top = format!("{GAUSSIAN}\ntasks = ['inpaint_random', 'super_resolution']");
        let methods = "[[method]]\nname = 'pseudo_inverse'\n[[method]]\nname = 'wiener'\n";
        let experiment = small(dir.path(), &top, methods);
        let pairs = experiment.pairs().unwrap();
        let blocks = experiment.blocks(&pairs).unwrap();
        let left: Vec<(&Block, usize)> = blocks.iter().map(|b| (b, 10)).collect();
        let mut done = Cells::new();
        assert_eq!(seconds(&left, &done), None);
        add(&mut done, "pseudo_inverse", "inpaint_random", 2, 1.5);
        add(&mut done, "pseudo_inverse", "super_resolution", 1, 5.0);
        // The pseudo-inverse by its own task, Wiener by all that is known.
        assert_eq!(seconds(&left, &done), Some(10.0 * (3.0 + 5.0 + 4.0 + 4.0)));
        add(&mut done, "wiener", "inpaint_random", 1, 7.0);
        assert_eq!(seconds(&left, &done), Some(10.0 * (3.0 + 5.0 + 7.0 + 7.0)));
        assert_eq!(seconds(&[(&blocks[0], 0)], &done), Some(0.0));
    }
}
