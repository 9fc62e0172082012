//! Classifiers: gradient of the loss, training, files, resumption to the bit, and refusals.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};
use daps_core::{Address, Noise, Purpose};
use daps_priors::training::{Dataset, Images, TrainConfig, Trainer, export_classifier};
use daps_priors::{Classifier, NetworkPrior, TokenPrior};

const CONFIG: &str = r#"
name = "tiny"
images = 4000
batch = 12
patch = 2
[classes]
labels = "labels"
shift = 1
[data]
source = "images"
held_out = 30
[network]
kind = "conv-net"
image_size = 4
channels = 4
num_classes = 3
model_channels = 8
channel_mult = [1, 2]
num_convs = 1
norm_groups = 4
[optimizer]
learning_rate = 1e-2
warmup = 100
[ema]
half_life = 300
"#;

/// A row, a column or a diagonal of light pixels somewhere in the middle of 8x8.
fn lines(count: usize) -> (Vec<u8>, Vec<u8>) {
    let image = |k: usize| {
        let (class, at) = (k % 3, 2 + k / 3 % 4);
        (0..64).map(move |n| {
            let (i, j) = (n / 8, n % 8);
            let light =
                [i == at, j == at, (i + at) % 8 == j][class] && (1..7).contains(&i) && (1..7).contains(&j);
            if light { 255 } else { 90 }
        })
    };
    ((0..count).flat_map(image).collect(), (0..count).map(|k| (k % 3) as u8).collect())
}

fn data() -> Dataset {
    let (bytes, labels) = lines(150);
    Dataset::split(Images::bytes([1, 8, 8], bytes), 30).unwrap().labelled(labels, 3).unwrap()
}

fn trainer() -> Trainer {
    Trainer::new(TrainConfig::parse(CONFIG).unwrap(), data()).unwrap()
}

fn tokens(bytes: &[u8]) -> Tensor {
    let tokens: Vec<u8> = bytes.iter().map(|b| u8::from(*b >= 128)).collect();
    Tensor::from_vec(tokens, (bytes.len() / 64, 1, 8, 8), &Device::Cpu).unwrap()
}

fn normals(seed: u64, shape: &[usize]) -> Tensor {
    let at = Address::new(0, Purpose::Reference, 0);
    Noise::chains(seed, 1).normal(at, shape, DType::F32).unwrap().get(0).unwrap()
}

/// The derivative along a random direction in all parameters at once, and in those of each layer.
#[test]
fn the_gradient_of_the_loss_is_its_slope() {
    let config = TrainConfig::parse(CONFIG).unwrap().network(1.0);
    let (classifier, variables) = Classifier::fresh(&config, 1, &Device::Cpu).unwrap();
    // The last layer starts at zero: all parameters get values of their own.
    let start: BTreeMap<&String, Tensor> = variables
        .iter()
        .enumerate()
        .map(|(i, (name, v))| (name, (normals(i as u64, v.dims()) * 0.3).unwrap()))
        .collect();
    let set = |v: &Var, t: &Tensor| v.set(t).unwrap();
    variables.iter().for_each(|(name, v)| set(v, &start[name]));
    let (bytes, labels) = lines(5);
    let x = tokens(&bytes);
    let loss = || classifier.cross_entropy(&x, &labels).unwrap();
    let (_, gradients) = loss();
    for (i, (name, v)) in variables.iter().enumerate() {
        let direction = normals(100 + i as u64, v.dims());
        let gradient = gradients.get(v.as_tensor()).unwrap_or_else(|| panic!("{name} has no gradient"));
        let exact = (gradient * &direction).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        let at = |h: f64| {
            set(v, &(&start[name] + (&direction * h).unwrap()).unwrap());
            loss().0
        };
        // Richardson: the error of the difference is of fourth order in h.
        let slope = |h: f64| (at(h) - at(-h)) / (2.0 * h);
        let numeric = (4.0 * slope(5e-3) - slope(1e-2)) / 3.0;
        set(v, &start[name]);
        let scale = numeric.abs().max(0.1);
        assert!((numeric - f64::from(exact)).abs() < 2e-3 * scale, "{name}: {numeric} {exact}");
    }
}

#[test]
fn training_learns_the_classes_and_files_keep_them() {
    let (mut trainer, (bytes, labels)) = (trainer(), lines(150));
    let x = tokens(&bytes);
    let fresh = trainer.average_classifier().unwrap();
    assert!(fresh.probabilities(&x).unwrap().iter().all(|p| (p - 1.0 / 3.0).abs() < 1e-6));
    let first = trainer.advance().unwrap();
    assert!((first - 3f64.ln()).abs() < 1e-6, "{first}");
    (0..300).for_each(|_| {
        trainer.advance().unwrap();
    });
    let held_out = x.narrow(0, 120, 30).unwrap();
    let trained = trainer.average_classifier().unwrap();
    assert_eq!(trained.accuracy(&held_out, &labels[120..]).unwrap(), 1.0);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.safetensors");
    let (rounded, _) = export_classifier(&trainer, &path).unwrap();
    let back = Classifier::load(&path).unwrap();
    assert_eq!((back.shape(), back.classes()), ([1, 8, 8].as_slice(), 3));
    let laws = back.probabilities(&x).unwrap();
    assert_eq!(laws, rounded.probabilities(&x).unwrap());
    assert!(laws.chunks(3).all(|law| (law.iter().sum::<f64>() - 1.0).abs() < 1e-12));
    assert_eq!(back.classify(&x).unwrap(), labels.iter().map(|l| usize::from(*l)).collect::<Vec<_>>());
    // More images than go through the network at once, and each as if it were alone.
    let many = Tensor::cat(&[&x, &x], 0).unwrap();
    let alone = back.probabilities(&x.narrow(0, 149, 1).unwrap()).unwrap();
    assert_eq!(back.probabilities(&many).unwrap()[3 * 299..], alone);
    for refused in [NetworkPrior::load(&path, None).err(), TokenPrior::load(&path).err()] {
        let message = refused.unwrap().to_string();
        assert!(message.contains(" needs ") && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let bits = |trainer: &Trainer, name: &str| {
        let path = dir.path().join(name);
        trainer.save(&path).unwrap();
        let file = fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        tensors.iter().map(|(n, v)| (n.to_owned(), v.data().to_vec())).collect::<BTreeMap<_, _>>()
    };
    let advance =
        |trainer: &mut Trainer, steps: usize| (0..steps).for_each(|_| assert!(trainer.advance().is_ok()));
    let mut straight = trainer();
    advance(&mut straight, 60);
    let whole = bits(&straight, "whole");
    for at in [1, 14, 51] {
        let (mut first, mut second) = (trainer(), trainer());
        advance(&mut first, at);
        bits(&first, "cut");
        second.resume(&dir.path().join("cut")).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1 + at % 3).build().unwrap();
        pool.install(|| advance(&mut second, 60 - at));
        assert_eq!(bits(&second, "again"), whole, "cut after {at} steps");
    }
    // Other labels are other data.
    let (bytes, mut labels) = lines(150);
    labels[7] = 2;
    let other = Dataset::split(Images::bytes([1, 8, 8], bytes), 30).unwrap().labelled(labels, 3).unwrap();
    let mut other = Trainer::new(TrainConfig::parse(CONFIG).unwrap(), other).unwrap();
    let refused = other.resume(&dir.path().join("cut")).unwrap_err().to_string();
    assert!(refused.ends_with("it was trained on other images"), "{refused}");
}

#[test]
fn what_cannot_be_judged_is_refused_in_one_sentence() {
    let config = TrainConfig::parse(CONFIG).unwrap().network(1.0);
    let (classifier, _) = Classifier::fresh(&config, 1, &Device::Cpu).unwrap();
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let good = zeros(&[2, 1, 8, 8], DType::U8);
    let seven = (&good + 7.0).unwrap();
    for (x, says) in [
        (zeros(&[2, 1, 8, 7], DType::U8), "classifier input: expected shape [2, 1, 8, 8], got [2, 1, 8, 7]"),
        (zeros(&[0, 1, 8, 8], DType::U8), "expected at least one image, got 0"),
        (zeros(&[2, 1, 8, 8], DType::F32), "expected tokens of type u8, got F32"),
        (seven, "expected tokens below 2, the alphabet's size, got 7"),
    ] {
        let message = classifier.classify(&x).unwrap_err().to_string();
        assert!(message.contains(says), "expected '{says}' in: {message}");
    }
    for (labels, says) in [
        (vec![0], "labels: expected one for each of 2 images, got 1"),
        (vec![0, 3], "labels: expected numbers below 3, the number of classes, got 3"),
    ] {
        let message = classifier.accuracy(&good, &labels).unwrap_err().to_string();
        assert!(message.contains(says), "expected '{says}' in: {message}");
        assert!(classifier.cross_entropy(&good, &labels).is_err());
    }
}

#[test]
fn configurations_and_label_files_that_do_not_fit_are_refused() {
    for (from, to, says) in [
        ("shift = 1", "shift = 5", "classes.shift: expected at most 4, half of an image, got 5"),
        ("patch = 2", "patch = 2\ntokens = { symbols = 2 }", "expected [tokens] or [classes], got both"),
        (
            "[classes]\nlabels = \"labels\"\nshift = 1",
            "",
            "network.kind: expected a U-Net, which gives images",
        ),
        ("num_classes = 3", "num_classes = 1", "network.num_classes"),
        ("norm_groups = 4", "norm_groups = 3", "a multiple of 3 norm groups"),
        ("image_size = 4", "image_size = 6", "a power of two"),
    ] {
        assert!(CONFIG.contains(from), "{from}");
        let message = TrainConfig::parse(&CONFIG.replace(from, to)).unwrap_err().to_string();
        assert!(message.contains(says), "{to}: {message}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (bytes, labels) = lines(40);
    let put = |name: &str, head: &[u8], rest: &[u8]| {
        fs::write(dir.path().join(name), [head, rest].concat()).unwrap();
    };
    put("images", &[0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 8, 0, 0, 0, 8], &bytes);
    put("labels", &[0, 0, 8, 1, 0, 0, 0, 40], &labels);
    put("few", &[0, 0, 8, 1, 0, 0, 0, 39], &labels[..39]);
    put("cut", &[0, 0, 8, 1, 0, 0, 0, 40], &labels[..39]);
    put("high", &[0, 0, 8, 1, 0, 0, 0, 40], &[vec![9], labels[1..].to_vec()].concat());
    let read = |file: &str, base: &Path| {
        let text = CONFIG.replace("labels = \"labels\"", &format!("labels = \"{file}\""));
        TrainConfig::parse(&text).unwrap().read_data(base)
    };
    let data = read("labels", dir.path()).unwrap();
    assert_eq!((data.train.len(), data.labels.train.as_slice()), (10, &labels[..10]));
    assert_eq!(data.labels.held_out, labels[10..]);
    for (file, says) in [
        ("none", "none: no such file or folder"),
        ("images", "images: is not an IDX file of labels"),
        ("few", "few: holds 39 labels for 40 images"),
        ("cut", "cut: says that it holds 40 labels, but has 39"),
        ("high", "high: holds the label 9, but there are 3 classes"),
    ] {
        let message = read(file, dir.path()).unwrap_err().to_string();
        assert!(message.ends_with(says), "{file}: {message}");
    }
    let unlabelled = Dataset::split(Images::bytes([1, 8, 8], bytes), 30).unwrap();
    let refused = Trainer::new(TrainConfig::parse(CONFIG).unwrap(), unlabelled).err().unwrap().to_string();
    assert!(refused.contains("a classifier needs labels"), "{refused}");
}
