"""One sample of the parts that several samples are cropped to, see `gpupipe.plan.partners`.

    parts 0 to 3   ──► a mosaic ┐
    parts 4 to 7   ──► a mosaic ┴► blended ┐
    parts 8 to 15  ──► the same ───────────┴► its objects are pasted onto the first

All on uint8 pixels, before augmentations: where they lie, on the CPU or on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Boxes, Columns, Job, Mask, Points, Schema
from gpupipe.batch.columns import assemble
from gpupipe.decode.fetching import Fetched
from gpupipe.kernels import Crops
from gpupipe.kernels.transfer import to_device
from gpupipe.plan import blending, boxes_of, pasted
from gpupipe.recipe import CopyPaste, Recipe
from gpupipe.recipe.several import BLENDED, PASTED, QUADRANTS

__all__ = ["FieldCrops", "Made", "merged"]

ONE = 1 << 16  # of the weights with which images are blended
STRIPE = 16  # rows
REACH = 2  # pixels about a pasted object that come along: of torchvision's blur by 5 x 5

Flags = NDArray[np.bool_]
FieldCrops = dict[str, list[Crops]]
"""Of each image field the crops in each view."""
Made = Callable[[Fetched, FieldCrops, slice], Columns]
"""The columns of some rows of a widened job, planes among them; what can't be made is a failure."""


def merged(fetched: Fetched, recipe: Recipe, crops: FieldCrops, job: Job, made: Made, out: Columns) -> Fetched:
    """The rows of a job, each out of some rows of the widened one, which was fetched: planes into `out`. A row fails by
    the first of its parts that does."""
    schema = fetched.source.fields
    whole = Fetched(fetched.source, job, {}, {})
    columns: list[tuple[NDArray[np.int64], Columns]] = []
    ends = np.cumsum(np.bincount(job.members[0], minlength=len(job))).tolist()
    for row, (begin, end) in enumerate(pairwise([0, *ends])):
        rows = slice(begin, end)
        bad = {place - begin: fetched.failures[place] for place in range(begin, end) if place in fetched.failures}
        part = fetched.part(np.arange(begin, end), bad)
        own = {name: [planned.take(rows) for planned in lists] for name, lists in crops.items()}
        parts = made(part, own, rows)
        if not part.failures:
            try:
                one = _merged(schema, recipe, part.job, own, parts)
            except ValueError as error:
                part.fail(0, str(error))
        if part.failures:
            whole.failures[row] = part.failures[min(part.failures)]
            continue
        for name, planes in out.items():
            _copy(planes[0][row], one.pop(name)[0][0])
        columns.append((np.array([row]), one))
    found = assemble(len(job), columns)
    whole.columns = {name: found.get(name, [None] * len(job)) for name in schema if name not in schema.pixels}
    return whole


def _merged(schema: Schema, recipe: Recipe, job: Job, crops: FieldCrops, columns: Columns) -> Columns:
    """One sample's columns, of a row, out of those of its parts.

    job: of the parts. crops: of each image field. columns: pixels are changed in place; those of the result are views
    of them. Raises ValueError for what a mask's dtype can't hold.
    """
    assert job.parts is not None
    at = {part: row for row, part in enumerate(job.parts.tolist())}
    planes = {name: columns[name][0] for name in schema.pixels}
    lists = {key: list(columns[key]) for name in schema for key in _rowwise(schema, name)}
    for lead in (lead for lead in (PASTED + BLENDED, PASTED, BLENDED, 0) if lead in at):
        rows = [at[lead + quadrant] for quadrant in range(QUADRANTS) if lead + quadrant in at]
        _number_on(schema, planes, lists, rows)
        for name, plane in planes.items():
            field, own = schema[name], crops[schema.drawn_as(name)][0]
            _lay_out(plane, own, rows, field.ignore if isinstance(field, Mask) else recipe.crop.color)
        _join(lists, rows)
        if lead + BLENDED in at and not lead & BLENDED:
            share = float(blending(recipe, job.seed, job.epoch, job.positions[:1], lead)[0])
            for name in schema.images:
                _blend(planes[name][rows[0]], planes[name][at[lead + BLENDED]], share)
            _join(lists, [rows[0], at[lead + BLENDED]])
    if PASTED in at:
        paste = recipe.only(CopyPaste)
        assert paste is not None
        for name in schema.of_kind(Boxes):
            _paste(schema, name, paste.blending, job, planes, lists, at[PASTED])
    whole = {name: column[:1] for name, column in columns.items() if name not in planes}
    return whole | {key: values[:1] for key, values in lists.items()} | {key: (p[:1],) for key, p in planes.items()}


def _rowwise(schema: Schema, name: str) -> tuple[str, ...]:
    """Boxes or points, and what has a row for each of them; nothing for other fields."""
    return (name, *schema.labels_of(name)) if isinstance(schema[name], Boxes | Points) else ()


def _join(lists: dict[str, list[Any]], rows: list[int]) -> None:
    """The first of the rows gets what all of them have."""
    if len(rows) > 1:
        for values in lists.values():
            values[rows[0]] = np.concatenate([values[row] for row in rows])


def _number_on(schema: Schema, planes: dict[str, torch.Tensor], lists: dict[str, list[Any]], rows: list[int]) -> None:
    """The masks that number boxes go on where those of the rows before end."""
    for boxes in schema.of_kind(Boxes):
        for name in schema.numbering(boxes):
            before = 0
            for row in rows:
                mask, count = planes[name][row].numpy(), len(lists[boxes][row])
                _check_room(mask, before + count, name)
                mask += (mask > 0) * mask.dtype.type(before)
                before += count


def _check_room(mask: NDArray[Any], most: int, name: str) -> None:
    if most > np.iinfo(mask.dtype).max:
        raise ValueError(
            f"the sample that is made of several has {most} boxes, and mask {name!r} of {mask.dtype} can't number so "
            "many; pass dtype='int32'"
        )


def _lay_out(plane: torch.Tensor, crops: Crops, rows: list[int], fill: Any) -> None:
    """The first of the rows shows all of them, each in its part of the output, and `fill` around."""
    whole = plane[rows[0]]
    if crops.shown is None:
        return
    top, left, bottom, right = crops.shown[rows[0]].tolist()
    for outside in (whole[:top], whole[bottom:], whole[top:bottom, :left], whole[top:bottom, right:]):
        if outside.numel():
            _fill(outside, fill)
    for row in rows[1:]:
        width = crops.size[1]
        start, window = crops.anchors[row], crops.resized[row]
        first, last = np.clip(-start, 0, crops.size), np.clip(window - start, 0, crops.size)
        if crops.flips[row]:
            first[1], last[1] = width - last[1], width - first[1]
        first, last = np.maximum(first, crops.shown[row, :2]), np.minimum(last, crops.shown[row, 2:])
        (top, left), (bottom, right) = first.tolist(), last.tolist()
        if top < bottom and left < right:
            _copy(whole[top:bottom, left:right], plane[row, top:bottom, left:right])


# Pixels on the CPU by NumPy: torch shares copies out to threads, and without workers these took 18 ms a mosaic of 640
# pixels where NumPy's take 1 (2 cores, others at work).


def _on_cpu(pixels: torch.Tensor) -> bool:
    return pixels.device.type == "cpu"


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    if _on_cpu(target):
        np.copyto(target.numpy(), source.numpy())
    else:
        target.copy_(source)


def _fill(pixels: torch.Tensor, fill: Any) -> None:
    """With a level, or one for each channel."""
    if _on_cpu(pixels):
        pixels.numpy()[:] = np.full(pixels.shape[1:], fill, pixels.numpy().dtype)
        return
    for levels, level in zip(pixels.unbind(-1), fill, strict=True) if isinstance(fill, tuple) else [(pixels, fill)]:
        levels.fill_(level)


def _stripes(pixels: NDArray[Any]) -> list[NDArray[Any]]:
    """Some rows after the other, so that what is made of them stays in the cache: a blend of 1,024 x 1,024 pixels takes
    2 ms, at once 14, torch's 25 (one thread)."""
    return [pixels[row : row + STRIPE] for row in range(0, len(pixels), STRIPE)]


def _cover(pixels: torch.Tensor, others: torch.Tensor, where: Flags) -> None:
    if _on_cpu(pixels):
        channels = pixels.shape[2] if pixels.ndim == 3 else 1
        each = np.arange(where.shape[1] * channels) // channels
        for own, theirs, here in zip(*map(_stripes, (pixels.numpy(), others.numpy(), where)), strict=True):
            np.copyto(own, theirs, where=here.take(each, axis=1).reshape(own.shape))
        return
    there = to_device(torch.from_numpy(where), pixels.device)
    pixels.copy_(torch.where(there[..., None] if pixels.ndim == 3 else there, others, pixels))


def _blend(image: torch.Tensor, other: torch.Tensor, share: float) -> None:
    """In place; rounded down, as Ultralytics'."""
    weight = round(share * ONE)
    if _on_cpu(image):
        for own, theirs in zip(*map(_stripes, (image.numpy(), other.numpy())), strict=True):
            np.right_shift(own * np.uint32(weight) + theirs * np.uint32(ONE - weight), 16, out=own, casting="unsafe")
        return
    image.copy_((image.int() * weight + other.int() * (ONE - weight)) >> 16)


def _paste(
    schema: Schema,
    name: str,
    blends: bool,
    job: Job,
    planes: dict[str, torch.Tensor],
    lists: dict[str, list[Any]],
    other: int,
) -> None:
    """Drawn objects of a field of boxes of that row cover the first."""
    (numbering,) = schema.numbering(name)
    mask, theirs = (planes[numbering][row].numpy() for row in (0, other))
    count = len(lists[name][other])
    chosen = pasted(job.seed, job.epoch, int(job.positions[0]), count, schema.number(name))
    if not len(chosen):
        return
    new = np.zeros(count + 1, np.int64)
    new[1 + chosen] = 1 + np.arange(len(chosen))
    shapes = new[theirs]
    covered = _grown(shapes > 0) if blends else shapes > 0
    for key, plane in planes.items():
        if key != numbering and schema.number(key) == schema.number(name):
            _cover(plane[0], plane[other], covered)
    left = np.where(covered, 0, mask)
    corners, kept = _seen(left, len(lists[name][0]))
    _check_room(mask, int(kept.sum()) + len(chosen), numbering)
    mask[...] = np.pad(np.cumsum(kept) * kept, (1, 0))[left]
    mask[shapes > 0] = shapes[shapes > 0] + kept.sum()
    field = schema[name]
    assert isinstance(field, Boxes)
    lists[name][0] = boxes_of(corners, field.format).astype(np.float32)
    for key in _rowwise(schema, name):
        lists[key][0] = np.concatenate([lists[key][0][kept], lists[key][other][chosen]])


def _grown(mask: Flags) -> Flags:
    """With all that is within `REACH` of it, along rows and columns."""
    for axis in (0, 1):
        mask, grown = mask.swapaxes(0, axis), mask.copy().swapaxes(0, axis)
        for step in range(1, REACH + 1):
            grown[step:] |= mask[:-step]
            grown[:-step] |= mask[step:]
        mask = grown.swapaxes(0, axis)
    return mask


def _seen(mask: NDArray[Any], count: int) -> tuple[NDArray[np.float64], Flags]:
    """Of so many objects that a mask numbers the corners about their pixels, (count, 2, 2), and which have any."""
    bounds = []
    for places in (np.arange(mask.shape[1]), np.arange(mask.shape[0])[:, None]):
        there = np.zeros((count + 1, places.size), np.bool_)
        there[mask, places] = True
        bounds.append((there.argmax(axis=1), places.size - there[:, ::-1].argmax(axis=1)))
    corners = np.array(bounds, np.float64).transpose(2, 1, 0)
    return corners[1:], np.any(there[1:], axis=1)
