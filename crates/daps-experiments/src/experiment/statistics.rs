//! Averages over cells with their standard errors: images are the independent draws, seeds of one image are averaged first.

use std::collections::BTreeMap;

use super::cell::{Cell, Column, Number};
use crate::validate::mean_and_error;

/// A mean over images and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Average {
    pub mean: f64,
    /// Where there are at least two images.
    pub error: Option<f64>,
    /// Images that have the number.
    pub images: usize,
    /// Cells that have it.
    pub cells: usize,
}

/// The mean over images of one number per cell.
pub(super) fn average<'a>(
    cells: impl Iterator<Item = &'a Cell>,
    of: impl Fn(&Cell) -> Option<f64>,
) -> Option<Average> {
    over(cells.filter_map(|c| Some((c.image.as_str(), of(c)?))))
}

/// The mean over images of a column; of a ratio of expectations, the ratio of the means.
pub(super) fn column_average(cells: &[&Cell], column: &Column) -> Option<Average> {
    let whole = column.parts.and_then(|parts| ratio(cells, parts));
    // Cells of older versions have the ratio alone.
    whole.or_else(|| average(cells.iter().copied(), column.of))
}

/// The ratio of two means over images, with the standard error that follows from its linearisation: that of the mean of
/// (a - R b)/E[b].
fn ratio(cells: &[&Cell], [a, b]: [Number; 2]) -> Option<Average> {
    let both: Vec<(&str, f64, f64)> =
        cells.iter().filter_map(|c| Some((c.image.as_str(), a(c)?, b(c)?))).collect();
    let bottom = over(both.iter().map(|(image, _, b)| (*image, *b)))?;
    let mean = over(both.iter().map(|(image, a, _)| (*image, *a)))?.mean / bottom.mean;
    let off = over(both.iter().map(|(image, a, b)| (*image, (a - mean * b) / bottom.mean)))?;
    mean.is_finite().then_some(Average { mean, ..off })
}

/// The median over images of one number per cell.
pub(super) fn median<'a>(
    cells: impl Iterator<Item = &'a Cell>,
    of: impl Fn(&Cell) -> Option<f64>,
) -> Option<f64> {
    let mut values = image_means(cells.filter_map(|c| Some((c.image.as_str(), of(c)?))));
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| 0.5 * (values[(n - 1) / 2] + values[n / 2]))
}

/// The mean over images of a difference between two methods, cell by cell: what both share of an image's difficulty cancels.
pub(super) fn paired(
    cells: &[&Cell],
    others: &[&Cell],
    of: impl Fn(&Cell) -> Option<f64>,
) -> Option<Average> {
    let at = |c: &Cell| (c.image.clone(), c.seed);
    let others: BTreeMap<(String, u64), f64> = others.iter().filter_map(|c| Some((at(c), of(c)?))).collect();
    over(cells.iter().filter_map(|c| Some((c.image.as_str(), of(c)? - others.get(&at(c))?))))
}

/// One number per image: the mean over its seeds.
fn image_means<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> Vec<f64> {
    let mut images: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    values.for_each(|(image, v)| images.entry(image).or_default().push(v));
    images.values().map(|v| v.iter().sum::<f64>() / v.len() as f64).collect()
}

fn over<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> Option<Average> {
    let mut cells = 0;
    let means = image_means(values.inspect(|_| cells += 1));
    let (mean, error) = mean_and_error(&means);
    let images = means.len();
    (images > 0).then_some(Average { mean, error: (images > 1).then_some(error), images, cells })
}

#[cfg(test)]
mod tests {
    use super::super::cell::named;
    use super::*;

    fn cell(image: &str, seed: u64, psnr: f64) -> Cell {
        Cell { image: image.into(), seed, psnr: Some(psnr), ..Cell::default() }
    }

    /// Images differ by 10 dB, methods by 1.0, 1.2 and 0.8: the pairs see the latter.
    #[test]
    fn pairs_cancel_the_images() {
        let a = [cell("a", 0, 21.0), cell("b", 0, 31.2), cell("c", 0, 40.8)];
        let b = [cell("a", 0, 20.0), cell("b", 0, 30.0), cell("c", 0, 40.0)];
        let whole = average(a.iter(), |c| c.psnr).unwrap();
        assert!((whole.mean - 31.0).abs() < 1e-12 && whole.error.unwrap() > 5.0);
        let (a, b): (Vec<&Cell>, Vec<&Cell>) = (a.iter().collect(), b.iter().collect());
        let d = paired(&a, &b, |c| c.psnr).unwrap();
        assert!((d.mean - 1.0).abs() < 1e-12 && (d.error.unwrap() - 0.2 / 3f64.sqrt()).abs() < 1e-9, "{d:?}");
    }

    #[test]
    fn seeds_of_one_image_are_no_independent_images() {
        let cells = [cell("a", 0, 10.0), cell("a", 1, 12.0), cell("b", 0, 21.0)];
        let whole = average(cells.iter(), |c| c.psnr).unwrap();
        assert_eq!((whole.mean, whole.images, whole.cells), (16.0, 2, 3));
        assert_eq!(median(cells.iter(), |c| c.psnr), Some(16.0));
        assert_eq!(average(cells[..1].iter(), |c| c.psnr).unwrap().error, None);
        assert_eq!(average(cells.iter(), |_| None), None);
    }

    /// Numerators 1 and 9 over denominators 1 and 3: 10/4, where the mean of the ratios would be 2.
    #[test]
    fn a_ratio_of_expectations_is_no_mean_of_ratios() {
        let cell = |image: &str, (apart, away): (f64, f64)| Cell {
            image: image.into(),
            diversity: Some(apart / away),
            apart: Some(apart),
            away: Some(away),
            ..Cell::default()
        };
        let cells = [cell("a", (1.0, 1.0)), cell("b", (9.0, 3.0))];
        let column = named("diversity").unwrap();
        let found = column_average(&cells.iter().collect::<Vec<_>>(), column).unwrap();
        // (a - 2.5 b)/2 is -0.75 and 0.75: a mean of two such numbers has the error 0.75.
        assert!((found.mean - 2.5).abs() < 1e-12 && (found.error.unwrap() - 0.75).abs() < 1e-12, "{found:?}");
        // Cells of older versions, which have no parts.
        let old = cells.map(|cell| Cell { apart: None, away: None, ..cell });
        assert_eq!(column_average(&old.iter().collect::<Vec<_>>(), column).unwrap().mean, 2.0);
    }
}
