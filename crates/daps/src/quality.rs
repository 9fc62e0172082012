//! Image quality of reconstructions against the truth: every metric the paper reports, or how to get its weights.

use std::path::Path;

use candle_core::{DType, Tensor};
use daps_core::tensors::to_f64;
use daps_core::{Kind, Space};
use daps_files::Choice;
use daps_metrics::fid::frechet_distance;
use daps_metrics::image::{psnr, ssim};
use daps_metrics::inception::{FEATURES, Inception};
use daps_metrics::lpips::{Backbone, Lpips, Pooling};
use serde::Serialize;

use crate::{Error, Result, assets, load};

/// One metric over a set of images.
#[derive(Clone, Debug, Serialize)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// One value per image; one in all for FID; none where it could not be computed.
    pub values: Vec<f64>,
    /// Why there are no values, and what to do.
    pub note: Option<String>,
}

impl Metric {
    /// The mean over images.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (!self.values.is_empty()).then(|| self.values.iter().sum::<f64>() / self.values.len() as f64)
    }
}

/// PSNR and SSIM of a sample against the truth, where they are defined on its space; SSIM needs 11 pixels a side.
///
/// Images are clipped to [-1, 1]. A complex image is judged by its magnitude, clipped to the largest magnitude of the truth,
/// which is the range.
#[must_use]
pub fn of_samples(space: &Space, x: &[f64], truth: &[f64]) -> (Option<f64>, Option<f64>) {
    let Some([c, h, w]) = space.picture() else { return (None, None) };
    if space.kind() != Kind::Complex {
        return of_images(x, truth, [c, h, w]);
    }
    let plane = h * w;
    let magnitude = |v: &[f64]| (0..plane).map(|i| v[i].hypot(v[plane + i])).collect::<Vec<_>>();
    let (x, truth) = (magnitude(x), magnitude(truth));
    let largest = truth.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let image = |v: &[f64]| v.iter().map(|v| 2.0 * v / largest - 1.0).collect::<Vec<_>>();
    of_images(&image(&x), &image(&truth), [1, h, w])
}

/// PSNR and SSIM of an image in [-1, 1], clipped to it.
#[must_use]
pub fn of_images(x: &[f64], truth: &[f64], shape: [usize; 3]) -> (Option<f64>, Option<f64>) {
    if x.iter().any(|v| !v.is_finite()) {
        return (None, None);
    }
    let unit = |v: &[f64]| v.iter().map(|v| (0.5 * v + 0.5).clamp(0.0, 1.0)).collect::<Vec<_>>();
    let (x, truth) = (unit(x), unit(truth));
    (psnr(&x, &truth, 1.0).ok(), ssim(&x, &truth, shape).ok())
}

/// FID of fewer images says nothing.
pub const FEWEST_FOR_FID: usize = 100;

/// A metric of one image beside its truth.
type PerImage<'a> = dyn Fn(&[f64], &[f64]) -> daps_core::Result<f64> + 'a;

/// Images and truths `[n, channels, height, width]`, pair by pair, from pictures, folders of pictures, `.npy` or `.safetensors`
/// files. A run's own files fit: the samples of `samples.safetensors` (or another tensor of it) and the truth of
/// `measurement.safetensors`, which then stands for each of the samples. Bytes mean what they mean in a picture; other numbers that
/// no picture has are refused, because [`compare`] would clip them away.
pub fn read(images: &Path, truth: &Path, tensor: Option<&str>) -> Result<(Tensor, Tensor)> {
    let choice = tensor.map_or(Choice::Preferred("samples"), Choice::Named);
    let (a, chains) = load::as_they_are(images, choice)?;
    let (b, _) = load::as_they_are(truth, Choice::Preferred("truth"))?;
    if a.names.len() > 1 && a.names.len() == b.names.len() && a.names != b.names {
        let what = "image names differ from those of the truth; pairs need the same names";
        return Err(Error::content(images, what));
    }
    let (n, m) = (a.values.dims()[0], b.values.dims()[0]);
    // One truth of all, or one for the chains of each measurement; anything else is left to the comparison of shapes.
    let each = if m == 1 { n } else { chains };
    let truth = match n > m && n == each * m {
        true => {
            let index: Vec<u32> = (0..n).map(|i| (i / each) as u32).collect();
            b.values.index_select(&Tensor::new(index, &candle_core::Device::Cpu)?, 0)?
        }
        false => b.values,
    };
    Ok((a.values, truth))
}

/// All metrics of images `[n, channels, height, width]` in [-1, 1]; values outside are clipped first.
pub fn compare(images: &Tensor, truth: &Tensor) -> Result<Vec<Metric>> {
    let &[n, c, h, w] = images.dims() else {
        return Err(Error::Config(format!(
            "images: expected [n, channels, height, width], got {:?}",
            images.dims()
        )));
    };
    if truth.dims() != images.dims() {
        return Err(daps_core::Error::shape("truth", images.dims(), truth.dims()).into());
    }
    let clip = |t: &Tensor| t.to_dtype(DType::F64)?.clamp(-1.0, 1.0);
    let (images, truth) = (clip(images)?, clip(truth)?);
    let unit = |t: &Tensor| -> Result<Vec<f64>> { Ok(to_f64(t)?.iter().map(|v| 0.5 * v + 0.5).collect()) };
    let (a, b) = (unit(&images)?, unit(&truth)?);
    let each = |f: &PerImage| {
        a.chunks(c * h * w)
            .zip(b.chunks(c * h * w))
            .map(|(a, b)| f(a, b))
            .collect::<daps_core::Result<Vec<f64>>>()
    };
    let known = |name, values: daps_core::Result<Vec<f64>>| match values {
        Ok(values) => Metric { name, values, note: None },
        Err(error) => Metric { name, values: vec![], note: Some(error.to_string()) },
    };
    let mut all = vec![
        known("PSNR", each(&|a, b| psnr(a, b, 1.0))),
        known("SSIM", each(&|a, b| ssim(a, b, [c, h, w]))),
    ];
    for (name, backbone, pooling) in [
        ("LPIPS (VGG16)", Backbone::Vgg16, Pooling::Max),
        ("LPIPS (VGG16, mean pooling)", Backbone::Vgg16, Pooling::Mean),
        ("LPIPS (AlexNet)", Backbone::AlexNet, Pooling::Max),
    ] {
        let file = format!("lpips-{}.safetensors", backbone.name());
        all.push(match assets::load(&file)? {
            None => Metric { name, values: vec![], note: Some(assets::hint(&file)) },
            Some(_) if c != 3 => {
                known(name, Err(daps_core::Error::invalid("LPIPS", "colour images", format!("{c} channels"))))
            }
            Some(weights) => {
                known(name, Lpips::new(backbone, pooling, &weights).and_then(|l| l.distance(&images, &truth)))
            }
        });
    }
    all.push(match assets::load(assets::INCEPTION)? {
        _ if n < FEWEST_FOR_FID => {
            let note = format!("needs {FEWEST_FOR_FID} images at least, got {n}");
            Metric { name: "FID", values: vec![], note: Some(note) }
        }
        None => Metric { name: "FID", values: vec![], note: Some(assets::hint(assets::INCEPTION)) },
        Some(weights) => known(
            "FID",
            Inception::new(&weights).and_then(|network| {
                frechet_distance(&network.features(&images)?, &network.features(&truth)?, FEATURES)
                    .map(|d| vec![d])
            }),
        ),
    });
    Ok(all)
}
