//! Overlapping tiles of an image: where they lie, and weights that sum to one at every pixel.

use std::ops::Range;

/// A part of one side, with a weight for each of its pixels.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Its first pixel.
    pub first: usize,
    /// Its weights, as many as it is long.
    pub weights: Vec<f64>,
}

impl Cut {
    /// Its pixels.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.weights.len()
    }
}

/// How one side is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The largest length of a part; one that is no shorter than the side leaves it whole.
    pub length: usize,
    /// The least overlap of two neighbours, below the length.
    pub overlap: usize,
    /// Over how many pixels, in the middle of what overlaps, one part fades into the next.
    pub fade: usize,
    /// What starts and lengths are multiples of.
    pub align: usize,
}

impl Rule {
    /// The parts of a side: equally long, but for the last, which ends with the side, and as short as their number allows.
    #[must_use]
    pub fn cuts(&self, side: usize) -> Vec<Cut> {
        let Self { length, overlap, fade, align } = *self;
        if length >= side {
            return vec![Cut { first: 0, weights: vec![1.0; side] }];
        }
        let count = (side - overlap).div_ceil(length - overlap);
        let length = (side + (count - 1) * overlap).div_ceil(count).next_multiple_of(align);
        // In units of the alignment, from the first start to the last.
        let way = side.saturating_sub(length).div_ceil(align);
        let first = |i: usize| i * way / (count - 1) * align;
        let fade_in = |i: usize, at: usize| {
            // Before the first part and after the last there is nothing to fade from or to.
            if i == 0 || i == count {
                return if i == 0 { 1.0 } else { 0.0 };
            }
            let middle = (first(i) + first(i - 1) + length) as f64 / 2.0;
            let t = ((at as f64 + 0.5 - middle) / fade as f64 + 0.5).clamp(0.0, 1.0);
            0.5 - 0.5 * (std::f64::consts::PI * t).cos()
        };
        // What has faded in so far, less what has faded in of the next part: these sum to one.
        let weight = |i: usize, at: usize| fade_in(i, at) - fade_in(i + 1, at);
        let cut = |i: usize| {
            let range = first(i)..(first(i) + length).min(side);
            Cut { first: range.start, weights: range.map(|at| weight(i, at)).collect() }
        };
        (0..count).map(cut).collect()
    }
}

/// A tile: the part of the rows and that of the columns.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// Of the rows of pixels.
    pub rows: &'a Cut,
    /// Of the columns.
    pub columns: &'a Cut,
}

impl Tile<'_> {
    /// Height and width.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        [self.rows.weights.len(), self.columns.weights.len()]
    }
}

/// The tiles of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    rows: Vec<Cut>,
    columns: Vec<Cut>,
}

impl Grid {
    /// An image cut along both sides.
    #[must_use]
    pub fn new([height, width]: [usize; 2], [rows, columns]: [Rule; 2]) -> Self {
        Self { rows: rows.cuts(height), columns: columns.cuts(width) }
    }

    /// How many tiles there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// The first tile, which is as large as any.
    #[must_use]
    pub fn largest(&self) -> [usize; 2] {
        [self.rows[0].weights.len(), self.columns[0].weights.len()]
    }

    /// All tiles, row by row.
    pub fn tiles(&self) -> impl Iterator<Item = Tile<'_>> {
        let row = |rows| self.columns.iter().map(move |columns| Tile { rows, columns });
        self.rows.iter().flat_map(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_side_and_their_weights_sum_to_one() {
        for align in [1, 4, 8, 32] {
            for (length, overlap, fade) in [(64, 32, 8), (96, 32, 32), (256, 64, 32), (128, 64, 64)] {
                let rule = Rule { length, overlap, fade, align };
                for side in [length + 1, length + 7, 2 * length - overlap, 333, 517, 768, 1024] {
                    let cuts = rule.cuts(side);
                    let mut sums = vec![0.0; side];
                    for cut in &cuts {
                        assert!(
                            cut.first.is_multiple_of(align) && cut.weights.len() <= length,
                            "{rule:?} {side}"
                        );
                        assert!(cut.range().end <= side);
                        cut.range().zip(&cut.weights).for_each(|(at, w)| sums[at] += w);
                        assert!(cut.weights.iter().all(|w| (0.0..=1.0).contains(w)));
                    }
                    assert!(sums.iter().all(|s| (s - 1.0).abs() < 1e-12), "{rule:?} {side}");
                    for two in cuts.windows(2) {
                        let shared = two[0].range().end - two[1].first;
                        // The end of the side may cut the last part short.
                        assert!(shared + align > overlap, "{rule:?} {side}: {shared}");
                        // A part counts nowhere near its own border, but at the border of the image.
                        let margin = (overlap - fade) / 2;
                        let first = &two[1].weights[..margin];
                        assert!(first.iter().all(|w| *w == 0.0), "{rule:?} {side}: {first:?}");
                        let end = two[0].weights.len() - margin;
                        assert!(two[0].weights[end..].iter().all(|w| w.abs() < 1e-15), "{rule:?} {side}");
                    }
                }
                assert_eq!(rule.cuts(length).len(), 1);
                assert_eq!(rule.cuts(length - 3)[0].weights, vec![1.0; length - 3]);
            }
        }
    }

    /// Parts are no longer than their number needs: what memory does not ask for costs nothing.
    #[test]
    fn parts_are_as_short_as_their_number_allows() {
        let cuts = Rule { length: 512, overlap: 64, fade: 32, align: 8 }.cuts(520);
        let found: Vec<_> = cuts.iter().map(|c| (c.first, c.weights.len())).collect();
        assert_eq!(found, [(0, 296), (224, 296)]);
        let grid = Grid::new([520, 100], [Rule { length: 512, overlap: 64, fade: 32, align: 8 }; 2]);
        assert_eq!((grid.count(), grid.largest()), (2, [296, 100]));
        let sizes: Vec<_> = grid.tiles().map(|t| t.size()).collect();
        assert_eq!(sizes, [[296, 100], [296, 100]]);
    }
}
