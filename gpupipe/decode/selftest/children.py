"""Child processes whose crash or hang is an answer, and what is read from how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Child", "ChildAnswer", "Outcome", "ask_child", "child_command", "judge", "without_place"]

Outcome = Literal["passed", "wrong", "crashed", "hung", "failed", "starved"]
"""failed: with an exception; starved: of memory, the GPU or time to start, or killed from outside."""

MARKER = "decoding "  # the child names what it decodes on stderr before it does, so that a crash can be placed

# Signals that others send; a decoder's own crash is SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL.
SENT = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU, signal.SIGALRM}
# Said by Linux, C++, DALI, nvJPEG and CUDA; the last where another process has a GPU in exclusive mode.
STARVED = (
    "out of memory",
    "cannot allocate memory",
    "memoryerror",
    "bad_alloc",
    "allocator_failure",
    "busy or unavail",
)


@dataclass(frozen=True)
class ChildAnswer:
    """How a child process ended: its exit code (negative for a signal), None after a timeout, and what it wrote."""

    returncode: int | None
    stdout: str
    stderr: str

    def payload(self) -> dict[str, Any] | None:
        """The JSON object on the last line of stdout; None where there is none."""
        lines = self.stdout.strip().splitlines()
        try:
            value = json.loads(lines[-1])
        except (IndexError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def last_words(self) -> str:
        """The last line of stderr, where Python puts the error's name."""
        lines = self.stderr.strip().splitlines()
        return lines[-1] if lines else "nothing on stderr"


class Child:
    """A process that can import gpupipe as this one does, started at once; whatever it does is no error here."""

    def __init__(self, command: Sequence[str]) -> None:
        package_parent = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(part for part in (package_parent, os.environ.get("PYTHONPATH", "")) if part)
        # Its own session: on a timeout the child's children (a forkserver) go with it.
        self._process = subprocess.Popen(
            list(command),
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def finish(self, timeout: float, say: str = "") -> ChildAnswer:
        """Say something on its stdin, close that, and wait up to `timeout` seconds for its end."""
        try:
            stdout, stderr = self._process.communicate(say, timeout=timeout)
        except subprocess.TimeoutExpired:
            self._signal()
            stdout, stderr = self._process.communicate()
            return ChildAnswer(None, stdout, stderr)
        except BaseException:  # Ctrl-C: leave nothing behind
            self.kill()
            raise
        return ChildAnswer(self._process.returncode, stdout, stderr)

    def kill(self) -> None:
        """End it, if it still runs, with its children."""
        if self._process.poll() is None:
            self._signal()
            self._process.communicate()

    def _signal(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)


def ask_child(command: Sequence[str], timeout: float) -> ChildAnswer:
    """Run `command` to its end; never raises for what the child does."""
    return Child(command).finish(timeout)


def child_command(*arguments: str) -> tuple[str, ...]:
    """The command of a child that answers one question, see `gpupipe.decode.selftest.child`."""
    return (sys.executable, "-m", "gpupipe.decode.selftest.child", *arguments)


def judge(answer: ChildAnswer, timeout: float) -> tuple[Outcome, str]:
    """The outcome of a decode trial, and a sentence that names the image where one can be named."""
    if answer.returncode is None:
        started = MARKER in answer.stderr  # else it was still busy with its imports, from a slow disk, say
        return "hung" if started else "starved", f"no answer within {timeout:g} s{_place(answer)}"
    if answer.returncode < 0:
        number = -answer.returncode
        starved = number in SENT or _starved(answer)
        return "starved" if starved else "crashed", f"killed by {_signal_name(number)}{_place(answer)}"
    payload = answer.payload()
    if answer.returncode != 0 or payload is None or "wrong" not in payload:
        outcome: Outcome = "starved" if _starved(answer) else "failed"
        return outcome, f"exit code {answer.returncode}: {answer.last_words()}{_place(answer)}"
    if payload["wrong"]:
        return "wrong", "; ".join(payload["wrong"])
    mean, largest = (f" ({name})" if name else "" for name in payload["worst"])
    off = f"at most {payload['mean']:.1f} levels off in the mean{mean}, {payload['largest']} in a pixel{largest}"
    refused = f"; left to the CPU: {', '.join(payload['refused'])}" if payload["refused"] else ""
    return "passed", f"{payload['images']} images agree with Pillow in {payload['batches']} batches, {off}{refused}"


def without_place(answer: ChildAnswer, timeout: float) -> str:
    """Why a child that decodes nothing gave no answer."""
    return judge(answer, timeout)[1].removesuffix(_place(answer))


def _starved(answer: ChildAnswer) -> bool:
    said = answer.stderr.lower()
    return any(words in said for words in STARVED)


def _place(answer: ChildAnswer) -> str:
    marks = [line for line in answer.stderr.splitlines() if line.startswith(MARKER)]
    return f" while {marks[-1]}" if marks else " before the first image"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
