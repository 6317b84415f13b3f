"""The search without a GPU: worker processes of the torch engine, and DALI's CPU backend beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned
from gpupipe.tools.tuning.candidates import dali_engine, torch_engine
from gpupipe.tools.tuning.climb import Move, climb
from gpupipe.tools.tuning.trials import Trials

__all__ = ["search_cpu"]

PREFETCH = (3, 4)  # beside the default, 2
WORKERS, DALI, DEPTH = 0.45, 0.55, 0.70  # of the time, by whose end a stage has to be over


def search_cpu(trials: Trials, cpus: int, allowed: Callable[[Decoders], bool] = lambda decoders: True) -> None:
    """Measure what may be fastest with `cpus` CPUs, within the time of `trials`."""
    trials.allow(WORKERS)
    for count in dict.fromkeys((cpus, max(1, cpus // 2))):
        trials.rate("workers", torch_engine(count))
    step = max(1, cpus // 4)
    while trials.best(1):
        climb(trials, "workers", trials.best(1)[0].candidate, [_change(step, cpus), _change(-step, cpus)])
        if step == 1:
            break
        step = max(1, step // 3)
    trials.allow(DALI)
    for crop in (True, False):
        decoders = Decoders(crop_decode=crop)
        if allowed(decoders):
            trials.rate("DALI on the CPU", dali_engine(cpus, decoders))
    trials.allow(DEPTH)
    for trial in trials.best(1):
        for count in PREFETCH:
            trials.rate("prefetch depth", replace(trial.candidate, prefetch_factor=count))


def _change(step: int, most: int) -> Move:
    def move(candidate: Tuned) -> Tuned:
        return replace(candidate, num_workers=min(max(candidate.num_workers + step, 1), most))

    return move
