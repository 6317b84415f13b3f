"""Which images the CPU makes in DALI's place, with the C++ kernels and without them."""

from __future__ import annotations

import numpy as np
import pytest
from hostile import ADOBE, turned, without, ycck
from images import encode, picture
from PIL import Image

from gpupipe.decode.dali.screen import unfit_rows
from gpupipe.sources.headers import probe_bytes

IMAGE = picture(40, 60, 1)
FIT = {
    "JPEG": encode(IMAGE),
    "JPEG gray": encode(IMAGE, mode="L"),
    "JPEG progressive": encode(IMAGE, progressive=True),
    "JPEG RGB": encode(IMAGE, keep_rgb=True),
    "PNG": encode(IMAGE, "PNG"),
    "PNG palette": encode(IMAGE, "PNG", "P"),
    "PNG alpha": encode(IMAGE, "PNG", "RGBA"),
    "WebP": encode(IMAGE, "WEBP"),
}
UNFIT = {
    "BMP": encode(IMAGE, "BMP"),
    "PPM": encode(IMAGE, "PPM"),
    "CMYK": encode(IMAGE, mode="CMYK"),
    "CMYK without Adobe's marker": without(encode(IMAGE, mode="CMYK"), ADOBE),
    "YCCK": ycck(IMAGE),
    "TIFF": encode(IMAGE, "TIFF"),
    "GIF": encode(IMAGE, "GIF", "P"),
    "no image": b"no image",
    "empty": b"",
}


def sizes_of(files: list[bytes]) -> np.ndarray:
    return np.array([probe_bytes(data) for data in files], np.int32)


def unfit(files: list[bytes], sizes: np.ndarray | None = None, exif: bool = False) -> set[int]:
    arrays = [np.frombuffer(data, np.uint8) for data in files]
    return unfit_rows(arrays, sizes_of(files) if sizes is None else sizes, exif)


@pytest.mark.parametrize("exif", [False, True])
def test_usual_images_go_to_dali(cpu_path: str, exif: bool) -> None:
    assert unfit(list(FIT.values()), exif=exif) == set()


def test_others_among_them_do_not(cpu_path: str) -> None:
    files = [file for bad in UNFIT.values() for file in (FIT["JPEG"], bad)]
    assert unfit(files) == set(range(1, 2 * len(UNFIT), 2))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
def test_another_size_than_expected(cpu_path: str, kind: str) -> None:
    for side in (0, 1):
        sizes = sizes_of([FIT[kind]])
        sizes[0, side] = 41
        assert unfit([FIT[kind]], sizes) == {0}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_orientation_that_is_not_expected(cpu_path: str, kind: str) -> None:
    """It matters only where images are turned upright."""
    tags = Image.Exif()
    tags[0x0112] = 6
    data = encode(IMAGE, kind, exif=tags)
    sizes = sizes_of([data])
    sizes[0, 2] = 1
    assert unfit([data], sizes, exif=True) == {0}
    assert unfit([data], sizes) == set()


def test_an_expected_orientation_that_is_missing(cpu_path: str) -> None:
    for data in (FIT["JPEG"], FIT["PNG"]):
        sizes = sizes_of([data])
        sizes[0, 2] = 6
        assert unfit([data], sizes, exif=True) == {0}


def test_turned_jpegs_go_to_dali() -> None:
    assert unfit([turned(IMAGE, orientation) for orientation in range(1, 9)], exif=True) == set()
