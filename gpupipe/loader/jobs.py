"""The job of each step: a pure function of order, seed and place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Job
from gpupipe.errors import ConfigError, GpupipeError
from gpupipe.host.limits import Limits
from gpupipe.loader.place import Point
from gpupipe.order import Order
from gpupipe.order.protocol import name_of
from gpupipe.plan import partners
from gpupipe.recipe import Recipe

__all__ = ["Jobs"]


class Jobs:
    """Jobs for a dataset of `samples` samples. several: the recipe, where it makes one sample of several. limits:
    of what a file may cost."""

    def __init__(
        self, order: Order, seed: int, samples: int, several: Recipe | None = None, limits: Limits | None = None
    ) -> None:
        self._order = order
        self._seed = seed
        self._samples = samples
        self._several = several
        self._limits = limits or Limits()

    def __call__(self, at: Point) -> Job:
        """What is to be made there. Raises ConfigError where the order fails, which may be a user's own."""
        positions = at.batches.positions(at.step)
        indices = self._indices(at.epoch, at.step, positions)
        job = Job(self._seed, at.epoch, positions, indices, at.step, limits=self._limits)
        return job if self._several is None else self.with_partners(job)

    def with_partners(self, job: Job) -> Job:
        """The job with what its samples are made of besides, where they are made of several."""
        if self._several is None:
            return job
        others = partners(self._several, job.seed, job.epoch, job.positions, len(self._order))
        there = others >= 0
        if there.any():
            others[there] = self._indices(job.epoch, job.step, others[there])
        return replace(job, partners=others)

    def _indices(self, epoch: int, step: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        try:
            indices = self._order.indices(self._seed, epoch, positions % max(1, len(self._order)))
        except GpupipeError:
            raise
        except Exception as error:
            raise ConfigError(
                f"order {name_of(self._order)}: indices() raised {type(error).__name__} at step {step} of epoch "
                f"{epoch} (positions {positions[0]} to {positions[-1]}): {error}"
            ) from error
        return self._checked(indices, positions)

    def _checked(self, indices: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        indices = np.asarray(indices)
        if indices.shape != positions.shape or not np.issubdtype(indices.dtype, np.integer):
            raise ConfigError(
                f"order {name_of(self._order)}: indices() gave {indices.dtype} of shape {indices.shape} for "
                f"{len(positions)} positions; it must give as many integers"
            )
        outside = indices[(indices < 0) | (indices >= self._samples)]
        if len(outside):
            raise ConfigError(
                f"order {name_of(self._order)}: it gave sample {outside[0]} at the positions from {positions[0]} on, "
                f"but the dataset has {self._samples} samples; build the order for this dataset"
            )
        return indices.astype(np.int64, copy=False)
