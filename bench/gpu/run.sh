#!/usr/bin/env bash
# Everything that needs a GPU, in one go:
#
#     bash bench/gpu/run.sh OUT [DATA]
#
# Diagnosis, the tests marked `gpu`, then the benchmark, on DATA or on the made sample set. Results and logs go to OUT.
# A failing part does not stop the others; the exit code is then 1. On a machine without a GPU it stops at once, unless
# GPUPIPE_GPU_RUN_ANYWAY=1 asks for what the CPU can show.
set -uo pipefail
cd "$(dirname "$0")/../.."

out="${1:?usage: bench/gpu/run.sh OUT [DATA]}"
data="${2:-}"
seconds="${GPUPIPE_BENCH_SECONDS:-4}"
mkdir -p "$out"
failed=0

part() {
    local name="$1"
    shift
    echo "== $name"
    if ! timeout 400 "$@" 2>&1 | tee "$out/$name.log"; then
        echo "== $name FAILED"
        failed=1
    fi
}

if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && [ -z "${GPUPIPE_GPU_RUN_ANYWAY:-}" ]; then
    echo "torch finds no GPU here; python3 -m gpupipe doctor says more" >&2
    exit 1
fi

part doctor python3 -m gpupipe doctor
part tests python3 -m pytest -q -m gpu -p no:cacheprovider tests
part bench python3 -m gpupipe bench ${data:+"$data"} --seconds "$seconds" --output "$out"
exit "$failed"
