//! `daps solve` as a user meets it: right answers where they are known, the same bits after a kill, and a sentence for every
//! input that cannot be used.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daps::core::candle::{Device, Tensor};
use daps::priors::{NetworkConfig, NetworkPrior};
use serde_json::Value;

use crate::common::{daps, killed, psnr, solved, text};

/// Exit code 2, one sentence (beside notes), and no output directory.
pub fn refused(args: &[&str], out: &Path, says: &str) {
    let output = daps(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    // What cannot be read as an option at all comes with a pointer to the help.
    let beside = ["note: ", "For more information, try '--help'."];
    let is_sentence = |line: &&str| !line.is_empty() && !beside.iter().any(|b| line.starts_with(b));
    let sentences: Vec<&str> = error.trim().lines().filter(is_sentence).collect();
    assert_eq!(sentences.len(), 1, "{error}");
    assert!(sentences[0].contains(says), "expected '{says}' in: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(!out.exists(), "{says}: something was left behind");
}

/// A directory with priors and pictures.
pub struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A Gaussian prior in a file.
    fn gaussian(&self) -> String {
        fs::write(self.path("gaussian.toml"), "[prior]\nkind = 'gaussian'\nstd = 0.5\n").unwrap();
        self.text("gaussian.toml")
    }

    /// A small network of fresh weights in a file.
    fn network(&self, side: usize) -> String {
        self.network_with(side, "")
    }

    /// The same with more in its configuration.
    pub fn network_with(&self, side: usize, more: &str) -> String {
        let config = NetworkConfig::parse(&format!(
            "[network]\nkind = 'song'\nimage_size = {side}\nmodel_channels = 8\nchannel_mult = [1, 1]\nnum_blocks = 1\n\
             attn_resolutions = []\n[preconditioning]\nkind = 'edm'\n{more}"
        ))
        .unwrap();
        let (_, variables) = NetworkPrior::fresh(&config, 7, &Device::Cpu).unwrap();
        let tensors: Vec<(&str, &Tensor)> =
            variables.iter().map(|(k, v)| (k.as_str(), v.as_tensor())).collect();
        let metadata = HashMap::from([("daps.config".to_owned(), config.to_toml().unwrap())]);
        let path = self.path(&format!("network-{side}.safetensors"));
        daps::files::write_tensors(&path, &tensors, metadata).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn picture(&self, name: &str, side: u32) -> String {
        let at = |x: u32, y: u32| image::Rgb([(x * 255 / side) as u8, (y * 255 / side) as u8, 90]);
        image::RgbImage::from_fn(side, side, at).save(self.path(name)).unwrap();
        self.text(name)
    }
}

/// Prior N(0, 0.25), 70 % of the pixels unseen, noise 0.05: the posterior's mean and variance are known pixel by pixel.
#[test]
fn a_linear_gaussian_problem_has_its_closed_form() {
    let scene = Scene::new();
    let (prior, image, out) = (scene.gaussian(), scene.picture("a.png", 16), scene.text("out"));
    let command =
        ["solve", "--task", "inpaint-random", "--image", &image, "--prior", &prior, "--shape", "1,16,16"];
    let rest = ["--preset", "fast", "--samples", "64", "--out", &out, "--json"];
    let (summary, notes) = solved(&[&command[..], &rest[..]].concat());
    assert!(notes.contains("colour; its brightness is used"), "{notes}");
    let number = |key: &str| summary[key].as_f64().unwrap();
    let (hidden, d, k) = ((0.7f64 * 256.0).floor(), 256.0, 64.0);
    let seen = 1.0 / (1.0 / 0.25 + 1.0 / 0.0025);
    let variance = (hidden * 0.25 + (d - hidden) * seen) / d;
    // The error of a mean of 64 draws is chi-squared with as many degrees as there are unseen pixels.
    let ratio = number("mean_error").powi(2) / (variance / k);
    assert!((ratio - 1.0).abs() < 4.0 * (2.0 / hidden).sqrt(), "mean: {ratio}");
    let ratio = number("spread").powi(2) / variance;
    assert!((ratio - 1.0).abs() < 4.0 * (2.0 / (hidden * (k - 1.0))).sqrt(), "spread: {ratio}");
    assert_eq!(summary["nfe"], 32);
    let files: Vec<String> =
        ["report.html", "best.png", "mean.png", "std.png", "truth.png", "trace.png", "samples/63.png"]
            .map(str::to_owned)
            .to_vec();
    for file in files {
        assert!(scene.path("out").join(&file).is_file(), "{file}");
    }
    let report = fs::read_to_string(scene.path("out/report.html")).unwrap();
    assert!(
        report.contains("data:image/png;base64,")
            && report.contains("<svg")
            && !report.contains("src=\"http")
    );

    // The written configuration is the run.
    let again = scene.text("again");
    let config = scene.text("out/config.toml");
    solved(&["run", &config, "--out", &again, "--json"]);
    for file in ["samples.safetensors", "metrics.json", "trace.jsonl", "config.toml"] {
        assert_eq!(
            fs::read(scene.path("out").join(file)).unwrap(),
            fs::read(scene.path("again").join(file)).unwrap()
        );
    }
}

/// All eight tasks with a network prior run and write what they should; phase retrieval says which chain it chose.
#[test]
fn every_task_runs_with_a_network() {
    let scene = Scene::new();
    let (prior, image) = (scene.network(16), scene.picture("a.png", 40));
    for task in daps::task::TASKS {
        let out = scene.text(task.name);
        let command = ["solve", "--task", task.name, "--image", &image, "--prior", &prior, "--out", &out];
        let (summary, notes) =
            solved(&[&command[..], &["--budget", "6", "--samples", "2", "--json"]].concat());
        assert!(notes.contains("40x40; resized to 16x16"), "{notes}");
        assert!(notes.contains("carries no r(sigma)"), "{notes}");
        let found = &summary["measurements"][0];
        assert_eq!(found["denoising_error"].is_array(), task.name == "phase_retrieval");
        assert!(summary["psnr"].as_f64().unwrap().is_finite());
        assert!(scene.path(task.name).join("measurement.png").is_file());
    }
    // A measurement from a run serves as a measurement of another.
    let y = scene.text("super_resolution/measurement.safetensors");
    let out = scene.text("again");
    let command =
        ["solve", "--task", "super_resolution", "--measurement", &y, "--prior", &prior, "--out", &out];
    let (summary, _) = solved(&[&command[..], &["--budget", "6", "--samples", "1", "--json"]].concat());
    assert!(summary["psnr"].is_null() && summary["spread"].is_null());
    assert!(!scene.path("again/std.png").exists() && !scene.path("again/truth.png").exists());
}

/// Batch size changes no bit of the samples, with a network too; folders give one folder per picture.
#[test]
fn folders_are_solved_and_batches_change_nothing() {
    let scene = Scene::new();
    let prior = scene.network(16);
    fs::create_dir(scene.path("in")).unwrap();
    scene.picture("in/b.png", 16);
    scene.picture("in/a.bmp", 20);
    // Its folder must not be where the report goes.
    scene.picture("in/report.html.bmp", 16);
    fs::write(scene.path("in/notes.txt"), "not a picture").unwrap();
    let input = scene.text("in");
    let run = |out: &str, batch: &str| {
        let path = scene.text(out);
        let command =
            ["solve", "--task", "motion_blur", "--image", &input, "--prior", &prior, "--out", &path];
        solved(&[&command[..], &["--budget", "5", "--samples", "3", "--batch", batch, "--json"]].concat()).0
    };
    let (mut whole, mut parts) = (run("whole", "6"), run("parts", "4"));
    // Conjugate gradients run until the slowest row of a batch is done: a cost, not a result.
    for summary in [&mut whole, &mut parts] {
        summary["operator_calls"] = Value::Null;
    }
    assert_eq!(whole, parts);
    let read = |out: &str| fs::read(scene.path(out).join("samples.safetensors")).unwrap();
    assert_eq!(read("whole"), read("parts"));
    assert_eq!(whole["measurements"][0]["name"], "a");
    assert!(scene.path("whole/a/mean.png").is_file() && scene.path("whole/b/samples/02.png").is_file());
    assert!(scene.path("whole/report.html").is_file() && scene.path("whole/report.html+/mean.png").is_file());
}

/// The one answer is the sample closest to the measurement, or the mean of all, and what it is stands in the summary and the run's file.
#[test]
fn the_one_answer_is_a_sample_or_the_mean() {
    let scene = Scene::new();
    let (prior, image) = (scene.network(16), scene.picture("a.png", 16));
    let same = |out: &str, other: &str| {
        let read = |name: &str| fs::read(scene.path(out).join(name)).unwrap();
        read("answer.png") == read(other)
    };
    let run = |out: &str, answer: &[&str]| {
        let path = scene.text(out);
        let command =
            ["solve", "--task", "inpaint_random", "--image", &image, "--prior", &prior, "--out", &path];
        solved(&[&command[..], &["--budget", "5", "--samples", "3", "--json"], answer].concat()).0
    };
    let (sample, mean) = (run("sample", &[]), run("mean", &["--answer", "mean"]));
    assert_eq!((&sample["answer"]["kind"], &mean["answer"]["kind"]), (&"sample".into(), &"mean".into()));
    assert!([&sample, &mean].iter().all(|summary| summary["answer"]["calls"] == 15));
    assert!(same("sample", "best.png") && !same("sample", "mean.png"));
    assert!(same("mean", "mean.png") && !same("mean", "best.png"));
    assert_eq!(mean["answer"]["psnr"], mean["measurements"][0]["mean_psnr"]);
    assert!(mean["answer"]["psnr"].as_f64() > sample["answer"]["psnr"].as_f64());
    // The written file repeats the run with its answer, and a command may ask for the other one.
    let file = scene.text("mean/config.toml");
    let (again, _) = solved(&["run", &file, "--out", &scene.text("again"), "--json"]);
    assert_eq!(again["answer"], mean["answer"]);
    let (other, _) = solved(&["run", &file, "--answer", "sample", "--out", &scene.text("other"), "--json"]);
    assert_eq!(other["answer"], sample["answer"]);
    let command = ["solve", "--task", "inpaint_random", "--image", &image, "--prior", &prior];
    refused(&[&command[..], &["--answer", "man"]].concat(), &scene.path("none"), "did you mean 'mean'");
}

/// A file behind `--kernel` is the blur's kernel, as behind `--kernel-file`; a name is the kernel that draws.
#[test]
fn a_blur_takes_its_kernel_from_a_file() {
    let scene = Scene::new();
    let (prior, image) = (scene.gaussian(), scene.picture("a.png", 16));
    let kernel = scene.text("k.png");
    image::GrayImage::from_fn(3, 3, |x, y| image::Luma([(40 * (x + y)) as u8 + 20])).save(&kernel).unwrap();
    let command =
        ["solve", "--task", "motion-blur", "--image", &image, "--prior", &prior, "--shape", "1,16,16"];
    let rest = ["--preset", "fast", "--budget", "6", "--samples", "1", "--json"];
    let run = |out: &str, more: &[&str]| {
        let path = scene.text(out);
        solved(&[&command[..], &rest, &["--out", &path], more].concat());
        fs::read(scene.path(out).join("config.toml")).unwrap()
    };
    let config = run("file", &["--kernel-file", &kernel]);
    assert!(text(&config).contains("operator = \"blur\"") && text(&config).contains("k.png"));
    assert_eq!(run("kernel", &["--kernel", &kernel]), config);
    assert_eq!(run("both", &["--kernel-file", &kernel, "--kernel", "exact"]), config);
    let refuse = |more: &[&str], says: &str| {
        let out = scene.text("out");
        refused(&[&command[..], &["--out", &out], more].concat(), Path::new(&out), says);
    };
    refuse(&["--kernel", "no.png"], "no.png: no such file");
    refuse(&["--kernel", "langevn"], "unknown kernel 'langevn'");
    refuse(&["--kernel", &kernel, "--kernel-file", &kernel], "leave one out");
}

/// The same nonlinear blur, by its kernel's file: what was drawn from a seed can be measured elsewhere.
#[test]
fn a_measurement_brings_its_own_kernel_or_its_seed() {
    let scene = Scene::new();
    let (prior, image) = (scene.gaussian(), scene.picture("a.png", 16));
    let kernel = scene.text("k.npy");
    Tensor::new(&[[0.0, 0.3, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 0.2f64]], &Device::Cpu)
        .unwrap()
        .write_npy(&kernel)
        .unwrap();
    let rest = ["--prior", &prior, "--shape", "1,16,16", "--preset", "fast", "--budget", "20", "--json"];
    let (truth, out) = (["solve", "--task", "nonlinear-blur", "--image", &image], scene.text("truth"));
    solved(&[&truth[..], &rest, &["--kernel-file", &kernel, "--samples", "2", "--out", &out]].concat());
    let y = scene.text("truth/measurement.safetensors");
    let (measured, again) = (["solve", "--task", "nonlinear-blur", "--measurement", &y], scene.text("again"));
    let (found, notes) = solved(
        &[&measured[..], &rest, &["--kernel-file", &kernel, "--samples", "2", "--out", &again]].concat(),
    );
    assert!(!notes.contains("drawn from seed"), "{notes}");
    let samples = |out: &str| fs::read(scene.path(out).join("samples.safetensors")).unwrap();
    assert_eq!(samples("truth"), samples("again"));
    assert_eq!(found["measurements"][0]["statistic"].as_str(), Some("χ²"));
    let one = scene.text("one");
    let command = [&measured[..], &rest, &["--seed", "3", "--samples", "1", "--out", &one]].concat();
    let (_, notes) = solved(&command);
    assert!(notes.contains("nonlinear_blur: its kernel drawn from seed 3"), "{notes}");

    // Reconstructions are compared with the truth as they are: from a run's files, or as pictures.
    let (images, truth) = (scene.text("truth/samples.safetensors"), scene.text("truth/truth.png"));
    let metrics: Value =
        serde_json::from_str(&fs::read_to_string(scene.path("truth/metrics.json")).unwrap()).unwrap();
    let known = &metrics["measurements"][0];
    let from_files = psnr(&images, &y, &[]);
    for (k, value) in from_files.iter().enumerate() {
        assert!((value - known["psnr"][k].as_f64().unwrap()).abs() < 1e-4, "{from_files:?} {known}");
    }
    let mean = psnr(&images, &y, &["--tensor", "mean"])[0];
    assert!((mean - known["mean_psnr"].as_f64().unwrap()).abs() < 1e-4);
    // A PNG is rounded to bytes.
    let from_pictures = psnr(&scene.text("truth/samples"), &truth, &[]);
    assert!(from_pictures.iter().zip(&from_files).all(|(a, b)| (a - b).abs() < 0.2), "{from_pictures:?}");
}

/// Bytes of a measured picture are a picture's, in an array as in a file.
#[test]
fn a_measured_picture_may_be_an_array_of_bytes() {
    let scene = Scene::new();
    let prior = scene.gaussian();
    let byte = |i: usize| (40 + i % 150) as u8;
    Tensor::from_vec((0..256).map(byte).collect(), (1, 16, 16), &Device::Cpu)
        .unwrap()
        .write_npy(scene.path("y.npy"))
        .unwrap();
    image::GrayImage::from_vec(16, 16, (0..256).map(byte).collect())
        .unwrap()
        .save(scene.path("y.png"))
        .unwrap();
    let run = |name: &str| {
        let (y, out) = (scene.text(name), scene.text(&format!("of-{name}")));
        let command = ["solve", "--task", "gaussian-blur", "--measurement", &y, "--prior", &prior];
        let rest = ["--shape", "1,16,16", "--preset", "fast", "--budget", "6", "--samples", "2", "--json"];
        let (_, notes) = solved(&[&command[..], &rest, &["--out", &out]].concat());
        let file = Path::new(&out).join("samples.safetensors");
        let samples = &daps::core::candle::safetensors::load(file, &Device::Cpu).unwrap()["samples"];
        (notes, samples.flatten_all().unwrap().to_vec1::<f64>().unwrap())
    };
    let ((notes, array), (_, picture)) = (run("y.npy"), run("y.png"));
    assert!(notes.contains("bytes; 0 to 255 stand for -1 to 1"), "{notes}");
    // A picture's values go by way of f32.
    let worst = array.iter().zip(&picture).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
    assert!(array.len() == 512 && worst < 1e-4, "{worst}");
}

/// A network that halves images, at odd sides: on tiles where memory asks for them, which a resumed run must have again.
#[test]
fn images_of_any_size_run_within_a_limit_of_memory() {
    let scene = Scene::new();
    let (prior, image, out) = (scene.network(16), scene.picture("a.png", 151), scene.text("out"));
    let command = ["solve", "--task", "inpaint-random", "--image", &image, "--prior", &prior];
    let rest = ["--shape", "3,151,133", "--preset", "fast", "--budget", "5", "--samples", "1", "--json"];
    let run = |out: &str, more: &[&str]| solved(&[&command[..], &rest, &["--out", out], more].concat());
    let (_, notes) = run(&scene.text("whole"), &[]);
    assert!(!notes.contains("tiles"), "{notes}");
    let (tiled, notes) = run(&out, &["--memory", "13500kB"]);
    assert!(
        notes.contains("tiles of ") && notes.contains("to stay within 13500kB (--memory); its norms"),
        "{notes}"
    );
    // The same tiles from a little more memory; others from much more.
    assert_eq!(run(&out, &["--memory", "13510kB", "--resume"]).0, tiled);
    let resumed = |memory| {
        let more = ["--out", &out, "--memory", memory, "--resume"];
        let output = daps(&[&command[..], &rest, &more].concat());
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let message = resumed("4GB");
    assert!(message.contains("network took ") && message.contains("it would take whole images"), "{message}");
    // The written configuration has the tiles.
    let (again, config) = (scene.text("again"), scene.text("out/config.toml"));
    let (again, notes) = solved(&["run", &config, "--out", &again, "--json"]);
    assert!(again == tiled && notes.contains("tiles of "), "{notes}");
    let (other, notes) =
        solved(&["run", &config, "--memory", "1GB", "--out", &scene.text("other"), "--json"]);
    assert!(other != tiled && !notes.contains("tiles of "), "{notes}");
    let out = scene.path("none");
    let less = ["--out", out.to_str().unwrap(), "--memory", "1MB"];
    let says = "for a call of the network on 128x128 pixels, got 1MB";
    refused(&[&command[..], &rest, &less].concat(), &out, says);
    let wrong = ["--out", out.to_str().unwrap(), "--memory", "plenty"];
    refused(&[&command[..], &rest, &wrong].concat(), &out, "a size such as 4GB, 512MB or a number of bytes");
}

#[test]
fn a_killed_solve_resumes_to_the_same_bytes() {
    let scene = Scene::new();
    let (prior, image) = (scene.network(16), scene.picture("a.png", 16));
    let command = |out: &str| {
        let words =
            ["solve", "--task", "gaussian_blur", "--image", &image, "--prior", &prior, "--budget", "60"];
        let rest = ["--samples", "5", "--batch", "2", "--checkpoint-every", "0", "--out", out];
        words.iter().chain(&rest).map(|s| (*s).to_owned()).collect::<Vec<String>>()
    };
    let read = |out: &Path| {
        ["samples.safetensors", "trace.jsonl", "metrics.json", "report.html", "trace.png", "mean.png"]
            .map(|name| fs::read(out.join(name)).unwrap())
    };
    let whole = scene.text("whole");
    let mut interrupted = 0;
    for (noise, statistic) in
        [("poisson:peak=30", "Pearson's χ²"), ("unknown:level=0.1", "χ²"), ("0.05", "χ²")]
    {
        let command = |out: &str| {
            let mut words = command(out);
            words.extend(["--noise".to_owned(), noise.to_owned()]);
            words
        };
        let words = command(&whole);
        _ = fs::remove_dir_all(&whole);
        assert!(daps(&words.iter().map(String::as_str).collect::<Vec<_>>()).status.success());
        let found: Value =
            serde_json::from_slice(&fs::read(scene.path("whole/metrics.json")).unwrap()).unwrap();
        assert_eq!(found["measurements"][0]["statistic"], statistic, "{noise}");
        assert!(found["residual_chi2"].as_f64().unwrap() > 0.0, "{noise}");
        for milliseconds in [0, 100, 250, 500] {
            let out = scene.text(&format!("killed-{milliseconds}"));
            _ = fs::remove_dir_all(&out);
            let mut words = command(&out);
            let args: Vec<&str> = words.iter().map(String::as_str).collect();
            interrupted += usize::from(killed(&args, Path::new(&out), Duration::from_millis(milliseconds)));
            words.push("--resume".into());
            let output = daps(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert!(read(Path::new(&out)) == read(Path::new(&whole)), "killed after {milliseconds} ms");
            assert!(!Path::new(&out).join("checkpoint.safetensors").exists());
        }
    }
    assert!(interrupted > 0, "no run was killed between its first checkpoint and its end");
    // A picture that has changed since is noticed.
    image::RgbImage::from_pixel(16, 16, image::Rgb([9, 99, 199])).save(scene.path("a.png")).unwrap();
    let mut words = command(&whole);
    words.push("--resume".into());
    let output = daps(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("have changed since"), "{}", text(&output.stderr));
}

#[test]
fn every_bad_input_is_one_sentence_and_leaves_nothing_behind() {
    let scene = Scene::new();
    let (prior, image, out) = (scene.network(16), scene.picture("good.png", 16), scene.text("out"));
    let check = |task: &str, input: &[&str], says: &str| {
        let command = ["solve", "--task", task, "--prior", &prior, "--out", &out, "--budget", "2"];
        refused(&[&command[..], input].concat(), Path::new(&out), says);
    };
    let file = |name: &str, bytes: &[u8]| {
        fs::write(scene.path(name), bytes).unwrap();
        scene.text(name)
    };
    let whole = fs::read(&image).unwrap();
    check(
        "hdr",
        &["--image", &file("text.png", b"hello there, no picture")],
        "not an image in a known format",
    );
    check("hdr", &["--image", &file("empty.png", b"")], "not an image in a known format");
    check("hdr", &["--image", &file("cut.png", &whole[..whole.len() / 2])], "cannot be read as an image");
    let mut jpeg = std::io::Cursor::new(Vec::new());
    image::open(&image).unwrap().write_to(&mut jpeg, image::ImageFormat::Jpeg).unwrap();
    let jpeg = jpeg.into_inner();
    check("hdr", &["--image", &file("cut.jpg", &jpeg[..jpeg.len() - 40])], "the file is cut off");
    // A header that claims a million pixels a side.
    let mut gigantic = whole.clone();
    gigantic[16..24].copy_from_slice(&[0, 15, 66, 64, 0, 15, 66, 64]);
    let crc = crc32(&gigantic[12..29]);
    gigantic[29..33].copy_from_slice(&crc.to_be_bytes());
    check(
        "hdr",
        &["--image", &file("gigantic.png", &gigantic)],
        "1000000x1000000; the limit is 64 megapixels",
    );
    check("hdr", &["--image", &scene.picture("one.png", 1)], "is 1x1, too small to be enlarged to 16x16");
    check("hdr", &["--image", &scene.text("nowhere.png")], "nowhere.png: no such file");
    fs::create_dir(scene.path("none")).unwrap();
    check("hdr", &["--image", &scene.text("none")], "holds no images");
    check("hdr", &["--measurement", &scene.picture("large.png", 20)], "is 20x20, expected 16x16");
    check("phase_retrieval", &["--measurement", &image], "a measurement of phase_retrieval is not an image");
    let y = Tensor::zeros((3, 5, 5), daps::core::candle::DType::F32, &Device::Cpu).unwrap();
    y.write_npy(scene.path("y.npy")).unwrap();
    check("hdr", &["--measurement", &scene.text("y.npy")], "expected shape [3, 16, 16]");
    // What would be drawn at random is no explanation of somebody's measurement.
    for (task, says) in [
        ("inpaint_box", "inpaint_box: the place of its box would be random. Pass --mask FILE"),
        ("inpaint", "inpaint_random: its mask would be random"),
        ("motion_blur", "Pass --kernel-file FILE, or the --seed used to create the measurement"),
        ("nonlinear_blur", "its kernel would be random"),
    ] {
        check(task, &["--measurement", &image], says);
    }
    check("hdr", &["--image", &image, "--factor", "4"], "unknown field `factor`");
    check("dense", &["--image", &image], "dense needs --set matrix=FILE: an array [outputs, inputs]");
    check("blur", &["--image", &image], "blur needs --kernel-file FILE: an image");
    check("super_resolution", &["--image", &image, "--factor", "17"], "1 to the image's shorter side 16");
    check("hdrr", &["--image", &image], "unknown operator 'hdrr'");
    check("hdr", &["--image", &image, "--preset", "slow"], "unknown preset 'slow'");
    check("hdr", &["--image", &image, "--method", "guess"], "unknown method 'guess'");
    check(
        "hdr",
        &["--image", &image, "--kernel", "replay"],
        "daps needs a singular value decomposition; hdr has none",
    );
    check("hdr", &["--image", &image, "--noise", "-1"], "task.noise: expected a number from 1e-5 to 100.0");
    check(
        "hdr",
        &["--image", &image, "--noise", "1e-30"],
        "task.noise: expected a number from 1e-5 to 100.0, got 1e-30",
    );
    check(
        "hdr",
        &["--image", &image, "--noise", "1e30"],
        "task.noise: expected a number from 1e-5 to 100.0, got 1e30",
    );
    check("hdr", &["--image", &image, "--samples", "0"], "samples: expected at least 1");
    check("hdr", &["--image", &image, "--samples", "100001"], "samples: expected at most 100000");
    check("hdr", &["--image", &image, "--set", "nonsense"], "--set: expected KEY=VALUE");
    check("inpaint_box", &["--image", &image, "--mask", &scene.text("no.png")], "no.png: no such file");
    refused(
        &["solve", "--task", "hdr", "--image", &image, "--prior", "nobody", "--out", &out],
        Path::new(&out),
        "unknown prior 'nobody'",
    );
    refused(
        &["solve", "--task", "hdr", "--image", &image, "--prior", "gaussian", "--out", &out],
        Path::new(&out),
        "'gaussian' is a kind of prior: give a TOML file",
    );

    // A directory that exists, and one that cannot be made.
    fs::create_dir(scene.path("taken")).unwrap();
    let kept = file("taken/mine.txt", b"keep me");
    let taken = scene.text("taken");
    let command = ["solve", "--task", "hdr", "--prior", &prior, "--image", &image, "--out"];
    refused(&[&command[..], &[&taken]].concat(), Path::new(&out), "already exists and is not empty");
    let resumed = [&command[..], &[taken.as_str(), "--resume"]].concat();
    refused(&resumed, Path::new(&out), "is not empty and holds no run to resume");
    assert_eq!(fs::read_dir(scene.path("taken")).unwrap().count(), 1);
    refused(
        &[&command[..], &[&format!("{kept}/below")]].concat(),
        Path::new(&out),
        "cannot make the directory",
    );
}

/// The checksum of a PNG chunk, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// The bundled prior with nothing else said: samples of a hidden square agree outside it and differ inside.
#[test]
fn the_bundled_faces_fill_a_hidden_square_in_several_ways() {
    let scene = Scene::new();
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../priors/faces/images/08017.png");
    let (image, out) = (image.to_str().unwrap(), scene.text("out"));
    let command = ["solve", "--task", "inpaint_box", "--image", image, "--preset", "fast", "--samples", "3"];
    let (summary, _) = solved(&[&command[..], &["--out", &out, "--json"]].concat());
    assert!(summary["psnr"].as_f64().unwrap() > 20.0, "{summary}");
    let (tensors, _) = daps::files::read_tensors(&scene.path("out/samples.safetensors")).unwrap();
    let std: Vec<f64> = tensors["std"].flatten_all().unwrap().to_vec1().unwrap();
    let (side, hidden) = (64, 32);
    let variance = |i: usize, j: usize| {
        (0..3).map(|c| std[(c * side + i) * side + j].powi(2)).sum::<f64>() / std.len() as f64
    };
    let total: f64 = (0..side * side).map(|k| variance(k / side, k % side)).sum();
    // The square is the window that holds most of the variance; it is a quarter of the image.
    let window = |top: usize, left: usize| -> f64 {
        (0..hidden * hidden).map(|k| variance(top + k / hidden, left + k % hidden)).sum()
    };
    let starts = 0..=side - hidden;
    let most = starts.clone().flat_map(|top| starts.clone().map(move |left| (top, left)));
    let most = most.map(|(top, left)| window(top, left)).fold(0.0, f64::max);
    assert!(most > 0.75 * total, "the hidden square holds {most} of {total}");
}
