//! The official network, number by number: raw output, D(x, σ) and its vector-Jacobian product, from both formats.

use std::collections::HashMap;

use crate::common::golden::{TOLERANCE, adm_tiny, compare, difference, golden};
use candle_core::{DType, Device, Tensor, Var};
use daps_core::{Denoiser, DifferentiableDenoiser, Sigma};
use daps_nn::FeatureMap;
use daps_priors::network::{AdmConfig, Architecture, NetworkPrior, Preconditioning};
use daps_priors::{NetworkConfig, checkpoint};

fn io() -> HashMap<String, Tensor> {
    candle_core::safetensors::load(golden("adm_tiny.io.safetensors"), &Device::Cpu).unwrap()
}

#[test]
fn raw_output_denoiser_and_vjp_agree_from_both_formats() {
    let io = io();
    for file in ["adm_tiny.weights.safetensors", "adm_tiny.pt"] {
        let prior = NetworkPrior::load(&golden(file), Some(&adm_tiny())).unwrap();
        let x = FeatureMap::from_nchw(&io["raw.x"]).unwrap();
        let t = io["raw.t"].to_vec1::<f32>().unwrap();
        let raw = prior.network().forward(&x, &t, None).unwrap().to_nchw().unwrap();
        let mut worst = vec![difference(&raw, &io["raw.out"])];
        for k in 0..3 {
            let get = |part: &str| &io[&format!("io{k}.{part}")];
            let sigma = Sigma::Same(get("sigma").to_vec1::<f32>().unwrap()[0].into());
            let v = get("v").clone();
            let denoised = prior.denoise(get("x"), &sigma).unwrap();
            let (again, vjp) = prior.denoise_vjp(get("x"), &sigma, &|_| Ok(v.clone())).unwrap();
            worst.push(difference(&denoised, get("denoised")));
            worst.push(difference(&again, get("denoised")));
            worst.push(difference(&vjp, get("vjp")));
        }
        println!("{file}: {worst:?}");
        assert!(worst.iter().all(|d| *d < TOLERANCE), "{file}: {worst:?}");
    }
}

#[test]
fn rows_do_not_depend_on_their_batch_and_the_tracked_way_agrees() {
    let io = io();
    let prior = NetworkPrior::load(&golden("adm_tiny.pt"), Some(&adm_tiny())).unwrap();
    let x = &io["io0.x"];
    let both = prior.denoise(x, &Sigma::Rows(vec![0.3, 7.0])).unwrap();
    for (row, sigma) in [(0, 0.3), (1, 7.0)] {
        let one = prior.denoise(&x.narrow(0, row, 1).unwrap(), &Sigma::Same(sigma)).unwrap();
        assert_eq!(difference(&one, &both.narrow(0, row, 1).unwrap()), 0.0);
    }
    let var = Var::from_tensor(x).unwrap();
    let tracked = prior.forward(var.as_tensor(), &Sigma::Rows(vec![0.3, 7.0])).unwrap();
    assert!(difference(&tracked, &both) < 1e-6);
    let v = &io["io0.v"];
    let gradient = (&tracked * v).unwrap().sum_all().unwrap().backward().unwrap();
    let (_, vjp) = prior.denoise_vjp(x, &Sigma::Rows(vec![0.3, 7.0]), &|_| Ok(v.clone())).unwrap();
    assert!(difference(gradient.get(var.as_tensor()).unwrap(), &vjp) < 1e-5);
}

#[test]
fn bad_sizes_levels_and_classes_are_refused() {
    let prior = NetworkPrior::load(&golden("adm_tiny.pt"), Some(&adm_tiny())).unwrap();
    let zeros = |h: usize| Tensor::zeros((1, 3, h, 32), DType::F32, &Device::Cpu).unwrap();
    assert!(prior.denoise(&zeros(31), &1.0.into()).unwrap_err().to_string().contains("expected shape"));
    for sigma in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(
            prior.denoise(&zeros(32), &sigma.into()).unwrap_err().to_string().contains("positive finite")
        );
    }
    let refused = |h, w| prior.clone().with_size(h, w).err().unwrap().to_string();
    assert!(refused(32, 0).contains("image size: expected a whole number from 1 to 65536, got 0"));
    assert!(refused(1 << 17, 32).contains("from 1 to 65536, got 131072"));
    assert!(prior.clone().with_class(0).err().unwrap().to_string().contains("knows no classes"));
    let wide = prior.with_size(16, 48).unwrap();
    let x = Tensor::ones((2, 3, 16, 48), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(wide.denoise(&x, &1.0.into()).unwrap().dims(), [2, 3, 16, 48]);
}

/// Every option builds, runs and gives gradients to all of its weights.
#[test]
fn every_option_trains() {
    let tiny = |change: fn(&mut AdmConfig)| {
        let Architecture::Adm(mut adm) = adm_tiny().network else { unreachable!() };
        (adm.image_size, adm.model_channels, adm.norm_groups, adm.num_head_channels) = (8, 8, 4, None);
        adm.attention_resolutions = vec![4];
        adm.num_heads = 2;
        change(&mut adm);
        NetworkConfig {
            network: Architecture::Adm(adm),
            preconditioning: Preconditioning::iddpm(),
            patch: 1,
            space: None,
        }
    };
    let options: [fn(&mut AdmConfig); 6] = [
        |_| {},
        |c| c.use_scale_shift_norm = false,
        |c| c.use_new_attention_order = true,
        |c| c.resblock_updown = false,
        |c| (c.resblock_updown, c.conv_resample) = (false, false),
        |c| (c.num_classes, c.learn_sigma) = (Some(3), false),
    ];
    let x = Tensor::randn(0f32, 1.0, (2, 3, 8, 8), &Device::Cpu).unwrap();
    for change in options {
        let config = tiny(change);
        let (prior, variables) = NetworkPrior::fresh(&config, 1, &Device::Cpu).unwrap();
        // Zero-initialised layers hide the weights before them.
        for var in variables.values() {
            var.set(&(var.randn_like(0.0, 0.1).unwrap() + var.as_tensor().detach()).unwrap()).unwrap();
        }
        let prior = match config.classes() {
            0 => prior,
            _ => {
                let refused = prior.denoise(&x, &1.0.into()).unwrap_err().to_string();
                assert!(
                    refused.contains("a number below 3, for the network was trained with classes"),
                    "{refused}"
                );
                prior.with_class(2).unwrap()
            }
        };
        let y = prior.forward(&x, &Sigma::Same(2.0)).unwrap();
        let store = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for (name, var) in &variables {
            let gradient = store.get(var.as_tensor()).unwrap_or_else(|| panic!("{name}: no gradient"));
            let size = gradient.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(size.is_finite() && size > 0.0, "{name}: {size}");
        }
        assert_eq!(variables.len(), config.parameters().unwrap().len());
    }
}

#[test]
fn misfits_are_listed_with_their_shapes() {
    let mut tensors = checkpoint::read(&golden("adm_tiny.pt")).unwrap().tensors;
    let bias = tensors.remove("out.2.bias").unwrap();
    tensors.insert("out.2.bais".to_owned(), bias);
    let weight = tensors.remove("time_embed.0.weight").unwrap();
    tensors.insert("time_embed.0.weight".to_owned(), weight.t().unwrap());
    let message = adm_tiny().network(tensors).err().unwrap().to_string();
    assert_eq!(
        message,
        "the tensors do not fit the network: 1 missing (out.2.bias [6]); 1 misshapen \
         (time_embed.0.weight: expected [128, 32], found [32, 128]); 1 extra (out.2.bais [6])"
    );
    let mut tensors = checkpoint::read(&golden("adm_tiny.pt")).unwrap().tensors;
    tensors.insert("out.2.bias".to_owned(), Tensor::full(f32::NAN, 6, &Device::Cpu).unwrap());
    let message = adm_tiny().network(tensors).err().unwrap().to_string();
    assert!(message.ends_with("1 with NaN or infinite values (out.2.bias)"), "{message}");
    let refused = NetworkPrior::load(&golden("adm_tiny.pt"), None).err().unwrap().to_string();
    assert!(refused.contains("carries no network configuration"), "{refused}");
}

#[test]
fn the_options_of_other_checkpoints_agree_with_a_pytorch_twin() {
    for name in ["adm_plain", "adm_pooled", "adm_classes", "adm_updown"] {
        compare(name);
    }
}
