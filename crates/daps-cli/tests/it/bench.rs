//! `daps bench nn`: what it prints, what it exports, and its exit codes.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::common;

fn daps(args: &[&str]) -> Output {
    common::daps(&[&["bench", "nn"], args].concat())
}

#[test]
fn json_lines_have_the_documented_fields() {
    let out = daps(&["--only", "conv3x3 16x64,attention 1x8", "--seconds", "0.01", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    let records: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(records.len(), 2);
    for record in &records {
        let mut keys: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let expected =
            ["gflops_forward", "kind", "ms_forward", "ms_forward_backward", "name", "peak_mib", "shape"];
        assert_eq!(keys, expected);
        let (forward, both) = (&record["ms_forward"], &record["ms_forward_backward"]);
        assert!(forward.as_f64().unwrap() > 0.0 && both.as_f64() > forward.as_f64(), "{record}");
    }
    assert_eq!(records[0]["shape"], serde_json::json!([16, 64, 32, 32]));
    // Two flops for each of 16 x 32 x 32 pixels, 64 x 64 channels and 9 taps.
    let flops = records[0]["gflops_forward"].as_f64().unwrap() * records[0]["ms_forward"].as_f64().unwrap();
    assert!((flops * 1e6 / (2.0 * 16.0 * 1024.0 * 4096.0 * 9.0) - 1.0).abs() < 1e-9, "{flops}");
}

#[test]
fn an_export_holds_what_another_program_needs() {
    let dir = tempfile::tempdir().unwrap();
    let out = daps(&["--only", "conv3x3 1x128x64", "--export", dir.path().to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let stem = dir.path().join("conv3x3_1x128x64x64");
    let (weights, _) = daps::files::read_tensors(&stem.with_extension("safetensors")).unwrap();
    assert_eq!(weights["weight"].dims(), [128, 128, 3, 3]);
    let (io, _) = daps::files::read_tensors(&stem.with_extension("io.safetensors")).unwrap();
    let mut names: Vec<&str> = io.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["d.bias", "d.weight", "d.x", "dy", "x", "y"]);
    // dL/dbias is the sum of dy over pixels.
    let sums = io["dy"].sum((0, 2, 3)).unwrap().to_vec1::<f32>().unwrap();
    let bias = io["d.bias"].to_vec1::<f32>().unwrap();
    assert!(sums.iter().zip(&bias).all(|(a, b)| (a - b).abs() < 1e-2), "{sums:?} {bias:?}");
}

#[test]
fn steps_are_taken_on_request_and_mistakes_are_one_sentence() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_daps"))
        .args(["bench", "nn", "--step", "--only", "conv3x3 16x64"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"forward 2\nbackward 1\n").unwrap();
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "ready"));
    for line in &lines[1..] {
        let numbers: Vec<f64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        assert!(numbers.len() == 2 && numbers[0] > 0.0, "{line}");
    }
    for (args, part) in [
        (
            vec!["--only", "conv5x5"],
            "--only: unknown case 'conv5x5'; known: attention, conv, gemm, network, norm, ",
        ),
        (vec!["--step"], "expected one case, got"),
        (vec!["--seconds=-1"], "expected seconds from 0, got -1"),
    ] {
        let out = daps(&args);
        let message = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains(part) && message.lines().count() == 1, "{message}");
    }
}
