//! The example runs: it stops, resumes to the same bits, and leaves a report.

use std::process::Command;

#[test]
fn the_example_runs_and_leaves_a_report() {
    let path = std::env::temp_dir().join(format!("own-problem-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_own-problem")).arg(&path).output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{wrong}");
    assert!(said.contains("stopped on request at level 10"), "{said}");
    let report = std::fs::read_to_string(path.join("report.html")).unwrap();
    assert!(report.contains("two levels") && report.contains("detector with outliers"));
    std::fs::remove_dir_all(path).unwrap();
}
