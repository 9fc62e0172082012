//! Fast operators beside slow twins: direct sums written from the definition, and matrices made of unit vectors.

use std::f64::consts::TAU;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::{batched, to_f64};
use daps_core::{Address, Linear, Noise, Operator, Purpose};
use daps_operators::laws::relative_difference;
use daps_operators::mri::{coil_maps, line_mask};
use daps_operators::registry::OPERATORS;
use daps_operators::{Blur, BlurKernel, Border, Dense, Mri, PhaseRetrieval, Strategy, SuperResolution};

fn normal(seed: u64, rows: usize, shape: &[usize]) -> Tensor {
    let at = Address::new(0, Purpose::Reference, 0);
    Noise::chains(seed, rows).normal(at, shape, DType::F64).unwrap()
}

fn close(what: &str, fast: &[f64], slow: &[f64]) {
    assert_eq!(fast.len(), slow.len(), "{what}");
    let scale = slow.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    for (fast, slow) in fast.iter().zip(slow) {
        assert!((fast - slow).abs() <= 1e-12 * scale, "{what}: {fast} and {slow}");
    }
}

/// The matrix `[1, outputs, inputs]` of a linear operator, column by column.
fn materialise(operator: &Arc<dyn Operator>) -> Tensor {
    let n: usize = operator.input_shape().iter().product();
    let units = Tensor::eye(n, DType::F64, &Device::Cpu).unwrap();
    let units = units.reshape(batched(n, operator.input_shape())).unwrap();
    let columns = operator.apply(&units).unwrap().flatten_from(1).unwrap();
    columns.t().unwrap().contiguous().unwrap().unsqueeze(0).unwrap()
}

#[test]
fn every_linear_operator_is_its_matrix() {
    for entry in OPERATORS {
        for seed in 0..3 {
            let example = (entry.example)([2, 6, 7], seed).unwrap();
            if example.operator.as_linear().is_none() {
                continue;
            }
            for row in 0..example.operator.rows().unwrap_or(1) {
                let one = Arc::clone(&example.operator).select(&[row]).unwrap();
                compare_with_matrix(entry.name, &one, seed);
            }
        }
    }
}

fn compare_with_matrix(name: &str, operator: &Arc<dyn Operator>, seed: u64) {
    let n: usize = operator.input_shape().iter().product();
    let m: usize = operator.output_shape().iter().product();
    let dense = Dense::new(&[n], &materialise(operator)).unwrap();
    let (x, r) = (normal(seed, 2, operator.input_shape()), normal(seed + 1, 2, operator.output_shape()));
    let flat = |t: &Tensor| t.flatten_from(1).unwrap();
    let same = |what: &str, a: &Tensor, b: &Tensor| {
        let by = relative_difference(a, b).unwrap();
        assert!(by < 1e-12, "{name}: {what}: {by}");
    };
    let linear = operator.as_linear().unwrap();
    same("A", &flat(&operator.apply(&x).unwrap()), &dense.apply(&flat(&x)).unwrap());
    same("Aᵀ", &flat(&linear.adjoint(&r).unwrap()), &dense.adjoint(&flat(&r)).unwrap());
    let (bound, exact) = (linear.norm_squared().unwrap()[0], dense.norm_squared().unwrap()[0]);
    assert!(exact <= bound * (1.0 + 1e-12) && bound <= 2.0 * exact, "{name}: {bound} and {exact}");
    if let Some(fast) = operator.as_spectral() {
        let sorted = |s: &[f64]| {
            let mut s: Vec<f64> = s.to_vec();
            s.sort_by(|a, b| b.total_cmp(a));
            s.resize(n.max(m), 0.0);
            s
        };
        let exact = daps_core::Spectral::singular(&dense);
        close(name, &sorted(&fast.singular()[0]), &sorted(&exact[0]));
        assert!(fast.singular()[0].len() <= n, "modes are thin");
    }
}

/// The pixel at a position beyond the border, by walking back and forth.
fn beyond(p: isize, n: usize, border: Border) -> usize {
    let n = n as isize;
    let mut p = p;
    while !(0..n).contains(&p) {
        p = match border {
            Border::Circular => p - n * p.signum(),
            Border::Reflect if p < 0 => -p,
            Border::Reflect => 2 * (n - 1) - p,
        };
    }
    p as usize
}

#[test]
fn blur_is_the_sum_over_its_kernel() {
    let (c, h, w) = (2, 9, 40);
    let x = normal(1, 1, &[c, h, w]);
    let values = to_f64(&x).unwrap();
    for (kh, kw) in [(1, 1), (3, 3), (4, 5), (2, 8), (17, 1), (6, 6)] {
        let kernel = to_f64(&normal(2, 1, &[kh, kw])).unwrap();
        let outer: Vec<f64> = (0..kh * kw).map(|i| kernel[i / kw] * kernel[i % kw]).collect();
        for border in [Border::Reflect, Border::Circular] {
            for (values_of, separable) in [(&kernel, kh == 1 || kw == 1), (&outer, true)] {
                let slow: Vec<f64> = (0..c * h * w)
                    .map(|p| {
                        let (plane, i, j) = (p / (h * w), p / w % h, p % w);
                        let at = |center: usize, k: usize, size: usize, n: usize| {
                            beyond(center as isize + k as isize - (size / 2) as isize, n, border)
                        };
                        let term = |k: usize| {
                            let (a, b) = (at(i, k / kw, kh, h), at(j, k % kw, kw, w));
                            values_of[k] * values[plane * h * w + a * w + b]
                        };
                        (0..kh * kw).map(term).sum()
                    })
                    .collect();
                let kernel = [BlurKernel::new(values_of, kh, kw).unwrap()];
                for way in [Strategy::Separable, Strategy::Sparse, Strategy::Fourier] {
                    if way == Strategy::Separable && !separable {
                        continue;
                    }
                    let blur = Blur::with_strategy(&[c, h, w], &kernel, border, way).unwrap();
                    assert_eq!(blur.strategy(0), way);
                    let fast = to_f64(&blur.apply(&x).unwrap()).unwrap();
                    close(&format!("{kh}x{kw} {border:?} {way:?}"), &fast, &slow);
                }
            }
        }
    }
}

#[test]
fn the_cost_model_picks_each_way_where_it_belongs() {
    let strategy = |values: &[f64], h, w| {
        let kernel = BlurKernel::new(values, h, w).unwrap();
        Blur::new(&[3, 128, 128], &[kernel], Border::Reflect).unwrap().strategy(0)
    };
    assert_eq!(strategy(&vec![1.0; 25 * 25], 25, 25), Strategy::Separable);
    let mut few = vec![0.0; 61 * 61];
    (0..61).step_by(3).for_each(|i| few[i * 62] = 1.0);
    assert_eq!(strategy(&few, 61, 61), Strategy::Sparse);
    let many: Vec<f64> = (0..61 * 61).map(|i| ((i * i) as f64).sin()).collect();
    assert_eq!(strategy(&many, 61, 61), Strategy::Fourier);
}

#[test]
fn phase_retrieval_is_the_sum_over_the_padded_image() {
    for (h, w, oversample, pad) in [(4, 6, 4.0, (2, 3)), (5, 3, 0.0, (0, 0)), (8, 9, 1.0, (1, 1))] {
        let x = normal(3, 1, &[1, h, w]);
        let values = to_f64(&x).unwrap();
        let (oh, ow) = (h + 2 * pad.0, w + 2 * pad.1);
        let slow: Vec<f64> = (0..oh * ow)
            .map(|k| {
                // Centred: frequency 0 at half the side, rounded down.
                let ky = (k / ow) as f64 - (oh / 2) as f64;
                let kx = (k % ow) as f64 - (ow / 2) as f64;
                let (mut re, mut im) = (0.0, 0.0);
                for (p, v) in values.iter().enumerate() {
                    let (i, j) = ((p / w + pad.0) as f64, (p % w + pad.1) as f64);
                    let angle = TAU * (ky * i / oh as f64 + kx * j / ow as f64);
                    re += (0.5 * v + 0.5) * angle.cos();
                    im -= (0.5 * v + 0.5) * angle.sin();
                }
                (re * re + im * im).sqrt() / ((oh * ow) as f64).sqrt()
            })
            .collect();
        let operator = PhaseRetrieval::new(&[1, h, w], oversample).unwrap();
        close(&format!("{h}x{w}"), &to_f64(&operator.apply(&x).unwrap()).unwrap(), &slow);
    }
}

#[test]
fn mri_is_the_centred_sum_over_each_coil() {
    let (coils, h, w) = (2, 5, 6);
    let points: Vec<u8> = (0..h * w).map(|p| u8::from(p * 7 % 5 < 3)).collect();
    let points = Tensor::from_vec(points, (1, h, w), &Device::Cpu).unwrap();
    for mask in [line_mask(w, 2.0, 0.2, 4).unwrap(), points] {
        mri_is_the_centred_sum(coils, h, w, &mask);
    }
}

fn mri_is_the_centred_sum(coils: usize, h: usize, w: usize, mask: &Tensor) {
    let maps = coil_maps(coils, h, w, 4).unwrap();
    let operator = Mri::new(&maps, mask).unwrap();
    let x = normal(5, 1, &[2, h, w]);
    let (s, kept, v) = (to_f64(&maps).unwrap(), to_f64(mask).unwrap(), to_f64(&x).unwrap());
    let n = h * w;
    let mut slow = vec![0.0; coils * 2 * n];
    for c in 0..coils {
        for k in (0..n).filter(|k| kept[k % kept.len()] == 1.0) {
            for p in 0..n {
                let (a, b) = (s[2 * c * n + p], s[(2 * c + 1) * n + p]);
                let (re, im) = (a * v[p] - b * v[n + p], a * v[n + p] + b * v[p]);
                let offset = |q: usize, side: usize| q as f64 - (side / 2) as f64;
                let turn = offset(k / w, h) * offset(p / w, h) / h as f64
                    + offset(k % w, w) * offset(p % w, w) / w as f64;
                let (sin, cos) = (-TAU * turn).sin_cos();
                let scale = 1.0 / (n as f64).sqrt();
                slow[2 * c * n + k] += scale * (re * cos - im * sin);
                slow[(2 * c + 1) * n + k] += scale * (re * sin + im * cos);
            }
        }
    }
    close("mri", &to_f64(&operator.apply(&x).unwrap()).unwrap(), &slow);
}

#[test]
fn super_resolution_keeps_constants_and_straight_lines_inside() {
    let operator = SuperResolution::new(&[1, 32, 24], 4).unwrap();
    let line: Vec<f64> = (0..32 * 24).map(|p| 0.1 * (p / 24) as f64 - 0.2 * (p % 24) as f64).collect();
    let x = Tensor::from_vec(line, (1, 1, 32, 24), &Device::Cpu).unwrap();
    let y = to_f64(&operator.apply(&x).unwrap()).unwrap();
    for i in 2..6 {
        for j in 2..4 {
            let (row, column) = (4.0 * i as f64 + 1.5, 4.0 * j as f64 + 1.5);
            assert!((y[i * 6 + j] - (0.1 * row - 0.2 * column)).abs() < 1e-12);
        }
    }
    let ones = Tensor::ones((1, 1, 32, 24), DType::F64, &Device::Cpu).unwrap();
    assert!(to_f64(&operator.apply(&ones).unwrap()).unwrap().iter().all(|v| (v - 1.0).abs() < 1e-14));
    let error = SuperResolution::new(&[3, 3, 32], 4).unwrap_err().to_string();
    assert!(error.contains("from 1 to the image's shorter side 3, got 4"), "{error}");
}

/// Keys' cubic, written out.
fn keys(t: f64) -> f64 {
    match t.abs() {
        t if t <= 1.0 => 1.5 * t.powi(3) - 2.5 * t.powi(2) + 1.0,
        t if t <= 2.0 => -0.5 * t.powi(3) + 2.5 * t.powi(2) - 4.0 * t + 2.0,
        _ => 0.0,
    }
}

/// A sum over all pixels of a mirrored plane, with coordinates from 1 as MATLAB counts them: output p of m lies at
/// f (p - (m - n/f)/2) + (1 - f)/2 among n inputs.
fn shrunk(x: &[f64], (h, w): (usize, usize), f: usize) -> Vec<f64> {
    let (m, k, f) = (h.div_ceil(f), w.div_ceil(f), f as f64);
    let weights = |p: usize, n: usize, m: usize| -> Vec<f64> {
        let at = f * ((p + 1) as f64 - (m as f64 - n as f64 / f) / 2.0) + (1.0 - f) / 2.0;
        let mut of = vec![0.0; n];
        let reach = (4.0 * f) as isize;
        for i in at as isize - reach..=at as isize + reach {
            // 1, 2, …, n, n, …, 2, 1, again and again.
            let turn = (i - 1).rem_euclid(2 * n as isize) as usize;
            of[if turn < n { turn } else { 2 * n - 1 - turn }] += keys((at - i as f64) / f);
        }
        let sum: f64 = of.iter().sum();
        of.iter().map(|v| v / sum).collect()
    };
    let one = |p: usize, q: usize| -> f64 {
        let (rows, columns) = (weights(p, h, m), weights(q, w, k));
        (0..h * w).map(|i| rows[i / w] * columns[i % w] * x[i]).sum()
    };
    (0..m * k).map(|i| one(i / k, i % k)).collect()
}

#[test]
fn super_resolution_rounds_sides_up_and_keeps_the_middle() {
    for ((h, w), factor) in [((33, 51), 4), ((7, 5), 3), ((13, 8), 5), ((12, 8), 4), ((5, 9), 5), ((3, 4), 1)]
    {
        let operator = SuperResolution::new(&[2, h, w], factor).unwrap();
        assert_eq!(operator.output_shape(), [2, h.div_ceil(factor), w.div_ceil(factor)]);
        let x = to_f64(&normal(factor as u64, 1, &[2, h, w])).unwrap();
        let fast = operator.apply(&Tensor::from_slice(&x, (1, 2, h, w), &Device::Cpu).unwrap()).unwrap();
        let slow: Vec<f64> = x.chunks(h * w).flat_map(|plane| shrunk(plane, (h, w), factor)).collect();
        close(&format!("{h}x{w} by {factor}"), &to_f64(&fast).unwrap(), &slow);
        // A picture that is its own mirror image stays so.
        let mirrored: Vec<f64> = (0..2 * h * w).map(|i| x[i] + x[i / w * w + w - 1 - i % w]).collect();
        let y = operator.apply(&Tensor::from_vec(mirrored, (1, 2, h, w), &Device::Cpu).unwrap()).unwrap();
        let (y, k) = (to_f64(&y).unwrap(), w.div_ceil(factor));
        let turned: Vec<f64> = (0..y.len()).map(|i| y[i / k * k + k - 1 - i % k]).collect();
        close("the mirror image", &y, &turned);
    }
}
