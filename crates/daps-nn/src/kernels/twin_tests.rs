//! Norms, softmax, activations and attention: every instruction set against f64, and independence of threads.

use super::attention::{self, Saved, Shape, Strides, View};
use super::norm::{self, Affine};
use super::winograd_conv::Source;
use super::{elementwise, layer_norm};
use crate::feature_map::Dims;
use crate::simd::Isa;
use crate::testing::{assert_close, largest, normal};
use proptest::prelude::*;

fn silu64(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Softmax attention of one head in f64; views are [tokens][dim].
fn attention64(q: &[f32], k: &[f32], v: &[f32], dim: usize) -> Vec<f64> {
    let (t_q, t_k) = (q.len() / dim, k.len() / dim);
    let mut out = vec![0f64; q.len()];
    for i in 0..t_q {
        let score = |j: usize| {
            let dot: f64 = (0..dim).map(|d| f64::from(q[i * dim + d]) * f64::from(k[j * dim + d])).sum();
            dot / (dim as f64).sqrt()
        };
        let scores: Vec<f64> = (0..t_k).map(score).collect();
        let largest = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (j, weight) in weights.iter().enumerate() {
            for d in 0..dim {
                out[i * dim + d] += weight / total * f64::from(v[j * dim + d]);
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn group_norm_is_right(
        n in 1usize..=3, h in 1usize..=33, w in 1usize..=9, groups in prop::sample::select(vec![1usize, 3, 4]),
        per in prop::sample::select(vec![1usize, 3, 8, 11]), cut in 0.0f64..1.0, mean in -50.0f32..50.0, seed in 0u64..100,
    ) {
        let c = groups * per;
        let c1 = 1 + ((c - 1) as f64 * cut) as usize;
        let dims = Dims { batch: n, height: h, width: w, channels: c };
        let pixels = h * w;
        let x: Vec<f32> = normal(dims.len(), seed).iter().map(|v| v + mean).collect();
        let (mut a, mut b) = (vec![], vec![]);
        for pixel in x.chunks_exact(c) {
            a.extend_from_slice(&pixel[..c1]);
            b.extend_from_slice(&pixel[c1..]);
        }
        let mut sources = vec![Source { values: &a, channels: c1 }];
        if c1 < c { sources.push(Source { values: &b, channels: c - c1 }); }
        let mut expected = vec![0f64; dims.len()];
        let mut affine = Affine { a: vec![0.0; n * c], b: vec![0.0; n * c] };
        let mut means = vec![];
        for (s, g) in (0..n).flat_map(|s| (0..groups).map(move |g| (s, g))) {
            let at = |p: usize, ch: usize| (s * pixels + p) * c + g * per + ch;
            let values = || (0..pixels).flat_map(|p| (0..per).map(move |ch| (p, ch)));
            let count = (pixels * per) as f64;
            let mean = values().map(|(p, ch)| f64::from(x[at(p, ch)])).sum::<f64>() / count;
            let variance = values().map(|(p, ch)| (f64::from(x[at(p, ch)]) - mean).powi(2)).sum::<f64>() / count;
            let rstd = 1.0 / (variance + 1e-5).sqrt();
            means.push((mean, rstd));
            for (p, ch) in values() { expected[at(p, ch)] = silu64((f64::from(x[at(p, ch)]) - mean) * rstd); }
            for ch in 0..per {
                affine.a[s * c + g * per + ch] = rstd as f32;
                affine.b[s * c + g * per + ch] = (-mean * rstd) as f32;
            }
        }
        for isa in Isa::available() {
            let stats = norm::statistics(isa, dims, &sources, groups, 1e-5);
            for (i, (mean, rstd)) in means.iter().enumerate() {
                prop_assert!((stats.mean[i] - mean).abs() * rstd < 1e-4, "{isa:?} mean {} {mean}", stats.mean[i]);
                prop_assert!((stats.rstd[i] / rstd - 1.0).abs() < 1e-4, "{isa:?} rstd {} {rstd}", stats.rstd[i]);
            }
            // x a + b with |b| up to 50 / std loses digits that the tolerance must allow for.
            let scale = means.iter().fold(1f64, |m, (mean, rstd)| m.max(mean.abs() * rstd));
            let y = norm::forward(isa, dims, &sources, &affine, true);
            let worst = largest(y.iter().zip(&expected).map(|(y, e)| (f64::from(*y) - e).abs()));
            prop_assert!(worst <= 5e-7 * scale + 1e-6, "{isa:?} {worst}");
        }
    }

    #[test]
    fn attention_is_right(
        n in 1usize..=2, heads in 1usize..=2, dim in prop::sample::select(vec![1usize, 3, 8, 33]),
        t_q in 1usize..70, t_k in 1usize..70, seed in 0u64..100,
    ) {
        let width = heads * dim;
        let (q, k) = (normal(n * t_q * width, seed), normal(n * t_k * width, seed + 1));
        let v = normal(n * t_k * width, seed + 2);
        let strides = Strides { base: 0, token: width, head: dim, element: 1 };
        let head = |x: &[f32], tokens: usize, s: usize, h: usize| -> Vec<f32> {
            (0..tokens).flat_map(|t| x[(s * tokens + t) * width + h * dim..][..dim].to_vec()).collect()
        };
        for isa in Isa::available() {
            let view = |values, tokens| View { values, strides, tokens };
            let shape = Shape { batch: n, heads, dim };
            let (out, _) = attention::forward(isa, shape, view(&q, t_q), view(&k, t_k), view(&v, t_k));
            for (s, h) in (0..n).flat_map(|s| (0..heads).map(move |h| (s, h))) {
                let expected = attention64(&head(&q, t_q, s, h), &head(&k, t_k, s, h), &head(&v, t_k, s, h), dim);
                assert_close(&head(&out, t_q, s, h), &expected, 1e-5);
            }
        }
    }

    #[test]
    fn silu_and_softmax_are_right(pixels in 1usize..20, c in 1usize..70, scale in 0.1f32..40.0, seed in 0u64..100) {
        let x: Vec<f32> = normal(pixels * c, seed).iter().map(|v| v * scale).collect();
        let silu: Vec<f64> = x.iter().map(|&v| silu64(f64::from(v))).collect();
        let slope: Vec<f64> = x.iter().map(|&v| {
            let (v, s) = (f64::from(v), 1.0 / (1.0 + (-f64::from(v)).exp()));
            s * (1.0 + v * (1.0 - s))
        }).collect();
        let mut softmax = vec![];
        for row in x.chunks_exact(c) {
            let largest = row.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
            let e: Vec<f64> = row.iter().map(|&v| (f64::from(v) - f64::from(largest)).exp()).collect();
            let total: f64 = e.iter().sum();
            softmax.extend(e.iter().map(|v| v / total));
        }
        for isa in Isa::available() {
            assert_close(&elementwise::silu(isa, &x), &silu, 1e-6);
            let mut g = vec![1f32; x.len()];
            elementwise::silu_gradient(isa, &x, &mut g);
            // The slope of a large negative number is small times large: 1e-6 of the largest slope.
            assert_close(&g, &slope, 5e-6);
            assert_close(&layer_norm::softmax(isa, &x, c), &softmax, 5e-6);
        }
    }
}

#[test]
fn norm_and_attention_backward_agree_between_instruction_sets() {
    let dims = Dims { batch: 2, height: 19, width: 17, channels: 33 };
    let (x, g) = (normal(dims.len(), 1), normal(dims.len(), 2));
    let sources = [Source { values: &x, channels: 33 }];
    let gain = vec![1.3f64; 66];
    let affine = Affine { a: vec![1.3; 66], b: vec![0.1; 66] };
    let strides = |which: usize| Strides { base: which * 11, token: 33, head: 11, element: 1 };
    let shape = Shape { batch: 2, heads: 1, dim: 11 };
    let run = |isa: Isa| {
        let stats = norm::statistics(isa, dims, &sources, 11, 1e-5);
        let mut gradient = g.clone();
        let sums = norm::backward_sums(isa, dims, &sources, (&stats, &affine, true), &mut gradient);
        let dx = norm::backward_input(isa, dims, &sources, (&stats, &sums, &gain), &gradient).remove(0);
        let view = |which| View { values: &x, strides: strides(which), tokens: dims.pixels() };
        let (out, logs) = attention::forward(isa, shape, view(0), view(1), view(2));
        let mut joint = vec![f32::NAN; x.len()];
        let saved = Saved { out: &out, logs: &logs, gradient: &g[..out.len()] };
        attention::backward_joint(isa, shape, (view(0), view(1), view(2)), saved, &mut joint);
        (dx.to_vec(), joint)
    };
    let scalar = run(Isa::SCALAR);
    let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
    for isa in Isa::available() {
        let other = run(isa);
        assert_close(&other.0, &wide(&scalar.0), 1e-5);
        assert_close(&other.1, &wide(&scalar.1), 1e-5);
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("thread pool");
            assert!(other == pool.install(|| run(isa)), "{isa:?} with {threads} threads");
        }
    }
}

#[test]
fn nan_is_never_hidden() {
    for isa in Isa::available() {
        for bad in [0, 7, 36] {
            let mut x = normal(37, 1);
            x[bad] = f32::NAN;
            let silu = elementwise::silu(isa, &x);
            assert!(silu[bad].is_nan() && silu.iter().filter(|v| v.is_nan()).count() == 1, "{isa:?}");
            let mut slope = vec![1f32; 37];
            elementwise::silu_gradient(isa, &x, &mut slope);
            assert!(slope[bad].is_nan(), "{isa:?}");
            assert!(layer_norm::softmax(isa, &x, 37).iter().all(|v| v.is_nan()), "{isa:?}");
            let dims = Dims { batch: 1, height: 1, width: 1, channels: 37 };
            let stats = norm::statistics(isa, dims, &[Source { values: &x, channels: 37 }], 1, 1e-5);
            assert!(stats.mean[0].is_nan() && stats.rstd[0].is_nan(), "{isa:?}");
            // A key that is NaN spoils every query, even where the values are fine.
            let (q, v) = (normal(37, 2), normal(37, 3));
            let strides = Strides { base: 0, token: 1, head: 1, element: 1 };
            let view = |values| View { values, strides, tokens: 37 };
            let shape = Shape { batch: 1, heads: 1, dim: 1 };
            let (out, _) = attention::forward(isa, shape, view(&q), view(&x), view(&v));
            assert!(out.iter().all(|v| v.is_nan()), "{isa:?}");
        }
    }
}

/// Sizes and strides with which threads would leave a buffer or meet in one: refused before anything runs.
#[test]
fn what_does_not_fit_is_refused() {
    let refused = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
    let isa = Isa::active();
    let (x, long) = (normal(60, 1), normal(61, 2));
    assert!(refused(&|| elementwise::silu_gradient(isa, &long, &mut x.clone())));

    let dims = Dims { batch: 2, height: 2, width: 3, channels: 5 };
    let affine = |len: usize| Affine { a: vec![1.0; len], b: vec![0.0; len] };
    let norm = |values: &[f32], channels: usize, coefficients: usize, gradient: &[f32]| {
        let sources = [Source { values, channels }];
        let forward = refused(&|| _ = norm::forward(isa, dims, &sources, &affine(coefficients), true));
        let backward = refused(&|| {
            let stats = norm::statistics(isa, dims, &[Source { values: &x, channels: 5 }], 5, 1e-5);
            let affine = affine(coefficients);
            norm::backward_sums(isa, dims, &sources, (&stats, &affine, true), &mut gradient.to_vec());
        });
        (forward, backward)
    };
    assert_eq!(norm(&x, 5, 10, &x), (false, false));
    assert_eq!(norm(&x[1..], 5, 10, &x), (true, true));
    assert_eq!(norm(&x[..48], 4, 10, &x), (true, true));
    assert_eq!(norm(&x, 5, 9, &x), (true, true));
    assert_eq!(norm(&x, 5, 10, &x[1..]), (false, true));

    // Two heads of two dimensions, four tokens, queries, keys and values side by side.
    let shape = Shape { batch: 1, heads: 2, dim: 2 };
    let x = normal(48, 3);
    let attention = |token: usize, head: usize, bases: [usize; 3], len: usize| {
        let view = |which: usize| View {
            values: &x,
            strides: Strides { base: bases[which], token, head, element: 1 },
            tokens: 4,
        };
        let (out, logs) = (normal(16, 4), normal(8, 5));
        let saved = Saved { out: &out, logs: &logs, gradient: &out };
        refused(&|| {
            let mut joint = vec![0f32; len];
            attention::backward_joint(isa, shape, (view(0), view(1), view(2)), saved, &mut joint);
        })
    };
    assert!(!attention(12, 2, [0, 4, 8], 48) && !attention(12, 6, [0, 2, 4], 48));
    assert!(attention(12, 2, [0, 4, 8], 47), "a buffer that is too short");
    assert!(attention(12, 1, [0, 4, 8], 48), "heads that overlap");
    assert!(attention(12, 2, [0, 2, 8], 48), "keys of one head among queries of another");
    assert!(attention(8, 2, [0, 4, 8], 48), "values in the next token");
}
