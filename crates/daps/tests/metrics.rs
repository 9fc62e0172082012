//! LPIPS and FID with their real weights, where `daps weights get` has fetched them, against lpips, piq and torch.

use candle_core::{Device, Tensor};
use daps::assets;
use daps::metrics::Weights;
use daps::metrics::inception::Inception;
use daps::metrics::lpips::{Backbone, Lpips, Pooling};

#[path = "../../../tests/golden/metrics.rs"]
mod hash;
use hash::{golden, inception_agrees, list, pair};

fn images() -> (Tensor, Tensor) {
    let shape = [2, 3, 64, 72];
    let (a, b) = pair(&shape);
    let tensor = |v: Vec<f64>| {
        let v: Vec<f32> = v.iter().map(|v| (2.0 * v - 1.0) as f32).collect();
        Tensor::from_vec(v, &shape, &Device::Cpu).unwrap()
    };
    (tensor(a), tensor(b))
}

/// Real weights; without them nothing is compared, which is a failure where `DAPS_REQUIRE_WEIGHTS` is set.
fn weights(file: &str) -> Option<Weights> {
    let found = assets::load(file).unwrap();
    if found.is_none() {
        let what = format!("NOT RUN: real weights ({file} is missing; run: {})", assets::hint(file));
        assert!(std::env::var_os("DAPS_REQUIRE_WEIGHTS").is_none(), "{what}");
        eprintln!("{what}");
    }
    found
}

#[test]
fn lpips_is_that_of_lpips_and_piq() {
    let (golden, (a, b)) = (golden(), images());
    for (backbone, pooling, key) in [
        (Backbone::Vgg16, Pooling::Max, "max"),
        (Backbone::Vgg16, Pooling::Mean, "mean"),
        (Backbone::AlexNet, Pooling::Max, "max"),
    ] {
        let file = format!("lpips-{}.safetensors", backbone.name());
        let Some(weights) = weights(&file) else { continue };
        let found = Lpips::new(backbone, pooling, &weights).unwrap().distance(&a, &b).unwrap();
        let expected = list(&golden["lpips_real"][backbone.name()][key]);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-3, "{backbone:?} {key}: {found} vs {expected}");
        }
        eprintln!("LPIPS {backbone:?} {key}: {found:?} beside {expected:?}");
    }
}

#[test]
fn inception_has_the_features_of_the_original() {
    let file = "inception.safetensors";
    let Some(weights) = weights(file) else { return };
    let features = Inception::new(&weights).unwrap().features(&images().0).unwrap();
    inception_agrees(&features, &golden()["inception_real"]);
    eprintln!("Inception: {} features compared", features.len());
}
