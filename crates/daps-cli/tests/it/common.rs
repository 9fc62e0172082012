//! What all tests of the command do.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// The command's output, whatever its exit code.
pub fn daps(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_daps")).args(args).output().expect("the command runs")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Exit code 0: what `--json` printed, and what stood on standard error.
pub fn solved(args: &[&str]) -> (Value, String) {
    let output = daps(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    (serde_json::from_slice(&output.stdout).unwrap_or(Value::Null), error)
}

/// The PSNR of every image, by `daps compare`.
pub fn psnr(images: &str, truth: &str, more: &[&str]) -> Vec<f64> {
    let output = daps(&[&["compare", images, truth, "--json"], more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let metric: Value = serde_json::from_str(text(&output.stdout).lines().next().unwrap()).unwrap();
    metric["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// Runs the command, kills it without warning so long after the first checkpoint in `out`, and tells whether it was under way.
pub fn killed(args: &[&str], out: &Path, after: Duration) -> bool {
    let mut child = Command::new(env!("CARGO_BIN_EXE_daps"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let checkpoint = out.join("checkpoint.safetensors");
    while !checkpoint.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    checkpoint.exists() && !out.join("metrics.json").exists()
}
