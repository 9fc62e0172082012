//! Denoisers on tiles against the same denoisers on whole images.

use daps_core::candle::{DType, Tensor};
use daps_core::tensors::{batched, check_rows, from_f64};
use daps_core::{Cotangent, Denoiser, DifferentiableDenoiser, LocalDenoiser, LocalFactor, Result, Sigma};
use daps_priors::Memory;
use daps_priors::network::{AnySize, Tiled, Tiling};

use crate::common::{normals, values};

/// How far the stand-in sees along each side.
const REACH: usize = 7;

/// b + b²/10 of b, the mean of the pixels within reach over 1 + σ², zeros beyond the border; or, of one that sees everything, the same of
/// the image without its mean and over its deviation, as a norm over space makes it.
#[derive(Clone)]
struct Local {
    shape: Vec<usize>,
    reach: usize,
    normalises: bool,
}

impl Local {
    fn new(height: usize, width: usize) -> Self {
        Self { shape: vec![2, height, width], reach: REACH, normalises: false }
    }

    /// The mean along both sides; its own transpose.
    fn mean(&self, x: &[f64]) -> Vec<f64> {
        let (height, width) = (self.shape[1], self.shape[2]);
        let mut out = x.to_vec();
        for (side, step, from) in [(width, 1, 1), (height, width, 0)] {
            let before = out.clone();
            for (k, out) in out.iter_mut().enumerate() {
                let at = if from == 1 { k % width } else { k / width % height };
                let near = at.saturating_sub(self.reach)..(at + self.reach + 1).min(side);
                let sum: f64 = near.map(|other| before[k + other * step - at * step]).sum();
                *out = sum / (2 * self.reach + 1) as f64;
            }
        }
        out
    }

    fn seen(&self, x: &Tensor, sigma: &Sigma) -> Result<Vec<f64>> {
        let rows = check_rows("x", x, &self.shape)?;
        let (mut x, size) = (values(x), self.shape.iter().product::<usize>());
        if self.normalises {
            for row in x.chunks_mut(size) {
                let mean = row.iter().sum::<f64>() / size as f64;
                let deviation = (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / size as f64).sqrt();
                row.iter_mut().for_each(|v| *v = (*v - mean) / deviation);
            }
        }
        let mut b = self.mean(&x);
        (0..rows)
            .for_each(|i| b[i * size..][..size].iter_mut().for_each(|b| *b /= 1.0 + sigma.row(i).powi(2)));
        if self.normalises {
            // What a denoiser keeps of the image itself.
            b.iter_mut().zip(&x).for_each(|(b, x)| *b += 0.3 * x);
        }
        Ok(b)
    }
}

impl Denoiser for Local {
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn dtype(&self) -> DType {
        DType::F64
    }
    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        let b = self.seen(x, sigma)?;
        from_f64(b.iter().map(|b| b + 0.1 * b * b).collect(), x.dims(), DType::F64)
    }
    fn as_differentiable(&self) -> Option<&dyn DifferentiableDenoiser> {
        Some(self)
    }
    fn as_local(&self) -> Option<&dyn LocalDenoiser> {
        Some(self)
    }
}

impl DifferentiableDenoiser for Local {
    fn denoise_vjp(&self, x: &Tensor, sigma: &Sigma, cotangent: &Cotangent) -> Result<(Tensor, Tensor)> {
        let (b, denoised) = (self.seen(x, sigma)?, self.denoise(x, sigma)?);
        let size = b.len() / x.dims()[0];
        let v = values(&cotangent(&denoised)?);
        let inner = |k: usize| (1.0 + 0.2 * b[k]) * v[k] / (1.0 + sigma.row(k / size).powi(2));
        let vjp = self.mean(&(0..b.len()).map(inner).collect::<Vec<_>>());
        Ok((denoised, from_f64(vjp, x.dims(), DType::F64)?))
    }
}

impl LocalDenoiser for Local {
    fn denoise_local(&self, x: &Tensor, sigma: f64) -> Result<(Tensor, LocalFactor)> {
        let sigma = Sigma::Same(sigma);
        let factor = self.seen(x, &sigma)?.into_iter().map(f64::exp).collect();
        let factor = LocalFactor { factor: from_f64(factor, x.dims(), DType::F64)?, from: 0.2 };
        Ok((self.denoise(x, &sigma)?, factor))
    }
}

impl AnySize for Local {
    fn at_size(&self, height: usize, width: usize) -> Result<Self> {
        Ok(Self { shape: vec![2, height, width], ..self.clone() })
    }
}

/// One byte a pixel, and two for derivatives.
fn tiled(of: Local, reach: Option<usize>, memory: u64) -> Tiled<Local> {
    Tiled::new(of, Tiling { align: 8, reach, bytes: [1.0, 2.0], memory: Memory::new(memory) }).unwrap()
}

fn close(got: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(got.dims(), expected.dims(), "{what}");
    let (got, expected) = (values(got), values(expected));
    let off = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off <= tolerance, "{what}: {off}");
}

const SIZES: [(usize, usize); 4] = [(333, 517), (300, 131), (129, 400), (256, 256)];

#[test]
fn what_is_seen_within_the_overlap_is_the_same_on_tiles() {
    for (height, width) in SIZES {
        let whole = Local::new(height, width);
        let x = normals(1, 2, whole.shape());
        let sigma = Sigma::Rows(vec![0.3, 0.8]);
        for memory in [128 * 128, 160 * 160, 129 * 160] {
            let tiles = tiled(whole.clone(), Some(REACH), memory);
            assert!(tiles.grid().count() > 1 && tiles.describe().is_some());
            let [h, w] = tiles.grid().largest();
            assert!(
                (h.next_multiple_of(8) * w.next_multiple_of(8)) as u64 <= memory,
                "{h} x {w} in {memory}"
            );
            let what = format!("{height} x {width} in {memory}");
            let (got, expected) = (tiles.denoise(&x, &sigma).unwrap(), whole.denoise(&x, &sigma).unwrap());
            close(&got, &expected, 1e-14, &what);
            let local = |of: &dyn LocalDenoiser| of.denoise_local(&x, 0.5).unwrap();
            let (got, expected) = (local(tiles.as_local().unwrap()), local(&whole));
            close(&got.0, &expected.0, 1e-14, &what);
            close(&got.1.factor, &expected.1.factor, 1e-13, &what);
            assert_eq!(got.1.from, 0.2);
        }
    }
}

#[test]
fn derivatives_of_tiles_are_those_of_the_whole_and_see_all_of_d() {
    for (height, width) in SIZES {
        let whole = Local::new(height, width);
        let (x, y) = (normals(1, 2, whole.shape()), normals(2, 2, whole.shape()));
        let sigma = Sigma::Rows(vec![0.3, 0.8]);
        // The mean couples all pixels: no tile could know it.
        let cotangent = |d: &Tensor| -> Result<Tensor> {
            Ok((d - &y)?.broadcast_sub(&d.mean_all()?)?.to_dtype(DType::F64)?)
        };
        let tiles = tiled(whole.clone(), Some(REACH), 2 * 144 * 144);
        let (got, expected) = (
            tiles.denoise_vjp(&x, &sigma, &cotangent).unwrap(),
            whole.denoise_vjp(&x, &sigma, &cotangent).unwrap(),
        );
        close(&got.0, &expected.0, 1e-14, "D");
        close(&got.1, &expected.1, 1e-13, &format!("derivative at {height} x {width}"));
    }
}

/// What is seen lies partly beyond the tiles, so that tiles are another function; its derivative is its own.
#[test]
fn derivatives_of_tiles_that_disagree_are_those_of_what_they_give() {
    let whole = Local { reach: 40, ..Local::new(200, 170) };
    let tiles = Tiled::new(
        whole.clone(),
        Tiling { align: 8, reach: Some(0), bytes: [1.0, 1.0], memory: Memory::new(128 * 128) },
    )
    .unwrap();
    let (x, u, v) =
        (normals(1, 1, whole.shape()), normals(2, 1, whole.shape()), normals(3, 1, whole.shape()));
    let sigma = Sigma::Same(0.4);
    let at = |h: f64| values(&tiles.denoise(&(&x + (&u * h).unwrap()).unwrap(), &sigma).unwrap());
    let (up, down, h) = (at(1e-4), at(-1e-4), 1e-4);
    assert_ne!(values(&tiles.denoise(&x, &sigma).unwrap()), values(&whole.denoise(&x, &sigma).unwrap()));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let along: Vec<f64> = up.iter().zip(&down).map(|(a, b)| (a - b) / (2.0 * h)).collect();
    let (_, vjp) = tiles.denoise_vjp(&x, &sigma, &|_| Ok(v.clone())).unwrap();
    let (forth, back) = (dot(&along, &values(&v)), dot(&values(&vjp), &values(&u)));
    assert!((forth - back).abs() < 1e-7 * forth.abs().max(1.0), "{forth} and {back}");
}

/// Of any batch and any memory that leads to the same tiles, to the bit.
#[test]
fn rows_do_not_know_each_other() {
    let whole = Local { normalises: true, ..Local::new(150, 141) };
    let x = normals(4, 5, whole.shape());
    let levels = [0.1, 0.4, 0.2, 3.0, 0.7];
    let alone = tiled(whole.clone(), None, 128 * 128);
    assert_eq!(alone.count().now(), (0, 0));
    let row = |i: usize| x.narrow(0, i, 1).unwrap();
    let one: Vec<f64> =
        (0..5).flat_map(|i| values(&alone.denoise(&row(i), &levels[i].into()).unwrap())).collect();
    assert_eq!(values(&alone.denoise(&x, &Sigma::Rows(levels.to_vec())).unwrap()), one);
    assert_eq!(alone.count().now(), (20, 20));
    // Whole images, in calls of one row, of two, and of all.
    let one: Vec<f64> =
        (0..5).flat_map(|i| values(&whole.denoise(&row(i), &levels[i].into()).unwrap())).collect();
    for rows in [1, 2, 5] {
        let calls = tiled(whole.clone(), None, rows * 152 * 144);
        assert!(calls.grid().count() == 1 && calls.grid().largest() == [150, 141]);
        assert_eq!(values(&calls.denoise(&x, &Sigma::Rows(levels.to_vec())).unwrap()), one, "{rows}");
        let vjp = |of: &dyn DifferentiableDenoiser| {
            values(&of.denoise_vjp(&x, &Sigma::Rows(levels.to_vec()), &|d| Ok(d.clone())).unwrap().1)
        };
        let local = Local { normalises: false, ..whole.clone() };
        assert_eq!(vjp(&tiled(local.clone(), None, 2 * rows * 152 * 144)), vjp(&local), "{rows}");
    }
    let error = alone.denoise(&x, &Sigma::Rows(vec![0.1; 4])).unwrap_err().to_string();
    assert!(error.contains("one for each of 5 rows"), "{error}");
    assert!(alone.denoise(&normals(1, 1, &[2, 150, 140]), &0.1.into()).is_err());
}

#[test]
fn too_little_memory_is_refused_with_the_least_that_is_enough() {
    let with = |size: (usize, usize), memory: u64| {
        let tiling = Tiling { align: 8, reach: None, bytes: [1000.0, 2000.0], memory: Memory::new(memory) };
        Tiled::new(Local::new(size.0, size.1), tiling)
    };
    let refused = |size, memory| with(size, memory).err().unwrap().to_string();
    let message = refused((500, 400), 16_000_000);
    assert_eq!(
        message,
        "memory: expected at least 17MB for a call of the network on 128x128 pixels, got 16MB"
    );
    assert!(with((500, 400), 17_000_000).is_ok());
    // A narrow image is no wider than it is.
    let message = refused((500, 50), 7_000_000);
    assert!(
        message.contains("at least 8MB for a call of the network on 128x56 pixels, got 7MB"),
        "{message}"
    );
    assert!(with((500, 50), 8_000_000).is_ok());
    assert!(refused((30, 50), 1_000_000).contains("32x56 pixels"));
    // Enough for D, and not for its derivative.
    let tiles = with((500, 400), 20_000_000).unwrap();
    let x = normals(1, 1, tiles.shape());
    let message = tiles.denoise_vjp(&x, &0.1.into(), &|d| Ok(d.clone())).unwrap_err().to_string();
    assert!(message.contains("at least 33MB for a derivative of the network on 128x128 pixels"), "{message}");
}

/// How far the mean step from a line to the next is from chance at each line, in standard errors, of an image that is alike everywhere.
fn steps(image: &[f64], [height, width]: [usize; 2], down: bool) -> Vec<f64> {
    let (lines, along) = if down { (height, width) } else { (width, height) };
    let at = |line: usize, k: usize| if down { line * width + k } else { k * width + line };
    let planes = image.len() / (height * width);
    let step = |line: usize| -> Vec<f64> {
        let places = (0..planes * along).map(|k| k / along * height * width + at(line, k % along));
        let next = at(1, 0);
        places.map(|place| image[place + next] - image[place]).collect()
    };
    let all: Vec<Vec<f64>> = (0..lines - 1).map(step).collect();
    let count = (planes * along) as f64;
    let square = all.iter().flatten().map(|v| v * v).sum::<f64>() / (count * all.len() as f64);
    all.iter().map(|v| v.iter().sum::<f64>() / (count * square).sqrt()).collect()
}

/// A denoiser that normalises over what it sees: neighbouring tiles disagree, and yet nothing shows where they meet.
#[test]
fn steps_across_the_borders_of_tiles_are_as_anywhere() {
    let size = [300, 330];
    let whole = Local { normalises: true, ..Local::new(size[0], size[1]) };
    // An image whose contrast and brightness change from corner to corner, so that tiles normalise by different numbers.
    let noise = values(&normals(8, 1, whole.shape()));
    let ramp = |k: usize| (k / size[1] % size[0] + k % size[1]) as f64 / 630.0;
    let x: Vec<f64> =
        noise.iter().enumerate().map(|(k, z)| (1.0 + 0.15 * ramp(k)) * z + 1.5 * ramp(k)).collect();
    let x = from_f64(x, &batched(1, whole.shape()), DType::F64).unwrap();
    let tiles = tiled(whole.clone(), None, 128 * 128);
    let (smooth, untiled) =
        (values(&tiles.denoise(&x, &0.2.into()).unwrap()), values(&whole.denoise(&x, &0.2.into()).unwrap()));
    // The same tiles, cut in the middle of what overlaps: the slow way to see that the test would notice.
    let mut hard = vec![0.0; smooth.len()];
    for tile in tiles.grid().tiles() {
        let [h, w] = tile.size();
        let part = x.narrow(2, tile.rows.first, h).unwrap().narrow(3, tile.columns.first, w).unwrap();
        let part = values(&whole.at_size(h, w).unwrap().denoise(&part, &0.2.into()).unwrap());
        for (k, value) in part.iter().enumerate() {
            let (c, i, j) = (k / (h * w), k / w % h, k % w);
            if tile.rows.weights[i] >= 0.5 && tile.columns.weights[j] >= 0.5 {
                hard[(c * size[0] + tile.rows.first + i) * size[1] + tile.columns.first + j] = *value;
            }
        }
    }
    let most = |image: &[f64]| {
        let both = [true, false].map(|down| steps(image, size, down));
        both.concat().into_iter().map(f64::abs).fold(0.0, f64::max)
    };
    let (smooth, untiled, hard) = (most(&smooth), most(&untiled), most(&hard));
    // The largest of 628 standard normals is below 4.5 but for one case in 200.
    assert!(untiled < 4.5 && smooth < 4.5, "{smooth} on tiles, {untiled} untiled");
    assert!(hard > 6.0, "{hard}");
}
