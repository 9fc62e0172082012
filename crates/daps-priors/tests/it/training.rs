//! Training: resumption to the bit, a loss whose minimiser is known in closed form, and a network seen through patches.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::{combine, to_f64};
use daps_core::{Address, Denoiser, DifferentiableDenoiser, Full, Noise, Purpose, RowCovariance, Sigma};
use daps_priors::checkpoint::{self, WeightType};
use daps_priors::training::{Dataset, Export, Images, TrainConfig, Trainer, measure_spread, spread_levels};
use daps_priors::{Analytic, GaussianMixture, NetworkConfig, NetworkPrior};
use faer::Mat;

fn config(extra: &str) -> TrainConfig {
    let text = format!(
        r#"
name = "tiny"
images = 1000
batch = 6
patch = 2
{extra}
[data]
source = "none"
flip = true
[network]
kind = "adm"
image_size = 4
channels = 4
model_channels = 8
channel_mult = [1, 2]
num_res_blocks = 1
attention_resolutions = [2]
num_heads = 2
norm_groups = 4
use_scale_shift_norm = true
"#
    );
    TrainConfig::parse(&text).unwrap()
}

fn pictures(count: usize) -> Dataset {
    let bytes = (0..count * 64).map(|i| ((i * i / 7 + 31 * i) % 251) as u8).collect();
    Dataset::split(Images::bytes([1, 8, 8], bytes), 4).unwrap()
}

fn trainer() -> Trainer {
    Trainer::new(config(""), pictures(27)).unwrap()
}

fn bits(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

#[test]
fn a_resumed_run_has_the_same_bits_wherever_it_was_cut_and_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, cut) = (dir.path().join("whole.safetensors"), dir.path().join("cut.safetensors"));
    let steps = 103;
    let mut straight = trainer();
    (0..steps).for_each(|_| {
        straight.advance().unwrap();
    });
    straight.save(&whole).unwrap();
    assert_eq!(straight.curve().len(), 2);
    // Within an epoch, across one, and on either side of a point of the loss curve.
    for at in [1, 4, 50, 51, 102] {
        let mut first = trainer();
        (0..at).for_each(|_| {
            first.advance().unwrap();
        });
        first.save(&cut).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1 + at % 3).build().unwrap();
        let mut second = trainer();
        second.resume(&cut).unwrap();
        assert_eq!(second.steps(), at as u64);
        pool.install(|| {
            (at..steps).for_each(|_| {
                second.advance().unwrap();
            });
        });
        second.save(&cut).unwrap();
        assert_eq!(bits(&cut), bits(&whole), "cut after {at} steps");
        assert_eq!(second.curve(), straight.curve());
    }
}

#[test]
fn a_checkpoint_of_another_training_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint.safetensors");
    trainer().save(&path).unwrap();
    let refusal = |mut t: Trainer| t.resume(&path).unwrap_err().to_string();
    let other = Trainer::new(config("seed = 5"), pictures(27)).unwrap();
    assert!(refusal(other).ends_with("the configuration has changed (seed = 0 became seed = 5)"));
    let other = Trainer::new(config(""), pictures(28)).unwrap();
    assert!(refusal(other).ends_with("it was trained on other images"));
    // More images and other intervals change no weight that was trained so far.
    let mut longer = config("checkpoint_minutes = 1.5");
    longer.images = 7000;
    Trainer::new(longer, pictures(27)).unwrap().resume(&path).unwrap();
}

#[test]
fn an_exported_prior_comes_back_with_its_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.safetensors");
    let mut trainer = trainer();
    (0..5).for_each(|_| {
        trainer.advance().unwrap();
    });
    let export = Export::new(&trainer).unwrap();
    let held_out = trainer.data().held_out.first(4).unwrap();
    let table = measure_spread(&export.prior, &held_out, &spread_levels(), 0).unwrap();
    let sha = export.write(&path, &table, None).unwrap();
    let back = NetworkPrior::load(&path, None).unwrap();
    assert_eq!(back.as_spread(), Some(&table));
    assert_eq!(checkpoint::inspect(&path).unwrap().sha256, sha);
    let (x, sigma) = (normals(3, 2, &[1, 8, 8]), Sigma::Same(0.7));
    let rounded = values(&export.prior.denoise(&x, &sigma).unwrap());
    assert_eq!(values(&back.denoise(&x, &sigma).unwrap()), rounded);
    let exact = values(&trainer.average().unwrap().denoise(&x, &sigma).unwrap());
    let error = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(error > 0.0 && error < 5e-3, "f16 changes D by {error}");
}

/// A file that training can begin with.
fn exported(trainer: &Trainer, path: &Path) -> BTreeMap<String, Vec<f64>> {
    let export = Export::new(trainer).unwrap();
    let held_out = trainer.data().held_out.first(4).unwrap();
    let table = measure_spread(&export.prior, &held_out, &spread_levels(), 0).unwrap();
    export.write(path, &table, None).unwrap();
    let tensors = checkpoint::read(path).unwrap().tensors;
    tensors.iter().map(|(name, t)| (name.clone(), values(&t.to_dtype(DType::F32).unwrap()))).collect()
}

#[test]
fn training_goes_on_from_exported_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (file, cut) = (dir.path().join("tiny.safetensors"), dir.path().join("cut.safetensors"));
    let mut first = trainer();
    (0..7).for_each(|_| {
        first.advance().unwrap();
    });
    let weights = exported(&first, &file);
    let mut second = trainer();
    second.start(&file).unwrap();
    assert_eq!((second.images(), second.images_before(), second.steps()), (42, 42, 7));
    let average = second.averaged_weights().unwrap();
    assert!(weights.iter().all(|(name, w)| values(&average[name]) == *w));
    // The optimiser is fresh: its first step moves no weight by more than the rate, which warms up again.
    let rate = 4e-4 * 6.0 / 10_000.0;
    second.advance().unwrap();
    second.save(&cut).unwrap();
    let moved = checkpoint::read(&cut).unwrap().tensors;
    let mut largest = 0f64;
    for (name, before) in &weights {
        let after = values(&moved[&format!("weights.{name}")]);
        largest = before.iter().zip(&after).fold(largest, |l, (a, b)| l.max((a - b).abs()));
    }
    assert!(largest > 0.5 * rate && largest < 1.5 * rate, "{largest} for {rate}");
    assert_eq!(second.images(), 48);
    // A run that began so is resumed without the file, to the same bits.
    std::fs::remove_file(&file).unwrap();
    let mut third = trainer();
    third.resume(&cut).unwrap();
    assert_eq!((third.images(), third.images_before()), (48, 42));
    let (a, b) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    for (trainer, path) in [(&mut second, &a), (&mut third, &b)] {
        (0..3).for_each(|_| {
            trainer.advance().unwrap();
        });
        trainer.save(path).unwrap();
    }
    assert_eq!(bits(&a), bits(&b));
    // The first version counted steps instead of listing runs: its checkpoints go on to the same bits too.
    let bytes = std::fs::read(&cut).unwrap();
    let old = |text: &[u8], new: &[u8]| {
        let at = bytes.windows(text.len()).position(|w| w == text).unwrap();
        [&bytes[..at], new, &bytes[at + text.len()..]].concat()
    };
    let (listed, counted) = (br#"\"earlier\":[42]"#, br#"\"first\"     :7"#);
    std::fs::write(&cut, old(listed, counted)).unwrap();
    let mut older = trainer();
    older.resume(&cut).unwrap();
    assert_eq!(older.earlier_runs(), [42]);
    (0..3).for_each(|_| {
        older.advance().unwrap();
    });
    older.save(&b).unwrap();
    assert_eq!(bits(&a), bits(&b));
    // The file of a run that began so tells of all runs before it.
    exported(&third, &file);
    let mut fourth = trainer();
    fourth.start(&file).unwrap();
    assert_eq!((fourth.images(), fourth.earlier_runs()), (66, &[42, 66][..]));
    let mut other = config("");
    other.loss.sigma_data = Some(0.3);
    exported(&first, &file);
    let refusal = Trainer::new(other, pictures(27)).unwrap().start(&file).unwrap_err().to_string();
    assert!(refusal.contains("its network differs (sigma_data = "), "{refusal}");
}

/// A point of the loss curve covers 50 steps, but a run that began with weights may have done fewer of them itself.
#[test]
fn the_first_point_after_a_start_is_a_mean_over_the_steps_since_then() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tiny.safetensors");
    let mut first = trainer();
    (0..7).for_each(|_| {
        first.advance().unwrap();
    });
    exported(&first, &file);
    let mut second = trainer();
    second.start(&file).unwrap();
    let losses: Vec<f64> = (7..100).map(|_| second.advance().unwrap()).collect();
    assert_eq!(second.curve().len(), 2);
    for (point, losses) in second.curve().iter().zip([&losses[..43], &losses[43..]]) {
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        assert!((point.loss - mean).abs() < 1e-12, "{} for {mean}", point.loss);
    }
}

#[test]
fn converted_weights_keep_what_they_say_of_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let [half, single] = ["half.safetensors", "single.safetensors"].map(|name| dir.path().join(name));
    let mut first = trainer();
    first.advance().unwrap();
    exported(&first, &half);
    checkpoint::convert(&half, &single, WeightType::F32, None).unwrap();
    let [before, after] = [&half, &single].map(|path| checkpoint::read(path).unwrap());
    assert!(after.spread().unwrap().is_some());
    assert_eq!(after.spread().unwrap(), before.spread().unwrap());
    let mut second = trainer();
    second.start(&single).unwrap();
    assert_eq!((second.images(), second.earlier_runs(), second.start_notes().len()), (6, &[6][..], 0));
}

/// The same file with another text of the same length in its header.
fn replace(path: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_run_tells_of_weights_that_have_seen_other_or_unknown_images() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second, cut] =
        ["first", "second", "cut"].map(|n| dir.path().join(format!("{n}.safetensors")));
    // The network is the same whatever the images.
    let trainer = |images: usize| {
        let mut config = config("");
        config.loss.sigma_data = Some(0.5);
        Trainer::new(config, pictures(images)).unwrap()
    };
    let started = |images: usize, path: &Path| {
        let mut trainer = trainer(images);
        trainer.start(path).unwrap();
        trainer
    };
    let (other, unknown) = ("have seen other images", "do not say which images");
    let tells = |trainer: &Trainer, part: &str| {
        let notes = trainer.start_notes();
        assert!(notes.len() == 1 && notes[0].contains(part), "{part}: {notes:?}");
    };
    let mut run = trainer(27);
    run.advance().unwrap();
    assert!(run.start_notes().is_empty());
    exported(&run, &first);
    assert!(started(27, &first).start_notes().is_empty());
    let mut run = started(28, &first);
    tells(&run, other);
    // It is still told after a resumption, and by whatever run begins with the weights of this one.
    run.advance().unwrap();
    run.save(&cut).unwrap();
    let mut resumed = trainer(28);
    resumed.resume(&cut).unwrap();
    tells(&resumed, other);
    exported(&run, &second);
    tells(&started(28, &second), other);
    // Runs that began, and files that were written, before the data were noted.
    replace(&cut, r#"\"seen\""#, r#"\"Seen\""#);
    let mut resumed = trainer(28);
    resumed.resume(&cut).unwrap();
    tells(&resumed, unknown);
    replace(&first, "\"daps.data\"", "\"daps.Data\"");
    tells(&started(27, &first), unknown);
    exported(&started(27, &first), &second);
    tells(&started(27, &second), unknown);
    replace(&first, "\"daps.images\":\"6\"", "\"daps.images\":\"x\"");
    let refusal = trainer(27).start(&first).unwrap_err().to_string();
    assert!(refusal.contains("cannot be started from: its daps.images is damaged"), "{refusal}");
    // Weights from elsewhere say nothing at all of themselves.
    checkpoint::write(&first, &run.averaged_weights().unwrap()).unwrap();
    let refusal = trainer(27).start(&first).unwrap_err().to_string();
    assert!(refusal.contains("carries no network configuration"), "{refusal}");
    std::fs::write(first.with_extension("toml"), run.network().to_toml().unwrap()).unwrap();
    let run = started(27, &first);
    assert_eq!((run.images(), run.earlier_runs()), (0, &[0][..]));
    let notes = run.start_notes();
    assert!(notes.len() == 2 && notes[0].contains("how many") && notes[1].contains(unknown), "{notes:?}");
}

/// How a run ends may be decided while it goes on: the rate falls in a straight line to 0 at its end, 1002 images.
#[test]
fn a_run_that_goes_on_may_cool_down() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint.safetensors");
    let mut warm = trainer();
    (0..50).for_each(|_| _ = warm.advance().unwrap());
    warm.save(&path).unwrap();
    let mut cooling = Trainer::new(config("cooldown = 900"), pictures(27)).unwrap();
    cooling.resume(&path).unwrap();
    for trainer in [&mut warm, &mut cooling] {
        (50..100).for_each(|_| _ = trainer.advance().unwrap());
    }
    let rates = [&warm, &cooling].map(|trainer| trainer.curve()[1].rate);
    assert!((rates[1] / rates[0] - (1002.0 - 600.0) / 900.0).abs() < 1e-12, "{rates:?}");
    let wrong = config("").to_toml().unwrap().replacen("images =", "cooldown = -1\nimages =", 1);
    let error = TrainConfig::parse(&wrong).unwrap_err().to_string();
    assert!(error.contains("cooldown: expected a number from 0, got -1"), "{error}");
}

#[test]
fn something_must_be_left_to_train_on() {
    let all = Dataset::split(Images::bytes([1, 8, 8], vec![0; 3 * 64]), 3).unwrap();
    let refusal = Trainer::new(config(""), all).err().unwrap().to_string();
    assert_eq!(refusal, "data.held_out: expected fewer than the 3 images of the data set, got 3");
}

fn normals(seed: u64, rows: usize, shape: &[usize]) -> Tensor {
    let at = Address::new(0, Purpose::Reference, 0);
    Noise::chains(seed, rows).normal(at, shape, DType::F32).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    to_f64(t).unwrap()
}

/// A network with patches is the same network on images whose pixels were rearranged by hand.
#[test]
fn patches_rearrange_pixels_and_nothing_else() {
    let with = config("").network(0.5);
    let without = NetworkConfig { patch: 1, ..with.clone() };
    assert_eq!((with.shape(), without.shape()), ([1, 8, 8], [4, 4, 4]));
    assert_eq!((with.factor(), without.factor()), (4, 2));
    let (_, variables) = NetworkPrior::fresh(&with, 3, &Device::Cpu).unwrap();
    // Fresh output layers are zero: all parameters get values of their own.
    let tensors: BTreeMap<String, Tensor> = variables
        .iter()
        .enumerate()
        .map(|(i, (name, v))| (name.clone(), (normals(i as u64, 1, v.dims()).get(0).unwrap() * 0.2).unwrap()))
        .collect();
    let patched = NetworkPrior::new(&with, tensors.clone()).unwrap();
    let plain = NetworkPrior::new(&without, tensors).unwrap();
    // Channel i p + j of patch (k, l) is pixel (k p + i, l p + j).
    let place = |c: usize, k: usize, l: usize| (2 * k + c / 2) * 8 + 2 * l + c % 2;
    let apart = |x: &Tensor| {
        let x = values(x);
        let seen = |n: usize| x[n / 64 * 64 + place(n % 64 / 16, n % 16 / 4, n % 4)] as f32;
        Tensor::from_vec((0..x.len()).map(seen).collect(), (x.len() / 64, 4, 4, 4), &Device::Cpu).unwrap()
    };
    let (x, v) = (normals(1, 3, &[1, 8, 8]), normals(2, 3, &[1, 8, 8]));
    let sigma = Sigma::Rows(vec![0.05, 0.8, 7.0]);
    let (d, vjp) = patched.denoise_vjp(&x, &sigma, &|_| Ok(v.clone())).unwrap();
    let (d1, vjp1) = plain.denoise_vjp(&apart(&x), &sigma, &|_| Ok(apart(&v))).unwrap();
    assert_eq!(values(&apart(&d)), values(&d1));
    assert_eq!(values(&apart(&vjp)), values(&vjp1));
    assert_eq!(values(&patched.denoise(&x, &sigma).unwrap()), values(&d));
    let forward = values(&patched.forward(&x, &sigma).unwrap());
    let error = daps_nn::testing::largest(forward.iter().zip(values(&d)).map(|(a, b)| (a - b).abs()));
    assert!(error < 1e-5, "{error}");
}

/// The minimiser of EDM's loss is E[x0 | x], which a Gaussian with a known covariance has in closed form: the trained network
/// must come near to it at every level, from images that it has not seen.
#[test]
fn training_finds_the_denoiser_of_a_gaussian() {
    let (side, count) = (8, 4096);
    let d = side * side;
    // Correlation falls by 0.8 a pixel along rows and columns; deviation 0.6.
    let axis = |a: usize, b: usize| 0.8f64.powi((a as i32 - b as i32).abs());
    let covariance = Mat::from_fn(d, d, |i, j| 0.36 * axis(i / side, j / side) * axis(i % side, j % side));
    let covariance = RowCovariance::Full(Full::new(covariance).unwrap());
    let exact = GaussianMixture::gaussian(&[1, side, side], vec![0.0; d], covariance).unwrap();
    let at = Address::new(0, Purpose::Reference, 0);
    let draws = exact.draw(&Noise::chains(0, count), at).unwrap();
    let floats = values(&draws).iter().map(|v| *v as f32).collect();
    let data = Dataset::split(Images::floats([1, side, side], floats), 128).unwrap();
    let text = r#"
name = "gaussian"
images = 40000
batch = 32
[data]
source = "none"
[network]
kind = "song"
image_size = 8
channels = 1
model_channels = 16
channel_mult = [1, 1]
num_blocks = 1
attn_resolutions = []
[loss]
# All levels that are looked at below lie within 1.6 deviations.
p_mean = -0.4
p_std = 1.2
[optimizer]
learning_rate = 4e-3
warmup = 2000
decay_after = 10000
"#;
    let mut trainer = Trainer::new(TrainConfig::parse(text).unwrap(), data).unwrap();
    assert!((trainer.sigma_data() - 0.6).abs() < 0.01, "{}", trainer.sigma_data());
    let start = trainer.average().unwrap();
    (0..trainer.config().steps()).for_each(|_| {
        trainer.advance().unwrap();
    });
    let trained = trainer.average().unwrap();
    let x0 = trainer.data().held_out.first(128).unwrap();
    for sigma in [0.1, 0.3, 1.0, 3.0] {
        let x = combine(&[(&[1.0], &x0), (&[sigma], &normals(9, 128, &[1, side, side]))]).unwrap();
        let best = values(&exact.denoise(&x.to_dtype(DType::F64).unwrap(), &Sigma::Same(sigma)).unwrap());
        let distance = |model: &NetworkPrior| {
            let got = values(&model.denoise(&x, &Sigma::Same(sigma)).unwrap());
            got.iter().zip(&best).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
        };
        // A fresh network shrinks every pixel on its own, the best denoiser of uncorrelated pixels.
        let share = distance(&trained) / distance(&start);
        assert!(share < 0.05, "σ = {sigma}: {share} of the way is left");
    }
}
