#!/bin/sh
# Start a command only where /dev/shm is large enough. Without this check a run would die with a bus error at the first
# batch that does not fit. The settings come from GPUPIPE_BATCH_SIZE, GPUPIPE_IMAGE_SIZE, GPUPIPE_PREFETCH_FACTOR,
# GPUPIPE_PROCESSES (training processes in this container) and GPUPIPE_WORKERS (per process; unset: usable CPUs divided
# by the processes; 0: no workers, so nothing is needed).
set -eu

check_shm() {
    set -- \
        --batch-size "${GPUPIPE_BATCH_SIZE:-256}" \
        --size "${GPUPIPE_IMAGE_SIZE:-224}" \
        --prefetch-factor "${GPUPIPE_PREFETCH_FACTOR:-2}" \
        --processes "${GPUPIPE_PROCESSES:-1}"
    if [ -n "${GPUPIPE_WORKERS:-}" ]; then
        set -- "$@" --workers "$GPUPIPE_WORKERS"
    fi
    gpupipe doctor --shm-only "$@"
}

check_shm >&2 || {
    status=$?
    echo "gpupipe: not started, because gpupipe doctor found a fault (above)." >&2
    exit "$status"
}

exec "$@"
