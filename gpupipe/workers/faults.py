"""What the loader says of workers that died or hang: which, how, at which sample, and what to do."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gpupipe.errors import ConfigError, LoaderTimeoutError, WorkerError
from gpupipe.host import processes
from gpupipe.host.system import SHM_BASE, open_file_limit, open_files_needed, shm_bytes_free, shm_size
from gpupipe.workers.board import Board
from gpupipe.workers.watched import GRACE, WorkersDied, WorkersHang

__all__ = ["Describe", "death", "hang", "starting"]

Describe = Callable[[int], str]
"""Where a sample lies."""

# By errno.
WANTING = {
    errno.EMFILE: "this process may have {limit} files open, and takes up to {files} with a loader of so many workers: "
    "close loaders that are not used, raise `ulimit -n`, or lower num_workers",
    errno.ENFILE: "the machine has no more open files to give: see /proc/sys/fs/file-max",
    errno.ENOSPC: "/dev/shm, where what workers share lies, has {free} MiB free: delete what nobody uses there, or "
    "start the container with --shm-size={size} or more",
    errno.ENOMEM: "there is no memory for another process: lower num_workers",
    errno.EAGAIN: "this user may not have more processes: raise `ulimit -u`, or lower num_workers",
}
# By exit code, as multiprocessing has it: signals are negative.
CAUSES = {
    -9: "often the kernel does this when the memory limit is reached: see dmesg; lower num_workers or batch_size",
    -7: "a file that the dataset maps was shortened, or /dev/shm is full: `gpupipe doctor` says what it holds",
    -11: "native code crashed, the dataset's or gpupipe's: read that sample in a process of its own to see which",
    -6: "native code gave up; what it printed says why",
    -15: "something told it to end; a batch system does so at its time limit",
}
SCRIPT_AT_START = (
    "what it printed says why; with spawn or forkserver the script has to begin its work below "
    "`if __name__ == '__main__':`"
)
NO_SCRIPT_AT_START = (
    "what it printed says why; with spawn or forkserver it is a new Python, which can't import what a notebook, the "
    "prompt, `python -c` or standard input defines: put the dataset into a module (a .py file) and import it, with "
    "standard input the program too, or pass multiprocessing_context='fork'"
)
EXITED = "something in it called sys.exit() or os._exit(); look for that in the dataset's code"

# By the word of `processes.state`.
ADVICE = {
    "is stopped": "`kill -CONT {pid}` lets it go on",
    "waits for storage": "the disk or the network file system does not answer: look at the mount and at dmesg",
    "has ended": "what it printed says why",
}
ANY_STATE = "`py-spy dump --pid {pid}` shows the line; if that is only slow, raise timeout"


@contextmanager
def starting(workers: int) -> Iterator[None]:
    """Raises ConfigError where worker processes, or what they share, can't be had for want of something."""
    try:
        yield
    except OSError as error:
        if error.errno not in WANTING:
            raise
        wanting = WANTING[error.errno].format(files=open_files_needed(workers, 1), **_facts())
        raise ConfigError(f"num_workers={workers} can't be started ({error.strerror}): {wanting}") from error


def _facts() -> dict[str, object]:
    return {"limit": open_file_limit(), "free": (shm_bytes_free() or 0) >> 20, "size": shm_size(SHM_BASE)}


def death(
    fault: WorkersDied, board: Board, describe: Describe, unreadable: Callable[[], str] = lambda: ""
) -> WorkerError:
    """Names each worker that has died, the signal or exit code, and the sample.

    unreadable: why what workers are sent can't be read, if that is so.
    """
    ended = [
        f"worker {number} of {len(fault.pids)} (pid {fault.pids[number]}) {processes.ending(code)} "
        f"{_place(board, describe, number)}"
        for number, code in fault.exit_codes.items()
    ]
    first, code = next(iter(fault.exit_codes.items()))
    at_start = board.starting(first)
    why = (unreadable() if at_start else "") or _cause(code, at_start)
    return WorkerError(f"{'; '.join(ended)}; {why}", _batches(board, fault.exit_codes))


def hang(fault: WorkersHang, board: Board, describe: Describe, timeout: float) -> LoaderTimeoutError:
    """Names the worker whose batch is due, or that does not begin anew, what it does and the sample."""
    # Workers that are done with what they had are idle; one that hangs in an epoch that was left is not.
    busy = [worker for worker in range(len(fault.pids)) if not board.idle(worker)]
    number = fault.due if fault.due is not None else busy[0] if busy else 0
    pid = fault.pids[number]
    state = processes.state(pid)
    told = f"no batch came from {len(fault.pids)} workers within timeout={timeout:g} s; the next one is due from"
    if fault.due is None:
        told = f"{len(fault.pids)} workers have not ended within {GRACE:g} s what nobody wants any more; among them"
    return LoaderTimeoutError(
        f"{told} worker {number} (pid {pid}), which {state} {_place(board, describe, number)}, where it has been for "
        f"{board.seconds(number):.1f} s; {ADVICE.get(state, ANY_STATE).format(pid=pid)}",
        _batches(board, [number]),
    )


def _batches(board: Board, workers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Epoch and step of what each of them is at."""
    return tuple(place for worker in workers if (place := board.place(worker)) is not None)


def _place(board: Board, describe: Describe, worker: int) -> str:
    index = board.sample(worker)
    if index is None:
        return board.doing(worker)
    try:
        return f"at sample {index} ({describe(index)})"
    except Exception:  # the source may be of the user's own
        return f"at sample {index}"


def _cause(code: int, starting: bool) -> str:
    if code >= 0:
        return _at_start() if starting else EXITED
    return CAUSES.get(code, "look into what it printed, and into dmesg")


def _at_start() -> str:
    main = sys.modules.get("__main__")
    has_file = getattr(main, "__spec__", None) is not None or os.path.isfile(getattr(main, "__file__", None) or "")
    return SCRIPT_AT_START if has_file else NO_SCRIPT_AT_START
