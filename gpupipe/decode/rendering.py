"""A batch on the CPU: pixels by the C++ kernel, what that refuses by other decoders, and what follows their crops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Batch, Boxes, Columns, Frames, Image, Images, Job, Mask, Points, Schema, Text
from gpupipe.batch.collation import CollationError, collate
from gpupipe.batch.sized import Sizes, dense_rows
from gpupipe.decode.fetching import Fetched, fetch, upright
from gpupipe.decode.headers import NOTHING
from gpupipe.decode.masks import mask_pixels, move_masks
from gpupipe.decode.merging import FieldCrops, Made, merged
from gpupipe.decode.own import change_images, changed_whole
from gpupipe.decode.pixels import DecodeError, render
from gpupipe.errors import DataError, GpupipeError
from gpupipe.host.readers import Readers
from gpupipe.host.tracing import Stage, who
from gpupipe.host.whereabouts import note
from gpupipe.kernels import Crops, augment, decode_crops, native
from gpupipe.plan import (
    Moves,
    arranged,
    augmentation,
    box_corners,
    cropping,
    follow_boxes,
    follow_mask,
    follow_points,
    moving,
)
from gpupipe.recipe import OnBatch, PerImage, RandomCrop, RandomIoUCrop, Recipe, Views
from gpupipe.sources import Source
from gpupipe.sources.headers import indexed_damage
from gpupipe.workers.board import BATCH
from gpupipe.workers.work import Plane, new_planes

__all__ = [
    "THREADS",
    "FieldCrops",
    "Rendering",
    "augment_view",
    "crops_of",
    "decode_images",
    "follow",
    "planes",
    "put_together",
    "refuse_small",
    "render_batch",
    "runs_of_workers",
    "sizes_of",
]

log = logging.getLogger("gpupipe")

# On one thread: where workers hold the CPUs, more make it wait for them (1,434 img/s against 1,321 on 2 cores).
THREADS = 1
SMALLER = "make it smaller or remove it, or pass other limits=gpupipe.Limits(...)"
FEW = 8  # boxes that may all lie outside of their crops by chance

JUDGED: set[tuple[str, str]] = set()
"""Fingerprints of sources and their fields of boxes that are known to be in pixels, or that were warned of."""


class Rendering:
    """The work of a worker process: it makes the batch of a job.

    augmented: whether to apply the recipes' augmentations, too. readers: see `fetch`.
    """

    def __init__(self, source: Source, views: Views, *, augmented: bool, readers: Readers | None = None) -> None:
        self.source = source
        self.views = views
        self.augmented = augmented
        self.readers = readers
        self.layout = planes(source.fields, views)
        # A tokenizer may make rows as long as the longest of those texts that it is given.
        self.in_parts = not any(isinstance(one, Text) and one.tokenizer for one in source.fields.values())

    def __getstate__(self) -> dict[str, Any]:
        """What a worker gets that is no fork: all but functions on batches, which it does not call, and which may so be
        what can't be pickled."""
        return vars(self) | {"views": tuple(_without_functions_on_batches(recipe) for recipe in self.views)}

    def here(self, readers: Readers) -> Rendering:
        """The same for the loader's own process, which can't be ended where a read does not end."""
        return Rendering(self.source, self.views, augmented=self.augmented, readers=readers)

    def __call__(self, job: Job, out: Columns | None = None) -> Batch:
        """The batch, collated where the job is whole and no row failed; into new memory if `out` is None."""
        try:
            planes = new_planes(self.layout, len(job)) if out is None else out
            batch = render_batch(self.source, self.views, job, planes, augmented=self.augmented, readers=self.readers)
        except MemoryError as error:
            raise GpupipeError(
                f"{job.told}: memory ran out; raise the limit (ulimit -v, or the container's), or lower batch_size, "
                "num_workers or prefetch_factor"
            ) from error
        return self.collate(batch) if job.whole and not batch.failures else batch

    def collate(self, batch: Batch) -> Batch:
        """The batch, collated. Raises DataError, which names the samples of the rows that don't fit together."""
        if not batch.collated:
            try:
                batch.columns = collate(self.source.fields, batch.columns, len(self.views))
            except CollationError as error:
                samples = ((row, int(batch.job.indices[row])) for row in error.rows)
                names = [f"row {row} is sample {index} ({self.source.location(index)})" for row, index in samples]
                raise DataError("; ".join([str(error), *names])) from error
            batch.collated = True
        return batch


def _without_functions_on_batches(recipe: Recipe) -> Recipe:
    operations = (replace(one, fn=_called_elsewhere) if isinstance(one, OnBatch) else one for one in recipe.operations)
    return replace(recipe, operations=tuple(operations))


def _called_elsewhere(images: Any, generator: Any) -> Any:
    raise NotImplementedError("the loader's process calls functions on batches")


def planes(schema: Schema, views: Views) -> tuple[Plane, ...]:
    """The arrays of fixed size that a batch has: images and masks, in each view."""
    found = []
    for name, field in schema.items():
        for view, recipe in enumerate(views):
            sides = (recipe.crop.most_pixels,) if recipe.crop.varies else recipe.crop.output_size
            if name in schema.images:
                frames = (field.count,) if isinstance(field, Frames) else ()
                found.append(Plane(name, view, (*frames, *sides, 3), torch.uint8))
            elif isinstance(field, Mask):
                found.append(Plane(name, view, sides, getattr(torch, field.dtype)))
    return tuple(found)


def render_batch(
    source: Source, views: Views, job: Job, out: Columns, *, augmented: bool, readers: Readers | None = None
) -> Batch:
    """Make the batch of a job, whose planes are written into `out`, on the CPU.

    augmented: whether to apply the recipes' augmentations too. readers: see `fetch`. Rows that can't be made are in the
    batch's failures.
    """
    schema = source.fields
    with Stage("read") as read:
        fetched = fetch(source, job if job.partners is None else job.widened(), readers)
    with Stage("decode") as decode:
        note(BATCH)
        crops = crops_of(schema, views, fetched.job, fetched.columns)
        sizes = sizes_of(views, crops)
        whole = fetched
        if job.partners is not None:
            whole = _of_several(fetched, views, crops, job, out)
        elif any(recipe.before_crop.stop for recipe in views):
            _decode_one_by_one(fetched, views, out, sizes)
        else:
            refuse_small(fetched, views, crops)
            decode_images(fetched, views, crops, out)
        for name in schema.images:
            for view, images in enumerate(out[name]):
                own = sizes[name][view] if views[view].crop.varies else None
                images = images.flatten(0, -4) if own is None else images  # the frames of clips
                for run in runs_of_workers(views[view], augmented):
                    if isinstance(views[view].operations[run.start], PerImage):
                        rows = images if own is None else dense_rows(images, own)
                        change_images(whole, views[view], run.start, view, name, rows)
                    else:
                        augment_view(views[view], run, job, view, schema.number(name), images, own)  # in place
        followed = whole.columns if job.partners is not None else follow(fetched, views, crops, out)
    return Batch(
        job,
        followed | out,
        whole.failures,
        sizes,
        augmented=augmented,
        bytes_read=fetched.bytes_read,
        storage=fetched.storage,
        spans=(*fetched.spans(read.span(who())), decode.span(who())),
    )


def sizes_of(views: Views, crops: FieldCrops) -> dict[str, tuple[Sizes, ...]]:
    """The `sizes` of a batch."""
    varies = any(recipe.crop.varies for recipe in views)
    return {name: tuple(planned.sizes for planned in drawn) for name, drawn in crops.items()} if varies else {}


def runs_of_workers(recipe: Recipe, augmented: bool) -> tuple[slice, ...]:
    """Those of the recipe's runs that are done to rows before they are a batch: up to the first `OnBatch`, or, if
    images are not augmented there, no further than the last `PerImage`, which can't be done anywhere else."""
    runs = recipe.runs
    wanted: type = OnBatch if augmented else PerImage
    places = [place for place, run in enumerate(runs) if isinstance(recipe.operations[run.start], wanted)]
    if augmented:
        return runs[: places[0]] if places else runs
    return runs[: places[-1] + 1] if places else ()


def crops_of(schema: Schema, views: Views, job: Job, columns: Columns, first: int = 0) -> FieldCrops:
    """What is drawn for each image field; one that shares another's geometry has its crops. first: the first view's
    number."""
    drawn: FieldCrops = {}
    for name in schema.images:
        leader = schema.drawn_as(name)
        if leader not in drawn:
            chosen = any(isinstance(recipe.crop, RandomIoUCrop) for recipe in views)
            boxes = _boxes(schema, leader, columns) if chosen else []
            drawn[leader] = _crops(views, job, columns[leader], schema.number(leader), first, boxes)
        drawn[name] = drawn[leader]
    return drawn


def _boxes(schema: Schema, leader: str, columns: Columns) -> list[NDArray[np.float64]]:
    """All boxes of each image of a field; none where they are malformed, as that fails the sample when they follow."""
    fields = [
        (columns[name], field.format)
        for name, field in schema.items()
        if isinstance(field, Boxes) and schema.drawn_as(name) == leader
    ]

    def one(row: int) -> NDArray[np.float64]:
        try:
            return np.concatenate([box_corners(column[row], format).reshape(-1, 4) for column, format in fields])
        except ValueError:
            return np.zeros((0, 4))

    return [one(row) for row in range(len(columns[leader]))]


def _crops(
    views: Views, job: Job, images: Images, field: int, first: int, boxes: list[NDArray[np.float64]]
) -> list[Crops]:
    assert images.sizes is not None
    sizes = upright(images.sizes) if views[0].exif_orientation else images.sizes
    where = job.seed, job.epoch, job.positions
    if job.parts is not None:
        (recipe,) = views
        alone = cropping(recipe, *where, sizes[:, 0], sizes[:, 1], job.parts, field, boxes)
        return [arranged(recipe, alone, *where, job.parts, np.maximum(sizes[:, :2], 1).astype(np.int64), field)]
    return [
        cropping(recipe, *where, sizes[:, 0], sizes[:, 1], view, field, boxes)
        for view, recipe in enumerate(views, first)
    ]


def refuse_small(fetched: Fetched, views: Views, crops: FieldCrops) -> None:
    """Rows with an image that is smaller than a crop which does not pad it are failures."""
    names = fetched.source.fields.images
    for name in names:
        sizes, said = fetched.columns[name].sizes, f"{name!r}: " if len(names) > 1 else ""
        for recipe, planned in zip(views, crops[name], strict=True):
            crop = recipe.crop
            if not isinstance(crop, RandomCrop) or crop.pad_if_needed:
                continue
            room = planned.resized + 2 * crop.padding - np.array(crop.output_size)
            for row in np.flatnonzero((room < 0).any(axis=1) & (sizes[:, 0] > 0)).tolist():
                tall, wide = (planned.resized[row] + 2 * crop.padding).tolist()
                fetched.fail(
                    row,
                    f"{said}it has {wide} x {tall} pixels where {crop} takes a part of it, which is larger",
                    "remove it, resize images before, or pass pad_if_needed=True",
                )


# Pixels.


def decode_images(fetched: Fetched, views: Views, crops: FieldCrops, out: Columns) -> None:
    """Make the images of a job into `out`; rows that can't be made become failures."""
    names = fetched.source.fields.images
    for name in names:
        said = "" if len(names) == 1 else f"{name!r}: "
        field, images, planned, planes = fetched.source.fields[name], fetched.columns[name], crops[name], out[name]
        assert isinstance(field, Image)
        if not isinstance(field, Frames):
            for row, (reason, remedy) in _decoded(fetched, field, images, views[0], planned, planes).items():
                fetched.fail(row, said + reason, remedy)
            continue
        each = [crop.repeat(field.count) for crop in planned], [view.flatten(0, 1) for view in planes]
        bad = _decoded(fetched, field, images.flat, views[0], *each, frames=field.count)
        for frame, (reason, remedy) in bad.items():
            row, at = divmod(frame, field.count)
            fetched.fail(row, f"{said}frame {images.data[row].numbers[at]}: {reason}", remedy)


def _decode_one_by_one(fetched: Fetched, views: Views, out: Columns, sizes: dict[str, tuple[Sizes, ...]]) -> None:
    """The same where views change whole images before their crops, which are drawn for what comes out: sample by
    sample, as whole images are large. sizes: of the batch, which become those that come out."""
    for row in range(len(fetched.job)):
        if row in fetched.failures:
            continue
        one = fetched.part(np.array([row]), {})
        whole = _whole(one, views[0])
        for view, recipe in enumerate(views):
            changed = changed_whole(one, recipe, view, whole)
            crops = crops_of(one.source.fields, (recipe,), one.job, changed.columns, view)
            refuse_small(changed, (recipe,), crops)
            decode_images(changed, (recipe,), crops, {name: (out[name][view][row : row + 1],) for name in whole})
            for name, of_views in sizes.items():
                of_views[view][row] = crops[name][0].size_of(0)
        if one.failures:
            fetched.failures[row] = one.failures[0]


def _of_several(fetched: Fetched, views: Views, crops: FieldCrops, job: Job, out: Columns) -> Fetched:
    """The rows of a job that are made of several samples, which were fetched: planes into `out`, one after the other,
    as parts take as much memory as rows do."""
    memory = new_planes(planes(fetched.source.fields, views), int(np.bincount(job.members[0]).max(initial=0)))

    def made(part: Fetched, own: FieldCrops, rows: slice) -> Columns:
        here = {name: (views[0][: len(part.job)],) for name, views in memory.items()}
        if not part.failures:
            decode_images(part, views, own, here)
        return follow(part, views, own, here) | here

    return put_together(fetched, views, crops, job, made, out)


def put_together(fetched: Fetched, views: Views, crops: FieldCrops, job: Job, made: Made, out: Columns) -> Fetched:
    """The rows of a job out of their parts, which were fetched; `made`: see `merged`. Planes into `out`."""
    whole = merged(fetched, views[0], crops, job, made, out)
    carry(whole, views, out)
    return whole


def _whole(one: Fetched, recipe: Recipe) -> dict[str, NDArray[np.uint8]]:
    """The whole images of one sample: as a crop of all of each."""
    crops: FieldCrops = {}
    out: Columns = {}
    for name in one.source.fields.images:
        sizes = one.columns[name].sizes
        ((height, width),) = (upright(sizes) if recipe.exif_orientation else sizes[:, :2]).tolist()
        size = (height, width) if height and not one.failures else (1, 1)
        crops[name] = [Crops.of([(0, 0, *size)], size)]
        out[name] = (torch.empty((1, *size, 3), dtype=torch.uint8, device="cpu"),)
    decode_images(one, (recipe,), crops, out)
    return {name: views[0][0].numpy() for name, views in out.items()}


def _decoded(
    fetched: Fetched,
    field: Image,
    images: Images,
    recipe: Recipe,
    crops: list[Crops],
    out: Sequence[torch.Tensor],
    frames: int = 1,
) -> dict[int, tuple[str, str]]:
    """Make the images of one field whose bytes are there: by the kernel, what that refuses one by one. Why others can't
    be made, and what can be done, "" where the file is at fault. frames: so many of them are a row of the job."""
    assert images.sizes is not None
    reasons: dict[int, tuple[str, str]] = {}
    rest: Iterable[int] = range(len(images))
    files = [data if data.ndim == 1 else NOTHING for data in images.data]
    for row in fetched.failures:
        files[row * frames : (row + 1) * frames] = [NOTHING] * frames
    for row in np.flatnonzero(images.sizes[:, 0] == 0).tolist():  # whose crop is nothing that the kernel could make
        files[row] = NOTHING
    if native.library() is not None and any(map(len, files)):
        rest = refused = decode_crops(
            files,
            crops,
            out=[view.numpy() for view in out],
            orientations=images.sizes[:, 2] if recipe.exif_orientation else None,
            sizes=images.sizes[:, :2],
            decode=recipe.decode,
            limits=fetched.job.limits,
            threads=THREADS,
        ).failures
        reasons = {row: (bad.message, SMALLER) for row, bad in refused.items() if bad.code == "limit"}  # for others too
    for row in rest:
        data = images.data[row]
        if row in reasons or row // frames in fetched.failures:
            continue
        note(int(fetched.job.indices[row // frames]))
        height, width, orientation = images.sizes[row].tolist()
        if height == 0:
            reasons[row] = indexed_damage(data.tobytes())
            continue
        if recipe.exif_orientation and orientation >= 5:
            height, width = width, height
        try:
            own = [planned.row(row) for planned in crops]
            views = [_row(view[row], planned, row) for view, planned in zip(out, crops, strict=True)]
            render(data, height, width, own, recipe.exif_orientation, views, field.background)
        except DecodeError as error:
            reasons[row] = str(error), ""
        except MemoryError:
            reasons[row] = f"there is no memory for its {width} x {height} pixels", "raise the limit (ulimit -v)"
    return reasons


def _row(pixels: Any, crops: Crops, row: int) -> Any:
    """One row of a plane as the image or mask that it is."""
    height, width = crops.size_of(row)
    return pixels if crops.outputs is None else pixels[: height * width].reshape(height, width, *pixels.shape[1:])


def augment_view(
    recipe: Recipe, run: slice, job: Job, view: int, field: int, images: torch.Tensor, sizes: Sizes | None = None
) -> torch.Tensor:
    """The images of one view, uint8 (N, height, width, 3), with the recipe's augmentations in a run of its operations:
    in a worker, or on a GPU in the consumer's process. Where a row of the job has several, the frames of clips, all get
    the same. field: see `Schema.number`. sizes: of the images, where the crop varies; they may then be a plane.

    On the CPU in place; on a GPU in new memory, which spares the pass that an operation in place needs there.
    """
    drawn = augmentation(recipe, job.seed, job.epoch, job.positions, view, field, run, sizes)
    if drawn is None:
        return images
    if sizes is not None and images.ndim == 3:
        for row, image in enumerate(dense_rows(images, sizes)):
            at = slice(row, row + 1)
            augment(image[None], drawn.ops[at], drawn.values[at], fill=drawn.fill, out=image[None], threads=THREADS)
        return images
    ops, values = drawn.ops, drawn.values
    if len(images) > len(job):
        frames = len(images) // len(job)
        ops, values = ops.repeat(frames, 0), values.repeat(frames, 0)
    out = images if images.device.type == "cpu" else None
    return augment(images, ops, values, fill=drawn.fill, out=out, threads=THREADS)


# What follows.


def follow(fetched: Fetched, views: Views, crops: FieldCrops, out: Columns) -> Columns:
    """The columns that are not images, as their images are cropped and moved: masks are written into `out`. What is of
    parts of rows is moved when they are put together, see `carry`.

    Where there are several views, what follows a view is a tuple with a list for each.
    """
    schema = fetched.source.fields
    columns = {name: column for name, column in fetched.columns.items() if name not in schema.pixels}
    moves_of = _moves(fetched.job, views, crops)
    for name, field in schema.items():
        one: Callable[[int], None]
        if not isinstance(field, Mask | Boxes | Points):
            continue
        moves = moves_of(schema.drawn_as(name), schema.number(name)) if fetched.job.parts is None else [None]
        if isinstance(field, Mask):
            one = _mask_follower(fetched, name, field, views[0].exif_orientation, crops, out[name])
        else:
            one = _shape_follower(columns, name, field, schema, crops[schema.drawn_as(name)], moves)
        _each(fetched, name, one)
        if isinstance(field, Mask):
            _move(field, out[name], moves, crops[schema.drawn_as(name)])
        if isinstance(field, Boxes) and (fetched.source.fingerprint, name) not in JUDGED:
            _judge(fetched, name, field, columns[name] if len(views) > 1 else (columns[name],))
    _number_anew(fetched, crops, columns, out)
    return columns


def carry(whole: Fetched, views: Views, out: Columns) -> None:
    """Masks in `out`, boxes and points of rows that are made of several samples, as the recipe moves them then."""
    schema, size = whole.source.fields, views[0].crop.output_size
    output = [Crops.of(np.tile((0, 0, *size), (len(whole.job), 1)), size)]
    moves_of = _moves(whole.job, views, dict.fromkeys(schema.images, output))
    for name, field in schema.items():
        if not isinstance(field, Mask | Boxes | Points):
            continue
        moves = moves_of(schema.drawn_as(name), schema.number(name))
        if isinstance(field, Mask):
            _move(field, out[name], moves, output)
        elif moves[0] is not None:
            _each(whole, name, _shape_follower(whole.columns, name, field, schema, output, moves))
    _number_anew(whole, dict.fromkeys(schema.images, output), whole.columns, out)


def _each(fetched: Fetched, name: str, one: Callable[[int], None]) -> None:
    """What follows of each row; what is wrong with it is a failure."""
    for row in range(len(fetched.job)):
        if row not in fetched.failures:
            try:
                one(row)
            except ValueError as error:
                fetched.fail(row, f"{name!r}: {error}")


def _masks_of(made: torch.Tensor, planned: Crops) -> list[NDArray[Any]]:
    rows = made if planned.outputs is None else dense_rows(made, planned.outputs)
    return [row.numpy() for row in rows]


def _move(field: Mask, masks: Sequence[torch.Tensor], moves: Sequence[Moves | None], crops: list[Crops]) -> None:
    for made, moved, planned in zip(masks, moves, crops, strict=True):
        if moved is not None:
            move_masks(_masks_of(made, planned), moved, field.ignore)


def _number_anew(fetched: Fetched, crops: FieldCrops, columns: Columns, out: Columns) -> None:
    """Masks that number boxes, by the boxes that are left: `columns` have their old numbers, which are taken out."""
    for name in [name for name in out if name in columns]:
        views = columns.pop(name)
        each = [views] if len(out[name]) == 1 else views
        for made, numbers, planned in zip(out[name], each, crops[fetched.source.fields.drawn_as(name)], strict=True):
            _each(fetched, name, partial(_renumber, _masks_of(made, planned), numbers))


def _renumber(masks: Sequence[NDArray[Any]], numbers: Sequence[NDArray[np.int64]], row: int) -> None:
    left, mask = numbers[row], masks[row]
    count, most = int(left[0]), int(mask.max(initial=0))
    if not 0 <= most <= count:
        raise ValueError(f"it numbers {most} boxes, and there are {count}")
    if len(left) <= count:
        new = np.zeros(count + 1, mask.dtype)
        new[left[1:]] = np.arange(1, len(left))
        mask[...] = new[mask]


def _moves(job: Job, views: Views, crops: FieldCrops) -> Callable[[str, int], list[Moves | None]]:
    """How an image field, by its name and number, moves in each view: drawn once for all that follows it."""

    @cache
    def of_field(name: str, number: int) -> list[Moves | None]:
        where = job.seed, job.epoch, job.positions
        return [
            moving(recipe, *where, view, number, planned.outputs)
            for view, (recipe, planned) in enumerate(zip(views, crops[name], strict=True))
        ]

    return of_field


def _judge(fetched: Fetched, name: str, field: Boxes, views: Sequence[list[Any]]) -> None:
    """Warn where the field's first boxes vanish, or lie within one pixel: they may be parts of the image's sides."""
    rows = [row for row in range(len(fetched.job)) if row not in fetched.failures]
    given = {row: np.asarray(fetched.columns[name][row]) for row in rows if len(fetched.columns[name][row])}
    count = sum(map(len, given.values()))
    tiny = all((np.abs(boxes) <= 1).all() for boxes in given.values())
    kept = any(len(view[row]) for view in views for row in given)
    if not count or (not tiny and not kept and count < FEW):
        return
    JUDGED.add((fetched.source.fingerprint, name))
    if tiny or not kept:
        row, boxes = next(iter(given.items()))
        log.warning(
            "gpupipe: %r: all of the first %d boxes %s, as %s of sample %d (%s); boxes are expected in pixels of the "
            "image: multiply normalized ones by its width and height, and see that format=%r is theirs",
            name,
            count,
            "lie within 1 x 1 pixel" if tiny else "were dropped",
            boxes[0].tolist(),
            fetched.job.indices[row],
            fetched.source.location(int(fetched.job.indices[row])),
            field.format,
        )


def _mask_follower(
    fetched: Fetched, name: str, field: Mask, exif: bool, crops: FieldCrops, out: Sequence[torch.Tensor]
) -> Callable[[int], None]:
    leader = fetched.source.fields.drawn_as(name)
    column, sizes = fetched.columns[name], fetched.columns[leader].sizes
    sizes = upright(sizes) if exif else sizes[:, :2]
    made = [view.numpy() for view in out]

    def one(row: int) -> None:
        views = [_row(view[row], planned, row) for planned, view in zip(crops[leader], made, strict=True)]
        if not isinstance(column[row], np.ndarray):  # the default
            for view in views:
                view[...] = column[row]
            return
        mask = mask_pixels(column[row], field, fetched.job.limits)
        if mask.shape != tuple(sizes[row].tolist()):
            raise ValueError(
                f"the mask has {mask.shape[0]} x {mask.shape[1]} pixels, {leader!r} {sizes[row, 0]} x {sizes[row, 1]}"
            )
        for planned, view in zip(crops[leader], views, strict=True):
            follow_mask(mask, planned, row, view, field.ignore)

    return one


def _length(name: str, rows: Any) -> int:
    if not np.ndim(rows):
        raise ValueError(f"{name!r} is one number, {np.asarray(rows).item()}, where a row for each is wanted")
    return len(rows)


def _shape_follower(
    columns: Columns,
    name: str,
    field: Boxes | Points,
    schema: Schema,
    crops: list[Crops],
    moves: Sequence[Moves | None],
) -> Callable[[int], None]:
    """Moves boxes or points, and drops labels with them; the columns become lists, for several views tuples of them.
    The masks that number them get columns of how many there were, and the numbers of those that are left."""
    labels, numbering = schema.labels_of(name), schema.numbering(name)
    given = {key: columns[key] for key in (name, *labels)}
    count = len(given[name])
    given |= dict.fromkeys(numbering)
    made: dict[str, tuple[list[Any], ...]] = {key: tuple([None] * count for _ in crops) for key in given}
    for key, lists in made.items():
        columns[key] = lists if len(crops) > 1 else lists[0]

    def one(row: int) -> None:
        for key in labels:
            count, labelled = (_length(which, given[which][row]) for which in (name, key))
            if count != labelled:
                raise ValueError(f"there are {count}, but {labelled} of {key!r}")
        for view, (planned, program) in enumerate(zip(crops, moves, strict=True)):
            moved_by = () if program is None else program.of(row)
            if isinstance(field, Boxes):
                moved, kept = follow_boxes(given[name][row], field.format, planned, row, field.min_area, moved_by)
            else:
                moved, kept = follow_points(given[name][row], field.outside, planned, row, moved_by)
            made[name][view][row] = moved
            for key in numbering:
                made[key][view][row] = np.concatenate([[len(kept)], 1 + np.flatnonzero(kept)])
            for key in labels:
                made[key][view][row] = np.asarray(given[key][row])[kept]

    return one
