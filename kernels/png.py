"""PNG files of one channel and 8 bits, which masks are, as Pillow decodes them, in less than half of its time."""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import native

__all__ = ["SIGNATURE", "chunks", "decode_png"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""What every PNG begins with."""

GRAY, PALETTE = 0, 3  # colour types
ANIMATED = (b"acTL", b"fcTL", b"fdAT")
ANCILLARY = 0x20  # in the first letter: not needed for the pixels
MOST_PIXELS = 89_478_485  # from which on Pillow warns of a decompression bomb


def decode_png(encoded: NDArray[np.uint8], most: int = MOST_PIXELS) -> NDArray[np.uint8] | None:
    """uint8 (height, width): gray values, or the numbers in a palette, of a file's bytes, 1-D and contiguous.

    None for any other kind of image, for more than `most` pixels, for a file that is not in every point as the standard
    has it, which need not be damaged, and where the kernels were not built. 468 x 401 pixels of a mask take 180 us, by
    Pillow 470 (one core of an Intel Xeon); most of it is zlib's.
    """
    opened = native.library()
    if opened is None:
        return None
    parts = _parts(encoded.tobytes())
    if parts is None or parts[0][0] * parts[0][1] > most:
        return None
    (height, width), compressed = parts
    filtered = _inflated(compressed, height * (width + 1))
    if filtered is None:
        return None
    pixels = np.empty((height + 1, width), np.uint8)
    pixels[0] = 0
    data = np.frombuffer(filtered, np.uint8)
    size = (ctypes.c_int64(height), ctypes.c_int64(width))
    failed = opened.gp_png_unfilter(*size, ctypes.c_void_p(data.ctypes.data), ctypes.c_void_p(pixels.ctypes.data))
    return None if failed else pixels[1:]


def _parts(data: bytes) -> tuple[tuple[int, int], bytes] | None:
    """Height, width and what is compressed."""
    header, compressed, ended = b"", [], False
    for kind, content in _right_chunks(data):
        if (kind == b"IHDR") != (not header) or ended:
            return None
        if kind == b"IHDR":
            header = content
        elif kind == b"IDAT":
            compressed.append(content)
        elif kind == b"IEND":
            ended = True
        elif kind in ANIMATED or not kind.isalpha() or not (kind[0] & ANCILLARY or kind == b"PLTE"):
            return None
    if not ended or len(header) != 13:
        return None
    width, height, bits, colour, *rest = struct.unpack(">IIBBBBB", header)
    plain = bits == 8 and colour in (GRAY, PALETTE) and rest == [0, 0, 0]  # not interlaced
    return ((height, width), b"".join(compressed)) if plain and 0 < height * width <= MOST_PIXELS else None


def _right_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each, as long as they are what their checksums say."""
    for kind, begin, end in chunks(data):
        if zlib.crc32(data[begin - len(kind) : end]) != struct.unpack_from(">I", data, end)[0]:
            return
        yield kind, data[begin:end]


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind of each chunk of a PNG, and where its content begins and ends, as long as they lie in the file with their
    checksums, which are not looked at. None of another file."""
    place = len(SIGNATURE) if data.startswith(SIGNATURE) else len(data)
    while place + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, place)
        begin = place + 8
        end = begin + size
        if end + 4 > len(data):
            return
        yield data[place + 4 : begin], begin, end
        place = end + 4


def _inflated(compressed: bytes, size: int) -> bytes | None:
    """That many bytes, neither more nor less."""
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(compressed, size)
        more = inflate.decompress(inflate.unconsumed_tail, 1)
    except zlib.error:
        return None
    return data if len(data) == size and not more and inflate.eof and not inflate.unused_data else None
