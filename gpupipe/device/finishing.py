"""From an engine's batch to what the consumer gets: augmented, normalized, erased and mixed, labels too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.decode.augmenting import THREADS, augmented
from gpupipe.decode.engine import EngineBatch, Job
from gpupipe.host.tracing import Span, Stage
from gpupipe.kernels import finish, soft_targets
from gpupipe.kernels.finish import empty_batch
from gpupipe.kernels.transfer import to_device
from gpupipe.plan import Mixing, erasing, mixing
from gpupipe.recipe import Recipe, Views
from gpupipe.workers.lease import BufferPool

__all__ = ["Finished", "Finisher"]


@dataclass
class Finished:
    """A batch for the consumer, and what is to be counted of it.

    images: of each view, in its recipe's dtype and layout. labels: int64 (N,) or float32 (N, classes).
    step:   of the epoch. indices: int64 (N,), the samples that are in it, substitutes included.
    spans:  who was busy with it, and when. whole: on a GPU the event after which the batch is there.
    """

    images: list[torch.Tensor]
    labels: torch.Tensor
    step: int
    indices: NDArray[np.int64]
    bytes_read: int
    spans: tuple[Span, ...]
    finish: Stage
    whole: Any = None


class Finisher:
    """Finishes batches on `device`."""

    def __init__(self, views: Views, device: torch.device) -> None:
        self._views = views
        self._device = device
        self._buffers = BufferPool(keep=4 * len(views))

    def __call__(self, batch: EngineBatch, mixed: bool) -> Finished:
        """The batch on the device, finished on its current stream.

        mixed: whether to mix, if the recipe does. The last, short batch of an epoch is not, as its pairs may be apart.
        """
        job = batch.job
        assert job is not None
        with Stage("finish") as finish:
            images, labels = self._all(batch, job, mixed)
        return Finished(images, labels, batch.step, job.indices, batch.bytes_read, batch.spans, finish)

    def _all(self, batch: EngineBatch, job: Job, mixed: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        labels = to_device(batch.labels, self._device)
        how = mixing(self._views[0], job.seed, job.epoch, job.positions, mixed)
        images = [self._finished(batch, view, how) for view in range(len(self._views))]
        return images, labels if how is None else self._targets(labels, how)

    def clear(self) -> None:
        """Forget the memory that is kept for later batches."""
        self._buffers.clear()

    def _targets(self, labels: torch.Tensor, how: Mixing) -> torch.Tensor:
        settings = self._views[0].mixing
        assert settings is not None
        assert settings.num_classes is not None
        return soft_targets(labels, how.mix.partners, how.shares, settings.num_classes, settings.label_smoothing)

    def _finished(self, batch: EngineBatch, view: int, how: Mixing | None) -> torch.Tensor:
        recipe, images, job = self._views[view], to_device(batch.images[view], self._device), batch.job
        assert job is not None
        if not batch.augmented:
            images = augmented(recipe, job, view, images)
        dtype: torch.dtype = getattr(torch, recipe.dtype)
        return finish(
            images,
            *recipe.statistics,
            dtype,
            recipe.layout == "channels_last",
            self._output(recipe, images.shape, dtype),
            erase=erasing(recipe, job.seed, job.epoch, job.positions, view),
            mix=None if how is None else how.mix,
            threads=THREADS,
        )

    def _output(self, recipe: Recipe, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """Memory for a finished batch; None where the engine's own may go to the consumer as it is."""
        channels_last = recipe.layout == "channels_last"
        if self._device.type != "cpu":  # of torch's allocator, which knows when the consumer's stream is done with it
            return empty_batch(shape, dtype, channels_last, self._device)
        if dtype == torch.uint8 and channels_last:  # which is what engines make
            return None
        n, height, width, channels = shape
        if channels_last:
            return self._buffers.take((n, height, width, channels), dtype).permute(0, 3, 1, 2)
        return self._buffers.take((n, channels, height, width), dtype)
