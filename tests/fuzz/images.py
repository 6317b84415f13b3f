"""Headers of images of every format, and what the torch engine makes of those that are no JPEG, against Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import hostile
import numpy as np
from images import encode, picture, png16
from PIL import Image

from fuzz import mutators
from fuzz.harness import Finding, Target
from fuzz.jpegs import Decoding
from gpupipe.kernels import walk_jpegs
from gpupipe.kernels.costs import jpeg_costs, jpeg_costs_reference
from gpupipe.kernels.png import decode_png
from gpupipe.sources.headers import DAMAGED, FORMATS, explain_damage, probe_bytes


def other_seeds(scratch: Path) -> Sequence[bytes]:
    image = picture(24, 31, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    made = [encode(image, kind) for kind in FORMATS if kind not in ("JPEG", "GIF")]
    made += [encode(image, "PNG", mode) for mode in ("P", "L", "1", "LA", "RGBA", "I;16")]
    made += [encode(image, "PNG", exif=exif), encode(image, "WEBP", lossless=True), encode(image, "WEBP", exif=exif)]
    made += [encode(image, "TIFF", compression=kind) for kind in ("tiff_lzw", "packbits", "jpeg", "tiff_adobe_deflate")]
    made += [
        encode(image, "TIFF", "L"),
        encode(image, "BMP", "P"),
        encode(image, "PPM", "L"),
        encode(image, "GIF", "P"),
    ]
    made += [png16(np.full((5, 6, 3), 999)), encode(image, "WEBP", "RGBA")]
    return made


def header_seeds(scratch: Path) -> Sequence[bytes]:
    return [*other_seeds(scratch), *(hostile.good_kinds() | hostile.bad_kinds()).values()]


def header_check(scratch: Path) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        header = probe_bytes(data)
        reason = explain_damage(data)
        array = np.frombuffer(data, np.uint8)
        walked = walk_jpegs([array])
        costs = [jpeg_costs([array]).tolist(), jpeg_costs_reference([array]).tolist()]
        if costs[0] != costs[1]:
            raise Finding(f"two costs: {costs}")
        if header == DAMAGED:
            if not reason:
                raise Finding("no reason for a damaged image")
            if not walked.odd and len(data) > 2:
                return "plain for all but its end"
            return f"refused: {reason}"
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                sizes, kind = [image.size], image.format
                if kind == "TIFF":
                    image.load()  # which may turn it
                    sizes.append(image.size)
        except Exception as error:
            return f"Pillow refuses: {type(error).__name__}: {error}"
        if (header.width, header.height) not in sizes:
            raise Finding(f"its size is {header}, by Pillow {sizes}")
        if not walked.odd and tuple(walked.headers[0, :2]) != header[:2]:
            raise Finding(f"two sizes: {walked.headers[0]} and {header}")
        return kind, header.orientation, bool(walked.odd)

    return check


def mask_check(scratch: Path) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        made = decode_png(np.frombuffer(data, np.uint8))
        if made is None:
            return "left to Pillow"
        with Image.open(io.BytesIO(data)) as image:
            if not np.array_equal(np.asarray(image), made):
                raise Finding("other values than Pillow's")
        return "equal"

    return check


def mask_seeds(scratch: Path) -> Sequence[bytes]:
    image = picture(24, 31, 3)
    return [
        encode(image, "PNG", mode, **more) for mode in ("P", "L") for more in ({}, {"optimize": True}, {"dpi": (9, 9)})
    ]


def png_mutated(draw, data, others):  # type: ignore[no-untyped-def]
    """With right checksums, mostly."""
    changed = bytearray(mutators.plain(b"IDAT", b"tRNS", b"acTL", b"PLTE", b"IEND")(draw, data, others))
    at = 8
    while draw.random() < 0.97 and at + 12 <= len(changed):
        size = struct.unpack_from(">I", changed, at)[0]
        if at + 12 + size > len(changed):
            break
        struct.pack_into(">I", changed, at + 8 + size, zlib.crc32(changed[at + 4 : at + 8 + size]))
        at += 12 + size
    return bytes(changed)


WORDS = (
    b"IDAT",
    b"acTL",
    b"eXIf",
    b"tRNS",
    b"VP8X",
    b"ALPH",
    b"ANIM",
    b"EXIF",
    b"\x12\x01\3\0\1\0\0\0\6\0",
    b"Exif\0\0II*\0",
)

TARGETS = [
    Target("headers", header_seeds, header_check, mutators.plain(*WORDS, b"\xff\xe1", b"\xff\xda")),
    Target("images", other_seeds, lambda scratch: Decoding(slow=1.0), mutators.plain(*WORDS)),
    Target("masks", mask_seeds, mask_check, png_mutated),
]
