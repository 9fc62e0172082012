//! Inpainting: some pixels are seen, the others are not. The measurement has the image's shape; where nothing is seen it
//! carries no information (0). Images may hold numbers or tokens.

pub(crate) mod tasks;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::{BLOCK, Real, check_rows, map_rows, with_slice};
use daps_core::{Error, Linear, Local, Operator, Result, Spectral, with_real};
use rayon::prelude::*;

use crate::registry;
use crate::rows::{PerRow, below, check_batch, choose_distinct, image_shape, instance_stream};

/// A mask on `[channels, height, width]` images, one for all rows or one per row.
#[derive(Debug)]
pub struct Inpainting {
    name: &'static str,
    shape: Vec<usize>,
    masks: PerRow<Vec<bool>>,
    singular: OnceLock<Vec<Vec<f64>>>,
    /// 0, 1, …: the site behind each measured token.
    sites: OnceLock<Vec<u32>>,
}

impl Inpainting {
    /// From a mask `[1 or rows, 1 or channels, height, width]` of ones (seen) and zeros.
    pub fn new(shape: &[usize], mask: &Tensor) -> Result<Self> {
        Self::named("inpaint", shape, mask)
    }

    /// The same under another name of the registry.
    pub(crate) fn named(name: &'static str, shape: &[usize], mask: &Tensor) -> Result<Self> {
        let (c, h, w) = image_shape(name, shape)?;
        match *mask.dims() {
            [rows, channels, mh, mw]
                if rows > 0 && (channels == 1 || channels == c) && (mh, mw) == (h, w) => {}
            ref other => {
                let expected = format!("shape [1 or rows, 1 or {c}, {h}, {w}]");
                return Err(Error::invalid(format!("mask of {name}"), expected, format!("{other:?}")));
            }
        }
        let values = daps_core::tensors::to_f64(mask)?;
        if let Some(bad) = values.iter().find(|v| **v != 0.0 && **v != 1.0) {
            return Err(Error::invalid(format!("mask of {name}"), "only zeros and ones", bad));
        }
        let rows = mask.dims()[0];
        let masks = values.chunks(values.len() / rows).map(|m| m.iter().map(|v| *v == 1.0).collect());
        Ok(Self {
            name,
            shape: shape.to_vec(),
            masks: PerRow::new(masks.collect()),
            singular: OnceLock::new(),
            sites: OnceLock::new(),
        })
    }

    fn masked(&self, x: &Tensor) -> Result<Tensor> {
        check_batch(self.name, x, &self.shape, self.masks.rows())?;
        if x.dtype() == DType::U8 {
            return self.masked_tokens(x);
        }
        with_real!(x.dtype(), T => map_rows::<T>(self.name, x, &self.shape, &self.shape, |row, x, out| {
            keep(self.masks.get(row), x, out);
        }))
    }

    fn masked_tokens(&self, x: &Tensor) -> Result<Tensor> {
        let kept = with_slice(x, |x: &[u8]| -> Vec<u8> {
            let row = |(row, x): (usize, &[u8])| -> Vec<u8> {
                let seen = self.masks.get(row).iter().cycle();
                x.iter().zip(seen).map(|(&x, &seen)| if seen { x } else { 0 }).collect()
            };
            x.chunks(self.modes()).enumerate().flat_map(row).collect()
        })?;
        Ok(Tensor::from_vec(kept, x.dims(), &Device::Cpu)?)
    }

    fn seen(&self, row: usize, site: usize) -> bool {
        let mask = self.masks.get(row);
        mask[site % mask.len()]
    }

    fn modes(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Copies what the mask keeps; a mask of one channel serves all. `out` is zero before.
fn keep<T: Real>(mask: &[bool], x: &[T], out: &mut [T]) {
    for (x, out) in x.chunks(mask.len()).zip(out.chunks_mut(mask.len())) {
        out.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK)).zip(mask.par_chunks(BLOCK)).for_each(
            |((out, x), mask)| {
                for ((out, &x), &kept) in out.iter_mut().zip(x).zip(mask) {
                    *out = if kept { x } else { T::default() };
                }
            },
        );
    }
}

/// A mask `[1, 1, height, width]` that hides a square of side `size` at a random place at least `margin` from the border. As in the
/// official code, the last place that would fit is not drawn, unless it is the only one.
pub fn box_mask(height: usize, width: usize, size: usize, margin: usize, seed: u64) -> Result<Tensor> {
    let side = height.min(width);
    let needed = margin.checked_mul(2).and_then(|both| both.checked_add(size));
    if size == 0 || needed.is_none_or(|needed| needed > side) {
        let expected = format!("a positive size that with twice the margin {margin} fits the side {side}");
        return Err(Error::invalid("inpaint_box size", expected, size));
    }
    let mut rng = instance_stream(seed, 0, 0);
    let mut corner = |side: usize| margin + below(&mut rng, (side - size - 2 * margin).max(1));
    let (top, left) = (corner(height), corner(width));
    let hidden = |i: usize, j: usize| (top..top + size).contains(&i) && (left..left + size).contains(&j);
    let kept: Vec<u8> = (0..height * width).map(|p| u8::from(!hidden(p / width, p % width))).collect();
    Ok(Tensor::from_vec(kept, (1, 1, height, width), &Device::Cpu)?)
}

/// A mask `[1, 1, height, width]` that hides the given fraction of the pixels.
pub fn random_mask(height: usize, width: usize, fraction: f64, seed: u64) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&fraction) {
        return Err(Error::invalid("inpaint_random fraction", "a number from 0 to 1", fraction));
    }
    let pixels = height * width;
    let mut kept = vec![1u8; pixels];
    let hidden = (fraction * pixels as f64) as usize;
    for pixel in choose_distinct(&mut instance_stream(seed, 0, 1), pixels, hidden) {
        kept[pixel] = 0;
    }
    Ok(Tensor::from_vec(kept, (1, 1, height, width), &Device::Cpu)?)
}

impl Operator for Inpainting {
    fn name(&self) -> &str {
        self.name
    }

    fn title(&self) -> Cow<'_, str> {
        registry::title(self.name())
    }

    fn input_shape(&self) -> &[usize] {
        &self.shape
    }

    fn output_shape(&self) -> &[usize] {
        &self.shape
    }

    fn factors(&self) -> usize {
        self.shape[0]
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        self.masked(x)
    }

    fn visible(&self) -> Option<Vec<Vec<bool>>> {
        Some(self.singular().iter().map(|row| row.iter().map(|s| *s != 0.0).collect()).collect())
    }

    fn rows(&self) -> Option<usize> {
        self.masks.rows()
    }

    fn select(self: Arc<Self>, rows: &[usize]) -> Result<Arc<dyn Operator>> {
        if self.masks.rows().is_none() {
            return Ok(self);
        }
        let masks = self.masks.select(rows)?;
        Ok(Arc::new(Self {
            name: self.name,
            shape: self.shape.clone(),
            masks,
            singular: OnceLock::new(),
            sites: OnceLock::new(),
        }))
    }

    fn as_linear(&self) -> Option<&dyn Linear> {
        Some(self)
    }

    fn as_spectral(&self) -> Option<&dyn Spectral> {
        Some(self)
    }

    fn as_local(&self) -> Option<&dyn Local> {
        Some(self)
    }
}

impl Local for Inpainting {
    fn sites_of(&self, row: usize, output: usize) -> &[u32] {
        let sites = self.sites.get_or_init(|| (0..self.modes() as u32).collect());
        if self.seen(row, output) { &sites[output..=output] } else { &[] }
    }

    fn value(&self, row: usize, output: usize, x: &[u8]) -> u8 {
        if self.seen(row, output) { x[output] } else { 0 }
    }
}

impl Linear for Inpainting {
    fn diagonal(&self) -> Option<&[Vec<f64>]> {
        // U and V are the identity: the singular values are the entries.
        Some(self.singular())
    }

    fn adjoint(&self, r: &Tensor) -> Result<Tensor> {
        self.masked(r)
    }

    fn norm_squared(&self) -> Option<Vec<f64>> {
        Some(self.masks.iter().map(|mask| f64::from(u8::from(mask.contains(&true)))).collect())
    }
}

/// U and V are the identity; a singular value is 1 where a pixel is seen and 0 elsewhere.
impl Spectral for Inpainting {
    fn singular(&self) -> &[Vec<f64>] {
        self.singular.get_or_init(|| {
            let row = |mask: &Vec<bool>| {
                let one: Vec<f64> = mask.iter().map(|&kept| f64::from(u8::from(kept))).collect();
                one.repeat(self.modes() / mask.len())
            };
            self.masks.iter().map(row).collect()
        })
    }

    fn v_t(&self, x: &Tensor) -> Result<Tensor> {
        let batch = check_batch(self.name, x, &self.shape, self.masks.rows())?;
        check_float(x)?;
        Ok(x.reshape((batch, self.modes()))?)
    }

    fn v(&self, c: &Tensor) -> Result<Tensor> {
        let batch = check_rows(self.name, c, &[self.modes()])?;
        check_float(c)?;
        Ok(c.reshape(daps_core::tensors::batched(batch, &self.shape))?)
    }

    fn u_t(&self, y: &Tensor) -> Result<Tensor> {
        self.v_t(y)
    }

    fn u(&self, c: &Tensor) -> Result<Tensor> {
        self.v(c)
    }
}

fn check_float(x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F32 | DType::F64 => Ok(()),
        other => Err(Error::invalid("tensor", "type f32 or f64", format!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(mask: &Tensor) -> usize {
        daps_core::tensors::to_f64(mask).unwrap().iter().filter(|v| **v == 0.0).count()
    }

    #[test]
    fn masks_hide_what_they_say() {
        for seed in 0..20 {
            let mask = box_mask(32, 48, 16, 4, seed).unwrap();
            assert_eq!(hidden(&mask), 256);
            let inner = mask.narrow(2, 4, 24).unwrap().narrow(3, 4, 40).unwrap();
            assert_eq!(hidden(&inner), 256, "the margin stays free");
            assert_eq!(hidden(&random_mask(32, 48, 0.7, seed).unwrap()), 1075);
        }
        let values = |seed| daps_core::tensors::to_f64(&random_mask(8, 8, 0.5, seed).unwrap()).unwrap();
        assert_ne!(values(0), values(1));
    }

    /// NumPy's `randint(margin, side - margin - size)`, whose upper end is left out: of 8 - 3 - 2 = 3 places, all are drawn, and
    /// the one that would just fit is not. A box that fits in one place only is put there.
    #[test]
    fn boxes_are_drawn_from_the_official_range() {
        let corner = |side: usize, size: usize, margin: usize, seed: u64| {
            let mask =
                daps_core::tensors::to_f64(&box_mask(side, side, size, margin, seed).unwrap()).unwrap();
            let first = mask.iter().position(|v| *v == 0.0).unwrap();
            (first / side, first % side)
        };
        let mut seen = [[false; 5]; 5];
        for seed in 0..200 {
            let (top, left) = corner(8, 3, 1, seed);
            seen[top][left] = true;
        }
        for (top, row) in seen.iter().enumerate() {
            for (left, seen) in row.iter().enumerate() {
                assert_eq!(*seen, (1..4).contains(&top) && (1..4).contains(&left), "{top}, {left}");
            }
        }
        assert_eq!(corner(8, 6, 1, 0), (1, 1));
        assert_eq!(corner(8, 5, 1, 0), (1, 1));
    }

    #[test]
    fn bad_masks_are_refused() {
        let mask = |v: f32, shape: &[usize]| Tensor::full(v, shape, &Device::Cpu).unwrap();
        for (bad, word) in [
            (mask(1.0, &[1, 1, 4, 5]), "expected shape [1 or rows, 1 or 3, 4, 4]"),
            (mask(0.5, &[1, 1, 4, 4]), "only zeros and ones"),
            (mask(f32::NAN, &[1, 1, 4, 4]), "only zeros and ones"),
            (mask(1.0, &[1, 2, 4, 4]), "1 or 3"),
        ] {
            let error = Inpainting::new(&[3, 4, 4], &bad).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(box_mask(8, 8, 8, 1, 0).is_err());
        assert!(random_mask(8, 8, 1.5, 0).is_err());
    }
}
