"""How a trial in a child process ended, and what is read from that."""

from __future__ import annotations

import signal
from typing import Any, Literal

from gpupipe.host.children import ChildError

__all__ = ["MARKER", "Outcome", "failure", "judge"]

Outcome = Literal["passed", "wrong", "crashed", "hung", "failed", "starved"]
"""failed: with an exception; starved: of memory, the GPU or time to start, or killed from outside."""

MARKER = "decoding "  # the child prints what it decodes before it does, so that a crash can be placed

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


def judge(found: dict[str, Any]) -> tuple[Outcome, str]:
    """The outcome of a trial that came to its end, and a sentence; found: what `SelfTest.run` returns."""
    if found["wrong"]:
        return "wrong", "; ".join(found["wrong"])
    mean, largest = (f" ({name})" if name else "" for name in found["worst"])
    off = f"at most {found['mean']:.1f} levels off in the mean{mean}, {found['largest']} in a pixel{largest}"
    refused = f"; left to the CPU: {', '.join(found['refused'])}" if found["refused"] else ""
    return "passed", f"{found['images']} images agree with Pillow in {found['batches']} batches, {off}{refused}"


def failure(error: ChildError, printed: str) -> tuple[Outcome, str]:
    """The outcome of one that did not, and a sentence that names the image where one can be named."""
    marks = [line for line in printed.splitlines() if line.startswith(MARKER)]
    detail = f"{error} while {marks[-1]}" if marks else f"{error} before the first image"
    if error.hangs:
        return "hung" if marks else "starved", detail  # else it was still busy with its imports, from a slow disk, say
    if any(words in printed.lower() for words in STARVED) or -(error.code or 0) in SENT:
        return "starved", detail
    return "crashed" if error.code is not None and error.code < 0 else "failed", detail
