"""Both engines against each other, against torchvision's own pipeline and against Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import ADOBE, without, ycck
from images import encode, picture
from pillow_reference import render_reference
from torchvision.datasets import ImageFolder
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

import gpupipe
from gpupipe.batch import Job
from gpupipe.decode.dali.engine import DaliEngine
from gpupipe.decode.dali.feed import visible_part
from gpupipe.plan import cropping
from gpupipe.sources import open_source

LEVELS = (gpupipe.imagenet_eval().normalize.std, 255)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photo-like, odd-shaped, tiny, gray, CMYK, YCCK, progressive, PNG and WebP images in two classes."""
    root = tmp_path_factory.mktemp("zoo")
    kinds = {
        "photo_444.jpg": encode(picture(375, 500, 1), quality=92, subsampling=0),
        "photo_420.jpg": encode(picture(500, 333, 2), quality=85, subsampling=2),
        "photo_422.jpg": encode(picture(301, 299, 3), quality=90, subsampling=1),
        "progressive.jpg": encode(picture(256, 480, 4), progressive=True, quality=80),
        "gray.jpg": encode(picture(280, 280, 5), mode="L", quality=90),
        "cmyk.jpg": encode(picture(300, 260, 6), mode="CMYK", quality=95),
        "cmyk_without_marker.jpg": without(encode(picture(300, 260, 6), mode="CMYK", quality=95), ADOBE),
        "ycck.jpg": ycck(picture(300, 260, 6)),
        "ycck_without_marker.jpg": without(ycck(picture(300, 260, 6)), ADOBE),
        "one.jpg": encode(picture(1, 1, 7), quality=95),
        "line.jpg": encode(picture(7, 3000, 8), quality=90),
        "column.jpg": encode(picture(3000, 7, 9), quality=90),
        "odd.jpg": encode(picture(33, 47, 10), quality=90),
        "large.jpg": encode(picture(1200, 900, 11), quality=80),
        "rgb.png": encode(picture(200, 320, 12), kind="PNG"),
        "rgba.png": encode(picture(150, 150, 13), kind="PNG", mode="RGBA"),
        "palette.png": encode(picture(180, 220, 14), kind="PNG", mode="P"),
        "gray.png": encode(picture(240, 130, 15), kind="PNG", mode="L"),
        "lossy.webp": encode(picture(210, 260, 16), kind="WEBP", quality=85),
    }
    for number, (name, data) in enumerate(kinds.items()):
        (root / f"class_{number % 2}").mkdir(exist_ok=True)
        (root / f"class_{number % 2}" / name).write_bytes(data)
    return root


def epoch(data, engine, recipe, batch_size=8, **options):
    with gpupipe.Loader(
        data, recipe, batch_size, seed=3, engine=engine, device="cpu", num_workers=1, **options
    ) as loader:
        pairs = [(images.clone(), labels.clone()) for images, labels in loader]
        return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])


def levels(some: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Absolute difference in levels of 0 to 255, of normalized or of uint8 images."""
    difference = (some.double() - other.double()).abs()
    if some.dtype != torch.uint8:
        difference *= torch.tensor(gpupipe.imagenet_eval().normalize.std).double().view(3, 1, 1) * 255
    return difference


def assert_close(difference: torch.Tensor, mean: float, high: float) -> None:
    assert difference.mean() <= mean
    assert np.quantile(difference.numpy(), 0.999) <= high


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_engines_agree_on_eval(zoo, dtype):
    recipe = gpupipe.imagenet_eval(dtype=dtype)
    (some, labels), (other, other_labels) = epoch(zoo, "torch", recipe), epoch(zoo, "dali", recipe)
    assert torch.equal(labels, other_labels)
    assert_close(levels(some, other), 0.5, 2)


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_eval_is_torchvisions_own_pipeline(zoo, engine):
    images, labels = epoch(zoo, engine, gpupipe.imagenet_eval())
    normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    truth = ImageFolder(zoo, Compose([Resize(256, antialias=True), CenterCrop(224), ToTensor(), normalize]))
    assert labels.tolist() == truth.targets
    assert_close(levels(images, torch.stack([image for image, _ in truth])), 0.5, 2)


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize(
    "crop",
    [
        gpupipe.RandomResizedCrop(224),
        gpupipe.RandomResizedCrop(224, interpolation="random"),
        gpupipe.RandomCrop((200, 150), resize=(60, 300), place="top_left", fill=(9, 200, 30)),
        gpupipe.RandomCrop(280, padding=300, fill=50),
        gpupipe.RandomCrop(280, padding=300, padding_mode="reflect"),
        gpupipe.RandomCrop((200, 150), resize=(60, 300), padding=7, padding_mode="symmetric"),
        gpupipe.RandomCrop(220, padding=90, padding_mode="edge"),
        gpupipe.ScaleJitter((220, 160), (0.2, 1.9), fill=255, interpolation="bicubic"),
        gpupipe.LetterBox((120, 200)),
    ],
    ids=repr,
)
def test_random_crops_are_pillows(zoo, engine, crop):
    recipe = gpupipe.Recipe((crop, gpupipe.RandomHorizontalFlip()), dtype="uint8")
    images, _ = epoch(zoo, engine, recipe, shuffle=True)
    with gpupipe.Loader(zoo, recipe, 32, shuffle=True, seed=3, num_workers=0, device="cpu") as loader:
        indices = loader.batch_indices(0)
        source = loader.dataset
    column = source.fetch(indices)["image"]
    planned = cropping(recipe, 3, 0, np.arange(len(indices)), column.sizes[:, 0], column.sizes[:, 1])
    for row, index in enumerate(indices):
        truth = render_reference(column.data[row].tobytes(), planned.row(row))
        difference = levels(images[row], torch.from_numpy(truth.copy()).permute(2, 0, 1))
        assert difference.mean() <= 0.5, source.location(int(index))


def test_engines_agree_on_random_crops(zoo):
    recipe = gpupipe.imagenet_train(128)
    (some, labels), (other, other_labels) = (epoch(zoo, engine, recipe, shuffle=True) for engine in ("torch", "dali"))
    assert torch.equal(labels, other_labels)
    assert_close(levels(some, other), 0.5, 2)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_an_option(tmp_path, orientation):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "a").mkdir()
    upright = picture(120, 200, orientation)
    (tmp_path / "a" / "turned.jpg").write_bytes(encode(upright, quality=95, exif=exif))
    ignored, turned = {}, {}
    for engine in ("torch", "dali"):
        ignored[engine], _ = epoch(tmp_path, engine, gpupipe.imagenet_eval(96, dtype="uint8"), batch_size=1)
        turned[engine], _ = epoch(
            tmp_path, engine, gpupipe.imagenet_eval(96, dtype="uint8", exif_orientation=True), batch_size=1
        )
    encoded = (tmp_path / "a" / "turned.jpg").read_bytes()
    size = (120, 200) if orientation < 5 else (200, 120)
    for exif_on, images in ((False, ignored), (True, turned)):
        height, width = size if exif_on else (120, 200)
        recipe = gpupipe.imagenet_eval(96, dtype="uint8")
        planned = cropping(recipe, 0, 0, np.array([0]), np.array([height], np.int32), np.array([width], np.int32))
        truth = torch.from_numpy(render_reference(encoded, planned, exif_on).copy()).permute(2, 0, 1)
        for engine in ("torch", "dali"):
            assert_close(levels(images[engine][0], truth), 0.5, 2)
    if orientation > 1:
        assert levels(ignored["torch"], turned["torch"]).mean() > 5


class Listed(list):
    """A user's dataset of (encoded bytes, label)."""


@pytest.mark.parametrize("as_dataset", [False, True])
def test_tiffs_are_upright_on_every_engine(tmp_path, as_dataset):
    """Pillow, and so torchvision, turns TIFFs by their tag whether it is asked to or not."""
    from PIL import Image

    (tmp_path / "a").mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        encoded = encode(picture(90, 140, 3), kind="TIFF", exif=exif)
        (tmp_path / "a" / f"{orientation}.TIF").write_bytes(encoded)
    files = sorted(tmp_path.glob("a/*.TIF"))
    data = Listed((file.read_bytes(), 0) for file in files) if as_dataset else tmp_path
    truth = ImageFolder(tmp_path, Compose([Resize(64, antialias=True), CenterCrop(64), ToTensor()]))
    for engine in ("torch", "dali"):
        images, _ = epoch(data, engine, gpupipe.imagenet_eval(64, resize=64, dtype="uint8"))
        assert_close((images / 255 - torch.stack([image for image, _ in truth])).abs() * 255, 0.5, 2)


@pytest.mark.parametrize(
    "recipe", [gpupipe.imagenet_eval(64, dtype="uint8"), gpupipe.imagenet_train(64, dtype="uint8")]
)
def test_full_decode_gives_the_same_as_crop_decode(zoo, recipe):
    """The graph that a GPU runs by default, on the CPU."""
    source = open_source(zoo)
    job = Job(3, 0, np.arange(len(source)), np.arange(len(source)))
    batches = []
    for crop_decode in (True, False):
        engine = DaliEngine(
            source, (recipe,), torch.device("cpu"), len(source), 1, 1, gpupipe.Decoders(crop_decode=crop_decode)
        )
        (batch,) = engine.stream([job])
        batches.append(batch.columns["image"][0].clone())
        assert all("cmyk" in source.key(row) or "ycck" in source.key(row) for row in batch.failures)  # the CPU's
        engine.close()
    assert torch.equal(*batches)


def test_visible_part_covers_what_the_filter_reads():
    """Resizing the visible part alone gives what resizing everything gives."""
    from PIL import Image

    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop((40, 30), 64),), dtype="uint8")
    for seed, (height, width) in enumerate([(300, 500), (64, 64), (70, 300), (500, 65), (31, 33), (1000, 999)]):
        pixels = picture(height, width, seed)
        planned = cropping(recipe, 0, 0, np.array([0]), np.array([height], np.int32), np.array([width], np.int32))
        windows, starts, ends = visible_part(planned)
        top, left, tall, wide = windows[0]
        part = Image.fromarray(pixels[top : top + tall, left : left + wide])
        (y0, x0), (y1, x1) = starts[0].tolist(), ends[0].tolist()
        box = (x0, y0, min(x1, float(wide)), min(y1, float(tall)))
        resized = np.asarray(part.resize((30, 40), Image.Resampling.BILINEAR, box=box)).astype(int)
        truth = render_reference(encode(pixels, kind="PNG"), planned).astype(int)
        assert np.abs(resized - truth).max() <= 1
        assert tall * wide < height * width or min(height, width) < 80
