"""The ways in which DALI can decode, a trial of each in a child process, and what is read from how that ended."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, Literal

from gpupipe.host.children import Child, ChildError

__all__ = ["MARKER", "DecodePlan", "Outcome", "PlanTrial", "try_plans"]

TRIALS = "gpupipe.decode.selftest.trial:SelfTest"
TIMEOUT = 120.0  # seconds for a plan; the first CUDA start on a node with many GPUs can take half a minute

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


@dataclass(frozen=True)
class DecodePlan:
    """crop_decode: only the crop's window, else the whole image. hardware: the GPU's JPEG engines take part."""

    crop_decode: bool = False
    hardware: bool = False

    @property
    def name(self) -> str:
        return f"{'crop' if self.crop_decode else 'full'} decode, {'with' if self.hardware else 'no'} hardware engines"


CPU_PLANS = (DecodePlan(), DecodePlan(crop_decode=True))
GPU_PLANS = tuple(DecodePlan(crop, hardware) for crop in (False, True) for hardware in (True, False))


@dataclass(frozen=True)
class PlanTrial:
    """How a plan fared.

    `detail` is a sentence that names the image where one can be named; `seconds` what it took, with its process's
    start as far as that was waited for; `mean` and `largest` the worst difference from Pillow in levels of 255, of an
    image's mean and of a pixel, None where the child gave none.
    """

    plan: DecodePlan
    outcome: Outcome
    detail: str
    seconds: float
    mean: float | None = None
    largest: int | None = None

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def try_plans(device: str, plans: Sequence[DecodePlan], timeout: float = TIMEOUT) -> list[PlanTrial]:
    """Decode the made images by each plan on `device` ("cpu", "cuda:0") and say how it went; raises for none of that.

    The children start side by side, as most of their time goes into imports, and decode in turn, so that each has the
    GPU to itself and the load that it makes. `timeout` in seconds is for each one's turn.
    """
    with ExitStack() as stack:
        children = []
        for _ in plans:
            log = stack.enter_context(tempfile.TemporaryFile())
            children.append((Child(TRIALS, (device,), log, timeout), log))
            stack.callback(children[-1][0].kill)
        return [_tried(child, log, plan) for (child, log), plan in zip(children, plans, strict=True)]


def _tried(child: Child, log: IO[bytes], plan: DecodePlan) -> PlanTrial:
    start = time.perf_counter()
    try:
        found = child.ask("run", plan)
        outcome, detail = _judged(found)
    except ChildError as error:
        found = {}
        log.seek(0)
        outcome, detail = _failure(error, log.read().decode(errors="replace"))
    finally:
        child.kill()  # so that the next one has the GPU to itself
    seconds = round(time.perf_counter() - start, 2)
    return PlanTrial(plan, outcome, detail, seconds, found.get("mean"), found.get("largest"))


def _judged(found: dict[str, Any]) -> tuple[Outcome, str]:
    """The outcome of a trial that came to its end, and a sentence; found: what `SelfTest.run` returns."""
    if found["wrong"]:
        return "wrong", "; ".join(found["wrong"])
    mean, largest = (f" ({name})" if name else "" for name in found["worst"])
    off = f"at most {found['mean']:.1f} levels off in the mean{mean}, {found['largest']} in a pixel{largest}"
    refused = f"; left to the CPU: {', '.join(found['refused'])}" if found["refused"] else ""
    return "passed", f"{found['images']} images agree with Pillow in {found['batches']} batches, {off}{refused}"


def _failure(error: ChildError, printed: str) -> tuple[Outcome, str]:
    """The outcome of one that did not, and a sentence that names the image where one can be named."""
    marks = [line for line in printed.splitlines() if line.startswith(MARKER)]
    detail = f"{error} while {marks[-1]}" if marks else f"{error} before the first image"
    if error.hangs:
        return "hung" if marks else "starved", detail  # else it was still busy with its imports, from a slow disk, say
    if any(words in printed.lower() for words in STARVED) or -(error.code or 0) in SENT:
        return "starved", detail
    return "crashed" if error.code is not None and error.code < 0 else "failed", detail
