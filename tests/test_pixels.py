"""Decoded windows against Pillow, to the bit, and rendered samples against the reference."""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from header_flips import scan_flips
from hostile import ADOBE, few_scans, without, ycck
from images import encode, picture, png16
from PIL import Image, ImageOps
from pillow_reference import render_reference

from gpupipe.decode import pixels
from gpupipe.decode.pixels import DecodeError, decode_window, render
from gpupipe.kernels import Crops, decode_crops, native
from gpupipe.plan import cropping
from gpupipe.recipe import RandomHorizontalFlip, RandomResizedCrop, Recipe, ResizeCenterCrop
from gpupipe.sources.headers import probe_bytes

ORIENTATION, DESCRIPTION = 0x0112, 0x010E  # EXIF's tags
SIZES = [(1, 1), (2, 2), (7, 3000), (3000, 7), (37, 91), (64, 48)]
Box = tuple[int, int, int, int]


def with_alpha(height: int, width: int, kind: str, mode: str) -> bytes:
    image = Image.fromarray(picture(height, width)).convert(mode)
    image.putalpha(Image.fromarray(picture(height, width, seed=1)[..., 0]))
    buffer = io.BytesIO()
    image.save(buffer, kind, lossless=True)
    return buffer.getvalue()


def maker(kind: str, mode: str = "RGB", **options: object) -> Callable[[int, int], bytes]:
    return lambda height, width: encode(picture(height, width), kind, mode, **options)


KINDS: dict[str, Callable[[int, int], bytes]] = {
    "JPEG 4:4:4": maker("JPEG", subsampling=0),
    "JPEG 4:2:2": maker("JPEG", subsampling=1),
    "JPEG 4:2:0": maker("JPEG", subsampling=2),
    "JPEG gray": maker("JPEG", "L"),
    "JPEG progressive": maker("JPEG", progressive=True),
    "JPEG progressive 4:4:4": maker("JPEG", progressive=True, subsampling=0),
    "JPEG CMYK": maker("JPEG", "CMYK"),
    "JPEG CMYK without Adobe's marker": lambda height, width: without(KINDS["JPEG CMYK"](height, width), ADOBE),
    "JPEG YCCK": lambda height, width: ycck(picture(height, width)),
    "JPEG YCCK without Adobe's marker": lambda height, width: without(ycck(picture(height, width)), ADOBE),
    "JPEG stored as RGB": maker("JPEG", keep_rgb=True),
    "JPEG restart markers": maker("JPEG", restart_marker_blocks=3),
    "JPEG restart markers in each row": maker("JPEG", restart_marker_rows=1, subsampling=1),
    "PNG RGB": maker("PNG"),
    "PNG gray": maker("PNG", "L"),
    "PNG palette": maker("PNG", "P"),
    "PNG palette with a transparent colour": maker("PNG", "P", transparency=3),
    "PNG one bit": maker("PNG", "1"),
    "PNG RGBA": lambda height, width: with_alpha(height, width, "PNG", "RGBA"),
    "PNG LA": lambda height, width: with_alpha(height, width, "PNG", "LA"),
    "WebP lossy": maker("WEBP"),
    "WebP lossless": maker("WEBP", lossless=True),
    "WebP RGBA": lambda height, width: with_alpha(height, width, "WEBP", "RGBA"),
    "BMP": maker("BMP"),
    "BMP gray": maker("BMP", "L"),
    "PPM": maker("PPM"),
    "TIFF": maker("TIFF"),
    "GIF": maker("GIF", "P"),
}


def as_array(data: bytes) -> np.ndarray:
    """Read-only, as from a memory map."""
    return np.frombuffer(data, np.uint8)


def pillow(data: bytes, exif: bool = False) -> np.ndarray:
    image: Image.Image = Image.open(io.BytesIO(data))
    return np.asarray((ImageOps.exif_transpose(image) if exif else image).convert("RGB"))


def some_windows(height: int, width: int, count: int = 8) -> list[Box]:
    """The whole image, and random windows (top, left, height, width) in it."""
    rng = np.random.default_rng(height * 10_000 + width)
    tops, lefts = rng.integers(0, height, count), rng.integers(0, width, count)
    rows = zip(tops.tolist(), lefts.tolist(), strict=True)
    windows = [(y, x, int(rng.integers(1, height - y + 1)), int(rng.integers(1, width - x + 1))) for y, x in rows]
    return [(0, 0, height, width), *windows]


def assert_windows_are_pillows(data: bytes, exif: bool = False) -> None:
    whole = pillow(data, exif)
    height, width = whole.shape[:2]
    for top, left, tall, wide in some_windows(height, width):
        window = decode_window(as_array(data), height, width, (top, left, tall, wide), exif)
        np.testing.assert_array_equal(window, whole[top : top + tall, left : left + wide])


# Decoding


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_windows_are_pillows_crops(kind: str, height: int, width: int) -> None:
    assert_windows_are_pillows(KINDS[kind](height, width))


@pytest.mark.parametrize("kind", KINDS)
def test_pillow_decodes_only_what_the_native_decoder_does_not_know_or_gets_wrong(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    own = pixels.by_pillow
    monkeypatch.setattr(pixels, "by_pillow", lambda *args: calls.append(args) or own(*args))
    for window in ((0, 0, 37, 91), (5, 9, 20, 30)):
        decode_window(as_array(KINDS[kind](37, 91)), 37, 91, window, False)
    assert len(calls) == (0 if kind.startswith(("PNG", "WebP")) else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_pillow_alone_gives_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "_nvimagecodec", lambda *args: None)
    assert_windows_are_pillows(KINDS[kind](37, 91))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("exif", [False, True])
def test_exif_orientation_is_pillows(kind: str, orientation: int, exif: bool) -> None:
    """Pillow turns a TIFF upright in either case."""
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    assert_windows_are_pillows(encode(picture(37, 62), kind, exif=tags), exif)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_is_read_as_pillow_reads_it(kind: str) -> None:
    """nvImageCodec gives it up for one value that lies outside, and with it the orientation."""
    tags = Image.Exif()
    tags[ORIENTATION], tags[DESCRIPTION] = 3, "a description"
    entry = struct.pack(">HHI", DESCRIPTION, 2, len("a description") + 1)
    data = encode(picture(37, 62), kind, exif=tags)
    at = data.index(entry) + len(entry)
    damaged = data[:at] + b"\0\1\0\0" + data[at + 4 :]
    if kind == "PNG":
        begin = damaged.index(b"eXIf")
        end = begin + 4 + int.from_bytes(damaged[begin - 4 : begin], "big")
        damaged = damaged[:end] + struct.pack(">I", zlib.crc32(damaged[begin:end])) + damaged[end + 4 :]
    assert_windows_are_pillows(damaged, exif=True)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_16_bit_png_keeps_its_high_bytes(channels: int) -> None:
    """As Pillow's own reading, but for gray, of which Pillow's conversion clips everything above 255 to white."""
    values = np.random.default_rng(0).integers(0, 65536, (19, 23, channels))
    data = png16(values)
    colours = values[..., :3] if channels > 2 else values[..., :1].repeat(3, axis=-1)
    for top, left, tall, wide in some_windows(19, 23):
        window = decode_window(as_array(data), 19, 23, (top, left, tall, wide), False)
        np.testing.assert_array_equal(window, (colours >> 8)[top : top + tall, left : left + wide])
    if channels > 1:
        np.testing.assert_array_equal(pillow(data), colours >> 8)


def test_threads_decode_beside_each_other() -> None:
    files = [KINDS[kind](64, 48) for kind in list(KINDS) * 4]
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda data: decode_window(as_array(data), 64, 48, (3, 5, 40, 30), False), files))
    for data, window in zip(files, decoded, strict=True):
        np.testing.assert_array_equal(window, pillow(data)[3:43, 5:35])


# Damage


@pytest.mark.parametrize(("height", "width"), [(90, 38), (37, 90), (91, 37)])
@pytest.mark.parametrize("kind", ["JPEG 4:2:0", "PNG RGB", "WebP lossy", "GIF"])
def test_another_size_than_expected_is_named(kind: str, height: int, width: int) -> None:
    for window in ((0, 0, height, width), (1, 2, 10, 20)):
        with pytest.raises(DecodeError, match=f"91 x 37 pixels, but {width} x {height} were expected; .* changed"):
            decode_window(as_array(KINDS[kind](37, 91)), height, width, window, False)


@pytest.mark.parametrize(
    "kind", ["JPEG 4:2:0", "JPEG gray", "JPEG progressive", "PNG RGB", "WebP lossy", "GIF", "TIFF"]
)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_cut_file_is_an_error(kind: str, share: float) -> None:
    data = KINDS[kind](120, 160)
    cut = as_array(data[: int(share * len(data))])
    for window in ((0, 0, 120, 160), (100, 20, 20, 100)):
        with pytest.raises(DecodeError, match=r"can't be decoded|not a readable image") as raised:
            decode_window(cut, 120, 160, window, False)
        assert "BytesIO" not in str(raised.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"<html>404 Not Found</html>", "no known image format begins with the bytes b'<html>404"),
        (bytes(1000), "no known image format"),
        (np.random.default_rng(0).bytes(5000), "no known image format"),
        (b"\xff\xd8\xff\xe0", "not a readable image"),
        (b"\x89PNG\r\n\x1a\n", "not a readable image"),
    ],
)
def test_what_is_no_image_is_an_error_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_window(as_array(data), 37, 91, (0, 0, 37, 91), False)


# Rendering

CROP = Recipe((RandomResizedCrop(32), RandomHorizontalFlip()))
EVAL = Recipe((ResizeCenterCrop(32, 36), RandomHorizontalFlip()))
FILTERS = Recipe((RandomResizedCrop(32, interpolation="random"), RandomHorizontalFlip()))


def planned(recipe: Recipe, position: int, height: int, width: int) -> Crops:
    return cropping(recipe, 0, 0, np.array([position]), np.array([height], np.int32), np.array([width], np.int32))


def rendered(data: bytes, height: int, width: int, made: Crops, exif: bool = False) -> np.ndarray:
    out = torch.empty((*made.size, 3), dtype=torch.uint8)
    render(as_array(data), height, width, [made], exif, [out])
    return out.numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("recipe", [CROP, EVAL, FILTERS], ids=["crop", "eval", "filters"])
def test_render_is_the_reference(cpu_path: str, kind: str, height: int, width: int, recipe: Recipe) -> None:
    data = KINDS[kind](height, width)
    plans = [planned(recipe, position, height, width) for position in range(10)]
    assert {bool(made.flips[0]) for made in plans} == {False, True}
    assert {bool(made.bicubic[0]) for made in plans} == ({False, True} if recipe is FILTERS else {False})
    for made in plans:
        np.testing.assert_array_equal(rendered(data, height, width, made), render_reference(data, made))


def reaching_out(rng: np.random.Generator, height: int, width: int) -> Crops:
    """A crop whose window reaches out of the image, or lies beside it, and its output out of what is resized."""
    window = [
        *(int(rng.integers(-80, side + 10)) for side in (height, width)),
        *(int(rng.integers(1, 2 * side + 80)) for side in (height, width)),
    ]
    size = (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
    return Crops.of(
        [window if rng.random() < 0.7 else (0, 0, height, width)],
        size,
        flips=rng.random() < 0.5,
        resized=rng.integers(1, 80, 2),
        anchors=rng.integers(-70, 70, 2),
        bicubic=rng.random() < 0.5,
        fill=tuple(int(level) for level in rng.integers(0, 256, 3)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kind", ["JPEG 4:2:0", "PNG"])
@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_what_lies_outside_is_filled_as_pillow_pads(cpu_path: str, kind: str, orientation: int) -> None:
    rng = np.random.default_rng(orientation)
    for _ in range(40):
        stored = tuple(int(side) for side in rng.integers(1, 90, 2))
        tags = Image.Exif()
        tags[ORIENTATION] = orientation
        data = encode(picture(*stored), exif=tags) if kind != "PNG" else encode(picture(*stored), "PNG", exif=tags)
        height, width = pillow(data, True).shape[:2]
        plans = [reaching_out(rng, height, width) for _ in range(2)]
        plans.append(Crops.of([(0, 0, height, width)], (7, 9)))
        out = [torch.empty((*made.size, 3), dtype=torch.uint8) for made in plans]
        render(as_array(data), height, width, plans, True, out)
        decoded = (
            []
            if kind == "PNG" or native.library() is None
            else [decode_crops([data], plans, orientations=[orientation])]
        )
        for number, made in enumerate(plans):
            expected = render_reference(data, made, True)
            np.testing.assert_array_equal(out[number], expected, str(made))
            for images in decoded:
                assert not images.failures
                np.testing.assert_array_equal(images.images[number][0], expected, str(made))


@pytest.mark.parametrize("recipe", [CROP, EVAL], ids=["crop", "eval"])
@pytest.mark.parametrize("exif", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_render_turns_upright_when_asked(cpu_path: str, orientation: int, exif: bool, recipe: Recipe) -> None:
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    data = encode(picture(50, 81), exif=tags)
    height, width = pillow(data, exif).shape[:2]
    assert (height, width) == ((81, 50) if exif and orientation >= 5 else (50, 81))
    for position in range(3):
        made = planned(recipe, position, height, width)
        expected = render_reference(data, made, exif)
        np.testing.assert_array_equal(rendered(data, height, width, made, exif), expected)


@pytest.mark.parametrize("recipe", [CROP, EVAL], ids=["crop", "eval"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_a_flip_mirrors_exactly(cpu_path: str, recipe: Recipe, height: int, width: int) -> None:
    data = KINDS["JPEG 4:2:0"](height, width)
    made = planned(recipe, 0, height, width)
    flipped, straight = (replace(made, flips=np.array([flip])) for flip in (True, False))
    images = [rendered(data, height, width, each) for each in (flipped, straight)]
    np.testing.assert_array_equal(images[0], images[1][:, ::-1])


@pytest.mark.parametrize("recipe", [CROP, EVAL], ids=["crop", "eval"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_pixels_are_rendered_as_those_of_a_file(cpu_path: str, height: int, width: int, recipe: Recipe) -> None:
    """Of arrays that lie as they like; two views of one image each have their own part of it."""
    image = picture(height, width + 5)[:, 5:]
    plans = [planned(recipe, position, height, width) for position in range(4)]
    out = [torch.empty((*made.size, 3), dtype=torch.uint8) for made in plans]
    render(image, height, width, plans, False, out)
    for made, view in zip(plans, out, strict=True):
        np.testing.assert_array_equal(view, render_reference(encode(image, "PNG"), made))


def test_without_the_kernels_pillow_makes_all(no_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "_codec", lambda: pytest.fail("nvImageCodec is not asked"))
    rendered(KINDS["JPEG 4:2:0"](37, 91), 37, 91, planned(CROP, 0, 37, 91))


def test_what_pillow_can_not_resize_is_named(no_kernels: None) -> None:
    """It makes the whole of a side; the kernels no more than the part that is wanted."""
    line = np.zeros((3_000_000, 1, 3), np.uint8)
    made, out = planned(EVAL, 0, 3_000_000, 1), torch.empty((32, 32, 3), dtype=torch.uint8)
    with pytest.raises(DecodeError, match=r"1 x 3000000 of its pixels to 36 x 108000000, .* do this"):
        render(line, 3_000_000, 1, [made], False, [out])


def test_render_reports_damage() -> None:
    with pytest.raises(DecodeError, match="the file is empty"):
        rendered(b"", 37, 91, planned(CROP, 0, 37, 91))


@pytest.mark.parametrize(
    "files",
    [scan_flips(0, 400), [few_scans(picture(60, 90), count) for count in range(1, 11)]],
    ids=["flipped bits", "missing scans"],
)
def test_of_what_is_damaged_pillow_decides(cpu_path: str, files: list[bytes]) -> None:
    """Which files are bad, and the pixels of those that are not, whoever decodes them."""
    rng = np.random.default_rng(0)
    seen = set()
    for data in files:
        height, width = probe_bytes(data)[:2]
        if height == 0:  # not opened at all
            continue
        made = Crops.of([some_windows(height, width)[rng.integers(9)]], (20, 30))
        kernel = None if native.library() is None else decode_crops([data], [made])
        try:
            image = rendered(data, height, width, made) if kernel is None or kernel.failures else kernel.images[0][0]
        except DecodeError:
            with pytest.raises((OSError, SyntaxError)):
                render_reference(data, made)
            seen.add("bad")
        else:
            np.testing.assert_array_equal(image, render_reference(data, made))
            seen.add("good" if kernel is None or not kernel.failures else "declined")
    assert "good" in seen
    assert cpu_path == "plain" or "declined" in seen


def test_without_nvimagecodec_pillow_decodes_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise ImportError("no nvimgcodec here")

    data = KINDS["PNG RGB"](37, 91)
    truth = decode_window(np.frombuffer(data, np.uint8), 37, 91, (3, 5, 20, 40), False)
    monkeypatch.setattr(pixels, "_local", threading.local())
    monkeypatch.setattr(pixels, "_open_codec", missing)
    for _ in range(3):
        decoded = decode_window(np.frombuffer(data, np.uint8), 37, 91, (3, 5, 20, 40), False)
        assert np.array_equal(decoded, truth)
    assert [record.message for record in caplog.records if "no nvimgcodec here" in record.message] == [
        "nvImageCodec can't be used (no nvimgcodec here); Pillow decodes instead, more slowly; "
        "pip install --force-reinstall nvidia-nvimgcodec-cu12"
    ]
