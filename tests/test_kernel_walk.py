"""JPEGs walked before DALI sees them: what is plain, what is odd, and that DALI's parser takes all that is plain."""

from __future__ import annotations

import os
import random
import struct

import hostile
import numpy as np
import pytest
from hostile import segments, with_byte
from images import encode, picture
from kernel_calls import decode_crop_resize
from PIL import Image

from gpupipe.decode.pixels import parse
from gpupipe.kernels import native, walk_jpegs
from gpupipe.sources.headers import probe_bytes

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"without the C++ kernels: {native.problem()}")

GOOD, BAD = hostile.good_kinds(), hostile.bad_kinds()
BASELINE = encode(picture(50, 70, 1))
PROGRESSIVE = encode(picture(50, 70, 1), progressive=True)
DQT, SOF, SOF2, DHT, DRI, SOS, APP0, COM = 0xDB, 0xC0, 0xC2, 0xC4, 0xDD, 0xDA, 0xE0, 0xFE


def walked(data: bytes) -> tuple[list[int], str]:
    """Height, width and orientation, and why it is odd."""
    found = walk_jpegs([np.frombuffer(data, np.uint8)])
    return found.headers[0].tolist(), found.odd.get(0, "")


def content(data: bytes, marker: int) -> int:
    return next(begin for kind, begin, _ in segments(data) if kind == marker)


def inserted(piece: bytes, data: bytes = BASELINE, before: int = DQT) -> bytes:
    at = content(data, before) - 4
    return data[:at] + piece + data[at:]


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def exif(orientation: int) -> bytes:
    made = Image.Exif()
    made[0x0112] = orientation
    made[0x010E] = "a description"
    return encode(picture(50, 70, 1), exif=made.tobytes())


@pytest.mark.parametrize("name", GOOD)
def test_usual_files_are_plain(name: str) -> None:
    assert walked(GOOD[name]) == (list(probe_bytes(GOOD[name])), "")


@pytest.mark.parametrize("marker", [DQT, SOF, DHT, SOS])
@pytest.mark.parametrize(
    "piece",
    [b"\xff" * 3, segment(COM, b""), segment(0xE2, bytes(300)), segment(0xEF, b"x"), segment(DRI, b"\0\0")],
    ids=["fill bytes", "comment", "application", "last application", "restart interval of 0"],
)
def test_segments_that_mean_nothing_to_a_decoder_are_plain(piece: bytes, marker: int) -> None:
    assert walked(inserted(piece, before=marker)) == ([50, 70, 1], "")


def in_scan(piece: bytes, data: bytes = BASELINE) -> bytes:
    """The file with this in the place of the middle of its first scan."""
    at = (segments(data)[-1][2] + len(data)) // 2
    return data[:at] + piece + data[at + len(piece) :]


RESTARTS = encode(picture(50, 70, 1), restart_marker_blocks=2)
FLAT = [0x00, *[0] * 7, 1, *[0] * 8, 0]  # a Huffman table of one code of 8 bits
ODD = {
    "no-jpeg": (BAD["png"], "no JPEG"),
    "empty": (b"", "no JPEG"),
    "start": (b"\xff\xd8", "something else where a marker belongs"),
    "cut-in-a-length": (BASELINE[:23], "an end before the first scan"),
    "cut-header": (BASELINE[:200], "a segment of a wrong length"),
    "no-marker": (with_byte(BASELINE, 2, 0xFE), "something else where a marker belongs"),
    "marker": (with_byte(BASELINE, content(BASELINE, DHT) - 3, 0xCC), "an unusual marker"),
    "length-1": (inserted(b"\xff\xfe\0\1"), "a segment of a wrong length"),
    "long": (inserted(b"\xff\xfe\xff\xff"), "a segment of a wrong length"),
    "cmyk": (BAD["cmyk"], "a frame of neither 1 nor 3 components"),
    "12-bit": (BAD["12-bit"], "a frame of other than 8 bits"),
    "arithmetic": (BAD["arithmetic"], "an unusual marker"),
    "lossless": (BAD["lossless"], "an unusual marker"),
    "no-size": (BAD["no-size"], "a frame without height or width"),
    "no-huffman": (BAD["no-huffman"], "a scan without its Huffman table"),
    "no-quantization": (BAD["no-quantization"], "a component without its quantization table"),
    "many-scans": (BAD["many-scans"], "more scans than are allowed"),
    "cut-progressive": (BAD["cut-progressive"], "an end within a scan"),
    "few-scans": (hostile.few_scans(picture(50, 70), 9), "a progressive file without its last scans"),
    "cut": (BASELINE[:-300], "an end within a scan"),
    "no-end": (BAD["no-end"], "an end within a scan"),
    "marker-in-a-scan": (in_scan(b"\xff\xc4"), "another marker than the end behind a scan"),
    "comment-in-a-scan": (in_scan(b"\xff\xfe\0\2"), "another marker than the end behind a scan"),
    "fill-in-a-scan": (in_scan(b"\xff\xff\0"), "another marker than the end behind a scan"),
    "scan-again": (BASELINE[:-2] + BASELINE[content(BASELINE, SOS) - 4 :], "another marker than the end behind a scan"),
    "restart-without-interval": (in_scan(b"\xff\xd0"), "a restart out of turn"),
    "restart-missing": (RESTARTS.replace(b"\xff\xd1", b"", 1), "a restart out of turn"),
    "restart-wrong": (RESTARTS.replace(b"\xff\xd0", b"\xff\xd3", 1), "a restart out of turn"),
    "large": (hostile.with_size(BASELINE, 65501, 70), "a frame larger than libjpeg takes"),
    "two-frames": (inserted(segment(SOF, bytes(15)), before=SOS), "a second frame"),
    "short-frame": (inserted(segment(SOF, bytes(5))), "a frame header that ends early"),
    "long-frame": (inserted(segment(SOF, b"\x08\0\x01\0\x01\x01" + bytes(4))), "a frame header of a wrong length"),
    "same-names": (with_byte(BASELINE, content(BASELINE, SOF) + 9, 1), "two components of one name"),
    "sampling-0": (with_byte(BASELINE, content(BASELINE, SOF) + 7, 0x02), "a wrong sampling factor"),
    "sampling-5": (with_byte(BASELINE, content(BASELINE, SOF) + 7, 0x51), "a wrong sampling factor"),
    "sampling-34": (with_byte(BASELINE, content(BASELINE, SOF) + 7, 0x34), "unusual sampling factors"),
    "sampling-chroma": (with_byte(BASELINE, content(BASELINE, SOF) + 10, 0x21), "unusual sampling factors"),
    "frame-table": (with_byte(BASELINE, content(BASELINE, SOF) + 8, 4), "a component with a wrong quantization table"),
    "other-table": (with_byte(BASELINE, content(BASELINE, SOF) + 8, 3), "a component without its quantization table"),
    "no-tables": (inserted(segment(DQT, b"")), "a segment without quantization tables"),
    "16-bit-table": (with_byte(BASELINE, content(BASELINE, DQT), 0x10), "a quantization table of 16 bits"),
    "short-table": (inserted(segment(DQT, bytes([0] + [1] * 63))), "a quantization table that ends early"),
    "zero-in-a-table": (with_byte(BASELINE, content(BASELINE, DQT) + 9, 0), "a quantization table with a zero"),
    "no-codes": (inserted(segment(DHT, b"")), "a segment without Huffman tables"),
    "class-2": (inserted(segment(DHT, bytes([0x20, *FLAT[1:]]))), "a Huffman table of unknown class or number"),
    "number-4": (inserted(segment(DHT, bytes([0x04, *FLAT[1:]]))), "a Huffman table of unknown class or number"),
    "short-counts": (inserted(segment(DHT, bytes(FLAT[:16]))), "a Huffman table that ends early"),
    "short-symbols": (inserted(segment(DHT, bytes(FLAT[:17]))), "a Huffman table that ends early"),
    "all-ones": (inserted(segment(DHT, bytes([0, 2, *[0] * 15, 1, 2]))), "a Huffman table with more codes"),
    "no-symbol": (inserted(segment(DHT, bytes(17))), "a Huffman table of no symbol or more than 256"),
    "dc-16": (inserted(segment(DHT, bytes([*FLAT[:17], 16]))), "a Huffman table with an impossible symbol"),
    "restart-interval": (inserted(segment(DRI, b"\0\1\0")), "a restart interval of a wrong length"),
    "scan-first": (inserted(segment(SOS, bytes([1, 1, 0, 0, 63, 0]))), "a scan before the frame"),
    "scan-of-none": (with_byte(BASELINE, content(BASELINE, SOS), 0), "a scan of a wrong number of components"),
    "scan-of-4": (with_byte(BASELINE, content(BASELINE, SOS), 4), "a scan of a wrong number of components"),
    "scan-length": (with_byte(BASELINE, content(BASELINE, SOS), 2), "a scan header of a wrong length"),
    "scan-component": (
        with_byte(BASELINE, content(BASELINE, SOS) + 1, 9),
        "a scan of a component that the frame lacks",
    ),
    "scan-twice": (with_byte(BASELINE, content(BASELINE, SOS) + 3, 1), "a scan of a component that the frame lacks"),
    "scan-table": (with_byte(BASELINE, content(BASELINE, SOS) + 2, 0x20), "a scan with a wrong Huffman table"),
    "scan-part": (with_byte(BASELINE, content(BASELINE, SOS) + 8, 62), "a sequential scan of a part"),
    "progressive-first": (with_byte(PROGRESSIVE, content(PROGRESSIVE, SOS) + 8, 5), "a wrong spectral selection"),
    "refines-nothing": (with_byte(PROGRESSIVE, content(PROGRESSIVE, SOS) + 9, 0x10), "a wrong approximation"),
    "approximation": (with_byte(PROGRESSIVE, content(PROGRESSIVE, SOS) + 9, 0x0F), "a wrong approximation"),
    "short-jfif": (inserted(segment(APP0, b"JFIF\0\1\1")), "a JFIF segment that ends early"),
    "short-adobe": (inserted(segment(hostile.ADOBE, b"Adobe")), "an Adobe segment that ends early"),
    "adobe-ycck": (inserted(segment(hostile.ADOBE, b"Adobe\0\x64\0\0\0\0\2")), "an Adobe segment for other than"),
    "adobe-rgb-and-jfif": (inserted(segment(hostile.ADOBE, b"Adobe\0\x64\0\0\0\0\0")), "JFIF and Adobe say different"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_has_a_reason(name: str) -> None:
    data, reason = ODD[name]
    header, found = walked(data)
    assert found.startswith(reason) or reason in found
    assert header == [0, 0, 0]


@pytest.mark.parametrize("count", range(1, 10))
def test_a_progressive_file_is_plain_with_its_last_scan(count: int) -> None:
    """Or as soon as no coefficient is left of which libjpeg guesses."""
    data = hostile.few_scans(picture(50, 70), count)
    made = decode_crop_resize([data], [(0, 0, 50, 70)], (50, 70))
    assert walked(data)[1] == ("a progressive file without its last scans" if made.failures else "")
    assert walked(hostile.few_scans(picture(50, 70), 10))[1] == ""


def test_colours_that_nothing_explains_are_odd() -> None:
    """Named 7, 2 and 3 in frame and scan: libjpeg guesses."""
    data = GOOD["no-jfif"]
    for at in (content(data, SOF) + 6, content(data, SOS) + 1):
        data = with_byte(data, at, 7)
    assert walked(data)[1] == "colours that no segment explains"


@pytest.mark.parametrize("at", range(4))
def test_what_stands_between_scans_is_walked(at: int) -> None:
    """Each scan of a progressive file finds its tables, until one is missing."""
    starts = [i for i in range(len(PROGRESSIVE) - 1) if PROGRESSIVE[i : i + 2] == b"\xff\xc4"]
    assert len(starts) > 4
    place = starts[1 + at] + 4  # class and number of the table
    assert "Huffman" in walked(with_byte(PROGRESSIVE, place, PROGRESSIVE[place] ^ 0x20))[1]


class TestExif:
    @pytest.mark.parametrize("value", range(10))
    def test_the_orientation_is_pillows(self, value: int) -> None:
        """0 and 9 mean nothing: the first is known to all, of the other the CPU decides."""
        data = exif(value)
        header, odd = walked(data)
        assert not odd
        assert header[2] == (0 if value == 9 else probe_bytes(data).orientation)

    @pytest.mark.parametrize("endian", ["<", ">"])
    def test_in_either_byte_order(self, endian: str) -> None:
        made = Image.Exif()
        made.endian = endian
        made[0x0112] = 6
        assert walked(encode(picture(50, 70), exif=made.tobytes()))[0] == [50, 70, 6]

    @pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's
    def test_damage_is_not_guessed_over(self) -> None:
        """Each byte of the directory set to 255: either the same orientation as Pillow's or none that counts."""
        data = exif(6)
        begin = data.index(b"Exif")
        seen = set()
        for at in range(begin, data.index(b"a description")):
            damaged = with_byte(data, at, 255)
            header, odd = walked(damaged)
            assert not odd
            assert header[2] in (0, probe_bytes(damaged).orientation)
            seen.add(header[2])
        assert seen >= {0, 6}

    def test_two_of_them_are_in_doubt(self) -> None:
        data = exif(6)
        at, end = next((begin, end) for marker, begin, end in segments(data) if marker == 0xE1)
        assert walked(inserted(data[at - 4 : end], data))[0] == [50, 70, 0]


def test_dalis_parser_takes_what_is_plain() -> None:
    """Random flips in headers: DALI may crash over what its parser refuses or finds of another size."""
    rng = random.Random(0)
    files = list(GOOD.values())
    plain = odd = 0
    for _ in range(3000):
        data = bytearray(rng.choice(files))
        end = segments(bytes(data))[-1][2]
        for _ in range(rng.choice((1, 1, 2, 4))):
            data[rng.randrange(2, end)] ^= 1 << rng.randrange(8)
        header, reason = walked(bytes(data))
        if reason:
            odd += 1
            continue
        plain += 1
        stream = parse(np.frombuffer(bytes(data), np.uint8))
        assert stream is not None, bytes(data).hex()
        assert [stream.height, stream.width] == header[:2]
    assert min(plain, odd) > 600


@pytest.mark.parametrize("threads", [1, 3])
def test_many_files_in_one_call(threads: int) -> None:
    files = [np.frombuffer(data, np.uint8) for data in [*GOOD.values(), *BAD.values()] * 5]
    found = walk_jpegs(files, threads)
    for row, data in enumerate(files):
        header, odd = walked(data.tobytes())
        assert (found.headers[row].tolist(), found.odd.get(row, "")) == (header, odd)
    assert walk_jpegs([]).odd == {}


def test_the_same_in_a_fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if walked(BASELINE)[0] == [50, 70, 1] else 1)
    assert os.waitpid(pid, 0)[1] == 0
