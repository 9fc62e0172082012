//! Against piq, lpips and torch: images and weights come from a hash that tests/golden/make_metrics.py shares.

use candle_core::{Device, Tensor};
use daps_metrics::Weights;
use daps_metrics::fid::frechet_distance;
use daps_metrics::image::{psnr, ssim};
use daps_metrics::inception::{FEATURES, Inception};
use daps_metrics::lpips::{Backbone, Lpips, Pooling};

#[path = "../../../tests/golden/metrics.rs"]
mod hash;
use hash::{golden, hashed, inception_agrees, list, pair, signed};

const SHAPE: [usize; 4] = [2, 3, 64, 72];

#[test]
fn psnr_and_ssim_are_piqs() {
    let golden = golden();
    let (a, b) = pair(&SHAPE);
    let n = 3 * 64 * 72;
    for (i, (a, b)) in a.chunks(n).zip(b.chunks(n)).enumerate() {
        let (p, s) = (psnr(a, b, 1.0).unwrap(), ssim(a, b, [3, 64, 72]).unwrap());
        assert!((p - list(&golden["psnr"])[i]).abs() < 1e-4, "{p}");
        assert!((s - list(&golden["ssim"])[i]).abs() < 1e-4, "{s}");
    }
}

#[test]
fn fid_is_that_of_piq_and_scipy() {
    let golden = golden();
    let x = hashed(3, 300 * 24);
    let y: Vec<f64> = hashed(4, 250 * 24).iter().map(|v| 0.8 * v + 0.3).collect();
    let found = frechet_distance(&x, &y, 24).unwrap();
    let (piq, scipy) = (golden["fid"].as_f64().unwrap(), golden["fid_scipy"].as_f64().unwrap());
    assert!((found / scipy - 1.0).abs() < 1e-6, "{found} vs {scipy}");
    assert!((found / piq - 1.0).abs() < 1e-2, "{found} vs {piq}");
}

fn tensor(values: Vec<f64>, shape: &[usize]) -> Tensor {
    let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// (kernel, in, out) of a backbone's convolutions, and the channels of its features.
fn sizes(backbone: Backbone) -> (Vec<[usize; 3]>, Vec<usize>) {
    match backbone {
        Backbone::AlexNet => (
            vec![[11, 3, 64], [5, 64, 192], [3, 192, 384], [3, 384, 256], [3, 256, 256]],
            vec![64, 192, 384, 256, 256],
        ),
        Backbone::Vgg16 => {
            let widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512];
            let from = |k: usize| if k == 0 { 3 } else { widths[k - 1] };
            ((0..13).map(|k| [3, from(k), widths[k]]).collect(), vec![64, 128, 256, 512, 512])
        }
    }
}

fn random_lpips(backbone: Backbone) -> Weights {
    let (convs, heads) = sizes(backbone);
    let mut weights = Weights::new();
    for (k, [kernel, input, output]) in convs.into_iter().enumerate() {
        let fan_in = input * kernel * kernel;
        let w = signed(2 * k as u64 + 1, output * fan_in, (6.0 / fan_in as f64).sqrt());
        weights.insert(format!("conv.{k}.weight"), tensor(w, &[output, input, kernel, kernel]));
        weights.insert(format!("conv.{k}.bias"), tensor(signed(2 * k as u64 + 2, output, 0.05), &[output]));
    }
    for (k, n) in heads.into_iter().enumerate() {
        weights.insert(format!("head.{k}.weight"), tensor(hashed(100 + k as u64, n), &[n]));
    }
    weights
}

/// The same images with one number of the first that is none.
fn spoiled(x: &Tensor) -> Tensor {
    let mut values = x.flatten_all().unwrap().to_dtype(candle_core::DType::F64).unwrap().to_vec1().unwrap();
    values[5] = f64::NAN;
    tensor(values, x.dims())
}

#[test]
fn lpips_with_random_weights_is_that_of_lpips_and_piq() {
    let golden = golden();
    let (a, b) = pair(&SHAPE);
    let scaled = |v: Vec<f64>| tensor(v.iter().map(|v| 2.0 * v - 1.0).collect(), &SHAPE);
    let (a, b) = (scaled(a), scaled(b));
    for (backbone, pooling, keys) in [
        (Backbone::Vgg16, Pooling::Max, &["max", "piq"][..]),
        (Backbone::Vgg16, Pooling::Mean, &["mean"]),
        (Backbone::AlexNet, Pooling::Max, &["max"]),
    ] {
        let metric = Lpips::new(backbone, pooling, &random_lpips(backbone)).unwrap();
        let found = metric.distance(&a, &b).unwrap();
        for key in keys {
            let expected = list(&golden["lpips_random"][backbone.name()][key]);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 1e-3 * expected,
                    "{backbone:?} {key}: {found} vs {expected}"
                );
            }
        }
        assert!(metric.distance(&a, &a).unwrap().iter().all(|d| d.abs() < 1e-9));
        let (broken, whole) = (spoiled(&a), metric.distance(&a, &b).unwrap());
        let with_nan = metric.distance(&broken, &b).unwrap();
        assert!(with_nan[0].is_nan() && with_nan[1..] == whole[1..], "{with_nan:?}");
        // An image that vanishes on the way is refused in a sentence, and the smallest that does not is compared.
        let side = backbone.smallest_side(pooling);
        assert_eq!(side, if backbone == Backbone::Vgg16 { 16 } else { 31 });
        let of = |h, w| {
            let x = Tensor::zeros((1, 3, h, w), candle_core::DType::F32, &Device::Cpu).unwrap();
            metric.distance(&x, &x)
        };
        assert_eq!(of(side, side).unwrap(), [0.0]);
        let error = of(side, side - 1).unwrap_err().to_string();
        assert!(error.contains(&format!("at least {side} pixels")), "{error}");
    }
    let mut missing = random_lpips(Backbone::AlexNet);
    missing.remove("head.4.weight");
    let error = Lpips::new(Backbone::AlexNet, Pooling::Max, &missing).err().unwrap().to_string();
    assert!(error.contains("head.4.weight"), "{error}");
}

#[test]
fn inception_with_random_weights_has_torchs_features() {
    let golden = golden();
    let mut weights = Weights::new();
    for (k, entry) in golden["inception_shapes"].as_array().unwrap().iter().enumerate() {
        let name = entry[0].as_str().unwrap();
        let shape: Vec<usize> = list(&entry[1]).iter().map(|v| *v as usize).collect();
        let n: usize = shape.iter().product();
        let fan_in = shape[1..].iter().product::<usize>() as f64;
        let values = match name.rsplit('.').next() {
            Some("weight") => signed(k as u64, n, (6.0 / fan_in).sqrt()),
            Some("var") => hashed(k as u64, n).iter().map(|v| 0.5 + v).collect(),
            _ => signed(k as u64, n, 0.1),
        };
        weights.insert(name.to_owned(), tensor(values, &shape));
    }
    let network = Inception::new(&weights).unwrap();
    let (a, _) = pair(&SHAPE);
    let features = network.features(&tensor(a.iter().map(|v| 2.0 * v - 1.0).collect(), &SHAPE)).unwrap();
    assert_eq!(features.len(), 2 * FEATURES);
    assert!(network.features(&spoiled(&tensor(a, &SHAPE))).is_err());
    inception_agrees(&features, &golden["inception_random"]);
}
