//! Networks at sizes that they do not divide: reflected, run, cropped.

use std::collections::BTreeMap;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::tensors::to_f64;
use daps_core::{Denoiser, DifferentiableDenoiser, Sigma};
use daps_priors::network::Architecture;
use daps_priors::{Memory, NetworkConfig, NetworkPrior};

use crate::common::{normals, values};

/// A tiny network that divides images by eight, two for its patches, with weights of its own in every layer.
fn tiny() -> NetworkPrior {
    let config = NetworkConfig::parse(
        "patch = 2\n[network]\nkind = 'song'\nimage_size = 8\nchannels = 4\nmodel_channels = 8\nchannel_mult = [1, 1, 2]\n\
         num_blocks = 1\nattn_resolutions = []\n[preconditioning]\nkind = 'edm'\n",
    )
    .unwrap();
    assert!(matches!(config.network, Architecture::Song(_)) && config.factor() == 8);
    let (_, variables) = NetworkPrior::fresh(&config, 3, &Device::Cpu).unwrap();
    let drawn = |(i, (name, v)): (usize, (&String, &daps_core::candle::Var))| {
        let values = (normals(i as u64, 1, v.dims()).get(0).unwrap() * 0.2).unwrap();
        (name.clone(), if name.ends_with("resample_filter") { v.as_tensor().clone() } else { values })
    };
    let tensors: BTreeMap<String, Tensor> = variables.iter().enumerate().map(drawn).collect();
    NetworkPrior::new(&config, tensors).unwrap()
}

fn image(seed: u64, rows: usize, height: usize, width: usize) -> Tensor {
    normals(seed, rows, &[1, height, width]).to_dtype(DType::F32).unwrap()
}

/// The pixels of a side of this length that a padded one shows.
fn reflected(side: usize) -> Vec<u32> {
    let there: Vec<u32> = (0..side as u32).collect();
    let back: Vec<u32> = there[..side - 1].iter().skip(1).rev().copied().collect();
    let once: Vec<u32> = there.into_iter().chain(back).collect();
    once.iter().cycle().take(side.next_multiple_of(8)).copied().collect()
}

fn padded(x: &Tensor) -> Tensor {
    let by = |side: usize| Tensor::from_vec(reflected(side), side.next_multiple_of(8), &Device::Cpu).unwrap();
    let (height, width) = (x.dims()[2], x.dims()[3]);
    x.index_select(&by(height), 2).unwrap().index_select(&by(width), 3).unwrap()
}

fn cropped(x: &Tensor, height: usize, width: usize) -> Tensor {
    x.narrow(2, 0, height).unwrap().narrow(3, 0, width).unwrap()
}

const SIZES: [(usize, usize); 7] = [(1, 1), (2, 3), (5, 40), (33, 7), (17, 23), (8, 9), (24, 16)];

#[test]
fn any_size_is_that_of_the_reflected_image_cropped() {
    let prior = tiny();
    for (height, width) in SIZES {
        let (x, sigma) = (image(1, 2, height, width), Sigma::Rows(vec![0.2, 3.0]));
        let own = prior.clone().with_size(height, width).unwrap();
        let large = padded(&x);
        let whole = prior.clone().with_size(large.dims()[2], large.dims()[3]).unwrap();
        let got = own.denoise(&x, &sigma).unwrap();
        let expected = cropped(&whole.denoise(&large, &sigma).unwrap(), height, width);
        // To the bit, and where nothing is added these are one call.
        assert_eq!(to_f64(&got).unwrap(), to_f64(&expected).unwrap(), "{height} x {width}");
    }
}

#[test]
fn derivatives_at_any_size_are_transposes() {
    let prior = tiny();
    for (height, width) in SIZES {
        let own = prior.clone().with_size(height, width).unwrap();
        let (x, v) = (image(1, 2, height, width), image(2, 2, height, width));
        let (sigma, u) = (Sigma::Rows(vec![0.4, 3.0]), image(3, 2, height, width));
        let (denoised, vjp) = own.denoise_vjp(&x, &sigma, &|_| Ok(v.clone())).unwrap();
        assert_eq!(values(&denoised), values(&own.denoise(&x, &sigma).unwrap()));
        // vᵀ J u by a central difference, whose error in f32 is about 1e-7 / h.
        let h = 4e-3;
        let at = |h: f64| values(&own.denoise(&(&x + (&u * h).unwrap()).unwrap(), &sigma).unwrap());
        let along: Vec<f64> = at(h).iter().zip(at(-h)).map(|(a, b)| (a - b) / (2.0 * h)).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (forth, back) = (dot(&along, &values(&v)), dot(&values(&vjp), &values(&u)));
        let scale = dot(&values(&v), &values(&v)).sqrt() * dot(&along, &along).sqrt();
        assert!((forth - back).abs() < 2e-3 * scale, "{height} x {width}: {forth} and {back} of {scale}");
    }
}

/// The tiles of an image of any size, whose last ones end with it, are the network's at odd sizes.
#[test]
fn tiles_of_odd_images_run() {
    let prior = tiny().with_size(201, 173).unwrap();
    let bytes = 4.0 * prior.config().footprint().plain * 136.0 * 136.0;
    let tiled = prior.clone().within(Memory::new(bytes.ceil() as u64)).unwrap();
    assert_eq!(tiled.grid().count(), 4, "{:?}", tiled.describe());
    assert_eq!(tiled.shape(), [1, 201, 173]);
    let x = image(5, 1, 201, 173);
    let (whole, parts) = (prior.denoise(&x, &0.1.into()).unwrap(), tiled.denoise(&x, &0.1.into()).unwrap());
    let (whole, parts) = (values(&whole), values(&parts));
    assert!(parts.iter().all(|v| v.is_finite()));
    // Norms over a tile are nearly those over the image where all of it is alike.
    let rms = |f: &dyn Fn(usize) -> f64| {
        ((0..whole.len()).map(|k| f(k).powi(2)).sum::<f64>() / whole.len() as f64).sqrt()
    };
    let (off, size) = (rms(&|k| whole[k] - parts[k]), rms(&|k| whole[k]));
    assert!(off < 0.05 * size && off > 0.0, "{off} of {size}");
    let message = prior.within(Memory::new(1_000_000)).err().unwrap().to_string();
    assert!(
        message.starts_with("memory: expected at least ") && message.contains("128x128 pixels, got 1MB"),
        "{message}"
    );
}
