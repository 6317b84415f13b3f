"""Every format and kind of image on both engines, against Pillow and against what the files were made of."""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import ADOBE, with_size, without, ycck
from images import encode, picture, png16, png_file, write_folder
from PIL import Image, ImageOps
from torchvision.datasets import ImageFolder

import gpupipe
from gpupipe.sources import headers
from gpupipe.tools.pack import PackSettings, pack

sys.path.append(str(Path(__file__).parent.parent / "bench"))

import formats
from formats import KINDS as MEASURED, encoded

ENGINES = ["torch", "dali"]
SIZES = [(61, 75), (1, 1), (2, 7)]
BACKGROUND = (250, 10, 120)


def gray16(height: int, width: int) -> np.ndarray:
    """Levels of 16 bits, (height, width)."""
    return np.random.default_rng(0).integers(0, 2**16, (height, width)).astype(np.uint16)


def interlaced(pixels: np.ndarray) -> bytes:
    """Adam7, as PNG's standard has it."""
    grid = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [pixels[top::down, left::right] for top, left, down, right in grid]
    return png_file(pixels, [part for part in parts if part.size])


def bmp16(pixels: np.ndarray) -> bytes:
    """5 bits of each colour, rows from the top."""
    height, width = pixels.shape[:2]
    five = (pixels >> 3).astype(np.uint16)
    rows = np.zeros((height, (width + 1) // 2 * 2), "<u2")
    rows[:, :width] = five[..., 0] << 10 | five[..., 1] << 5 | five[..., 2]
    head = b"".join(number.to_bytes(4, "little", signed=True) for number in (40, width, -height))
    head += b"\1\0\x10\0" + bytes(4) + rows.nbytes.to_bytes(4, "little") + bytes(16)
    return b"BM" + (54 + rows.nbytes).to_bytes(4, "little") + bytes(4) + b"\x36\0\0\0" + head + rows.tobytes()


def tiff(size: tuple[int, int], bits: tuple[int, ...], parts: list[bytes], tile: int = 0) -> bytes:
    """Uncompressed, with as many samples a pixel as there are numbers of bits, in a strip or in tiles: what Pillow
    reads and can't write."""
    height, width = size
    offsets = tuple(np.cumsum([8, *map(len, parts)])[:-1].tolist())
    counts = tuple(map(len, parts))
    tags = {256: (width,), 257: (height,), 258: bits, 259: (1,), 262: (2 if len(bits) == 3 else 1,), 277: (len(bits),)}
    if tile:
        tags |= {322: (tile,), 323: (tile,), 324: offsets, 325: counts}
    else:
        tags |= {273: offsets, 278: (height,), 279: counts}
    body = b"".join(parts)
    directory = len(tags).to_bytes(2, "little")
    for tag, values in sorted(tags.items()):
        data = np.array(values, "<u4").tobytes()
        if len(values) > 1:
            body, data = body + data, (8 + len(body)).to_bytes(4, "little")
        directory += tag.to_bytes(2, "little") + b"\4\0" + len(values).to_bytes(4, "little") + data
    return b"II*\0" + (8 + len(body)).to_bytes(4, "little") + body + directory + bytes(4)


def tiled(pixels: np.ndarray) -> bytes:
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, ((0, -height % 16), (0, -width % 16), (0, 0)))
    rows = padded.reshape(len(padded) // 16, 16, -1, 16, 3).swapaxes(1, 2)
    return tiff((height, width), (8, 8, 8), [tile.tobytes() for row in rows for tile in row], tile=16)


def pnm(magic: str, most: int, values: np.ndarray) -> bytes:
    height, width = values.shape[:2]
    return f"{magic}\n{width} {height}\n{most}\n".encode() + values.tobytes()


def see_through(image: Image.Image, mode: str) -> Image.Image:
    """With an alpha of its own."""
    image = image.convert(mode)
    image.putalpha(Image.fromarray(picture(image.height, image.width, seed=1)[..., 0]))
    return image


def animated(image: Image.Image, kind: str, **options: Any) -> bytes:
    return encoded(image, kind, image.mode, save_all=True, append_images=[ImageOps.mirror(image)] * 2, **options)


def lab(image: Image.Image) -> bytes:
    from PIL import ImageCms

    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    return encoded(ImageCms.applyTransform(image, ImageCms.buildTransform(*profiles, "RGB", "LAB")), "TIFF", "LAB")


def _as(kind: str, mode: str = "RGB", **options: Any) -> Callable[[Image.Image], bytes]:
    return lambda image: encoded(image, kind, mode, **options)


ODD: dict[str, Callable[[Image.Image], bytes]] = {
    "JPEG YCCK": lambda image: ycck(np.asarray(image)),
    "JPEG CMYK without Adobe's marker": lambda image: without(encoded(image, "JPEG", "CMYK"), ADOBE),
    "PNG interlaced": lambda image: interlaced(np.asarray(image)),
    "PNG interlaced alpha": lambda image: interlaced(np.asarray(see_through(image, "RGB"))),
    "PNG gray alpha": lambda image: encoded(see_through(image, "L"), "PNG", "LA"),
    "PNG 2 bits palette": lambda image: encoded(image.quantize(4), "PNG", "P", bits=2),
    "PNG transparent entry": lambda image: encoded(image.quantize(9), "PNG", "P", transparency=0),
    "PNG transparent entries": lambda image: encoded(
        image.quantize(9), "PNG", "P", transparency=bytes(range(0, 180, 20))
    ),
    "PNG transparent gray": lambda image: encoded(image, "PNG", "L", transparency=image.convert("L").getpixel((0, 0))),
    "PNG transparent colour": lambda image: encoded(image, "PNG", transparency=image.getpixel((0, 0))),
    "PNG transparent bit": _as("PNG", "1", transparency=0),
    "PNG 16 bits": lambda image: png16(np.asarray(image).astype(np.uint16) * 250 + 77),
    "PNG 16 bits alpha": lambda image: png16(np.asarray(see_through(image, "RGB")).astype(np.uint16) * 250 + 77),
    "PNG animated": lambda image: animated(image, "PNG"),
    "PNG animated beside a default": lambda image: animated(image, "PNG", default_image=True),
    "WebP lossless alpha": lambda image: encoded(see_through(image, "RGB"), "WEBP", "RGBA", lossless=True),
    "WebP animated": lambda image: animated(image, "WEBP"),
    "WebP animated alpha": lambda image: animated(see_through(image, "RGB"), "WEBP", lossless=True),
    "AVIF 4:4:4": _as("AVIF", subsampling="4:4:4", quality=95, speed=10),
    "AVIF 4:2:2": _as("AVIF", subsampling="4:2:2", speed=10),
    "AVIF gray": _as("AVIF", "L", speed=10),
    "AVIF animated": lambda image: animated(image, "AVIF", speed=10),
    "TIFF gray": _as("TIFF", "L"),
    "TIFF 1 bit": _as("TIFF", "1"),
    "TIFF fax": _as("TIFF", "1", compression="group4"),
    "TIFF palette": _as("TIFF", "P"),
    "TIFF packbits": _as("TIFF", compression="packbits"),
    "TIFF predictor": _as("TIFF", compression="tiff_lzw", tiffinfo={317: 2}),
    "TIFF strips": _as("TIFF", compression="tiff_lzw", tiffinfo={278: 2}),
    "TIFF tiles": lambda image: tiled(np.asarray(image)),
    "TIFF big": _as("TIFF", big_tiff=True),
    "TIFF pages": lambda image: animated(image, "TIFF"),
    "TIFF alpha": lambda image: encoded(see_through(image, "RGB"), "TIFF", "RGBA"),
    "TIFF gray alpha": lambda image: encoded(see_through(image, "L"), "TIFF", "LA"),
    "TIFF CMYK LZW": _as("TIFF", "CMYK", compression="tiff_lzw"),
    "TIFF LAB": lab,
    "TIFF 32 bits": lambda image: encoded(image.convert("L"), "TIFF", "I"),
    "TIFF floats": lambda image: encoded(image.convert("L"), "TIFF", "F"),
    "TIFF 16 bits": lambda image: tiff(
        (image.height, image.width), (16,) * 3, [(np.asarray(image).astype("<u2") * 250 + 77).tobytes()]
    ),
    "BMP gray": _as("BMP", "L"),
    "BMP 1 bit": _as("BMP", "1"),
    "BMP 32 bits": lambda image: encoded(see_through(image, "RGB"), "BMP", "RGBA"),
    "BMP 16 bits": lambda image: bmp16(np.asarray(image)),
    "GIF transparent": lambda image: encoded(image.quantize(9), "GIF", "P", transparency=0),
    "JPEG 2000 codestream": _as("JPEG2000", no_jp2=True),
    "JPEG 2000 gray": _as("JPEG2000", "L"),
    "JPEG 2000 alpha": lambda image: encoded(see_through(image, "RGB"), "JPEG2000", "RGBA"),
    "PGM": _as("PPM", "L"),
    "PBM": _as("PPM", "1"),
    "PPM of 100 levels": lambda image: pnm("P6", 100, np.asarray(image) // 3),
    "PPM of 16 bits": lambda image: pnm("P6", 65535, (np.asarray(image).astype(np.uint16) * 257).astype(">u2")),
}
DEEP: dict[str, Callable[[np.ndarray], bytes]] = {
    "PNG": lambda levels: png16(levels[..., None]),
    "TIFF": lambda levels: encode(levels, "TIFF", "I;16"),
    "TIFF big-endian": lambda levels: encoded(
        Image.frombytes("I;16B", levels.shape[::-1], levels.astype(">u2").tobytes()), "TIFF", "I;16B"
    ),
    "TIFF compressed": lambda levels: encode(levels, "TIFF", "I;16", compression="tiff_lzw"),
    "PGM": lambda levels: pnm("P5", 65535, levels.astype(">u2")),
    "JPEG 2000": lambda levels: encode(levels, "JPEG2000", "I;16"),
}
"""Gray of 16 bits."""

NEEDED = {"AVIF": "AVIF", "JPEG 2000": "JPEG2000"}


def is_available(kind: str) -> bool:
    return all(name in headers.FORMATS for start, name in NEEDED.items() if kind.startswith(start))


KINDS = {kind: make for kind, make in (MEASURED | ODD).items() if "16 bit gray" not in kind and kind != "PGM, 16 bit"}
KINDS = {kind: make for kind, make in KINDS.items() if is_available(kind)}


class Files:
    """A dataset of encoded images, or of PIL images."""

    def __init__(self, files: list[Any]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.files[index], index


def loaded(data: Any, engine: str, size: tuple[int, int], exif: bool = False, **options: Any) -> list[np.ndarray]:
    """The whole pixels of images of one size, as a Loader gives them."""
    crop = gpupipe.ResizeCenterCrop(size, size)
    recipe = gpupipe.Recipe((crop,), dtype="uint8", layout="channels_last", exif_orientation=exif)
    workers = 0 if engine == "torch" else 1
    with gpupipe.Loader(data, recipe, 32, engine=engine, num_workers=workers, device="cpu", **options) as loader:
        return [one.permute(1, 2, 0).numpy() for images, _ in loader for one in images.clone()]


def on_background() -> dict[str, gpupipe.Field]:
    return {"image": gpupipe.Image(background=BACKGROUND), "label": gpupipe.Scalar()}


@pytest.fixture(scope="module")
def files() -> dict[tuple[int, int], dict[str, bytes]]:
    """Of each size a file of each kind."""
    return {size: {kind: make(Image.fromarray(picture(*size))) for kind, make in KINDS.items()} for size in SIZES}


Batches = dict[tuple[int, int], dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=ENGINES)
def plain(request: pytest.FixtureRequest, files: dict[tuple[int, int], dict[str, bytes]]) -> Batches:
    """The pixels of all files by kind."""
    made = {size: loaded(Files([*some.values()]), request.param, size) for size, some in files.items()}
    return {size: dict(zip(KINDS, pixels, strict=True)) for size, pixels in made.items()}


@pytest.fixture(scope="module", params=ENGINES)
def laid(request: pytest.FixtureRequest, files: dict[tuple[int, int], dict[str, bytes]]) -> Batches:
    """The same on a background."""
    made = {
        size: loaded(Files([*some.values()]), request.param, size, fields=on_background())
        for size, some in files.items()
    }
    return {size: dict(zip(KINDS, pixels, strict=True)) for size, pixels in made.items()}


def pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_pillows(
    plain: Batches, files: dict[tuple[int, int], dict[str, bytes]], kind: str, size: tuple[int, int]
) -> None:
    np.testing.assert_array_equal(plain[size][kind], pillow(files[size][kind]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_transparency_lies_on_the_background(
    laid: Batches, files: dict[tuple[int, int], dict[str, bytes]], kind: str, size: tuple[int, int]
) -> None:
    """Of all that is not transparent the pixels are what they are without."""
    data = files[size][kind]
    *colours, alpha = np.moveaxis(np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"), float), -1, 0)
    mixed = [
        colour * alpha / 255 + level * (1 - alpha / 255) for colour, level in zip(colours, BACKGROUND, strict=True)
    ]
    expected = np.where((alpha < 255)[..., None], np.stack(mixed, axis=-1), pillow(data))
    apart = np.abs(laid[size][kind] - expected)
    assert apart.max() <= 1
    assert np.all(apart[alpha == 255] == 0)
    assert ("alpha" in kind or "transparent" in kind) <= bool((alpha < 255).any()) or size != SIZES[0]


def test_pil_images_of_a_dataset_are_laid_on_it_too() -> None:
    image = see_through(Image.fromarray(picture(*SIZES[0])), "RGB")
    (given,) = loaded(Files([image]), "torch", SIZES[0], fields=on_background())
    (encoded_,) = loaded(Files([encoded(image, "PNG", "RGBA")]), "torch", SIZES[0], fields=on_background())
    np.testing.assert_array_equal(given, encoded_)


@pytest.mark.parametrize("background", [(1, 2), (1, 2, 256), (0, 0, -1), 3, "white", (0.5, 0, 0)])
def test_what_is_no_background(background: Any) -> None:
    with pytest.raises(gpupipe.ConfigError, match="background"):
        gpupipe.Image(background=background)


def test_states_of_other_fields_outlive_the_setting() -> None:
    plain = gpupipe.Schema({"image": gpupipe.Image("jpg"), "mask": gpupipe.Mask("png")})
    assert plain.fingerprint == "64b5ae686b584a8c"
    assert gpupipe.Schema({"image": gpupipe.Image(), "label": gpupipe.Scalar()}).fingerprint == ""
    assert gpupipe.Schema(on_background()).fingerprint != ""


# More than 8 bits


@pytest.mark.parametrize("engine", ENGINES)
def test_gray_of_16_bits_has_its_high_bytes(engine: str) -> None:
    """Where Pillow has all above 255 as white."""
    levels = gray16(*SIZES[0])
    for kind, pixels in zip(
        DEEP, loaded(Files([make(levels) for make in DEEP.values()]), engine, SIZES[0]), strict=True
    ):
        np.testing.assert_array_equal(pixels, (levels >> 8)[..., None].repeat(3, axis=2), kind)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_transparent_level_of_16_bits(engine: str) -> None:
    levels = gray16(*SIZES[0])
    data = encode(levels, "PNG", "I;16", transparency=int(levels[3, 4]))
    (pixels,) = loaded(Files([data]), engine, SIZES[0], fields=on_background())
    assert pixels[3, 4].tolist() == list(BACKGROUND)
    expected = np.where((levels == levels[3, 4])[..., None], BACKGROUND, (levels >> 8)[..., None])
    np.testing.assert_array_equal(pixels, expected)


def test_12_bits_of_a_tiff() -> None:
    """Two levels in three bytes, which Pillow gives as they are."""
    levels = gray16(6, 8) >> 4
    first, second = levels[:, ::2].astype(int), levels[:, 1::2].astype(int)
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=-1)
    (pixels,) = loaded(Files([tiff((6, 8), (12,), [packed.astype(np.uint8).tobytes()])]), "torch", (6, 8))
    np.testing.assert_array_equal(pixels[..., 0], levels >> 4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("mode", "factor"), [("F", 2.0), ("F", 1 / 256), ("F", -1.0), ("I", 2), ("I", -1)])
def test_values_that_are_no_pixels_are_refused(engine: str, mode: str, factor: float) -> None:
    """Rather than clipped, as by Pillow."""
    values = picture(*SIZES[0])[..., 0].astype(int) * factor
    data = encoded(Image.fromarray(values.astype(np.float32 if mode == "F" else np.int32)), "TIFF", mode)
    with pytest.raises(gpupipe.SampleError, match=rf"sample 1 .*mode '{mode}' with values from .*scale them"):
        loaded(Files([encode(picture(*SIZES[0]), "TIFF"), data]), engine, SIZES[0])


# Orientation


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("exif", [False, True])
def test_orientation(engine: str, exif: bool) -> None:
    """Of a TIFF Pillow heeds it in either case. That of XMP is none of EXIF's."""
    kinds = [kind for kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF") if kind in headers.FORMATS]
    for orientation in (3, 6):
        tags = Image.Exif()
        tags[0x0112] = orientation
        files = [encode(picture(40, 62), kind, exif=tags) for kind in kinds]
        upright = [np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")) for data in files]
        for kind, data, turned in zip(kinds, files, upright, strict=True):
            expected = turned if exif else pillow(data)
            (pixels,) = loaded(Files([data]), engine, expected.shape[:2], exif)
            np.testing.assert_array_equal(pixels, expected, f"{kind} {orientation}")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_orientation_in_xmp_is_not_heeded(kind: str, cpu_path: str) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    if kind == "JPEG":
        content = b"http://ns.adobe.com/xap/1.0/\0" + xmp
        data = encode(picture(40, 62))
        data = data[:2] + b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content + data[2:]
    else:
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp.decode())
        data = encode(picture(40, 62), "PNG", pnginfo=info)
    (pixels,) = loaded(Files([data]), "torch", (40, 62), exif=True)
    np.testing.assert_array_equal(pixels, pillow(data))


# Damage and limits


@pytest.mark.parametrize("share", [0.1, 0.6, 0.97])
@pytest.mark.parametrize(
    "kind", ["AVIF", "JPEG 2000", "JPEG 2000 codestream", "TIFF, LZW", "BMP", "GIF", "PPM", "WebP"]
)
def test_a_cut_file_is_an_error(kind: str, share: float) -> None:
    if not is_available(kind):
        pytest.skip(f"Pillow was built without {kind}")
    good = KINDS[kind](Image.fromarray(picture(*SIZES[0])))
    with pytest.raises(gpupipe.SampleError, match=r"sample 1 .*(can't be decoded|not a readable image)"):
        loaded(Files([good, good[: int(share * len(good))]]), "torch", SIZES[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_more_pixels_than_are_allowed(engine: str) -> None:
    """Claimed by a header: nothing of that size is made."""
    png = bytearray(png_file(picture(9, 9)))
    png[16:24] = (20_000).to_bytes(4, "big") * 2
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    for bomb in (
        bytes(png),
        with_size(encode(picture(9, 9)), 20_000, 20_000),
        pnm("P6", 255, picture(9, 9)).replace(b"9 9", b"20000 20000"),
    ):
        with pytest.raises(gpupipe.SampleError, match=r"sample 0 .*(exceeds limit|more than the)"):
            loaded(Files([bomb]), engine, (9, 9))


def test_what_this_pillow_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "FORMATS", tuple(set(headers.FORMATS) - {"AVIF", "JPEG2000"}))
    assert "AVIF, which this Pillow was built without" in headers.explain_damage(b"\0\0\0 ftypavif" + bytes(50))
    assert "HEIC, which Pillow does not read" in headers.explain_damage(b"\0\0\0 ftypheic" + bytes(50))


@pytest.mark.skipif("AVIF" not in headers.FORMATS, reason="Pillow was built without AVIF")
def test_one_thread_decodes_an_avif() -> None:
    from PIL import AvifImagePlugin

    loaded(Files([KINDS["AVIF"](Image.fromarray(picture(9, 9)))]), "torch", (9, 9))
    assert AvifImagePlugin.DEFAULT_MAX_THREADS == 1


# Where they lie


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A class of JPEG and GIF, one of BMP and JPEG 2000, with a colour each."""
    files = {"a/0.jpg": "JPEG", "a/1.gif": "GIF", "b/2.bmp": "BMP", "b/3.jp2": "JPEG2000", "b/4.GIF": "GIF"}
    for name, kind in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encode(np.full((8, 8, 3), 40 * int(Path(name).stem), np.uint8), kind))
    return tmp_path


def test_a_folder_has_what_imagefolder_takes(mixed: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = [str(Path(path).relative_to(mixed)) for path, _ in ImageFolder(mixed).samples]
    source = gpupipe.open_source(mixed)
    assert [source.key(index) for index in range(len(source))] == theirs == ["a/0.jpg", "b/2.bmp"]
    (said,) = [record.message for record in caplog.records if "leaves out" in record.message]
    assert "(.avif, .gif, .j2k, .jp2): 3, as 1.gif" in said
    assert "gpupipe.Image(suffix='.gif')" in said


@pytest.mark.skipif("JPEG2000" not in headers.FORMATS, reason="Pillow was built without JPEG 2000")
def test_other_formats_by_their_suffix(mixed: Path, caplog: pytest.LogCaptureFixture) -> None:
    (mixed / "a/5.jp2").write_bytes((mixed / "b/3.jp2").read_bytes())
    fields = {"image": gpupipe.Image(suffix=".jp2"), "label": gpupipe.Scalar()}
    for engine in ENGINES:
        images = loaded(mixed, engine, (8, 8), fields=fields)
        assert [np.unique(image).tolist() for image in images] == [[120], [120]]
    assert not [record for record in caplog.records if "leaves out" in record.message]


def test_a_folder_of_others_alone_says_what_to_pass(mixed: Path) -> None:
    (mixed / "a/0.jpg").unlink()
    for fields in (None, {"image": gpupipe.Image(folder="a")}):
        with pytest.raises(
            gpupipe.DataError, match=r"no images in .* are images of formats which .*Image\(suffix='\.gif'\)"
        ):
            gpupipe.open_source(mixed, fields=fields)


def test_shards_hold_every_format(tmp_path: Path) -> None:
    """What is usual comes first; a sample without that has what it has."""
    kinds = {"jpg": "JPEG", "gif": "GIF", "tif": "TIFF", "bmp": "BMP", "ppm": "PPM", "avif": "AVIF", "jp2": "JPEG2000"}
    kinds = {name: kind for name, kind in kinds.items() if kind in headers.FORMATS}
    path = tmp_path / "all.tar"
    with tarfile.open(path, "w") as tar:
        for label, (name, kind) in enumerate(kinds.items()):
            members = {f"{label}.{name}": encode(np.full((8, 8, 3), 20 * label, np.uint8), kind)}
            members |= {f"{label}.cls": str(label).encode(), f"{label}.depth.tif": encode(picture(8, 8), "TIFF")}
            if name == "jpg":
                members[f"{label}.gif"] = encode(picture(8, 8), "GIF")
            for member, data in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    for engine in ENGINES:
        for image, label in zip(loaded(str(path), engine, (8, 8)), range(len(kinds)), strict=True):
            assert np.abs(image.astype(int) - 20 * label).max() <= 2
    named = gpupipe.open_source(str(path), fields={"image": gpupipe.Image("avif;jp2;gif", missing="skip")})
    assert named.key(0) == "0"
    assert (named.sizes > 0).sum() == 2 + sum(name in kinds for name in ("avif", "jp2"))


def test_what_is_packed_smaller_has_the_same_colours(tmp_path: Path) -> None:
    """Gray of 16 bits, and what is transparent on its background."""
    samples = [(png16(np.full((40, 50, 1), 0x6123)), 0), (encode(np.zeros((40, 50, 3), np.uint8), "PNG", "RGBA"), 1)]
    clear = Image.new("RGBA", (50, 40), (0, 0, 0, 0))
    samples.append((encoded(clear, "PNG", "RGBA"), 2))
    packed = pack(gpupipe.open_source(samples, fields=on_background()), tmp_path / "out", PackSettings(max_size=20))
    images = loaded(packed.source, "torch", (20, 25))
    means = {
        index: tuple(image.mean(axis=(0, 1)).round()) for image, (_, index) in zip(images, packed.source, strict=True)
    }
    assert means[0] == (0x61,) * 3
    assert means[1] == (0, 0, 0)
    assert np.abs(np.subtract(means[2], BACKGROUND)).max() <= 2


# Figures


def test_the_table_is_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny run, and the page's own table."""
    root = Path(__file__).parent.parent
    page = tmp_path / "page.md"
    page.write_text((root / "docs/guide/formats.md").read_text())
    monkeypatch.setattr(formats.os, "sched_setaffinity", lambda *_: None)  # of this process
    folder = write_folder(tmp_path / "data", classes=1, per_class=2, sizes=((40, 50),))
    options = ["--out", str(tmp_path / "out"), "--images", "2", "--rounds", "1", "--page", str(page)]
    formats.main([str(folder), *options, "--only", "JPEG,BMP"])
    kinds = ["JPEG", "JPEG, progressive", "JPEG, gray", "JPEG, CMYK", "BMP", "BMP, palette"]
    made = (tmp_path / "out" / "results.md").read_text()
    assert made in page.read_text()
    assert [row["kind"] for row in json.loads((tmp_path / "out" / "formats.json").read_text())["rows"]] == kinds
    by = re.findall(r"^\| ([^|]*) \| ([^|]*?), [\d,]+ \(.*?\) \| ([^|]*), [\d,]+ \(", made, re.MULTILINE)
    assert by[0] == ("JPEG", "C++ kernel", "DALI")
    assert by[4] == ("BMP", "Pillow", "Pillow, beside DALI")
    told = (root / "docs/guide/formats.md").read_text()
    assert re.findall(r"^\| ([^|]*) \| (?:C\+\+ kernel|nvImageCodec|Pillow), \d", told, re.MULTILINE) == list(MEASURED)
    stored = root / "bench/results/cpu-2-cores/formats/results.md"
    assert stored.read_text() in told
