"""What was measured, how much time is left for more, and which of the best is taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpupipe.decode.tuned import Tuned
from gpupipe.errors import GpupipeError
from gpupipe.host.children import ChildError
from gpupipe.tools.benchmark.measurement import Round, Spread, spread
from gpupipe.tools.tuning.candidates import parts

__all__ = ["Measure", "Trial", "Trials", "TuningError", "choose", "play_off"]

Measure = Callable[[Tuned], Round]
"""Runs a loader with these settings. Raises ChildError where that fails."""

FINAL, MOST_FINAL = 18, 0.5  # measurements that the search leaves time for, and the most of the time for them
BEST = 3  # of the search
LEAST, MOST = 3, 7  # final rounds
NOISE, MOST_NOISE = 0.02, 0.05  # of the rate: a smaller difference is none, a larger one always counts


class TuningError(GpupipeError):
    """No candidate could be measured."""


@dataclass
class Trial:
    """A candidate's measurements. stage: what was asked first. reason: why it failed, after which it is left alone."""

    stage: str
    candidate: Tuned
    rounds: list[Round] = field(default_factory=list)
    finals: list[Round] = field(default_factory=list)
    reason: str | None = None

    @property
    def rate(self) -> float:
        """Images a second, the median of the search; 0 for one that failed."""
        return 0.0 if self.reason or not self.rounds else statistics.median(one.rate for one in self.rounds)

    @property
    def final(self) -> Spread:
        """Images a second of the final rounds; 0 where there were none."""
        return spread([one.rate for one in self.finals]) or Spread(0.0, 0.0, 0.0)

    @property
    def cores(self) -> float:
        """CPUs that were busy, of one measurement."""
        return self.rounds[0].cpu_seconds / self.rounds[0].seconds if self.rounds else 0.0


class Trials:
    """Measures each candidate once, and none when the time for it is over.

    seconds: for everything. say: called with a line before each measurement. clock: seconds, ever growing.
    """

    def __init__(
        self,
        measure: Measure,
        seconds: float,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure = measure
        self._say = say
        self._clock = clock
        self._seconds = seconds
        self._start = clock()
        self._allowed = 1.0
        self._count = 0
        self.by_candidate: dict[Tuned, Trial] = {}

    def allow(self, share: float) -> None:
        """From now on `rate` measures until so much of the time, 0 to 1, is spent."""
        self._allowed = share

    @property
    def spent(self) -> float:
        """The share of the time that is spent, above 1 when it is over."""
        return (self._clock() - self._start) / self._seconds

    @property
    def cost(self) -> float:
        """The share of the time that a measurement takes, the mean of those so far."""
        return self.spent / max(1, self._count)

    def warm_up(self, candidate: Tuned) -> None:
        """Start a candidate without counting it: clocks rise, libraries load, kernels compile. It may fail."""
        self._run("warming up", candidate, [])

    def rate(self, stage: str, candidate: Tuned) -> float:
        """Images a second; 0 for a candidate that fails, or whose measurement there is no time for."""
        known = self.by_candidate.get(candidate)
        if known is not None:
            return known.rate
        kept_free = min(FINAL * self.cost, MOST_FINAL)
        return self.measured(stage, candidate).rate if self.spent < min(self._allowed, 1 - kept_free) else 0.0

    def measured(self, stage: str, candidate: Tuned) -> Trial:
        """Measured at least once, whatever the time."""
        trial = self.by_candidate.setdefault(candidate, Trial(stage, candidate))
        if not trial.rounds and not trial.reason:
            trial.reason = self._run(stage, candidate, trial.rounds)
        return trial

    def final(self, stage: str, trial: Trial) -> None:
        """Measure once more, for the choice among the best."""
        if not trial.reason:
            trial.reason = self._run(stage, trial.candidate, trial.finals)

    def best(self, count: int) -> list[Trial]:
        """The fastest of the search, those that failed left out."""
        working = [trial for trial in self.by_candidate.values() if trial.rate > 0]
        return sorted(working, key=lambda trial: -trial.rate)[:count]

    def _run(self, stage: str, candidate: Tuned, rounds: list[Round]) -> str | None:
        fastest = max((trial.rate for trial in self.by_candidate.values()), default=0.0)
        self._count += 1
        self._say(f"{stage}{f', best so far {fastest:,.0f} img/s' if fastest else ''}")
        try:
            rounds.append(self._measure(candidate))
        except ChildError as error:
            return str(error)
        return None


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
    fastest = max(finalists, key=lambda trial: trial.final.median)
    equal = [trial for trial in finalists if _as_fast(trial, fastest)]
    return min(equal, key=lambda trial: (parts(trial.candidate, default), -trial.final.median))


def _as_fast(one: Trial, fastest: Trial) -> bool:
    behind = [1 - own.rate / best.rate for own, best in zip(one.finals, fastest.finals, strict=True)]
    middle = statistics.median(behind)
    return middle < NOISE or (middle < MOST_NOISE and min(behind) <= 0)
