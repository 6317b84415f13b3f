"""Photos and a .beton for docs/migration/ffcv.md: the file as FFCV 1.0's writer lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from images import encode, picture, write_folder

import gpupipe

PAGE = 1 << 13  # of the file
SAMPLES = 9


def encoded(number: int) -> bytes:
    return encode(picture(40 + number, 60 + 2 * number, seed=number))


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=2, per_class=4)
    write_beton(folder / "train.beton")


def write_beton(path: Path) -> None:
    """Samples in two runs, as two workers of the writer leave them; every third image is pixels."""
    data = [
        picture(40 + number, 60 + 2 * number, seed=number).tobytes() if number % 3 == 0 else encoded(number)
        for number in range(SAMPLES)
    ]
    order = [*range(5, SAMPLES), *range(5)]
    begin = PAGE
    starts, end = {}, begin
    for number in order:
        starts[number], end = end, end + len(data[number])
    fields = b"".join(
        bytes([kind]) + name.ljust(16, b"\0") + bytes(1024) for kind, name in ((2, b"image"), (1, b"label"))
    )
    rows = b"".join(
        np.uint8(number % 3 == 0).tobytes()
        + np.array([60 + 2 * number, 40 + number], "<u2").tobytes()
        + np.array([starts[number]], "<u8").tobytes()
        + bytes(3)  # so that the label is at a multiple of its size
        + np.array([number % 4], "<i8").tobytes()
        for number in range(SAMPLES)
    )
    header = np.array([2, 2], "<u2").tobytes() + np.array([PAGE], "<u4").tobytes()
    header += np.array([SAMPLES, end], "<u8").tobytes()
    places = np.array([[number, starts[number], len(data[number])] for number in order], "<u8").tobytes()
    front = header + fields + rows
    path.write_bytes(front.ljust(begin, b"\0") + b"".join(data[number] for number in order) + places)


def check(folder: Path, names: dict[str, Any]) -> None:
    beton = names["Beton"](str(folder / "train.beton"))
    for number in range(SAMPLES):
        image, label = beton[number]
        assert label == number % 4
        if number % 3 == 0:
            assert (image == picture(40 + number, 60 + 2 * number, seed=number)).all()
        else:
            assert image == encoded(number)
    packed = gpupipe.open_source(folder / "train")
    assert sorted(packed.targets) == sorted(number % 4 for number in range(SAMPLES))
    assert tuple(names["images"].shape) == (4, 3, 64, 64)
