"""Measures candidates, in a process of its own, so that a crash of native code does not end the tuning."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from gpupipe.decode.tuned import Tuned
from gpupipe.errors import SampleError
from gpupipe.host.system import usable_cpus
from gpupipe.loader.loader import Loader
from gpupipe.order import Subset, VirtualEpochs
from gpupipe.recipe import imagenet_train
from gpupipe.sources import open_source
from gpupipe.tools.benchmark.child import consume, measured, synchronize
from gpupipe.tools.benchmark.measurement import Round
from gpupipe.tools.tuning.candidates import queued, worker_processes
from gpupipe.tools.tuning.run import TuneSettings

__all__ = ["Bench"]

SAMPLE = 4096  # images, drawn once: every candidate reads the same ones, from memory
ENDLESS = 10**12  # samples of an epoch, so that no gap between epochs is measured
READERS = 16  # reads at a time
SETTLING = 3  # measured stretches, at most, before the one that counts


class Bench:
    """Opens a loader for each candidate, takes what lies ready, and counts."""

    def __init__(self, settings: TuneSettings, device: str) -> None:
        # As where the machine is full of such processes: each has its part of /dev/shm.
        os.environ["LOCAL_WORLD_SIZE"] = str(max(1, usable_cpus() // settings.cpus))
        os.sched_setaffinity(0, settings.own_cpus)  # of this process and its children
        self.settings = settings
        self.device = device
        self.source = open_source(settings.data, fields=settings.fields)
        size = min(len(self.source), SAMPLE)
        self.sample = np.sort(np.random.default_rng(0).choice(len(self.source), size, replace=False))

    def read(self) -> int:
        """Read the sample, so that all candidates find it in the page cache; how many images could be read."""
        with ThreadPoolExecutor(READERS) as pool:
            return sum(pool.map(self._readable, self.sample.tolist()))

    def _readable(self, index: int) -> bool:
        try:
            self.source.fetch(np.array([index]))
        except SampleError:  # loaders skip it
            return False
        return True

    def measure(self, candidate: Tuned) -> Round:
        """Start a loader, let it settle, and measure whole turns of its workers mid-stream."""
        with self._open(candidate) as loader:
            batches = iter(loader)
            turn = max(1, worker_processes(candidate))
            self._settle(batches, -(-queued(candidate) // turn), turn)
            made = measured(batches, turn, self.settings.seconds)
            batches.close()
        _free_memory()
        print(f"{made.rate:.0f} img/s, {made.cpu_ms:.3f} CPU ms an image: {candidate}", flush=True)
        return made

    def _settle(self, batches: Iterator[Any], turns: int, turn: int) -> None:
        """Take what lies ready. Where that takes long it does not matter what a few of them lend to the measurement.

        In turns as they are measured: a batch is then made while the one before it is held, in a second buffer, whose
        memory is new at first. That took up to 0.4 s within what was measured.
        """
        start = time.perf_counter()
        while turns > 0 and time.perf_counter() - start < SETTLING * self.settings.seconds:
            consume(islice(batches, turn))
            turns -= 1
        synchronize()

    def _open(self, candidate: Tuned) -> Loader:
        return Loader(
            self.source,
            imagenet_train(self.settings.size),
            self.settings.batch_size,
            order=VirtualEpochs(Subset(self.sample, shuffle=True), ENDLESS),
            drop_last=True,
            device=self.device,
            rank=0,
            world_size=1,
            on_error="skip",
            **vars(candidate),
        )


def _free_memory() -> None:
    """The next candidate begins with what this one had."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
