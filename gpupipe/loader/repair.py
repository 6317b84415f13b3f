"""What becomes of rows that an engine could not make: another try on the CPU, then the policy for bad samples.

The substitute for a bad sample is a pure function of the epoch, so that every rank, and every resumed run, picks the
same one without talking: the sample at the next position of the epoch's order that can be read, drawn with the bad
position's own numbers.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from gpupipe.decode.engine import EngineBatch, Job
from gpupipe.decode.rendering import render_batch
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.kernels.transfer import to_device
from gpupipe.order import Order
from gpupipe.recipe import Views

if TYPE_CHECKING:
    from gpupipe.sources import Source

__all__ = ["OnError", "Repair", "check_on_error"]

log = logging.getLogger("gpupipe")

OnError = Literal["raise", "skip"]

MAX_SUBSTITUTES = 1000  # bad samples in a row before the dataset as a whole is called unusable


def check_on_error(on_error: str) -> None:
    """Raise ConfigError unless that is a policy."""
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error={on_error!r} must be 'raise' or 'skip'")


class Repair:
    """Fills the failed rows of a batch; `bad_samples` lists each bad sample that was met, once."""

    def __init__(self, source: Source, views: Views, order: Order, on_error: OnError) -> None:
        self._source = source
        self._views = views
        self._order = order
        self._on_error = on_error
        self._bad: dict[int, SampleError] = {}

    @property
    def bad_samples(self) -> list[SampleError]:
        """In the order in which they were met."""
        return list(self._bad.values())

    def __call__(self, batch: EngineBatch) -> EngineBatch:
        """The batch with every failed row made good, in place; its job then names the samples that are in it.

        Raises SampleError under on_error="raise".
        """
        for row in sorted(batch.failures):
            self._fill(batch, row, self._remade(batch, row))
        batch.failures = {}
        return batch

    def _remade(self, batch: EngineBatch, row: int) -> EngineBatch:
        """That row's sample by the CPU's decoders, or its substitute."""
        job = batch.job
        assert job is not None
        own = self._attempt(batch, job, row, int(job.indices[row]))
        if isinstance(own, EngineBatch):
            return own
        if self._on_error == "raise":
            raise own
        for index in self._candidates(job, int(job.positions[row])):
            substitute = self._attempt(batch, job, row, index)
            if isinstance(substitute, EngineBatch):
                return substitute
        raise DataError(
            f"the {min(MAX_SUBSTITUTES, len(self._order))} samples after position {int(job.positions[row])} of epoch "
            f"{job.epoch} are all bad (the last: {self.bad_samples[-1]}); the dataset or its storage is damaged"
        )

    def _candidates(self, job: Job, position: int) -> list[int]:
        """The samples at the positions that follow."""
        size = len(self._order)
        following = (position + 1 + np.arange(min(MAX_SUBSTITUTES, size), dtype=np.int64)) % size
        return [int(index) for index in self._order.indices(job.seed, job.epoch, following)]

    def _attempt(self, batch: EngineBatch, job: Job, row: int, index: int) -> EngineBatch | SampleError:
        """A batch of one with that sample at that row's position, or why the sample is bad, which is noted."""
        if index in self._bad and self._on_error == "skip":
            return self._bad[index]
        out = [torch.empty((1, *view.crop.output_size, 3), dtype=torch.uint8) for view in self._views]
        one = replace(job, positions=job.positions[row : row + 1], indices=np.array([index], dtype=np.int64))
        made = render_batch(self._source, self._views, one, out, augmented=batch.augmented)
        made.job = one
        if not made.failures:
            return made
        error = made.failures[0]
        self._bad[index] = error.bare()
        if self._on_error == "skip":
            log.warning("bad sample replaced: sample %d (%s): %s", index, error.location, error.reason)
        return error

    def _fill(self, batch: EngineBatch, row: int, one: EngineBatch) -> None:
        for made, images in zip(one.images, batch.images, strict=True):
            images[row].copy_(to_device(made[0], images.device))
        batch.labels[row] = one.labels[0]
        assert batch.job is not None
        assert one.job is not None
        indices = batch.job.indices.copy()
        indices[row] = one.job.indices[0]
        batch.job = replace(batch.job, indices=indices)
