//! Binary pictures as a user meets them: the bundled prior solves the paper's tasks, a stopped run goes on to the same bits,
//! the table counts what the classifier says, and what cannot be used is refused in a sentence.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{daps, killed, psnr, solved, text};

fn refused(args: &[&str], says: &str) {
    let output = daps(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    let sentences: Vec<&str> = error.trim().lines().filter(|l| !l.starts_with("note: ")).collect();
    assert!(sentences.len() == 1 && sentences[0].contains(says), "expected '{says}' in: {error}");
}

fn digit(number: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priors/digits/images");
    path.join(format!("{number}.png")).to_str().unwrap().to_owned()
}

struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

const QUICK: [&str; 6] = ["--prior", "binary-digits", "--preset", "fast", "--samples", "2"];

/// With half of the pixels, or the exclusive or of all pairs, few answers are left: samples are close to the truth, and all of
/// them fit the measurement.
#[test]
fn the_bundled_prior_finds_digits() {
    let scene = Scene::new();
    for (task, least) in [("xor", 18.0), ("inpaint", 15.0)] {
        let (out, image) = (scene.text(task), digit("00001"));
        let args = [&["solve", "--json", "--task", task, "--image", &image, "--out", &out], &QUICK[..]];
        let (summary, notes) = solved(&args.concat());
        assert!(notes.contains("cut to the 2 grey values"), "{notes}");
        let psnr_of_run = summary["psnr"].as_f64().unwrap();
        assert!(psnr_of_run > least, "{task}: {psnr_of_run} dB");
        assert_eq!(summary["measurements"][0]["missed"].as_f64(), Some(0.0), "{task}");
        assert!(summary["residual_chi2"].is_null(), "{task}: tokens have no chi2");
        assert_eq!(summary["nfe"].as_u64(), Some(50));
        for file in ["truth.png", "measurement.png", "mean.png", "std.png", "trace.png", "report.html"] {
            assert!(scene.path(task).join(file).exists(), "{task}: {file}");
        }
        // The file has what tokens stand for, beside the symbols: it compares like any other run's.
        let (samples, truth) =
            (format!("{out}/samples.safetensors"), format!("{out}/measurement.safetensors"));
        let compared = psnr(&samples, &truth, &[]);
        assert!((compared.iter().sum::<f64>() / 2.0 - psnr_of_run).abs() < 1e-4, "{task}: {compared:?}");
        let (tensors, _) = daps::files::read_tensors(Path::new(&samples)).unwrap();
        assert_eq!(tensors["symbols"].dtype(), daps::core::candle::DType::U8);
        let config = fs::read_to_string(scene.path(task).join("config.toml")).unwrap();
        assert!(config.contains("discrete_daps") && config.contains("kind = \"marginals\""), "{config}");
    }
}

/// The paper's algorithm on the same digit, and a resumed run of it: level by level the same bits.
#[test]
fn a_stopped_run_goes_on_to_the_same_bits() {
    let scene = Scene::new();
    let settings = "samples = 2\n[task]\noperator = 'xor'\ntruth = 'TRUTH'\n[prior]\nkind = 'network'\n\
                    name = 'binary-digits'\n[method]\nname = 'discrete_daps'\npreset = 'paper'\n\
                    schedule = { rule = 'geometric', levels = LEVELS, max = 20.0, min = 0.001 }\n";
    let settings = settings.replace("TRUTH", &digit("00003")).replace("LEVELS", "8");
    fs::write(scene.path("run.toml"), &settings).unwrap();
    let run = |out: &str, more: &[&str]| {
        let (config, out) = (scene.text("run.toml"), scene.text(out));
        daps(&[&["run", &config, "--out", &out], more].concat())
    };
    assert_eq!(run("whole", &[]).status.code(), Some(0));
    // A checkpoint after every level; the run is killed when the first one is there.
    let (config, out) = (scene.text("run.toml"), scene.text("cut"));
    let args = ["run", &config, "--out", &out, "--checkpoint-every", "0"];
    assert!(killed(&args, &scene.path("cut"), Duration::ZERO), "the run was over before it was killed");
    assert_eq!(run("cut", &["--resume"]).status.code(), Some(0));
    for file in ["samples.safetensors", "trace.jsonl", "metrics.json"] {
        let of = |run: &str| fs::read(scene.path(run).join(file)).unwrap();
        assert!(of("whole") == of("cut"), "{file} differs");
    }
}

/// Two bundled digits as an IDX file, with the right label of one and a wrong label of the other.
#[test]
fn a_table_counts_what_the_classifier_says() {
    let scene = Scene::new();
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 32, 0, 0, 0, 32];
    for number in ["00001", "00003"] {
        images.extend(image::open(digit(number)).unwrap().to_luma8().into_raw());
    }
    fs::write(scene.path("images"), images).unwrap();
    fs::write(scene.path("labels"), [0, 0, 8, 1, 0, 0, 0, 2, 2, 9]).unwrap();
    let table = "name = 'small'\ntitle = 'small'\nhours = 0.0\nprior = 'binary-digits'\ntasks = ['xor']\n\
                 [data]\nsource = 'images'\nlabels = 'labels'\nimages = 2\n\
                 [[method]]\nname = 'discrete_daps'\npreset = 'fast'\n[[method]]\nname = 'dps'\n";
    fs::write(scene.path("small.toml"), table).unwrap();
    let (file, out) = (scene.text("small.toml"), scene.text("small"));
    solved(&["experiment", &file, "--out", &out]);
    let results = fs::read_to_string(scene.path("small/results.csv")).unwrap();
    let mut lines = results.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    let at = |name: &str| heads.iter().position(|h| *h == name).unwrap();
    let numbers = |name: &str| -> Vec<f64> {
        results.lines().skip(1).map(|l| l.split(',').nth(at(name)).unwrap().parse().unwrap()).collect()
    };
    assert_eq!(numbers("accuracy"), [1.0, 0.0], "{results}");
    assert_eq!(numbers("agreement"), [1.0, 1.0], "{results}");
    let report = fs::read_to_string(scene.path("small/report.md")).unwrap();
    assert!(report.contains("PSNR, median") && report.contains(": it needs a denoiser"), "{report}");

    fs::write(scene.path("labels"), [0, 0, 8, 1, 0, 0, 0, 1, 2]).unwrap();
    refused(&["experiment", &file, "--out", &out], "holds 1 labels, the data set has 2 images");
}

#[test]
fn what_cannot_be_used_gets_one_sentence() {
    let scene = Scene::new();
    let (out, image) = (scene.text("out"), digit("00001"));
    let solve = |more: &[&str]| -> Vec<String> {
        let head = ["solve", "--out", &out];
        head.iter().chain(more).map(|s| (*s).to_owned()).collect()
    };
    let refuse = |more: &[&str], says: &str| {
        let args = solve(more);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), says);
        assert!(!scene.path("out").exists(), "{says}: something was left behind");
    };
    let prior = ["--prior", "binary-digits"];
    let with = |more: &[&'static str]| -> Vec<&str> {
        prior.iter().chain(["--image", &image].iter()).copied().chain(more.iter().copied()).collect()
    };
    refuse(&with(&["--task", "xor", "--set", "pairs=[[0, 4096]]"]), "xor pair index: expected below 1024");
    refuse(&with(&["--task", "xor", "--method", "dps"]), "dps needs a denoiser");
    refuse(&with(&["--task", "xor", "--preset", "quick"]), "known: paper, legacy, official, fast, best");
    refuse(&with(&["--task", "xor", "--preset", "legacy"]), "known: paper, fast, best");
    refuse(&with(&["--task", "super_resolution"]), "needs a measurement of tokens");
    refuse(&with(&["--task", "xor", "--set", "pairs=1024"]), "exact needs groups of few tokens");
    refuse(&with(&["--task", "xor", "--budget", "1k"]), "discrete_daps.budget: expected a number of levels");
    refuse(&with(&["--task", "xor", "--kernel", "langevin"]), "expected flips or exact, got langevin");
    // A measurement of another alphabet, and a grey one.
    let y = daps::core::candle::Tensor::full(3u8, (1, 512), &daps::core::candle::Device::Cpu).unwrap();
    let path = scene.path("y.safetensors");
    daps::files::write_tensors(&path, &[("y", &y)], Default::default()).unwrap();
    let path = path.to_str().unwrap();
    let measured = ["--prior", "binary-digits", "--measurement", path, "--task", "xor"];
    refuse(&measured, "xor: its pairs would be random");
    let measured = [&measured[..], &["--seed", "0"]].concat();
    refuse(&measured, "expected whole numbers below 2, the alphabet's size, got 3");
    let grey = scene.text("grey.png");
    image::GrayImage::from_pixel(32, 32, image::Luma([120])).save(&grey).unwrap();
    let measured = ["--prior", "binary-digits", "--measurement", &grey, "--task", "inpaint", "--seed", "0"];
    refuse(&measured, "expected an image of 2 grey values");
}
