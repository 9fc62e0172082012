//! `daps weights`: what it prints, and its exit codes.

use std::path::PathBuf;
use std::process::{Command, Output};

fn daps(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_daps")).arg("weights").args(args).output().unwrap()
}

fn golden(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_checkpoint_is_listed_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("half.safetensors");
    let out = out.to_str().unwrap();
    let converted = daps(&["convert", &golden("adm_tiny.pt"), out, "--dtype", "f16"]);
    assert_eq!(converted.status.code(), Some(0), "{converted:?}");
    let listed = daps(&["inspect", out]);
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.contains("input_blocks.0.0.weight") && text.contains("[32, 3, 3, 3]"), "{text}");
    assert!(text.contains("safetensors: ") && text.contains("sha256 "), "{text}");
    let json = daps(&["inspect", out, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["tensors"][0]["dtype"], "f16");
}

#[test]
fn refusals_are_one_sentence_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.pt");
    std::fs::write(&bad, b"PK\x03\x04 and then nothing").unwrap();
    let out = dir.path().join("out.safetensors");
    let (bad, out, pt) = (bad.to_str().unwrap(), out.to_str().unwrap(), golden("adm_tiny.pt"));
    for (args, part) in [
        (vec!["inspect", bad], "is no whole zip archive"),
        (vec!["inspect", "nowhere.pt"], "no such file"),
        (vec!["convert", &pt, out, "--config", "ffhq256"], "do not fit the network"),
        (vec!["convert", &pt, out, "--config", "ffhq"], "unknown network configuration 'ffhq'"),
    ] {
        let result = daps(&args);
        let message = String::from_utf8(result.stderr).unwrap();
        assert_eq!(result.status.code(), Some(2), "{message}");
        assert!(message.contains(part), "{message}");
        assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    }
    assert!(!PathBuf::from(out).exists());
}
