"""The ways in which DALI can decode, and a trial of each in a child process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from gpupipe.decode.selftest.outcomes import Outcome, failure, judge
from gpupipe.host.children import Child, ChildError

__all__ = ["DecodePlan", "PlanTrial", "try_plans"]

TRIALS = "gpupipe.decode.selftest.trial:SelfTest"
TIMEOUT = 120.0  # seconds for a plan; the first CUDA start on a node with many GPUs can take half a minute


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
        outcome, detail = judge(found)
    except ChildError as error:
        found = {}
        log.seek(0)
        outcome, detail = failure(error, log.read().decode(errors="replace"))
    finally:
        child.kill()  # so that the next one has the GPU to itself
    seconds = round(time.perf_counter() - start, 2)
    return PlanTrial(plan, outcome, detail, seconds, found.get("mean"), found.get("largest"))
