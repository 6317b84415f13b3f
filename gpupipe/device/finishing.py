"""From an engine's batch to what the consumer gets: on its device, augmented, normalized, erased and mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpupipe.batch import Batch, Columns, Frames, Image, Mask, Pad, Schema
from gpupipe.batch.collation import move
from gpupipe.batch.sized import Sizes, dense_rows, inside, padded_size
from gpupipe.decode.own import on_batch
from gpupipe.device.pixels import Pixels, Policy, collated
from gpupipe.errors import ConfigError
from gpupipe.host.tracing import Stage
from gpupipe.kernels import soft_targets
from gpupipe.kernels.transfer import to_device
from gpupipe.plan import Mixing, mixing
from gpupipe.recipe import BucketCrop, Views

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


@dataclass(frozen=True)
class _Field:
    """An image or mask field: what `Schema.number`, `drawn_as` and `pixel_policy` say of it."""

    name: str
    kind: Image | Mask
    number: int
    leader: str
    policy: Policy

    @classmethod
    def all_of(cls, schema: Schema) -> list[_Field]:
        return [
            cls(name, field, schema.number(name), schema.drawn_as(name), schema.pixel_policy(name))
            for name, field in schema.items()
            if isinstance(field, Image | Mask)
        ]


class Finisher:
    """Finishes batches of a schema on `device`; `pinned`: in page-locked memory, where that is the CPU."""

    def __init__(self, schema: Schema | None, views: Views, device: torch.device, pinned: bool = False) -> None:
        self._schema = schema
        self._fields = _Field.all_of(schema) if schema else []
        self._several = schema.per_view(len(views)) if schema else set()
        self._views = views
        self._device = device
        self._pinned = pinned and device.type == "cpu" and torch.cuda.is_available()
        self._images = Pixels(views, device, self._pinned, 4 * len(views) * (len(schema.images) if schema else 0))

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
        self._images.clear()

    def _columns(self, batch: Batch, mixed: bool) -> Columns:
        job, device = batch.job, self._device
        columns = Columns(batch.columns)
        if device.type != "cpu":  # there containers stay of the types that they are of, as a DataLoader's do
            columns = move(batch.columns, lambda tensor: to_device(tensor, device))
        how = mixing(self._views[0], job.seed, job.epoch, job.positions, mixed) if self._views else None
        for field in self._fields:
            columns |= self._pixels(field, batch, columns[field.name], how)
        if how is not None:
            columns["label"] = self._targets(columns["label"], how)
        return columns

    def _targets(self, labels: torch.Tensor, how: Mixing) -> torch.Tensor:
        settings = self._views[0].mixing
        assert settings is not None
        assert settings.num_classes is not None
        return soft_targets(labels, how.mix.partners, how.shares, settings.num_classes, settings.label_smoothing)

    def _pixels(self, field: _Field, batch: Batch, planes: Sequence[torch.Tensor], how: Mixing | None) -> Columns:
        """The column of a field and, where that is padded with a mask, that mask."""
        kind, policy, mix = field.kind, field.policy, None if how is None else how.mix
        made: list[Any] = []
        masks: list[torch.Tensor] = []
        for view, (recipe, plane) in enumerate(zip(self._views, planes, strict=True)):
            if policy == "stack" and not recipe.crop.varies:
                made.append(plane if isinstance(kind, Mask) else self._images(plane, view, field.number, batch, mix))
                continue
            sizes = self._sizes(field, view, batch)
            dense = plane if recipe.crop.varies else plane.flatten(1, 2)
            if isinstance(kind, Mask):
                made.append(collated(dense_rows(dense, sizes), sizes, policy, kind.ignore))
            else:
                made.append(self._images.sized(dense, sizes, view, field.number, batch, mix, policy))
            if isinstance(policy, Pad) and policy.mask:
                masks.append(inside(sizes, padded_size(sizes, policy.multiple), self._device))
        column = {field.name: _of_clips(kind, made) if isinstance(kind, Frames) else made}
        return column | {f"{field.name}_mask": masks} if masks else column

    def _sizes(self, field: _Field, view: int, batch: Batch) -> Sizes:
        """Of each row. Raises ConfigError where they differ and the field is stacked."""
        crop = self._views[view].crop
        if not crop.varies:
            return np.tile(np.array(crop.output_size, np.int32), (len(batch.job), 1))
        sizes = batch.sizes[field.leader][view]
        kinds, rows = np.unique(sizes, axis=0, return_index=True)
        if field.policy == "stack" and len(kinds) > 1:
            named = [f"{height} x {width} (row {row})" for row in rows[:3].tolist() for height, width in [sizes[row]]]
            alike = "order=gpupipe.Buckets.by_aspect(...), or " if isinstance(crop, BucketCrop) else ""
            raise ConfigError(
                f"field {field.name!r}: {type(crop).__name__} gives the images of a batch {len(kinds)} sizes (height x "
                f"width), such as {', '.join(named)}, which can't be stacked; pass {alike}{type(field.kind).__name__}("
                "collate=gpupipe.Pad(multiple=32)) or collate='list' in fields"
            )
        return sizes

    def _given(self, columns: Columns) -> Any:
        """(images, labels) of image and label alone, else a dict by field, with a list where there are several views;
        without a schema what a dataset's items were collated to, the column "items"."""
        schema = self._schema
        if schema is None:
            return columns["items"]
        order = [*schema, *(name for name in columns if name not in schema)]  # behind the fields, masks of padding
        batch = {name: _of_views(columns[name]) if name in self._several else columns[name] for name in order}
        return (batch["image"], batch["label"]) if schema.is_pair else batch


def _of_clips(field: Frames, views: list[torch.Tensor]) -> list[torch.Tensor]:
    """The first clip's views, the second's and so on."""
    clips = zip(*(view.split(field.clip[0], 1) for view in views), strict=True)
    several = [view for clip in clips for view in clip]
    return [view.transpose(1, 2) for view in several] if field.channels == "first" else several


def _of_views(column: Any) -> Any:
    return column[0] if len(column) == 1 else list(column)
