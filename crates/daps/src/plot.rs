//! Plots as SVG text: lines over an axis, and point clouds side by side.

use plotters::coord::ranged1d::AsRangedCoord;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::{Error, Result};

/// Colours that stay apart for readers who do not see all of them.
pub const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
    RGBColor(150, 110, 60),
];

/// A named line.
pub struct Line<'a> {
    /// What it is.
    pub name: &'a str,
    /// (x, y) in order.
    pub points: Vec<(f64, f64)>,
}

/// One panel of point clouds.
pub struct Panel {
    /// Title above it.
    pub title: String,
    /// Clouds from back to front; the first one is the reference, in grey.
    pub clouds: Vec<Vec<[f64; 2]>>,
    /// Paths drawn over the clouds.
    pub paths: Vec<Vec<[f64; 2]>>,
}

fn drawn<E: std::error::Error + Send + Sync>(
    result: std::result::Result<(), DrawingAreaErrorKind<E>>,
) -> Result<()> {
    result.map_err(|e| Error::Config(format!("a plot could not be drawn: {e}")))
}

/// Lines over logarithmic axes; `x_falls` puts large x on the left, as annealing runs.
pub fn log_lines(title: &str, x: &str, y: &str, lines: &[Line], x_falls: bool) -> Result<String> {
    let positive = |v: f64| v.is_finite() && v > 0.0;
    let all: Vec<(f64, f64)> = lines
        .iter()
        .flat_map(|l| l.points.iter().copied())
        .filter(|p| positive(p.0) && positive(p.1))
        .collect();
    if all.is_empty() {
        return Err(Error::Config(format!("nothing to plot in '{title}'")));
    }
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = all.iter().map(of);
        (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max))
    };
    let ((x0, x1), (y0, y1)) = (range(|p| p.0), range(|p| p.1));
    let (x1, y0, y1) = (x1.max(x0 * 1.01), y0 * 0.8, y1 * 1.25);
    let (start, end) = if x_falls { (x1, x0) } else { (x0, x1) };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (720, 460)).into_drawing_area();
        drawn(root.fill(&WHITE))?;
        drawn(line_chart(&root, title, (x, y), start.log10()..end.log10(), y0.log10()..y1.log10(), lines))?;
        drawn(root.present())?;
    }
    Ok(svg)
}

fn line_chart<DB: DrawingBackend>(
    root: &DrawingArea<DB, plotters::coord::Shift>,
    title: &str,
    (x, y): (&str, &str),
    x_range: std::ops::Range<f64>,
    y_range: std::ops::Range<f64>,
    lines: &[Line],
) -> std::result::Result<(), DrawingAreaErrorKind<DB::ErrorType>>
where
    DB::ErrorType: 'static,
{
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(x_range, y_range)?;
    let power =
        |v: &f64| format!("{:.3}", 10f64.powf(*v)).trim_end_matches('0').trim_end_matches('.').to_owned();
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&power)
        .y_label_formatter(&power)
        .light_line_style(RGBColor(240, 240, 240))
        .draw()?;
    for (i, line) in lines.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let points =
            line.points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0).map(|p| (p.0.log10(), p.1.log10()));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()
}

/// Point clouds in a row of panels that share their axes.
pub fn clouds(panels: &[Panel], columns: usize) -> Result<String> {
    let points = || panels.iter().flat_map(|p| p.clouds.iter().flat_map(|c| c.iter()));
    let bound = |axis: usize| {
        let mut values: Vec<f64> = points().map(|p| p[axis]).filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        // All but the outermost thousandth: one stray sample must not shrink the rest to a dot.
        let cut = values.len() / 1000;
        let (a, b) = match (values.get(cut), values.get(values.len().saturating_sub(1 + cut))) {
            (Some(a), Some(b)) => (*a, *b),
            _ => (-1.0, 1.0),
        };
        let pad = 0.08 * (b - a).max(1e-6);
        (a - pad)..(b + pad)
    };
    let (x, y) = (bound(0), bound(1));
    let columns = columns.clamp(1, panels.len().max(1));
    let rows = panels.len().div_ceil(columns);
    let mut svg = String::new();
    {
        let size = ((columns * 330) as u32, (rows * 340) as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        drawn(root.fill(&WHITE))?;
        for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
            drawn(cloud_chart(area, panel, x.clone(), y.clone()))?;
        }
        drawn(root.present())?;
    }
    Ok(svg)
}

fn cloud_chart<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    panel: &Panel,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
) -> std::result::Result<(), DrawingAreaErrorKind<DB::ErrorType>>
where
    DB::ErrorType: 'static,
    std::ops::Range<f64>: AsRangedCoord<CoordDescType = RangedCoordf64, Value = f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(36)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart.configure_mesh().x_labels(5).y_labels(5).light_line_style(WHITE).draw()?;
    let inside = |p: &&[f64; 2]| x.contains(&p[0]) && y.contains(&p[1]);
    for path in &panel.paths {
        let points = path.iter().filter(inside).map(|p| (p[0], p[1]));
        chart.draw_series(LineSeries::new(points, COLORS[1].mix(0.55)))?;
    }
    // The reference lies at the back in grey, samples in front in colour.
    for (i, points) in panel.clouds.iter().enumerate() {
        let color = if i == 0 { RGBColor(170, 170, 170) } else { COLORS[(i - 1) % COLORS.len()] };
        let opacity = if i == 0 { 0.9 } else { 0.6 };
        chart.draw_series(
            points.iter().filter(inside).map(|p| Circle::new((p[0], p[1]), 2, color.mix(opacity).filled())),
        )?;
    }
    Ok(())
}
