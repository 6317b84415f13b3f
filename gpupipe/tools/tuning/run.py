"""The whole of a tuning: search, final, choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned
from gpupipe.tools.tuning.candidates import dali_engine, torch_engine
from gpupipe.tools.tuning.cpus import chosen
from gpupipe.tools.tuning.final import choose, play_off
from gpupipe.tools.tuning.others import Others
from gpupipe.tools.tuning.rig import Rig
from gpupipe.tools.tuning.search_cpu import search_cpu
from gpupipe.tools.tuning.search_gpu import Allowed, search_gpu
from gpupipe.tools.tuning.settings import TuneSettings
from gpupipe.tools.tuning.trials import Measure, Trial, Trials

__all__ = ["Outcome", "search", "tune"]

Say = Callable[[str], None]


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
    with Rig(settings, str(device), log) as rig:
        say("reading a sample of the data")
        rig.read()
        others = Others(chosen(settings.cpus))
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
