"""Machines on paper: what a loader would reach on them, from a few costs, and a clock that measuring moves on."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gpupipe.decode.tuned import Tuned
from gpupipe.host.children import ChildError
from gpupipe.tools.benchmark.measurement import Round
from gpupipe.tools.tuning.candidates import threads

Rates = np.ndarray


@dataclass(frozen=True)
class Machine:
    """What each decoder takes for an image.

    hardware, hybrid: images a second of the GPU's parts, at most; 0 for none.
    hybrid_cpu, hardware_cpu: a DALI thread's seconds for an image of each.
    cpu: a worker's seconds for an image; for the smallest crops it is `smallest` times as much.
    hybrid_crop, hardware_crop: how many times as fast each is when it decodes crops.
    """

    cpus: int
    hardware: float
    hybrid: float
    hybrid_cpu: float
    hardware_cpu: float
    cpu: float
    smallest: float = 0.5
    hybrid_crop: float = 1.3
    hardware_crop: float = 1.0

    def by_torch(self, workers: int) -> float:
        """Images a second of the torch engine."""
        return min(workers, self.cpus) / self.cpu * (1 - 0.004 * max(0, workers - self.cpus))

    def by_dali(self, crop: bool, load: Rates, count: Rates, workers: Rates, share: Rates) -> Rates:
        """Images a second with this share of each batch for `workers`, and the rest for DALI with `count` threads.

        The slowest part says how long an image takes; near each other they hinder each other.
        """
        to_hardware, to_hybrid = (1 - share) * load, (1 - share) * (1 - load)
        hybrid, hardware = (
            (self.hybrid * self.hybrid_crop, self.hardware * self.hardware_crop)
            if crop
            else (self.hybrid, self.hardware)
        )
        by_workers = share * self.cpu * (self.smallest + (1 - self.smallest) * share)
        by_threads = to_hybrid * self.hybrid_cpu + to_hardware * self.hardware_cpu
        times = [
            to_hardware / hardware,
            to_hybrid / hybrid,
            by_threads / count,
            by_workers / np.maximum(workers, 1e-9),
            (by_workers + by_threads) / self.cpus,
        ]
        crowd = 1 - 0.002 * np.maximum(0, count + workers - self.cpus)
        return crowd / sum(time**10 for time in times) ** 0.1

    def rate(self, candidate: Tuned) -> float:
        """Images a second of a loader with these settings."""
        deep = 1 - 0.04 / candidate.prefetch_factor
        decoders = candidate.decoders
        if decoders is None:
            return self.by_torch(candidate.num_workers) * deep
        numbers = (decoders.hw_decoder_load, threads(candidate), decoders.cpu_workers, decoders.cpu_share)
        return float(self.by_dali(decoders.crop_decode, *map(np.float64, numbers))) * deep

    def best(self, crops: tuple[bool, ...] = (False, True)) -> float:
        """The most that any settings reach, by trying a fine grid."""
        counts = np.unique(np.geomspace(1, self.cpus, 12).round())
        load, count, workers, share = np.meshgrid(
            np.linspace(0, 1, 21), counts, np.append(0, counts), np.linspace(0, 0.98, 50), indexing="ij"
        )
        impossible = (workers > 0) != (share > 0)
        most = max(float(self.by_dali(crop, load, count, workers, share)[~impossible].max()) for crop in crops)
        return max(most, self.by_torch(self.cpus)) * (1 - 0.04 / 6)


@dataclass
class Bench:
    """Measures on a machine. noise: standard deviation of a rate, relative. fails: candidates that crash."""

    machine: Machine
    noise: float = 0.0
    fails: Callable[[Tuned], bool] = lambda candidate: False
    cost: float = 3.5  # seconds of a measurement
    now: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    asked: list[Tuned] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def __call__(self, candidate: Tuned) -> Round:
        self.now += self.cost
        self.asked.append(candidate)
        if self.fails(candidate):
            raise ChildError("died during 'measure': SIGSEGV")
        rate = self.machine.rate(candidate) * float(np.exp(self.noise * self.rng.standard_normal()))
        return Round(round(rate * 100), 100.0, 100.0 * self.cores(candidate))

    def cores(self, candidate: Tuned) -> float:
        """CPUs in use."""
        decoders, made = candidate.decoders, self.machine
        if decoders is None:
            return float(min(candidate.num_workers, made.cpus))
        load, share = decoders.hw_decoder_load, decoders.cpu_share
        by_dali = (1 - share) * (load * made.hardware_cpu + (1 - load) * made.hybrid_cpu)
        return min(made.cpus, made.rate(candidate) * (by_dali + share * made.cpu))


def machines(count: int, seed: int = 0) -> list[Machine]:
    """Machines of all kinds: with strong and weak parts, few CPUs and many."""
    rng = np.random.default_rng(seed)

    def around(middle: float, factor: float) -> float:
        return float(middle * factor ** rng.uniform(-1, 1))

    sizes = itertools.cycle((2, 4, 8, 16, 16, 32, 64))
    return [
        Machine(
            cpus=next(sizes),
            hardware=around(9000, 4),
            hybrid=around(8000, 4),
            hybrid_cpu=around(1 / 500, 4),
            hardware_cpu=around(1 / 20000, 3),
            cpu=around(1 / 900, 1.5),
            smallest=float(rng.uniform(0.3, 0.9)),
            hybrid_crop=around(1.2, 2),
            hardware_crop=around(0.7, 2),
        )
        for _ in range(count)
    ]


class Breaking:
    """In the place of the tuning's bench: candidates with 13 workers die, with 15 raise."""

    def __init__(self, *arguments: object) -> None:
        self.asked: list[Tuned] = []

    def measure(self, candidate: Tuned) -> Round:
        self.asked.append(candidate)
        if candidate.num_workers == 13:
            os.abort()
        if candidate.num_workers == 15:
            raise ValueError("15 brings bad luck")
        return Round(1000 * len(self.asked), 1.0, 1.0)
