"""Caffe's Datum, a message of Protocol Buffers: an image, encoded or as pixels, and its label."""

from __future__ import annotations

from typing import NamedTuple

from gpupipe.sources.headers import ReadRange

__all__ = ["Datum", "read_datum"]

# Of caffe.proto: the fields' numbers; the wire types of a number, and of bytes with their length before them.
CHANNELS, HEIGHT, WIDTH, DATA, LABEL, ENCODED = 1, 2, 3, 4, 5, 7
FIELDS = range(1, 8)
NUMBER, BYTES = 0, 2
MOST_VARINT = 10


class Datum(NamedTuple):
    """offset, size: of the image in the message. Pixels are (channels, height, width), blue before red."""

    channels: int
    height: int
    width: int
    label: int
    is_encoded: bool
    offset: int
    size: int


def read_datum(read: ReadRange, size: int) -> Datum:
    """The message of so many bytes, without reading its image. Raises ValueError where it is none."""
    values = dict.fromkeys(FIELDS, 0)
    offset = length = at = 0
    while at < size:
        head = read(at, 2 * MOST_VARINT)
        tag, value, used = _pair(head)
        field, wire = tag >> 3, tag & 7
        at += used
        if field not in values or wire != (BYTES if field == DATA else NUMBER):
            raise ValueError(f"it is no Datum: it has field {field} of wire type {wire}")
        values[field] = value
        if wire == BYTES:
            offset, length = at, value
            at += value
    is_encoded = values[ENCODED] != 0
    pixels = values[CHANNELS] * values[HEIGHT] * values[WIDTH]
    if at != size or not length or not (is_encoded or (pixels == length and values[CHANNELS] in (1, 3))):
        raise ValueError(f"it is no Datum of an image, or cut: {length:,} bytes, {values}")
    label = values[LABEL] - (values[LABEL] >> 63 << 64)
    return Datum(values[CHANNELS], values[HEIGHT], values[WIDTH], label, is_encoded, offset, length)


def _pair(data: bytes) -> tuple[int, int, int]:
    """Two numbers, as a tag and the number or the length behind it, and the bytes that they take."""
    numbers, value, shift = [], 0, 0
    for at, byte in enumerate(data):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
            if len(numbers) == 2:
                return numbers[0], numbers[1], at + 1
    raise ValueError("it is no Datum: it ends within a number")
