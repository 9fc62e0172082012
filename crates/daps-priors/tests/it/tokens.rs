//! Networks over tokens: what they know before training, that training brings them to the closed form, and their files.

use candle_core::{Device, Tensor};
use daps_core::{Address, Categorical, Corruption, Noise, Purpose, Rate};
use daps_priors::training::{Dataset, Images, TrainConfig, Trainer, export_tokens};
use daps_priors::{Listed, NetworkPrior, TokenPrior};

fn config(rate: &str, channels: usize) -> TrainConfig {
    let text = format!(
        r#"
name = "tiny"
images = 100000
batch = 16
tokens = {{ symbols = 2, rate = "{rate}" }}
[data]
source = "none"
[network]
kind = "adm"
image_size = 4
channels = {channels}
model_channels = 16
channel_mult = [1, 2]
num_res_blocks = 1
attention_resolutions = []
num_heads = 2
norm_groups = 4
use_scale_shift_norm = true
[loss]
p_mean = -0.5
p_std = 1.0
[optimizer]
learning_rate = 4e-3
warmup = 100
[ema]
half_life = 500
"#
    );
    TrainConfig::parse(&text).unwrap()
}

/// Left half, top half, or nothing.
fn patterns() -> [Vec<u8>; 3] {
    let light = |f: fn(usize) -> bool| (0..16).map(|i| if f(i) { 255 } else { 0 }).collect();
    [light(|i| i % 4 < 2), light(|i| i < 8), light(|_| false)]
}

fn trainer(rate: &str, channels: usize) -> Trainer {
    let bytes = patterns().concat().repeat(20);
    Trainer::new(config(rate, channels), Dataset::split(Images::bytes([1, 4, 4], bytes), 3).unwrap()).unwrap()
}

fn truth(rate: Rate) -> Listed {
    let tokens: Vec<u8> = patterns().concat().iter().map(|v| v / 255).collect();
    let points = Tensor::from_vec(tokens, (3, 1, 4, 4), &Device::Cpu).unwrap();
    Listed::new(Corruption::new(2, rate).unwrap(), &points, &[1.0; 3]).unwrap()
}

/// E[-ln p(x0_i | x_t)] of a model under the truth, at a level.
fn cross_entropy(model: &dyn Categorical, truth: &Listed, sigma: f64) -> f64 {
    let (noise, at) = (Noise::chains(3, 600), |p| Address::new(0, p, 0));
    let x0 = truth.draw(&noise, at(Purpose::Reference)).unwrap();
    let x_t = truth.corruption().corrupt(&x0, &[sigma], &noise, at(Purpose::Renoise)).unwrap();
    let laws = model.marginals(&x_t, sigma).unwrap();
    let tokens: Vec<u8> = x0.flatten_all().unwrap().to_vec1().unwrap();
    laws.chunks(2).zip(&tokens).map(|(law, t)| -law[usize::from(*t)].ln()).sum::<f64>() / tokens.len() as f64
}

#[test]
fn a_fresh_network_knows_what_each_token_says_of_itself() {
    for (name, rate, channels) in [("uniform", Rate::Uniform, 2), ("absorbing", Rate::Absorbing, 3)] {
        let prior = trainer(name, channels).average_tokens().unwrap();
        assert_eq!(prior.shape(), [1, 4, 4]);
        let chain = Corruption::new(2, rate).unwrap();
        let x_t: Vec<u8> = (0..16).map(|i| (i % chain.states()) as u8).collect();
        let tensor = Tensor::from_slice(&x_t, (1, 1, 4, 4), &Device::Cpu).unwrap();
        let laws = prior.marginals(&tensor, 0.6).unwrap();
        for (law, token) in laws.chunks(2).zip(&x_t) {
            let own = |a: usize| chain.transition(a, usize::from(*token), 0.6);
            assert!((law[1] - own(1) / (own(0) + own(1))).abs() < 1e-6, "{rate:?} {token}: {law:?}");
        }
    }
}

#[test]
fn training_approaches_the_closed_form_and_files_keep_it() {
    let (mut trainer, truth) = (trainer("uniform", 2), truth(Rate::Uniform));
    let before = cross_entropy(&trainer.average_tokens().unwrap(), &truth, 1.0);
    for _ in 0..400 {
        trainer.advance().unwrap();
    }
    let prior = trainer.average_tokens().unwrap();
    let (after, best) = (cross_entropy(&prior, &truth, 1.0), cross_entropy(&truth, &truth, 1.0));
    assert!(after < best + 0.2 * (before - best), "{before} to {after}, the truth has {best}");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.safetensors");
    let (rounded, _) = export_tokens(&trainer, &path).unwrap();
    let x_t = Tensor::zeros((1, 1, 4, 4), candle_core::DType::U8, &Device::Cpu).unwrap();
    let read = TokenPrior::load(&path).unwrap();
    assert_eq!(read.marginals(&x_t, 0.7).unwrap(), rounded.marginals(&x_t, 0.7).unwrap());
    let message = NetworkPrior::load(&path, None).err().unwrap().to_string();
    assert!(message.contains("a prior over continuous samples needs a denoiser"), "{message}");
}
