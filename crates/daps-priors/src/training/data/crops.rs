//! Random parts of images instead of whole ones: cut, turned, shrunk, and seen in another light each time that they are shown.

use std::io::Cursor;

use daps_core::open01;
use image::codecs::jpeg::{JpegDecoder, JpegEncoder};
use image::{DynamicImage, ExtendedColorType, ImageEncoder};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// How parts of images are cut and changed. Without further settings a part is cut at the image's own scale and shown as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Crops {
    /// The smallest and the largest scale: 0.5 shrinks a part of twice the network's side.
    pub scale: [f64; 2],
    /// The scale of held-out images, of which the middle is seen.
    pub held_out_scale: f64,
    /// Whether a part is turned by a multiple of 90°.
    pub quarter_turns: bool,
    /// A part is tilted by up to so many degrees.
    pub tilt: f64,
    /// Deviation of the exposure, in stops.
    pub exposure: f64,
    /// Deviation of the exposure of each colour, in stops.
    pub white_balance: f64,
    /// Deviation of the logarithm of the contrast.
    pub contrast: f64,
    /// Deviation of the logarithm of the saturation.
    pub saturation: f64,
    /// A third of the parts are blurred by a Gaussian of up to so many pixels.
    pub blur: f64,
    /// The share of parts that show the traces of JPEG, of a quality from 60 to 95.
    pub jpeg: f64,
    /// The share of parts without colours.
    pub grey: f64,
}

impl Default for Crops {
    fn default() -> Self {
        Self {
            scale: [1.0, 1.0],
            held_out_scale: 1.0,
            quarter_turns: false,
            tilt: 0.0,
            exposure: 0.0,
            white_balance: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            blur: 0.0,
            jpeg: 0.0,
            grey: 0.0,
        }
    }
}

/// What a stop of light does to a value of a picture, whose values are about the 2.2nd root of light.
const GAMMA: f64 = 2.2;
/// The share of parts that are blurred.
const BLURRED: f64 = 1.0 / 3.0;
/// Qualities of JPEG.
const QUALITY: (f64, f64) = (60.0, 95.0);
/// Brightness of red, green and blue.
const LUMA: [f32; 3] = [0.2126, 0.7152, 0.0722];

/// An image of its own size, bytes channel by channel.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub height: usize,
    pub width: usize,
    pub planes: Vec<u8>,
}

impl Crops {
    /// Refuses settings that mean nothing.
    pub fn check(&self) -> daps_core::Result<()> {
        let [low, high] = self.scale;
        let invalid = |what: &str, expected: &str, got: String| {
            Err(daps_core::Error::invalid(format!("data.crops.{what}"), expected, got))
        };
        if !(low > 0.0 && low <= high && high <= 1.0) {
            return invalid(
                "scale",
                "two numbers from above 0 to 1, the smaller first",
                format!("{:?}", self.scale),
            );
        }
        if !(self.held_out_scale > 0.0 && self.held_out_scale <= 1.0) {
            return invalid("held_out_scale", "a number above 0, at most 1", self.held_out_scale.to_string());
        }
        let amounts = [
            ("tilt", self.tilt, 45.0),
            ("exposure", self.exposure, 4.0),
            ("white_balance", self.white_balance, 4.0),
            ("contrast", self.contrast, 1.0),
            ("saturation", self.saturation, 1.0),
            ("blur", self.blur, 16.0),
            ("jpeg", self.jpeg, 1.0),
            ("grey", self.grey, 1.0),
        ];
        match amounts.into_iter().find(|(_, value, most)| !(0.0..=*most).contains(value)) {
            Some((what, value, most)) => {
                invalid(what, &format!("a number from 0 to {most}"), value.to_string())
            }
            None => Ok(()),
        }
    }

    /// The side of the square that is cut from an image, at most the image's.
    fn side(whole: &Whole, size: usize, scale: f64) -> f64 {
        (size as f64 / scale).min(whole.height.min(whole.width) as f64)
    }

    /// The middle of an image, as held-out images are seen; values from -1 to 1, channel by channel.
    pub(super) fn middle(&self, whole: &Whole, shape: [usize; 3], out: &mut [f32]) {
        let side = Self::side(whole, shape[1], self.held_out_scale);
        // Whole pixels where nothing is shrunk.
        let middle = |of: usize| ((of as f64 - side) / 2.0).floor() + side / 2.0;
        cut(whole, shape, (middle(whole.height), middle(whole.width)), side, 0.0, out);
        out.iter_mut().for_each(|v| *v = 2.0 * v.clamp(0.0, 1.0) - 1.0);
    }

    /// A random part, each of the generator's numbers for a purpose of its own; values from -1 to 1, channel by channel.
    pub(super) fn part(&self, whole: &Whole, shape: [usize; 3], rng: &mut ChaCha8Rng, out: &mut [f32]) {
        let mut uniform = || open01(rng);
        let scale = self.scale[0] * (self.scale[1] / self.scale[0]).powf(uniform());
        let side = Self::side(whole, shape[1], scale);
        let mut place =
            |of: usize| (uniform() * (of as f64 - side + 1.0)).floor().min(of as f64 - side) + side / 2.0;
        let middle = (place(whole.height), place(whole.width));
        let tilt = self.tilt.to_radians() * (2.0 * uniform() - 1.0);
        cut(whole, shape, middle, side, tilt, out);
        let (turns, mirrored) = ((4.0 * uniform()) as usize, uniform() < 0.5);
        if self.quarter_turns {
            out.chunks_mut(shape[1] * shape[2]).for_each(|plane| turn(plane, shape[1], turns, mirrored));
        }
        let (blurred, by) = (uniform() < BLURRED, uniform());
        if self.blur > 0.0 && blurred {
            out.chunks_mut(shape[1] * shape[2]).for_each(|plane| blur(plane, shape[2], self.blur * by));
        }
        self.light(shape[0], &mut uniform, out);
        let (compressed, quality) = (uniform() < self.jpeg, uniform());
        if compressed {
            let quality = QUALITY.0 + quality * (QUALITY.1 - QUALITY.0);
            jpeg(shape, quality as u8, out);
        }
        out.iter_mut().for_each(|v| *v = 2.0 * v.clamp(0.0, 1.0) - 1.0);
    }

    /// Exposure, white balance, contrast, saturation and loss of colour.
    fn light(&self, channels: usize, uniform: &mut impl FnMut() -> f64, out: &mut [f32]) {
        // A sum of three uniform numbers, with a deviation of one and an end.
        let mut spread = || 2.0 * (uniform() + uniform() + uniform() - 1.5);
        let (all, each) = (self.exposure * spread(), [0, 1, 2].map(|_| self.white_balance * spread()));
        let (contrast, saturation) =
            ((self.contrast * spread()).exp() as f32, (self.saturation * spread()).exp());
        let plane = out.len() / channels;
        for (c, values) in out.chunks_mut(plane).enumerate() {
            let gain = ((all + each[c % 3]) / GAMMA).exp2() as f32;
            if gain != 1.0 {
                values.iter_mut().for_each(|v| *v = (gain * *v).min(1.0));
            }
        }
        if contrast != 1.0 {
            let mean = out.iter().map(|v| f64::from(*v)).sum::<f64>() / out.len() as f64;
            out.iter_mut().for_each(|v| *v = (mean as f32 + contrast * (*v - mean as f32)).clamp(0.0, 1.0));
        }
        let kept = if uniform() < self.grey { 0.0 } else { saturation as f32 };
        if channels == 3 && kept != 1.0 {
            for at in 0..plane {
                let luma: f32 = (0..3).map(|c| LUMA[c] * out[c * plane + at]).sum();
                (0..3).for_each(|c| {
                    let v = &mut out[c * plane + at];
                    *v = (luma + kept * (*v - luma)).clamp(0.0, 1.0);
                });
            }
        }
    }
}

/// A square of an image, tilted about its middle (rows, columns, in pixels from the corner), as values from 0 to 1 of the wished size.
fn cut(whole: &Whole, shape: [usize; 3], middle: (f64, f64), side: f64, tilt: f64, out: &mut [f32]) {
    let [_, height, width] = shape;
    let plane = whole.height * whole.width;
    for (bytes, out) in whole.planes.chunks(plane).zip(out.chunks_mut(height * width)) {
        if tilt == 0.0 {
            let rows = Taps::new(whole.height, middle.0 - side / 2.0, side, height);
            let columns = Taps::new(whole.width, middle.1 - side / 2.0, side, width);
            resample(bytes, whole.width, &rows, &columns, out);
        } else {
            let n = side.ceil() as usize;
            let straight = straightened(whole, bytes, middle, n, tilt);
            let inset = (n as f64 - side) / 2.0;
            let taps = Taps::new(n, inset, side, height);
            resample(&straight, n, &taps, &Taps::new(n, inset, side, width), out);
        }
    }
}

/// The `n x n` pixels around a middle along tilted axes, between four neighbours each; beyond the border the image is mirrored.
fn straightened(whole: &Whole, bytes: &[u8], middle: (f64, f64), n: usize, tilt: f64) -> Vec<u8> {
    let (sin, cos) = tilt.sin_cos();
    let mirrored = |i: i64, of: usize| {
        let i = i.rem_euclid(2 * of as i64) as usize;
        i.min(2 * of - 1 - i)
    };
    let at =
        |i: i64, j: i64| f64::from(bytes[mirrored(i, whole.height) * whole.width + mirrored(j, whole.width)]);
    let value = |k: usize| {
        let (u, v) = ((k / n) as f64 + 0.5 - n as f64 / 2.0, (k % n) as f64 + 0.5 - n as f64 / 2.0);
        let (y, x) = (middle.0 + cos * u - sin * v - 0.5, middle.1 + sin * u + cos * v - 0.5);
        let (i, j) = (y.floor() as i64, x.floor() as i64);
        let (t, s) = (y - y.floor(), x - x.floor());
        let above = (1.0 - s) * at(i, j) + s * at(i, j + 1);
        let below = (1.0 - s) * at(i + 1, j) + s * at(i + 1, j + 1);
        ((1.0 - t) * above + t * below).round() as u8
    };
    (0..n * n).map(value).collect()
}

/// For every output along one side: where its inputs begin, and their weights.
struct Taps(Vec<(usize, Vec<f32>)>);

impl Taps {
    /// Antialiased cubic interpolation of a window of a side with `of` inputs.
    fn new(of: usize, start: f64, length: f64, outputs: usize) -> Self {
        let ratio = length / outputs as f64;
        let reach = 2.0 * ratio.max(1.0);
        let each = |k: usize| {
            let centre = start + (k as f64 + 0.5) * ratio - 0.5;
            let first = (centre - reach).ceil().max(0.0) as usize;
            let last = ((centre + reach).floor().max(0.0) as usize).min(of - 1);
            let weights: Vec<f64> =
                (first..=last).map(|i| cubic((i as f64 - centre) / ratio.max(1.0))).collect();
            let sum: f64 = weights.iter().sum();
            (first, weights.iter().map(|w| (w / sum) as f32).collect())
        };
        Self((0..outputs).map(each).collect())
    }
}

/// Keys' cubic with a = -0.5.
fn cubic(x: f64) -> f64 {
    let x = x.abs();
    match x {
        _ if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        _ if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        _ => 0.0,
    }
}

/// Bytes of a plane through taps along both sides, as values from 0 to 1.
fn resample(bytes: &[u8], width: usize, rows: &Taps, columns: &Taps, out: &mut [f32]) {
    let (n, first) = (columns.0.len(), rows.0.first().map_or(0, |(first, _)| *first));
    let last = rows.0.last().map_or(0, |(first, weights)| first + weights.len());
    let mut across = vec![0f32; (last - first) * n];
    for (i, out) in across.chunks_mut(n).enumerate() {
        let row = &bytes[(first + i) * width..][..width];
        for ((at, weights), out) in columns.0.iter().zip(out) {
            *out = weights.iter().zip(&row[*at..]).map(|(w, b)| w * f32::from(*b)).sum::<f32>() / 255.0;
        }
    }
    for ((at, weights), out) in rows.0.iter().zip(out.chunks_mut(n)) {
        out.fill(0.0);
        for (w, row) in weights.iter().zip(across[(at - first) * n..].chunks(n)) {
            out.iter_mut().zip(row).for_each(|(out, v)| *out += w * v);
        }
    }
}

/// Turns a square by quarters and mirrors it.
fn turn(plane: &mut [f32], n: usize, turns: usize, mirrored: bool) {
    let old = plane.to_vec();
    for (k, out) in plane.iter_mut().enumerate() {
        let (i, j) = (k / n, k % n);
        let (i, j) = match turns % 4 {
            0 => (i, j),
            1 => (j, n - 1 - i),
            2 => (n - 1 - i, n - 1 - j),
            _ => (n - 1 - j, i),
        };
        *out = old[i * n + if mirrored { n - 1 - j } else { j }];
    }
}

/// A Gaussian along both sides, the border repeated.
fn blur(plane: &mut [f32], width: usize, std: f64) {
    let reach = (3.0 * std).ceil() as i64;
    let weights: Vec<f64> = (-reach..=reach).map(|k| (-0.5 * (k as f64 / std).powi(2)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let height = plane.len() / width;
    for (count, stride, lines, next) in [(width, 1, height, width), (height, width, width, 1)] {
        for line in 0..lines {
            let old: Vec<f32> = (0..count).map(|i| plane[line * next + i * stride]).collect();
            for i in 0..count {
                let at = |k: i64| f64::from(old[(i as i64 + k).clamp(0, count as i64 - 1) as usize]);
                let value: f64 = weights.iter().zip(-reach..).map(|(w, k)| w * at(k)).sum();
                plane[line * next + i * stride] = (value / sum) as f32;
            }
        }
    }
}

/// What JPEG makes of a picture; what has no such picture stays as it is.
fn jpeg([channels, height, width]: [usize; 3], quality: u8, out: &mut [f32]) {
    let color = match channels {
        1 => ExtendedColorType::L8,
        3 => ExtendedColorType::Rgb8,
        _ => return,
    };
    let plane = height * width;
    let byte = |k: usize| (255.0 * out[k % channels * plane + k / channels].clamp(0.0, 1.0)).round() as u8;
    let bytes: Vec<u8> = (0..out.len()).map(byte).collect();
    let mut file = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut file, quality);
    let written = encoder.write_image(&bytes, width as u32, height as u32, color);
    let read =
        written.and_then(|()| JpegDecoder::new(Cursor::new(&file))).and_then(DynamicImage::from_decoder);
    let Ok(picture) = read else { return };
    let back = if channels == 1 { picture.to_luma8().into_raw() } else { picture.to_rgb8().into_raw() };
    for (k, b) in back.into_iter().enumerate() {
        out[k % channels * plane + k / channels] = f32::from(b) / 255.0;
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    fn whole(height: usize, width: usize, value: impl Fn(usize, usize, usize) -> u8) -> Whole {
        let plane = height * width;
        let planes = (0..3 * plane).map(|k| value(k / plane, k % plane / width, k % width)).collect();
        Whole { height, width, planes }
    }

    fn bytes(values: &[f32]) -> Vec<i32> {
        values.iter().map(|v| (127.5 * (v + 1.0)).round() as i32).collect()
    }

    /// At its own scale a part is a part, to the byte, and every place is as likely.
    #[test]
    fn parts_at_their_own_scale_are_cut_out() {
        let image = whole(9, 12, |c, i, j| (20 * i + j + 4 * c) as u8);
        let mut out = vec![0f32; 3 * 64];
        Crops::default().middle(&image, [3, 8, 8], &mut out);
        let of = |c: usize, i: usize, j: usize| (20 * i + j + 4 * c) as i32;
        assert_eq!(bytes(&out)[..9], [of(0, 0, 2), 3, 4, 5, 6, 7, 8, 9, of(0, 1, 2)]);
        let mut corners = std::collections::BTreeMap::new();
        for seed in 0..500 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            Crops::default().part(&image, [3, 8, 8], &mut rng, &mut out);
            let found = bytes(&out);
            let (top, left) = (found[0] / 20, found[0] % 20);
            let expected = (0..3 * 64).map(|k| of(k / 64, top as usize + k % 64 / 8, left as usize + k % 8));
            assert_eq!(found, expected.collect::<Vec<_>>());
            *corners.entry((top, left)).or_insert(0) += 1;
        }
        assert_eq!(corners.len(), 10);
        assert!(corners.values().all(|n| (50i32 - n).abs() < 30), "{corners:?}");
    }

    /// What is shrunk has the same mean, keeps a slope, and loses what is too fine for it.
    #[test]
    fn shrinking_keeps_what_is_coarse() {
        let slope = whole(64, 64, |_, i, j| (i + 2 * j) as u8);
        let crops = Crops { held_out_scale: 0.25, ..Crops::default() };
        let mut out = vec![0f32; 3 * 256];
        crops.middle(&slope, [3, 16, 16], &mut out);
        for k in [51, 100, 170] {
            let (i, j) = ((k / 16) as f32, (k % 16) as f32);
            let expected = (4.0 * i + 1.5 + 2.0 * (4.0 * j + 1.5)) / 127.5 - 1.0;
            assert!((out[k] - expected).abs() < 1e-4, "{k}: {} {expected}", out[k]);
        }
        let stripes = whole(64, 64, |_, _, j| if j % 2 == 0 { 0 } else { 200 });
        crops.middle(&stripes, [3, 16, 16], &mut out);
        let expected = 100.0 / 127.5 - 1.0;
        assert!(out.chunks(16).all(|row| row[2..14].iter().all(|v| (v - expected).abs() < 2e-2)));
    }

    /// A tilt turns about the middle: a disc stays, an edge through the middle turns by the angle.
    #[test]
    fn tilts_turn_about_the_middle() {
        let edge = whole(65, 65, |_, i, _| if i < 32 { 0 } else { 255 });
        let (mut straight, mut tilted) = (vec![0f32; 3 * 49 * 49], vec![0f32; 3 * 49 * 49]);
        cut(&edge, [3, 49, 49], (32.5, 32.5), 49.0, 0.0, &mut straight);
        cut(&edge, [3, 49, 49], (32.5, 32.5), 49.0, 20f64.to_radians(), &mut tilted);
        // The number of dark pixels above the edge in a column is where the edge crosses it.
        let crossing = |values: &[f32], j: usize| (0..49).map(|i| 1.0 - values[i * 49 + j]).sum::<f32>();
        assert_eq!((crossing(&straight, 4), crossing(&straight, 44)), (24.0, 24.0));
        let slope = (crossing(&tilted, 44) - crossing(&tilted, 4)) / 40.0;
        assert!((slope.abs() - 20f32.to_radians().tan()).abs() < 0.02, "{slope}");
        assert!((crossing(&tilted, 24) - 24.0).abs() < 0.6);
    }

    #[test]
    fn turns_and_blurs_move_what_they_should() {
        let square: Vec<f32> = (0..9).map(|v| v as f32).collect();
        let turned = |turns, mirrored| {
            let mut plane = square.clone();
            turn(&mut plane, 3, turns, mirrored);
            plane
        };
        let all: Vec<Vec<f32>> = (0..8).map(|k| turned(k % 4, k >= 4)).collect();
        assert!((1..8).all(|k| !all[..k].contains(&all[k])) && all[0] == square);
        let mut twice = all[1].clone();
        turn(&mut twice, 3, 1, false);
        assert_eq!(twice, all[2]);
        let mut dot = vec![0f32; 31 * 31];
        dot[15 * 31 + 15] = 1.0;
        blur(&mut dot, 31, 1.5);
        let moment: f32 = (0..31 * 31).map(|k| dot[k] * ((k % 31) as f32 - 15.0).powi(2)).sum();
        assert!((dot.iter().sum::<f32>() - 1.0).abs() < 1e-4 && (moment - 2.25).abs() < 0.05, "{moment}");
    }

    /// Light is changed by as much as the settings say, a share loses its colours, and JPEG leaves small traces.
    #[test]
    fn light_and_traces_follow_the_settings() {
        let image = whole(16, 16, |c, i, j| (60 + 40 * c + 2 * (i ^ j)) as u8);
        let settings = Crops { exposure: 0.5, white_balance: 0.2, grey: 0.3, jpeg: 0.5, ..Crops::default() };
        settings.check().unwrap();
        let mut plain = vec![0f32; 3 * 64];
        let (mut stops, mut grey, mut out) = (vec![], 0, vec![0f32; 3 * 64]);
        for seed in 0..400 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            Crops::default().part(&image, [3, 8, 8], &mut rng.clone(), &mut plain);
            settings.part(&image, [3, 8, 8], &mut rng, &mut out);
            let mean = |v: &[f32]| v.iter().map(|v| f64::from(v + 1.0)).sum::<f64>();
            stops.push((mean(&out) / mean(&plain)).log2() * GAMMA);
            grey += usize::from((0..64).all(|k| (out[k] - out[64 + k]).abs() < 0.03));
        }
        let deviation = (stops.iter().map(|s| s * s).sum::<f64>() / 400.0).sqrt();
        assert!((0.42..0.62).contains(&deviation), "{deviation}");
        assert!((80..=160).contains(&grey), "{grey}");
        assert!(Crops { scale: [0.5, 1.5], ..Crops::default() }.check().is_err());
        assert!(Crops { jpeg: 1.5, ..Crops::default() }.check().is_err());
    }
}
