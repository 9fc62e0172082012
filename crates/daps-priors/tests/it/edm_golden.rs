//! EDM's U-Nets beside an independent PyTorch implementation, on random weights (`tests/golden/make_edm.py`).

use std::collections::BTreeMap;

use crate::common::golden::compare;
use candle_core::{Device, Tensor};
use daps_core::Sigma;
use daps_priors::network::{
    Architecture, DecoderType, DhariwalConfig, EmbeddingType, EncoderType, NetworkConfig, NetworkPrior,
    Preconditioning, SongConfig,
};

#[test]
fn ddpmpp() {
    compare("edm_ddpmpp");
}

#[test]
fn ncsnpp() {
    compare("edm_ncsnpp");
}

#[test]
fn skips_and_classes() {
    compare("edm_skips");
}

#[test]
fn dhariwal() {
    compare("edm_dhariwal");
}

fn song() -> SongConfig {
    SongConfig {
        model_channels: 8,
        num_blocks: 1,
        attn_resolutions: vec![8],
        ..SongConfig::ddpmpp(16, &[1, 2], 0)
    }
}

fn song_network(change: fn(&mut SongConfig)) -> NetworkConfig {
    let mut config = song();
    change(&mut config);
    NetworkConfig {
        network: Architecture::Song(config),
        preconditioning: Preconditioning::edm(),
        patch: 1,
        space: None,
    }
}

/// Every option builds, runs and gives gradients to all of its weights; augmentation weights have no part in a
/// denoiser, nor have the fixed frequencies.
#[test]
fn every_option_trains() {
    let dhariwal = DhariwalConfig {
        image_size: 16,
        label_dim: 5,
        model_channels: 16,
        channel_mult: vec![1, 4],
        num_blocks: 1,
        attn_resolutions: vec![8],
        ..DhariwalConfig::imagenet64()
    };
    let configs = [
        song_network(|_| {}),
        song_network(|c| (c.encoder_type, c.decoder_type) = (EncoderType::Skip, DecoderType::Skip)),
        song_network(|c| {
            (c.encoder_type, c.resample_filter) = (EncoderType::Residual, vec![1.0, 3.0, 3.0, 1.0]);
        }),
        song_network(|c| {
            (c.embedding_type, c.channel_mult_noise, c.label_dim) = (EmbeddingType::Fourier, 2, 3);
        }),
        NetworkConfig {
            network: Architecture::Dhariwal(dhariwal),
            preconditioning: Preconditioning::Ve,
            patch: 1,
            space: None,
        },
    ];
    let x = Tensor::randn(0f32, 1.0, (2, 3, 16, 16), &Device::Cpu).unwrap();
    for config in configs {
        let (prior, variables) = NetworkPrior::fresh(&config, 3, &Device::Cpu).unwrap();
        for (name, var) in &variables {
            if name != "map_noise.freqs" {
                var.set(&(var.randn_like(0.0, 0.1).unwrap() + var.as_tensor().detach()).unwrap()).unwrap();
            }
        }
        let prior = if config.classes() > 0 { prior.with_class(1).unwrap() } else { prior };
        let y = prior.forward(&x, &Sigma::Rows(vec![0.5, 2.0])).unwrap();
        let store = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for (name, var) in
            variables.iter().filter(|(n, _)| *n != "map_augment.weight" && *n != "map_noise.freqs")
        {
            let gradient = store.get(var.as_tensor()).unwrap_or_else(|| panic!("{name}: no gradient"));
            let size = gradient.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(size.is_finite() && size > 0.0, "{name}: {size}");
        }
        assert_eq!(NetworkConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
    }
}

#[test]
fn a_filter_of_another_shape_or_value_is_refused() {
    let config = song_network(|_| {});
    let (_, variables) = config.fresh(1, &Device::Cpu).unwrap();
    let mut tensors: BTreeMap<String, Tensor> =
        variables.into_iter().map(|(k, v)| (k, v.as_tensor().detach())).collect();
    let name = "enc.8x8_down.conv0.resample_filter";
    let quarter = Tensor::full(0.25f32, (1, 1, 2, 2), &Device::Cpu).unwrap();
    tensors.insert(name.to_owned(), quarter.clone());
    assert!(config.network(tensors.clone()).is_ok());
    tensors.insert(name.to_owned(), (quarter * 2.0).unwrap());
    let message = config.network(tensors).err().unwrap().to_string();
    assert!(
        message.contains("enc.8x8_down.conv0.resample_filter") && message.contains("other values"),
        "{message}"
    );
}
