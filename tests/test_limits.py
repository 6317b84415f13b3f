"""What an image may cost: the same files are refused on every engine, with the C++ kernels and without them."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import ENGINES
from hostile import arithmetic, bad_kinds, good_kinds, scans, turned, with_size
from images import encode, picture
from PIL import ExifTags, Image as PillowImage

import gpupipe
from gpupipe.batch import Image, Images, Job
from gpupipe.decode import pixels
from gpupipe.decode.clips import read_clips
from gpupipe.decode.costs import check_costs
from gpupipe.decode.fetching import Fetched
from gpupipe.kernels import jpeg_costs, jpeg_costs_reference, native
from gpupipe.sources.headers import DAMAGED
from gpupipe.tools.packing.samples import damage
from gpupipe.tools.showing.survey import survey

IMAGE = picture(160, 240, 1)
RECIPE = replace(gpupipe.imagenet_eval(32, resize=32, dtype="uint8"), exif_orientation=True)
GOOD = encode(picture(80, 120, 2))
FILES = {
    "good": GOOD,
    "larger": encode(picture(200, 240, 1)),
    "turned": turned(picture(160, 190, 1), 6),
    "progressive": encode(IMAGE, progressive=True, subsampling=0),
    "cmyk": encode(IMAGE, mode="CMYK"),
    "gif": encode(IMAGE, "GIF", "P"),
    "png": encode(IMAGE, "PNG"),
    "jpeg": encode(IMAGE),
    "arithmetic": arithmetic(80, 120, bytes(range(7, 250, 3)) * 3),
    "scans": scans(picture(50, 70, 1), repeat=34),
}
# 160 x 240 pixels are 38,400, and of three channels 1,800 blocks.
SMALL = gpupipe.Limits(max_pixels=47_999, max_memory=300_000, max_work=9_000)
REASONS = {
    "larger": "it has 240 x 200 pixels, more than the 47,999 that are allowed",
    "turned": "it has 190 x 160 pixels, whose decoding takes 304,000 bytes of memory, more than the 300,000 that",
    "progressive": "it has 240 x 160 pixels, whose decoding takes 499,200 bytes of memory, more than",
    "cmyk": "takes 460,800 bytes",
    "gif": "takes 422,400 bytes",
    "png": "takes 422,400 bytes",
    "arithmetic": "whose decoding goes through 9,600 blocks in 1 scan, more than the 9,000 that are allowed",
    "scans": "it has 70 x 50 pixels in 102 scans, more than the 100 that are allowed",
}


def costs_of(*files: bytes) -> list[list[int]]:
    return jpeg_costs([np.frombuffer(data, np.uint8) for data in files]).tolist()


def refused(data: bytes, height: int, width: int, orientation: int = 1, field: Image | None = None) -> str:
    """Why an image of that size is refused by default, nothing of which is decoded."""
    source = gpupipe.open_source([(GOOD, 0)])
    images = Images([np.frombuffer(data, np.uint8)], np.array([[height, width, orientation]], np.int32))
    fetched = Fetched(source, Job(0, 0, np.arange(1), np.arange(1)), {"image": images}, {})
    check_costs(fetched, "image", field or Image())
    return fetched.failures[0].reason if fetched.failures else ""


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_refuse_the_same(engine: dict[str, object]) -> None:
    data = [(file, number) for number, file in enumerate(FILES.values())]
    options = {"device": "cpu", "limits": SMALL, "on_error": "skip", "max_bad": 1.0} | engine
    with gpupipe.Loader(data, RECIPE, 2, **options) as loader:
        labels = [label for _, some in loader for label in some.tolist()]
        reasons = {list(FILES)[bad.index]: bad.reason for bad in loader.bad_samples}
        remedies = {bad.remedy for bad in loader.bad_samples}
    assert reasons.keys() == REASONS.keys()
    assert [name for name, reason in reasons.items() if REASONS[name] not in reason] == []
    assert {list(FILES)[label] for label in labels} == {"good", "jpeg"}
    assert any("pass limits=gpupipe.Limits(max_memory=...)" in remedy for remedy in remedies)


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_what_is_refused_does_not_depend_on_the_kernels(cpu_path: str, engine: str) -> None:
    data = [(file, number) for number, file in enumerate(FILES.values())]
    options = {"engine": engine, "device": "cpu", "num_workers": 0, "on_error": "skip", "max_bad": 1.0}
    with gpupipe.Loader(data, RECIPE, 2, limits=SMALL, **options) as loader:
        assert sum(len(labels) for _, labels in loader) == len(FILES)
        assert {list(FILES)[bad.index] for bad in loader.bad_samples} == REASONS.keys()


def test_larger_limits_let_them_through() -> None:
    data = [(file, number) for number, file in enumerate(FILES.values())]
    limits = gpupipe.Limits(max_scans=102)
    with gpupipe.Loader(data, RECIPE, 2, limits=limits, engine="torch", device="cpu", num_workers=0) as loader:
        assert sum(len(labels) for _, labels in loader) == len(FILES)


def test_a_state_goes_on_with_other_limits() -> None:
    """What was refused may be the reason to go on with others."""
    data = [(FILES["scans"], 0), (GOOD, 1)]
    options = {"engine": "torch", "device": "cpu", "num_workers": 0}
    with gpupipe.Loader(data, RECIPE, 1, **options) as loader:
        with pytest.raises(gpupipe.SampleError, match=r"102 scans, .*pass limits=gpupipe.Limits\(max_scans=...\)"):
            next(iter(loader))
        state = loader.state_dict()
    with gpupipe.Loader(data, RECIPE, 1, limits=gpupipe.Limits(max_scans=102), **options) as loader:
        loader.load_state_dict(state)
        assert [labels.tolist() for _, labels in loader] == [[0], [1]]


PNG, JPEG = encode(IMAGE, "PNG"), encode(IMAGE)
PROGRESSIVE = {name: encode(IMAGE, progressive=True, subsampling=name) for name in (0, 2)}


@pytest.mark.parametrize(
    ("data", "size", "orientation"),
    [
        *[(JPEG, (10_000, 10_000), 1), (JPEG, (10_000, 10_000), 6), (JPEG, (13_300, 13_300), 1)],
        *[(PROGRESSIVE[2], (5_000, 20_000), 1), (PROGRESSIVE[2], (5_000, 20_000), 6)],
        *[(PROGRESSIVE[0], (5_000, 20_000), 1), (encode(IMAGE, mode="CMYK"), (10_000, 10_000), 6)],
        *[(PNG, (10_000, 10_000), 1), (encode(IMAGE, "TIFF"), (10_000, 10_000), 1)],
        *[(PNG, (4_096, 4_096), 1), (encode(IMAGE, "TIFF"), (8_192, 8_192), 1), (GOOD, (1, 1), 1)],
    ],
)
def test_photographs_and_panoramas_and_tiles_are_usual(data: bytes, size: tuple[int, int], orientation: int) -> None:
    file = with_size(data, *size) if data.startswith(b"\xff\xd8") else data
    assert refused(file, *size, orientation) == ""


def many_scans(side: int, count: int) -> bytes:
    """Progressive, gray, one scan of DC and then of nothing: 361 kB for 100 scans of 169 megapixels."""
    data = with_size(encode(IMAGE, mode="L", progressive=True), side, side)
    at = data.index(b"\xff\xda")
    header = data[at : at + 10]
    return data[:-2] + header * (count - 6) + data[-2:]


@pytest.mark.parametrize(
    ("data", "side", "orientation", "reason"),
    [
        (PNG, 13_000, 1, "1,859,000,000 bytes of memory"),
        (with_size(JPEG, 13_300, 13_300), 13_300, 6, "1,768,900,000 bytes of memory"),
        (many_scans(13_000, 100), 13_000, 1, "goes through 264,062,500 blocks in 100 scans"),
        (many_scans(300, 101), 300, 1, "it has 300 x 300 pixels in 101 scans"),
        (arithmetic(13_000, 13_000), 13_000, 1, "goes through 169,000,000 blocks in 1 scan"),
        (with_size(JPEG, 13_400, 13_400), 13_400, 1, "more than the 178,956,970 that are allowed"),
    ],
    ids=["png", "turned", "work", "scans", "arithmetic", "pixels"],
)
def test_what_takes_gigabytes_or_seconds_is_refused(data: bytes, side: int, orientation: int, reason: str) -> None:
    assert reason in refused(data, side, side, orientation)


def test_of_what_is_no_jpeg_its_kind_decides() -> None:
    """Where it has alpha over a background, or 32 bits a pixel, the whole of it is there more than twice."""
    over = Image(background=(0, 0, 0))
    alpha = encode(IMAGE, "PNG", "RGBA")
    assert not refused(alpha, 11_000, 11_000)
    assert "takes 2,178,000,000 bytes" in refused(alpha, 11_000, 11_000, field=over)
    assert not refused(PNG, 11_000, 11_000, field=over)
    assert "takes 2,178,000,000 bytes" in refused(encode(IMAGE, "TIFF", "F"), 11_000, 11_000)
    assert not refused(b"no image", 11_000, 11_000)


MEASURE = """
import io, re, sys
from dataclasses import replace
import numpy as np, torch
from PIL import Image
import gpupipe
torch.set_num_threads(1)
recipe = replace(gpupipe.imagenet_eval(32, resize=32, dtype="uint8"), exif_orientation=True)
side = 2000
ramp = (np.add.outer(np.arange(side), np.arange(side)) // 32 % 256).astype(np.uint8)
exif = Image.Exif()
exif[0x0112] = 6
image = Image.fromarray(np.dstack([ramp] * 3))
def encoded(kind, mode="RGB", **options):
    file = io.BytesIO()
    image.convert(mode).save(file, kind, **options)
    return file.getvalue()
files = {
    "turned": encoded("JPEG", exif=exif.tobytes()),
    "progressive": encoded("JPEG", progressive=True, subsampling=0),
    "cmyk": encoded("JPEG", "CMYK"),
    "png": encoded("PNG", compress_level=1),
}
def status(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
def run(data, engine):
    with gpupipe.Loader([(data, 0)], recipe, 1, engine=engine, device="cpu", num_workers=0) as loader:
        list(loader)
for engine in ("torch", "dali"):
    run(encoded("JPEG", quality=50), engine)
    for name, data in files.items():
        open("/proc/self/clear_refs", "w").write("5")
        before = status("VmRSS")
        run(data, engine)
        print(engine, name, status("VmHWM") - before)
"""


def test_no_engine_takes_more_memory_than_is_told() -> None:
    """Of 4 megapixels, the peak of a process for each."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True)
    if "clear_refs" in done.stderr:
        pytest.skip("the peak of a process can't be set back here")
    assert done.returncode == 0, done.stderr
    told = {"turned": 10, "progressive": 13, "cmyk": 12, "png": 11}
    taken = {tuple(line.split()[:2]): int(line.split()[2]) / 4e6 for line in done.stdout.splitlines()}
    assert len(taken) == 8
    assert {key: each for key, each in taken.items() if each > told[key[1]] + 1.5} == {}
    assert max(taken.values()) > 4


def test_costs_are_those_of_the_segments(cpu_path: str) -> None:
    """320 x 240 pixels, of 4:2:0 a chroma sample for four; libjpeg's usual script has ten scans."""
    image = picture(240, 320, 5)
    whole, half = 1200, 300
    usual = 2 * (whole + 2 * half) + 4 * whole + 4 * half
    found = costs_of(
        *(encode(image, mode="L"), encode(image, subsampling=0), encode(image, subsampling=2)),
        *(encode(image, subsampling=2, progressive=True), scans(image, 50), arithmetic(240, 320), PNG, b""),
    )
    sides = [240, 320]
    assert found == [
        *([1, *sides, 0, whole, 1], [3, *sides, 0, 3 * whole, 1], [3, *sides, 0, whole + 2 * half, 1]),
        *([3, *sides, whole + 2 * half, usual, 10], [3, *sides, 3 * whole, 150 * whole, 150]),
        *([1, *sides, 0, 64 * whole, 1], [0] * 6, [0] * 6),
    ]


@pytest.mark.skipif(native.library() is None, reason=f"without the C++ kernels: {native.problem()}")
def test_costs_in_python_are_the_same() -> None:
    kinds = [data for data in (good_kinds() | bad_kinds()).values() if data]
    rng = random.Random(3)
    files = []
    for _ in range(3000):
        data = bytearray(rng.choice(kinds))
        for _ in range(rng.randrange(6)):
            data[rng.randrange(len(data))] = rng.choice((0, 0xFF, 0xC4, 0xDA, rng.randrange(256)))
        files.append(np.frombuffer(bytes(data[: rng.randrange(len(data)) if rng.random() < 0.2 else None]), np.uint8))
    found = jpeg_costs(files)
    assert np.array_equal(found, jpeg_costs_reference(files))
    assert len(np.unique(found, axis=0)) > 100


def test_a_file_that_has_grown_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "as_rgb", lambda *_: pytest.fail("it was decoded"))
    large = np.frombuffer(encode(picture(300, 400), "GIF", "P"), np.uint8)
    with pytest.raises(pixels.DecodeError, match="it is 400 x 300 pixels, but 40 x 30 were expected"):
        pixels.by_pillow(large, 30, 40, False)


@pytest.mark.parametrize("mode", ["L", "1"])
def test_masks_are_limited(mode: str) -> None:
    fields = {"image": gpupipe.Image(), "mask": gpupipe.Mask()}
    data = [{"image": GOOD, "mask": encode(picture(side, 120), "PNG", mode)} for side in (80, 81)]
    limits = gpupipe.Limits(max_pixels=80 * 120)
    options = {"device": "cpu", "engine": "torch", "num_workers": 0, "limits": limits, "fields": fields}
    with gpupipe.Loader(data, RECIPE, 1, **options) as loader:
        iterator = iter(loader)
        assert next(iterator)["mask"].shape == (1, 32, 32)
        with pytest.raises(gpupipe.SampleError, match="'mask': it has 120 x 81 pixels, more than the 9,600"):
            next(iterator)


def test_frames_of_clips_are_limited(tmp_path: Path) -> None:
    frames = {"clip": gpupipe.Frames(clip=(2, 1)), "label": gpupipe.Scalar()}
    for name, side in {"a": 80, "b": 81}.items():
        (tmp_path / "all" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "all" / name / f"{number}.jpg").write_bytes(encode(picture(side, 120, number)))
    limits = gpupipe.Limits(max_pixels=80 * 120)
    options = {"device": "cpu", "engine": "torch", "num_workers": 0, "limits": limits, "fields": frames}
    with gpupipe.Loader(gpupipe.open_source(tmp_path, fields=frames), RECIPE, 1, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(gpupipe.SampleError, match="it has 120 x 81 pixels, more than the 9,600"):
            next(iterator)


def test_what_limits_can_be() -> None:
    assert pickle.loads(pickle.dumps(SMALL)) == SMALL
    for wrong in ({"max_pixels": -1}, {"max_memory": 1.5}, {"max_scans": 2**31}, {"max_work": None}):
        with pytest.raises(gpupipe.ConfigError, match=f"Limits: {next(iter(wrong))}="):
            gpupipe.Limits(**wrong)
    with pytest.raises(gpupipe.ConfigError, match=r"must be a gpupipe\.Limits"):
        gpupipe.Loader([(GOOD, 0)], RECIPE, limits=10**6)  # type: ignore[arg-type]
    with pytest.raises(gpupipe.ConfigError, match="without one a dataset does it itself"):
        gpupipe.Loader([(GOOD, 0)], None, limits=SMALL)


def test_pillows_own_limit_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = gpupipe.Limits(max_pixels=400_000_000)
    with pytest.raises(gpupipe.ConfigError, match=r"set PIL\.Image\.MAX_IMAGE_PIXELS = 200000000"):
        gpupipe.Loader([(GOOD, 0)], RECIPE, limits=limits)
    for own in (200_000_000, None):
        monkeypatch.setattr(PillowImage, "MAX_IMAGE_PIXELS", own)
        gpupipe.Loader([(GOOD, 0)], RECIPE, limits=limits, device="cpu", num_workers=0).close()


@pytest.mark.filterwarnings("ignore:Image size")  # Pillow's own, of more than half of its limit
def test_who_allows_pillow_less_is_not_asked_to_set_limits(cpu_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PillowImage, "MAX_IMAGE_PIXELS", 80 * 120 / 2)
    files = [(GOOD, 0), (FILES["jpeg"], 1)]
    with gpupipe.Loader(files, RECIPE, 1, device="cpu", num_workers=0) as loader:
        batches = iter(loader)
        assert next(batches)[1].tolist() == [0]
        with pytest.raises(gpupipe.SampleError, match="it has 240 x 160 pixels, more than the 9,600 that are allowed"):
            next(batches)
    assert len(list(gpupipe.Loader([0, 1], batch_size=1, num_workers=0))) == 2


@pytest.mark.parametrize("limit", [900, 9_000])  # Pillow's error, and a program's that makes one of its warning
def test_what_pillow_would_not_open_is_indexed_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """By the usual limits it is refused, by larger ones it is read, by the same index."""
    (tmp_path / "all").mkdir()
    for name, tags in (("0.png", {}), ("1.tif", {}), ("2.tif", {ExifTags.Base.Orientation: 6})):
        PillowImage.fromarray(picture(80, 120, 2)).save(tmp_path / "all" / name, **({"tiffinfo": tags} if tags else {}))
    monkeypatch.setattr(PillowImage, "MAX_IMAGE_PIXELS", limit)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PillowImage.DecompressionBombWarning)
        source = gpupipe.open_source(tmp_path)
        assert source.fetch(np.arange(3))["image"].sizes[:, :2].tolist() == [[80, 120], [80, 120], [120, 80]]
    with gpupipe.Loader(tmp_path, RECIPE, 1, device="cpu", num_workers=0) as loader:
        batches = iter(loader)
        for sides in ("120 x 80", "120 x 80", "80 x 120") if limit < 1_000 else ():
            with pytest.raises(gpupipe.SampleError, match=f"it has {sides} pixels, more than the 1,800 that are"):
                next(batches)
    monkeypatch.setattr(PillowImage, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr("gpupipe.sources.headers.probe", None)  # the index has the sizes
    with gpupipe.Loader(tmp_path, RECIPE, 3, device="cpu", num_workers=0) as loader:
        images = next(iter(loader))[0]
    assert torch.equal(images[0], images[1])
    turned_by_hand = torch.rot90(images[0], -1, (1, 2)).int()
    assert (images[2].int() - turned_by_hand).abs().max() <= 2  # resized in the other direction first


@pytest.mark.parametrize("options", ENGINES)
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_what_can_be_read_since_it_was_indexed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any]
) -> None:
    """As what was beyond Pillow's limit, and is below a higher one: nothing is made of a size that nobody knows."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / f"0.{kind}").write_bytes(FILES[kind])
    with monkeypatch.context() as patched:
        patched.setattr("gpupipe.sources.folder.probe", lambda read, size: DAMAGED)
        source = gpupipe.open_source(tmp_path)
    told = "it could not be read when it was indexed, and can be now"
    loader = gpupipe.Loader(tmp_path, RECIPE, 1, device="cpu", **options)
    with loader, pytest.raises(gpupipe.SampleError, match=f"{told}; index it again: gpupipe index --rebuild"):
        next(iter(loader))
    assert damage(source, 0) == told
    assert survey(source).bad == {0: told}


class Film:
    """A video that says how large its frames are."""

    rate = 30.0

    def __init__(self, *sides: int) -> None:
        self.sides = sides

    def __len__(self) -> int:
        return 9

    def read(self, numbers: list[int]) -> list[np.ndarray]:
        if self.sides[0] * self.sides[1] > 9_600:
            pytest.fail("it was decoded")
        return [np.zeros((*self.sides, 3), np.uint8) for _ in numbers]


def test_a_videos_frames_are_limited_before_they_are_read() -> None:
    field = gpupipe.Frames(clip=(2, 1))
    source = gpupipe.open_source([(GOOD, 0)])
    rows = np.arange(2)
    fetched = Fetched(source, Job(0, 0, rows, rows, limits=gpupipe.Limits(max_pixels=9_600)), {}, {})
    read_clips(fetched, "image", field, [Film(80, 120), Film(81, 120)], map)
    assert list(fetched.failures) == [1]
    assert "of its frames each: it has 120 x 81 pixels, more than the 9,600 that" in fetched.failures[1].reason
