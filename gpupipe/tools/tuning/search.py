"""The search: each decoder alone, then all together, and moves from there as long as something gets better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned
from gpupipe.tools.tuning.candidates import changed, dali_engine, share_for, threads, torch_engine, with_odds
from gpupipe.tools.tuning.trials import Trial, Trials

__all__ = ["Allowed", "climb", "search_cpu", "search_gpu"]

Allowed = Callable[[Decoders], bool]
"""Whether the machine's self-test lets these decoders be used."""

Move = Callable[[Tuned], Tuned]
"""The candidate beside another in some direction, or the same one at the end of the road."""

BETTER = 1.005  # smaller gains are noise
LOADS = (0.0, 0.65, 1.0)  # the hybrid decoder alone, DALI's default, the hardware engines alone
DALI_DEPTHS, TORCH_DEPTHS = (2, 4, 6), (3, 4)  # prefetch factors beside the defaults, 3 and 2
STARTS = 3  # ways of DALI's to which the CPU is added
STEPS = (("large", 1.35, 0.25, 0.15), ("small", 1.12, 0.08, 0.05))  # of odds, of all CPUs, of the load

# Shares of the time by whose end a stage has to be over; what is left of it goes to the next one.
ALONE, THREADS, CPU, TOGETHER, REFINED, DEPTH = 0.25, 0.32, 0.40, 0.52, 0.70, 0.80
CPU_WORKERS, CPU_DALI, CPU_DEPTH = 0.45, 0.55, 0.70


def climb(trials: Trials, stage: str, start: Tuned, moves: Sequence[Move]) -> Tuned:
    """The best that single moves lead to, each repeated while it helps; at latest when the time is over."""
    best, seen = start, None
    while best != seen:
        seen = best
        for move in moves:
            while trials.rate(stage, move(best)) > BETTER * trials.rate(stage, best):
                best = move(best)
    return best


def search_cpu(trials: Trials, cpus: int, allowed: Allowed = lambda decoders: True) -> None:
    """Measure what may be fastest with `cpus` CPUs and no GPU, within the time of `trials`."""

    def move(step: int) -> Move:
        return lambda one: replace(one, num_workers=min(max(one.num_workers + step, 1), cpus))

    trials.allow(CPU_WORKERS)
    for count in dict.fromkeys((cpus, max(1, cpus // 2))):
        trials.rate("workers", torch_engine(count))
    step = max(1, cpus // 4)
    while trials.best(1):
        climb(trials, "workers", trials.best(1)[0].candidate, [move(step), move(-step)])
        if step == 1:
            break
        step = max(1, step // 3)
    trials.allow(CPU_DALI)
    for decoders in filter(allowed, (Decoders(crop_decode=True), Decoders(crop_decode=False))):
        trials.rate("DALI on the CPU", dali_engine(cpus, decoders))
    _depths(trials, CPU_DEPTH, TORCH_DEPTHS)


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
    _depths(trials, DEPTH, DALI_DEPTHS)


def _depths(trials: Trials, share: float, depths: Sequence[int]) -> None:
    """The last stage: batches ahead."""
    trials.allow(share)
    for trial in trials.best(1):
        for count in depths:
            trials.rate("prefetch depth", replace(trial.candidate, prefetch_factor=count))


@dataclass(frozen=True)
class GpuSearch:
    """The stages with a GPU."""

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
            climb(self.trials, "DALI alone", trial.candidate, list(map(self._guarded, _loads(0.1))))
        return self._dali_alone()

    def fewer_threads(self, ways: list[Trial]) -> None:
        """Stage 2: how many threads DALI needs, where it is fastest and where the hardware engines do most."""
        by_hardware = sorted(ways, key=lambda way: -_decoders(way.candidate).hw_decoder_load)
        for candidate in dict.fromkeys(way.candidate for way in [*ways[:1], *by_hardware[:1]]):
            count = self.cpus // 2
            while count >= 1:
                fewer = dali_engine(count, _decoders(candidate))
                if self.trials.rate("DALI with fewer threads", fewer) < 0.8 * self.trials.rate("", candidate):
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
            decoders = _decoders(way.candidate)
            ways.setdefault((decoders.crop_decode, decoders.hw_decoder_load), way)
        made = []
        for way in list(ways.values())[:STARTS]:
            for workers in sorted({max(1, round(self._free(way))), self.cpus}):
                cpu_rate = per_core * max(0.5, min(workers, self._free(way)))
                share = share_for(cpu_rate, way.rate)
                made.append(changed(way.candidate, cpu_share=share, cpu_workers=workers))
                self.trials.rate("all decoders", made[-1])
        return sorted(made, key=lambda candidate: -self.trials.rate("all decoders", candidate))

    def refine(self, start: Tuned) -> Tuned:
        """Stage 5: shares, workers, threads and load in turn, in steps that become smaller."""
        best = start
        for text, factor, part, load in STEPS:
            moves = map(self._guarded, _moves(self.cpus, factor, max(1, round(part * self.cpus)), load))
            best = climb(self.trials, f"all decoders, {text} steps", best, list(moves))
        return best

    def _guarded(self, move: Move) -> Move:
        """The move, which stays where it is rather than go to what does not work here."""

        def go(candidate: Tuned) -> Tuned:
            there = move(candidate)
            return there if self._works(_decoders(there)) else candidate

        return go

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


def _moves(cpus: int, factor: float, step: int, load: float) -> list[Move]:
    """The CPU's part of each batch, by the odds; worker processes, with the share that as much work for each of them
    means; the hardware engines' part of what DALI decodes; DALI's threads; the crop's window alone or the image."""

    def workers(one: Tuned, by: int) -> Tuned:
        decoders = _decoders(one)
        count = min(max(decoders.cpu_workers + by, 1), cpus)
        share = with_odds(decoders.cpu_share, count / decoders.cpu_workers)
        return changed(one, cpu_share=share, cpu_workers=count)

    return [
        lambda one: changed(one, cpu_share=with_odds(_decoders(one).cpu_share, factor)),
        lambda one: changed(one, cpu_share=with_odds(_decoders(one).cpu_share, 1 / factor)),
        lambda one: workers(one, step),
        lambda one: workers(one, -step),
        *_loads(load),
        lambda one: changed(one, min(threads(one) + step, cpus)),
        lambda one: changed(one, max(threads(one) - step, 1)),
        lambda one: changed(one, crop_decode=not _decoders(one).crop_decode),
    ]


def _loads(step: float) -> list[Move]:
    return [
        lambda one: changed(one, hw_decoder_load=_decoders(one).hw_decoder_load + step),
        lambda one: changed(one, hw_decoder_load=_decoders(one).hw_decoder_load - step),
    ]


def _plan(decoders: Decoders) -> tuple[bool | None, bool]:
    """What the self-test distinguishes: crop decode, hardware engines."""
    return decoders.crop_decode, decoders.hw_decoder_load > 0


def _decoders(candidate: Tuned) -> Decoders:
    assert candidate.decoders is not None
    return candidate.decoders
