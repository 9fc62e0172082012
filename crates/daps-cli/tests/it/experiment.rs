//! `daps experiment` and `daps tune` as a user meets them: tables that survive kills to the byte, searches that go on, and a
//! sentence for every file that cannot be used.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use daps::core::candle::{Device, Tensor};
use serde_json::Value;

use crate::common::{daps, text};

const TABLE: &str = r#"
name = "small"
title = "A small table"
hours = 0.01
prior = { kind = "gaussian", std = 0.4 }
shape = [1, 16, 16]
seeds = [0, 7]
samples = 2
batch = 4
pictures = 1
half_turns = true
levels = true
baseline = "daps"
paper = "paper.toml"
tasks = ["inpaint_random", { label = "phase", operator = "phase_retrieval", samples = 3, at = 2.0, options = { oversample = 2.0 } }]
[data]
source = "images.npy"
held_out = 5
skip = 1
images = 3
[[method]]
preset = "fast"
budget = "12"
paper = "DAPS"
at = 12.0
[[method]]
label = "langevin"
schedule = { rule = "poly", levels = 30 }
estimate = { kind = "gaussian", center = { ode = { steps = 3 } }, spread = "sigma" }
kernel = { kind = "langevin", steps = 50, step_size = { rule = "curvature", factor = 0.5 } }
tuned = "nowhere.toml"
[[method]]
name = "wiener"
[[method]]
label = "diverges"
preset = "fast"
budget = "5"
kernel = { kind = "langevin", steps = 40, step_size = { rule = "decay", eta0 = 1e6, delta = 1.0 } }
[[plot]]
title = "Quality over calls"
x = "nfe"
y = ["psnr"]
[[plot]]
title = "Along the levels"
x = "sigma"
y = ["psnr_draw", "psnr_estimate"]
"#;

const PAPER: &str = "[[row]]\ntask = 'phase'\nmethod = 'DAPS'\npsnr = 30.63\n";

/// A directory with a table, its images and the paper's figures.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new(table: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let value = |i: usize| 0.8 * ((i * i % 97) as f32 / 97.0 - 0.5) + 0.3 * (i as f32 / 40.0).sin();
        let images =
            Tensor::from_vec((0..7 * 256).map(value).collect(), (7, 1, 16, 16), &Device::Cpu).unwrap();
        images.write_npy(dir.path().join("images.npy")).unwrap();
        fs::write(dir.path().join("paper.toml"), PAPER).unwrap();
        fs::write(dir.path().join("table.toml"), table).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn run(&self, out: &str) -> (Value, String) {
        let output = daps(&["experiment", &self.text("table.toml"), "--out", &self.text(out), "--json"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{error}");
        (serde_json::from_slice(&output.stdout).unwrap(), error)
    }

    /// Starts the table and kills it without warning once there are so many cells.
    fn kill_at(&self, out: &str, cells: usize) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_daps"))
            .args(["experiment", &self.text("table.toml"), "--out", &self.text(out)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while lines(&self.path(out)).len() < cells && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn lines(out: &Path) -> Vec<String> {
    let text = fs::read_to_string(out.join("cells.jsonl")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Killed three times and resumed: the same tables to the byte, and no finished cell is run again.
#[test]
fn a_killed_table_goes_on_to_the_same_bytes() {
    let scene = Scene::new(TABLE);
    let (whole, notes) = scene.run("whole");
    // Four methods, two tasks, three images, two seeds; Wiener does not fit phase retrieval.
    assert_eq!(whole["cells"], 42);
    assert_eq!((&whole["done"], &whole["ran"]), (&Value::from(42), &Value::from(42)));
    assert_eq!(whole["unfit"].as_array().unwrap().len(), 1);
    assert!(notes.contains("langevin is not tuned, there is no file nowhere.toml"), "{notes}");
    for cells in [1, 13, 25] {
        scene.kill_at("killed", cells);
    }
    // What a kill in the middle of a line leaves.
    let path = scene.path("killed/cells.jsonl");
    let mut torn = fs::read(&path).unwrap();
    torn.extend(b"{\"key\":\"torn");
    fs::write(&path, torn).unwrap();
    let before = lines(&scene.path("killed")).len() - 1;
    assert!((25..42).contains(&before), "{before} cells before the last kill");
    let (rest, _) = scene.run("killed");
    assert_eq!(rest["ran"], 42 - before);
    let keys: HashSet<Value> = lines(&scene.path("killed"))
        .iter()
        .map(|l| serde_json::from_str::<Value>(l).unwrap()["key"].clone())
        .collect();
    assert_eq!((keys.len(), lines(&scene.path("killed")).len()), (42, 42), "a cell ran twice");
    for file in ["results.csv", "results.json", "levels.csv"] {
        let read = |out: &str| fs::read(scene.path(out).join(file)).unwrap();
        assert!(read("whole") == read("killed"), "{file} differs");
    }
    // Nothing is left to do; a grown file runs what is new, and only that.
    assert_eq!(scene.run("killed").0["ran"], 0);
    fs::write(scene.path("table.toml"), TABLE.replace("seeds = [0, 7]", "seeds = [0, 7, 8]")).unwrap();
    assert_eq!(scene.run("killed").0["ran"], 21);
    // Fewer images, or another batch size, run nothing and change nothing of the rest.
    let smaller = TABLE.replace("images = 3", "images = 2").replace("batch = 4", "batch = 1");
    fs::write(scene.path("table.toml"), smaller).unwrap();
    assert_eq!(scene.run("killed").0["ran"], 0);
}

/// In other batches: the same tables to the byte, though conjugate gradients last until the slowest row of a batch has converged.
#[test]
fn a_table_does_not_depend_on_its_batches() {
    let scene = Scene::new(&TABLE.replace("\"inpaint_random\", ", "\"motion_blur\", "));
    let table = fs::read_to_string(scene.path("table.toml")).unwrap();
    scene.run("whole");
    fs::write(scene.path("table.toml"), table.replace("batch = 4", "batch = 1")).unwrap();
    scene.run("parts");
    let read = |out: &str, file: &str| fs::read_to_string(scene.path(out).join(file)).unwrap();
    for file in ["results.csv", "results.json", "levels.csv"] {
        assert!(read("whole", file) == read("parts", file), "{file} differs");
    }
    let calls = |out: &str| -> Vec<String> {
        let text = read(out, "timings.csv");
        text.lines().map(|line| line.rsplit(',').next().unwrap().to_owned()).collect()
    };
    assert_ne!(
        calls("whole"),
        calls("parts"),
        "no cost depends on the batch here, so that nothing was tested"
    );
}

#[test]
fn the_report_says_what_was_found_and_what_was_left_out() {
    let scene = Scene::new(TABLE);
    let (done, _) = scene.run("out");
    assert_eq!(done["failed"], 12);
    let report = fs::read_to_string(scene.path("out/report.md")).unwrap();
    for part in [
        "wiener on phase: it needs a linear operator",
        "diverges on phase: 6 cells have no result (all chains diverged)",
        "No FID",
        "| paper |",
        "30.63",
        "minus daps, paired by image",
        "success per chain, turned",
        "plots/1-psnr.svg",
        "plots/2-phase.svg",
        "plots/all-psnr.svg",
        "pictures/",
        "phase: 2 pictures whose measurements differ by at most",
    ] {
        assert!(report.contains(part), "{part} in {report}");
    }
    let page = fs::read_to_string(scene.path("out/report.html")).unwrap();
    assert!(
        page.contains("<svg") && page.contains("data:image/png;base64,") && !page.contains("src=\"pictures")
    );
    let csv = fs::read_to_string(scene.path("out/results.csv")).unwrap();
    assert_eq!(csv.lines().count(), 43);
    assert!(
        csv.lines().all(|l| l.split(',').count() == csv.lines().next().unwrap().split(',').count()),
        "{csv}"
    );
    assert!(!csv.contains("seconds"));
    // What has no result has no quality, and is no success.
    let heads: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let of = |line: &str, name: &str| {
        let at = heads.iter().position(|head| *head == name).unwrap();
        line.split(',').nth(at).unwrap().to_owned()
    };
    for line in csv.lines().filter(|l| l.starts_with("diverges,phase,")) {
        let found =
            ["psnr", "apart", "success", "success_chains", "success_turned"].map(|name| of(line, name));
        assert_eq!(found, ["", "", "0", "0", "0"], "{line}");
    }
    for line in csv.lines().filter(|l| l.starts_with("langevin,inpaint_random,")) {
        let [ratio, apart, away] =
            ["diversity", "apart", "away"].map(|name| of(line, name).parse::<f64>().unwrap());
        assert!((ratio - apart / away).abs() < 1e-12, "{line}");
    }
    assert_eq!(fs::read_to_string(scene.path("out/timings.csv")).unwrap().lines().count(), 43);
    let along = fs::read_to_string(scene.path("out/levels.csv")).unwrap();
    let of_each = ["psnr", "lpips", "chi2"].map(|name| format!("{name}_estimate,{name}_draw")).join(",");
    assert!(along.starts_with(&format!("method,task,image,seed,sigma,{of_each}\n")), "{along}");
    let of = |line: &&str| line.starts_with("langevin,inpaint_random,00003,7,");
    assert_eq!(along.lines().filter(of).count(), 30, "{along}");
    // Images are numbered in their source: the last five of seven, without the first of them.
    assert!(csv.contains(",00003,") && csv.contains(",00005,") && !csv.contains(",00006,"));
}

/// A cell is what `daps run` gives for the same problem: one engine, whatever the batch.
#[test]
fn a_cell_does_not_depend_on_its_neighbours() {
    let psnr = |table: &str| {
        let scene = Scene::new(table);
        scene.run("out");
        let find = |l: &String| {
            let cell: Value = serde_json::from_str(l).unwrap();
            (cell["method"] == "langevin"
                && cell["image"] == "00004"
                && cell["seed"] == 7
                && cell["task"] == "phase")
                .then(|| cell["chains"].clone())
        };
        lines(&scene.path("out")).iter().find_map(find).unwrap()
    };
    let alone = TABLE.replace("skip = 1\nimages = 3", "skip = 2\nimages = 1").replace("[0, 7]", "[7]");
    assert_eq!(psnr(TABLE), psnr(&alone));
}

/// Cells are known by what they are: other labels, another file and another directory run nothing again.
#[test]
fn cells_serve_under_any_label_and_in_other_tables() {
    let scene = Scene::new(TABLE);
    scene.run("first");
    let csv = |out: &str| fs::read_to_string(scene.path(out).join("results.csv")).unwrap();
    let first = csv("first");
    let renamed = TABLE
        .replace("label = \"langevin\"", "label = \"slow\"")
        .replace("label = \"phase\"", "label = \"magnitudes\"");
    // A method that stands there twice has rows under both names.
    let twice = renamed.clone() + "[[method]]\nname = 'wiener'\nlabel = 'wiener, again'\n";
    fs::write(scene.path("table.toml"), &twice).unwrap();
    assert_eq!(scene.run("first").0["ran"], 0);
    let expected = first.replace("langevin,", "slow,").replace(",phase,", ",magnitudes,");
    let shown: String =
        csv("first").lines().filter(|l| !l.contains("again")).map(|l| l.to_owned() + "\n").collect();
    assert_eq!(shown, expected);
    assert_eq!(csv("first").matches("wiener, again").count(), 6);
    // Another directory: everything is taken over, with its pictures; those that are lost are drawn again.
    fs::write(scene.path("table.toml"), renamed.replace("pictures = 1", "pictures = 0")).unwrap();
    let (table, out, reuse) = (scene.text("table.toml"), scene.text("second"), scene.text("first"));
    let output = daps(&["experiment", &table, "--out", &out, "--reuse", &reuse, "--json"]);
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&done["ran"], &done["done"]), (&Value::from(0), &Value::from(42)));
    assert_eq!(csv("second"), expected);
    fs::write(scene.path("table.toml"), &renamed).unwrap();
    assert_eq!(scene.run("second").0["ran"], 0);
    fs::remove_dir_all(scene.path("second/pictures")).unwrap();
    // The first image of three methods and two seeds, but for Wiener in phase retrieval and what diverged there and here.
    assert_eq!(scene.run("second").0["ran"], 10);
    assert_eq!(csv("second"), expected);
    let output = daps(&["experiment", &table, "--out", &out, "--reuse", &scene.text("nothing")]);
    assert!(text(&output.stderr).contains("cannot read"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(2));
}

/// LPIPS weights of the real names and kernel sizes, with two channels everywhere.
fn write_small_lpips(cache: &Path) {
    let tensor = |count: usize, shape: &[usize]| {
        let values = (0..count).map(|i| 0.3 * (i as f32 * 1.7).sin() + 0.1).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    };
    let mut weights = std::collections::HashMap::new();
    for k in 0..13 {
        let inputs = if k == 0 { 3 } else { 2 };
        weights.insert(format!("conv.{k}.weight"), tensor(2 * inputs * 9, &[2, inputs, 3, 3]));
        weights.insert(format!("conv.{k}.bias"), tensor(2, &[2]));
    }
    for k in 0..5 {
        weights.insert(format!("head.{k}.weight"), Tensor::from_vec(vec![1f32; 2], 2, &Device::Cpu).unwrap());
    }
    daps::core::candle::safetensors::save(&weights, cache.join("lpips-vgg16.safetensors")).unwrap();
}

/// Weights that appear after a table is finished: the cells run again, say why, and keep the seconds that they had.
#[test]
fn weights_that_appear_later_are_told_of_and_change_no_timing() {
    // Without `hours`, which is a note for people.
    let table = "name = 'late'\ntitle = 'late'\nprior = { kind = 'gaussian', std = 0.4 }\nshape = [3, 16, 16]\n\
                 tasks = ['inpaint_random']\n[data]\nsource = 'colours.npy'\nimages = 3\n\
                 [[method]]\nname = 'wiener'\n[[method]]\nname = 'tv'\n";
    let scene = Scene::new(table);
    let values = (0..3 * 768).map(|i| 0.5 * (i as f32 * 0.7).sin()).collect();
    let colours = Tensor::from_vec(values, (3, 3, 16, 16), &Device::Cpu).unwrap();
    colours.write_npy(scene.path("colours.npy")).unwrap();
    let cache = scene.path("cache");
    fs::create_dir(&cache).unwrap();
    let run = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_daps"))
            .args(["experiment", &scene.text("table.toml"), "--out", &scene.text("out")])
            .args(more)
            .env("DAPS_CACHE", &cache)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let read = |file: &str| fs::read_to_string(scene.path("out").join(file)).unwrap();
    let (said, told) = run(&[]);
    assert!(said.contains("6 of 6 cells done (6 in this run)"), "{said}");
    assert!(!told.contains("again"), "{told}");
    let (timings, report) = (read("timings.csv"), read("report.html"));
    assert!(report.contains("<code>daps weights get lpips</code>"), "the page shows commands as code");
    assert!(!report.contains('`'), "the page has raw backticks");
    write_small_lpips(&cache);
    let why = "LPIPS weights are here now: 6 cells run again for LPIPS";
    let (said, told) = run(&["--dry-run"]);
    assert!(said.contains("6 cells, 6 to run") && told.contains(why), "{said}{told}");
    let (said, told) = run(&[]);
    assert!(said.contains("6 of 6 cells done (6 in this run)"), "{said}");
    assert_eq!(told.matches("again").count(), 1, "{told}");
    assert!(told.contains(why), "{told}");
    assert_eq!(read("timings.csv"), timings, "the first timing is kept");
    let csv = read("results.csv");
    let at = csv.lines().next().unwrap().split(',').position(|head| head == "lpips").unwrap();
    let lpips: Vec<&str> = csv.lines().skip(1).map(|line| line.split(',').nth(at).unwrap()).collect();
    assert!(lpips.iter().all(|value| value.parse::<f64>().is_ok_and(|v| v > 0.0)), "{lpips:?}");
    let (said, told) = run(&[]);
    assert!(said.contains("6 of 6 cells done (0 in this run)") && !told.contains("again"), "{said}{told}");
}

#[test]
fn a_dry_run_counts_and_writes_nothing() {
    let scene = Scene::new(TABLE);
    let out = scene.text("out");
    let output = daps(&["experiment", &scene.text("table.toml"), "--out", &out, "--dry-run"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(said.contains("42 cells, 42 to run, about"), "{said}");
    assert!(said.contains("left out: wiener on phase"), "{said}");
    assert!(!Path::new(&out).exists());
}

#[test]
fn files_that_cannot_be_used_get_one_sentence() {
    let cases = [
        (TABLE.replace("seeds", "seds"), "unknown field `seds`"),
        (TABLE.replace("seeds", "seds"), "did you mean 'seeds'?"),
        (TABLE.replace("at = 2.0, options", "option"), "did you mean 'options'?"),
        (
            TABLE.replace("at = 2.0, options", "noise = -1.0, options"),
            "tasks: phase: task.noise: expected a number from 1e-5",
        ),
        (TABLE.replace("\"wiener\"", "\"wienner\""), "unknown method 'wienner'"),
        (TABLE.replace("\"inpaint_random\"", "\"inpaint_radnom\""), "unknown operator 'inpaint_radnom'"),
        (
            TABLE.replace("images.npy", "nothing.npy"),
            "no such file or folder; give its path, or name another source with --data",
        ),
        (
            TABLE.replace("images = 3", "images = 5"),
            "has 5 images to choose from; 5 were asked for after the first 1",
        ),
        (TABLE.replace("y = [\"psnr\"]", "y = [\"psrn\"]"), "unknown column of a plot 'psrn'"),
        (
            TABLE.replace("baseline = \"daps\"", "baseline = \"dpas\""),
            "unknown baseline 'dpas'; known: daps, langevin, ",
        ),
        (TABLE.replace("\"langevin\"\nschedule", "\"daps\"\nschedule"), "two are called 'daps'"),
        (TABLE.replace("{ kind = \"gaussian\", std = 0.4 }", "\"facse\""), "unknown prior 'facse'"),
        (TABLE.replace("levels = true", "levels = false"), "sigma needs levels = true"),
    ];
    for (table, says) in cases {
        let scene = Scene::new(&table);
        let out = scene.text("out");
        let output = daps(&["experiment", &scene.text("table.toml"), "--out", &out]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{says}: {error}");
        let sentences: Vec<&str> = error.lines().filter(|l| !l.starts_with("note: ")).collect();
        assert!(sentences.len() == 1 && sentences[0].contains(says), "expected '{says}' in: {error}");
        assert!(!Path::new(&out).exists(), "{says}: something was left behind");
    }
}

/// The search goes on after a kill, finds no less than the defaults, and its settings are what an experiment takes.
#[test]
fn a_search_goes_on_and_its_settings_are_used() {
    let scene = Scene::new(TABLE);
    fs::write(scene.path("prior.toml"), "[prior]\nkind = 'gaussian'\nstd = 0.4\n").unwrap();
    let (prior, data, out) = (scene.text("prior.toml"), scene.text("images.npy"), scene.text("tuned"));
    let command = |extra: &[&str]| {
        let fixed = [
            "tune",
            "wiener",
            "--task",
            "inpaint-random",
            "--task",
            "hdr",
            "--trials",
            "6",
            "--prior",
            &prior,
        ];
        let rest = ["--shape", "1,16,16", "--data", &data, "--images", "4", "--json"];
        let output = daps(&[&fixed[..], &rest, extra].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let found = command(&["--out", &out]);
    assert!(found[0]["score"].as_f64() >= found[0]["default_score"].as_f64(), "{found}");
    assert!(found[1]["refusal"].as_str().unwrap().contains("wiener needs a linear operator"), "{found}");
    assert_eq!(lines(&scene.path("tuned")).len(), 24);
    // Cells that a kill lost are run again, the others are not, and the outcome is the same.
    let kept = lines(&scene.path("tuned"))[..9].join("\n") + "\n";
    fs::write(scene.path("tuned/cells.jsonl"), &kept).unwrap();
    assert_eq!(command(&["--out", &out]), found);
    let again = lines(&scene.path("tuned"));
    assert!(again.len() == 24 && again.join("\n").starts_with(kept.trim_end()));
    // Halving asks the better half only: 6 trials on one image, 3 on two, 2 on four.
    let halving = command(&["--out", &scene.text("halving"), "--halving"]);
    assert_eq!(lines(&scene.path("halving")).len(), 6 + 3 + 2 * 2);
    assert!(halving[0]["score"].as_f64().is_some());
    // What is set is not searched, and a search of some tasks leaves the settings of others.
    let fixed = [
        "tune",
        "wiener",
        "--task",
        "gaussian_blur",
        "--prior",
        &prior,
        "--shape",
        "1,16,16",
        "--data",
        &data,
    ];
    let sets = ["--set", "std=0.3", "--out", &out, "--json"];
    let found: Value = serde_json::from_slice(&daps(&[&fixed[..], &sets].concat()).stdout).unwrap();
    assert_eq!((&found[0]["trial"], found[0]["parameters"].as_object().unwrap().len()), (&Value::from(0), 0));
    let settings = fs::read_to_string(scene.path("tuned/wiener.toml")).unwrap();
    assert!(settings.contains("[tasks.gaussian_blur]") && settings.contains("std = 0.3"), "{settings}");
    assert!(settings.contains("[tasks.inpaint_random]") && settings.contains("std = "), "{settings}");
    for (task, trials) in [("inpaint_random", 6), ("gaussian_blur", 1)] {
        let how = format!(
            "{task} = \"the best of {trials} trials by PSNR on 4 images with 1 chain each, seed 0, all trials on all images; \
             prior: gaussian\""
        );
        assert!(settings.contains(&how), "{how} in {settings}");
    }
    let trials = fs::read_to_string(scene.path("tuned/trials.csv")).unwrap();
    for part in [
        "task,trial,parameters,images,metric,score\n",
        "\ninpaint_random,5,std=",
        "\ngaussian_blur,0,defaults,4,PSNR,",
    ] {
        assert!(trials.contains(part), "{part} in {trials}");
    }
    // Where nothing fits there is nothing to write.
    let nothing =
        ["tune", "wiener", "--task", "hdr", "--prior", &prior, "--shape", "1,16,16", "--data", &data];
    let output = daps(&[&nothing[..], &["--out", &scene.text("nothing")]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("nothing to tune: wiener needs"), "{}", text(&output.stderr));
    assert!(!scene.path("nothing").exists());
    let table = TABLE.replace("name = \"wiener\"", "name = \"wiener\"\ntuned = \"tuned/wiener.toml\"");
    fs::write(scene.path("table.toml"), table).unwrap();
    assert!(!scene.run("out").1.contains("wiener is not tuned"));
    let missing =
        fs::read_to_string(scene.path("table.toml")).unwrap().replace("inpaint_random", "motion_blur");
    fs::write(scene.path("table.toml"), missing).unwrap();
    assert!(scene.run("other").1.contains("wiener is not tuned for motion_blur"));
    let truth = Tensor::zeros((1, 16, 16), daps::core::candle::DType::F32, &Device::Cpu).unwrap();
    truth.write_npy(scene.path("truth.npy")).unwrap();
    let (preset, truth, out) =
        (scene.text("tuned/wiener.toml"), scene.text("truth.npy"), scene.text("solved"));
    let solve = |task: &str| {
        let fixed = ["solve", "--task", task, "--image", &truth, "--prior", &prior, "--shape", "1,16,16"];
        daps(&[&fixed[..], &["--preset", &preset, "--out", &out]].concat())
    };
    assert_eq!(solve("hdr").status.code(), Some(2));
    let both = daps(&[
        "solve",
        "--task",
        "inpaint_random",
        "--image",
        &truth,
        "--preset",
        &preset,
        "--method",
        "tv",
    ]);
    assert!(text(&both.stderr).contains("leave out --method"), "{}", text(&both.stderr));
    let output = solve("inpaint_random");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(fs::read_to_string(scene.path("solved/config.toml")).unwrap().contains("name = \"wiener\""));
}

/// The paper's preset is searched for its belief and its step; ours draws exactly and has no step.
#[test]
fn a_search_of_daps_knows_what_its_preset_has() {
    let scene = Scene::new(TABLE);
    fs::write(scene.path("prior.toml"), "[prior]\nkind = 'gaussian'\nstd = 0.4\n").unwrap();
    let (prior, data) = (scene.text("prior.toml"), scene.text("images.npy"));
    let search = |preset: &str| {
        let fixed = ["tune", "daps", "--task", "inpaint_random", "--trials", "3", "--prior", &prior];
        let rest = ["--shape", "1,16,16", "--data", &data, "--images", "2", "--set", "budget=50"];
        let set = format!("preset={preset}");
        let output = daps(&[&fixed[..], &rest, &["--set", &set, "--out", &scene.text(preset)]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let trials = fs::read_to_string(scene.path(preset).join("trials.csv")).unwrap();
        let line = trials.lines().find(|l| l.starts_with("inpaint_random,2,")).expect(preset).to_owned();
        line.split(',')
            .nth(2)
            .unwrap()
            .split(' ')
            .map(|p| p.split('=').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(search("paper"), ["beta", "kernel.step_size.eta0"]);
    assert_eq!(search("fast"), ["beta"]);
}
