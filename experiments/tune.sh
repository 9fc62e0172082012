#!/usr/bin/env bash
# Tunes every method that has free parameters: the same number of trials on the same four faces, which stand in no table.
#   experiments/tune.sh [PRIOR] [DATA] [TRIALS]
# Searches run side by side with one thread each, which one image at a time fills better than one search with all threads.
# A stopped search resumes. The settings end up in experiments/tuned, where the experiments look for them.
set -euo pipefail
cd "$(dirname "$0")/.."
prior=${1:-faces} data=${2:-data/faces64.tar} trials=${3:-8} runs=${RUNS:-runs}
daps=${DAPS:-target/release/daps} jobs=${JOBS:-$(nproc)}
export RAYON_NUM_THREADS=1
mkdir -p experiments/tuned "$runs"

one() {
    "$daps" tune "$1" --prior "$prior" --data "$data" --images 4 --trials "$trials" --halving --out "$runs/tune-$1" "${@:2}" \
        >>"$runs/tune-$1.txt"
}

search() {
    rm -f "$runs/tune-$1.txt"
    if [ "$1" = dcdp ]; then
        # Its authors' levels, which differ by task; where they are 200, half of them, with half of the ODE's steps, which
        # are not searched there.
        one dcdp --task super_resolution --task gaussian_blur --task motion_blur --task hdr
        one dcdp --task inpaint_box --task inpaint_random --set steps=50 \
            --set 'schedule={ rule = "ddpm", levels = 20, first = 699 }'
        one dcdp --task phase_retrieval --set 'ode={ steps = 10 }' \
            --set 'schedule={ rule = "ddpm", levels = 100, first = 999, last = 19 }'
        one dcdp --task nonlinear_blur --set 'ode={ steps = 10 }' \
            --set 'schedule={ rule = "ddpm", levels = 100, first = 999, last = 49 }'
    else
        one "$@"
    fi
    cp "$runs/tune-$1/$1.toml" experiments/tuned/
    echo "$1: experiments/tuned/$1.toml"
}

running=0
tune() {
    if ((running >= jobs)); then
        wait -n
        running=$((running - 1))
    fi
    search "$@" &
    running=$((running + 1))
}

# The longest first. Fixed settings are those of experiments/main.toml; of DAPS the belief alone is searched, because with the
# step beside it up to four of eight trials diverge (experiments/belief.toml moves both together).
tune dps
tune red_diff
tune daps --set preset=paper --set budget=1k --set kernel=langevin
tune dpnp --set iterations=40 --set 'reverse={ steps = 20 }'
tune fps_smc --set 'schedule={ rule = "ddpm", levels = 100, first = 990 }' --set particles=10
tune pnp_dm --set iterations=40 --set 'reverse={ steps = 20 }'
for method in dcdp diffpir ddrm ddnm hio tv wiener harmonic pseudo_inverse; do
    tune "$method"
done
while ((running > 0)); do
    wait -n
    running=$((running - 1))
done
