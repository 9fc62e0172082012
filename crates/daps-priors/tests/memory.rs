//! What a network is said to hold against what it holds. Alone in its process: it reads the pool of buffers of the whole process.

use std::collections::BTreeMap;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::{Denoiser, DifferentiableDenoiser};
use daps_nn::buffer::{most_held, release_idle};
use daps_priors::{NetworkConfig, NetworkPrior};

/// Networks of every kind at the sizes that matter here: wide enough that vectors and scratch do not count, several levels and blocks.
const NETWORKS: [&str; 7] = [
    "[network]\nkind = 'adm'\nimage_size = 64\nmodel_channels = 32\nchannel_mult = [1, 2]\nnum_res_blocks = 1\n\
     attention_resolutions = []\nuse_scale_shift_norm = true\nresblock_updown = true\nlearn_sigma = true\n\
     [preconditioning]\nkind = 'vp'\n",
    "[network]\nkind = 'adm'\nimage_size = 64\nmodel_channels = 32\nchannel_mult = [1, 1, 2, 2]\nnum_res_blocks = 2\n\
     attention_resolutions = [8]\n[preconditioning]\nkind = 'vp'\n",
    "[network]\nkind = 'song'\nimage_size = 64\nmodel_channels = 32\nchannel_mult = [1, 2, 2]\nnum_blocks = 4\n\
     attn_resolutions = [16]\n[preconditioning]\nkind = 'edm'\n",
    "[network]\nkind = 'song'\nimage_size = 64\nmodel_channels = 32\nchannel_mult = [1, 2]\nnum_blocks = 1\n\
     attn_resolutions = []\nencoder_type = 'residual'\ndecoder_type = 'skip'\n[preconditioning]\nkind = 'edm'\n",
    "[network]\nkind = 'dhariwal'\nimage_size = 64\nmodel_channels = 64\nchannel_mult = [1, 2]\nnum_blocks = 3\n\
     attn_resolutions = []\n[preconditioning]\nkind = 'edm'\n",
    "patch = 2\n[network]\nkind = 'song'\nimage_size = 64\nchannels = 12\nmodel_channels = 64\nchannel_mult = [1, 2]\n\
     num_blocks = 2\nattn_resolutions = []\n[preconditioning]\nkind = 'edm'\n",
    "patch = 2\n[network]\nkind = 'conv-unet'\nimage_size = 64\nchannels = 12\nwidths = [64, 96, 128]\nblocks = [2, 1, 2]\n\
     [preconditioning]\nkind = 'edm'\n",
];

/// The two sizes whose difference counts: weights and scratch do not grow with the image.
const SIDES: [usize; 2] = [96, 160];

#[test]
fn a_call_holds_no_more_than_its_configuration_says_and_not_much_less() {
    for text in NETWORKS {
        let config = NetworkConfig::parse(text).unwrap();
        let parameters = config.parameters().unwrap();
        let zero = |(name, shape): (&String, &Vec<usize>)| {
            let value = Tensor::full(0.01f32, shape.as_slice(), &Device::Cpu).unwrap();
            (name.clone(), value)
        };
        let tensors: BTreeMap<String, Tensor> = parameters.iter().map(zero).collect();
        let prior = NetworkPrior::new(&config, tensors).unwrap();
        let held = |call: &dyn Fn(&NetworkPrior, &Tensor), side: usize| {
            let prior = prior.clone().with_size(side, side).unwrap();
            let x = Tensor::ones((1, 3, side, side), DType::F32, &Device::Cpu).unwrap();
            // Once before, so that weights are rearranged.
            call(&prior, &x);
            release_idle();
            call(&prior, &x);
            most_held() as f64
        };
        let check = |what: &str, floats: f64, call: &dyn Fn(&NetworkPrior, &Tensor)| {
            let grown = held(call, SIDES[1]) - held(call, SIDES[0]);
            let said = 4.0 * floats * (SIDES[1].pow(2) - SIDES[0].pow(2)) as f64;
            println!("{what}: {:.2} of what is said", grown / said);
            assert!(grown < said && grown > 0.3 * said, "{what} of {text}: {grown} of {said}");
        };
        let footprint = config.footprint();
        check("a call", footprint.plain, &|prior, x| drop(prior.denoise(x, &1.0.into()).unwrap()));
        check("a derivative", footprint.taped, &|prior, x| {
            drop(prior.denoise_vjp(x, &1.0.into(), &|d| Ok(d.clone())).unwrap());
        });
    }
}
