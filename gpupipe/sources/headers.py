"""Height, width and orientation of an encoded image from its first bytes, and whether its end is there."""

from __future__ import annotations

import ctypes
import importlib.util
import io
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError, _imaging, features

__all__ = [
    "DAMAGED",
    "FORMATS",
    "HAS_AVIF",
    "MOST_PIXELS",
    "Header",
    "ReadRange",
    "begins_as",
    "explain_damage",
    "header_of",
    "indexed_damage",
    "opened_image",
    "orientation_of",
    "probe",
    "probe_bytes",
]

HAS_AVIF = importlib.util.find_spec("PIL._avif") is not None  # Pillow 11.3 or later
FORMATS = (
    *("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "GIF"),
    *(["AVIF"] if HAS_AVIF else []),
    *(["JPEG2000"] if features.check_codec("jpg_2000") else []),
)
"""What is opened at all: of Pillow's other formats some run outside programs."""

# 64 KiB hold the header of each of 500 ImageNet JPEGs (16 KiB of 97%), EXIF thumbnails included.
PREFIX = 65_536
TAIL = 64
# How a format's last bytes look: a file whose tail lacks this may be cut, and only then is it decoded.
ENDINGS = {b"\xff\xd8": b"\xff\xd9", b"\x89PNG": b"IEND"}

# What the bytes from the fifth on say of files that are no damage.
LACKED = {
    **dict.fromkeys(
        (b"ftypavif", b"ftypavis"),
        "it is AVIF, which this Pillow was built without: pip install 'pillow>=11.3'",
    ),
    **dict.fromkeys((b"ftypheic", b"ftypheix"), "it is HEIC, which Pillow does not read: convert it"),
}

# JPEG's markers (ITU T.81, table B.1): frames that Pillow takes, and tables, comments and application data before them.
FRAMES = frozenset({0xC0, 0xC1, 0xC2})
FIRST_APPLICATION = 0xE0
TABLES = frozenset({0xC4, 0xDB, 0xDD, 0xFE, *range(FIRST_APPLICATION, 0xF0)})
START_OF_SCAN = 0xDA
MOST_PIXELS = 80_000_000  # below what Pillow warns of
LONGEST = 1 << 31  # sides are kept as int32
MENDED = "it could not be read when it was indexed, and can be now"
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)  # the latter where a program makes it an error

ReadRange = Callable[[int, int], bytes]
"""`read(offset, length)` gives at most `length` bytes of the file; OSError passes through."""


class Header(NamedTuple):
    """Height and width in pixels as stored, before any rotation, and the EXIF orientation 1 to 8."""

    height: int
    width: int
    orientation: int


DAMAGED = Header(0, 0, 1)


def probe(read: ReadRange, size: int) -> Header:
    """The header of an image file of `size` bytes; `DAMAGED` where it can't be read or the image is cut."""
    prefix = read(0, min(size, PREFIX))
    header = _plain_jpeg(prefix) or _parse(prefix)[0]
    if header is None and size > PREFIX:
        header = _parse(read(0, size))[0]
    if header is None:
        return DAMAGED
    tail = prefix[-TAIL:] if size <= PREFIX else read(size - TAIL, TAIL)
    if _may_be_cut(prefix, tail) and _decode_error(read(0, size)):
        return DAMAGED
    return header


def probe_bytes(data: bytes | memoryview) -> Header:
    """As `probe`, of an image in memory."""
    return probe(lambda offset, length: bytes(data[offset : offset + length]), len(data))


def header_of(data: NDArray[np.uint8]) -> Header:
    """Of an image's bytes (N,), or of its pixels (height, width, 3)."""
    return probe_bytes(data.data) if data.ndim == 1 else Header(data.shape[0], data.shape[1], 1)


def explain_damage(data: bytes | memoryview) -> str:
    """Why an image is damaged, for a message; empty where Pillow decodes it."""
    if len(data) == 0:
        return "the file is empty"
    header, reason = _parse(bytes(data))
    return f"not a readable image: {reason}" if header is None else _decode_error(bytes(data))


def indexed_damage(data: bytes | memoryview) -> tuple[str, str]:
    """Why an image is damaged that its index calls so, and what to do where that is not to repair it."""
    reason = explain_damage(data)
    return (reason, "") if reason else (MENDED, "index it again: gpupipe index --rebuild")


def _plain_jpeg(data: bytes) -> Header | None:
    """The size of a JPEG without EXIF, in a quarter of Pillow's time (10 us, not 39); None where Pillow has to look."""
    frame = None
    at = 2 if data.startswith(b"\xff\xd8\xff") else len(data)
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if marker == START_OF_SCAN:
            return frame
        if marker in FRAMES and frame is None:
            precision, height, width, components = struct.unpack_from(">BHHB", data, at + 4)
            usual = precision == 8 and components in (1, 3, 4) and 0 < height * width <= MOST_PIXELS
            frame = Header(height, width, 1) if usual else None
        elif marker not in TABLES or (marker >= FIRST_APPLICATION and data[at + 4 : at + 8] in (b"Exif", b"MPF\0")):
            return None
        at += 2 + length if length > 2 else 4
    return None


def begins_as(data: bytes) -> str:
    """The format whose files begin so, one of `FORMATS`; empty if none does."""
    start = data[:16].ljust(16, b"\0")
    return next((kind for kind in FORMATS if (accept := Image.OPEN[kind][1]) and accept(start)), "")


def opened_image(data: bytes | memoryview) -> Image.Image:
    """A file by Pillow, whose pixels are not read yet. Raises nearly every kind of exception."""
    _quieten()
    return Image.open(io.BytesIO(data), formats=FORMATS)


@cache
def _quieten() -> None:
    """Pillow warns and its libtiff prints of damaged files, without their names, which gpupipe tells; the program's own
    filters of warnings come before this one."""
    warnings.filterwarnings("ignore", module=r"PIL\.", append=True)
    with suppress(OSError, AttributeError):  # of a Pillow that was linked otherwise
        library = ctypes.CDLL(_imaging.__file__)
        library.TIFFSetErrorHandler(None)
        library.TIFFSetWarningHandler(None)


def _parse(data: bytes) -> tuple[Header | None, str]:
    """The header, or None and the reason."""
    try:
        with opened_image(data) as image:
            if _is_turned(image):
                image.load()  # a TIFF is turned then; up to there old Pillows have its size as stored
            return _header(image, image.size), ""
    except BOMBS:
        return _beyond_pillows_limit(data)
    except Exception as error:  # damaged files make Pillow raise nearly every kind, struct.error and KeyError included
        return None, _reason(error, data)


def _beyond_pillows_limit(data: bytes) -> tuple[Header | None, str]:
    """As `_parse`, without its pixels: whether they may be decoded `Limits` decide, and may do otherwise another time.
    Of WebP newer Pillows do not even tell the size."""
    try:
        with Image.OPEN[begins_as(data)][0](io.BytesIO(data), "") as image:
            if not _is_turned(image):
                return _header(image, image.size), ""
            tags = image.tag_v2
            return _header(image, (tags[ExifTags.Base.ImageLength], tags[ExifTags.Base.ImageWidth])), ""
    except Exception as error:
        return None, _reason(error, data)


def _is_turned(image: Image.Image) -> bool:
    """Whether it is a TIFF on its side, which Pillow turns."""
    return getattr(image, "tag_v2", {}).get(ExifTags.Base.Orientation) in (5, 6, 7, 8)


def _header(image: Image.Image, size: tuple[int, int]) -> Header:
    width, height = size
    if not max(width, height) < LONGEST:
        raise ValueError(f"its header says {width} x {height} pixels, which no image has")
    return Header(height, width, orientation_of(image))


def orientation_of(image: Image.Image) -> int:
    """As EXIF has it, which a TIFF has not: Pillow turns those upright, whatever is asked for."""
    raw = image.info.get("exif")  # not getexif() of the image: for a PNG that decodes the whole
    if not isinstance(raw, bytes):
        return 1
    exif = Image.Exif()
    try:
        exif.load(raw)
        orientation = exif.get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF says nothing about the pixels; every reader then takes them as they lie
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def _may_be_cut(prefix: bytes, tail: bytes) -> bool:
    for magic, ending in ENDINGS.items():  # for every image that is read: `any` takes three times as long
        if prefix.startswith(magic):
            return ending not in tail
    return False


def _decode_error(data: bytes) -> str:
    """Why Pillow can't decode an image, or an empty string."""
    try:
        with opened_image(data) as image:
            image.load()
    except BOMBS:
        return ""  # nobody decodes it, unless another limit is set
    except Exception as error:
        return f"the image can't be decoded: {_reason(error, data)}"
    return ""


def _reason(error: Exception, data: bytes) -> str:
    if isinstance(error, BOMBS):
        return f"it has more pixels than Pillow takes, by PIL.Image.MAX_IMAGE_PIXELS = {Image.MAX_IMAGE_PIXELS}"
    if isinstance(error, UnidentifiedImageError):
        if kind := begins_as(data):
            return f"it begins as {kind} does, but is cut or damaged"
        if data[4:12] in LACKED:
            return LACKED[data[4:12]]
        return f"no known image format begins with the bytes {data[:12]!r}"
    return f"{type(error).__name__}: {error}"
