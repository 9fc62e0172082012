//! Small line charts over the noise level, which falls from left to right on a logarithmic axis, as inline SVG.

use std::fmt::Write;

use plotters::style::RGBColor;

use crate::plot::COLORS;

/// One line; points that are not finite are left out.
pub struct Line {
    /// (σ, value).
    pub points: Vec<(f64, f64)>,
}

/// A chart.
pub struct Chart<'a> {
    /// Above it.
    pub title: &'a str,
    /// Under the horizontal axis.
    pub x: &'a str,
    /// The lines.
    pub lines: &'a [Line],
    /// Whether the vertical axis is logarithmic.
    pub log: bool,
    /// A value to mark.
    pub level: Option<f64>,
}

const WIDTH: f64 = 365.0;
const HEIGHT: f64 = 230.0;
/// Left, top, right, bottom.
const MARGIN: [f64; 4] = [46.0, 26.0, 10.0, 34.0];

impl Chart<'_> {
    /// The drawing, or nothing where there is nothing to draw.
    #[must_use]
    pub fn svg(&self) -> Option<String> {
        let scale = |v: f64| if self.log { v.log10() } else { v };
        let fits = |p: &(f64, f64)| p.0 > 0.0 && p.0.is_finite() && scale(p.1).is_finite();
        let lines: Vec<Vec<(f64, f64)>> = self
            .lines
            .iter()
            .map(|l| l.points.iter().filter(|p| fits(p)).map(|p| (p.0.log10(), scale(p.1))).collect())
            .collect();
        let all = || lines.iter().flatten();
        let range = |of: fn(&(f64, f64)) -> f64| {
            all().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
        };
        let ((x0, x1), (mut y0, mut y1)) = (range(|p| p.0), range(|p| p.1));
        if !(x1 > x0 && y0.is_finite()) {
            return None;
        }
        if let Some(level) = self.level.map(scale) {
            (y0, y1) = (y0.min(level), y1.max(level));
        }
        let pad = 0.05 * (y1 - y0).max(0.02);
        (y0, y1) = (y0 - pad, y1 + pad);
        let [left, top, right, bottom] = MARGIN;
        // Large σ on the left, as annealing runs.
        let px = |x: f64| left + (x1 - x) / (x1 - x0) * (WIDTH - left - right);
        let py = |y: f64| top + (y1 - y) / (y1 - y0) * (HEIGHT - top - bottom);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img><title>{0}</title><text class=title x=4 y=14>{0}</text>",
            self.title
        );
        for tick in ticks(y0, y1, 4) {
            let (y, label) = (py(tick), label(if self.log { 10f64.powf(tick) } else { tick }));
            let _ = write!(
                svg,
                "<line class=grid x1={left} x2={:.1} y1={y:.1} y2={y:.1} /><text text-anchor=end x={:.1} y={:.1}>{label}</text>",
                WIDTH - right,
                left - 5.0,
                y + 4.0
            );
        }
        for tick in x0.ceil() as i32..=x1.floor() as i32 {
            let x = px(f64::from(tick));
            let _ = write!(
                svg,
                "<line class=grid x1={x:.1} x2={x:.1} y1={top} y2={:.1} /><text text-anchor=middle x={x:.1} y={:.1}>{}</text>",
                HEIGHT - bottom,
                HEIGHT - bottom + 15.0,
                label(10f64.powi(tick))
            );
        }
        let _ = write!(
            svg,
            "<text text-anchor=middle x={:.1} y={:.1}>{}</text>",
            (left + WIDTH - right) / 2.0,
            HEIGHT - 4.0,
            self.x
        );
        if let Some(level) = self.level {
            let y = py(scale(level));
            let _ = write!(svg, "<line class=level x1={left} x2={:.1} y1={y:.1} y2={y:.1} />", WIDTH - right);
        }
        for (i, line) in lines.iter().enumerate().filter(|(_, l)| !l.is_empty()) {
            let RGBColor(r, g, b) = COLORS[i % COLORS.len()];
            let path: Vec<String> = line.iter().map(|p| format!("{:.1} {:.1}", px(p.0), py(p.1))).collect();
            let _ = write!(svg, "<path stroke=\"rgb({r},{g},{b})\" d=\"M{}\"/>", path.join("L"));
        }
        Some(svg + "</svg>")
    }
}

/// About `count` round numbers within a range.
#[must_use]
pub fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let rough = (high - low) / count as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(power);
    let first = (low / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|t| *t <= high).collect()
}

/// Three digits, without zeros at the end.
#[must_use]
pub fn label(v: f64) -> String {
    let digits = if v != 0.0 { (2 - v.abs().log10().floor() as i32).clamp(0, 4) as usize } else { 0 };
    let text = format!("{v:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 10.0, 4), [0.0, 5.0, 10.0]);
        assert_eq!(ticks(-0.4, 1.7, 4), [0.0, 1.0]);
        assert_eq!(
            [label(0.5), label(20.0), label(100.0), label(0.01), label(0.0)],
            ["0.5", "20", "100", "0.01", "0"]
        );
    }

    #[test]
    fn large_levels_are_on_the_left_and_missing_numbers_left_out() {
        let lines = [Line { points: vec![(100.0, 10.0), (1.0, f64::NAN), (0.1, 20.0)] }];
        let chart = |lines| Chart { title: "t", x: "σ", lines, log: false, level: None }.svg();
        let svg = chart(&lines).unwrap();
        assert!(svg.contains("d=\"M46.0 "), "{svg}");
        assert_eq!(svg.matches('L').count(), 1);
        assert!(chart(&[Line { points: vec![(1.0, f64::NAN)] }]).is_none());
    }
}
