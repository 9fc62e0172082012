//! Golden files: where they are, the network of `adm_tiny`, and a network's output beside a recorded one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_core::{DType, Tensor, Var};
use daps_nn::FeatureMap;
use daps_priors::network::{AdmConfig, Architecture, Preconditioning};
use daps_priors::{NetworkConfig, checkpoint};

/// Largest relative difference from a recorded number.
pub const TOLERANCE: f64 = 1e-4;

pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// The configuration of `adm_tiny`.
pub fn adm_tiny() -> NetworkConfig {
    let adm = AdmConfig {
        image_size: 32,
        model_channels: 32,
        channel_mult: vec![1, 2],
        num_res_blocks: 1,
        attention_resolutions: vec![16],
        num_head_channels: Some(32),
        ..AdmConfig::ffhq256()
    };
    NetworkConfig {
        network: Architecture::Adm(adm),
        preconditioning: Preconditioning::vp(),
        patch: 1,
        space: None,
    }
}

/// Largest difference over the largest expected value.
pub fn difference(ours: &Tensor, expected: &Tensor) -> f64 {
    let flat = |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert_eq!(ours.dims(), expected.dims());
    let (a, b) = (flat(ours), flat(expected));
    let scale = b.iter().fold(0f64, |m, v| m.max(v.abs()));
    daps_nn::testing::largest(a.iter().zip(&b).map(|(a, b)| (a - b).abs())) / scale
}

/// The raw output of `NAME.safetensors`, and the gradient that its `v` pulls back to the input.
pub fn compare(name: &str) {
    let path = golden(&format!("{name}.safetensors"));
    let config = checkpoint::config_of(&path).unwrap();
    let mut io = checkpoint::read(&path).unwrap().tensors;
    let weights: BTreeMap<String, Tensor> =
        io.iter().filter_map(|(k, t)| Some((k.strip_prefix("weights.")?.to_owned(), t.clone()))).collect();
    io.retain(|k, _| !k.starts_with("weights."));
    let network = config.network(weights).unwrap();
    let classes: Option<Vec<usize>> =
        io.get("classes").map(|c| c.to_vec1::<i64>().unwrap().into_iter().map(|c| c as usize).collect());
    let noise = io["noise"].to_vec1::<f32>().unwrap();
    let x = Var::from_tensor(&io["x"]).unwrap();
    let map = FeatureMap::from_nchw(x.as_tensor()).unwrap();
    let out = network.forward(&map, &noise, classes.as_deref()).unwrap().to_nchw().unwrap();
    let store = (&out * &io["v"]).unwrap().sum_all().unwrap().backward().unwrap();
    let worst = [difference(&out, &io["out"]), difference(store.get(x.as_tensor()).unwrap(), &io["vjp"])];
    println!("{name}: {worst:?}");
    assert!(worst.iter().all(|d| *d < TOLERANCE), "{name}: {worst:?}");
}
