"""Which images the CPU makes in DALI's place, with the C++ kernels and without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hostile import ADOBE, turned, with_size, without, ycck
from images import encode, picture
from PIL import Image

from gpupipe.decode.dali.screen import unfit_rows
from gpupipe.sources import DatasetSource
from gpupipe.sources.source import SampleMeta

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
    "BMP": encode(IMAGE, "BMP"),
    "PPM": encode(IMAGE, "PPM"),
}
UNFIT = {
    "CMYK": encode(IMAGE, mode="CMYK"),
    "CMYK without Adobe's marker": without(encode(IMAGE, mode="CMYK"), ADOBE),
    "YCCK": ycck(IMAGE),
    "TIFF": encode(IMAGE, "TIFF"),
    "GIF": encode(IMAGE, "GIF", "P"),
    "no image": b"no image",
    "empty": b"",
}


def facts(files: list[bytes]) -> SampleMeta:
    return DatasetSource([(data, 0) for data in files]).fetch(np.arange(len(files)))[1]


def unfit(files: list[bytes], meta: SampleMeta | None = None, exif: bool = False) -> dict[int, str]:
    arrays = [np.frombuffer(data, np.uint8) for data in files]
    return unfit_rows(arrays, facts(files) if meta is None else meta, exif)


@pytest.mark.parametrize("exif", [False, True])
def test_usual_images_go_to_dali(cpu_path: str, exif: bool) -> None:
    assert unfit(list(FIT.values()), exif=exif) == {}


def test_others_among_them_do_not(cpu_path: str) -> None:
    files = [file for pair in zip(FIT.values(), UNFIT.values(), strict=False) for file in pair]
    found = unfit(files)
    assert sorted(found) == list(range(1, 2 * len(UNFIT), 2))
    assert all(found.values())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP", "BMP"])
def test_another_size_than_expected(cpu_path: str, kind: str) -> None:
    for name in ("heights", "widths"):
        meta = replace(facts([FIT[kind]]), **{name: np.array([41], np.int32)})
        assert "another than expected" in unfit([FIT[kind]], meta)[0]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_orientation_that_is_not_expected(cpu_path: str, kind: str) -> None:
    """It matters only where images are turned upright."""
    tags = Image.Exif()
    tags[0x0112] = 6
    data = encode(IMAGE, kind, exif=tags)
    meta = replace(facts([data]), orientations=np.array([1], np.uint8))
    assert "EXIF" in unfit([data], meta, exif=True)[0]
    assert unfit([data], meta) == {}


def test_an_expected_orientation_that_is_missing(cpu_path: str) -> None:
    for data in (FIT["JPEG"], FIT["PNG"]):
        meta = replace(facts([data]), orientations=np.array([6], np.uint8))
        assert "EXIF" in unfit([data], meta, exif=True)[0]


def test_turned_jpegs_go_to_dali() -> None:
    assert unfit([turned(IMAGE, orientation) for orientation in range(1, 9)], exif=True) == {}


def test_more_pixels_than_are_allowed(cpu_path: str) -> None:
    data = with_size(FIT["JPEG"], 20_000, 20_000)
    meta = replace(facts([data]), heights=np.array([20_000], np.int32), widths=np.array([20_000], np.int32))
    assert unfit([data], meta) == {0: "it has too many pixels"}
