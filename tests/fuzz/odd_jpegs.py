"""JPEGs of kinds that no usual encoder writes, by one of our own: any sampling factors, scans in any order, tables of
any codes, marks of any kind. The coefficients are drawn, as what matters is what decoders make of them (ITU T.81)."""

from __future__ import annotations

import io
import math
import random
import struct
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
Code = dict[int, tuple[int, int]]
"""Symbol -> its bits, and how many."""


@dataclass
class Component:
    """Sampling factors, table of quantization, and the coefficients of its blocks in zigzag order: (rows, columns, 64)
    of whole MCUs. tall, wide: those of a scan of its own."""

    number: int
    v: int
    h: int
    table: int
    blocks: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 64), np.int64))
    tall: int = 0
    wide: int = 0


@dataclass
class Scan:
    """Of these components, by their place; see T.81, G.1 for the others. sequential: all coefficients at once."""

    parts: list[int]
    begin: int = 0
    end: int = 63
    high: int = 0
    low: int = 0
    sequential: bool = True


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


class Huffman:
    """Tables whose codes have drawn lengths."""

    def __init__(self, draw: random.Random, symbols: list[int]) -> None:
        lengths = [0]
        while len(lengths) <= len(symbols):  # one code more than needed: the one of ones is not allowed
            short = [at for at, length in enumerate(lengths) if length < 16]
            at = min(draw.sample(short, min(len(short), draw.choice((1, 2, 20)))), key=lambda one: lengths[one])
            lengths[at] += 1
            lengths.append(lengths[at])
        lengths = sorted(lengths)[:-1]
        self.symbols = draw.sample(symbols, len(symbols)) if draw.random() < 0.5 else symbols
        self.counts = [lengths.count(length) for length in range(1, 17)]
        self.codes: Code = {}
        code = previous = 0
        for symbol, length in zip(self.symbols, lengths, strict=True):
            code <<= length - previous
            self.codes[symbol], previous = (code, length), length
            code += 1

    def content(self, place: int) -> bytes:
        return bytes([place, *self.counts, *self.symbols])


class Coder:
    """The bits of one scan."""

    def __init__(self, file: File, scan: Scan, dc: list[Code], ac: Code) -> None:
        self.file, self.scan, self.dc, self.ac = file, scan, dc, ac
        self.bits: list[str] = []
        self.run = 0
        self.corrections: list[int] = []
        self.last = [0] * 4

    def put(self, value: int, count: int) -> None:
        if count:
            self.bits.append(format(value & ((1 << count) - 1), f"0{count}b"))

    def number(self, code: Code, upper: int, value: int) -> None:
        """A symbol of which the lower half is how many bits follow, and these."""
        count = abs(value).bit_length()
        self.put(*code[upper << 4 | count])
        self.put(value - (value < 0), count)

    def flush(self) -> bytes:
        """The bytes up to a mark."""
        self.end_run()
        text = "".join(self.bits)
        text += "1" * (-len(text) % 8)
        self.bits, self.last = [], [0] * 4
        return int(text or "0", 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")

    def end_run(self) -> None:
        if self.run:
            count = self.run.bit_length() - 1
            self.put(*self.ac[count << 4])
            self.put(self.run, count)
        for bit in self.corrections:
            self.put(bit, 1)
        self.run, self.corrections = 0, []

    def block(self, part: int, block: list[int]) -> None:
        scan = self.scan
        if scan.begin == 0:
            value = block[0] >> scan.low
            if scan.high:
                self.put(value, 1)
            else:
                self.number(self.dc[part], 0, value - self.last[part])
                self.last[part] = value
        if scan.end and scan.high:
            self.refined(block)
        elif scan.end:
            self.first(block)

    def first(self, block: list[int]) -> None:
        """Other coefficients, for the first time."""
        zeros = 0
        for at in range(max(self.scan.begin, 1), self.scan.end + 1):
            value = int(math.copysign(abs(block[at]) >> self.scan.low, block[at]))
            if not value:
                zeros += 1
                continue
            self.end_run()
            for _ in range(zeros // 16):
                self.put(*self.ac[0xF0])
            self.number(self.ac, zeros % 16, value)
            zeros = 0
        if zeros:
            self.run += 1
            if self.scan.sequential or self.run == 0x7FFF:
                self.end_run()

    def refined(self, block: list[int]) -> None:
        """Another bit of other coefficients."""
        values = {at: abs(block[at]) >> self.scan.low for at in range(self.scan.begin, self.scan.end + 1)}
        last = max((at for at, value in values.items() if value == 1), default=0)
        zeros, more = 0, list[int]()

        def put_more() -> None:
            for bit in more:
                self.put(bit, 1)
            more.clear()

        for at, value in values.items():
            if not value:
                zeros += 1
                continue
            while zeros > 15 and at <= last:
                self.end_run()
                self.put(*self.ac[0xF0])
                put_more()
                zeros -= 16
            if value > 1:
                more.append(value & 1)
                continue
            self.end_run()
            self.put(*self.ac[zeros << 4 | 1])
            self.put(int(block[at] > 0), 1)
            put_more()
            zeros = 0
        if zeros or more:
            self.run += 1
            self.corrections += more
            if self.run == 0x7FFF or len(self.corrections) > 900:
                self.end_run()


@dataclass
class File:
    """A drawn one."""

    draw: random.Random
    height: int
    width: int
    components: list[Component]
    progressive: bool
    arithmetic: bool
    precision: int = 8
    restart: int = 0

    def __post_init__(self) -> None:
        tallest, widest = max(c.v for c in self.components), max(c.h for c in self.components)
        self.rows, self.columns = -(-self.height // (8 * tallest)), -(-self.width // (8 * widest))
        bits = 3 if self.arithmetic else self.draw.choice((3, 5, 7))
        for one in self.components:
            one.tall = math.ceil(math.ceil(self.height * one.v / tallest) / 8)
            one.wide = math.ceil(math.ceil(self.width * one.h / widest) / 8)
            shape = (self.rows * one.v, self.columns * one.h, 64)
            rng = np.random.default_rng(self.draw.getrandbits(32))
            kept = rng.random(shape) < rng.choice((0.02, 0.1, 0.4)) / (1 + np.arange(64) / 8)
            one.blocks = rng.integers(-(1 << bits), 1 << bits, shape) * kept
            one.blocks[..., 0] = rng.integers(-60, 60, shape[:2])

    def blocks(self, scan: Scan) -> list[list[tuple[int, list[int]]]]:
        """Of each MCU of a scan (part, coefficients)."""
        if len(scan.parts) == 1:
            one = self.components[scan.parts[0]]
            return [[(0, row)] for row in one.blocks[: one.tall, : one.wide].reshape(-1, 64).tolist()]
        units: list[list[tuple[int, list[int]]]] = []
        for y in range(self.rows):
            for x in range(self.columns):
                unit = []
                for part, place in enumerate(scan.parts):
                    one = self.components[place]
                    area = one.blocks[y * one.v : (y + 1) * one.v, x * one.h : (x + 1) * one.h]
                    unit += [(part, block) for block in area.reshape(-1, 64).tolist()]
                units.append(unit)
        return units

    def scripts(self) -> list[Scan]:
        """Scans that a decoder takes one after the other, in a drawn order."""
        draw, places = self.draw, list(range(len(self.components)))
        together = sum(one.h * one.v for one in self.components) <= 10
        groups = [places] if together and draw.random() < 0.7 else [[place] for place in places]
        if not self.progressive:
            return [Scan(group) for group in groups]
        chains: list[list[Scan]] = []
        for group in groups:
            low = draw.randrange(3)
            first = Scan(group, 0, 0, 0, low, sequential=False)
            chains.append([first, *(Scan(group, 0, 0, bit + 1, bit, False) for bit in reversed(range(low)))])
        for place in places:
            cuts = sorted({1, *draw.sample(range(2, 64), draw.randrange(3))})
            for begin, end in zip(cuts, [*(cut - 1 for cut in cuts[1:]), 63], strict=True):
                low = draw.randrange(3)
                steps = [Scan([place], begin, end, 0, low, False)]
                steps += [Scan([place], begin, end, bit + 1, bit, False) for bit in reversed(range(low))]
                chains.append(steps)
        count = len(groups)
        order = [steps.pop(0) for steps in chains[:count]]  # all need their first coefficients before the others
        while chains := [steps for steps in chains if steps]:
            order.append(draw.choice(chains).pop(0))
        if draw.random() < 0.15:
            order = order[: draw.randint(1, len(order))]
        return order

    def coded(self, scan: Scan) -> bytes:
        """A scan with the tables before it."""
        draw = self.draw
        header = bytes([len(scan.parts)])
        if self.arithmetic:  # any bytes are some picture
            header += b"".join(bytes([self.components[part].number, 0]) for part in scan.parts)
            units = len(self.blocks(scan))
            data = bytes(draw.randrange(255) for _ in range(draw.randint(1, 40 + units * 4)))
            tables = segment(0xCC, bytes([0, 0x10, 0x10, 5])) if draw.random() < 0.3 else b""
        else:
            names = [draw.randrange(2) for _ in scan.parts]
            dc = {name: Huffman(draw, list(range(14))) for name in sorted(set(names))}
            name = draw.randrange(2)
            ac = Huffman(draw, list(range(256)))
            header += b"".join(
                bytes([self.components[part].number, own << 4 | name])
                for part, own in zip(scan.parts, names, strict=True)
            )
            tables = b"".join(segment(0xC4, table.content(own)) for own, table in dc.items())
            tables += segment(0xC4, ac.content(0x10 | name))
            coder = Coder(self, scan, [dc[own].codes for own in names], ac.codes)
            data = b""
            for number, unit in enumerate(self.blocks(scan)):
                if self.restart and number and number % self.restart == 0:
                    data += coder.flush() + bytes([0xFF, 0xD0 | (number // self.restart - 1) % 8])
                for part, block in unit:
                    coder.block(part, block)
            data += coder.flush()
        return tables + segment(0xDA, header + bytes([scan.begin, scan.end, scan.high << 4 | scan.low])) + data

    def quantization(self, place: int) -> bytes:
        wide = self.precision == 12
        values = [self.draw.randint(1, self.draw.choice((3, 20, 255))) for _ in range(64)]
        return segment(0xDB, struct.pack(f">B64{'H' if wide else 'B'}", wide << 4 | place, *values))

    def made(self, marks: bytes) -> bytes:
        """The file, with these segments at its beginning."""
        draw = self.draw
        parts = b"".join(bytes([one.number, one.h << 4 | one.v, one.table]) for one in self.components)
        kind = 0xC9 if self.arithmetic else 0xC1 if self.precision == 12 or draw.random() < 0.2 else 0xC0
        kind = kind + (2 - kind % 4 if not self.arithmetic else 1) if self.progressive else kind
        late = draw.random() < 0.05  # the height comes behind the first scan
        shape = struct.pack(">BHHB", self.precision, 0 if late else self.height, self.width, len(self.components))
        out = SOI + marks + b"".join(map(self.quantization, sorted({one.table for one in self.components})))
        out += segment(kind, shape + parts)
        out += segment(0xDD, struct.pack(">H", self.restart)) if self.restart else b""
        for number, scan in enumerate(self.scripts()):
            if number and draw.random() < 0.2:  # tables between scans: of those used before they say nothing
                out += draw.choice((self.quantization(3), segment(0xFE, b"between"), b"\xff\xff" + segment(0xFE, b"")))
            out += self.coded(scan)
            if number == 0 and (late or draw.random() < 0.05):
                out += segment(0xDC, struct.pack(">H", self.height))
        return out + EOI + draw.choice((b"", b"", b"", b"trailing", bytes(9), SOI))


def exif(draw: random.Random, thumbnail: bytes) -> bytes:
    """An APP1 with an orientation, right or not, and a thumbnail."""
    order = draw.choice("<>")
    mark = {"<": b"II*\0\x08\0\0\0", ">": b"MM\0*\0\0\0\x08"}[order]
    first = struct.pack(order + "HHHIHHI", 1, 0x0112, 3, 1, draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 0, 9)), 0, 26)
    second = struct.pack(order + "HHHIIHHIII", 2, 0x0201, 4, 1, 56, 0x0202, 4, 1, len(thumbnail), 0)
    return segment(0xE1, b"Exif\0\0" + mark + first + second + thumbnail)


def marks(draw: random.Random, count: int) -> bytes:
    """What stands before the tables of an image of so many components."""
    out = b""
    if draw.random() < 0.4:
        sides = draw.randrange(3)
        jfif = struct.pack(">5sHBHHBB", b"JFIF\0", 0x0102, 1, 72, 72, sides, sides)
        out += segment(0xE0, jfif + bytes(3 * sides * sides))
    if draw.random() < (0.7 if count == 4 else 0.3):
        out += segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, draw.randrange(3)))
    if draw.random() < 0.3:
        out += exif(draw, small(draw) if draw.random() < 0.5 else b"")
    if draw.random() < 0.1:
        out += segment(0xE2, b"ICC_PROFILE\0\x01\x01" + bytes(40))
    return out


def small(draw: random.Random) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (draw.randint(1, 20), 9), (draw.randrange(256), 5, 9)).save(buffer, "JPEG")
    return buffer.getvalue()


def odd_jpeg(draw: random.Random) -> bytes:
    """One of any kind."""
    count = draw.choice((1, 2, 3, 3, 3, 3, 3, 3, 4, 4))
    factors = draw.choice(((1, 2), (1, 2, 4), (1, 2, 3, 4)))
    numbers = draw.choice(((1, 2, 3, 4), (0, 1, 2, 3), (82, 71, 66, 65), (1, 34, 35, 36), (9, 7, 200, 3)))
    components = [
        Component(numbers[place], draw.choice(factors), draw.choice(factors), draw.randrange(3))
        for place in range(count)
    ]
    if draw.random() < 0.3:
        for one in components[1:]:
            one.v = one.h = 1
    side = draw.choice((9, 20, 50, 70))
    file = File(
        draw,
        draw.randint(1, side),
        draw.randint(1, side),
        components,
        progressive=draw.random() < 0.4,
        arithmetic=draw.random() < 0.12,
        precision=12 if draw.random() < 0.03 else 8,
        restart=draw.choice((0, 0, 0, 1, 2, 3, 7)),
    )
    return file.made(marks(draw, count))


def mpo() -> bytes:
    """Two images in one file."""
    buffer = io.BytesIO()
    first, second = (Image.new("RGB", (40, 30), colour) for colour in ("red", "blue"))
    first.save(buffer, "MPO", save_all=True, append_images=[second])
    return buffer.getvalue()
