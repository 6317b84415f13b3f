"""Which decode plans a machine's GPU may use: each is tried once, in a child process, and what that gave is remembered
by GPU, driver, DALI and nvImageCodec."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from gpupipe.decode.decoders import Decoders
from gpupipe.errors import EngineUnavailableError
from gpupipe.host.cache import alone, recall, remember
from gpupipe.host.children import Child, ChildError
from gpupipe.host.machine import decoder_facts

if TYPE_CHECKING:
    import torch

__all__ = ["CPU_PLANS", "GPU_PLANS", "MARKER", "DecodePlan", "Outcome", "PlanTrial", "Verdict"]
__all__ += ["find_verdict", "fit", "fitted", "new_verdict", "try_plans"]

log = logging.getLogger("gpupipe")

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
    with contextlib.ExitStack() as stack:
        children = []
        for _ in plans:
            log = stack.enter_context(tempfile.TemporaryFile())
            children.append((Child(TRIALS, (device,), log, timeout), log))
            stack.callback(children[-1][0].kill)
        return [_trial(child, log, plan) for (child, log), plan in zip(children, plans, strict=True)]


def _trial(child: Child, log: IO[bytes], plan: DecodePlan) -> PlanTrial:
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


# The verdict.

KIND = "selftest"
SERIES = 1  # goes up when the trials become stricter or cover more, so that old verdicts are not used

HOUR = 3600.0
FOREVER = float("inf")

# Seconds for which an outcome is believed. Pixels and crashes are facts about the versions that the key names. An
# exception may come from what it does not name (a container without the driver's video libraries), a hang from a busy
# machine; what starved is likely to pass a little later, and is kept just for processes that start together.
KEPT: dict[Outcome, float] = {
    "passed": FOREVER,
    "wrong": FOREVER,
    "crashed": FOREVER,
    "failed": 24 * HOUR,
    "hung": HOUR,
    "starved": HOUR / 12,
}

# A warning, as it explains a wait to those who have not set up logging.
NEW = (
    "gpupipe: %s with this driver and this DALI is new here: its decoders are tried in %d child processes, once; what "
    "hangs is given up after %g s"
)


@dataclass(frozen=True)
class Verdict:
    """What the trials on a GPU gave. when: seconds since the epoch; gpu: its name; seconds: what the trials took."""

    gpu: str
    trials: tuple[PlanTrial, ...]
    when: float
    seconds: float

    def allows(self, plan: DecodePlan) -> bool:
        return any(trial.passed for trial in self.trials if trial.plan == plan)

    def holds(self, now: float) -> bool:
        """Whether it is still to be believed."""
        return now - self.when < min(KEPT[trial.outcome] for trial in self.trials)

    def summary(self) -> str:
        """Each plan that is ruled out, and why."""
        out = [f"{trial.plan.name}: {trial.outcome}, {trial.detail}" for trial in self.trials if not trial.passed]
        return "; ".join(out)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Verdict:
        """Of `dataclasses.asdict`. Raises KeyError, TypeError or ValueError for what another version has stored."""
        trials = [PlanTrial(**(trial | {"plan": DecodePlan(**trial["plan"])})) for trial in stored["trials"]]
        if not trials or any(trial.outcome not in KEPT for trial in trials):
            raise ValueError("not a verdict")
        return cls(**(stored | {"trials": tuple(trials)}))


def fit(decoders: Decoders, device: torch.device) -> Decoders:
    """The decoders that were wished for, without what the self-test rules out on this GPU; on a CPU as they are.

    A ruled-out crop decode becomes full decode, ruled-out hardware engines get no load; a log line says so. The first
    call on a machine tries all plans, in child processes, and keeps the verdict in the cache folder.
    Raises EngineUnavailableError where nothing is left.
    """
    if device.type != "cuda":
        return decoders
    verdict = find_verdict(device)
    found = fitted(decoders, verdict)
    if found is None:
        raise EngineUnavailableError(
            f"DALI can't be trusted to decode on {verdict.gpu}: {verdict.summary()}. `gpupipe doctor` tries again; use "
            "engine='torch', or another version of DALI and nvImageCodec"
        )
    if found != decoders:
        log.warning(
            "gpupipe: decoding on %s with %s, because its self-test ruled out %s (`gpupipe doctor` tries again)",
            verdict.gpu,
            _plan(found).name,
            verdict.summary(),
        )
    return found


def fitted(decoders: Decoders, verdict: Verdict) -> Decoders | None:
    """The wish without what the verdict rules out, crop decode given up before the hardware engines; None: no way."""
    wish = _plan(decoders)
    for hardware in (wish.hardware, False):
        for crop in (wish.crop_decode, False):
            if verdict.allows(DecodePlan(crop, hardware)):
                load = decoders.hw_decoder_load if hardware else 0.0
                given_up = {} if crop == wish.crop_decode else {"crop_decode": crop}
                return dataclasses.replace(decoders, hw_decoder_load=load, **given_up)
    return None


def _plan(decoders: Decoders) -> DecodePlan:
    return DecodePlan(bool(decoders.crop_decode), hardware=decoders.hw_decoder_load > 0)


def find_verdict(device: torch.device) -> Verdict:
    """The verdict on a GPU: the one in the cache folder, else a new one.

    Of several processes that ask at once one tries the plans; the others wait for it.
    """
    key = _key(device)
    if (found := _recalled(key)) is not None:
        return found
    with alone("selftest", "tries this GPU's decoders"):
        if (found := _recalled(key)) is None:
            log.warning(NEW, key["gpu"], len(GPU_PLANS), TIMEOUT)
            found = _tried(device, key)
        return found


def new_verdict(device: torch.device) -> Verdict:
    """Try all plans on a GPU now; later loaders take this verdict."""
    with alone("selftest", "tries this GPU's decoders"):
        return _tried(device, _key(device))


def _key(device: torch.device) -> dict[str, Any]:
    return decoder_facts(device) | {"series": SERIES}


def _recalled(key: dict[str, Any]) -> Verdict | None:
    stored = recall(KIND, key)
    try:
        found = None if stored is None else Verdict.from_dict(stored)
        return found if found is not None and found.holds(time.time()) else None
    except (KeyError, TypeError, ValueError):
        return None


def _tried(device: torch.device, key: dict[str, Any]) -> Verdict:
    start = time.perf_counter()
    trials = try_plans(str(device), GPU_PLANS)
    verdict = Verdict(key["gpu"], tuple(trials), time.time(), round(time.perf_counter() - start, 1))
    path = remember(KIND, key, dataclasses.asdict(verdict))
    passed = sum(trial.passed for trial in trials)
    log.info("gpupipe: %d of %d decode plans passed in %.0f s; kept in %s", passed, len(trials), verdict.seconds, path)
    return verdict
