"""The C++ decoder and files that are wrong, hostile or of rare kinds: refused by name, alone, and without a crash.

`python tests/fuzz` does the same at length, with sanitizers."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import hostile
import numpy as np
import pytest
from images import encode, picture
from kernel_calls import Decoded, decode_crop_resize
from PIL import Image

from gpupipe.host.limits import Limits
from gpupipe.kernels import native

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"without the C++ kernels: {native.problem()}")

GOOD, BAD = hostile.good_kinds(), hostile.bad_kinds()
REFUSED = {
    "cmyk": ("unsupported", "CMYK"),
    "ycck": ("unsupported", "YCCK"),
    "12-bit": ("unsupported", "12"),
    "lossless": ("unsupported or damaged", ""),  # libjpeg-turbo 3 knows this kind, and that this file is none
    "arithmetic-header": ("damaged", ""),
    "huge": ("limit", "65500 x 65500 pixels"),
    "huge-progressive": ("limit", "65500 x 65500 pixels"),
    "few-scans-1": ("unsupported", "last scans"),
    "few-scans-4": ("unsupported", "last scans"),
    "cut": ("damaged", "ends before"),
    "cut-progressive": ("damaged", "ends before"),
    "cut-header": ("damaged", "ends before"),
    "no-end": ("damaged", "ends before"),
    "no-quantization": ("damaged", "uantization"),
    "no-size": ("damaged", "mpty"),
    "empty": ("not_jpeg", "does not begin"),
    "one-byte": ("not_jpeg", "does not begin"),
    "start-only": ("not_jpeg", "does not begin"),
    "start-and-end": ("damaged", ""),
    "zeros": ("not_jpeg", "does not begin"),
    "png": ("not_jpeg", "does not begin"),
    "text": ("not_jpeg", "does not begin"),
}


def decode(*files: bytes, box: tuple[int, int, int, int] = (0, 0, 1, 1), limits: Limits | None = None) -> Decoded:
    return decode_crop_resize(files, [box] * len(files), (9, 11), limits=limits, threads=1)


def by_pillow(data: bytes, box: tuple[int, int, int, int]) -> np.ndarray:
    """One axis after the other: which of them Pillow does first depends on its version."""
    top, left, height, width = box
    image = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + width, top + height))
    for size in ((11, height), (11, 9)):
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image)


@pytest.mark.parametrize("name", GOOD)
def test_good_files_give_pillows_pixels(name: str) -> None:
    width, height = Image.open(io.BytesIO(GOOD[name])).size
    for box in ((0, 0, height, width), (height // 3, width // 3, height - height // 3, max(1, width // 2))):
        result = decode(GOOD[name], box=box)
        assert not result.failures
        np.testing.assert_array_equal(result.images[0], by_pillow(GOOD[name], box))


@pytest.mark.parametrize("name", REFUSED)
def test_bad_files_are_refused_by_name(name: str) -> None:
    code, text = REFUSED[name]
    failure = decode(BAD[name]).failures[0]
    assert failure.code in code.split(" or ")
    assert failure.message
    assert text in failure.message


def test_arithmetic_coding_is_decoded_or_refused_as_unsupported() -> None:
    # It depends on how libjpeg-turbo was built; there as in Pillow.
    data, box = BAD["arithmetic"], (3, 5, 20, 30)
    result = decode(data, box=box)
    if result.failures:
        assert result.failures[0].code == "unsupported"
    else:
        np.testing.assert_array_equal(result.images[0], by_pillow(data, box))


def test_sums_beyond_32_bits_wrap_as_in_libjpeg() -> None:
    data = hostile.steep(2200, 2048)
    for box in ((0, 0, 40, 64), (2190, 1999, 10, 30)):
        result = decode(data, box=box)
        assert not result.failures
        np.testing.assert_array_equal(result.images[0], by_pillow(data, box))


def test_scans_are_limited() -> None:
    assert "more than 100 scans" in decode(BAD["many-scans"]).failures[0].message
    failure = decode(GOOD["progressive"], limits=Limits(max_scans=4)).failures[0]
    assert (failure.code, failure.message) == ("limit", "it has more than 4 scans")
    assert not decode(BAD["many-scans"], limits=Limits(max_scans=150)).failures


@pytest.mark.parametrize("memory", [0, 1, 5000])
def test_memory_of_progressive_files_is_limited(memory: int) -> None:
    large = encode(picture(200, 300), progressive=True)  # 180 kB of coefficients
    failure = decode(large, limits=Limits(max_memory=memory)).failures[0]
    assert failure.code == "limit"
    assert "memory" in failure.message
    assert not decode(large, limits=Limits(max_memory=1 << 20)).failures


def test_pixels_are_limited_to_the_pixel() -> None:
    data = GOOD["420"]  # 50 x 70
    assert decode(data, limits=Limits(max_pixels=3499)).failures[0].code == "limit"
    assert not decode(data, limits=Limits(max_pixels=3500)).failures


@pytest.mark.parametrize("threads", [1, 3])
def test_bad_images_leave_the_others_of_a_batch_alone(threads: int) -> None:
    good = [data for name, data in GOOD.items() if not name[0].isdigit()]
    bad = [BAD[name] for name in REFUSED]
    files = [file for pair in zip(good * 2, bad, strict=False) for file in pair]
    box = (2, 3, 18, 30)
    result = decode_crop_resize(files, [box] * len(files), (9, 11), threads=threads)
    assert sorted(result.failures) == list(range(1, len(files), 2))
    for row in range(0, len(files), 2):
        np.testing.assert_array_equal(result.images[row], by_pillow(files[row], box))


@pytest.mark.parametrize("box", [(0, 0, 51, 70), (50, 0, 1, 1), (-1, 0, 5, 5), (0, 0, 0, 5), (2**31 - 1,) * 4])
def test_boxes_outside_are_refused_alone(box: tuple[int, int, int, int]) -> None:
    result = decode_crop_resize([GOOD["420"]] * 2, [box, (0, 0, 50, 70)], (9, 11), threads=1)
    assert list(result.failures) == [0]
    assert result.failures[0].code == "changed"
    np.testing.assert_array_equal(result.images[1], by_pillow(GOOD["420"], (0, 0, 50, 70)))


@pytest.mark.parametrize("name", ["no-quantization", "no-huffman"])
def test_files_without_tables_do_not_take_those_of_the_image_before(name: str) -> None:
    box = (0, 0, 50, 70)
    alone = decode(BAD[name], box=box)
    after = decode(encode(picture(50, 70), quality=5, optimize=True), BAD[name], box=box)
    assert alone.failures.get(0) == after.failures.get(1)
    if not alone.failures:  # libjpeg knows the usual Huffman tables
        np.testing.assert_array_equal(alone.images[0], after.images[1])


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_orientations_that_do_not_exist_turn_nothing(orientation: int) -> None:
    result = decode_crop_resize([GOOD["420"]], [(0, 0, 50, 70)], (9, 11), orientations=[orientation])
    np.testing.assert_array_equal(result.images[0], by_pillow(GOOD["420"], (0, 0, 50, 70)))


CHILD = """
import random
import numpy as np
from hostile import bad_kinds, good_kinds
from gpupipe.host.limits import Limits
from kernel_calls import decode_crop_resize

draw = random.Random(20)
kinds = [data for data in (good_kinds() | bad_kinds()).values() if len(data) > 100]


def mutated():
    data = bytearray(draw.choice(kinds))
    for _ in range(draw.randint(0, 2)):
        at = draw.randrange(min(len(data), draw.choice((700, 1 << 20))))
        choice = draw.randrange(4)
        if choice == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif choice == 1:
            data[at : at + 2] = bytes((0xFF, draw.choice((0xC0, 0xC2, 0xC4, 0xD9, 0xDA, 0xDB, 0xDD, 0xFE))))
        elif choice == 2:
            del data[at : at + draw.randint(1, 30)]
        else:
            data[at] = draw.randrange(256)
    return bytes(data)


refused = 0
for number in range(30):
    files = [mutated() for _ in range(32)]
    boxes = [(draw.randrange(8), draw.randrange(8), draw.randint(1, 12), draw.randint(1, 12)) for _ in files]
    turns = [draw.randint(1, 8) for _ in files]
    options = {"orientations": turns, "bicubic": number % 2 == 1, "resized": [(20, 30)] * 32}
    options["limits"] = Limits(max_pixels=1 << 17)
    options |= {"anchors": [(2, 3)] * 32, "decode": ("exact", "fast")[number // 2 % 2]}
    one = decode_crop_resize(files, boxes, (13, 17), threads=1, **options)
    many = decode_crop_resize(files, boxes, (13, 17), threads=3, variant="portable", **options)
    assert one.failures == many.failures
    good = [row for row in range(32) if row not in one.failures]
    assert (one.images[good] == many.images[good]).all()
    refused += len(one.failures)
assert 100 < refused < 860, refused
"""


def test_mutated_files_neither_crash_nor_print() -> None:
    # In a child: a crash is to fail this test, not to end pytest. libjpeg's messages would go to its stderr.
    run = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
