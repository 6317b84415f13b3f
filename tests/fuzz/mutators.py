"""What becomes of a good file: of any kind, and of kinds whose parts are known."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

Mutator = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
"""Another file from one, and from all that are in the corpus."""

NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
)
SIZES = {1: "B", 2: "H", 4: "I", 8: "Q"}
FAR = 700  # most of what matters stands near the beginning, or the end


def place(draw: random.Random, size: int) -> int:
    """Where in so many bytes."""
    way = draw.randrange(4)
    if way == 0:
        return max(0, size - 1 - draw.randrange(min(size, FAR)))
    return draw.randrange(size if way == 1 else min(size, FAR))


def step(draw: random.Random, data: bytearray, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    """Change something, in place."""
    if len(data) < 4:
        data += draw.randbytes(draw.randint(1, 8))
        return
    at = place(draw, len(data))
    length = draw.choice((1, 2, 4, 8, draw.randint(1, 64), draw.randint(1, 600)))
    match draw.randrange(11):
        case 0 | 1:
            data[at] ^= 1 << draw.randrange(8)
        case 2:
            data[at] = draw.randrange(256)
        case 3:
            data[at] = (data[at] + draw.choice((-1, 1))) & 0xFF
        case 4:
            del data[at : at + length]
        case 5:
            data[at:at] = data[(begin := place(draw, len(data))) : begin + length]
        case 6:
            width = draw.choice((1, 2, 4, 8))
            number = draw.choice((*NUMBERS, draw.randrange(1 << 31), len(data), at)) & ((1 << 8 * width) - 1)
            data[at : at + width] = struct.pack(draw.choice("<>") + SIZES[width], number)
        case 7:
            other = draw.choice(others)
            begin = draw.randrange(len(other) + 1)
            data[at : at + draw.choice((0, length))] = other[begin : begin + length]
        case 8 if words:
            word = draw.choice(words)
            data[at : at + draw.choice((0, len(word)))] = word
        case 9 if draw.randrange(4) == 0:
            del data[at:]
        case 10 if numbers := [*re.finditer(rb"\d+", data[at : at + 4000])]:
            found = draw.choice(numbers)
            text = str(draw.choice((-1, *NUMBERS, draw.randrange(1000), 1 << 80, 10 ** draw.randrange(400)))).encode()
            if draw.random() < 0.5:  # of the same length, as tar's numbers have to be
                text = text[: len(found[0])].rjust(len(found[0]), b"0")
            data[at + found.start() : at + found.end()] = text
        case _:
            data[at : at + length] = bytes([draw.choice((0, 0xFF, 0x20))]) * length


def plain(*words: bytes) -> Mutator:
    """Bits, bytes, numbers and pieces; words: what may stand anywhere in such a file."""

    def mutated(draw: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        changed = bytearray(data)
        for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
            step(draw, changed, others, words)
        return bytes(changed)

    return mutated


# JPEGs.

MARKERS = (
    0xC0,
    0xC1,
    0xC2,
    0xC3,
    0xC4,
    0xC9,
    0xCA,
    0xCC,
    0xD0,
    0xD3,
    0xD8,
    0xD9,
    0xDA,
    0xDB,
    0xDC,
    0xDD,
    0xE0,
    0xE1,
    0xEE,
    0xFE,
)
KINDS = [bytes([marker]) for marker in (0xC0, 0xC1, 0xC2, 0xC9, 0xCA, 0xDA)]  # frames and scans


def jpeg_parts(data: bytes) -> list[bytes]:
    """Segments, and what is coded between them, as far as they can be told apart."""
    parts, at = [data[:2]], 2
    while at + 4 <= len(data):
        if data[at] == 0xFF and data[at + 1] not in (0, 0xFF, *range(0xD0, 0xDA)):
            end = at + 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
        else:
            found = re.compile(rb"\xff[\x01-\xcf\xd0-\xfe]", re.DOTALL).search(data, at + 2)
            end = found.start() if found else len(data)
        parts.append(data[at:end])
        at = end
    return [*parts, data[at:]]


def jpeg_step(draw: random.Random, parts: list[bytes], others: Sequence[bytes]) -> None:
    """Change a segment, in place."""
    at = draw.randrange(len(parts))
    part = bytearray(parts[at])
    match draw.randrange(8):
        case 0:
            del parts[at]
        case 1:
            parts.insert(draw.randrange(len(parts) + 1), parts[at])
        case 2:
            other = draw.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        case 3:
            parts.insert(at, draw.choice(jpeg_parts(draw.choice(others))))
        case 4:
            parts.insert(at, bytes([0xFF, draw.choice(MARKERS)]) + draw.choice((b"", b"\0\2", b"\0\4\0\1")))
        case 5 | 6:  # of a frame or a scan, which decide most
            kinds = [n for n, one in enumerate(parts) if one[:1] == b"\xff" and one[1:2] in KINDS]
            if kinds:
                at = draw.choice(kinds)
                part = bytearray(parts[at])
                if len(part) > 4:
                    field = draw.randrange(4, len(part))
                    part[field] = draw.choice(
                        (draw.randrange(256), draw.randrange(5), draw.randint(1, 4) << 4 | draw.randint(1, 4))
                    )
                parts[at] = bytes(part)
        case _:
            if part:
                part[draw.randrange(len(part))] = draw.randrange(256)
                parts[at] = bytes(part)


def jpeg(draw: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Of a JPEG."""
    if draw.random() < 0.5:
        parts = jpeg_parts(data)
        for _ in range(draw.choice((1, 1, 2, 3))):
            if parts:
                jpeg_step(draw, parts, others)
        data = b"".join(parts)
        if draw.random() < 0.7:
            return data
    return plain()(draw, data, others)
