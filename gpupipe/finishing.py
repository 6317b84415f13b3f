"""From an engine's batch to what the consumer gets: augmented, normalized, erased and mixed, labels too."""

from __future__ import annotations

import torch

from gpupipe.draws import Mixing, erasing, mixing
from gpupipe.engines.augmenting import THREADS, apply_augmentations
from gpupipe.engines.base import EngineBatch, Job
from gpupipe.engines.lease import BufferPool
from gpupipe.kernels import finish, soft_targets
from gpupipe.recipe import Recipe, Views
from gpupipe.transfer import to_device

__all__ = ["Finisher"]


class Finisher:
    """Finishes batches on `device`."""

    def __init__(self, views: Views, device: torch.device) -> None:
        self._views = views
        self._device = device
        self._buffers = BufferPool()

    def __call__(self, batch: EngineBatch, full: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Each view's images in its recipe's dtype and layout, and the labels, int64 (N,) or float32 (N, classes).

        full: whether the global batch is; the last, short one of an epoch is not mixed, as its pairs may be apart.
        """
        assert batch.job is not None
        labels = to_device(batch.labels, self._device)
        if batch.finished:
            return list(batch.images), labels
        mixed = self._mixing(batch.job, full)
        images = [self._finished(batch, view, mixed) for view in range(len(self._views))]
        return images, labels if mixed is None else self._targets(labels, mixed)

    def clear(self) -> None:
        """Forget the memory that is kept for later batches."""
        self._buffers.clear()

    def _mixing(self, job: Job, full: bool) -> Mixing | None:
        return mixing(self._views[0], job.seed, job.epoch, job.positions, full)

    def _targets(self, labels: torch.Tensor, mixed: Mixing) -> torch.Tensor:
        how = self._views[0].mixing
        assert how is not None
        return soft_targets(labels, mixed.mix.partners, mixed.shares, how.num_classes, how.label_smoothing)

    def _finished(self, batch: EngineBatch, view: int, mixed: Mixing | None) -> torch.Tensor:
        recipe, images, job = self._views[view], batch.images[view], batch.job
        assert job is not None
        if not batch.augmented:
            apply_augmentations(recipe, job, view, images)
        dtype: torch.dtype = getattr(torch, recipe.dtype)
        return finish(
            images,
            *recipe.statistics,
            dtype,
            recipe.layout == "channels_last",
            self._output(recipe, images.shape, dtype),
            erase=erasing(recipe, job.seed, job.epoch, job.positions, view),
            mix=None if mixed is None else mixed.mix,
            threads=THREADS,
        )

    def _output(self, recipe: Recipe, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """Memory for a finished batch, used again and again on the CPU; torch itself does so on the GPU."""
        channels_last = recipe.layout == "channels_last"
        if self._device.type != "cpu" or (dtype == torch.uint8 and channels_last):  # which is what engines make
            return None
        n, height, width, channels = shape
        if channels_last:
            return self._buffers.take((n, height, width, channels), dtype).permute(0, 3, 1, 2)
        return self._buffers.take((n, channels, height, width), dtype)
