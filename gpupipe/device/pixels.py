"""Images of one view, from an engine's uint8 to what the consumer gets: augmented, normalized, erased, mixed; and where
each has a size of its own, stacked, listed or padded as its field's `collate` says.

    rows of a plane ──► augmented, size by size ──┬► list: normalized, size by size
                                                  └► Pad: one uint8 tensor ──► normalized ──► `value` around each image
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Batch, Job, Pad
from gpupipe.batch.sized import Sizes, dense_rows, outside, padded, padded_size, together
from gpupipe.decode.own import on_images
from gpupipe.decode.rendering import THREADS, augment_view, runs_of_workers
from gpupipe.kernels import finish, native
from gpupipe.kernels.crops import by_size
from gpupipe.kernels.erase_mix import Mix
from gpupipe.kernels.finish import empty_batch, erased, finish_padded, mixed as mixed_alone
from gpupipe.plan import erasing
from gpupipe.recipe import OnBatch, RandomErasing, Recipe, Views
from gpupipe.workers.lease import BufferPool

__all__ = ["Pixels", "Policy", "collated"]

Policy = Literal["stack", "list"] | Pad
MOST_PADDED = 4  # times the pixels of the largest image, for which padded batches have memory that is used again


class Pixels:
    """Finishes images on `device`; `pinned`: into page-locked memory. buffers: how many batches it may keep memory
    for."""

    def __init__(self, views: Views, device: torch.device, pinned: bool, buffers: int) -> None:
        self._views = views
        self._device = device
        self._pinned = pinned
        self._buffers = BufferPool(keep=buffers)

    def clear(self) -> None:
        """Forget the memory that is kept for later batches."""
        self._buffers.clear()

    def __call__(self, images: torch.Tensor, view: int, field: int, batch: Batch, mix: Mix | None) -> torch.Tensor:
        """One view's images of one size, uint8 (N, height, width, 3), or clips (N, frames, height, width, 3), whose
        frames all get the same; finished. field: see `Schema.number`."""
        frames, images = images.shape[1:-3], images.flatten(0, -4)
        images = self._augmented(images, view, field, batch.job, batch.augmented)
        finished = self._finished(images, view, field, batch.job, mix)
        return finished.unflatten(0, (len(batch.job), *frames)) if frames else finished

    def sized(
        self, plane: torch.Tensor, sizes: Sizes, view: int, field: int, batch: Batch, mix: Mix | None, policy: Policy
    ) -> Any:
        """The same of images of these sizes, in a plane, collated. Of one size all are, where they are stacked."""
        job, rows = batch.job, dense_rows(plane, sizes)
        if self._left(view, batch.augmented):
            rows = _size_by_size(
                rows,
                sizes,
                lambda images, at: self._augmented(images, view, field, job.take(at), batch.augmented, sizes[at]),
            )
        recipe = self._views[view]
        crop = recipe.crop
        if not isinstance(policy, Pad):
            shelf = _Shelf(self._buffers, 3 * len(rows) * crop.most_pixels)
            if policy == "stack":
                return self._finished(together(rows), view, field, job, mix, sizes, shelf)
            return _size_by_size(
                rows,
                sizes,
                lambda images, at: self._finished(images, view, field, job.take(at), mix, sizes[at], shelf),
            )
        shape = (len(rows), *padded_size(sizes, policy.multiple), 3)
        largest = math.prod(padded_size(np.array([crop.output_size]), policy.multiple))
        # Of so many pixels in any shape: one that is as wide as another is high would need a thousand times as many.
        most = max(math.prod(shape), 3 * len(rows) * min(largest, MOST_PADDED * crop.most_pixels))
        shelf = _Shelf(self._buffers, most)
        if mix is None and not plane.is_cuda and native.library() is not None:
            out = self._memory(recipe, shape, getattr(torch, recipe.dtype), shelf)
            erase = erasing(recipe, job.seed, job.epoch, job.positions, view, field, sizes)
            return finish_padded(rows, out, *recipe.statistics, policy.value, erase=erase, threads=THREADS)
        finished = self._finished(padded(rows, plane.new_empty(shape)), view, field, job, mix, sizes, shelf)
        return outside(finished, sizes, policy.value)

    def _left(self, view: int, augmented: bool) -> tuple[slice, ...]:
        """The runs of operations that workers have not done."""
        recipe = self._views[view]
        return recipe.runs[len(runs_of_workers(recipe, augmented)) :]

    def _augmented(
        self, images: torch.Tensor, view: int, field: int, job: Job, augmented: bool, sizes: Sizes | None = None
    ) -> torch.Tensor:
        recipe = self._views[view]
        for run in self._left(view, augmented):
            if isinstance(recipe.operations[run.start], OnBatch):
                made = on_images(recipe, run.start, images.permute(0, 3, 1, 2), job, view, field)
                images = made.permute(0, 2, 3, 1).contiguous()
            else:
                images = augment_view(recipe, run, job, view, field, images, sizes)
        return images

    def _finished(
        self,
        images: torch.Tensor,
        view: int,
        field: int,
        job: Job,
        mix: Mix | None,
        sizes: Sizes | None = None,
        take: Callable[[tuple[int, ...], torch.dtype], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        recipe = self._views[view]
        operations, rest = recipe.operations, recipe.on_floats
        dtype: torch.dtype = getattr(torch, recipe.dtype)
        erase = erasing(recipe, job.seed, job.epoch, job.positions, view, field, sizes)
        frames = len(images) // len(job)
        if frames > 1:
            erase = None if erase is None else erase.repeat(frames)
            mix = None if mix is None else mix.repeat(frames)
        alone = next((at for at in rest if isinstance(operations[at], OnBatch)), rest.stop)
        at_once = operations[rest.start : alone]
        channels_last = recipe.layout == "channels_last"
        as_it_is = self._device.type == "cpu" and dtype == torch.uint8 and channels_last  # which is what engines make
        finished = finish(
            images,
            *recipe.statistics,
            dtype,
            channels_last,
            None if as_it_is else self._memory(recipe, images.shape, dtype, take or self._buffers.take),
            erase=erase if recipe.erasing in at_once else None,
            mix=mix if recipe.mixing in at_once else None,
            threads=THREADS,
        )
        for at in range(alone, rest.stop):
            if isinstance(operations[at], OnBatch):
                finished = on_images(recipe, at, finished, job, view, field)
            elif isinstance(operations[at], RandomErasing):
                assert erase is not None
                finished = erased(finished, erase)
            elif mix is not None:
                finished = mixed_alone(finished, mix)
        return finished

    def _memory(self, recipe: Recipe, shape: tuple[int, ...], dtype: torch.dtype, take: Any) -> torch.Tensor:
        """For a finished batch, on the CPU by `take`."""
        channels_last = recipe.layout == "channels_last"
        if self._device.type != "cpu":  # of torch's allocator, which knows when the consumer's stream is done with it
            return empty_batch(shape, dtype, channels_last, self._device)
        if self._pinned:  # of torch's allocator, which knows when a copy to a GPU is done with it
            return empty_batch(shape, dtype, channels_last, self._device, pinned=True)
        n, height, width, channels = shape
        if channels_last:
            return take((n, height, width, channels), dtype).permute(0, 3, 1, 2)  # type: ignore[no-any-return]
        return take((n, channels, height, width), dtype)  # type: ignore[no-any-return]


class _Shelf:
    """Memory for the images of a batch, one behind the other in one buffer, of up to so many levels in all: so buffers
    are alike, and used again, whatever the sizes are. What is never used of one does not exist."""

    def __init__(self, buffers: BufferPool, levels: int) -> None:
        self._buffers = buffers
        self._levels = levels
        self._rest: torch.Tensor | None = None

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        rest = self._buffers.take((self._levels,), dtype) if self._rest is None else self._rest
        size = math.prod(shape)
        self._rest = rest[size:]
        return rest[:size].view(shape)


def _size_by_size(
    rows: Sequence[torch.Tensor], sizes: Sizes, make: Callable[[torch.Tensor, NDArray[np.int64]], torch.Tensor]
) -> list[torch.Tensor]:
    """What is made of the images of each size, as rows again. make: gets them as one tensor, and their places."""
    made = list(rows)
    for at, _ in by_size(sizes):
        for row, image in zip(at.tolist(), make(together([rows[row] for row in at]), at), strict=True):
            made[row] = image
    return made


def collated(rows: Sequence[torch.Tensor], sizes: Sizes, policy: Policy, value: int) -> Any:
    """Masks of these sizes by such a policy. value: of padding."""
    if isinstance(policy, Pad):
        out = rows[0].new_empty((len(rows), *padded_size(sizes, policy.multiple)))
        return outside(padded(rows, out), sizes, value)
    return list(rows) if policy == "list" else together(rows)
