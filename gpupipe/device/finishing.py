"""From an engine's batch to what the consumer gets: on its device, augmented, normalized, erased and mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gpupipe.batch import Batch, Columns, Frames, Schema
from gpupipe.batch.collation import move
from gpupipe.decode.own import on_batch, on_images
from gpupipe.decode.rendering import THREADS, augment_view, runs_of_workers
from gpupipe.host.tracing import Stage
from gpupipe.kernels import finish, soft_targets
from gpupipe.kernels.finish import empty_batch, erased, mixed as mixed_alone
from gpupipe.kernels.transfer import to_device
from gpupipe.plan import Mixing, erasing, mixing
from gpupipe.recipe import OnBatch, RandomErasing, Recipe, Views
from gpupipe.workers.lease import BufferPool

__all__ = ["Finished", "Finisher"]


@dataclass
class Finished:
    """A batch for the consumer, and what is to be counted of it.

    output: what the consumer gets. Images of each view are in its recipe's dtype and layout, labels that are mixed
            float32 (N, classes). All is on the device.
    finish: what that took. whole: on a GPU the event after which the batch is there.
    """

    output: Any
    batch: Batch
    finish: Stage
    whole: Any = None


class Finisher:
    """Finishes batches of a schema on `device`; `pinned`: in page-locked memory, where that is the CPU."""

    def __init__(self, schema: Schema | None, views: Views, device: torch.device, pinned: bool = False) -> None:
        self._schema = schema
        self._numbers = {name: schema.number(name) for name in schema.images} if schema else {}
        self._clips = {name: field for name, field in (schema or {}).items() if isinstance(field, Frames)}
        self._views = views
        self._device = device
        self._pinned = pinned and device.type == "cpu" and torch.cuda.is_available()
        self._buffers = BufferPool(keep=4 * len(views) * len(self._numbers))

    def __call__(self, batch: Batch, mixed: bool) -> Finished:
        """The batch on the device, finished on its current stream.

        mixed: whether to mix, if the recipe does. The last, short batch of an epoch is not, as its pairs may be apart.
        """
        with Stage("finish") as stage:
            batch.columns = self._columns(batch, mixed)
            output = self._given(batch.columns)
            if self._views and self._views[0].whole is not None:
                output = on_batch(self._views[0], -1, output, batch.job, self._device)
            if self._pinned:
                output = move(output, torch.Tensor.pin_memory)  # no copy of what is there already
        return Finished(output, batch, stage)

    def clear(self) -> None:
        """Forget the memory that is kept for later batches."""
        self._buffers.clear()

    def _columns(self, batch: Batch, mixed: bool) -> Columns:
        job, device = batch.job, self._device
        columns = Columns(batch.columns)
        if device.type != "cpu":  # there containers stay of the types that they are of, as a DataLoader's do
            columns = move(batch.columns, lambda tensor: to_device(tensor, device))
        how = mixing(self._views[0], job.seed, job.epoch, job.positions, mixed) if self._views else None
        for name, number in self._numbers.items():
            columns[name] = [
                self._finished(images, view, number, batch, how) for view, images in enumerate(columns[name])
            ]
            if name in self._clips:
                columns[name] = _of_clips(self._clips[name], columns[name])
        if how is not None:
            columns["label"] = self._targets(columns["label"], how)
        return columns

    def _targets(self, labels: torch.Tensor, how: Mixing) -> torch.Tensor:
        settings = self._views[0].mixing
        assert settings is not None
        assert settings.num_classes is not None
        return soft_targets(labels, how.mix.partners, how.shares, settings.num_classes, settings.label_smoothing)

    def _finished(self, images: torch.Tensor, view: int, field: int, batch: Batch, how: Mixing | None) -> torch.Tensor:
        """Of images (N, height, width, 3), or of clips (N, frames, height, width, 3), whose frames all get the same."""
        recipe, job = self._views[view], batch.job
        frames, images = images.shape[1:-3], images.flatten(0, -4)
        operations, rest = recipe.operations, recipe.on_floats
        for run in recipe.runs[len(runs_of_workers(recipe, batch.augmented)) :]:
            if isinstance(operations[run.start], OnBatch):
                made = on_images(recipe, run.start, images.permute(0, 3, 1, 2), job, view, field)
                images = made.permute(0, 2, 3, 1).contiguous()
            else:
                images = augment_view(recipe, run, job, view, field, images)
        dtype: torch.dtype = getattr(torch, recipe.dtype)
        erase = erasing(recipe, job.seed, job.epoch, job.positions, view, field)
        mix = None if how is None else how.mix
        if frames:
            erase = None if erase is None else erase.repeat(*frames)
            mix = None if mix is None else mix.repeat(*frames)
        alone = next((at for at in rest if isinstance(operations[at], OnBatch)), rest.stop)
        at_once = operations[rest.start : alone]
        finished = finish(
            images,
            *recipe.statistics,
            dtype,
            recipe.layout == "channels_last",
            self._output(recipe, images.shape, dtype),
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
        return finished.unflatten(0, (len(job), *frames)) if frames else finished

    def _output(self, recipe: Recipe, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """Memory for a finished batch; None where the engine's own may go to the consumer as it is."""
        channels_last = recipe.layout == "channels_last"
        if self._device.type != "cpu":  # of torch's allocator, which knows when the consumer's stream is done with it
            return empty_batch(shape, dtype, channels_last, self._device)
        if dtype == torch.uint8 and channels_last:  # which is what engines make
            return None
        if self._pinned:  # of torch's allocator, which knows when a copy to a GPU is done with it
            return empty_batch(shape, dtype, channels_last, self._device, pinned=True)
        n, height, width, channels = shape
        if channels_last:
            return self._buffers.take((n, height, width, channels), dtype).permute(0, 3, 1, 2)
        return self._buffers.take((n, channels, height, width), dtype)

    def _given(self, columns: Columns) -> Any:
        """(images, labels) of image and label alone, else a dict by field, with a list where there are several views;
        without a schema what a dataset's items were collated to, the column "items"."""
        schema = self._schema
        if schema is None:
            return columns["items"]
        several = schema.per_view(len(self._views))
        order = [*schema, *(name for name in columns if name not in schema)]  # behind the fields, masks of padding
        batch = {name: _of_views(columns[name]) if name in several else columns[name] for name in order}
        return (batch["image"], batch["label"]) if schema.is_pair else batch


def _of_clips(field: Frames, views: list[torch.Tensor]) -> list[torch.Tensor]:
    """The first clip's views, the second's and so on."""
    clips = zip(*(view.split(field.clip[0], 1) for view in views), strict=True)
    several = [view for clip in clips for view in clip]
    return [view.transpose(1, 2) for view in several] if field.channels == "first" else several


def _of_views(column: Any) -> Any:
    return column[0] if len(column) == 1 else list(column)
