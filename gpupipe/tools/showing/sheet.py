"""A contact sheet: pictures in rows, each with its label under it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gpupipe.errors import ConfigError
from gpupipe.host.files import replacing
from gpupipe.tools.showing.shown import Shown

__all__ = ["Tile", "draw_sheet", "sheet_format", "tile_places", "tiles_of", "write_sheet"]

GAP = 8  # pixels between tiles and around them
LABEL_HEIGHT = 20  # pixels under a tile for a line of its label
LINES = 3  # of a label, as of a caption
FONT_SIZE = 13
BACKGROUND, INK = (228, 228, 228), (20, 20, 20)  # gray, so that white pictures and black ones have an edge
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Tile:
    """One picture, uint8 RGB (height, width, 3), and what is written under it."""

    pixels: NDArray[np.uint8]
    label: str


def tiles_of(shown: Iterable[Shown]) -> Iterator[Tile]:
    """A tile for each picture. A sample's follow each other, and the first has its label and its texts; where there are
    several image fields each has its field's name."""
    for one in shown:
        said = ": ".join(filter(None, [one.label, *one.texts]))
        several = len({picture.field for picture in one.pictures}) > 1
        for number, picture in enumerate(one.pictures):
            yield Tile(picture.pixels, " ".join([f"[{picture.field}]"] * several + [said] * (number == 0)))


def draw_sheet(tiles: Sequence[Tile], columns: int = 6) -> Image.Image:
    """Tiles in rows of `columns`, each with its label under it; smaller ones stand in the middle of their places."""
    if columns < 1:
        raise ConfigError(f"contact sheet: columns={columns} must be at least 1")
    if not tiles:
        raise ConfigError("contact sheet: there are no tiles to draw; the dataset or the order is empty")
    sizes = [tile.pixels.shape[:2] for tile in tiles]
    sheet = Image.new("RGB", (1, 1), BACKGROUND)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT_SIZE)
    widths = [width for _, _, width, _ in tile_places(sizes, columns)]
    labels = [_wrapped(tile.label, width, draw, font) for tile, width in zip(tiles, widths, strict=True)]
    lines = max(map(len, labels))
    places = tile_places(sizes, columns, lines)
    size = max(x + width for x, _, width, _ in places) + GAP, places[-1][1] + places[-1][3] + lines * LABEL_HEIGHT + GAP
    sheet = sheet.resize(size)
    draw = ImageDraw.Draw(sheet)
    for tile, label, (x, y, width, height) in zip(tiles, labels, places, strict=True):
        tall, wide = tile.pixels.shape[:2]
        sheet.paste(Image.fromarray(tile.pixels), (x + (width - wide) // 2, y + (height - tall) // 2))
        for number, line in enumerate(label):
            middle = x + width / 2, y + height + (number + 0.5) * LABEL_HEIGHT
            draw.text(middle, line, fill=INK, font=font, anchor="mm")
    return sheet


def tile_places(sizes: Sequence[tuple[int, ...]], columns: int, lines: int = 1) -> list[tuple[int, int, int, int]]:
    """Left, top, width and height of each tile's place in pixels, sizes being their (height, width): as wide as the
    widest one of the column. Its label stands below, in so many lines."""
    height = max(tall for tall, _ in sizes)
    widths = [max(wide for _, wide in sizes[column::columns]) for column in range(min(columns, len(sizes)))]
    lefts = [GAP + sum(widths[:column]) + column * GAP for column in range(len(widths))]
    step = height + lines * LABEL_HEIGHT + GAP
    tops = range(GAP, GAP + len(sizes) * step, step)
    at = (divmod(number, columns) for number in range(len(sizes)))
    return [(lefts[column], tops[row], widths[column], height) for row, column in at]


def _wrapped(text: str, width: int, draw: ImageDraw.ImageDraw, font: Font) -> list[str]:
    """`text` on up to `LINES` lines, broken at spaces, each at most `width` pixels wide."""
    lines = [""]
    for word in "".join(letter if letter.isprintable() else "?" for letter in text).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font) <= width or not lines[-1] or len(lines) == LINES:
            lines[-1] = longer
        else:
            lines.append(word)
    return [_clipped(line, width, draw, font) for line in lines]


def _clipped(text: str, width: int, draw: ImageDraw.ImageDraw, font: Font) -> str:
    """`text`, shortened with dots until it is at most `width` pixels wide."""
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
