//! What was done to the images of a data set so that they fit the network, and the sentences that say so.

use std::collections::BTreeMap;

use super::Fit;

/// What a file showed before it was made to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub width: usize,
    pub height: usize,
    pub grey: bool,
    pub transparent: bool,
    pub animated: bool,
}

/// How the images of a data set differ from what the network sees.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapted {
    shape: [usize; 3],
    /// None where parts are cut out, of any size.
    fit: Option<Fit>,
    /// Pictures by width and height.
    sizes: BTreeMap<(usize, usize), usize>,
    grey: usize,
    transparent: usize,
    animated: usize,
    /// The smallest and the largest number of an array.
    values: Option<(f32, f32)>,
}

impl Adapted {
    pub(super) fn new(shape: [usize; 3], fit: Fit) -> Self {
        Self { fit: Some(fit), ..Self::parts(shape) }
    }

    /// Of images of which parts are shown.
    pub(super) fn parts(shape: [usize; 3]) -> Self {
        let sizes = BTreeMap::new();
        Self { shape, fit: None, sizes, grey: 0, transparent: 0, animated: 0, values: None }
    }

    pub(super) fn add(&mut self, seen: Seen) {
        *self.sizes.entry((seen.width, seen.height)).or_default() += 1;
        self.grey += usize::from(seen.grey);
        self.transparent += usize::from(seen.transparent);
        self.animated += usize::from(seen.animated);
    }

    pub(super) fn add_values(&mut self, values: &[f32]) {
        let ends = |(low, high): (f32, f32), v: &f32| (low.min(*v), high.max(*v));
        self.values = Some(values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), ends));
    }

    fn total(&self) -> usize {
        self.sizes.values().sum()
    }

    /// How many pictures have a size for which this holds.
    fn count(&self, is: impl Fn(usize, usize) -> bool) -> usize {
        self.sizes.iter().filter(|((w, h), _)| is(*w, *h)).map(|(_, n)| n).sum()
    }

    /// "28x28", or "3 sizes from 20x20 to 64x48".
    fn sizes(&self) -> String {
        let mut sizes: Vec<(usize, usize)> = self.sizes.keys().copied().collect();
        sizes.sort_by_key(|(w, h)| w * h);
        match sizes.as_slice() {
            [] => String::new(),
            [(w, h)] => format!("{w}x{h}"),
            [(a, b), .., (c, d)] => format!("{} sizes from {a}x{b} to {c}x{d}", sizes.len()),
        }
    }

    /// A sentence for each way in which images were changed; none where all are as the network sees them, or where the
    /// configuration asked for the change.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let ([channels, height, width], total) = (self.shape, self.total());
        let mut notes = Vec::new();
        let of = |n: usize| if n == total { format!("all {total}") } else { format!("{n} of {total}") };
        let other = self.count(|w, h| (w, h) != (width, height));
        if other > 0 && self.fit == Some(Fit::Pad) && self.sizes.len() > 1 {
            let sizes = self.sizes();
            notes.push(format!("the images have {sizes}; they are padded with black to {width}x{height}"));
        }
        if other > 0 && self.fit == Some(Fit::Crop) {
            let shrunk = self.count(|w, h| w > width && h > height);
            let enlarged = self.count(|w, h| w < width || h < height);
            let cropped = self.count(|w, h| w * height != h * width);
            let parts = [(shrunk, "shrunk"), (enlarged, "enlarged"), (cropped, "cropped to the middle")];
            let parts: Vec<String> =
                parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
            notes.push(format!(
                "{} images are not {width}x{height} ({}): {}",
                of(other),
                self.sizes(),
                parts.join(", ")
            ));
            if enlarged > 0 {
                notes.push(format!(
                    "{} images are smaller than {width}x{height}: the prior learns how blurred they are when enlarged; \
                     choose a smaller network.image_size or larger images",
                    of(enlarged)
                ));
            }
        }
        if channels == 3 && self.grey > 0 {
            let all = if self.grey == total {
                "; network.channels = 1 (times patch²) makes a grey prior"
            } else {
                ""
            };
            notes.push(format!("{} images are grey: their colour channels are equal{all}", of(self.grey)));
        }
        if channels == 1 && self.grey < total {
            notes.push(format!(
                "{} images have colours: the grey network sees their luminance",
                of(total - self.grey)
            ));
        }
        if self.transparent > 0 {
            notes.push(format!(
                "{} images are transparent in places: they are laid on white",
                of(self.transparent)
            ));
        }
        if self.animated > 0 {
            notes.push(format!("{} images are animations: only the first frame is used", of(self.animated)));
        }
        if let Some((low, high)) = self.values.filter(|(low, high)| *low < -1.0 || *high > 1.0) {
            notes.push(format!(
                "the array has values from {low} to {high} and is used as it is; images usually have -1 to 1, or bytes"
            ));
        }
        notes
    }

    /// The largest size, where every image would have to be enlarged at least twice.
    #[must_use]
    pub fn far_too_small(&self) -> Option<(usize, usize)> {
        let [_, height, width] = self.shape;
        let small = self.count(|w, h| 2 * w <= width && 2 * h <= height);
        let all = self.fit == Some(Fit::Crop) && small > 0 && small == self.total();
        self.sizes.keys().copied().max_by_key(|(w, h)| w * h).filter(|_| all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapted(shape: [usize; 3], fit: Fit, sizes: &[(usize, usize, bool)]) -> Adapted {
        let mut adapted = Adapted::new(shape, fit);
        for (width, height, grey) in sizes.iter().copied() {
            adapted.add(Seen { width, height, grey, transparent: false, animated: false });
        }
        adapted
    }

    #[test]
    fn images_that_fit_and_what_was_asked_for_need_no_words() {
        assert!(adapted([3, 8, 8], Fit::Crop, &[(8, 8, false); 3]).notes().is_empty());
        assert!(adapted([1, 8, 8], Fit::Pad, &[(6, 6, true); 3]).notes().is_empty());
    }

    #[test]
    fn every_change_is_counted() {
        let sizes = [(8, 8, false), (16, 16, false), (16, 8, false), (4, 4, true), (4, 32, false)];
        let mixed = adapted([3, 8, 8], Fit::Crop, &sizes);
        assert_eq!(
            mixed.notes(),
            [
                "4 of 5 images are not 8x8 (5 sizes from 4x4 to 16x16): 1 shrunk, 2 enlarged, 2 cropped to the middle",
                "2 of 5 images are smaller than 8x8: the prior learns how blurred they are when enlarged; choose a \
                 smaller network.image_size or larger images",
                "1 of 5 images are grey: their colour channels are equal",
            ]
        );
        assert_eq!(mixed.far_too_small(), None);
        let padded = adapted([1, 8, 8], Fit::Pad, &[(6, 6, true), (8, 4, false)]);
        assert_eq!(
            padded.notes(),
            [
                "the images have 2 sizes from 8x4 to 6x6; they are padded with black to 8x8",
                "1 of 2 images have colours: the grey network sees their luminance",
            ]
        );
        let small = adapted([1, 8, 8], Fit::Crop, &[(4, 4, true), (3, 4, true)]);
        assert_eq!(small.far_too_small(), Some((4, 4)));
        let mut array = Adapted::new([1, 2, 2], Fit::Crop);
        array.add_values(&[0.0, 1.0, -1.0]);
        assert!(array.notes().is_empty());
        array.add_values(&[0.0, 255.0]);
        assert!(array.notes()[0].contains("from 0 to 255"), "{:?}", array.notes());
    }
}
