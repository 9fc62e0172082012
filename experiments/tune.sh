#!/usr/bin/env bash
# Tunes every method that has free parameters: the same number of trials on the same four faces, which stand in no table.
#   experiments/tune.sh [PRIOR] [DATA] [TRIALS]
# A search that was stopped goes on. The settings end up in experiments/tuned, where the experiments look for them.
set -euo pipefail
cd "$(dirname "$0")/.."
prior=${1:-faces} data=${2:-data/faces64.tar} trials=${3:-16}
daps=${DAPS:-target/release/daps}
mkdir -p experiments/tuned

tune() {
    "$daps" tune "$1" --prior "$prior" --data "$data" --images 4 --trials "$trials" --halving --out "runs/tune-$1" "${@:2}"
    cp "runs/tune-$1/$1.toml" experiments/tuned/
}

# Fixed settings are those of experiments/main.toml.
tune daps --set preset=paper --set budget=1k
tune dps --set 'schedule={ rule = "poly", levels = 1000, max = 100.0, min = 0.01 }'
tune dpnp --set iterations=40 --set 'reverse={ steps = 20 }'
tune pnp_dm --set iterations=40 --set 'reverse={ steps = 20 }'
for method in ddrm ddnm diffpir red_diff dcdp hio pseudo_inverse wiener tv harmonic; do
    tune "$method"
done
