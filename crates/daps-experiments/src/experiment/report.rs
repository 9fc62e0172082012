//! The report of an experiment: what to know first, all methods at a glance, a table for every task, drawings and pictures.

use std::collections::HashMap;
use std::path::Path;

use daps::assets;
use daps::report::number;

use super::cell::{COLUMNS, Cell, Column, named};
use super::document::{Document, Piece};
use super::figure::{Panel, panels};
use super::groups::Groups;
use super::notes::notes;
use super::order::order;
use super::statistics::{Average, median, paired};
use super::{Experiment, ExperimentTask, MethodEntry, Progressed, curves, pictures};

/// Columns that are compared with a baseline, and with the paper's order.
pub(super) const COMPARED: [&str; 3] = ["psnr", "ssim", "lpips"];
/// Columns of a task's main table, in order.
const MAIN: [&str; 7] = ["psnr", "ssim", "lpips", "accuracy", "agreement", "chi2", "diversity"];
/// Columns of the table of further numbers, in order.
const FURTHER: [&str; 6] = ["psnr_mean", "psnr_best", "error", "coverage", "coverage_nominal", "spread"];
/// Columns of success, only where a measurement has several explanations: the first is a main one.
const SUCCESSES: [&str; 3] = ["success", "success_chains", "success_turned"];
/// Columns drawn for all tasks.
const DRAWN: [&str; 2] = ["psnr", "lpips"];

/// The report, and its drawings by file.
pub(super) fn document(
    experiment: &Experiment,
    cells: &[Cell],
    progressed: &Progressed,
    fid: &HashMap<(String, String), f64>,
    directory: &Path,
) -> (Document, Vec<(String, String)>) {
    let config = &experiment.config;
    let groups = Groups::new(experiment, cells);
    let mut pieces = vec![Piece::Paragraph(config.about.split_whitespace().collect::<Vec<_>>().join(" "))];
    pieces.push(Piece::Paragraph(size(experiment, progressed)));
    pieces.push(Piece::Heading("What to know first".into()));
    pieces.push(Piece::List(notes(experiment, cells, progressed)));
    if config.methods.len() > 1 && config.tasks.len() > 1 {
        pieces.push(Piece::Heading("PSNR at a glance".into()));
        pieces.push(glance(&groups));
    }
    pieces.extend(order(&groups));
    let mut drawings = overview(&groups);
    drawings.extend(curves::drawings(&groups));
    if !drawings.is_empty() {
        pieces.push(Piece::Heading("Drawings".into()));
        pieces.extend(drawings.iter().map(|(file, svg)| Piece::Drawing(file.clone(), svg.clone())));
    }
    for task in config.tasks() {
        let own = |m: &&MethodEntry| !groups.get(&task.label, &m.label).is_empty();
        let methods: Vec<&MethodEntry> = config.methods.iter().filter(own).collect();
        if methods.is_empty() {
            continue;
        }
        pieces.push(Piece::Heading(match task.label == task.operator {
            true => capital(task.title()),
            false => capital(&task.label),
        }));
        pieces.extend(one_task(&groups, task, &methods, fid));
        pieces.extend(differences(&groups, task, &methods));
        pieces.extend(rows_of_pictures(&groups, task, &methods, directory));
    }
    (Document { title: config.title.clone(), pieces }, drawings)
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn size(experiment: &Experiment, progressed: &Progressed) -> String {
    let config = &experiment.config;
    format!(
        "{} of {} cells ({} methods x {} tasks x {} images x {} {}, unfit pairs left out); prior: {}; images: {}, number {} to {}.",
        progressed.done,
        progressed.cells,
        config.methods.len(),
        config.tasks.len(),
        experiment.images(),
        config.seeds.len(),
        if config.seeds.len() == 1 { "seed" } else { "seeds" },
        experiment.prior_in_words(),
        config.data.source.file_name().map(|n| n.to_string_lossy()).unwrap_or_default(),
        experiment.images.truths.names.first().map_or("", String::as_str),
        experiment.images.truths.names.last().map_or("", String::as_str),
    )
}

/// "27.10 ± 0.30".
fn with_error(value: Option<Average>, digits: usize) -> String {
    match value {
        None => "–".into(),
        Some(Average { mean, error: None, .. }) => number(Some(mean), digits),
        Some(Average { mean, error: Some(error), .. }) => format!("{mean:.digits$} ± {error:.digits$}"),
    }
}

/// Methods by tasks, the best of a task in bold: of those that have all images, for a mean over the images that a method did not
/// fail at says nothing of the others.
fn glance(groups: &Groups) -> Piece {
    let config = &groups.experiment.config;
    let tasks: Vec<&ExperimentTask> = config.tasks().collect();
    let value = |t: &ExperimentTask, m: &MethodEntry| groups.average(&t.label, &m.label, |c| c.psnr);
    let whole = |a: &Average| a.cells == groups.cells_of_a_pair();
    let best = |t: &&ExperimentTask| {
        let all = config.methods.iter().filter_map(|m| value(t, m)).filter(whole);
        all.map(|a| a.mean).fold(f64::NEG_INFINITY, f64::max)
    };
    let best: Vec<f64> = tasks.iter().map(best).collect();
    let cell = |(t, best): (&&ExperimentTask, &f64), m: &MethodEntry| match value(t, m) {
        Some(a) if whole(&a) && a.mean == *best => format!("**{:.2}**", a.mean),
        a => number(a.map(|a| a.mean), 2) + &groups.part(a),
    };
    let row = |m: &MethodEntry| {
        let cells = tasks.iter().zip(&best).map(|pair| cell(pair, m));
        std::iter::once(m.label.clone()).chain(cells).collect()
    };
    let head = std::iter::once(String::new()).chain(tasks.iter().map(|t| t.label.replace('_', " ")));
    Piece::Table(head.collect(), config.methods.iter().map(row).collect())
}

/// The columns of a task's table: a title, and a cell for every method.
#[derive(Default)]
struct Columns(Vec<(String, Vec<String>)>);

impl Columns {
    /// Another column, unless nobody has a number of it.
    fn add(&mut self, title: &str, cells: Vec<String>) {
        if cells.iter().any(|c| c != "–") {
            self.0.push((title.to_owned(), cells));
        }
    }

    /// Another column, which says how to get the weights that it needs where nobody has a number for want of them.
    fn add_with_weights(&mut self, title: &str, cells: Vec<String>, missing: Option<&str>) {
        match missing.filter(|_| cells.iter().all(|c| c == "–")) {
            Some(weights) => self.0.push((format!("{title}: `{}`", assets::hint(weights)), cells)),
            None => self.add(title, cells),
        }
    }

    /// Head and rows.
    fn table(self, methods: &[&MethodEntry]) -> (Vec<String>, Vec<Vec<String>>) {
        let head = std::iter::once(String::new()).chain(self.0.iter().map(|c| c.0.clone())).collect();
        let row = |(i, m): (usize, &&MethodEntry)| {
            std::iter::once(m.label.clone()).chain(self.0.iter().map(|c| c.1[i].clone())).collect()
        };
        (head, methods.iter().enumerate().map(row).collect())
    }
}

/// The numbers of a task: a table that fits a page, and the further numbers.
fn one_task(
    groups: &Groups,
    task: &ExperimentTask,
    methods: &[&MethodEntry],
    fid: &HashMap<(String, String), f64>,
) -> Vec<Piece> {
    let (mut main, mut further) = (Columns::default(), Columns::default());
    let several = methods.iter().flat_map(|m| groups.get(&task.label, &m.label)).any(|c| c.samples > 1);
    let is_ambiguous = task.is_ambiguous();
    let wanted = |name: &&str| match *name {
        "psnr_mean" => several,
        "chi2" => !groups.experiment.is_discrete(),
        "psnr_best" => several && is_ambiguous,
        name if SUCCESSES.contains(&name) => is_ambiguous,
        _ => true,
    };
    let names = [&MAIN[..], &SUCCESSES, &FURTHER].concat();
    for column in names.iter().filter(|n| wanted(n)).filter_map(|n| named(n)) {
        let is_main = MAIN.contains(&column.name) || column.name == SUCCESSES[0];
        let columns = if is_main { &mut main } else { &mut further };
        let own = |m: &&MethodEntry| {
            let average = groups.column(&task.label, &m.label, column);
            with_error(average, column.digits) + &groups.part(average)
        };
        let missing = (column.name == "lpips").then(|| groups.experiment.missing_lpips()).flatten();
        columns.add_with_weights(column.title, methods.iter().map(own).collect(), missing);
        let paper = |m: &&MethodEntry| number(groups.paper(task, m, column.name), column.digits);
        columns.add("paper", methods.iter().map(paper).collect());
        // A perfect picture of tokens counts 80 dB, and a mean of such numbers hides what is usual.
        if column.name == "psnr" && groups.experiment.is_discrete() {
            let middle = |m: &&MethodEntry| {
                number(median(groups.get(&task.label, &m.label).iter().copied(), column.of), 2)
            };
            columns.add("PSNR, median", methods.iter().map(middle).collect());
        }
    }
    let own = |m: &&MethodEntry| number(fid.get(&(task.label.clone(), m.label.clone())).copied(), 1);
    let missing = groups.experiment.missing_inception();
    main.add_with_weights("FID", methods.iter().map(own).collect(), missing);
    if !fid.is_empty() {
        main.add("paper", methods.iter().map(|m| number(groups.paper(task, m, "fid"), 1)).collect());
    }
    let calls = |of: fn(&Cell) -> Option<usize>| {
        let mean = |m: &&MethodEntry| groups.average(&task.label, &m.label, |c| of(c).map(|n| n as f64));
        methods.iter().map(|m| number(mean(m).map(|a| a.mean), 0)).collect()
    };
    main.add("denoiser calls", calls(|c| c.nfe));
    further.add("operator calls", calls(|c| c.operator_calls));
    let seconds = |m: &&MethodEntry| {
        let seconds = groups.average(&task.label, &m.label, Cell::finished_seconds);
        number(seconds.map(|a| a.mean), 2) + &groups.part(seconds)
    };
    main.add("seconds a sample", methods.iter().map(seconds).collect());
    let paper = |m: &&MethodEntry| number(groups.paper(task, m, "seconds"), 0);
    main.add("paper, on an A100", methods.iter().map(paper).collect());
    let (head, rows) = main.table(methods);
    let mut pieces = vec![Piece::Table(head, rows)];
    if !further.0.is_empty() {
        let (head, rows) = further.table(methods);
        pieces.push(Piece::More("Further numbers".into(), head, rows));
    }
    pieces
}

/// Every method minus the baseline, image by image.
fn differences(groups: &Groups, task: &ExperimentTask, methods: &[&MethodEntry]) -> Vec<Piece> {
    let Some(baseline) = &groups.experiment.config.baseline else { return vec![] };
    let base = groups.get(&task.label, baseline);
    let columns: Vec<&Column> = COLUMNS.iter().filter(|c| COMPARED.contains(&c.name)).collect();
    let signed = |a: Option<Average>, digits: usize| match a {
        Some(Average { mean, error: Some(e), .. }) => format!("{mean:+.digits$} ± {e:.digits$}"),
        Some(Average { mean, .. }) => format!("{mean:+.digits$}"),
        None => "–".into(),
    };
    let others = methods.iter().filter(|m| m.label != *baseline);
    let rows: Vec<Vec<String>> = others
        .map(|m| {
            let own = groups.get(&task.label, &m.label);
            let cell = |c: &&Column| {
                let difference = paired(own, base, c.of);
                signed(difference, c.digits) + &groups.part(difference)
            };
            let cells = columns.iter().map(cell);
            std::iter::once(m.label.clone()).chain(cells).collect()
        })
        .filter(|row: &Vec<String>| row[1..].iter().any(|c| c != "–"))
        .collect();
    if rows.is_empty() {
        return vec![];
    }
    let head = std::iter::once(format!("minus {baseline}, paired by image"));
    let head = head.chain(columns.iter().map(|c| c.title.to_owned())).collect();
    vec![Piece::Table(head, rows)]
}

/// All methods on all tasks, as dots.
fn overview(groups: &Groups) -> Vec<(String, String)> {
    let config = &groups.experiment.config;
    if config.methods.len() < 2 {
        return vec![];
    }
    let rows: Vec<&str> = config.methods.iter().map(|m| m.label.as_str()).collect();
    let draw = |column: &Column| {
        let panel = |t: &ExperimentTask| {
            let dot = |(i, m): (usize, &MethodEntry)| {
                let a = groups.column(&t.label, &m.label, column)?;
                Some((i, a.mean, a.error, groups.paper(t, m, column.name)))
            };
            Panel {
                title: t.label.replace('_', " "),
                dots: config.methods.iter().enumerate().filter_map(dot).collect(),
            }
        };
        let all: Vec<Panel> = config.tasks().map(panel).collect();
        let paper = all.iter().flat_map(|p| &p.dots).any(|d| d.3.is_some());
        let hint = if paper { "; diamonds: the paper's figures" } else { "" };
        let svg =
            panels(&format!("{}, mean and standard error over images{hint}", column.title), &rows, &all)?;
        Some((format!("plots/all-{}.svg", column.name), svg))
    };
    DRAWN.iter().filter_map(|n| named(n)).filter_map(draw).collect()
}

/// Truth, measurement and chains of the first images, method by method.
fn rows_of_pictures(
    groups: &Groups,
    task: &ExperimentTask,
    methods: &[&MethodEntry],
    directory: &Path,
) -> Vec<Piece> {
    let experiment = groups.experiment;
    let mut pieces = Vec::new();
    for image in experiment.images.truths.names.iter().take(experiment.config.pictures) {
        for method in methods {
            let shown = |c: &&&Cell| c.image == *image && pictures::row_of(directory, c).exists();
            for cell in groups.get(&task.label, &method.label).iter().filter(shown) {
                let seed = if experiment.config.seeds.len() > 1 {
                    format!(", seed {}", cell.seed)
                } else {
                    String::new()
                };
                let list = |values: &[Option<f64>], digits| {
                    values.iter().map(|v| number(*v, digits)).collect::<Vec<_>>().join(", ")
                };
                let caption = format!(
                    "{}: truth {image}{seed}, measurement, samples of {} dB (measurement error {})",
                    method.label,
                    list(&cell.chains.psnr, 1),
                    list(&cell.chains.error, 4)
                );
                pieces.push(Piece::Picture(caption, format!("pictures/{}.png", cell.key)));
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GAUSSIAN, small};
    use super::*;

    /// A method that fails at one image of three has the larger mean over the others.
    #[test]
    fn a_mean_over_survivors_is_marked_and_wins_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let methods = "[[method]]\nname = 'wiener'\n[[method]]\nname = 'tv'\n";
        let top = format!("{GAUSSIAN}\ntasks = ['inpaint_random']\nbaseline = 'tv'");
        let experiment = small(dir.path(), &top, methods);
        let cell = |(method, image, psnr): (&str, &str, Option<f64>)| Cell {
            method: method.into(),
            task: "inpaint_random".into(),
            image: image.into(),
            psnr,
            failure: psnr.is_none().then(|| "all chains diverged".into()),
            ..Cell::default()
        };
        let cells = [
            ("wiener", "00000", Some(30.0)),
            ("wiener", "00001", Some(30.0)),
            ("wiener", "00002", None),
            ("tv", "00000", Some(25.0)),
            ("tv", "00001", Some(25.0)),
            ("tv", "00002", Some(25.0)),
        ]
        .map(cell);
        let groups = Groups::new(&experiment, &cells);
        let Piece::Table(_, rows) = glance(&groups) else { panic!("no table") };
        assert_eq!(rows, [["wiener", "30.00 (2 of 3)"], ["tv", "**25.00**"]]);
        let task = experiment.config.tasks().next().unwrap();
        let methods: Vec<&MethodEntry> = experiment.config.methods.iter().collect();
        let pieces = differences(&groups, task, &methods);
        let [Piece::Table(_, rows)] = &pieces[..] else { panic!("no table") };
        assert_eq!(*rows, [["wiener", "+5.00 ± 0.00 (2 of 3)", "–", "–"]]);
    }
}
