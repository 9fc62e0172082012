//! A sample's result and gradient are the same to the bit for any number of threads and in any batch, and a bad
//! input is refused in one sentence.

use candle_core::{DType, Device, Tensor, Var};
use daps_nn::testing::normal;
use daps_nn::*;

fn tensor(shape: &[usize], seed: u64) -> Tensor {
    Tensor::from_vec(normal(shape.iter().product(), seed), shape, &Device::Cpu).expect("tensor")
}

fn bits(t: &Tensor) -> Vec<u32> {
    let flat = t.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("f32 tensor");
    flat.into_iter().map(f32::to_bits).collect()
}

/// Every kind of layer in one small network: 24 channels in, 24 out at half the size.
fn network(x: &FeatureMap, embedding: &FeatureMap, w: &[Tensor]) -> Result<FeatureMap> {
    let norm = |i: usize, groups| GroupNorm::new(w[i].clone(), w[i + 1].clone(), groups, 1e-5);
    let conv = |i: usize, config| Conv2d::new(w[i].clone(), None, config);
    let rows = Linear::new(w[2].clone(), None)?.forward(&embedding.silu()?)?;
    let h = conv(3, ConvConfig::same(3))?.forward(&norm(0, 8)?.forward_silu(x)?)?;
    let h = norm(0, 8)?.on(&h).scale_shift(&rows).silu().run()?.modulate_silu(&rows)?;
    let h = conv(4, ConvConfig::same(3))?.on(&h).residual(x).scale(0.5f64.sqrt()).run()?;
    let a = self_attention(&conv(5, ConvConfig::same(1))?.forward(&h)?, 2, QkvOrder::QkvFirst)?;
    let h = LayerNorm::new(w[0].clone(), w[1].clone(), 1e-5)?.forward(&a)?.add(&h)?;
    let h = conv(6, ConvConfig::same(1))?.forward((&h, x))?;
    let down = conv(3, ConvConfig::down(3))?.forward(&h)?;
    let up = h.average_pool()?.upsample_nearest()?.average_pool()?;
    down.add(&up)
}

fn weights() -> Vec<Tensor> {
    let shapes: [&[usize]; 7] =
        [&[24], &[24], &[48, 10], &[24, 24, 3, 3], &[24, 24, 3, 3], &[72, 24, 1, 1], &[24, 48, 1, 1]];
    shapes.iter().enumerate().map(|(i, s)| tensor(s, 10 + i as u64)).collect()
}

/// Output, gradient of the input, and gradients of the weights, as bits.
fn run(threads: usize, x: &Tensor, embedding: &Tensor) -> (Vec<u32>, Vec<u32>, Vec<Vec<u32>>) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("thread pool");
    pool.install(|| {
        let x = Var::from_tensor(x).expect("variable");
        let w: Vec<Var> = weights().iter().map(|w| Var::from_tensor(w).expect("variable")).collect();
        let tensors: Vec<Tensor> = w.iter().map(|w| w.as_tensor().clone()).collect();
        let map = FeatureMap::from_nchw(x.as_tensor()).expect("map");
        let y = network(&map, &FeatureMap::from_rows(embedding).expect("rows"), &tensors).expect("network");
        let out = y.to_nchw().expect("tensor");
        let grads = out.sqr().and_then(|y| y.sum_all()).and_then(|y| y.backward()).expect("backward");
        let gradient = |t: &Tensor| bits(grads.get(t).expect("gradient"));
        (bits(&out), gradient(x.as_tensor()), tensors.iter().map(gradient).collect())
    })
}

#[test]
fn threads_change_no_bit() {
    let (x, embedding) = (tensor(&[2, 24, 18, 14], 1), tensor(&[2, 10], 2));
    let one = run(1, &x, &embedding);
    for threads in [2, 3, 7] {
        assert!(one == run(threads, &x, &embedding), "{threads} threads");
    }
}

#[test]
fn the_batch_changes_no_bit() {
    let (x, embedding) = (tensor(&[3, 24, 18, 14], 1), tensor(&[3, 10], 2));
    let all = run(2, &x, &embedding);
    for i in 0..3 {
        let one = run(2, &x.narrow(0, i, 1).expect("sample"), &embedding.narrow(0, i, 1).expect("sample"));
        let part = |all: &[u32], one: &[u32]| all[i * one.len()..(i + 1) * one.len()] == *one;
        assert!(part(&all.0, &one.0), "output of sample {i}");
        assert!(part(&all.1, &one.1), "gradient of sample {i}");
    }
}

#[test]
fn cached_and_fresh_weights_agree() {
    let x = FeatureMap::from_nchw(&tensor(&[1, 24, 12, 12], 1)).expect("map");
    let fixed = Conv2d::new(tensor(&[24, 24, 3, 3], 2), None, ConvConfig::same(3)).expect("conv");
    let variable = Var::from_tensor(&tensor(&[24, 24, 3, 3], 2)).expect("variable");
    let trained = Conv2d::new(variable.as_tensor().clone(), None, ConvConfig::same(3)).expect("conv");
    let run = |conv: &Conv2d| bits(&conv.forward(&x).and_then(|y| y.to_nchw()).expect("output"));
    assert_eq!(run(&fixed), run(&fixed));
    assert_eq!(run(&fixed), run(&trained));
    // Beyond the limit nothing is kept, and nothing else changes.
    set_kept_weights_limit(0);
    let unkept = Conv2d::new(tensor(&[24, 24, 3, 3], 2), None, ConvConfig::same(3)).expect("conv");
    assert_eq!(run(&fixed), run(&unkept));
    assert_eq!(run(&unkept), run(&unkept));
    set_kept_weights_limit(usize::MAX);
    // An update of the variable is seen.
    variable.set(&tensor(&[24, 24, 3, 3], 3)).expect("update");
    assert_ne!(run(&fixed), run(&trained));
}

#[test]
fn bad_input_is_refused() {
    let says = |result: Result<FeatureMap>, words: &[&str]| {
        let message = result.expect_err("must be refused").to_string();
        assert!(words.iter().all(|w| message.contains(w)), "{message}");
    };
    let map = |shape: &[usize]| FeatureMap::from_nchw(&tensor(shape, 1)).expect("map");
    let conv = Conv2d::new(tensor(&[4, 8, 3, 3], 1), None, ConvConfig::same(3)).expect("conv");
    says(conv.forward(&map(&[1, 7, 4, 4])), &["expected", "N x 8", "[1, 7, 4, 4]"]);
    says(conv.forward((&map(&[1, 4, 4, 4]), &map(&[1, 4, 4, 5]))), &["expected", "[1, 4, 4, 5]"]);
    says(conv.on(&map(&[1, 8, 4, 4])).residual(&map(&[1, 4, 2, 2])).run(), &["residual", "[1, 4, 4, 4]"]);
    says(FeatureMap::from_nchw(&tensor(&[1, 3, 0, 4], 1)), &["[1, 3, 0, 4]"]);
    says(FeatureMap::from_nchw(&tensor(&[3, 4], 1)), &["N x C x H x W", "[3, 4]"]);
    let doubles = tensor(&[1, 1, 2, 2], 1).to_dtype(DType::F64).expect("f64");
    says(FeatureMap::from_nchw(&doubles), &["F32", "F64"]);
    says(map(&[1, 3, 5, 4]).average_pool(), &["even", "[1, 3, 5, 4]"]);
    says(self_attention(&map(&[1, 10, 4, 4]), 1, QkvOrder::QkvFirst), &["3C", "[1, 10, 4, 4]"]);
    says(self_attention(&map(&[1, 12, 4, 4]), 3, QkvOrder::QkvFirst), &["divisor of 4", "3"]);
    assert!(Conv2d::new(tensor(&[4, 8, 5, 5], 1), None, ConvConfig::same(5)).is_err());
    for empty in [[0, 8, 1, 1], [8, 0, 3, 3]] {
        assert!(Conv2d::new(tensor(&empty, 1), None, ConvConfig::same(empty[2])).is_err());
    }
    assert!(Conv2d::new(tensor(&[4, 8, 3, 3], 1), Some(tensor(&[5], 1)), ConvConfig::same(3)).is_err());
    assert!(GroupNorm::new(tensor(&[10], 1), tensor(&[10], 1), 4, 1e-5).is_err());
}
