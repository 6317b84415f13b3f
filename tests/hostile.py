"""JPEGs of every kind, good and hostile, made here: what Pillow can't encode is put together from what it can."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from images import Pixels, encode, picture
from PIL import Image

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
ADOBE = 0xEE
FRAMES = (0xC0, 0xC1, 0xC2, 0xC3, 0xC9, 0xCA)


def segments(data: bytes) -> list[tuple[int, int, int]]:
    """(marker, first byte of its content, end) of each segment up to and with the first scan's header."""
    found, at = [], 2
    while True:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((marker, at + 4, at + 2 + length))
        at += 2 + length
        if marker == 0xDA:
            return found


def frame_at(data: bytes) -> int:
    """Where the content of the frame header begins: precision, height, width, components."""
    return next(begin for marker, begin, _ in segments(data) if marker in FRAMES)


def with_byte(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def with_size(data: bytes, height: int, width: int) -> bytes:
    """The same file with another size in its frame header."""
    at = frame_at(data) + 1
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def with_sampling(data: bytes, factors: int) -> bytes:
    """The same file with other sampling factors of the first component; valid if as many blocks fill the image."""
    return with_byte(data, frame_at(data) + 7, factors)


def with_precision(data: bytes, bits: int) -> bytes:
    return with_byte(data, frame_at(data), bits)


def without(data: bytes, *markers: int) -> bytes:
    """The same file without the segments of these markers."""
    kept = [data[begin - 4 : end] for marker, begin, end in segments(data) if marker not in markers]
    return SOI + b"".join(kept) + data[segments(data)[-1][2] :]


def ycck(pixels: Pixels) -> bytes:
    """A CMYK file whose Adobe marker says YCCK."""
    data = encode(pixels, mode="CMYK")
    _, begin, _ = next(segment for segment in segments(data) if segment[0] == ADOBE)
    return with_byte(data, begin + 11, 2)


def scans(pixels: Pixels, repeat: int = 1) -> bytes:
    """Baseline, each component in a scan of its own, all of them `repeat` times; each is the grey picture."""
    grey = encode(pixels, mode="L")
    parts = segments(grey)
    tables = b"".join(grey[begin - 4 : end] for marker, begin, end in parts if marker in (0xDB, 0xC4))
    height, width = pixels.shape[:2]
    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + components
    coded = grey[parts[-1][2] : grey.rindex(EOI)]
    each = [b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, number, 0, 0, 63, 0) + coded for number in (1, 2, 3)]
    return SOI + tables + frame + b"".join(each) * repeat + EOI


def arithmetic(height: int, width: int, coded: bytes = b"") -> bytes:
    """Arithmetic coding, grey. The coder knows no wrong data short of its markers: whatever bytes are some picture."""
    table = b"\xff\xdb" + struct.pack(">HB", 67, 0) + bytes([8]) * 64
    frame = b"\xff\xc9" + struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes([1, 0x11, 0])
    scan = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 0, 63, 0)
    return SOI + table + frame + scan + coded.replace(b"\xff", b"\xfe") + EOI


def steep(height: int, width: int) -> bytes:
    """Grey, each block brighter than the one before by the most that can be coded: the sum passes 32 bits."""
    blocks = -(-height // 8) * -(-width // 8)
    tables = b"\xff\xdb" + struct.pack(">HB", 67, 0) + bytes([1]) * 64
    for kind, value in ((0x00, 15), (0x10, 0)):  # one code each, "0": 15 bits of difference, end of block
        tables += b"\xff\xc4" + struct.pack(">HB", 20, kind) + bytes([1] + [0] * 15 + [value])
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes([1, 0x11, 0])
    scan = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 0, 63, 0)
    bits = ("0" + "1" * 15 + "0") * blocks
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    return SOI + tables + frame + scan + coded + EOI


def sampled(height: int, width: int, factors: Sequence[tuple[int, int]]) -> bytes:
    """Baseline, three components of these sampling factors (across, down), whose blocks are random numbers."""
    rng = np.random.default_rng(0)
    across, down = (8 * max(side) for side in zip(*factors, strict=True))
    blocks = -(-height // down) * -(-width // across) * sum(h * v for h, v in factors)
    tables = b"\xff\xdb" + struct.pack(">HB", 67, 0) + bytes([8]) * 64
    tables += b"\xff\xc4" + struct.pack(">HB", 20, 0x00) + bytes([1] + [0] * 15 + [5])  # "0": 5 bits of difference
    tables += b"\xff\xc4" + struct.pack(">HB", 21, 0x10) + bytes([1, 1] + [0] * 14 + [0, 3])  # "0": end; "10": 3 bits
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3)
    frame += b"".join(bytes([number, h << 4 | v, 0]) for number, (h, v) in enumerate(factors, 1))
    scan = b"\xff\xda" + struct.pack(">HBBBBBBBBBB", 12, 3, 1, 0, 2, 0, 3, 0, 0, 63, 0)
    any_bit = 2
    bits = np.tile(np.array([0, *[any_bit] * 5, *[1, 0, *[any_bit] * 3] * 6, 0]), blocks)
    bits[bits == any_bit] = rng.integers(0, 2, int((bits == any_bit).sum()))
    coded = np.packbits(np.append(bits, [1] * (-len(bits) % 8)).astype(bool)).tobytes().replace(b"\xff", b"\xff\x00")
    return SOI + tables + frame + scan + coded + EOI


def few_scans(pixels: Pixels, count: int) -> bytes:
    """A progressive file that ends, properly, after its first `count` scans."""
    data = encode(pixels, progressive=True, quality=60)
    at = segments(data)[-1][2]
    for _ in range(count):
        end = at
        while data[end] != 0xFF or data[end + 1] == 0 or 0xD0 <= data[end + 1] <= 0xD7:
            end += 1
        at = end
        while data[at + 1] == 0xC4:  # the next scan's tables
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == 0xDA:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data[:end] + EOI


def turned(pixels: Pixels, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(pixels, exif=exif.tobytes())


def good_kinds() -> dict[str, bytes]:
    """Files that any decoder of JPEG takes, RGB and grey."""
    image, even = picture(50, 70, seed=1), picture(64, 64, seed=2)
    kinds = {
        "444": encode(image, subsampling=0),
        "422": encode(image, subsampling=1),
        "420": encode(image, subsampling=2),
        "440": with_sampling(encode(even, subsampling=1), 0x12),
        "411": with_sampling(encode(even, subsampling=2), 0x41),
        "grey": encode(image, mode="L"),
        "rgb": encode(image, keep_rgb=True),
        "optimized": encode(image, optimize=True, quality=95),
        "progressive": encode(image, progressive=True),
        "progressive-444": encode(image, progressive=True, subsampling=0),
        "progressive-grey": encode(image, mode="L", progressive=True),
        "scans": scans(image),
        "restart-blocks": encode(image, restart_marker_blocks=2),
        "restart-rows": encode(image, progressive=True, restart_marker_rows=1),
        "larger": encode(picture(120, 200, seed=3), quality=70),
        "larger-progressive": encode(picture(200, 120, seed=4), quality=40, progressive=True),
        "trailing": encode(image) + b"garbage" * 20,
        "comment": encode(image, comment=b"a comment", icc_profile=bytes(300), dpi=(72, 72)),
        "no-jfif": without(encode(image), 0xE0),
    }
    for height, width in ((1, 1), (7, 3), (17, 33), (1, 64), (64, 1), (2, 2), (9, 16)):
        for subsampling in (0, 1, 2):
            kinds[f"{height}x{width}-{subsampling}"] = encode(picture(height, width), subsampling=subsampling)
        kinds[f"{height}x{width}-progressive"] = encode(picture(height, width), progressive=True)
    for orientation in range(1, 9):
        kinds[f"exif-{orientation}"] = turned(picture(21, 34), orientation)
    return kinds


def bad_kinds() -> dict[str, bytes]:
    """Files that are refused, or that only some decoders take."""
    image = picture(50, 70, seed=1)
    baseline, progressive = encode(image), encode(image, progressive=True)
    return {
        "cmyk": encode(image, mode="CMYK"),
        "ycck": ycck(image),
        "12-bit": with_precision(baseline, 12),
        "arithmetic": arithmetic(24, 40, bytes(range(7, 250, 3)) * 3),
        "arithmetic-header": without(baseline, 0xC0)[:300],
        "lossless": baseline.replace(b"\xff\xc0", b"\xff\xc3", 1),
        "huge": with_size(baseline, 65500, 65500),
        "huge-progressive": with_size(progressive, 65500, 65500),
        "many-scans": scans(image, repeat=50),
        "few-scans-1": few_scans(image, 1),
        "few-scans-4": few_scans(image, 4),
        "cut": baseline[: len(baseline) // 2],
        "cut-progressive": progressive[: len(progressive) // 2],
        "cut-header": baseline[:200],
        "no-end": baseline[:-2],
        "no-huffman": without(baseline, 0xC4),
        "no-quantization": without(baseline, 0xDB),
        "no-size": with_size(baseline, 0, 70),
        "empty": b"",
        "one-byte": b"\xff",
        "start-only": SOI,
        "start-and-end": SOI + EOI,
        "zeros": bytes(500),
        "png": encode(image, "PNG"),
        "text": b"this is no image " * 30,
    }
