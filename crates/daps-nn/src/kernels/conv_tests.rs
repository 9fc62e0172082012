//! Both convolution kernels, on every instruction set, against a plain convolution in f64.

use super::gather_conv::{self, Geometry};
use super::winograd::{Finish, Grid};
use super::winograd_conv::{self, Source, Target};
use super::winograd_gradient;
use super::winograd_weights::{self, Direction};
use crate::simd::Isa;
use crate::testing::{assert_close, normal};
use proptest::prelude::*;

/// Calls `f(output index, input index, weight index)` for every product of a convolution; maps are NHWC.
fn products(g: &Geometry, c: usize, k: usize, mut f: impl FnMut(usize, usize, usize)) {
    let ((h, w), (oh, ow)) = (g.input, g.output);
    for n in 0..g.batch {
        for (y, x) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
            for tap in 0..g.kernel * g.kernel {
                let iy = (y * g.stride + tap / g.kernel) as isize - g.padding as isize;
                let ix = (x * g.stride + tap % g.kernel) as isize - g.padding as isize;
                if iy < 0 || ix < 0 || iy >= h as isize || ix >= w as isize {
                    continue;
                }
                let (out, input) = ((n * oh + y) * ow + x, (n * h + iy as usize) * w + ix as usize);
                for (o, i) in (0..k).flat_map(|o| (0..c).map(move |i| (o, i))) {
                    f(out * k + o, input * c + i, (o * c + i) * g.kernel * g.kernel + tap);
                }
            }
        }
    }
}

fn split(map: &[f32], c: usize, c1: usize) -> (Vec<f32>, Vec<f32>) {
    let mut parts = (vec![], vec![]);
    for pixel in map.chunks_exact(c) {
        parts.0.extend_from_slice(&pixel[..c1]);
        parts.1.extend_from_slice(&pixel[c1..]);
    }
    parts
}

struct Case {
    g: Geometry,
    c: usize,
    c1: usize,
    k: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
}

impl Case {
    fn new(g: Geometry, c: usize, c1: usize, k: usize, seed: u64) -> Self {
        let area = g.kernel * g.kernel;
        let x = normal(g.batch * g.input.0 * g.input.1 * c, seed);
        let w = normal(k * c * area, seed + 1);
        let dy = normal(g.batch * g.output.0 * g.output.1 * k, seed + 2);
        Self { g, c, c1, k, x, w, dy }
    }

    /// Output with bias, residual and scale; input gradient; weight gradient.
    fn reference(&self, bias: &[f32], residual: &[f32], scale: f64) -> [Vec<f64>; 3] {
        let mut y = vec![0f64; self.dy.len()];
        let (mut dx, mut dw) = (vec![0f64; self.x.len()], vec![0f64; self.w.len()]);
        products(&self.g, self.c, self.k, |o, i, t| {
            y[o] += f64::from(self.x[i]) * f64::from(self.w[t]);
            dx[i] += f64::from(self.dy[o]) * f64::from(self.w[t]);
            dw[t] += f64::from(self.dy[o]) * f64::from(self.x[i]);
        });
        let per_sample = y.len() / self.g.batch;
        for (o, y) in y.iter_mut().enumerate() {
            let bias = bias[o / per_sample * self.k + o % self.k];
            *y = (*y + f64::from(bias) + f64::from(residual[o])) * scale;
        }
        [y, dx, dw]
    }

    fn check(&self, isa: Isa, winograd: bool, tolerance: f64) {
        let Case { g, c, c1, k, x, w, dy } = self;
        let (c, c1, k) = (*c, *c1, *k);
        let (bias, residual) = (normal(g.batch * k, 7), normal(dy.len(), 8));
        let [y_ref, dx_ref, dw_ref] = self.reference(&bias, &residual, 0.7f32.into());
        let (a, b) = split(x, c, c1);
        let mut sources = vec![Source { values: &a, channels: c1 }];
        if c1 < c {
            sources.push(Source { values: &b, channels: c - c1 });
        }
        let grid = Grid { batch: g.batch, height: g.input.0, width: g.input.1 };

        let mut y = vec![f32::NAN; dy.len()];
        let finish = Finish { bias: Some(&bias), bias_stride: k, residual: Some(&residual), scale: 0.7 };
        let mut targets = [Target { values: &mut y, channels: k, finish }];
        if winograd {
            let u = winograd_weights::transform(isa, w, k, c, Direction::Forward);
            winograd_conv::convolve(isa, grid, &sources, &u, &mut targets);
        } else {
            let packed = gather_conv::pack_forward(isa, g, w, k, c);
            gather_conv::convolve(isa, g.batch, (&sources, g.input), &packed, (&mut targets, g.output));
        }
        assert_close(&y, &y_ref, tolerance);

        let (mut da, mut db) = (vec![f32::NAN; a.len()], vec![f32::NAN; b.len()]);
        let mut targets = vec![Target { values: &mut da, channels: c1, finish: Finish::NONE }];
        if c1 < c {
            targets.push(Target { values: &mut db, channels: c - c1, finish: Finish::NONE });
        }
        let gradient = Source { values: dy, channels: k };
        if winograd {
            let u = winograd_weights::transform(isa, w, k, c, Direction::Backward);
            winograd_conv::convolve(isa, grid, &[gradient], &u, &mut targets);
        } else {
            let packed = gather_conv::pack_backward(isa, g, w, k, c);
            gather_conv::convolve(isa, g.batch, (&[gradient], g.output), &packed, (&mut targets, g.input));
        }
        let dx_ref32: Vec<f32> = dx_ref.iter().map(|&v| v as f32).collect();
        let (da_ref, db_ref) = split(&dx_ref32, c, c1);
        let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
        assert_close(&da, &wide(&da_ref), tolerance);
        assert_close(&db, &wide(&db_ref), tolerance);

        let dw = if winograd {
            winograd_gradient::weight_gradient(isa, grid, &sources, gradient)
        } else {
            gather_conv::weight_gradient(isa, g, &sources, gradient)
        };
        assert_close(&dw, &dw_ref, tolerance);
    }
}

fn same(batch: usize, h: usize, w: usize) -> Geometry {
    Geometry { batch, input: (h, w), output: (h, w), kernel: 3, stride: 1, padding: 1 }
}

fn channels() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1usize, 3, 5, 32, 33, 96])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn winograd_is_a_convolution(
        n in 1usize..=3, h in 1usize..=33, w in 1usize..=33, c in channels(), k in channels(),
        cut in 0.0f64..1.0, seed in 0u64..100,
    ) {
        let c1 = 1 + ((c - 1) as f64 * cut) as usize;
        let case = Case::new(same(n, h, w), c, c1, k, seed);
        for isa in Isa::available() {
            case.check(isa, true, 3e-5);
        }
    }

    #[test]
    fn gathering_is_a_convolution(
        n in 1usize..=3, h in 1usize..=33, w in 1usize..=33, c in channels(), k in channels(),
        kernel in prop::sample::select(vec![1usize, 3]), stride in 1usize..=2, lopsided in any::<bool>(),
        cut in 0.0f64..1.0, seed in 0u64..100,
    ) {
        let c1 = 1 + ((c - 1) as f64 * cut) as usize;
        let (before, after) = if lopsided && h > 2 && w > 2 { (0, kernel / 2) } else { (kernel / 2, kernel / 2) };
        let size = |n: usize| (n + before + after - kernel) / stride + 1;
        let g = Geometry { batch: n, input: (h, w), output: (size(h), size(w)), kernel, stride, padding: before };
        let case = Case::new(g, c, c1, k, seed);
        for isa in Isa::available() {
            case.check(isa, false, 1e-5);
        }
    }
}

#[test]
fn large_sizes_and_many_channels() {
    // Sizes that proptest leaves out for time: a wide map in many blocks, and weights too large for one core's cache.
    for isa in Isa::available() {
        Case::new(same(1, 33, 33), 32, 32, 33, 1).check(isa, true, 3e-5);
        Case::new(same(2, 9, 6), 96, 64, 96, 2).check(isa, true, 3e-5);
        Case::new(same(1, 12, 12), 160, 96, 160, 3).check(isa, true, 3e-5);
        Case::new(same(2, 16, 15), 96, 64, 33, 4).check(isa, false, 1e-5);
        // More tiles and pixels than one block of the weight gradient holds.
        Case::new(same(1, 93, 94), 33, 20, 5, 5).check(isa, true, 3e-5);
        Case::new(same(1, 93, 94), 33, 20, 5, 5).check(isa, false, 1e-5);
    }
}

#[test]
fn winograd_error_at_512_channels_is_small() {
    let (n, size, c, k) = (1, 8, 512, 512);
    let g = same(n, size, size);
    let (x, w) = (normal(size * size * c, 1), normal(k * c * 9, 2));
    // The reference in f64 for some of the output channels.
    let some = 16;
    let mut expected = vec![0f64; size * size * some];
    products(&g, c, some, |o, i, t| expected[o] += f64::from(x[i]) * f64::from(w[t]));
    for isa in Isa::available() {
        let u = winograd_weights::transform(isa, &w, k, c, Direction::Forward);
        let mut y = vec![0f32; size * size * k];
        let grid = Grid { batch: n, height: size, width: size };
        let mut target = [Target { values: &mut y, channels: k, finish: Finish::NONE }];
        winograd_conv::convolve(isa, grid, &[Source { values: &x, channels: c }], &u, &mut target);
        let (mut error, mut norm) = (0f64, 0f64);
        for (i, e) in expected.iter().enumerate() {
            error += (f64::from(y[i / some * k + i % some]) - e).powi(2);
            norm += e * e;
        }
        let rms = (error / norm).sqrt();
        assert!(rms <= 1e-5, "{isa:?}: relative RMS error {rms:.2e}");
    }
}

#[test]
fn threads_and_batch_change_no_bit() {
    let (n, h, w, c, k) = (3, 21, 18, 40, 36);
    let case = Case::new(same(n, h, w), c, c, k, 5);
    let isa = Isa::active();
    let u = winograd_weights::transform(isa, &case.w, k, c, Direction::Forward);
    let packed = gather_conv::pack_forward(isa, &case.g, &case.w, k, c);
    let run = |threads: usize, batch: usize, from: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("thread pool");
        pool.install(|| {
            let source = Source { values: &case.x[from * h * w * c..][..batch * h * w * c], channels: c };
            let gradient = Source { values: &case.dy[from * h * w * k..][..batch * h * w * k], channels: k };
            let grid = Grid { batch, height: h, width: w };
            let (mut y, mut z) = (vec![0f32; batch * h * w * k], vec![0f32; batch * h * w * k]);
            let target = |values| Target { values, channels: k, finish: Finish::NONE };
            winograd_conv::convolve(isa, grid, &[source], &u, &mut [target(&mut y)]);
            gather_conv::convolve(isa, batch, (&[source], (h, w)), &packed, (&mut [target(&mut z)], (h, w)));
            let g = Geometry { batch, ..case.g };
            let dw = winograd_gradient::weight_gradient(isa, grid, &[source], gradient);
            let dw_gather = gather_conv::weight_gradient(isa, &g, &[source], gradient);
            (y, z, dw, dw_gather)
        })
    };
    let all = run(1, n, 0);
    for threads in [2, 3, 5] {
        assert!(all == run(threads, n, 0), "{threads} threads");
    }
    for sample in 0..n {
        let one = run(2, 1, sample);
        let part = sample * h * w * k..(sample + 1) * h * w * k;
        assert!(all.0[part.clone()] == one.0 && all.1[part] == one.1, "sample {sample}");
    }
}

#[test]
fn many_tiles_with_large_weights_run_in_several_blocks_to_the_same_bits() {
    let (n, size, c) = (40, 12, 160);
    let isa = Isa::active();
    let (x, w) = (normal(n * size * size * c, 1), normal(c * c * 9, 2));
    let u = winograd_weights::transform(isa, &w, c, c, Direction::Forward);
    let run = |from: usize, batch: usize| {
        let mut y = vec![0f32; batch * size * size * c];
        let source = Source { values: &x[from * size * size * c..][..y.len()], channels: c };
        let mut target = [Target { values: &mut y, channels: c, finish: Finish::NONE }];
        winograd_conv::convolve(isa, Grid { batch, height: size, width: size }, &[source], &u, &mut target);
        y
    };
    let all = run(0, n);
    for sample in [0, 17, 34, 39] {
        let one = run(sample, 1);
        assert!(all[sample * one.len()..][..one.len()] == one, "sample {sample}");
    }
}

/// Maps, biases and weights that are too short would be read or written beyond their end: refused before anything runs.
#[test]
fn what_is_too_short_is_refused() {
    let refused = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
    let (h, w, c, k) = (9, 10, 13, 14);
    let (g, grid) = (same(2, h, w), Grid { batch: 2, height: h, width: w });
    let (x, dy) = (normal(2 * h * w * c, 1), normal(2 * h * w * k, 2));
    let (weight, bias) = (normal(k * c * 9, 3), normal(2 * k, 4));
    for isa in Isa::available() {
        let u = winograd_weights::transform(isa, &weight, k, c, Direction::Forward);
        let packed = gather_conv::pack_forward(isa, &g, &weight, k, c);
        // By how much source, target, bias, residual and weights are too short.
        let forward = |short: [usize; 5]| {
            let cut = |values: &[f32], by: usize| values[..values.len() - by].to_vec();
            let x = cut(&x, short[0]);
            let (bias, residual) = (cut(&bias, short[2]), cut(&dy, short[3]));
            let finish = Finish { bias: Some(&bias), bias_stride: k, residual: Some(&residual), scale: 1.0 };
            let sources = [Source { values: &x, channels: c }];
            let by_winograd = refused(&|| {
                let mut y = cut(&dy, short[1]);
                let mut target = [Target { values: &mut y, channels: k, finish }];
                winograd_conv::convolve(isa, grid, &sources, &u[..u.len() - short[4]], &mut target);
            });
            let by_gathering = refused(&|| {
                let mut y = cut(&dy, short[1]);
                let mut target = [Target { values: &mut y, channels: k, finish }];
                gather_conv::convolve(isa, 2, (&sources, (h, w)), &packed, (&mut target, (h, w)));
            });
            // Weights for gathering cannot be cut short from outside.
            assert!(by_gathering == by_winograd || short[4] > 0, "{isa:?} {short:?}");
            by_winograd
        };
        assert!(!forward([0; 5]), "{isa:?}");
        for i in 0..5 {
            assert!(forward(std::array::from_fn(|j| usize::from(i == j))), "{isa:?}, operand {i}");
        }
        // Weights that were packed for other channels.
        let fewer = gather_conv::pack_forward(isa, &g, &weight, k, c - 1);
        assert!(refused(&|| {
            let mut y = dy.clone();
            let mut target = [Target { values: &mut y, channels: k, finish: Finish::NONE }];
            let sources = [Source { values: &x, channels: c }];
            gather_conv::convolve(isa, 2, (&sources, (h, w)), &fewer, (&mut target, (h, w)));
        }));
        let gradient = |x: &[f32], dy: &[f32]| {
            let (x, dy) = (Source { values: x, channels: c }, Source { values: dy, channels: k });
            refused(&|| _ = winograd_gradient::weight_gradient(isa, grid, &[x], dy))
        };
        assert!(!gradient(&x, &dy) && gradient(&x[1..], &dy) && gradient(&x, &dy[1..]), "{isa:?}");
    }
}
