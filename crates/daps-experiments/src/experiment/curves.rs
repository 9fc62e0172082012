//! The drawings that an experiment's file asks for: averages over an axis, or quality along the levels.

use super::cell::{Cell, LEVEL_COLUMNS, Level, mean, named};
use super::figure::{Lines, Series};
use super::groups::Groups;
use super::{Axis, By, ExperimentTask, MethodEntry, PlotConfig};

/// Files and their SVG.
pub(super) fn drawings(groups: &Groups) -> Vec<(String, String)> {
    let plots = groups.experiment.config.plots.iter().enumerate();
    let lines = plots.flat_map(|(i, plot)| {
        let all = if plot.x == Axis::Sigma { along_levels(groups, plot) } else { averages(groups, plot) };
        all.into_iter().map(move |(name, lines)| (format!("plots/{}-{name}.svg", i + 1), lines))
    });
    lines.filter_map(|(file, lines)| Some((file, lines.svg()?))).collect()
}

/// Without what has no points.
fn drawn(series: impl Iterator<Item = Series>) -> Vec<Series> {
    series.filter(|s| !s.points.is_empty()).collect()
}

fn axis_name(plot: &PlotConfig) -> String {
    match (plot.x_label.as_str(), plot.x) {
        ("", Axis::At) => String::new(),
        ("", Axis::Nfe) => "denoiser calls".into(),
        ("", Axis::Seconds) => "seconds a sample".into(),
        ("", Axis::Sigma) => "σ".into(),
        (given, _) => given.into(),
    }
}

/// One drawing a column, one line a task (or a method).
fn averages(groups: &Groups, plot: &PlotConfig) -> Vec<(String, Lines)> {
    let config = &groups.experiment.config;
    let x_of = |t: &ExperimentTask, m: &MethodEntry| match plot.x {
        Axis::At => m.at.or(t.at),
        Axis::Nfe => groups.average(&t.label, &m.label, |c| c.nfe.map(|n| n as f64)).map(|a| a.mean),
        Axis::Seconds => groups.average(&t.label, &m.label, Cell::finished_seconds).map(|a| a.mean),
        Axis::Sigma => None,
    };
    let drawing = |name: &String| {
        let column = named(name)?;
        let point = |t: &ExperimentTask, m: &MethodEntry| {
            let a = groups.column(&t.label, &m.label, column)?;
            Some((x_of(t, m)?, a.mean, a.error))
        };
        let series = |name: &str, points: Vec<(f64, f64, Option<f64>)>| {
            let mut points = points;
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: name.replace('_', " "), color: 0, dashed: false, points }
        };
        let series: Vec<Series> = match plot.by {
            By::Task => config
                .tasks()
                .map(|t| series(&t.label, config.methods.iter().filter_map(|m| point(t, m)).collect()))
                .collect(),
            By::Method => config
                .methods
                .iter()
                .map(|m| series(&m.label, config.tasks().filter_map(|t| point(t, m)).collect()))
                .collect(),
        };
        let lines = Lines {
            title: plot.title.clone(),
            x: axis_name(plot),
            y: column.title.into(),
            log_x: plot.log,
            log_y: plot.log_y,
            falls: false,
            series: drawn(series.into_iter().enumerate().map(|(color, s)| Series { color, ..s })),
        };
        Some((name.clone(), lines))
    };
    plot.y.iter().filter_map(drawing).collect()
}

/// One drawing a task, one line a method and column.
fn along_levels(groups: &Groups, plot: &PlotConfig) -> Vec<(String, Lines)> {
    let config = &groups.experiment.config;
    let drawing = |t: &ExperimentTask| {
        let mut series = Vec::new();
        for (color, method) in config.methods.iter().enumerate() {
            let cells = groups.get(&t.label, &method.label);
            let levels = cells.iter().map(|c| c.levels.len()).max().unwrap_or(0);
            for (column, of) in LEVEL_COLUMNS.iter().filter(|c| plot.y.iter().any(|y| y == c.0)) {
                let at = |i: usize| -> Vec<&Level> { cells.iter().filter_map(|c| c.levels.get(i)).collect() };
                let point = |i: usize| {
                    let here = at(i);
                    Some((here.first()?.sigma, mean(here.iter().map(|l| of(l)))?, None))
                };
                let kind = column.rsplit('_').next().unwrap_or(column);
                let name =
                    if config.methods.len() > 1 { format!("{}, {kind}", method.label) } else { kind.into() };
                let points = (0..levels).filter_map(point).collect();
                series.push(Series { name, color, dashed: kind == "estimate", points });
            }
        }
        let y = plot.y.first().and_then(|y| y.split('_').next()).and_then(named).map_or("", |c| c.title);
        let lines = Lines {
            title: format!("{}, {}", plot.title, t.label.replace('_', " ")),
            x: axis_name(plot),
            y: y.into(),
            log_x: true,
            log_y: plot.log_y,
            falls: true,
            series: drawn(series.into_iter()),
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        (t.label.chars().map(plain).collect::<String>(), lines)
    };
    // Labels of two tasks may look alike in a file's name.
    let mut taken = std::collections::HashSet::new();
    let distinct = |(i, (name, lines)): (usize, (String, Lines))| match taken.insert(name.clone()) {
        true => (name, lines),
        false => (format!("{name}-{}", i + 1), lines),
    };
    config.tasks().map(drawing).enumerate().map(distinct).collect()
}
