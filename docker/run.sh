#!/bin/sh
# Run a command in the gpupipe image: docker/run.sh [COMMAND [ARGUMENT...]]; without one, `gpupipe doctor`.
# It builds nothing. Settings, with their defaults:
#   GPUPIPE_IMAGE=gpupipe       the image
#   GPUPIPE_GPUS=all            what docker's --gpus takes; none for a machine without a GPU
#   GPUPIPE_SHM_SIZE=8g         size of /dev/shm; README.md says for which settings it is enough
#   GPUPIPE_DATA=               a folder of the host, mounted read-only at /data
#   GPUPIPE_BATCH_SIZE, GPUPIPE_IMAGE_SIZE, GPUPIPE_PREFETCH_FACTOR, GPUPIPE_PROCESSES, GPUPIPE_WORKERS
#                               what the entry point checks /dev/shm against; handed on where set
set -eu

set -- "${GPUPIPE_IMAGE:-gpupipe}" "$@"

for name in BATCH_SIZE IMAGE_SIZE PREFETCH_FACTOR PROCESSES WORKERS; do
    if printenv "GPUPIPE_$name" >/dev/null; then
        set -- --env "GPUPIPE_$name" "$@"
    fi
done
if [ -n "${GPUPIPE_DATA:-}" ]; then
    set -- --volume "$GPUPIPE_DATA:/data:ro" "$@"
fi
if [ "${GPUPIPE_GPUS:-all}" != none ]; then
    set -- --gpus "${GPUPIPE_GPUS:-all}" "$@"
fi
if [ -t 0 ] && [ -t 1 ]; then
    set -- --interactive --tty "$@"
fi

# memlock: pinned host memory is locked. stack: native decoder threads with deep stacks. nofile: torch hands over one
# descriptor for each tensor in shared memory.
exec docker run --rm --init \
    --shm-size="${GPUPIPE_SHM_SIZE:-8g}" \
    --ulimit memlock=-1 \
    --ulimit stack=67108864 \
    --ulimit nofile=65536:65536 \
    "$@"
