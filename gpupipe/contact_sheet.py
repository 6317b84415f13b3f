"""A contact sheet: pictures exactly as a loader gives them to the model, each with its label under it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gpupipe.errors import ConfigError

if TYPE_CHECKING:
    from gpupipe.loader import Loader

__all__ = ["Tile", "draw_sheet", "read_tiles", "write_sheet"]

GAP = 8  # pixels between tiles and around them
LABEL_HEIGHT = 20  # pixels under a tile for its label
FONT_SIZE = 13
BACKGROUND, INK = (255, 255, 255), (20, 20, 20)
SCANNED = 1 << 20  # positions of an epoch that are looked through at once
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


@dataclass(frozen=True)
class Tile:
    """One picture, uint8 RGB (height, width, 3), and what is written under it."""

    pixels: NDArray[np.uint8]
    label: str


def read_tiles(loader: Loader, count: int, repeat: int = 1) -> Iterator[Tile]:
    """The first `count` samples of the loader's current epoch, each as it looks in `repeat` epochs from there on.

    loader: of batch size 1 and dtype uint8, alone in its world. A sample's tiles follow each other. A shuffled sample
    stands elsewhere in every epoch, and is shown with the crop and flip that it gets there. Fewer tiles come where
    the epoch is shorter than `count`. Raises ConfigError, and what the loader raises.
    """
    for name, value in (("count", count), ("repeat", repeat)):
        if value < 1:
            raise ConfigError(f"contact sheet: {name}={value} must be at least 1")
    first = loader.epoch
    wanted = loader.order.indices(loader.seed, first, np.arange(min(count, len(loader)), dtype=np.int64))
    places = [_places(loader, epoch, wanted) for epoch in range(first, first + repeat)]
    for row in range(len(wanted)):
        for epoch, positions in enumerate(places, start=first):
            yield _tile(loader, epoch, int(positions[row]))


def _places(loader: Loader, epoch: int, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of the wanted samples in an epoch, which has each of them once."""
    places = np.zeros_like(wanted)
    for start in range(0, len(loader), SCANNED):
        positions = np.arange(start, min(start + SCANNED, len(loader)), dtype=np.int64)
        indices = loader.order.indices(loader.seed, epoch, positions)
        hits = np.isin(indices, wanted).nonzero()[0]
        where = {int(indices[hit]): int(positions[hit]) for hit in hits}
        for row, index in enumerate(wanted.tolist()):
            places[row] = where.get(index, places[row])
    return places


def _tile(loader: Loader, epoch: int, position: int) -> Tile:
    """What the loader gives at a position of an epoch."""
    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "position": position})
    images, labels = next(iter(loader))
    pixels = images[0].permute(1, 2, 0).cpu().numpy().copy()
    return Tile(pixels, _label(loader.dataset.classes, int(labels[0])))


def _label(classes: list[str] | None, label: int) -> str:
    """The name of the class, or the number where it has none."""
    return classes[label] if classes is not None and 0 <= label < len(classes) else str(label)


def draw_sheet(tiles: Sequence[Tile], columns: int = 6) -> Image.Image:
    """Tiles of one size in rows of `columns`, each with its label under it, cut to the tile's width."""
    if columns < 1:
        raise ConfigError(f"contact sheet: columns={columns} must be at least 1")
    if not tiles:
        raise ConfigError("contact sheet: there are no tiles to draw; the dataset or the order is empty")
    height, width = tiles[0].pixels.shape[:2]
    corners = tile_corners(len(tiles), (height, width), columns)
    across, down = max(x for x, _ in corners) + width + GAP, corners[-1][1] + height + LABEL_HEIGHT + GAP
    sheet = Image.new("RGB", (across, down), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(FONT_SIZE)
    for tile, (x, y) in zip(tiles, corners, strict=True):
        sheet.paste(Image.fromarray(tile.pixels), (x, y))
        text = _clipped(tile.label, width, draw, font)
        draw.text((x + width / 2, y + height + LABEL_HEIGHT / 2), text, fill=INK, font=font, anchor="mm")
    return sheet


def tile_corners(count: int, size: tuple[int, int], columns: int) -> list[tuple[int, int]]:
    """(x, y) of each tile's top left pixel on the sheet; size is a tile's (height, width)."""
    height, width = size
    return [
        (GAP + (number % columns) * (width + GAP), GAP + (number // columns) * (height + LABEL_HEIGHT + GAP))
        for number in range(count)
    ]


def _clipped(
    text: str, width: int, draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> str:
    """`text` on one line, shortened with dots until it is at most `width` pixels wide."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if draw.textlength(text, font) <= width:
        return text
    kept = len(text)
    while kept and draw.textlength(text[:kept] + "...", font) > width:
        kept -= 1
    return text[:kept] + "..." if kept else ""


def write_sheet(sheet: Image.Image, path: Path) -> None:
    """Save as the format of the path's suffix; the file appears whole or not at all. Raises ConfigError."""
    kind = sheet_format(path)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            sheet.save(file, kind)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:  # ValueError: more pixels than the format can have
        raise ConfigError(
            f"the contact sheet can't be written to {path} ({error}); choose another place, or fewer tiles"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def sheet_format(path: Path) -> str:
    """Pillow's name of the format that the suffix of `path` asks for. Raises ConfigError for an unknown one."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"a contact sheet can't be written as {path.name!r}; let its name end in {', '.join(FORMATS)}"
        )
    return kind
