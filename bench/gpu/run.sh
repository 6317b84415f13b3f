#!/usr/bin/env bash
# Everything that needs a GPU, in one call of nine minutes, or in parts:
#
#     bash bench/gpu/run.sh OUT [DATA]
#     GPUPIPE_GPU_PARTS="selftest tune loaders" bash bench/gpu/run.sh OUT DATA
#
# DATA is an image folder (default: the made sample set). README.md beside this says what each part does, and what to bring
# to a machine without a network. The machine is checked first; what is missing is said loudly. Then the parts run in the
# order below, the most telling first, each with a time limit; once GPUPIPE_GPU_MINUTES (9) are over, no other is begun.
# A failing part does not stop the others; the exit code is then 1, and missed targets are no failures. OUT gets five files,
# named by the parts: a table (.md), all figures (.json, .csv), plots (.png) and all that was printed (.log).
# On a machine without a GPU it stops at once, unless GPUPIPE_GPU_RUN_ANYWAY=1 asks for what the CPU can show.
# Sizes: GPUPIPE_BENCH_SECONDS, _ROUNDS, _BATCH, _WORKERS.
set -uo pipefail

out="${1:?usage: bench/gpu/run.sh OUT [DATA]}"
data="${2:-}"
all="selftest tune loaders host decoders tests training memory loaders-400 doctor kernels loaders-float32 video"
parts="${GPUPIPE_GPU_PARTS:-$all}"
for part in $parts; do
    [[ " $all " == *" $part "* ]] || { echo "no part is called '$part'; there are: $all" >&2; exit 1; }
done
if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && [ -z "${GPUPIPE_GPU_RUN_ANYWAY:-}" ]; then
    echo "torch finds no GPU here; python3 -m gpupipe doctor says more" >&2
    exit 1
fi
mkdir -p "$out"
out="$(cd "$out" && pwd)"
[ -z "$data" ] || data="$(cd "$data" && pwd)" || exit 1
cd "$(dirname "$0")/../.." || exit 1

export PYTHONPATH="$PWD:$PWD/bench${PYTHONPATH:+:$PYTHONPATH}"
[ -n "$data" ] || data="$(python3 -c 'from gpupipe.tools.benchmark.sample_set import sample_set; print(sample_set())')" || exit 1
export GPUPIPE_CACHE="${GPUPIPE_CACHE:-${TMPDIR:-/tmp}/gpupipe-gpu-run}"  # verdict and tuned settings, for later calls too
deadline=$((60 * ${GPUPIPE_GPU_MINUTES:-9}))
name="$parts"
[ "$parts" != "$all" ] || name="all"
name="${name// /-}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0
echo "part,start,end,exit_code" > "$work/parts.csv"

say() {
    echo "$@" | tee -a "$out/$name.log"
}

# run PART LIMIT COMMAND...: notes start, end and exit code.
run() {
    local part="$1" limit="$2" start code left=$((deadline - SECONDS))
    shift 2
    start="$(date +%s)"
    if [ "$left" -lt 15 ]; then
        say "== $part NOT RUN: the time is over"
        code=124
    else
        say "== $part, at most $((limit < left ? limit : left)) s"
        timeout -k 10 "$((limit < left ? limit : left))" "$@" 2>&1 | tee -a "$out/$name.log"
        code="${PIPESTATUS[0]}"
    fi
    echo "$part,$start,$(date +%s),$code" >> "$work/parts.csv"
    if [ "$code" != 0 ]; then
        say "== $part FAILED with exit code $code$([ "$code" != 124 ] || echo ", out of time")"
        failed=1
    fi
}

bench() {
    local part="$1" limit="$2" module="$3"
    shift 3
    run "$part" "$limit" python3 -m "gpu.$module" "$data" --out "$work" "${sizes[@]}" "$@"
}

part() {
    case "$1" in
        doctor) run doctor 60 python3 -m gpupipe doctor ;;
        selftest) run selftest 200 python3 -m gpu.selftest --out "$work" ;;
        tune) run tune 200 python3 -m gpupipe tune "$data" --keep-anyway --output "$work" "${tune[@]}" ;;
        loaders) bench loaders 180 loaders ;;
        host) bench host 60 host "${host[@]}" ;;
        decoders) bench decoders 180 decoders "${decoders[@]}" ;;
        tests)
            # Files without such tests are left alone: they may need libraries that this machine lacks.
            run tests 200 python3 -m pytest -q -m gpu -p no:cacheprovider $(grep -l "mark\.gpu" tests/test_*.py)
            # On a GPU these run there, whatever their marks; elsewhere in Triton's interpreter.
            run tests-kernels 120 python3 -m pytest -q -p no:cacheprovider tests/test_kernels_gpu.py
            ;;
        training) run training 150 python3 bench/train_imagenet.py --compare --data "$data" --out "$work" "${training[@]}" ;;
        memory) bench memory 90 memory "${memory[@]}" ;;
        loaders-400) bench loaders-400 90 loaders --part loaders-400 --max-size 400 --only "gpupipe, tuned;gpupipe, not" ;;
        kernels) run kernels 120 python3 bench/kernels.py --limit 60 --out "$work" "${kernels[@]}" ;;
        loaders-float32) bench loaders-float32 120 loaders --part loaders-float32 --dtype float32 --only "gpupipe;native;torch" ;;
        video) run video 90 python3 bench/video_on_graph.py --mutants 40 --out "$work" ;;
    esac
}

sizes=(--seconds "${GPUPIPE_BENCH_SECONDS:-1}" --rounds "${GPUPIPE_BENCH_ROUNDS:-5}" --batch-size "${GPUPIPE_BENCH_BATCH:-256}")
[ -z "${GPUPIPE_BENCH_WORKERS:-}" ] || sizes+=(--workers "$GPUPIPE_BENCH_WORKERS")
tune=(--minutes 2 --batch-size "${GPUPIPE_BENCH_BATCH:-256}")
host=()
decoders=()
memory=()
kernels=()
training=(--contenders torchvision-v2 gpupipe device --steps 32 --rounds 3)
if [ -n "${GPUPIPE_GPU_RUN_ANYWAY:-}" ]; then # small models and few batches: what can be tried without a GPU
    tune+=(--minutes 0.3)
    host=(--model tiny --batches 10)
    decoders=(--loads 0.65 --threads 1)
    memory=(--after 2,4,6)
    kernels=(--batch-size 2 --works "bfloat16 NCHW" --only "gpupipe,torch eager")
    training=(--model tiny --size 64 --batch-size 16 --steps 4 --rounds 1 --workers 1)
fi

run machine 180 python3 -m gpu.machine --out "$work"
for part in $all; do
    [[ " $parts " != *" $part "* ]] || part "$part"
done
python3 -m gpu.report "$work" "$out" "$name" 2>&1 | tee -a "$out/$name.log"
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
exit "$failed"
