//! Averages over cells with their standard errors: images are the independent draws, seeds of one image are averaged first.

use std::collections::BTreeMap;

use super::cell::Cell;
use crate::validate::mean_and_error;

/// A mean over images and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Average {
    pub mean: f64,
    /// Where there are at least two images.
    pub error: Option<f64>,
    /// Images that have the number.
    pub images: usize,
}

/// The mean over images of one number per cell.
pub(super) fn average<'a>(
    cells: impl Iterator<Item = &'a Cell>,
    of: impl Fn(&Cell) -> Option<f64>,
) -> Option<Average> {
    over(cells.filter_map(|c| Some((c.image.as_str(), of(c)?))))
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
    let means = image_means(values);
    let (mean, error) = mean_and_error(&means);
    let images = means.len();
    (images > 0).then_some(Average { mean, error: (images > 1).then_some(error), images })
}

#[cfg(test)]
mod tests {
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
        assert_eq!((whole.mean, whole.images), (16.0, 2));
        assert_eq!(median(cells.iter(), |c| c.psnr), Some(16.0));
        assert_eq!(average(cells[..1].iter(), |c| c.psnr).unwrap().error, None);
        assert_eq!(average(cells.iter(), |_| None), None);
    }
}
