#!/usr/bin/env bash
# Runs the models of daps-nn's thread team under loom, which tries every order of events that the memory model allows.
# An argument runs the models whose name contains it; LOOM_MAX_PREEMPTIONS=N changes how far the search goes.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
cargo test -p daps-nn --release --lib -- "${@:-loom}"
