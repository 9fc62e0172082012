//! Drawings of tables as SVG that stands alone: lines with error bars, and methods side by side, one panel a task.

use std::fmt::Write;

use daps::plot::COLORS;
use daps::report::{escape, label, ticks};

/// A named line of (x, y, standard error).
pub(super) struct Series {
    pub name: String,
    /// Its colour's number.
    pub color: usize,
    /// Whether it is broken.
    pub dashed: bool,
    pub points: Vec<(f64, f64, Option<f64>)>,
}

/// Lines over an axis.
pub(super) struct Lines {
    pub title: String,
    pub x: String,
    pub y: String,
    pub log_x: bool,
    pub log_y: bool,
    /// Large x on the left, as annealing runs.
    pub falls: bool,
    pub series: Vec<Series>,
}

/// One panel of dots: (row, value, standard error, the paper's figure).
pub(super) struct Panel {
    pub title: String,
    pub dots: Vec<(usize, f64, Option<f64>, Option<f64>)>,
}

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#444}.t{font-size:14px;font-weight:600;fill:#222}\
                     .g{stroke:#e4e6ee}.e{stroke-width:1.2}path{fill:none;stroke-width:1.8}";

fn color(i: usize) -> String {
    let plotters::style::RGBColor(r, g, b) = COLORS[i % COLORS.len()];
    format!("rgb({r},{g},{b})")
}

fn open(width: f64, height: f64, title: &str) -> String {
    // A drawing has no code: its marks are left out.
    let title = escape(&title.replace('`', ""));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\"><title>{title}</title><style>{STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/><text class=\"t\" x=\"12\" y=\"20\">{title}</text>"
    )
}

fn line(svg: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64), more: &str) {
    let _ = write!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {more}/>"
    );
}

fn text(svg: &mut String, anchor: &str, (x, y): (f64, f64), words: &str) {
    let _ = write!(svg, "<text text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(words));
}

/// The smallest and the largest, with some air.
fn range(values: impl Iterator<Item = f64>, air: f64) -> Option<(f64, f64)> {
    let (a, b) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    a.is_finite().then(|| {
        let pad = air * (b - a).max(1e-3 * a.abs()).max(1e-9);
        (a - pad, b + pad)
    })
}

/// Round numbers of an axis, in the axis's own unit, and what they are called.
fn axis(low: f64, high: f64, log: bool) -> Vec<(f64, String)> {
    if !log {
        return ticks(low, high, 5).into_iter().map(|t| (t, label(t))).collect();
    }
    let steps = [1.0, 2.0, 5.0];
    let fine = high - low < 2.0;
    let decades = low.floor() as i32..=high.ceil() as i32;
    let marks =
        decades.flat_map(|d| steps.iter().take(if fine { 3 } else { 1 }).map(move |s| s * 10f64.powi(d)));
    marks.map(|v| (v.log10(), label(v))).filter(|(t, _)| (low..=high).contains(t)).collect()
}

impl Lines {
    /// The drawing, or nothing where there is nothing to draw.
    pub fn svg(&self) -> Option<String> {
        let sx = |v: f64| if self.log_x { v.log10() } else { v };
        let sy = |v: f64| if self.log_y { v.log10() } else { v };
        let fits = |p: &&(f64, f64, Option<f64>)| sx(p.0).is_finite() && sy(p.1).is_finite();
        let all = || self.series.iter().flat_map(|s| s.points.iter()).filter(fits);
        let (x0, x1) = range(all().map(|p| sx(p.0)), 0.03)?;
        let ends = |p: &(f64, f64, Option<f64>)| {
            let e = p.2.unwrap_or(0.0);
            [p.1 - e, p.1, p.1 + e].map(sy).into_iter().filter(|v| v.is_finite())
        };
        let (y0, y1) = range(all().flat_map(ends), 0.06)?;
        let letters = self.series.iter().map(|s| s.name.chars().count()).max().unwrap_or(0);
        let (left, top, bottom, plot, height) = (62.0, 46.0, 46.0, 440.0, 340.0);
        let width = left + plot + 44.0 + 7.0 * letters as f64;
        let px = |x: f64| {
            let t = (x - x0) / (x1 - x0);
            left + plot * if self.falls { 1.0 - t } else { t }
        };
        let py = |y: f64| top + (y1 - y) / (y1 - y0) * (height - top - bottom);
        let mut svg = open(width, height, &self.title);
        for (t, name) in axis(y0, y1, self.log_y) {
            line(&mut svg, "g", (left, py(t)), (left + plot, py(t)), "");
            text(&mut svg, "end", (left - 6.0, py(t) + 4.0), &name);
        }
        for (t, name) in axis(x0, x1, self.log_x) {
            line(&mut svg, "g", (px(t), top), (px(t), height - bottom), "");
            text(&mut svg, "middle", (px(t), height - bottom + 16.0), &name);
        }
        text(&mut svg, "middle", (left + plot / 2.0, height - 8.0), &self.x);
        text(&mut svg, "start", (left, top - 8.0), &self.y);
        for (i, series) in self.series.iter().enumerate() {
            let dash = if series.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let stroke = format!("stroke=\"{}\"{dash}", color(series.color));
            let points: Vec<_> = series.points.iter().filter(fits).collect();
            let place = |p: &&(f64, f64, Option<f64>)| format!("{:.1} {:.1}", px(sx(p.0)), py(sy(p.1)));
            let path: Vec<String> = points.iter().map(place).collect();
            if path.len() > 1 {
                let _ = write!(svg, "<path {stroke} d=\"M{}\"/>", path.join("L"));
            }
            for p in &points {
                let at = (px(sx(p.0)), py(sy(p.1)));
                if let Some(e) = p.2.filter(|e| sy(p.1 - e).is_finite()) {
                    line(&mut svg, "e", (at.0, py(sy(p.1 - e))), (at.0, py(sy(p.1 + e))), &stroke);
                }
                if points.len() <= 20 {
                    let _ = write!(
                        svg,
                        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{}\"/>",
                        at.0,
                        at.1,
                        color(series.color)
                    );
                }
            }
            let y = top + 8.0 + 18.0 * i as f64;
            line(&mut svg, "e", (left + plot + 12.0, y), (left + plot + 30.0, y), &stroke);
            text(&mut svg, "start", (left + plot + 36.0, y + 4.0), &series.name);
        }
        Some(svg + "</svg>\n")
    }
}

/// Dots with error bars, methods below each other, tasks beside each other; a diamond is the paper's figure.
pub(super) fn panels(title: &str, rows: &[&str], panels: &[Panel]) -> Option<String> {
    let panels: Vec<&Panel> = panels.iter().filter(|p| !p.dots.is_empty()).collect();
    if panels.is_empty() {
        return None;
    }
    let columns = panels.len().min(4);
    let letters = rows.iter().map(|r| r.chars().count()).max().unwrap_or(0) as f64;
    let (left, plot, gap, step) = (20.0 + 7.0 * letters, 190.0, 24.0, 20.0);
    let block = 62.0 + step * rows.len() as f64;
    let width = (left + columns as f64 * (plot + gap)).max(30.0 + 8.0 * title.chars().count() as f64);
    let height = 34.0 + block * panels.len().div_ceil(columns) as f64;
    let mut svg = open(width, height, title);
    for (k, panel) in panels.iter().enumerate() {
        let (column, row) = (k % columns, k / columns);
        let (x, y) = (left + column as f64 * (plot + gap), 40.0 + row as f64 * block);
        let ends = |d: &(usize, f64, Option<f64>, Option<f64>)| {
            let e = d.2.unwrap_or(0.0);
            [d.1 - e, d.1 + e, d.3.unwrap_or(d.1)]
        };
        let (low, high) = range(panel.dots.iter().flat_map(ends), 0.08)?;
        let px = |v: f64| x + (v - low) / (high - low) * plot;
        let py = |i: usize| y + 26.0 + step * i as f64;
        text(&mut svg, "start", (x, y + 8.0), &panel.title);
        for t in ticks(low, high, 4) {
            line(&mut svg, "g", (px(t), y + 14.0), (px(t), py(rows.len()) - 8.0), "");
            text(&mut svg, "middle", (px(t), py(rows.len()) + 6.0), &label(t));
        }
        for (i, name) in rows.iter().enumerate().filter(|_| column == 0) {
            text(&mut svg, "end", (x - 10.0, py(i) + 4.0), name);
        }
        for (i, value, error, paper) in &panel.dots {
            let (at, stroke) = (py(*i), color(*i));
            if let Some(e) = error {
                line(
                    &mut svg,
                    "e",
                    (px(value - e), at),
                    (px(value + e), at),
                    &format!("stroke=\"{stroke}\""),
                );
            }
            let _ =
                write!(svg, "<circle cx=\"{:.1}\" cy=\"{at:.1}\" r=\"3.6\" fill=\"{stroke}\"/>", px(*value));
            if let Some(p) = paper.map(px) {
                let _ =
                    write!(svg, "<path stroke=\"{stroke}\" d=\"M{:.1} {at:.1}l5 -5l5 5l-5 5z\"/>", p - 5.0);
            }
        }
    }
    Some(svg + "</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithmic_axes_have_round_marks_and_empty_drawings_are_none() {
        let names = |a: f64, b: f64| axis(a, b, true).into_iter().map(|t| t.1).collect::<Vec<_>>();
        assert_eq!(names(1.65, 3.65), ["100", "1000"]);
        assert_eq!(names(1.0, 2.1), ["10", "20", "50", "100"]);
        let lines = |points| Lines {
            title: "a < b".into(),
            x: "x".into(),
            y: "y".into(),
            log_x: true,
            log_y: false,
            falls: false,
            series: vec![Series { name: "n".into(), color: 0, dashed: false, points }],
        };
        let svg = lines(vec![(10.0, 1.0, Some(0.5)), (100.0, 2.0, None)]).svg().unwrap();
        assert!(svg.contains("a &lt; b") && svg.matches("<circle").count() == 2);
        assert!(lines(vec![(0.0, 1.0, None)]).svg().is_none());
        assert!(panels("t", &["a"], &[Panel { title: "p".into(), dots: vec![] }]).is_none());
    }
}
