//! `daps demo` as a user meets it: all tasks in one picture, a second time too, and refusals that leave nothing behind.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::text;

/// The command, called in a directory.
fn demo(directory: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daps"));
    command.arg("demo").args(args).current_dir(directory).output().unwrap()
}

#[test]
fn faces_are_shown_in_all_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let output = demo(dir.path(), &["--samples", "1", "--preset", "fast", "--out", "faces"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for task in daps::task::TASKS {
        assert!(said.contains(task.title()), "{} in {said}", task.title());
        assert!(dir.path().join("faces").join(task.name).join("mean.png").is_file(), "{}", task.name);
    }
    for file in ["demo.png", "report.html", "images/07999.png"] {
        assert!(dir.path().join("faces").join(file).is_file(), "{file}");
    }
}

/// The same command twice: the second one takes a free name. A directory that was asked for is never written over.
#[test]
fn a_demonstration_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    for out in ["daps-demo-discrete", "daps-demo-discrete-2"] {
        let output = demo(dir.path(), &["discrete", "--preset", "fast", "--samples", "2"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        assert!(["inpainting", "XOR", "AND"].iter().all(|task| said.contains(task)), "{said}");
        assert!(dir.path().join(out).join("demo.png").is_file() && said.contains(out), "{said}");
    }
    let output = demo(dir.path(), &["discrete", "--out", "daps-demo-discrete"]);
    assert_eq!(output.status.code(), Some(2));
    let says = "error: daps-demo-discrete: already exists and is not empty; choose another with --out\n";
    assert_eq!(text(&output.stderr), says);
}

#[test]
fn refusals_are_one_sentence_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    for (args, says) in [
        (["--preset", "quick"], "unknown preset 'quick'"),
        (["--samples", "0"], "samples: expected at least 1, got 0"),
        (["--samples", "100001"], "samples: expected at most 100000"),
        (["--prior", "nobody"], "unknown prior 'nobody'"),
        (["--prior", "binary-digits"], "needs a measurement of tokens"),
    ] {
        let output = demo(dir.path(), &args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(says) && error.trim().lines().count() == 1, "expected '{says}' in: {error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{says}: something was left behind");
    }
}
