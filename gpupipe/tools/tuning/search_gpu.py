"""The search on a GPU: each decoder alone, then all of them with the shares that their own rates foretell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned
from gpupipe.tools.tuning.candidates import dali_engine, share_for, shared, threads, torch_engine
from gpupipe.tools.tuning.climb import (
    Move,
    change_load,
    change_share,
    change_threads,
    change_workers,
    climb,
    switch_crop,
)
from gpupipe.tools.tuning.trials import Trial, Trials

__all__ = ["Allowed", "search_gpu"]

Allowed = Callable[[Decoders], bool]
"""Whether the machine's self-test lets these decoders be used."""

LOADS = (0.0, 0.65, 1.0)  # the hybrid decoder alone, DALI's default, the hardware engines alone
PREFETCH = (2, 4, 6)  # beside the default, 3
STARTS = 3  # ways of DALI's to which the CPU is added
STEPS = (("large", 1.35, 0.25, 0.15), ("small", 1.12, 0.08, 0.05))  # of odds, of all CPUs, of the load

# Shares of the time by whose end a stage has to be over; what is left of it goes to the next one.
ALONE, THREADS, CPU, TOGETHER, REFINED, DEPTH = 0.25, 0.32, 0.40, 0.52, 0.70, 0.80


@dataclass(frozen=True)
class GpuSearch:
    """What the stages share."""

    trials: Trials
    cpus: int
    allowed: Allowed

    def alone(self) -> list[Trial]:
        """Stage 1: each way that DALI decodes by itself, on all CPUs."""
        for crop in (False, True):
            hybrid, _, hardware = (self._alone(crop, load) for load in LOADS)
            if hybrid and hardware:  # at this load both would take as long
                self._alone(crop, round(20 * share_for(hardware, hybrid)) / 20)
        for trial in self.trials.best(1):
            climb(self.trials, "DALI alone", trial.candidate, self._permitted(change_load(0.1), change_load(-0.1)))
        return self._dali_alone()

    def fewer_threads(self, ways: list[Trial]) -> None:
        """Stage 2: how many threads DALI needs, where it is fastest and where the hardware engines do most."""
        by_hardware = sorted(ways, key=lambda trial: -_decoders(trial).hw_decoder_load)
        for trial in dict.fromkeys(t.candidate for t in [*ways[:1], *by_hardware[:1]]):
            count = self.cpus // 2
            while count >= 1:
                fewer = dali_engine(count, _decoders(self.trials.by_candidate[trial]))
                if self.trials.rate("DALI with fewer threads", fewer) < 0.8 * self.trials.rate("", trial):
                    break
                count //= 2

    def cpu_alone(self) -> Tuned:
        """Stage 3: the CPU by itself."""
        counts = [self.cpus, *((3 * self.cpus // 4,) if self.cpus > 3 else ())]
        return max(map(torch_engine, counts), key=lambda candidate: self.trials.rate("CPU alone", candidate))

    def together(self, cpu: Tuned) -> list[Tuned]:
        """Stage 4: the CPU beside the ways of DALI with which most can be hoped for, at the share foretold."""
        cpu_trial = self.trials.by_candidate.get(cpu)
        if cpu_trial is None or not cpu_trial.rate:
            return []
        per_core = cpu_trial.rate / min(max(cpu_trial.cores, 1.0), self.cpus)
        hopes = sorted(self._dali_alone(), key=lambda way: -(way.rate + per_core * self._free(way)))
        ways: dict[tuple[bool | None, float], Trial] = {}
        for way in hopes:
            ways.setdefault((_decoders(way).crop_decode, _decoders(way).hw_decoder_load), way)
        made = []
        for way in list(ways.values())[:STARTS]:
            for workers in sorted({max(1, round(self._free(way))), self.cpus}):
                cpu_rate = per_core * max(0.5, min(workers, self._free(way)))
                share = share_for(cpu_rate, way.rate)
                made.append(shared(way.candidate, cpu_share=share, cpu_workers=workers))
                self.trials.rate("all decoders", made[-1])
        return sorted(made, key=lambda candidate: -self.trials.rate("all decoders", candidate))

    def refine(self, start: Tuned) -> Tuned:
        """Stage 5: shares, workers, threads and load in turn, in steps that become smaller."""
        best = start
        for text, factor, step, load in STEPS:
            moves = self._moves(factor, max(1, round(step * self.cpus)), load)
            best = climb(self.trials, f"all decoders, {text} steps", best, moves)
        return best

    def depth(self, candidate: Tuned) -> None:
        """Stage 6: batches ahead."""
        for count in PREFETCH:
            self.trials.rate("prefetch depth", replace(candidate, prefetch_factor=count))

    def _moves(self, factor: float, step: int, load: float) -> list[Move]:
        return self._permitted(
            change_share(factor),
            change_share(1 / factor),
            change_workers(step, self.cpus),
            change_workers(-step, self.cpus),
            change_load(load),
            change_load(-load),
            change_threads(step, self.cpus),
            change_threads(-step, self.cpus),
            switch_crop,
        )

    def _permitted(self, *moves: Move) -> list[Move]:
        """The moves, which stay where they are rather than go to what does not work here."""

        def guarded(move: Move) -> Move:
            def go(candidate: Tuned) -> Tuned:
                there = move(candidate)
                return there if there.decoders is not None and self._works(there.decoders) else candidate

            return go

        return [guarded(move) for move in moves]

    def _alone(self, crop: bool, load: float) -> float:
        decoders = Decoders(hw_decoder_load=load, crop_decode=crop)
        return self.trials.rate("DALI alone", dali_engine(self.cpus, decoders)) if self._works(decoders) else 0.0

    def _works(self, decoders: Decoders) -> bool:
        """Whether the self-test allows it, and DALI alone has not failed with it: a crash costs seconds."""
        failed = (t.candidate.decoders for t in self.trials.by_candidate.values() if t.reason)
        return self.allowed(decoders) and not any(
            other and not other.cpu_workers and _plan(other) == _plan(decoders) for other in failed
        )

    def _dali_alone(self) -> list[Trial]:
        known = self.trials.by_candidate.values()
        ways = [t for t in known if t.rate and t.candidate.decoders and not t.candidate.decoders.cpu_workers]
        return sorted(ways, key=lambda trial: -trial.rate)

    def _free(self, way: Trial) -> float:
        """CPUs that this way leaves to others. Threads that wait actively are not taken for work of all CPUs."""
        return max(0.0, self.cpus - min(way.cores, threads(way.candidate)))


def search_gpu(trials: Trials, cpus: int, allowed: Allowed = lambda decoders: True) -> None:
    """Measure what may be fastest with `cpus` CPUs and a GPU, within the time of `trials`."""
    search = GpuSearch(trials, cpus, allowed)
    trials.allow(ALONE)
    ways = search.alone()
    trials.allow(THREADS)
    search.fewer_threads(ways)
    trials.allow(CPU)
    cpu = search.cpu_alone()
    trials.allow(TOGETHER)
    starts = search.together(cpu)
    trials.allow(REFINED)
    for start in starts:
        search.refine(start)
    trials.allow(DEPTH)
    for trial in trials.best(1):
        search.depth(trial.candidate)


def _plan(decoders: Decoders) -> tuple[bool | None, bool]:
    """What the self-test distinguishes: crop decode, hardware engines."""
    return decoders.crop_decode, decoders.hw_decoder_load > 0


def _decoders(trial: Trial) -> Decoders:
    assert trial.candidate.decoders is not None
    return trial.candidate.decoders
