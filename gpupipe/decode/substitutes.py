"""Rows in the place of bad ones, made by a worker process beside those of an engine.

Where a dataset is the user's nobody but workers may ask it, as with torch's DataLoader. What it opens when it is first
asked would be open in the loader's process, and shared with the forks of that which come after, one offset for all; and
what `worker_init_fn` opens is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from gpupipe.batch import Batch, Job

if TYPE_CHECKING:
    from gpupipe.decode.torch import TorchEngine

__all__ = ["Substitutes"]


class Substitutes:
    """Makes jobs of one row, whenever one is asked for, by an engine of a single worker, which starts with the first.

    opened: that engine, whose worker stays until `close`: with the workers of the engine that it stands beside, so that
    all see the dataset as it is in the same epoch.
    """

    def __init__(self, opened: Callable[[], TorchEngine]) -> None:
        self._opened = opened
        self._engine: TorchEngine | None = None

    def __call__(self, job: Job) -> Batch:
        """The batch of a job, on the CPU. Raises what an engine's stream raises."""
        if self._engine is None:
            self._engine = self._opened()
        with closing(self._engine.stream([job])) as batches:
            return next(batches)

    def interrupt(self) -> None:
        """From another thread: whoever waits for a row is to end soon."""
        if self._engine is not None:
            self._engine.interrupt()

    def close(self, at_once: bool = False) -> None:
        """Ends the worker; the next row that is asked for starts another."""
        if self._engine is not None:
            self._engine.close(at_once)
