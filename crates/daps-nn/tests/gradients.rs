//! Every layer's gradient against finite differences, and output and gradient against candle's own operations.

use candle_core::{Device, Tensor, Var};
use daps_nn::testing::{largest, normal};
use daps_nn::*;

fn tensor(shape: &[usize], seed: u64) -> Tensor {
    Tensor::from_vec(normal(shape.iter().product(), seed), shape, &Device::Cpu).expect("tensor")
}

fn values(t: &Tensor) -> Vec<f64> {
    let flat = t.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("f32 tensor");
    flat.into_iter().map(f64::from).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

type Network<'a> = &'a dyn Fn(&[Tensor], bool) -> Result<Tensor>;

/// `network(inputs, candle)` runs our kernels or candle's operations on the same inputs.
#[track_caller]
fn check(name: &str, shapes: &[&[usize]], network: Network) {
    let inputs: Vec<Var> = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| Var::from_tensor(&tensor(s, i as u64)).expect("variable"))
        .collect();
    let tensors: Vec<Tensor> = inputs.iter().map(|v| v.as_tensor().clone()).collect();
    let run = |candle: bool| -> Result<(Vec<f64>, Vec<Vec<f64>>)> {
        let y = network(&tensors, candle)?;
        let probe = tensor(y.dims(), 99);
        let loss = (&y * probe)?.sum_all()?;
        let grads = if candle { loss.backward()? } else { backward(&loss)? };
        let gradient = |t: &Tensor| values(grads.get(t).unwrap_or_else(|| panic!("{name}: no gradient")));
        Ok((values(&y), tensors.iter().map(gradient).collect()))
    };
    let (y, grads) = run(false).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (y_candle, grads_candle) = run(true).unwrap_or_else(|e| panic!("{name} with candle: {e}"));
    let compare = |what: &str, ours: &[f64], theirs: &[f64]| {
        assert_eq!(ours.len(), theirs.len(), "{name}: {what}");
        let scale = theirs.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
        let worst = largest(ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()));
        assert!(worst <= 5e-5 * scale, "{name}: {what} differs from candle by {worst:.2e} of {scale:.2e}");
    };
    compare("output", &y, &y_candle);
    let probe = values(&tensor(network(&tensors, false).expect("network").dims(), 99));
    for (i, gradient) in grads.iter().enumerate() {
        compare(&format!("gradient {i}"), gradient, &grads_candle[i]);
        let direction = tensor(shapes[i], 50 + i as u64);
        let loss = |step: f64| {
            let mut moved: Vec<Tensor> = tensors.iter().map(Tensor::detach).collect();
            moved[i] = (&moved[i] + (&direction * step).expect("step")).expect("moved");
            dot(&values(&network(&moved, false).expect("network")), &probe)
        };
        let (h, d) = (4e-3, values(&direction));
        // Richardson: the error of the difference is of fourth order in h.
        let slope = |h: f64| (loss(h) - loss(-h)) / (2.0 * h);
        let (numeric, exact) = ((4.0 * slope(h) - slope(2.0 * h)) / 3.0, dot(gradient, &d));
        let size = dot(gradient, gradient).sqrt() * dot(&d, &d).sqrt();
        let tolerance = 3e-3 * exact.abs() + 3e-4 * size;
        assert!(
            (numeric - exact).abs() <= tolerance,
            "{name}: gradient {i}: {exact} but differences say {numeric}"
        );
    }
}

fn map(t: &Tensor, candle: bool) -> Result<FeatureMap> {
    if candle { FeatureMap::from_nchw_with_candle(t) } else { FeatureMap::from_nchw(t) }
}

fn rows(t: &Tensor, candle: bool) -> Result<FeatureMap> {
    let (n, c) = t.dims2()?;
    if candle {
        FeatureMap::from_nchw_with_candle(&t.reshape((n, c, 1, 1))?)
    } else {
        FeatureMap::from_rows(t)
    }
}

#[test]
fn convolution() {
    let sizes: [(usize, usize, usize, usize); 7] = [
        (16, 20, 11, 13),
        (33, 32, 10, 10),
        (3, 5, 6, 7),
        (5, 3, 1, 1),
        (32, 12, 5, 33),
        (3, 32, 12, 9),
        (32, 3, 9, 12),
    ];
    for (c, k, h, w) in sizes {
        for (kernel, config) in [
            (3, ConvConfig::same(3)),
            (1, ConvConfig::same(1)),
            (3, ConvConfig::down(3)),
            (3, ConvConfig { stride: 2, padding: (1, 2) }),
        ] {
            let name = format!("{c} -> {k}, {h} x {w}, kernel {kernel}, {config:?}");
            check(&name, &[&[2, c, h, w], &[k, c, kernel, kernel], &[k]], &|t, candle| {
                let conv = Conv2d::new(t[1].clone(), Some(t[2].clone()), config)?;
                conv.forward(&map(&t[0], candle)?)?.to_nchw()
            });
        }
    }
}

#[test]
fn convolution_with_everything_at_once() {
    let shapes: [&[usize]; 6] =
        [&[2, 14, 12, 9], &[2, 9, 12, 9], &[17, 23, 3, 3], &[17], &[2, 17, 12, 9], &[2, 17]];
    for kernel in [3, 1] {
        let weight: &[usize] = &[17, 23, kernel, kernel];
        let mut shapes = shapes;
        shapes[2] = weight;
        check("two inputs, residual, shift and scale", &shapes, &|t, candle| {
            let conv = Conv2d::new(t[2].clone(), Some(t[3].clone()), ConvConfig::same(kernel))?;
            let (a, b) = (map(&t[0], candle)?, map(&t[1], candle)?);
            let (residual, shift) = (map(&t[4], candle)?, rows(&t[5], candle)?);
            conv.on((&a, &b)).residual(&residual).shift(&shift).scale(0.5f64.sqrt()).run()?.to_nchw()
        });
    }
}

#[test]
fn linear_and_tokens() {
    check("linear", &[&[3, 20], &[33, 20], &[33]], &|t, candle| {
        let linear = Linear::new(t[1].clone(), Some(t[2].clone()))?;
        linear.forward(&rows(&t[0], candle)?)?.to_rows()
    });
    let weight = tensor(&[7, 5], 3);
    let linear = Linear::new(weight, None).expect("linear");
    let tokens = tensor(&[2, 9, 5], 4);
    let y = linear.forward(&FeatureMap::from_tokens(&tokens).expect("tokens")).and_then(|y| y.to_tokens());
    assert_eq!(y.expect("tokens").dims(), [2, 9, 7]);
}

#[test]
fn group_norm() {
    for (silu, groups) in [(false, 4), (true, 4), (true, 1), (true, 12)] {
        check("group norm", &[&[2, 12, 7, 5], &[12], &[12]], &|t, candle| {
            let norm = GroupNorm::new(t[1].clone(), t[2].clone(), groups, 1e-5)?;
            let x = map(&t[0], candle)?;
            if silu { norm.forward_silu(&x)?.to_nchw() } else { norm.forward(&x)?.to_nchw() }
        });
    }
    check(
        "scale-shift over two maps",
        &[&[3, 7, 20, 15], &[3, 5, 20, 15], &[12], &[12], &[3, 24]],
        &|t, candle| {
            let norm = GroupNorm::new(t[2].clone(), t[3].clone(), 3, 1e-5)?;
            let (a, b, s) = (map(&t[0], candle)?, map(&t[1], candle)?, rows(&t[4], candle)?);
            norm.on((&a, &b)).scale_shift(&s).silu().run()?.to_nchw()
        },
    );
}

#[test]
fn modulation() {
    for shape in [&[3usize, 12, 7, 5], &[1, 37, 20, 16], &[2, 3, 1, 1]] {
        check("modulation", &[shape, &[shape[0], 2 * shape[1]]], &|t, candle| {
            map(&t[0], candle)?.modulate_silu(&rows(&t[1], candle)?)?.to_nchw()
        });
    }
}

#[test]
fn layer_norm() {
    check("layer norm", &[&[2, 13, 9, 8], &[13], &[13]], &|t, candle| {
        LayerNorm::new(t[1].clone(), t[2].clone(), 1e-5)?.forward(&map(&t[0], candle)?)?.to_nchw()
    });
}

#[test]
fn attention() {
    for order in [QkvOrder::HeadFirst, QkvOrder::QkvFirst, QkvOrder::Interleaved] {
        for heads in [1, 2, 3] {
            check(&format!("self-attention {order:?}"), &[&[2, 36, 9, 8]], &|t, candle| {
                self_attention(&map(&t[0], candle)?, heads, order)?.to_nchw()
            });
        }
    }
    check("cross-attention", &[&[2, 10, 9, 8], &[2, 10, 1, 5], &[2, 10, 1, 5]], &|t, candle| {
        let [q, k, v] = [map(&t[0], candle)?, map(&t[1], candle)?, map(&t[2], candle)?];
        cross_attention(&q, &k, &v, 2)?.to_nchw()
    });
}

#[test]
fn operations_without_parameters() {
    let shape: &[usize] = &[2, 5, 6, 4];
    check("silu", &[shape], &|t, candle| map(&t[0], candle)?.silu()?.to_nchw());
    check("softmax", &[shape], &|t, candle| map(&t[0], candle)?.softmax()?.to_nchw());
    check("upsample", &[shape], &|t, candle| map(&t[0], candle)?.upsample_nearest()?.to_nchw());
    check("average pool", &[shape], &|t, candle| map(&t[0], candle)?.average_pool()?.to_nchw());
    for filter in [vec![1.0, 1.0], vec![1.0, 3.0, 3.0, 1.0]] {
        check("filtered up", &[shape], &|t, candle| map(&t[0], candle)?.upsample_fir(&filter)?.to_nchw());
        check("filtered down", &[shape], &|t, candle| map(&t[0], candle)?.downsample_fir(&filter)?.to_nchw());
    }
    check("scale", &[shape], &|t, candle| map(&t[0], candle)?.scale(-1.5)?.to_nchw());
    check("narrow", &[shape], &|t, candle| map(&t[0], candle)?.narrow_channels(1, 3)?.to_nchw());
    check("combine", &[shape, shape], &|t, candle| {
        map(&t[0], candle)?.combine(0.6, &map(&t[1], candle)?, -0.8)?.to_nchw()
    });
    check("product", &[shape, shape], &|t, candle| map(&t[0], candle)?.mul(&map(&t[1], candle)?)?.to_nchw());
    check("concat", &[shape, &[2, 3, 6, 4]], &|t, candle| {
        map(&t[0], candle)?.concat(&map(&t[1], candle)?)?.to_nchw()
    });
    check("tokens", &[shape], &|t, candle| map(&t[0], candle)?.silu()?.to_tokens());
}

#[test]
fn a_map_that_is_used_more_than_once_adds_up_its_gradients() {
    check("residual block", &[&[2, 8, 12, 10], &[8], &[8], &[8, 8, 3, 3], &[8, 8, 3, 3]], &|t, candle| {
        let norm = GroupNorm::new(t[1].clone(), t[2].clone(), 4, 1e-5)?;
        let conv = |i: usize| Conv2d::new(t[i].clone(), None, ConvConfig::same(3));
        let x = map(&t[0], candle)?;
        let h = conv(3)?.forward(&norm.forward_silu(&x)?)?;
        // The same parameters twice, and x three times.
        let h = conv(4)?.on(&norm.forward_silu(&h)?).residual(&x).run()?;
        h.add(&x)?.to_nchw()
    });
}

#[test]
fn a_graph_may_be_pulled_back_twice() {
    let x = Var::from_tensor(&tensor(&[1, 6, 4, 4], 1)).expect("variable");
    let y = FeatureMap::from_nchw(x.as_tensor()).and_then(|x| x.mul(&x.silu()?)).expect("map");
    let g = FeatureMap::from_nchw(&tensor(&[1, 6, 4, 4], 2)).expect("map");
    let pull = || values(y.backward(&g).expect("backward").get(x.as_tensor()).expect("gradient"));
    let first = pull();
    assert_eq!(first, pull());
    // The gradient of the tensor that the map leads to is the same thing.
    let loss =
        (y.to_nchw().expect("tensor") * tensor(&[1, 6, 4, 4], 2)).and_then(|l| l.sum_all()).expect("loss");
    assert_eq!(first, values(loss.backward().expect("backward").get(x.as_tensor()).expect("gradient")));
    assert!(y.detach().backward(&g).expect("backward").get(x.as_tensor()).is_none());
}

#[test]
fn a_variable_may_also_be_used_outside_our_layers() {
    let w = Var::from_tensor(&tensor(&[6, 6, 3, 3], 1)).expect("variable");
    let run = |pull: &dyn Fn(&Tensor) -> Result<candle_core::backprop::GradStore>| -> Result<Vec<f64>> {
        let x = FeatureMap::from_nchw(&tensor(&[1, 6, 5, 5], 2))?;
        let y = Conv2d::new(w.as_tensor().clone(), None, ConvConfig::same(3))?.forward(&x)?.to_nchw()?;
        let loss = (y.sqr()?.sum_all()? + (w.as_tensor().sqr()?.sum_all()? * 100.0)?)?;
        Ok(values(pull(&loss)?.get(w.as_tensor()).expect("gradient")))
    };
    let ours = run(&|loss| backward(loss)).expect("gradient");
    assert_eq!(ours, run(&|loss| Ok(loss.backward()?)).expect("gradient"));
    // Both parts are in it: without the penalty the gradient is another.
    let penalty: Vec<f64> = values(w.as_tensor()).iter().map(|w| 200.0 * w).collect();
    assert!(ours.iter().zip(&penalty).all(|(g, p)| (g - p).abs() > 1e-6));
}
