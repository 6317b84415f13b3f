"""The whole of a tuning: search, final, choice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gpupipe.batch import Field
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.selftest import find_verdict, fitted
from gpupipe.decode.tuned import Tuned
from gpupipe.errors import ConfigError
from gpupipe.host.checks import at_least
from gpupipe.host.children import Child, ChildError
from gpupipe.host.system import usable_cpus
from gpupipe.host.usage import busy_seconds, cpu_seconds, some_cpus
from gpupipe.sources.remote.objects import name
from gpupipe.tools.benchmark.measurement import Round
from gpupipe.tools.tuning.candidates import dali_engine, torch_engine
from gpupipe.tools.tuning.search import Allowed, search_cpu, search_gpu
from gpupipe.tools.tuning.trials import Measure, Trial, Trials, choose, play_off

__all__ = ["BUSY", "Others", "Outcome", "Rig", "TuneSettings", "permitted", "search", "tune"]

Say = Callable[[str], None]

SECONDS = (0.2, 5.0)  # the least and the most for a measured stretch
BUSY = 0.10
"""From this share of the CPUs' time on, others decide with which settings are fastest: those differ by less."""

BENCH = "gpupipe.tools.tuning.child:Bench"
READING = 1800  # seconds that opening the data and reading the sample may take
STARTING = 90  # more seconds for a child's first candidate: imports, CUDA's start, kernels to compile


@dataclass(frozen=True)
class TuneSettings:
    """One tuning: the data, the shape of a batch, and what a training process will have.

    data:       an image folder or tar shards, as for `Loader`.
    cpus:       CPUs of one training process; candidates are measured on so many.
    batch_size: images a batch.
    size:       side of the square output in pixels.
    minutes:    for everything, about.
    timeout:    seconds without an answer after which a candidate counts as hanging.
    fields:     of the samples, as `open_source` takes them: image and label.

    Raises ConfigError for values out of range.
    """

    data: str | list[str]
    cpus: int
    batch_size: int = 256
    size: int = 224
    minutes: float = 4.0
    timeout: float = 30.0
    fields: dict[str, Field] | None = None

    def __post_init__(self) -> None:
        at_least(self, "cpus batch_size size", 1)
        at_least(self, "minutes timeout", 0, above=True)
        if self.cpus > usable_cpus():
            raise ConfigError(f"cpus={self.cpus}: this process may use {usable_cpus()}")

    @property
    def seconds(self) -> float:
        """Measured time of a candidate: with starting it, some 60 find room in the minutes."""
        return min(max(self.minutes * 60 / 120, SECONDS[0]), SECONDS[1])

    @property
    def own_cpus(self) -> list[int]:
        """Of the CPUs that this process may use those that candidates run on."""
        return some_cpus(os.sched_getaffinity(0), self.cpus)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a report, which is shown to others: of the data's paths only the names."""
        data = [self.data] if isinstance(self.data, str) else self.data
        return asdict(self) | {"data": [name(str(one)) for one in data]}


class Others:
    """Counts, from its making on, how long these CPUs worked for anyone but this process and its descendants."""

    def __init__(self, cpus: Collection[int]) -> None:
        self._cpus = cpus
        self._start = time.monotonic()
        self._before = self._taken()

    def share(self) -> float:
        """Their part of the CPUs' time so far, 0 to 1."""
        seconds = len(self._cpus) * (time.monotonic() - self._start)
        return min(max(self._taken() - self._before, 0.0) / seconds, 1.0) if seconds else 0.0

    def _taken(self) -> float:
        return busy_seconds(self._cpus) - cpu_seconds()


class Rig:
    """Measures candidates on `device`, in a child process that is started again after a candidate that broke it.

    What they print goes to the file `log`.
    """

    def __init__(self, settings: TuneSettings, device: str, log: Path) -> None:
        self._settings = settings
        self._device = device
        self._log = log
        self._child: Child | None = None
        self._warm = False

    def read(self) -> int:
        """Read the images that candidates will load; how many there are. Raises ChildError."""
        count: int = self._running().ask("read", extra_time=READING)
        return count

    def __call__(self, candidate: Tuned) -> Round:
        """Raises ChildError where the candidate fails; whatever it has left behind is gone then."""
        try:
            measured: Round = self._running().ask("measure", candidate, extra_time=0 if self._warm else STARTING)
        except ChildError:
            self.close()
            raise
        self._warm = True
        return measured

    def _running(self) -> Child:
        if self._child is None:
            with self._log.open("ab") as log:
                self._child = Child(BENCH, (self._settings, self._device), log, self._settings.timeout)
        return self._child

    def close(self) -> None:
        """End the child and all its children."""
        if self._child is not None:
            self._child.end()
        self._child, self._warm = None, False


@dataclass(frozen=True)
class Outcome:
    """All that was measured, the finalists, which of them won, and what a loader does by itself.

    others: the share of the CPUs' time that other processes took meanwhile, 0 to 1.
    """

    trials: list[Trial]
    finalists: list[Trial]
    winner: Trial
    default: Tuned
    others: float = 0.0


def tune(settings: TuneSettings, device: torch.device, log: Path, say: Say, allowed: Allowed) -> Outcome:
    """Find the fastest settings for batches on `device`; what candidates print goes to the file `log`.

    say: called with a line before each measurement. allowed: which decoders may be tried.
    Raises ChildError where the data can't be read, TuningError where no candidate works.
    """
    with closing(Rig(settings, str(device), log)) as rig:
        say("reading a sample of the data")
        rig.read()
        others = Others(settings.own_cpus)
        return replace(search(rig, settings, device, say, allowed), others=others.share())


def search(measure: Measure, settings: TuneSettings, device: torch.device, say: Say, allowed: Allowed) -> Outcome:
    """The same by any way to measure."""
    trials = Trials(measure, 60 * settings.minutes, say)
    on_gpu = device.type == "cuda"
    default = _default(settings.cpus, allowed) if on_gpu else torch_engine(settings.cpus)
    trials.warm_up(default)
    (search_gpu if on_gpu else search_cpu)(trials, settings.cpus, allowed)
    finalists = play_off(trials, default)
    return Outcome(list(trials.by_candidate.values()), finalists, choose(finalists, default), default)


def _default(cpus: int, allowed: Allowed) -> Tuned:
    """What a loader does by itself on a GPU, as far as the self-test lets it."""
    ways = (Decoders(crop_decode=False), Decoders(hw_decoder_load=0.0, crop_decode=False))
    found = next((decoders for decoders in ways if allowed(decoders)), None)
    return torch_engine(cpus) if found is None else dali_engine(cpus, found)


def permitted(device: torch.device) -> Allowed:
    """Says of decoders whether they may be used on `device`. On a GPU the self-test is made, if it was not yet."""
    if device.type != "cuda":
        return lambda decoders: True
    verdict = find_verdict(device)
    return lambda decoders: fitted(decoders, verdict) == decoders
