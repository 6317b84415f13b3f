"""All that a page tells of a sample: what it is as stored, what became of it, and what was drawn for that."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Array, Boxes, Bytes, Clip, Frames, Job, Mask, Points, Schema, Text
from gpupipe.decode.fetching import Fetched, fetch, upright
from gpupipe.decode.rendering import FieldCrops, crops_of, planes, render_batch
from gpupipe.kernels import Crops
from gpupipe.loader.jobs import Jobs
from gpupipe.recipe import Recipe, ResizeCenterCrop
from gpupipe.sources import Source
from gpupipe.tools.showing.marks import drawn, marks_of, name_of
from gpupipe.tools.showing.shown import Picture, Shown, mixing_at, views_of
from gpupipe.tools.showing.strips import strip
from gpupipe.tools.showing.words import Size, drawn_in_words, mixed_in_words
from gpupipe.workers.work import new_planes

if TYPE_CHECKING:
    from gpupipe.loader.loader import Loader

__all__ = ["After", "Before", "Card", "cards_of"]

LONGER = 320  # the side of an image as stored, at most
Rectangle = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels."""


@dataclass(frozen=True)
class Before:
    """An image field as stored, made smaller, with the part that each picture shows; size: of all of it. legend: the
    classes that are in the sample's masks, by number."""

    field: str
    size: Size
    pixels: NDArray[np.uint8]
    legend: dict[int, str]


@dataclass(frozen=True)
class After:
    """One of the pictures of a sample; number: which of its field's, as on `Before`. drawn: by operation, in words."""

    picture: Picture
    epoch: int
    number: int
    label: str
    drawn: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Card:
    """facts: what else it has, by field."""

    index: int
    key: str
    facts: tuple[tuple[str, str], ...]
    before: tuple[Before, ...]
    after: tuple[After, ...]


def cards_of(loader: Loader, shown: Iterable[Shown]) -> Iterator[Card]:
    """A card for each sample, of all epochs in which it is shown. One that is bad, so that another came, has none."""
    for index, epochs in groupby(shown, lambda one: one.wanted):
        good = [one for one in epochs if one.index == index]
        if good:
            yield _card(loader, good)


def _card(loader: Loader, epochs: list[Shown]) -> Card:
    source, views, index = loader.source, views_of(loader), epochs[0].index
    exif = views[0].exif_orientation
    after: list[After] = []
    parts: dict[str, list[Rectangle]] = {name: [] for name in source.fields.images}
    for one in epochs:
        job = Job(loader.seed, one.epoch, np.array([one.position]), np.array([index]))
        made = Jobs(loader.order, loader.seed, len(source), views[0]).with_partners(job) if views[0].several else job
        fetched = fetch(source, job if made.partners is None else made.widened())
        crops = None if any(recipe.before_crop.stop for recipe in views) else _crops(loader, fetched)
        for picture in one.pictures:
            own = None if crops is None else crops[picture.field][picture.view].row(0)
            if own is not None:
                parts[picture.field].append(_visible(own))
            number = sum(other.picture.field == picture.field for other in after) + 1
            words = _words(loader, fetched, picture, own, one)
            after.append(After(picture, one.epoch, number, one.label, tuple(words)))
    sizes = {name: _size(fetched, name, exif) for name in parts}
    before = [_before(source, job, name, sizes[name], exif, parts[name]) for name in parts]
    return Card(index, source.key(index), tuple(_facts(source, fetched.columns)), tuple(before), tuple(after))


def _crops(loader: Loader, fetched: Fetched) -> FieldCrops:
    return crops_of(loader.source.fields, views_of(loader), fetched.job, fetched.columns)


def _size(fetched: Fetched, name: str, exif: bool) -> Size:
    sizes = fetched.columns[name].sizes
    height, width = (upright(sizes) if exif else sizes[:, :2])[0].tolist()
    return height, width


def _visible(crops: Crops) -> Rectangle:
    """The part of the image that the output shows."""
    top, left, height, width = crops.windows[0].tolist()
    (tall, wide), (down, right) = crops.resized[0].tolist(), crops.anchors[0].tolist()
    y, x = height / tall, width / wide
    bottom, end = down + crops.size_of(0)[0], right + crops.size_of(0)[1]
    return left + right * x, top + down * y, left + end * x, top + bottom * y


def _words(
    loader: Loader, fetched: Fetched, picture: Picture, crops: Crops | None, one: Shown
) -> list[tuple[str, str]]:
    recipe, field = views_of(loader)[picture.view], loader.source.fields.number(picture.field)
    size = _size(fetched, picture.field, recipe.exif_orientation)
    job = fetched.job
    members = {} if job.parts is None else dict(zip(job.parts.tolist(), job.indices.tolist(), strict=True))
    partners = {part: loader.source.key(index) for part, index in members.items() if part}
    words = drawn_in_words(recipe, job, picture.view, field, crops, size, partners)
    clip = fetched.columns[picture.field].data[0]
    if isinstance(clip, Clip):
        words.insert(0, ("Frames", ", ".join(map(str, clip.numbers))))
    mixed = mixing_at(loader, one.epoch, one.position)
    if mixed is not None:
        how, row, indices = mixed
        partner = loader.source.key(int(indices[how.mix.partners[row]]))
        words.append((type(recipe.mixing).__name__, mixed_in_words(how, row, partner)))
    return words


def _before(source: Source, job: Job, name: str, size: Size, exif: bool, parts: list[Rectangle]) -> Before:
    """The whole image with what follows it and, by number, the parts that are shown."""
    scale = min(1.0, LONGER / max(size))
    small = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    plain = Recipe((ResizeCenterCrop(small, resize=small),), dtype="uint8", exif_orientation=exif)
    batch = render_batch(source, (plain,), job, new_planes(planes(source.fields, (plain,)), 1), augmented=False)
    for error in batch.failures.values():
        raise error
    pixels = source.fields.per_view(1)
    values = {key: column[0][0] if key in pixels else column[0] for key, column in batch.columns.items()}
    marks = marks_of(source, name, values)
    y, x = small[0] / size[0], small[1] / size[1]
    shown = [
        ((left * x, top * y, right * x, bottom * y), str(number))
        for number, (left, top, right, bottom) in enumerate(parts, start=1)
    ]
    marks = replace(marks, parts=shown)
    field, whole = source.fields[name], values[name].numpy()
    clips = np.split(whole, field.clips) if isinstance(field, Frames) else [whole[None]]
    return Before(
        name, size, strip([[drawn(frame, marks) for frame in clip] for clip in clips]), _legend(source, values)
    )


def _legend(source: Source, values: Mapping[str, Any]) -> dict[int, str]:
    """The classes that are in masks, by the numbers of their colours."""
    found: dict[int, str] = {}
    for name in source.fields.of_kind(Mask):
        field = source.fields[name]
        assert isinstance(field, Mask)
        numbers = np.unique(np.asarray(values[name], np.int64)).tolist()
        found |= {number: name_of(source, name, number) for number in numbers if number not in (0, field.ignore)}
    return found


def _facts(source: Source, columns: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What fields other than pixels hold as stored, in words."""
    schema = source.fields
    for name, field in schema.items():
        value = columns[name][0] if isinstance(field, Array | Boxes | Bytes | Points | Text) else None
        if value is None or name in schema.labels:
            continue
        if isinstance(field, Boxes | Points):
            yield name, ", ".join([str(len(value)), *_labels(source, schema, name, columns)])
        elif isinstance(field, Bytes):
            yield name, f"{len(value)} bytes"
        else:
            yield name, value if isinstance(value, str) else _told(source, name, np.asarray(value))


def _labels(source: Source, schema: Schema, name: str, columns: Mapping[str, Any]) -> Iterator[str]:
    """What is beside each of the boxes or points, by field."""
    for label in schema.labels_of(name):
        yield f"{label}: {_told(source, label, np.asarray(columns[label][0]))}"


def _told(source: Source, name: str, value: NDArray[Any]) -> str:
    """A number, or some, by the names of their classes."""
    if value.dtype.kind not in "biuf" or value.ndim > 1:
        return f"{value.dtype} {value.shape}" if value.ndim > 1 else reprlib.repr(value.tolist())
    some = [name_of(source, name, number) for number in value.reshape(-1)[:LISTED].tolist()]
    return " ".join(some) + (f" and {value.size - LISTED} more" if value.size > LISTED else "")


LISTED = 8  # numbers of an array
