"""A batch on the CPU: pixels by the C++ kernel, what that refuses by other decoders, and what follows their crops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Batch, Boxes, Columns, Images, Job, Mask, Points, Schema
from gpupipe.batch.collation import collate
from gpupipe.decode.augmenting import augmented as with_augmentations
from gpupipe.decode.fetching import Fetched, fetch, upright
from gpupipe.decode.masks import mask_pixels
from gpupipe.decode.pixels import DecodeError, render
from gpupipe.errors import SampleError
from gpupipe.host.tracing import Stage, who
from gpupipe.host.whereabouts import note
from gpupipe.kernels import BadImage, Crops, decode_crops, native
from gpupipe.plan import cropping, follow_boxes, follow_mask, follow_points
from gpupipe.recipe import Recipe, Views
from gpupipe.sources import Source
from gpupipe.sources.headers import explain_damage
from gpupipe.workers.board import BATCH
from gpupipe.workers.work import Plane, new_planes

__all__ = ["FieldCrops", "Rendering", "crops_of", "decode_images", "follow", "planes", "render_batch"]

NOTHING = np.empty(0, np.uint8)

FieldCrops = dict[str, list[Crops]]
"""Of each image field the crops in each view."""


class Rendering:
    """The work of a worker process: it makes the batch of a job.

    augmented: whether to apply the recipes' augmentations, too. collated: whether to collate it, unless a row failed.
    """

    plain = False

    def __init__(self, source: Source, views: Views, *, augmented: bool, collated: bool = True) -> None:
        self.source = source
        self.views = views
        self.augmented = augmented
        self.collated = collated
        self.layout = planes(source.fields, views)

    def __call__(self, job: Job, out: Columns) -> Batch:
        batch = self.rows(job, out)
        return self.collate(batch) if self.collated and not batch.failures else batch

    def rows(self, job: Job, out: Columns | None = None) -> Batch:
        """The same, not collated; into new memory if `out` is None."""
        planes = new_planes(self.layout, len(job)) if out is None else out
        return render_batch(self.source, self.views, job, planes, augmented=self.augmented)

    def collate(self, batch: Batch) -> Batch:
        """The batch, collated."""
        if not batch.collated:
            batch.columns = collate(self.source.fields, batch.columns, len(self.views))
            batch.collated = True
        return batch


def planes(schema: Schema, views: Views) -> tuple[Plane, ...]:
    """The arrays of fixed size that a batch has: images and masks, in each view."""
    found = []
    for name, field in schema.items():
        for view, recipe in enumerate(views):
            if name in schema.images:
                found.append(Plane(name, view, (*recipe.crop.output_size, 3), torch.uint8))
            elif isinstance(field, Mask):
                found.append(Plane(name, view, recipe.crop.output_size, getattr(torch, field.dtype)))
    return tuple(found)


def render_batch(source: Source, views: Views, job: Job, out: Columns, *, augmented: bool, threads: int = 1) -> Batch:
    """Make the batch of a job, whose planes are written into `out`, on the CPU.

    augmented: whether to apply the recipes' augmentations too. Rows that can't be made are in the batch's failures.
    """
    schema = source.fields
    with Stage("read") as read:
        fetched = fetch(source, job)
    with Stage("decode") as decode:
        note(BATCH)
        crops = crops_of(schema, views, job, fetched.columns)
        decode_images(fetched, source, views, crops, job, out, threads)
        for name in schema.images if augmented else ():
            for view, images in enumerate(out[name]):
                with_augmentations(views[view], job, view, schema.number(name), images, threads)  # in place
        followed = follow(fetched, schema, views, crops, source, job, out)
    return Batch(
        job,
        followed | out,
        fetched.failures,
        augmented=augmented,
        bytes_read=fetched.bytes_read,
        spans=(read.span(who()), decode.span(who())),
    )


def crops_of(schema: Schema, views: Views, job: Job, columns: Columns) -> FieldCrops:
    """What is drawn for each image field; one that shares another's geometry has its crops."""
    drawn: FieldCrops = {}
    for name in schema.images:
        leader = schema.drawn_as(name)
        if leader not in drawn:
            drawn[leader] = _crops(views, job, columns[leader], schema.number(leader))
        drawn[name] = drawn[leader]
    return drawn


def _crops(views: Views, job: Job, images: Images, field: int) -> list[Crops]:
    assert images.sizes is not None
    sizes = upright(images.sizes) if views[0].exif_orientation else images.sizes
    return [
        cropping(recipe, job.seed, job.epoch, job.positions, sizes[:, 0], sizes[:, 1], view, field)
        for view, recipe in enumerate(views)
    ]


# Pixels.


def decode_images(
    fetched: Fetched, source: Source, views: Views, crops: FieldCrops, job: Job, out: Columns, threads: int = 1
) -> None:
    """Make the images of a job into `out`; rows that can't be made become failures."""
    for name in source.fields.images:
        _decode(fetched, name, views, crops[name], source, job, out[name], threads)


def _decode(
    fetched: Fetched,
    name: str,
    views: Views,
    crops: list[Crops],
    source: Source,
    job: Job,
    out: Sequence[torch.Tensor],
    threads: int,
) -> None:
    """Make the rows of one image field whose bytes are there; those that can't be made become failures."""
    column: Images = fetched.columns[name]
    assert column.sizes is not None
    reasons: dict[int, str] = {}
    rest: Iterable[int] = range(len(column))
    if native.library() is not None and any(data is not None and data.ndim == 1 for data in column.data):
        rest = refused = _by_kernel(column, crops, views[0], out, threads)
        reasons = {row: bad.message for row, bad in refused.items() if bad.code == "limit"}  # for others too
    for row in rest:
        data = column.data[row]
        if data is None or row in reasons or row in fetched.failures:
            continue
        note(int(job.indices[row]))
        try:
            _one_by_one(data, column.sizes[row], crops, row, views[0].exif_orientation, [images[row] for images in out])
        except DecodeError as error:
            reasons[row] = str(error)
    for row, reason in reasons.items():
        index = int(job.indices[row])
        text = reason if len(source.fields.images) == 1 else f"{name!r}: {reason}"
        fetched.failures.setdefault(row, SampleError(index, source.location(index), text))


def _by_kernel(
    column: Images, crops: list[Crops], recipe: Recipe, out: Sequence[torch.Tensor], threads: int
) -> dict[int, BadImage]:
    """Make what the kernel can; the rows that it refused."""
    assert column.sizes is not None
    return decode_crops(
        [NOTHING if data is None or data.ndim != 1 else data for data in column.data],
        crops,
        out=[images.numpy() for images in out],
        orientations=column.sizes[:, 2] if recipe.exif_orientation else None,
        sizes=column.sizes[:, :2],
        decode=recipe.decode,
        threads=threads,
    ).failures


def _one_by_one(
    data: NDArray[np.uint8],
    sizes: NDArray[np.int32],
    crops: list[Crops],
    row: int,
    exif: bool,
    out: list[torch.Tensor],
) -> None:
    height, width, orientation = sizes.tolist()
    if height == 0:
        raise DecodeError(explain_damage(data.tobytes()))
    if exif and orientation >= 5:
        height, width = width, height
    render(data, height, width, [one.row(row) for one in crops], exif, out)


# What follows.


def follow(
    fetched: Fetched, schema: Schema, views: Views, crops: FieldCrops, source: Source, job: Job, out: Columns
) -> Columns:
    """The columns that are not images, after the crops: masks are written into `out`, boxes and points moved.

    Where there are several views, what follows a view is a tuple with a list for each.
    """
    columns = {name: column for name, column in fetched.columns.items() if name not in schema.images}
    for name, field in schema.items():
        if not isinstance(field, Mask | Boxes | Points):
            continue
        leader = schema.drawn_as(name)
        one: Callable[[int], None]
        if isinstance(field, Mask):
            sizes = fetched.columns[leader].sizes
            sizes = upright(sizes) if views[0].exif_orientation else sizes[:, :2]
            one = _mask_follower(columns.pop(name), field, leader, sizes, crops[leader], out[name])
        else:
            one = _shape_follower(columns, name, field, schema.labels_of(name), crops[leader])
        for row in range(len(job)):
            if row in fetched.failures:
                continue
            try:
                one(row)
            except ValueError as error:
                index = int(job.indices[row])
                fetched.failures[row] = SampleError(index, source.location(index), f"{name!r}: {error}")
    return columns


def _mask_follower(
    column: Sequence[Any],
    field: Mask,
    leader: str,
    sizes: NDArray[np.int32],
    crops: list[Crops],
    out: Sequence[torch.Tensor],
) -> Callable[[int], None]:
    made = [view.numpy() for view in out]

    def one(row: int) -> None:
        if not isinstance(column[row], np.ndarray):  # the default
            for view in made:
                view[row] = column[row]
            return
        mask = mask_pixels(column[row], field)
        if mask.shape != tuple(sizes[row].tolist()):
            raise ValueError(
                f"the mask has {mask.shape[0]} x {mask.shape[1]} pixels, {leader!r} {sizes[row, 0]} x {sizes[row, 1]}"
            )
        for planned, view in zip(crops, made, strict=True):
            follow_mask(mask, planned, row, view[row], field.ignore)

    return one


def _shape_follower(
    columns: Columns, name: str, field: Boxes | Points, labels: tuple[str, ...], crops: list[Crops]
) -> Callable[[int], None]:
    """Moves boxes or points, and drops labels with them; the columns become lists, for several views tuples of them."""
    given = {key: columns[key] for key in (name, *labels)}
    count = len(given[name])
    made: dict[str, tuple[list[Any], ...]] = {key: tuple([None] * count for _ in crops) for key in given}
    for key, lists in made.items():
        columns[key] = lists if len(crops) > 1 else lists[0]

    def one(row: int) -> None:
        for key in labels:
            if len(given[key][row]) != len(given[name][row]):
                raise ValueError(f"there are {len(given[name][row])}, but {len(given[key][row])} of {key!r}")
        for view, planned in enumerate(crops):
            if isinstance(field, Boxes):
                moved, kept = follow_boxes(given[name][row], field.format, planned, row, field.min_area)
            else:
                moved, kept = follow_points(given[name][row], field.outside, planned, row)
            made[name][view][row] = moved
            for key in labels:
                made[key][view][row] = np.asarray(given[key][row])[kept]

    return one
