"""The parent of the cases: imports what they need once, starts no thread, and forks a child for each.

`import torch` takes 3 s; a fork of a process that has done it takes 10 ms.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from reliability.case import Case, Context, Failed, NoFunction
from reliability.sandbox import Outcome
from reliability.traces import Usage, left_behind, members, own_shm, processes, shm_entries

__all__ = ["end_like_a_script", "main"]

IMPORTS = (
    "torch.distributed",
    "torch.utils.data.distributed",
    "gpupipe.loader.loader",
    "gpupipe.decode.torch",
    "gpupipe.decode.dali.engine",
    "nvidia.dali.plugin.pytorch",
    "torchvision.datasets",
    "torchdata.stateful_dataloader.sampler",
    "webdataset",
    "litdata",
    "streaming",
    "s3torchconnector",
    "boto3",
)
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def main() -> None:
    """Answer requests on stdin with outcomes on stdout, until stdin ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not come between the answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come to this process, which reaps them
    own_shm()
    for name in IMPORTS:
        with suppress(ImportError):  # a contender that is not installed is not asked either
            importlib.import_module(name)
    gc.freeze()  # collections in the children pass over all this: 0.3 s each, and the memory would be copied
    with suppress(EOFError):
        while True:
            request = pickle.load(requests)
            pickle.dump(run_forked(*request), answers)
            answers.flush()
    gc.unfreeze()


def run_forked(case: Case, contender: Any, seed: int) -> Outcome:
    """The case in a child, and what is found once it has ended."""
    if not case.asks(contender.name):
        return Outcome("none", f"a case for {', '.join(case.only or ())}")
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork of them is no fair start"
    folder = Path(tempfile.mkdtemp(prefix="case-"))
    before, began = shm_entries(), time.monotonic()
    child = os.fork()
    if child == 0:
        in_child(case, contender, seed, folder)
    try:
        outcome = _watched(child, case.limit, folder)
        outcome = _without_traces(outcome, child, before, case.orphans)
    finally:
        _kill(child)
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(outcome.status, outcome.reason, round(time.monotonic() - began, 3))


# In the parent.


def _watched(child: int, limit: float, folder: Path) -> Outcome:
    """What the child reported, or how it ended instead."""
    status = _wait(child, limit)
    if status is None:
        with suppress(OSError):
            os.kill(child, signal.SIGUSR1)  # faulthandler writes where it hangs
        time.sleep(0.3)
        return Outcome("hang", f"nothing after {limit:g} s; {_tail(folder / 'log')}")
    try:
        with open(folder / "outcome", "rb") as file:
            outcome: Outcome = pickle.load(file)
    except OSError:
        return Outcome("failed", f"its process {_ended(status)}; {_tail(folder / 'log')}")
    if status and outcome.status == "passed":
        return Outcome("failed", f"its process {_ended(status)} after the case; {_tail(folder / 'log')}")
    return outcome


def _wait(child: int, limit: float) -> int | None:
    """The child's wait status; None if it does not end in time."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.005)
    return None


def _ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _tail(log: Path) -> str:
    """The end of what the child printed, which holds its stacks if it hung or crashed."""
    return f"it printed: {log.read_text(errors='replace')[-3000:].strip()}"


def _without_traces(outcome: Outcome, child: int, before: set[str], seconds: float) -> Outcome:
    """`outcome`, or a failure that names the processes and shared memory that are still there."""
    if outcome.status == "hang":
        return outcome
    deadline = time.monotonic() + seconds
    while (left := _left(child, before)) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.02)
    if not left:
        return outcome
    said = f"; {outcome.reason}" if outcome.reason else ""
    return Outcome("failed", f"left behind after {seconds:g} s: {left}{said}")


def _left(child: int, before: set[str]) -> str:
    orphans = ", ".join(str(process) for process in members(child))
    entries = ", ".join(sorted(left_behind(before, child)))
    parts = [f"processes {orphans}" if orphans else "", f"/dev/shm entries {entries}" if entries else ""]
    return "; ".join(part for part in parts if part)


def _kill(session: int) -> None:
    """End whatever is left of a session."""
    while left := members(session):
        for process in left:
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        _reap()
        time.sleep(0.01)
    _reap()


def _reap() -> None:
    """Take leave of children that have ended, adopted ones too."""
    for process in list(processes()):
        if process.parent == os.getpid() and process.state == "Z":
            with suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)


# In the child.


def in_child(case: Case, contender: Any, seed: int, folder: Path) -> NoReturn:
    """Run the case, write the outcome, end as a script does."""
    code = 1
    try:
        os.setsid()  # all that it starts can be found by the session
        log = os.open(folder / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        prepare_process(folder)
        outcome = _outcome(case, contender, seed, folder)
        with open(folder / "unfinished", "wb") as file:
            pickle.dump(outcome, file)
        os.rename(folder / "unfinished", folder / "outcome")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        end_like_a_script(code)


def prepare_process(folder: Path) -> None:
    """Temporary files go into the folder, stacks are printed after a crash or SIGUSR1, and Ctrl-C interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    tempfile.tempdir = None
    os.environ["TMPDIR"] = str(folder / "tmp")
    (folder / "tmp").mkdir()
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def end_like_a_script(code: int, by: signal.Signals | None = None) -> NoReturn:
    """What the interpreter does at its end, as far as a fork in the depth of its parent's stack can.

    by: the signal to die of after that, as a script does that KeyboardInterrupt has ended.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        if by is not None:
            signal.signal(by, signal.SIG_DFL)
            os.kill(os.getpid(), by)
    finally:
        os._exit(code)


def _outcome(case: Case, contender: Any, seed: int, folder: Path) -> Outcome:
    (folder / "work").mkdir()
    context = Context(contender, random.Random(f"{seed} {case.name}"), folder / "work", seed)
    contender.prepare()
    if case.prepare is not None:
        case.prepare()
    gc.collect()
    before = Usage.now()
    try:
        case.run(context)
    except NoFunction as error:
        return Outcome("none", str(error))
    except Failed as error:
        return Outcome("failed", str(error))
    except Exception as error:
        return Outcome("failed", f"{_where(error)}: {type(error).__name__}: {error}")
    more = _settled(before, case.settle)
    return Outcome("failed", f"still there after {case.settle:g} s: {more}") if more else Outcome("passed", "")


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _settled(before: Usage, seconds: float) -> str:
    """What there is more of than before, once it has had time to go."""
    deadline = time.monotonic() + seconds
    gc.collect()
    while (more := Usage.now().beyond(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return more
