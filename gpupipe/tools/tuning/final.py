"""The best of the search in turn, and which of them is taken."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpupipe.decode.tuned import Tuned
from gpupipe.errors import GpupipeError
from gpupipe.tools.tuning.candidates import parts
from gpupipe.tools.tuning.trials import Trial, Trials

__all__ = ["TuningError", "choose", "play_off"]

BEST = 3  # of the search
LEAST, MOST = 3, 7  # rounds
NOISE, MOST_NOISE = 0.02, 0.05  # of the rate: a smaller difference is none, a larger one always counts


class TuningError(GpupipeError):
    """No candidate could be measured."""


def play_off(trials: Trials, default: Tuned) -> list[Trial]:
    """Measure the finalists in turn, three times and more while there is time; those that failed are left out.

    Finalists are the best of the search, the best of those that are simpler, the torch engine's best and what a loader
    does by itself. Raises TuningError where all have failed.
    """
    finalists = _finalists(trials, default)
    for turn in range(MOST):
        if turn >= LEAST and trials.spent + len(finalists) * trials.cost > 1:
            break
        for trial in finalists:
            trials.final(f"final round {turn + 1}", trial)
    working = [trial for trial in finalists if not trial.reason]
    if not working:
        reasons = "; ".join(sorted({trial.reason or "" for trial in trials.by_candidate.values()} - {""}))
        raise TuningError(f"no candidate could be measured: {reasons}")
    return working


def _finalists(trials: Trials, default: Tuned) -> list[Trial]:
    ranked = trials.best(len(trials.by_candidate))
    simple = [trial for trial in ranked if parts(trial.candidate, default) < 2]
    by_torch = [trial for trial in ranked if trial.candidate.engine == "torch"]
    chosen = [*ranked[:BEST], *simple[:1], *by_torch[:1], trials.measured("default", default)]
    return list({trial.candidate: trial for trial in chosen}.values())


def choose(finalists: Sequence[Trial], default: Tuned) -> Trial:
    """The simplest of those that are as fast as the fastest, by the median of the final rounds.

    As fast is what lies less than 2% behind in the median of the rounds; or less than 5%, if it was ahead in one of
    them. Rounds are compared one by one: what a machine does from minute to minute slows both in the same round.
    """
    fastest = max(finalists, key=_median)
    equal = [trial for trial in finalists if _as_fast(trial, fastest)]
    return min(equal, key=lambda trial: (parts(trial.candidate, default), -_median(trial)))


def _as_fast(one: Trial, fastest: Trial) -> bool:
    rounds = zip(one.finals, fastest.finals, strict=True)
    behind = [1 - own.rate / best.rate for own, best in rounds]
    middle = statistics.median(behind)
    return middle < NOISE or (middle < MOST_NOISE and min(behind) <= 0)


def _median(trial: Trial) -> float:
    return statistics.median(one.rate for one in trial.finals)
