//! The loss of a training: one figure, the mean over the last steps, and the curve that it leaves behind.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use candle_core::{Device, Tensor};
use daps_core::tensors::to_f64;
use serde::Serialize;

/// Steps over which the loss is averaged. A point of the curve is kept each time that so many steps are done.
pub const WINDOW: u64 = 50;

/// A point of the loss curve: means over the last [`WINDOW`] steps, or over all of this run where it has fewer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Images seen so far.
    pub images: u64,
    /// EDM's loss, or the cross-entropy of a token or a class.
    pub loss: f64,
    /// The gradient's norm before it was limited.
    pub norm: f64,
    /// The step size of the last step.
    pub rate: f64,
}

/// The loss of a training: the mean over its last [`WINDOW`] steps, or over all where it has fewer. Everything that speaks of the
/// loss of a run (progress, the end, a resumption, `loss.csv`, the model card) shows this figure. It depends on the steps alone,
/// so a resumed run has the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// The mean.
    pub mean: f64,
    /// The images of the steps that it is taken over.
    pub images: u64,
}

/// "0.3041 (mean over the last 400 images)"
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4} (mean over the last {} images)", self.mean, self.images)
    }
}

/// Loss, norm of the gradient and step size of one step.
type Step = [f64; 3];

/// Names of the tensors that hold a curve in a checkpoint.
const POINTS: &str = "log.points";
const RECENT: &str = "log.recent";
/// What checkpoints had in the place of `log.recent`: sums of loss and norm since the last point.
const OPEN: &str = "log.open";

/// The points so far, and the steps that the next one is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Curve {
    points: Vec<Point>,
    recent: VecDeque<Step>,
}

impl Curve {
    /// Takes up a step; `number` steps are done with it, `images` images seen.
    pub fn push(&mut self, number: u64, images: u64, step: Step) {
        if self.recent.len() as u64 == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(step);
        if number.is_multiple_of(WINDOW) {
            self.points.extend(self.now(images));
        }
    }

    /// One point every [`WINDOW`] steps.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Where the curve stands after `images` images; nothing before the first step.
    pub fn now(&self, images: u64) -> Option<Point> {
        let &[_, _, rate] = self.recent.back()?;
        let mean = |k: usize| self.recent.iter().map(|step| step[k]).sum::<f64>() / self.recent.len() as f64;
        Some(Point { images, loss: mean(0), norm: mean(1), rate })
    }

    /// Steps that the present figure is a mean of.
    pub fn window(&self) -> u64 {
        self.recent.len() as u64
    }

    /// Adds the curve to the tensors of a checkpoint.
    pub fn write(&self, tensors: &mut BTreeMap<String, Tensor>) -> daps_core::Result<()> {
        let points: Vec<f64> =
            self.points.iter().flat_map(|p| [p.images as f64, p.loss, p.norm, p.rate]).collect();
        let recent: Vec<f64> = self.recent.iter().flatten().copied().collect();
        for (name, values, width) in [(POINTS, points, 4), (RECENT, recent, 3)] {
            let rows = values.len() / width;
            tensors.insert(name.to_owned(), Tensor::from_vec(values, (rows, width), &Device::Cpu)?);
        }
        Ok(())
    }

    /// The curve of a checkpoint after `step` steps, `own` of which its run did itself.
    pub fn read(tensors: &BTreeMap<String, Tensor>, step: u64, own: u64) -> Result<Self, String> {
        let numbers = |name: &str| match tensors.get(name) {
            Some(tensor) => to_f64(tensor).map_err(|e| format!("{name}: {e}")),
            None => Err(format!("{name} is missing")),
        };
        let points: Vec<Point> = numbers(POINTS)?
            .chunks_exact(4)
            .map(|p| Point { images: p[0] as u64, loss: p[1], norm: p[2], rate: p[3] })
            .collect();
        let recent = match (tensors.contains_key(RECENT), tensors.contains_key(OPEN)) {
            (false, true) => from_sums(&points, &numbers(OPEN)?, step, own)?,
            _ => numbers(RECENT)?.chunks_exact(3).map(|s| [s[0], s[1], s[2]]).collect(),
        };
        if recent.len() as u64 > WINDOW {
            return Err(format!("{RECENT} holds {} steps, more than {WINDOW}", recent.len()));
        }
        Ok(Self { points, recent })
    }
}

/// The last steps of a checkpoint that kept only their sums: each counts as the mean of the part that it belongs to.
fn from_sums(points: &[Point], open: &[f64], step: u64, own: u64) -> Result<VecDeque<Step>, String> {
    let &[loss, norm] = open else { return Err(format!("{OPEN} has another shape")) };
    let since = (step % WINDOW).min(own);
    let rate = points.last().map_or(0.0, |p| p.rate);
    let before = points.last().map_or(0, |_| (WINDOW - since).min(own - since));
    let mut recent: VecDeque<Step> =
        points.last().map(|p| vec![[p.loss, p.norm, p.rate]; before as usize]).unwrap_or_default().into();
    recent.extend(vec![[loss / since.max(1) as f64, norm / since.max(1) as f64, rate]; since as usize]);
    Ok(recent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(steps: u64) -> Curve {
        let mut curve = Curve::default();
        (1..=steps).for_each(|n| curve.push(n, 8 * n, [1.0 / n as f64, n as f64, 0.1]));
        curve
    }

    #[test]
    fn every_point_and_the_present_figure_are_means_over_the_last_steps() {
        assert_eq!(Curve::default().now(0), None);
        for steps in [1, 49, 50, 51, 123] {
            let curve = curve(steps);
            let last: Vec<u64> = (steps.saturating_sub(WINDOW) + 1..=steps).collect();
            let mean = last.iter().map(|n| 1.0 / *n as f64).sum::<f64>() / last.len() as f64;
            let now = curve.now(8 * steps).unwrap();
            assert_eq!((now.images, now.loss, curve.window()), (8 * steps, mean, last.len() as u64));
            assert_eq!(curve.points().len() as u64, steps / WINDOW);
        }
        // Where a point has just been made, it is the present figure.
        assert_eq!(curve(100).points().last().copied(), curve(100).now(800));
    }

    #[test]
    fn a_curve_survives_its_checkpoint() {
        for steps in [0, 7, 50, 61] {
            let mut tensors = BTreeMap::new();
            curve(steps).write(&mut tensors).unwrap();
            assert_eq!(Curve::read(&tensors, steps, steps).unwrap(), curve(steps));
        }
    }

    /// Older checkpoints hold sums since the last point: means over whole parts come back as they were.
    #[test]
    fn sums_of_an_older_checkpoint_are_taken_up() {
        let whole = curve(61);
        let mut tensors = BTreeMap::new();
        whole.write(&mut tensors).unwrap();
        tensors.remove(RECENT);
        let sum: f64 = (51..=61).map(|n| 1.0 / f64::from(n)).sum();
        let open = Tensor::new(&[sum, 0.0], &Device::Cpu).unwrap();
        tensors.insert(OPEN.to_owned(), open);
        let mut found = Curve::read(&tensors, 61, 61).unwrap();
        assert_eq!((found.window(), found.points()), (50, whole.points()));
        let mut sure = whole.clone();
        for n in 62..=100 {
            for curve in [&mut found, &mut sure] {
                curve.push(n, 8 * n, [1.0 / n as f64, n as f64, 0.1]);
            }
        }
        let [found, sure] = [found, sure].map(|c| c.points()[1].loss);
        assert!((found - sure).abs() < 1e-15, "{found} for {sure}");
        tensors.remove(OPEN);
        assert_eq!(Curve::read(&tensors, 61, 61).unwrap_err(), "log.recent is missing");
    }
}
