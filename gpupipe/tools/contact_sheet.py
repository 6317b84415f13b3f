"""A contact sheet: pictures exactly as a loader gives them to the model, each with its label under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gpupipe.errors import ConfigError
from gpupipe.host.files import replacing
from gpupipe.plan import mixing

if TYPE_CHECKING:
    import torch

    from gpupipe.loader.loader import Loader
    from gpupipe.recipe import Recipe, Views

__all__ = ["Tile", "draw_sheet", "read_tiles", "write_sheet"]

GAP = 8  # pixels between tiles and around them
LABEL_HEIGHT = 20  # pixels under a tile for its label
FONT_SIZE = 13
BACKGROUND, INK = (228, 228, 228), (20, 20, 20)  # gray, so that white pictures and black ones have an edge
SCANNED = 1 << 20  # positions of an epoch that are looked through at once
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Tile:
    """One picture, uint8 RGB (height, width, 3), and what is written under it."""

    pixels: NDArray[np.uint8]
    label: str


def read_tiles(loader: Loader, count: int, repeat: int = 1) -> Iterator[Tile]:
    """The first `count` samples of the loader's current epoch, each as it looks in `repeat` epochs from there on.

    loader: alone in its world, with on_error="raise", and best of a small batch size, as a whole batch is made for each
    tile. A sample's tiles follow each other, those of its views too, of which the first has the label. A shuffled
    sample stands elsewhere in every epoch, and is shown as it looks there. Fewer tiles come where the epoch is shorter
    than `count`. Raises ConfigError, and what the loader raises.
    """
    for name, value in (("count", count), ("repeat", repeat)):
        if value < 1:
            raise ConfigError(f"contact sheet: {name}={value} must be at least 1")
    whole = _views(loader)[0].whole
    if whole is not None:
        raise ConfigError(f"contact sheet: {whole} may give batches of any form; show the recipe without it")
    first = loader.epoch
    wanted = loader.order.indices(loader.seed, first, np.arange(min(count, len(loader.order)), dtype=np.int64))
    places = [_places(loader, epoch, wanted) for epoch in range(first, first + repeat)]
    for row in range(len(wanted)):
        for epoch, positions in enumerate(places, start=first):
            yield from _tiles(loader, epoch, int(positions[row]))


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


def _tiles(loader: Loader, epoch: int, position: int) -> Iterator[Tile]:
    """What the loader gives at a position of an epoch: a tile for each view."""
    row = position % loader.batch_size
    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "position": position - row})
    batch = next(iter(loader))
    if isinstance(batch, dict):  # of other fields than image and label
        batch = batch[loader.source.fields.images[0]], batch.get("label")
    images, labels = batch
    if labels is not None and labels.ndim == 1:
        label = _name(loader.source.classes, labels[row].item())
    else:
        label = "" if labels is None else _mixed(loader, epoch, position)
    for view, recipe in zip(images if isinstance(images, list) else [images], _views(loader), strict=True):
        yield Tile(_levels(view[row].cpu(), recipe), label)
        label = ""


def _levels(image: torch.Tensor, recipe: Recipe) -> NDArray[np.uint8]:
    """A finished image, (3, height, width), as a picture; what erasing has put beyond black and white is cut."""
    pixels = image.permute(1, 2, 0).float().numpy()
    if recipe.dtype != "uint8":
        mean, std = (np.array(values) for values in recipe.statistics)
        pixels = 255 * (pixels * std + mean)
    levels: NDArray[np.uint8] = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    return levels


def _mixed(loader: Loader, epoch: int, position: int) -> str:
    """The class that a sample is of, or both of those mixed with their shares, of which smoothing takes nothing."""
    start = position - position % loader.batch_size
    positions = np.arange(start, min(start + loader.batch_size, len(loader.order)), dtype=np.int64)
    full = len(positions) == loader.batch_size and loader.mixup_enabled
    how = mixing(_views(loader)[0], loader.seed, epoch, positions, full)
    assert how is not None, "labels are soft where the recipe mixes"
    labels = loader.source.fetch(loader.order.indices(loader.seed, epoch, positions))["label"]
    row = position - start
    share, partner = float(how.shares[row]), int(how.mix.partners[row])
    parts = sorted([(share, int(labels[row])), (1 - share, int(labels[partner]))], reverse=True)
    names = [_name(loader.source.classes, label) for _, label in parts]
    if names[0] == names[1] or parts[1][0] < 0.005:  # which would be 0%
        return names[0]
    return " + ".join(f"{name} {part:.0%}" for name, (part, _) in zip(names, parts, strict=True))


def _name(classes: list[str] | None, label: int | float) -> str:
    if isinstance(label, float):
        return f"{label:g}"
    return classes[label] if classes is not None and 0 <= label < len(classes) else str(label)


def draw_sheet(tiles: Sequence[Tile], columns: int = 6) -> Image.Image:
    """Tiles in rows of `columns`, each with its label under it; smaller ones stand in the middle of their places."""
    if columns < 1:
        raise ConfigError(f"contact sheet: columns={columns} must be at least 1")
    if not tiles:
        raise ConfigError("contact sheet: there are no tiles to draw; the dataset or the order is empty")
    places = tile_places([tile.pixels.shape[:2] for tile in tiles], columns)
    size = max(x + width for x, _, width, _ in places) + GAP, places[-1][1] + places[-1][3] + LABEL_HEIGHT + GAP
    sheet = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(FONT_SIZE)
    for tile, (x, y, width, height) in zip(tiles, places, strict=True):
        tall, wide = tile.pixels.shape[:2]
        sheet.paste(Image.fromarray(tile.pixels), (x + (width - wide) // 2, y + (height - tall) // 2))
        text = _clipped(tile.label, width, draw, font)
        draw.text((x + width / 2, y + height + LABEL_HEIGHT / 2), text, fill=INK, font=font, anchor="mm")
    return sheet


def tile_places(sizes: Sequence[tuple[int, ...]], columns: int) -> list[tuple[int, int, int, int]]:
    """Left, top, width and height of each tile's place in pixels, sizes being their (height, width): as wide as the
    widest one of the column. Its label stands below."""
    height = max(tall for tall, _ in sizes)
    widths = [max(wide for _, wide in sizes[column::columns]) for column in range(min(columns, len(sizes)))]
    lefts = [GAP + sum(widths[:column]) + column * GAP for column in range(len(widths))]
    tops = range(GAP, GAP + len(sizes) * (height + LABEL_HEIGHT + GAP), height + LABEL_HEIGHT + GAP)
    at = (divmod(number, columns) for number in range(len(sizes)))
    return [(lefts[column], tops[row], widths[column], height) for row, column in at]


def _clipped(text: str, width: int, draw: ImageDraw.ImageDraw, font: Font) -> str:
    """`text` on one line, shortened with dots until it is at most `width` pixels wide."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    shorter = (text[:kept] + "..." for kept in range(len(text), 0, -1))
    return next((one for one in (text, *shorter) if draw.textlength(one, font) <= width), "")


def write_sheet(sheet: Image.Image, path: Path) -> None:
    """Save as the format of the path's suffix; the file appears whole or not at all. Raises ConfigError."""
    kind = sheet_format(path)
    try:
        with replacing(path) as file:
            sheet.save(file, kind)
    except (OSError, ValueError) as error:  # ValueError: more pixels than the format can have
        raise ConfigError(
            f"the contact sheet can't be written to {path} ({error}); choose another place, or fewer tiles"
        ) from error


def sheet_format(path: Path) -> str:
    """Pillow's name of the format that the suffix of `path` asks for. Raises ConfigError for an unknown one."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"a contact sheet can't be written as {path.name!r}; let its name end in {', '.join(FORMATS)}"
        )
    return kind


def _views(loader: Loader) -> Views:
    assert loader.recipe is not None
    return loader.recipe.view_recipes
