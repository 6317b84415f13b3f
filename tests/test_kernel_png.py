"""Masks decoded by the C++ kernel: Pillow's pixels, or none."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from gpupipe.kernels import native
from gpupipe.kernels.png import decode_png

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs the C++ kernels")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(filtered: bytes, height: int, width: int, *between: bytes, header: tuple[int, ...] = (8, 0, 0, 0, 0)) -> bytes:
    """A file of rows that are filtered already; header: bits, colour, compression, filters, interlace."""
    first = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, *header))
    parts = [first, *between, chunk(b"IDAT", zlib.compress(filtered)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def by_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def decoded(data: bytes) -> np.ndarray | None:
    return decode_png(np.frombuffer(data, np.uint8))


def saved(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("shape", [(1, 1), (1, 70), (70, 1), (33, 64), (101, 257)])
def test_any_filters_as_pillow(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape)
    height, width = shape
    for filters in (*range(5), None):
        rows = rng.integers(0, 256, (height, width + 1), dtype=np.uint8)
        rows[:, 0] = rng.integers(0, 5, height) if filters is None else filters
        data = png(rows.tobytes(), height, width)
        found = decoded(data)
        assert found is not None
        np.testing.assert_array_equal(found, by_pillow(data))


def test_as_pillow_writes_them() -> None:
    mask = np.add.outer(np.arange(60) // 7, np.arange(90) // 11).astype(np.uint8)
    gray, palette = Image.fromarray(mask), Image.fromarray(mask, "P")
    palette.putpalette(bytes(range(256)) * 3)
    note = PngImagePlugin.PngInfo()
    note.add_text("key", "value")
    for data in (saved(gray), saved(palette), saved(gray, pnginfo=note, dpi=(72, 72)), saved(palette, transparency=0)):
        found = decoded(data)
        assert found is not None
        np.testing.assert_array_equal(found, mask)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "1", "I;16"])
def test_other_kinds_are_left_to_others(mode: str) -> None:
    assert decoded(saved(Image.new(mode, (5, 4)))) is None
    assert decoded(saved(Image.new("P", (5, 4)))) is None  # with few colours Pillow writes fewer bits
    rows = bytes(4 * 6)
    assert decoded(png(rows, 4, 5)) is not None
    assert decoded(png(rows, 4, 5, header=(8, 0, 0, 0, 1))) is None  # interlaced
    assert decoded(png(rows, 4, 5, chunk(b"acTL", struct.pack(">II", 1, 0)))) is None  # animated
    assert decoded(png(rows, 4, 5, chunk(b"NEWS", b""))) is None  # needed, and not known


def test_what_is_damaged_is_left_to_others() -> None:
    rows = bytes(4 * 6)
    whole = png(rows, 4, 5)
    for data in (
        png(rows[:-1], 4, 5),
        png(rows + b"\0", 4, 5),
        png(bytes([5]) + rows[1:], 4, 5),  # no filter of that number
        whole[:-12],
        whole[:40],
        b"",
        b"GIF89a",
        whole[:8] + whole[33:],
        png(b"", 0, 5),
        png(b"", 100_000, 100_000),
    ):
        assert decoded(data) is None


def test_any_byte_flipped_gives_pillows_pixels_or_none() -> None:
    rng = np.random.default_rng(0)
    whole = bytearray(saved(Image.fromarray(rng.integers(0, 4, (9, 12), dtype=np.uint8))))
    given = 0
    for place in range(len(whole)):
        for bit in (1, 0x20, 0x80):
            data = bytearray(whole)
            data[place] ^= bit
            found = decoded(bytes(data))
            if found is not None:
                given += 1
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    np.testing.assert_array_equal(found, by_pillow(bytes(data)))
    assert given < 10  # checksums cover nearly all
