"""Sizes, orientation and damage from a file's first bytes, against what the images were made as."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from images import encode, picture
from PIL import Image

import gpupipe
from gpupipe.decode import headers as by_kernel
from gpupipe.decode.headers import headers_of
from gpupipe.kernels import native
from gpupipe.sources import headers
from gpupipe.sources.headers import DAMAGED, PREFIX, Header, explain_damage, header_of, probe, probe_bytes

HEIGHT, WIDTH = 37, 91
PIXELS = picture(HEIGHT, WIDTH)
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("JPEG", "RGB", {}),
    ("JPEG", "RGB", {"progressive": True}),
    ("JPEG", "RGB", {"subsampling": 2, "quality": 30}),
    ("JPEG", "L", {}),
    ("JPEG", "CMYK", {}),
    ("PNG", "RGB", {}),
    ("PNG", "RGBA", {}),
    ("PNG", "P", {}),
    ("PNG", "I;16", {}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("BMP", "RGB", {}),
    ("PPM", "RGB", {}),
    ("PPM", "L", {}),
    ("TIFF", "RGB", {}),
    ("GIF", "P", {}),
    *((kind, "RGB", {}) for kind in ("AVIF", "JPEG2000") if kind in headers.FORMATS),
]


def encoded(kind: str, mode: str, options: dict[str, Any]) -> bytes:
    return encode(PIXELS[..., 0].astype(np.uint16) if mode == "I;16" else PIXELS, kind, mode, **options)


@pytest.mark.parametrize(("kind", "mode", "options"), KINDS)
def test_every_kind_gives_its_size(kind: str, mode: str, options: dict[str, Any]) -> None:
    data = encoded(kind, mode, options)
    assert probe_bytes(data) == Header(HEIGHT, WIDTH, 1)
    assert explain_damage(data) == ""


@pytest.mark.parametrize("kind", sorted({"JPEG", "PNG", "WEBP", "AVIF"} & set(headers.FORMATS)))
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert probe_bytes(encode(PIXELS, kind, exif=exif)) == Header(HEIGHT, WIDTH, orientation)


@pytest.mark.parametrize("kind", sorted(set(headers.FORMATS) - {"PPM"}))
def test_files_longer_than_the_prefix(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (250, 300, 3)).astype(np.uint8)
    data = encode(noise, kind, "P" if kind == "GIF" else "RGB", **{"quality": 100} if kind in ("JPEG", "AVIF") else {})
    data = encode(noise, kind, lossless=True) if kind == "WEBP" else data
    assert len(data) > PREFIX
    assert probe_bytes(data) == Header(250, 300, 1)


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_an_impossible_orientation_counts_as_none(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert probe_bytes(encode(PIXELS, exif=exif)).orientation == 1


def test_a_small_file_is_read_once_and_a_long_header_in_full() -> None:
    calls: list[tuple[int, int]] = []

    def reader(data: bytes) -> Any:
        def read(offset: int, length: int) -> bytes:
            calls.append((offset, length))
            return data[offset : offset + length]

        return read

    small = encode(PIXELS)
    assert probe(reader(small), len(small))[:2] == (HEIGHT, WIDTH)
    assert calls == [(0, len(small))]
    calls.clear()
    # colour profiles are stored before the size: this one fills the prefix
    late = encode(PIXELS, icc_profile=np.random.default_rng(0).bytes(3 * PREFIX))
    assert probe(reader(late), len(late))[:2] == (HEIGHT, WIDTH)
    assert (0, len(late)) in calls


@pytest.mark.parametrize(("kind", "mode", "options"), KINDS[:8])
@pytest.mark.parametrize("part", [0.97, 0.5, 0.1])
def test_a_cut_jpeg_or_png_is_damaged(kind: str, mode: str, options: dict[str, Any], part: float) -> None:
    data = encoded(kind, mode, options)
    cut = data[: int(len(data) * part)]
    assert probe_bytes(cut) == DAMAGED
    assert explain_damage(cut)


@pytest.mark.parametrize("data", [b"", b"<html><body>404</body></html>", b"\xff\xd8\xff\xe0", bytes(5000)])
def test_what_is_no_image_is_damaged(data: bytes) -> None:
    assert probe_bytes(data) == DAMAGED
    assert explain_damage(data)


def test_the_reason_shows_the_first_bytes() -> None:
    assert "<html>" in explain_damage(b"<html>not found</html>")
    assert "empty" in explain_damage(b"")


@pytest.mark.parametrize(("kind", "size"), [("AVIF", 100), ("AVIF", 394), ("GIF", 14), ("GIF", 400), ("PNG", 14)])
def test_the_reason_of_a_cut_header_names_the_kind(kind: str, size: int) -> None:
    cut = encode(PIXELS, kind, "P" if kind == "GIF" else "RGB", **{"quality": 100} if kind == "AVIF" else {})[:size]
    lacks = kind not in headers.FORMATS
    expected = "it is AVIF, which this Pillow was built without" if lacks else f"it begins as {kind} does, but is cut"
    assert expected in explain_damage(cut)


def test_bytes_behind_the_end_do_no_harm() -> None:
    assert probe_bytes(encode(PIXELS) + bytes(300)) == Header(HEIGHT, WIDTH, 1)


def test_a_header_that_claims_a_huge_image_has_the_size_that_limits_refuse() -> None:
    data = bytearray(encode(PIXELS))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 65500, 65500)
    assert probe_bytes(bytes(data)) == Header(65500, 65500, 1)
    loader = gpupipe.Loader([(bytes(data), 0)], gpupipe.imagenet_eval(8), 1, device="cpu", num_workers=0)
    with loader, pytest.raises(gpupipe.SampleError, match="it has 65500 x 65500 pixels, more than the 178,956,970"):
        next(iter(loader))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_flipped_bytes_in_the_header_never_raise() -> None:
    rng = np.random.default_rng(7)
    data = encode(PIXELS, exif=Image.Exif())
    for _ in range(300):
        broken = bytearray(data)
        for place in rng.integers(0, 400, 3):
            broken[place] = rng.integers(256)
        header = probe_bytes(bytes(broken))
        assert header == DAMAGED or (header.height > 0 and header.width > 0)


def test_pillow_is_not_asked_about_plain_jpegs(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [encode(PIXELS, **options) for options in ({}, {"progressive": True}, {"comment": b"x" * 300})]
    turned = Image.Exif()
    turned[0x0112] = 6
    monkeypatch.setattr(headers, "_parse", lambda data: (Header(1, 1, 1), ""))
    assert [probe_bytes(data) for data in plain] == [Header(HEIGHT, WIDTH, 1)] * 3
    assert probe_bytes(encode(PIXELS, exif=turned)) == Header(1, 1, 1)


def test_headers_with_a_flipped_byte_are_read_as_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(PIXELS, comment=b"some text")
    start_of_scan = data.index(b"\xff\xda")
    flipped = []
    for place in range(2, start_of_scan):
        flipped.append(bytearray(data))
        flipped[-1][place] ^= 0x11
    ours = [probe_bytes(bytes(broken)) for broken in flipped]
    monkeypatch.setattr(headers, "_plain_jpeg", lambda data: None)
    for place, (mine, broken) in enumerate(zip(ours, flipped, strict=True), start=2):
        theirs = probe_bytes(bytes(broken))
        assert mine == theirs or theirs == DAMAGED, f"byte {place}"  # tables are checked when they are used


@pytest.mark.parametrize("native_kernels", [True, False])
def test_headers_of_many_are_those_of_each(native_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native_kernels:
        monkeypatch.setattr(native, "library", lambda: None)
    turned = Image.Exif()
    turned[0x0112] = 6
    whole = encode(PIXELS, comment=b"some text")
    files = [encode(PIXELS, exif=turned), encode(PIXELS, "PNG"), b"", b"\xff\xd8\xff", whole[:-40], whole + bytes(70)]
    files += [encode(PIXELS, **options) for options in ({}, {"progressive": True}, {"comment": b"x" * 65_500})]
    start_of_scan = whole.index(b"\xff\xda")
    files += [whole[:place] for place in range(2, start_of_scan)]
    for place in range(2, start_of_scan + 12):
        for flips in (0x11, 0x80, 0xFF):
            broken = bytearray(whole)
            broken[place] ^= flips
            files.append(bytes(broken))
    images = [np.frombuffer(data, np.uint8) for data in files]
    images += [PIXELS, np.frombuffer(whole, np.uint8).repeat(2)[::2]]  # pixels; bytes that lie apart
    assert headers_of(images).tolist() == [list(header_of(np.ascontiguousarray(data))) for data in images]


@pytest.mark.skipif(native.library() is None, reason=f"without the C++ kernels: {native.problem()}")
def test_nothing_but_the_kernel_looks_at_plain_jpegs(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [np.frombuffer(encode(PIXELS, **options), np.uint8) for options in ({}, {"progressive": True})]
    monkeypatch.setattr(by_kernel, "header_of", lambda data: 1 // 0)
    assert headers_of(images).tolist() == [[HEIGHT, WIDTH, 1]] * 2
