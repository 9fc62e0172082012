//! `daps train` as a user meets it: kill and resume to the same bits, export, and refusals.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use daps::progress::Progress;

use crate::common::{self, text};

fn daps(args: &[&str]) -> Output {
    common::daps(&[&["train"], args].concat())
}

const CONFIG: &str = r#"
name = "tiny"
images = 2400
batch = 8
checkpoint_minutes = 0.0005
[data]
source = "images"
held_out = 3
flip = true
[network]
kind = "song"
image_size = 8
channels = 1
model_channels = 16
channel_mult = [1, 1]
num_blocks = 1
attn_resolutions = [4]
"#;

/// A configuration beside an IDX file of 40 images.
fn setting(directory: &Path, config: &str) -> String {
    let mut idx = vec![0u8, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 8, 0, 0, 0, 8];
    idx.extend((0..40 * 64).map(|i: usize| (i * i / 5 % 256) as u8));
    fs::write(directory.join("images"), idx).unwrap();
    let path = directory.join("train.toml");
    fs::write(&path, config).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A text that a run's checkpoint carries.
fn metadata(run: &Path, key: &str) -> String {
    let file = fs::read(run.join("checkpoint.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    header["__metadata__"][key].as_str().unwrap().to_owned()
}

/// The checksum of all tensors of a checkpoint.
fn checksum(run: &Path) -> String {
    metadata(run, "daps.sha256")
}

/// The figure and the images of "… loss 0.3041 (mean over the last 400 images) …", where `before` ends with "loss ".
fn loss_after(said: &str, before: &str) -> (String, String) {
    let rest = said.split_once(before).unwrap_or_else(|| panic!("{before} in {said}")).1;
    let (mean, rest) = rest.split_once(" (mean over the last ").unwrap_or_else(|| panic!("{said}"));
    (mean.to_owned(), rest.split_once(" images)").unwrap().0.to_owned())
}

/// The end of a run and of its resumed twin, a resumption with nothing left to do, `loss.csv`, the summary and the card.
#[test]
fn a_training_has_one_loss_wherever_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let config = setting(dir.path(), CONFIG);
    let run = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        let done = daps(&[&["--config", config.as_str(), "--out", out.to_str().unwrap()], more].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        done
    };
    // 73 steps: neither a multiple of the 50 that a loss is averaged over, nor fewer.
    let whole = loss_after(&text(&run("whole", &["--until", "584"]).stdout), ", loss ");
    assert_eq!(whole.1, "400");
    let half = loss_after(&text(&run("twin", &["--until", "336"]).stdout), ", loss ");
    assert_eq!(half.1, "336");
    let twin = run("twin", &["--until", "584", "--resume"]);
    assert_eq!(loss_after(&text(&twin.stderr), "336 images seen so far, loss "), half);
    assert_eq!(loss_after(&text(&twin.stdout), ", loss "), whole);
    let over = run("twin", &["--until", "584", "--resume"]);
    assert_eq!(loss_after(&text(&over.stderr), "584 images seen so far, loss "), whole);
    assert_eq!(loss_after(&text(&over.stdout), ", loss "), whole);
    let summary = run("twin", &["--until", "584", "--resume", "--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&summary.stdout).unwrap();
    assert_eq!(format!("{:.4}", summary["loss"].as_f64().unwrap()), whole.0);
    assert_eq!(summary["loss_images"], 400);
    let csv = fs::read_to_string(dir.path().join("whole/loss.csv")).unwrap();
    assert_eq!(csv, fs::read_to_string(dir.path().join("twin/loss.csv")).unwrap());
    let rows: Vec<Vec<f64>> =
        csv.lines().skip(1).map(|l| l.split(',').map(|v| v.parse().unwrap()).collect()).collect();
    assert_eq!(rows.iter().map(|r| r[0]).collect::<Vec<_>>(), [400.0, 584.0]);
    assert_eq!(format!("{:.4}", rows[1][1]), whole.0);
    let prior = dir.path().join("prior/tiny.safetensors");
    let exported =
        daps(&["export", dir.path().join("twin").to_str().unwrap(), "--out", prior.to_str().unwrap()]);
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let card = fs::read_to_string(dir.path().join("prior/README.md")).unwrap();
    assert_eq!(loss_after(&card, "; at the end "), whole);
}

/// An export carries the covariance of the error by frequency and its local factor; `calibrate` measures them anew and leaves the weights as
/// they are, and samples with them can be validated.
#[test]
fn a_prior_knows_its_error_and_its_samples_can_be_validated() {
    let dir = tempfile::tempdir().unwrap();
    let config = setting(dir.path(), &CONFIG.replace("2400", "80"));
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let done = |args: &[&str]| {
        let output = daps(args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    done(&["--config", &config, "--out", &at("run")]);
    done(&["export", &at("run"), "--out", &at("prior/tiny.safetensors")]);
    let header = |name: &str| -> serde_json::Value {
        let file = fs::read(dir.path().join(name)).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        serde_json::from_slice::<serde_json::Value>(&file[8..8 + length]).unwrap()["__metadata__"].clone()
    };
    let (images, old) = (at("images"), at("prior/tiny.safetensors"));
    let measured = ["--held-out", "12", "--measure", "8"];
    let calibrate =
        ["calibrate", &old, "--data", &images, "--out", &at("new.safetensors")].map(str::to_owned);
    let calibrate: Vec<&str> = calibrate.iter().map(String::as_str).chain(measured).collect();
    let said = done(&calibrate);
    assert!(said.contains("measured on 8 images, local factor trained on 28"), "{said}");
    let (before, after) = (header("prior/tiny.safetensors"), header("new.safetensors"));
    assert_eq!(before["daps.sha256"], after["daps.sha256"]);
    for key in ["daps.spread", "daps.local"] {
        assert!(before[key].is_string() && after[key].is_string() && before[key] != after[key], "{key}");
    }
    let method = "[method]\npreset = 'fast'\nbudget = '6'\n";
    let local =
        "[method.estimate]\nkind = 'gaussian'\ncenter = 'tweedie'\nspread = { bands = { wider = 1.4 } }\n";
    fs::write(dir.path().join("plain.toml"), method).unwrap();
    let levels = "schedule = { rule = 'poly', levels = 6, max = 50.0, min = 0.02, rho = 7.0 }\n";
    let whole = format!("[method]\npreset = 'fast'\n{levels}{local}");
    fs::write(dir.path().join("local.toml"), whole).unwrap();
    let (prior, out) = (at("new.safetensors"), at("validated"));
    let (plain, with_local) = (at("plain.toml"), at("local.toml"));
    let args = ["validate", "network", "--prior", &prior, "--images", "3", "--samples", "4", "--json"];
    let rest = ["--task", "inpaint-random", "--method", &plain, "--method", &with_local, "--out", &out];
    let output = common::daps(&[&args[..], &rest].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows[0]["method"].as_str(), rows[1]["method"].as_str()), (Some("plain"), Some("local")));
    for row in &rows {
        assert_eq!((row["nominal"].as_f64(), row["nfe"].as_u64()), (Some(0.6), Some(6)));
        let pixels = row["pixels"]["mean"].as_f64().unwrap();
        assert!(pixels > 0.1 && pixels <= 1.0 && row["diverged"] == 0, "{row}");
    }
    assert_ne!(rows[0]["diversity"], rows[1]["diversity"]);
    for name in ["results.jsonl", "table.txt", "coverage-inpaint_random.svg"] {
        assert!(dir.path().join("validated").join(name).is_file(), "{name}");
    }
}

/// The lines of a card's console.
fn made_with(card: &str) -> Vec<&str> {
    let console = card.split_once("```console\n").unwrap().1;
    console.split_once("```").unwrap().0.lines().collect()
}

#[test]
fn a_card_names_the_commands_that_ran() {
    let dir = tempfile::tempdir().unwrap();
    // A fixed deviation: weights go on only in a network that is the same.
    setting(dir.path(), &format!("{CONFIG}[loss]\nsigma_data = 0.5\n[card]\nrecipe = \"make images\"\n"));
    let daps = |args: &[&str]| {
        let done =
            Command::new(env!("CARGO_BIN_EXE_daps")).current_dir(dir.path()).args(args).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    let card = || fs::read_to_string(dir.path().join("my prior/README.md")).unwrap();
    let resumed = ["train", "--resume", "--config", "train.toml", "--out", "a", "--until", "32"];
    daps(&["train", "--config", "train.toml", "--out", "a", "--until", "16"]);
    daps(&resumed);
    // Nothing is left to do: it trains nothing, and the card is silent about it.
    daps(&["train", "--resume", "--config=train.toml", "--out", "a", "--until", "32"]);
    daps(&["train", "export", "a", "--out", "my prior/tiny.safetensors"]);
    let first = [
        "$ daps train --config train.toml --out a --until 16",
        "$ daps train --resume --config train.toml --out a --until 32",
        "$ daps train export a --out 'my prior/tiny.safetensors'",
    ];
    assert_eq!(made_with(&card()), [["$ make images"].as_slice(), first.as_slice()].concat());
    // The weights carry them to the next run.
    daps(&[
        "train",
        "--config",
        "train.toml",
        "--out",
        "b",
        "--until",
        "48",
        "--start",
        "my prior/tiny.safetensors",
    ]);
    daps(&["train", "export", "b", "--out", "my prior/tiny.safetensors"]);
    let second = [
        "$ daps train --config train.toml --out b --until 48 --start 'my prior/tiny.safetensors'",
        "$ daps train export b --out 'my prior/tiny.safetensors'",
    ];
    assert_eq!(
        made_with(&card()),
        [["$ make images"].as_slice(), first.as_slice(), second.as_slice()].concat()
    );
    // A run of before: nothing is made up.
    fs::remove_file(dir.path().join("b/commands.txt")).unwrap();
    daps(&["train", "export", "b", "--out", "my prior/tiny.safetensors"]);
    assert_eq!(made_with(&card())[1..], ["# how this training began was not recorded", second[1]]);
}

/// Pictures of other sizes and colours, a large batch, and nothing to judge by: a note each, in the card too where it is of the data.
#[test]
fn data_are_adapted_with_a_note_each() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("pictures");
    fs::create_dir(&folder).unwrap();
    for i in 0..6u32 {
        let shade = |x: u32, y: u32| (40 * i + 7 * x + 3 * y) as u8;
        let (w, h) = [(8, 8), (16, 16), (12, 8), (6, 6)][i as usize % 4];
        let path = folder.join(format!("{i}.png"));
        match i {
            0 => image::GrayImage::from_fn(w, h, |x, y| image::Luma([shade(x, y)])).save(path).unwrap(),
            1 => image::RgbaImage::from_fn(w, h, |x, y| image::Rgba([shade(x, y), 9, 9, 99]))
                .save(path)
                .unwrap(),
            _ => image::RgbImage::from_fn(w, h, |x, y| image::Rgb([shade(x, y), 9, 9])).save(path).unwrap(),
        }
    }
    let colour = CONFIG
        .replace("source = \"images\"", "source = \"pictures\"")
        .replace("channels = 1\n", "channels = 3\n")
        .replace("held_out = 3", "held_out = 2");
    let train = |config: &str, out: &str| {
        let (config, out) = (setting(dir.path(), config), dir.path().join(out));
        let done = daps(&["--config", &config, "--out", out.to_str().unwrap(), "--until", "16"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    let said = train(&colour, "run");
    let of_data = [
        "4 of 6 images are not 8x8 (4 sizes from 6x6 to 16x16): 2 shrunk, 1 enlarged, 1 cropped to the middle",
        "1 of 6 images are smaller than 8x8",
        "1 of 6 images are grey",
        "1 of 6 images are transparent in places",
    ];
    for note in of_data.iter().chain(&["a batch of 8 images is larger than the 4 images to train on"]) {
        assert!(said.contains(&format!("note: {note}")), "{note} in {said}");
    }
    let prior = dir.path().join("prior/tiny.safetensors");
    let exported =
        daps(&["export", dir.path().join("run").to_str().unwrap(), "--out", prior.to_str().unwrap()]);
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let card = fs::read_to_string(dir.path().join("prior/README.md")).unwrap();
    for note in of_data {
        assert!(card.contains(&format!("- **Adapted**: {note}")), "{note} in {card}");
    }
    let said = train(&CONFIG.replace("held_out = 3", "held_out = 0"), "none");
    assert!(
        said.contains("note: data.held_out = 0: `daps train export` needs at least 2 held-out"),
        "{said}"
    );
}

#[test]
fn every_key_of_a_training_file_is_explained() {
    let explained = common::daps(&["explain", "train"]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/train.toml");
    assert_eq!(text(&explained.stdout), fs::read_to_string(file).unwrap());
}

#[test]
fn a_killed_training_resumes_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let config = setting(dir.path(), CONFIG);
    let whole = dir.path().join("whole");
    let done = daps(&["--config", &config, "--out", whole.to_str().unwrap(), "--json"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((summary["images"].as_u64(), summary["finished"].as_bool()), (Some(2400), Some(true)));
    for name in ["config.toml", "loss.csv", "loss.svg", "samples.png", "validation.csv"] {
        assert!(whole.join(name).is_file(), "{name}");
    }
    let out = dir.path().join("killed");
    let out_text = out.to_str().unwrap();
    let (mut kills, mut resume) = (0, false);
    for wait in [5, 40, 90] {
        let mut args = vec!["train", "--config", &config, "--out", out_text];
        if resume {
            args.push("--resume");
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_daps"))
            .args(args)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // At some moment after the first or the next checkpoint: `kill` is SIGKILL.
        let before = fs::metadata(out.join("checkpoint.safetensors")).and_then(|m| m.modified()).ok();
        let start = Instant::now();
        while fs::metadata(out.join("checkpoint.safetensors")).and_then(|m| m.modified()).ok() == before
            && start.elapsed() < Duration::from_secs(60)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        kills += usize::from(!child.wait().unwrap().success());
        resume = true;
    }
    assert!(kills > 0, "no training was killed before its end");
    let done = daps(&["--config", &config, "--out", out_text, "--resume"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(checksum(&out), checksum(&whole), "after {kills} kills");
    assert_eq!(fs::read(out.join("loss.csv")).unwrap(), fs::read(whole.join("loss.csv")).unwrap());

    // The result is a prior, with a card beside it.
    let prior = dir.path().join("prior/tiny.safetensors");
    let exported = daps(&["export", out_text, "--out", prior.to_str().unwrap()]);
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let card = fs::read_to_string(dir.path().join("prior/README.md")).unwrap();
    let measured = "(measured on the training images)";
    for part in
        ["# tiny", "2400, in batches of 8", measured, "| 0.05 | ", "| 5 | ", "![samples](samples.png)"]
    {
        assert!(card.contains(part), "{part} in {card}");
    }
    assert!(dir.path().join("prior/samples.png").is_file());
    fs::write(dir.path().join("README.md"), "my own file").unwrap();
    let beside = dir.path().join("tiny.safetensors");
    let refused = daps(&["export", out_text, "--out", beside.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("is not a model card that may be replaced"));
    assert!(!beside.exists());
}

#[test]
fn a_classifier_goes_the_same_way_and_its_card_says_how_often_it_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let network = CONFIG.find("[network]").unwrap();
    let classes = "[classes]\nlabels = \"labels\"\ntest = { images = \"images\", labels = \"labels\" }\n";
    let conv_net = "[network]\nkind = \"conv-net\"\nimage_size = 8\nchannels = 1\nnum_classes = 4\n\
                    model_channels = 8\nchannel_mult = [1, 2]\nnum_convs = 1\nnorm_groups = 4\n";
    let config = setting(dir.path(), &format!("{}{classes}{conv_net}", &CONFIG[..network]));
    let labels: Vec<u8> = [0, 0, 8, 1, 0, 0, 0, 40].into_iter().chain((0..40).map(|i| i % 4)).collect();
    fs::write(dir.path().join("labels"), labels).unwrap();
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    let [whole_text, cut_text] = [&whole, &cut].map(|p| p.to_str().unwrap());
    let mut cut_end = None;
    for args in [
        vec!["--out", whole_text, "--until", "96"],
        vec!["--out", cut_text, "--until", "40"],
        vec!["--out", cut_text, "--until", "96", "--resume"],
    ] {
        let done = daps(&[vec!["--config", config.as_str()], args].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        cut_end = Some(done);
    }
    assert_eq!(checksum(&cut), checksum(&whole));
    let validation = fs::read_to_string(whole.join("validation.csv")).unwrap();
    let (head, row) = validation.trim().split_once('\n').unwrap();
    assert_eq!(head, "images,sigma,accuracy");
    let share: f64 = row.strip_prefix("96,,").unwrap().parse().unwrap();
    assert!((0.0..=1.0).contains(&share), "{validation}");
    let out = dir.path().join("judge/tiny.safetensors");
    let exported = daps(&["export", whole_text, "--out", out.to_str().unwrap()]);
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    assert!(text(&exported.stdout).contains("% of held-out images are classified correctly"), "{exported:?}");
    let card = fs::read_to_string(dir.path().join("judge/README.md")).unwrap();
    for part in ["into 4 classes", "of 40 test images", "![examples](examples.png)", "kind = \"conv-net\""] {
        assert!(card.contains(part), "{part} in {card}");
    }
    assert!(dir.path().join("judge/examples.png").is_file());
    // Twelve steps are fewer than a loss is averaged over.
    let loss = loss_after(&card, "- **Loss**: cross-entropy of a class; at the end ");
    assert_eq!(loss, loss_after(&text(&cut_end.unwrap().stdout), ", loss "));
    assert!(loss.1 == "96", "{card}");
}

/// An export that is stopped at its first step, or may not even begin to measure.
struct Measuring {
    allowed: bool,
}

impl Progress for Measuring {
    fn begin(&mut self, what: &str, _: usize) {
        assert!(self.allowed, "{what} in vain");
    }

    fn step(&mut self, _: &str) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn within(&mut self, _: &str) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn end(&mut self) {}
}

#[test]
fn an_export_finds_out_first_what_is_in_its_way_and_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (config, run) = (setting(dir.path(), CONFIG), path("run"));
    let trained = daps(&["--config", &config, "--out", run.to_str().unwrap(), "--until", "16"]);
    assert!(trained.status.success(), "{}", text(&trained.stderr));
    fs::write(path("file"), "mine").unwrap();
    fs::create_dir(path("folder")).unwrap();
    fs::create_dir(path("own")).unwrap();
    fs::write(path("own/samples.png"), "mine").unwrap();
    fs::create_dir(path("download")).unwrap();
    fs::write(path("download/tiny.safetensors"), "mine").unwrap();
    for (out, says) in [
        ("file/tiny.safetensors", "cannot make the directory"),
        ("folder", "is a directory; name the file to write"),
        ("download/tiny.safetensors", "exists, without the model card of an export beside it"),
        ("own/tiny.safetensors", "samples.png: is not the picture of a model card that may be replaced"),
    ] {
        let refused = daps::train::export(&run, &path(out), None, &mut Measuring { allowed: false });
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains(says) && !refused.is_cancelled(), "{out}: {refused}");
    }
    for file in ["own/samples.png", "download/tiny.safetensors"] {
        assert_eq!(fs::read_to_string(path(file)).unwrap(), "mine");
    }
    assert_eq!(fs::read_dir(path("own")).unwrap().count(), 1);
    let out = path("prior/tiny.safetensors");
    let stopped = daps::train::export(&run, &out, None, &mut Measuring { allowed: true }).unwrap_err();
    assert!(stopped.is_cancelled() && !out.exists(), "{stopped}");
    // The card, the picture that it shows and the weights are the export's own: they are replaced.
    for _ in 0..2 {
        daps::train::export(&run, &out, None, &mut ()).unwrap();
    }
    assert_eq!(fs::read_dir(path("prior")).unwrap().count(), 3);
}

/// The card says so when the weights that a run began with may have been trained on images that it holds out.
#[test]
fn a_card_tells_of_weights_that_have_seen_other_images() {
    let dir = tempfile::tempdir().unwrap();
    let same = format!("{CONFIG}[loss]\nsigma_data = 0.5\n");
    let other = same.replace("held_out = 3", "held_out = 4");
    let prior = dir.path().join("prior/tiny.safetensors");
    let prior = prior.to_str().unwrap();
    let card = |config: &str, run: &str, more: &[&str]| {
        let (config, out) = (setting(dir.path(), config), dir.path().join(run));
        let out = out.to_str().unwrap();
        let trained = daps(&[&["--config", config.as_str(), "--out", out], more].concat());
        assert!(trained.status.success(), "{}", text(&trained.stderr));
        let exported = daps(&["export", out, "--out", prior]);
        assert!(exported.status.success(), "{}", text(&exported.stderr));
        let card = fs::read_to_string(dir.path().join("prior/README.md")).unwrap();
        (card, text(&trained.stderr))
    };
    let (first, said) = card(&same, "first", &["--until", "16"]);
    assert!(!first.contains("**Start**") && !said.contains("note: "), "{first}\n{said}");
    let (second, said) = card(&same, "second", &["--until", "32", "--start", prior]);
    assert!(second.contains("the first 16 in an earlier run") && !second.contains("**Start**"), "{second}");
    assert!(!said.contains("note: "), "{said}");
    let (third, said) = card(&other, "third", &["--until", "48", "--start", prior]);
    let note = "the weights that this run began with have seen other images";
    assert!(third.contains(&format!("- **Start**: {note}")), "{third}");
    assert!(said.contains(&format!("note: {note}")), "{said}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_a_checkpoint_of_the_last_step() {
    let dir = tempfile::tempdir().unwrap();
    let endless = CONFIG.replace("images = 2400", "images = 80000000").replace("0.0005", "60");
    let config = setting(dir.path(), &endless);
    let out = dir.path().join("run");
    let child = Command::new(env!("CARGO_BIN_EXE_daps"))
        .args(["train", "--config", &config, "--out", out.to_str().unwrap(), "--until", "70000000", "--json"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(text(&output.stderr).trim().ends_with(" --until 70000000 --resume"), "{output:?}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let images = summary["images"].as_u64().unwrap();
    assert!(images > 0 && summary["finished"] == false, "{summary}");
    let mark: serde_json::Value = serde_json::from_str(&metadata(&out, "daps.training")).unwrap();
    assert_eq!(mark["step"], images / 8);
}

#[test]
fn refusals_are_one_sentence_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let out_text = out.to_str().unwrap();
    for (from, to, says) in [
        ("batch = 8", "batchs = 8", "train.toml: line 4: unknown field `batchs`"),
        ("batch = 8", "batch = 0", "train.toml: line 4: batch: expected at least 1, got 0"),
        ("flip = true", "flop = true", "train.toml: line 9: unknown field `flop`"),
        ("name = \"tiny\"", "name = \"a/b\"", "train.toml: line 2: name: expected letters"),
        (
            "image_size = 8",
            "image_size = 9",
            "train.toml: line 12: image size: expected a positive multiple of 2",
        ),
        (
            "image_size = 8",
            "image_size = 16",
            "train.toml: line 12: network.image_size: expected a size that the images have",
        ),
        ("channels = 1\n", "channels = 3\n", "holds grey images; the network's have 3 channels"),
        ("source = \"images\"", "source = \"none\"", "none: no such file or folder"),
        (
            "held_out = 3",
            "held_out = 40",
            "train.toml: line 8: data.held_out: expected at most 20, half of the 40 images, got 40",
        ),
        (
            "held_out = 3",
            "held_out = 21",
            "data.held_out: expected at most 20, half of the 40 images, got 21",
        ),
        ("held_out = 3", "held_out = 41", "has 40 images, fewer than the 41 to be held out"),
        ("kind = \"song\"", "kind = \"unet\"", "unknown variant `unet`"),
        (
            "kind = \"song\"",
            "kind = \"song\"\nlabel_dim = 3",
            "a network without classes: training has no labels, got one with 3",
        ),
    ] {
        assert!(CONFIG.contains(from), "{from}");
        let config = setting(dir.path(), &CONFIG.replace(from, to));
        let output = daps(&["--config", &config, "--out", out_text]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{to}: {error}");
        assert!(error.contains(says), "expected '{says}' in: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{error}");
        assert!(!out.exists(), "{to}: something was left behind");
    }
    let config = setting(dir.path(), CONFIG);
    let refused = daps(&["--config", &config, "--out", out_text, "--resume"]);
    assert!(text(&refused.stderr).contains("holds no training run to resume"), "{refused:?}");
    // Someone's own files are left alone.
    fs::create_dir(&out).unwrap();
    fs::write(out.join("mine.txt"), "keep me").unwrap();
    let refused = daps(&["--config", &config, "--out", out_text, "--resume"]);
    assert!(text(&refused.stderr).contains("holds no training run to resume"), "{refused:?}");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    fs::remove_dir_all(&out).unwrap();
    assert!(daps(&["--config", &config, "--out", out_text, "--until", "16"]).status.success());
    // There is no loss to tell of when nothing is left to do.
    let over = daps(&["--config", &config, "--out", out_text, "--until", "8", "--resume"]);
    assert!(over.status.success() && !text(&over.stdout).contains("NaN"), "{over:?}");
    let again = daps(&["--config", &config, "--out", out_text]);
    assert!(text(&again.stderr).contains("already holds a training run"), "{again:?}");
    let other = setting(dir.path(), &CONFIG.replace("batch = 8", "batch = 9"));
    let refused = daps(&["--config", &other, "--out", out_text, "--resume"]);
    assert!(text(&refused.stderr).contains("batch = 8 became batch = 9"), "{refused:?}");
    let nothing = daps(&["export", dir.path().to_str().unwrap(), "--out", out_text]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(text(&nothing.stderr).contains("holds no training run"), "{nothing:?}");
}
