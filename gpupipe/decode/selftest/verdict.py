"""Which decode plans a machine's GPU may use: tried once, remembered by GPU, driver, DALI and nvImageCodec."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpupipe.decode.decoders import Decoders
from gpupipe.decode.selftest.plans import GPU_PLANS, TIMEOUT, DecodePlan, Outcome, PlanTrial, try_plans
from gpupipe.errors import EngineUnavailableError
from gpupipe.host.cache import cache_folder, recall, remember
from gpupipe.host.files import folder_lock
from gpupipe.host.machine import decoder_facts

if TYPE_CHECKING:
    import torch

__all__ = ["Verdict", "find_verdict", "fit", "fitted", "new_verdict"]

log = logging.getLogger("gpupipe")

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
    found = _recalled(key)
    if found is not None:
        return found
    with _alone():
        found = _recalled(key)
        if found is None:
            log.warning(NEW, key["gpu"], len(GPU_PLANS), TIMEOUT)
            found = _tried(device, key)
        return found


def new_verdict(device: torch.device) -> Verdict:
    """Try all plans on a GPU now; later loaders take this verdict."""
    with _alone():
        return _tried(device, _key(device))


def _key(device: torch.device) -> dict[str, Any]:
    return decoder_facts(device) | {"series": SERIES}


def _recalled(key: dict[str, Any]) -> Verdict | None:
    stored = recall(KIND, key)
    try:
        found = None if stored is None else Verdict.from_dict(stored)
    except (KeyError, TypeError, ValueError):
        return None
    return found if found is not None and found.holds(time.time()) else None


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep this machine's other processes out; where the cache folder can't be had each goes its own way."""
    folder = cache_folder()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder_lock(folder, wait=True, doing="tries this GPU's decoders"))
        yield


def _tried(device: torch.device, key: dict[str, Any]) -> Verdict:
    start = time.perf_counter()
    trials = try_plans(str(device), GPU_PLANS)
    verdict = Verdict(key["gpu"], tuple(trials), time.time(), round(time.perf_counter() - start, 1))
    path = remember(KIND, key, dataclasses.asdict(verdict))
    passed = sum(trial.passed for trial in trials)
    log.info("gpupipe: %d of %d decode plans passed in %.0f s; kept in %s", passed, len(trials), verdict.seconds, path)
    return verdict
