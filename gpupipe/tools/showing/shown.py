"""Samples exactly as a loader gives them to the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Array, Frames, Text
from gpupipe.errors import ConfigError
from gpupipe.plan import Mixing, mixing
from gpupipe.tools.showing.marks import drawn, marks_of, name_of
from gpupipe.tools.showing.strips import clips_of, strip

if TYPE_CHECKING:
    import torch

    from gpupipe.loader.loader import Loader
    from gpupipe.recipe import Recipe, Views

__all__ = ["Picture", "Shown", "mixing_at", "read_shown", "views_of"]

SCANNED = 1 << 20  # positions of an epoch that are looked through at once


@dataclass(frozen=True)
class Picture:
    """What the model gets of one image field in one view, uint8 RGB (height, width, 3), with what follows it; of clips
    all frames. size: of a frame, (height, width)."""

    field: str
    view: int
    pixels: NDArray[np.uint8]
    size: tuple[int, int]


@dataclass(frozen=True)
class Shown:
    """A sample as it comes at a position of an epoch.

    wanted: the sample that stands there. index: the one that came, another one where that is bad and was replaced.
    label: its class, or its classes where it is mixed, empty where it has none. texts: what it says. pictures: of each
    view those of each image field.
    """

    wanted: int
    index: int
    epoch: int
    position: int
    label: str
    texts: tuple[str, ...]
    pictures: tuple[Picture, ...]


def read_shown(loader: Loader, count: int, repeat: int = 1) -> Iterator[Shown]:
    """The first `count` samples of the loader's current epoch, each as it looks in `repeat` epochs from there on.

    loader: alone in its world, and best of a small batch size, as a whole batch is made for each. A shuffled sample
    stands elsewhere in every epoch, and is shown as it looks there. Fewer come where the epoch is shorter than `count`.
    Raises ConfigError, and what the loader raises.
    """
    for name, value in (("count", count), ("repeat", repeat)):
        if value < 1:
            raise ConfigError(f"contact sheet: {name}={value} must be at least 1")
    whole = views_of(loader)[0].whole
    if whole is not None:
        raise ConfigError(f"contact sheet: {whole} may give batches of any form; show the recipe without it")
    if not loader.source.fields.images:
        raise ConfigError(f"contact sheet: there is no image among the fields {', '.join(loader.source.fields)}")
    first = loader.epoch
    wanted = loader.order.indices(loader.seed, first, np.arange(min(count, len(loader.order)), dtype=np.int64))
    places = [_places(loader, epoch, wanted) for epoch in range(first, first + repeat)]
    for row, index in enumerate(wanted.tolist()):
        for epoch, positions in enumerate(places, start=first):
            yield _shown(loader, index, epoch, int(positions[row]))


def _places(loader: Loader, epoch: int, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of the wanted samples in an epoch, which has each of them once."""
    places = np.zeros_like(wanted)
    length = len(loader.order)
    for start in range(0, length, SCANNED):
        positions = np.arange(start, min(start + SCANNED, length), dtype=np.int64)
        indices = loader.order.indices(loader.seed, epoch, positions)
        hits = np.isin(indices, wanted).nonzero()[0]
        where = {int(indices[hit]): int(positions[hit]) for hit in hits}
        for row, index in enumerate(wanted.tolist()):
            places[row] = where.get(index, places[row])
    return places


def _shown(loader: Loader, wanted: int, epoch: int, position: int) -> Shown:
    batches = loader.batches.at(epoch)
    start = batches.delivered(batches.step_at(position + 1) - 1)
    row = position - start
    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "position": start})
    batch = next(iter(loader))
    if not isinstance(batch, dict):
        batch = dict(zip(("image", "label"), batch, strict=True))
    assert loader.last_indices is not None
    source, views = loader.source, views_of(loader)
    several = source.fields.per_view(len(views)) if len(views) > 1 else set()
    clips = {name: field for name, field in source.fields.items() if isinstance(field, Frames)}
    pictures = []
    for view, recipe in enumerate(views):
        values = {
            name: clips_of(clips[name], column, row, view)
            if name in clips
            else _on_cpu((column[view] if name in several else column)[row])
            for name, column in batch.items()
        }
        for name in source.fields.images:
            marks = marks_of(source, name, values)
            frames: Any = values[name] if name in clips else [[values[name]]]
            made = [[drawn(_levels(frame, recipe), marks) for frame in clip] for clip in frames]
            pictures.append(Picture(name, view, strip(made), made[0][0].shape[:2]))
    label = _label(loader, batch, epoch, position, row)
    texts = tuple(text for name in source.fields.of_kind(Text) if isinstance(text := batch[name][row], str))
    return Shown(wanted, int(loader.last_indices[row]), epoch, position, label, texts, tuple(pictures))


def _on_cpu(value: Any) -> Any:
    return value.cpu() if hasattr(value, "cpu") else value


def _levels(image: torch.Tensor, recipe: Recipe) -> NDArray[np.uint8]:
    """A finished image, (3, height, width), as a picture; what erasing has put beyond black and white is cut."""
    pixels = image.permute(1, 2, 0).float().numpy()
    if recipe.dtype != "uint8":
        mean, std = (np.array(values) for values in recipe.statistics)
        pixels = 255 * (pixels * std + mean)
    levels: NDArray[np.uint8] = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    return levels


def _label(loader: Loader, batch: Mapping[str, Any], epoch: int, position: int, row: int) -> str:
    """The class of a sample whose label is a number, or where it is mixed of both."""
    schema = loader.source.fields
    if not isinstance(schema.get("label"), Array) or "label" in schema.labels:
        return ""
    if views_of(loader)[0].mixing is not None:
        return _mixed(loader, epoch, position)
    value = batch["label"][row]
    if getattr(value, "ndim", 0):
        return ""  # of several, as of an image with tags
    return name_of(loader.source, "label", value.item() if hasattr(value, "item") else value)


def mixing_at(loader: Loader, epoch: int, position: int) -> tuple[Mixing, int, NDArray[np.int64]] | None:
    """How the batch with a position of an epoch is mixed, the position's row in it, and the batch's samples; None where
    nothing is mixed."""
    start = position - position % loader.batch_size
    positions = np.arange(start, min(start + loader.batch_size, len(loader.order)), dtype=np.int64)
    full = len(positions) == loader.batch_size and loader.mixup_enabled
    how = mixing(views_of(loader)[0], loader.seed, epoch, positions, full)
    return None if how is None else (how, position - start, loader.order.indices(loader.seed, epoch, positions))


def _mixed(loader: Loader, epoch: int, position: int) -> str:
    """The class that a sample is of, or both of those mixed with their shares, of which smoothing takes nothing."""
    mixed = mixing_at(loader, epoch, position)
    assert mixed is not None, "labels are soft where the recipe mixes"
    how, row, indices = mixed
    labels = loader.source.fetch(indices)["label"]
    share, partner = float(how.shares[row]), int(how.mix.partners[row])
    parts = sorted([(share, int(labels[row])), (1 - share, int(labels[partner]))], reverse=True)
    names = [name_of(loader.source, "label", label) for _, label in parts]
    if names[0] == names[1] or parts[1][0] < 0.005:  # which would be 0%
        return names[0]
    return " + ".join(f"{name} {part:.0%}" for name, (part, _) in zip(names, parts, strict=True))


def views_of(loader: Loader) -> Views:
    """The recipe of each view."""
    assert loader.recipe is not None
    return loader.recipe.view_recipes
