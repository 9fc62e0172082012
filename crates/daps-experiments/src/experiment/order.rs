//! Whether methods rank as in the paper: of all pairs of methods that both have, how many stand in its order.

use super::cell::{Column, named};
use super::document::Piece;
use super::groups::Groups;
use super::report::COMPARED;
use super::statistics::paired;
use super::{ExperimentTask, MethodEntry};

/// Differences of so many standard errors count as decided.
const DECIDED: f64 = 2.0;

/// Pairs of methods, and those that stand in the paper's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    pairs: usize,
    same: usize,
    /// Pairs whose difference here is larger than its error allows for.
    decided: usize,
    decided_same: usize,
}

impl std::ops::Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            pairs: self.pairs + other.pairs,
            same: self.same + other.same,
            decided: self.decided + other.decided,
            decided_same: self.decided_same + other.decided_same,
        }
    }
}

impl Count {
    /// "34 of 73, decided 28 of 50".
    fn words(self) -> String {
        match self {
            Self { pairs: 0, .. } => "–".into(),
            Self { pairs, same, decided: 0, .. } => format!("{same} of {pairs}"),
            Self { pairs, same, decided, decided_same } => {
                format!("{same} of {pairs}, decided {decided_same} of {decided}")
            }
        }
    }
}

/// Of the methods of a task that the paper has too, paired by image.
fn count(groups: &Groups, task: &ExperimentTask, column: &Column) -> Count {
    let methods = &groups.experiment.config.methods;
    let both = |m: &'_ MethodEntry| {
        let cells = groups.get(&task.label, &m.label);
        Some((cells, groups.paper(task, m, column.name)?)).filter(|(cells, _)| !cells.is_empty())
    };
    let rows: Vec<_> = methods.iter().filter_map(both).collect();
    let mut count = Count::default();
    for (i, (cells, paper)) in rows.iter().enumerate() {
        for (others, other) in &rows[i + 1..] {
            let Some(ours) = paired(cells, others, column.of) else { continue };
            // The paper's own ties say nothing.
            if paper == other || ours.mean == 0.0 {
                continue;
            }
            let same = (paper > other) == (ours.mean > 0.0);
            let decided = ours.error.is_some_and(|e| ours.mean.abs() > DECIDED * e);
            count = count
                + Count {
                    pairs: 1,
                    same: same.into(),
                    decided: decided.into(),
                    decided_same: (same && decided).into(),
                };
        }
    }
    count
}

/// A table of these counts, where there is anything to count.
pub(super) fn order(groups: &Groups) -> Vec<Piece> {
    let columns: Vec<&Column> = COMPARED.iter().filter_map(|n| named(n)).collect();
    let of = |t: &ExperimentTask| columns.iter().map(|c| count(groups, t, c)).collect::<Vec<_>>();
    let tasks: Vec<(String, Vec<Count>)> =
        groups.experiment.config.tasks().map(|t| (t.label.replace('_', " "), of(t))).collect();
    let sum = |c: usize| tasks.iter().fold(Count::default(), |sum, (_, counts)| sum + counts[c]);
    let total: Vec<Count> = (0..columns.len()).map(sum).collect();
    if total.iter().all(|c| c.pairs == 0) {
        return vec![];
    }
    let counted = tasks.into_iter().filter(|(_, counts)| counts.iter().any(|c| c.pairs > 0));
    let rows = counted
        .chain(std::iter::once(("all".to_owned(), total)))
        .map(|(name, counts)| std::iter::once(name).chain(counts.into_iter().map(Count::words)).collect())
        .collect();
    let head = std::iter::once(String::new()).chain(columns.iter().map(|c| c.title.to_owned())).collect();
    let words = "How many pairs of methods with figures in the paper stand here in its order. A pair is decided if its difference, paired by \
                 image, is more than two standard errors. By chance it would be half of the pairs.";
    vec![
        Piece::Heading("Do methods rank as in the paper?".into()),
        Piece::Paragraph(words.into()),
        Piece::Table(head, rows),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::cell::Cell;
    use super::super::tests::{GAUSSIAN, small};
    use super::*;

    /// The paper has A above B above C. Ours: A above B by 1 dB on every image (decided), C above B by 0 to 2 (not decided), and
    /// A above C by less than its error; what has no name in the paper is not counted.
    #[test]
    fn pairs_are_counted_in_the_papers_order_and_told_apart_where_they_are_decided() {
        let dir = tempfile::tempdir().unwrap();
        let row = |(method, psnr): (&str, f64)| {
            format!("[[row]]\ntask = 'inpaint_random'\nmethod = '{method}'\npsnr = {psnr}\n")
        };
        let rows: String = [("A", 3.0), ("B", 2.0), ("C", 1.0)].map(row).concat();
        std::fs::write(dir.path().join("paper.toml"), rows).unwrap();
        let entry = |(name, paper): (&str, &str)| format!("[[method]]\nname = '{name}'\n{paper}\n");
        let methods = [
            ("wiener", "paper = 'A'"),
            ("tv", "paper = 'B'"),
            ("harmonic", "paper = 'C'"),
            ("pseudo_inverse", ""),
        ];
        let top = format!("{GAUSSIAN}\ntasks = ['inpaint_random']\npaper = 'paper.toml'");
        let experiment = small(dir.path(), &top, &methods.map(entry).concat());
        let cell = |method: &str, image: usize, psnr: f64| Cell {
            method: method.into(),
            task: "inpaint_random".into(),
            image: format!("{image:05}"),
            psnr: Some(psnr),
            ..Cell::default()
        };
        let cells: Vec<Cell> = (0..3)
            .flat_map(|i| {
                let base = 20.0 + 5.0 * i as f64;
                [
                    cell("wiener", i, base + 1.0),
                    cell("tv", i, base),
                    cell("harmonic", i, base + 0.9 * i as f64),
                    cell("pseudo_inverse", i, base - 9.0),
                ]
            })
            .collect();
        let groups = Groups::new(&experiment, &cells);
        let task = experiment.config.tasks().next().unwrap();
        let found = count(&groups, task, named("psnr").unwrap());
        assert_eq!(found, Count { pairs: 3, same: 2, decided: 1, decided_same: 1 });
        let pieces = order(&groups);
        let [Piece::Heading(_), Piece::Paragraph(_), Piece::Table(_, rows)] = &pieces[..] else {
            panic!("no table")
        };
        assert_eq!(rows[1], ["all", "2 of 3, decided 1 of 1", "–", "–"]);
    }
}
