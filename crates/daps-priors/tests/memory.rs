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

/// Scratch of convolutions, which does not grow with the image.
const SCRATCH: f64 = 24e6;

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
        let (mut prior, side) = (NetworkPrior::new(&config, tensors).unwrap(), 320);
        prior = prior.with_size(side, side).unwrap();
        let x = Tensor::ones((1, 3, side, side), DType::F32, &Device::Cpu).unwrap();
        let footprint = config.footprint();
        let check = |what: &str, floats: f64, call: &dyn Fn()| {
            release_idle();
            call();
            // Again, for a pool that finds its buffers in another order must not grow without end.
            call();
            let (held, said) = (most_held() as f64, 4.0 * floats * (side * side) as f64);
            eprintln!("{what}: {:.0} of {:.0} MB, {:.2}", held / 1e6, said / 1e6, held / said);
            assert!(held - SCRATCH < said, "{what} of {text}: {held} of {said}");
            assert!(held > 0.4 * said, "{what} of {text}: {held} of {said}");
        };
        check("a call", footprint.plain, &|| drop(prior.denoise(&x, &1.0.into()).unwrap()));
        check("a derivative", footprint.taped, &|| {
            drop(prior.denoise_vjp(&x, &1.0.into(), &|d| Ok(d.clone())).unwrap());
        });
    }
}
