//! Labels in pictures: lines of DejaVu Sans, measured before they are drawn.

use std::sync::OnceLock;

use ab_glyph::{Font, FontRef, Glyph, GlyphId, OutlinedGlyph, PxScale, PxScaleFont, ScaleFont, point};

static FILE: &[u8] = include_bytes!("../assets/fonts/DejaVuSans.ttf");

/// Size in pixels of labels beside small images.
pub const SMALL: f32 = 14.0;
/// Size in pixels of headings.
pub const LARGE: f32 = 20.0;

type Scaled = PxScaleFont<&'static FontRef<'static>>;

/// The font at a size in pixels an em, as other programs count; the library counts from the lowest to the highest letter.
/// The file is part of the program. A test draws with it, so nothing here has to fail at run time.
fn scaled(size: f32) -> Option<Scaled> {
    static FONT: OnceLock<Option<FontRef<'static>>> = OnceLock::new();
    let font = FONT.get_or_init(|| FontRef::try_from_slice(FILE).ok()).as_ref()?;
    Some(font.as_scaled(PxScale::from(size * font.height_unscaled() / font.units_per_em()?)))
}

/// Whether a letter is an accent of the letter before it, such as that of x̂.
fn is_accent(letter: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&letter)
}

/// The letters of a line that starts at (0, 0) on its base line, and where the next letter would start.
fn placed(font: &Scaled, text: &str) -> (Vec<Glyph>, f32) {
    let mut glyphs: Vec<Glyph> = Vec::new();
    let (mut end, mut last): (f32, Option<GlyphId>) = (0.0, None);
    for letter in text.chars() {
        let mut glyph = font.scaled_glyph(letter);
        if is_accent(letter) {
            if let Some(base) = glyphs.last() {
                glyph.position = above(font, base, glyph.id);
            }
        } else {
            end += last.map_or(0.0, |last| font.kern(last, glyph.id));
            glyph.position = point(end, 0.0);
            end += font.h_advance(glyph.id);
            last = Some(glyph.id);
        }
        glyphs.push(glyph);
    }
    (glyphs, end)
}

/// Where an accent stands in the middle over a letter, without touching it. The font says so in tables that the library does
/// not read.
fn above(font: &Scaled, base: &Glyph, accent: GlyphId) -> ab_glyph::Point {
    let (Some(below), Some(own)) = (font.font.outline(base.id), font.font.outline(accent)) else {
        return base.position;
    };
    let middle = |b: &ab_glyph::Rect| (b.min.x + b.max.x) / 2.0;
    let across = (middle(&below.bounds) - middle(&own.bounds)) * font.h_scale_factor();
    // In the font's own units y grows upwards, and `min` is the upper edge.
    let lift = (below.bounds.min.y - own.bounds.max.y).max(0.0) * font.v_scale_factor();
    point(base.position.x + across, base.position.y - lift)
}

/// How many pixels a line of text is wide.
#[must_use]
pub fn width(text: &str, size: f32) -> usize {
    let Some(font) = scaled(size) else { return 0 };
    let (glyphs, end) = placed(&font, text);
    let ink = glyphs.into_iter().filter_map(|g| font.outline_glyph(g)).map(|g| g.px_bounds().max.x);
    ink.fold(end, f32::max).ceil() as usize
}

/// Where the base line is below the top of a line: on a whole pixel, so that letters look the same in every line, and low enough
/// for an accent over a tall letter, which reaches above what the font calls its ascent.
fn base(font: &Scaled, size: f32) -> f32 {
    (font.ascent() + 0.08 * size).ceil()
}

/// How many pixels a line of text is high, from the top of an accented capital to the bottom of a g.
#[must_use]
pub fn height(size: f32) -> usize {
    scaled(size).map_or(0, |font| (base(&font, size) - font.descent()).ceil() as usize)
}

/// Calls `pixel` with every pixel that a line of text covers, relative to its upper left corner, and the covered share.
pub fn draw(text: &str, size: f32, mut pixel: impl FnMut(usize, usize, f32)) {
    let Some(font) = scaled(size) else { return };
    let base = base(&font, size);
    let outlines = placed(&font, text).0.into_iter().filter_map(|g| font.outline_glyph(g));
    outlines.for_each(|glyph: OutlinedGlyph| {
        let corner = glyph.px_bounds().min;
        glyph.draw(|x, y, share| {
            let (x, y) = (corner.x + x as f32, corner.y + base + y as f32);
            if share > 0.0 && x >= 0.0 && y >= 0.0 {
                pixel(x as usize, y as usize, share.min(1.0));
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pixels of a text that are covered at least a little.
    fn ink(text: &str, size: f32) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        draw(text, size, |x, y, share| {
            if share > 0.05 {
                all.push((x, y));
            }
        });
        all
    }

    #[test]
    fn a_text_stays_within_what_was_measured() {
        for size in [9.0, SMALL, LARGE, 33.0] {
            for text in
                ["truth", "measurement", "High dynamic range", "x̂₀ x₀|y xₜ", "σ = 0.123", "Ågjpqy", "f"]
            {
                let (w, h) = (width(text, size), height(size));
                let ink = ink(text, size);
                assert!(!ink.is_empty(), "{text}");
                assert!(ink.iter().all(|&(x, y)| x < w && y < h), "{text} at {size}: {w} x {h}");
                let right = ink.iter().map(|p| p.0).max().unwrap();
                assert!(w - right <= (size / 4.0).ceil() as usize, "{text} at {size}: {w} for {right}");
            }
        }
        assert_eq!(width("", SMALL), 0);
        assert!(width("mmmm", SMALL) > 2 * width("iiii", SMALL), "letters have widths of their own");
    }

    /// Letters of our labels that a small font lacks: each has a shape of its own, not the box of a missing one.
    #[test]
    fn labels_have_their_letters() {
        let missing = ink("\u{10fffd}", 40.0);
        assert!(!missing.is_empty(), "a missing letter is seen");
        for letter in "σβχ²ε₀ₜ|‖±×→–".chars() {
            let drawn = ink(&letter.to_string(), 40.0);
            assert!(!drawn.is_empty() && drawn != missing, "{letter}");
        }
    }

    /// A hat is in the middle over its letter, small or large, and moves no other letter.
    #[test]
    fn an_accent_stands_over_its_letter() {
        let mut heights = vec![];
        for letter in ["x", "X", "b"] {
            let size = 60.0;
            let (plain, hat) = (ink(letter, size), ink(&format!("{letter}\u{302}"), size));
            let accent: Vec<_> = hat.iter().filter(|p| !plain.contains(p)).collect();
            let middle = |of: &mut dyn Iterator<Item = usize>| {
                let all: Vec<usize> = of.collect();
                (all.iter().min().unwrap() + all.iter().max().unwrap()) as f64 / 2.0
            };
            let over = middle(&mut accent.iter().map(|p| p.0));
            let under = middle(&mut plain.iter().map(|p| p.0));
            assert!((over - under).abs() <= 1.0, "{letter}: {over} over {under}");
            let lowest = accent.iter().map(|p| p.1).max().unwrap();
            let top = plain.iter().map(|p| p.1).min().unwrap();
            heights.push(lowest - accent.iter().map(|p| p.1).min().unwrap());
            assert!(lowest < top, "{letter}: an accent down to {lowest} over a letter from {top}");
        }
        assert!(heights.iter().all(|h| h.abs_diff(heights[0]) <= 1), "an accent is cut: {heights:?}");
        assert_eq!(width("x\u{302}0", SMALL), width("x0", SMALL));
    }
}
