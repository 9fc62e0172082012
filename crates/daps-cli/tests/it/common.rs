//! What all tests of the command do.

use std::process::{Command, Output};

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
