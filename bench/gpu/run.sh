#!/usr/bin/env bash
# Everything that needs a GPU, in one go:
#
#     bash bench/gpu/run.sh OUT [DATA]
#
# Diagnosis, the tests marked `gpu`, the kernels by themselves, then the benchmark, on DATA or on the made sample set.
# GPUPIPE_GPU_PARTS="doctor kernels" runs some of these. OUT gets six files: results.csv, .json and .png of the benchmark,
# kernels.csv and .json, and run.log with all that was printed. A failing part does not stop the others; the exit code is
# then 1. On a machine without a GPU it stops at once, unless GPUPIPE_GPU_RUN_ANYWAY=1 asks for what the CPU can show.
set -uo pipefail
cd "$(dirname "$0")/../.."

out="${1:?usage: bench/gpu/run.sh OUT [DATA]}"
data="${2:-}"
seconds="${GPUPIPE_BENCH_SECONDS:-4}"
parts="${GPUPIPE_GPU_PARTS:-doctor tests kernels bench}"
mkdir -p "$out"
failed=0

log() {
    tee -a "$out/run.log"
}

part() {
    local name="$1"
    shift
    [[ " $parts " == *" $name "* ]] || return 0
    echo "== $name" | log
    if ! timeout 400 "$@" 2>&1 | log; then
        echo "== $name FAILED" | log
        failed=1
    fi
}

if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && [ -z "${GPUPIPE_GPU_RUN_ANYWAY:-}" ]; then
    echo "torch finds no GPU here; python3 -m gpupipe doctor says more" >&2
    exit 1
fi

part doctor python3 -m gpupipe doctor
part tests python3 -m pytest -q -m gpu -p no:cacheprovider tests
# On a GPU these run there, whatever their marks; elsewhere in Triton's interpreter.
part tests python3 -m pytest -q -p no:cacheprovider tests/test_kernels_gpu.py
part kernels python3 bench/kernels.py --limit 200 --out "$out"
part bench python3 -m gpupipe bench ${data:+"$data"} --seconds "$seconds" --output "$out"
if [ -d "$out/logs" ]; then
    tail -n +1 "$out"/logs/*.log >> "$out/run.log"
    rm -r "$out/logs"
fi
exit "$failed"
