//! The command as a user meets it: outputs, exit codes, refusals that leave nothing behind, and resumption after a kill.

use std::fs;
use std::path::Path;
use std::time::Duration;

use daps::core::candle::{Device, Tensor};

use crate::common::{daps, killed, text};

/// Exit code 2, one sentence on standard error, nothing on standard output.
fn refused(args: &[&str], says: &str) {
    let output = daps(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(error.contains(says), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
}

const RUN: &str = r#"
samples = 6
batch = 4
[task]
operator = "inpaint_random"
shape = [1, 8, 8]
measurements = 2
[prior]
kind = "gaussian"
std = 0.5
[method]
schedule = { rule = "poly", levels = 40 }
estimate = { kind = "gaussian", center = { ode = { steps = 3 } }, spread = "sigma" }
kernel = { kind = "langevin", steps = 200, step_size = { rule = "curvature", factor = 0.5 } }
"#;

fn config(directory: &Path, text: &str) -> String {
    let path = directory.join("run.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn lists_and_explains_what_the_registries_hold() {
    for what in ["tasks", "operators", "kernels", "methods", "priors", "presets", "budgets", "gmm"] {
        let output = daps(&["list", what]);
        assert!(output.status.success());
        let names: Vec<String> = text(&output.stdout)
            .lines()
            .skip(2)
            .map(|l| l.split_whitespace().next().unwrap().to_owned())
            .collect();
        assert!(!names.is_empty(), "{what}");
        for name in names {
            let explained = daps(&["explain", &name]);
            assert!(explained.status.success(), "{name}");
            let explained = text(&explained.stdout);
            assert!(explained.starts_with(&name), "{name}");
            assert!(what != "operators" || explained.contains("settings"), "{name}: {explained}");
        }
    }
    for (name, part) in [
        ("gaussian_blur", "size = 61"),
        ("mri", "coils = 4"),
        ("blur", "kernel = \"FILE\""),
        ("blur", "border = \"reflect\""),
        ("toy2d", "no settings"),
        ("mri", "maps = FILE: an array [coils, 2, height, width]"),
        ("mri", "from the seed: its coil maps and mask"),
        ("dense", "matrix = FILE: an array [outputs, inputs]"),
        ("gaussian", "std = 0.5"),
        ("network", "config = \"ffhq256\""),
        ("1k", "5 ODE steps x 200 levels"),
        ("daps-stable", "(method of the mixture test bed)"),
        ("gaussian_blur", "langevin of the preset paper (tuned by its authors)"),
        ("mri", "langevin of the preset paper (those of motion_blur)"),
        ("dense", "(its steps follow from the operator's curvature)"),
        ("paper", "any other operator gets steps from its curvature"),
        ("best", "dynamics (kernel underdamped), with steps from the curvature, elsewhere"),
    ] {
        let explained = text(&daps(&["explain", name]).stdout);
        assert!(explained.contains(part), "{name}: {explained}");
    }
    // What does not fit is named, and each reason is said once.
    let explained = text(&daps(&["explain", "tv"]).stdout);
    let reasons: Vec<&str> = explained.lines().filter(|l| l.contains("does not fit")).collect();
    assert!(reasons.iter().enumerate().all(|(i, line)| !reasons[..i].contains(line)), "{explained}");
    assert!(reasons[0].contains("tv needs") && explained.contains("phase_retrieval"), "{explained}");
    assert!(!reasons.iter().any(|line| line.contains("dense")), "{explained}");
    let methods = text(&daps(&["list", "methods"]).stdout);
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let head = columns(methods.lines().find(|l| l.contains("dense")).unwrap());
    let row = columns(methods.lines().find(|l| l.trim_start().starts_with("tv ")).unwrap());
    let dense = head.iter().position(|h| h == "dense").unwrap();
    assert_eq!(row[dense], "yes", "{methods}");
    refused(&["explain", "underdampd"], "did you mean 'underdamped'?");
    refused(&["explain", "nonsense"], "unknown name 'nonsense'; see: daps list tasks|operators|");
}

#[test]
fn a_run_writes_its_directory_and_never_overwrites_one() {
    let dir = tempfile::tempdir().unwrap();
    let (config, out) = (config(dir.path(), RUN), dir.path().join("out"));
    let out_text = out.to_str().unwrap();
    let output = daps(&["run", &config, "--out", out_text, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary = text(&output.stdout);
    for key in ["\"samples\":12", "\"diverged\":0", "\"residual_chi2\"", "\"rmse\"", "\"mean_error\""] {
        assert!(summary.contains(key), "{key} in {summary}");
    }
    let mut names: Vec<String> =
        fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected = [
        "config.toml",
        "draw-000",
        "draw-001",
        "measurement.safetensors",
        "metrics.json",
        "report.html",
        "samples.safetensors",
        "trace.jsonl",
    ];
    assert_eq!(names, expected);
    for name in [
        "best.png",
        "mean.png",
        "measurement.png",
        "samples.png",
        "samples/05.png",
        "std.png",
        "trace.png",
        "truth.png",
    ] {
        assert!(out.join("draw-001").join(name).is_file(), "{name}");
    }
    assert_eq!(fs::read_to_string(out.join("trace.jsonl")).unwrap().lines().count(), 3 * 40);
    refused(&["run", &config, "--out", out_text], "already exists and is not empty");

    // Resumed, it is read back and not run again.
    fs::write(out.join("samples.safetensors"), "as it was").unwrap();
    let output = daps(&["run", &config, "--out", out_text, "--resume", "--json"]);
    assert!(output.status.success() && text(&output.stderr).contains("already finished"), "{output:?}");
    assert_eq!(text(&output.stdout), summary);
    assert_eq!(fs::read_to_string(out.join("samples.safetensors")).unwrap(), "as it was");
}

/// What the system says stands once in the sentence.
#[test]
fn system_errors_are_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let exactly = |args: &[&str], says: String| {
        let output = daps(args);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), says), "{args:?}");
    };
    let (config, missing) = (config(dir.path(), RUN), dir.path().join("none.toml"));
    let below = Path::new(&config).join("below");
    let (missing, below) = (missing.to_str().unwrap(), below.to_str().unwrap());
    let said = fs::read(missing).unwrap_err();
    exactly(&["run", missing, "--out", below], format!("error: {missing}: cannot read: {said}\n"));
    let said = fs::create_dir_all(below).unwrap_err();
    exactly(
        &["run", &config, "--out", below],
        format!("error: {below}: cannot make the directory: {said}\n"),
    );
}

/// What cannot be written is no success, and what nobody can read is no failure.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_for_results_alone() {
    use std::process::{Command, Stdio};
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let daps = || Command::new(env!("CARGO_BIN_EXE_daps"));
    let output = daps().args(["list", "operators"]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot write the result"), "{output:?}");
    let output = daps().args(["explain", "nonsense"]).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = daps().env("DAPS_SIMD", "sse").args(["list", "operators"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.starts_with("error: DAPS_SIMD: expected one of scalar") && error.lines().count() == 1,
        "{error}"
    );
}

/// Files start at the configuration that names them, wherever the command is called; what a run wrote down can be run again.
#[test]
fn a_run_is_repeated_from_what_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let array = |shape: &[usize]| {
        let n = shape.iter().product::<usize>();
        Tensor::from_vec((0..n).map(|i| (i % 3 % 2) as f64).collect(), shape, &Device::Cpu).unwrap()
    };
    array(&[1, 8, 8]).write_npy(dir.path().join("truth.npy")).unwrap();
    array(&[1, 1, 8, 8]).write_npy(dir.path().join("mask.npy")).unwrap();
    let run = RUN
        .replace(
            "\"inpaint_random\"",
            "\"inpaint\"\ntruth = \"truth.npy\"\noptions = { mask = \"mask.npy\" }",
        )
        .replace("measurements = 2\n", "");
    let (config, first, second) =
        (config(dir.path(), &run), dir.path().join("first"), dir.path().join("second"));
    let go = |config: &str, out: &Path| {
        let output = daps(&["run", config, "--out", out.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        fs::read(out.join("samples.safetensors")).unwrap()
    };
    let samples = go(&config, &first);
    assert_eq!(go(first.join("config.toml").to_str().unwrap(), &second), samples);
}

/// Killed without warning at several moments and resumed: the files are the same to the byte.
#[test]
fn a_killed_run_resumes_to_the_same_bytes() {
    killed_and_resumed(RUN);
}

/// The same with a method that carries more than x_t along: Adam's moments.
#[test]
fn a_killed_run_resumes_with_the_methods_memory() {
    let (task, _) = RUN.split_once("[method]").unwrap();
    let schedule = "schedule = { rule = \"ddpm\", levels = 1000 }";
    killed_and_resumed(&format!("{task}[method]\nname = \"red_diff\"\n{schedule}\n"));
}

fn killed_and_resumed(run: &str) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), run);
    let read = |out: &Path| {
        ["samples.safetensors", "trace.jsonl", "metrics.json", "report.html", "draw-001/trace.png"]
            .map(|name| fs::read(out.join(name)).unwrap())
    };
    let whole = dir.path().join("whole");
    assert!(daps(&["run", &config, "--out", whole.to_str().unwrap()]).status.success());
    // One that was killed before anything else is left with this.
    let early = dir.path().join("early");
    fs::create_dir(&early).unwrap();
    fs::write(early.join("config.toml.tmp"), "samp").unwrap();
    assert!(daps(&["run", &config, "--out", early.to_str().unwrap(), "--resume"]).status.success());
    assert_eq!(read(&early), read(&whole));
    let mut interrupted = 0;
    for milliseconds in [0, 40, 120, 300] {
        let out = dir.path().join(format!("killed-{milliseconds}"));
        let out_text = out.to_str().unwrap();
        let args = ["run", &config, "--out", out_text, "--checkpoint-every", "0"];
        interrupted += usize::from(killed(&args, &out, Duration::from_millis(milliseconds)));
        let output = daps(&["run", &config, "--out", out_text, "--resume"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(read(&out), read(&whole), "killed after {milliseconds} ms");
        let leftovers = fs::read_dir(&out).unwrap().filter(|e| {
            let name = e.as_ref().unwrap().file_name().into_string().unwrap();
            name.starts_with("checkpoint") || name.ends_with(".tmp")
        });
        assert_eq!(leftovers.count(), 0);
    }
    assert!(interrupted > 0, "no run was killed between its first checkpoint and its end");
    let other = run.replace("samples = 6", "samples = 5");
    let other = other_config(dir.path(), &other);
    refused(&["run", &other, "--out", whole.to_str().unwrap(), "--resume"], "another configuration");
}

fn other_config(directory: &Path, text: &str) -> String {
    let path = directory.join("other.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn refusals_are_one_sentence_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let out_text = out.to_str().unwrap();
    let cases = [
        (RUN.replace("inpaint_random", "inpaint_randm"), "unknown operator 'inpaint_randm'"),
        (RUN.replace("\"gaussian\"\nstd", "\"gausian\"\nstd"), "unknown prior 'gausian'"),
        (RUN.replace("[method]", "[method]\nname = \"dap\""), "unknown method 'dap'"),
        (RUN.replace("levels = 40", "levels = 0"), "schedule.levels: expected at least 1, got 0"),
        (
            RUN.replace("rule = \"poly\", levels = 40", "rule = \"levels\", sigmas = [1.0, 0.5]"),
            "expected a last level of 0, got 0.5",
        ),
        (
            RUN.replace("rule = \"poly\", levels = 40", "rule = \"levels\", sigmas = [1.0, -0.5, 0.0]"),
            "expected positive finite levels before the final 0, got -0.5",
        ),
        (
            RUN.replace("rule = \"poly\", levels = 40", "rule = \"levels\", sigmas = [inf, 0.0]"),
            "expected positive finite levels before the final 0, got inf",
        ),
        (
            RUN.replace("[prior]", "noise = -0.1\n[prior]"),
            "task.noise: expected a number from 1e-5 to 100.0, got -0.1",
        ),
        (RUN.replace("[1, 8, 8]", "[8, 8]"), "inpaint_random"),
        (RUN.replace("measurements = 2", "truth = \"no.npy\""), "no.npy"),
        (RUN.replace("[prior]", "truth = \"no.npy\"\n[prior]"), "task.measurements: expected only where"),
        (RUN.replace("inpaint_random", "xor"), "input of xor: expected only zeros and ones"),
        (RUN.replace("steps = 200", "steps = 0"), "langevin.steps: expected at least 1, got 0"),
        (RUN.replace("factor = 0.5", "factor = -1.0"), "langevin.factor: expected a positive number, got -1"),
        (RUN.replace("samples = 6", "sampels = 6"), "unknown field `sampels`"),
        (
            RUN.replace("samples = 6", "samples = 100000000000"),
            "samples: expected at most 100000 over all measurements, got 2 x 100000000000",
        ),
        ("nonsense".into(), "configuration: line 1"),
    ];
    for (case, says) in cases {
        let config = config(dir.path(), &case);
        let output = daps(&["run", &config, "--out", out_text]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{says}: {error}");
        assert!(error.contains(says), "expected '{says}' in: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{error}");
        assert!(!out.exists(), "{says}: something was left behind");
    }
    refused(&["run", "no-such.toml", "--out", out_text], "no-such.toml: cannot read");
    refused(
        &["validate", "gmm", "--method", "dapss", "--seeds", "1"],
        "unknown method of the test bed 'dapss'",
    );
    refused(&["validate", "gmm", "--samples", "1", "--seeds", "1"], "at least 2");
    refused(&["validate", "gmm", "--levels", "0", "--seeds", "1"], "levels: expected at least 1");
    refused(&["validate", "gmm", "--instances", "no-such.json"], "no-such.json");
    refused(&["validate", "gaussian", "--samples", "3"], "at least 100");
    refused(&["validate", "rivals", "--samples", "3"], "at least 100");
    refused(
        &["validate", "gmm", "--dim", "4", "--obs", "5", "--seeds", "1"],
        "obs: expected 1 to 4, the dimension, got 5",
    );
    refused(&["toy", "--levels", "1"], "at least 2 samples and 2 levels");
    refused(&["solvent"], "unrecognized subcommand");
}

#[test]
fn a_mask_of_another_size_and_a_truth_with_nan_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let npy = |values: &[f64], shape: &str| {
        let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
        header.push_str(&" ".repeat(63 - (10 + header.len()) % 64));
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        bytes
    };
    fs::write(dir.path().join("mask.npy"), npy(&[1.0; 16], "(4, 4)")).unwrap();
    fs::write(dir.path().join("truth.npy"), npy(&[f64::NAN; 64], "(1, 8, 8)")).unwrap();
    let out = dir.path().join("out");
    let mask = dir.path().join("mask.npy");
    let options = format!("[task.options]\nmask = {:?}\n[prior]", mask.to_str().unwrap());
    let wrong = RUN.replace("inpaint_random", "inpaint").replace("[prior]", &options);
    let path = config(dir.path(), &wrong);
    refused(&["run", &path, "--out", out.to_str().unwrap()], "mask");
    let nan = RUN.replace("measurements = 2", "truth = \"truth.npy\"");
    let path = config(dir.path(), &nan);
    refused(&["run", &path, "--out", out.to_str().unwrap()], "NaN");
    assert!(!out.exists());
}

#[test]
fn validation_prints_the_json_that_programs_read() {
    let output = daps(&["validate", "gmm", "--seeds", "1", "--samples", "50", "--levels", "10", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    for method in
        ["dps", "daps-shipped", "daps-stable", "exact-sigma", "tweedie-full", "draws-32", "oracle", "floor"]
    {
        let line = lines.lines().find(|l| l.contains(&format!("\"method\":\"{method}\""))).expect(method);
        for key in ["dim", "obs", "w1", "se", "nfe", "seconds"] {
            assert!(line.contains(&format!("\"{key}\":")), "{key} in {line}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("rivals");
    let output = daps(&["validate", "rivals", "--samples", "100", "--json", "--out", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    assert_eq!(lines, fs::read_to_string(out.join("results.jsonl")).unwrap());
    for method in ["exact draws", "daps", "dps", "ddrm", "pseudo_inverse"] {
        let line = lines.lines().find(|l| l.contains(&format!("\"name\":\"{method}\""))).expect(method);
        for key in ["distance", "mean_error", "measured", "hidden", "nfe", "diverged"] {
            assert!(line.contains(&format!("\"{key}\":")), "{key} in {line}");
        }
    }
    let out = dir.path().join("discrete");
    let few = ["validate", "discrete", "--samples", "200", "--levels", "1,2", "--json"];
    let output = daps(&[&few[..], &["--out", out.to_str().unwrap()]].concat());
    let lines = text(&output.stdout);
    assert_eq!(lines, fs::read_to_string(out.join("results.jsonl")).unwrap());
    assert!(lines.lines().all(|l| l.contains("\"distance\":") && l.contains("\"levels\":")), "{lines}");
    let table = fs::read_to_string(out.join("table.txt")).unwrap();
    assert!(table.contains("2 levels") && table.contains("exact draws"), "{table}");
    let out = dir.path().join("toy");
    let output =
        daps(&["toy", "--samples", "20", "--levels", "12", "--json", "--out", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in text(&output.stdout).lines() {
        assert!(line.contains("\"w2_last\":") && line.contains("\"right_mode\":"), "{line}");
    }
    for name in ["samples.svg", "trajectories.svg", "w2.svg"] {
        assert!(fs::read_to_string(out.join(name)).unwrap().contains("<svg"), "{name}");
    }
}

#[test]
fn a_network_from_a_pytorch_checkpoint_is_a_prior() {
    let dir = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/adm_tiny.pt");
    fs::copy(golden, dir.path().join("model.pt")).unwrap();
    let network = "[network]\nkind = 'adm'\nimage_size = 32\nmodel_channels = 32\nchannel_mult = [1, 2]\n\
                   num_res_blocks = 1\nattention_resolutions = [16]\nnum_head_channels = 32\nlearn_sigma = true\n\
                   use_scale_shift_norm = true\nresblock_updown = true\n[preconditioning]\nkind = 'vp'\n";
    fs::write(dir.path().join("model.toml"), network).unwrap();
    let run = "samples = 3\nbatch = 3\n[task]\noperator = 'super_resolution'\nshape = [3, 16, 16]\ntruth = 'x.npy'\n\
               [prior]\nkind = 'network'\nfile = 'model.pt'\n[method]\n\
               schedule = { rule = 'poly', levels = 3 }\n\
               estimate = { kind = 'gaussian', center = { ode = { steps = 2 } }, spread = 'sigma' }\n\
               kernel = { kind = 'exact' }\n";
    let x = Tensor::zeros((3, 16, 16), daps::core::candle::DType::F32, &Device::Cpu);
    x.unwrap().write_npy(dir.path().join("x.npy")).unwrap();
    let samples = |text: &str, out: &str| {
        let out = dir.path().join(out);
        let output = daps(&["run", &config(dir.path(), text), "--out", out.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        fs::read(out.join("samples.safetensors")).unwrap()
    };
    // In batches of another size, the same bits.
    assert_eq!(samples(run, "a"), samples(&run.replace("batch = 3", "batch = 2"), "b"));
    // The network's configuration may be another file beside the run file; summary and report name the prior.
    fs::rename(dir.path().join("model.toml"), dir.path().join("net.toml")).unwrap();
    let named = run.replace("'model.pt'", "'model.pt'\nconfig = 'net.toml'");
    assert_eq!(samples(&named, "d"), fs::read(dir.path().join("a/samples.safetensors")).unwrap());
    let metrics = fs::read_to_string(dir.path().join("d/metrics.json")).unwrap();
    let written = fs::read_to_string(dir.path().join("d/config.toml")).unwrap();
    let digest = written.split("sha256 = \"").nth(1).unwrap()[..12].to_owned();
    assert!(metrics.contains(&format!("\"model ({digest})\"")), "{metrics}");
    let report = fs::read_to_string(dir.path().join("d/report.html")).unwrap();
    assert!(report.contains(&format!("<b>model ({digest})</b>")));
    fs::rename(dir.path().join("net.toml"), dir.path().join("model.toml")).unwrap();
    let drawn = run.replace("truth = 'x.npy'\n", "");
    refused(
        &["run", &config(dir.path(), &drawn), "--out", "c"],
        "only a closed-form prior can draw one itself",
    );
}
