"""What lies on a picture, masks, boxes with their labels and points, and how it is drawn there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gpupipe.batch import Boxes, Mask, Points
from gpupipe.sources import Source

__all__ = ["PALETTE", "Marks", "colour", "drawn", "marks_of", "name_of"]

Pixels = NDArray[np.uint8]

PALETTE = (
    *((230, 25, 75), (60, 180, 75), (255, 225, 25), (0, 130, 200), (245, 130, 48), (145, 30, 180), (70, 240, 240)),
    *((240, 50, 230), (210, 245, 60), (250, 190, 212), (0, 128, 128), (220, 190, 255), (170, 110, 40), (255, 250, 200)),
    *((128, 0, 0), (170, 255, 195), (128, 128, 0), (255, 215, 180), (0, 0, 128)),
)
"""Sasha Trubetskoy's list of colours that are told apart most easily."""
OPAQUE = 0.5  # of a mask on its picture
WHITE = (255, 255, 255)  # what a mask ignores, and the outline of parts
FONT_SIZE = 11


@dataclass(frozen=True)
class Marks:
    """masks:  of each its numbers, (height, width), and the one that is ignored. 0 is the background, and not drawn.
    boxes:  of each left, top, right and bottom, its colour's number and what is written on it.
    points: (M, 2), x and y, of each field.
    parts:  of the image, that are shown elsewhere: left, top, right and bottom, and what that is called.
    """

    masks: Sequence[tuple[NDArray[Any], int]] = ()
    boxes: Sequence[tuple[tuple[float, ...], int, str]] = ()
    points: Sequence[NDArray[np.float32]] = ()
    parts: Sequence[tuple[tuple[float, ...], str]] = ()


def colour(number: int) -> tuple[int, int, int]:
    """Of a class."""
    return PALETTE[number % len(PALETTE)]


def name_of(source: Source, field: str, value: float) -> str:
    """A value of a field of numbers, by its class's name where the data has one."""
    known = getattr(source, "names", None)
    names = known.get(field) if isinstance(known, dict) else None
    if names is None and (field == "label" or "label" not in source.fields):
        names = source.classes
    if isinstance(value, float):
        return f"{value:g}"
    return str(names[value]) if names is not None and 0 <= value < len(names) else str(value)


def marks_of(source: Source, image: str, values: Mapping[str, Any]) -> Marks:
    """What follows an image field, of one sample's values in one view."""
    schema = source.fields
    masks, boxes, points = [], [], []
    for name, field in schema.items():
        if not isinstance(field, Mask | Boxes | Points) or schema.drawn_as(name) != schema.drawn_as(image):
            continue
        if isinstance(field, Mask):
            masks.append((np.asarray(values[name]), field.ignore))
        elif isinstance(field, Points):
            points.append(np.asarray(values[name], np.float32).reshape(-1, 2))
        else:
            corners = _corners(np.asarray(values[name], np.float64).reshape(-1, 4), field.format)
            label = next(iter(schema.labels_of(name)), None)
            given = [None] * len(corners) if label is None else np.asarray(values[label]).tolist()
            for box, value in zip(corners.tolist(), given, strict=False):  # a padded field may have more labels
                said = "" if label is None or isinstance(value, list) else name_of(source, label, value)
                boxes.append((tuple(box), value if isinstance(value, int) else 0, said))
    return Marks(masks, boxes, points)


def _corners(boxes: NDArray[np.float64], format: str) -> NDArray[np.float64]:
    first, last = boxes[:, :2], boxes[:, 2:]
    if format == "xywh":
        last = first + last
    elif format == "cxcywh":
        first, last = first - last / 2, first + last / 2
    return np.concatenate([first, last], axis=1)


def drawn(pixels: Pixels, marks: Marks) -> Pixels:
    """A picture, uint8 RGB (height, width, 3), with its marks on it."""
    for mask, ignored in marks.masks:
        pixels = _overlaid(pixels, mask.astype(np.int64), ignored)
    if not marks.boxes and not marks.parts and not any(map(len, marks.points)):
        return pixels
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    for box, number, said in marks.boxes:
        _draw_box(draw, box, colour(number), said, image.size)
    for points in marks.points:
        for number, (x, y) in enumerate(points.tolist()):
            draw.ellipse((x - 2.5, y - 2.5, x + 2.5, y + 2.5), fill=colour(number), outline=(0, 0, 0))
    for (left, top, right, bottom), said in marks.parts:
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=(0, 0, 0), width=3)
        inner = (left + 1, top + 1, max(left + 1, right - 2), max(top + 1, bottom - 2))
        draw.rectangle(inner, outline=WHITE)
        _write(draw, (right, bottom), WHITE, said, image.size)
    return np.array(image)


def _overlaid(pixels: Pixels, mask: NDArray[np.int64], ignored: int) -> Pixels:
    table = np.array(PALETTE, np.float32)
    colours = np.where((mask == ignored)[..., None], np.array(WHITE, np.float32), table[mask % len(PALETTE)])
    shown = ((mask != 0) | ((mask == ignored) & (ignored != 0)))[..., None]
    mixed: Pixels = np.where(shown, pixels + OPAQUE * (colours - pixels), pixels).round().astype(np.uint8)
    return mixed


def _draw_box(
    draw: ImageDraw.ImageDraw, box: Sequence[float], colour: tuple[int, int, int], said: str, size: tuple[int, int]
) -> None:
    """Its outline, and what is written on it in its left upper corner."""
    left, top, right, bottom = box
    if right <= left or bottom <= top:  # as of padding
        return
    draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=2)
    _write(draw, (left, top), colour, said, size)


def _write(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], colour: tuple[int, int, int], said: str, size: tuple[int, int]
) -> None:
    """In black or white on that colour, from a place on or as near to it as the picture has room."""
    if not said:
        return
    font = ImageFont.load_default(FONT_SIZE)
    said = "".join(letter if letter.isprintable() else "?" for letter in said)
    wide, tall = draw.textlength(said, font) + 4, FONT_SIZE + 3
    x, y = max(0.0, min(at[0], size[0] - wide)), max(0.0, min(at[1], size[1] - tall))
    ink = (0, 0, 0) if np.dot(colour, (0.299, 0.587, 0.114)) > 128 else (255, 255, 255)
    draw.rectangle((x, y, x + wide, y + tall), fill=colour)
    draw.text((x + 2, y + tall / 2), said, fill=ink, font=font, anchor="lm")
