"""What a user's dataset draws from the global random generators: a pure function of seed, epoch and position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.host.generators import global_generators, kept, peek, seed_all
from gpupipe.host.tracing import beside_consumer
from gpupipe.plan.stream import DATASET, WORKERS, Stream
from gpupipe.sources.dataset import UserSource

__all__ = ["seeding", "worker_seeds"]

log = logging.getLogger("gpupipe")


def worker_seeds(seed: int, rank: int) -> Any:
    """The torch.Generator from which torch takes the seeds of a rank's workers; its global one is left alone."""
    import torch

    generator = torch.Generator("cpu")
    seed_all([generator], Stream(seed, 0, np.array([rank])).words(WORKERS)[:, 0].tolist())
    return generator


@contextmanager
def seeding(
    sources: Sequence[UserSource], seed: int, epoch: int, positions: NDArray[np.int64], parts: int | NDArray[np.int64]
) -> Iterator[Callable[[int], None]]:
    """A function of the row, to be called before a dataset is asked for that row's sample; parts: see `Job`.

    It seeds torch's generator for the CPU, NumPy's and Python's: 10 us a sample (one core of an Intel Xeon). A worker
    process has them for itself. In the process that iterates they are put back at the end, 80 us a batch.

    Threads share them, so in a thread beside the consumer's, as the loader has for a GPU, nothing could be put back:
    what the consumer draws meanwhile would come again. Therefore a dataset's first batch, for which the consumer waits
    as a rule, shows whether it draws at all. Only if one does are the generators seeded there, and stay so.
    """
    import torch.utils.data

    generators = global_generators()
    words = Stream(seed, epoch, positions, parts).words(DATASET).T.tolist()

    def seed_row(row: int) -> None:
        seed_all(generators, words[row])

    if torch.utils.data.get_worker_info() is not None:
        yield seed_row
    elif not beside_consumer():
        with kept(generators):
            yield seed_row
    elif unknown := [source for source in sources if source.draws is None]:
        with kept(generators):
            watch = _Watch(seed_row)
            for source in unknown:
                source.asked = False
            yield watch
            drawn, asked = watch.drawn(), [source for source in unknown if source.asked]
        for source in asked:
            source.draws = drawn
        if drawn:
            log.warning(
                "gpupipe: %s draws from the global random generators of torch, numpy or random, which the loader's "
                "thread seeds for each sample while the training loop may draw from them, too; give the loop "
                "generators of its own, or let worker processes read, by engine='torch'",
                " or ".join(type(source.dataset).__name__ for source in asked),
            )
    else:
        yield seed_row if any(source.draws for source in sources) else lambda row: None


class _Watch:
    """Seeds for each row, and sees whether anything is drawn in between."""

    def __init__(self, seed_row: Callable[[int], None]) -> None:
        self._seed_row = seed_row
        self._untouched: Any = None
        self._drawn = False

    def __call__(self, row: int) -> None:
        self.drawn()
        self._seed_row(row)
        self._untouched = peek()
        self._seed_row(row)

    def drawn(self) -> bool:
        """Whether any row has drawn, up to now."""
        self._drawn = self._drawn or (self._untouched is not None and peek() != self._untouched)
        return self._drawn
