"""bench/recipes.py: what stands for a recipe in torchvision and timm, and the tables; without contenders' processes."""

from __future__ import annotations

import csv
import json
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
import torch
from images import write_folder
from modules import bench_script
from PIL import Image
from torchvision.transforms import v2

import gpupipe
from gpupipe.kernels import native
from gpupipe.tools.benchmark.contenders import load
from gpupipe.tools.benchmark.measurement import BenchSettings, Result, Round

BENCH = Path(__file__).parent.parent / "bench"
NAMES = ("plain", "rand_augment", "trivial_augment", "auto_augment", "jitter", "three_augment", "mix")
NAMES += ("resnet50_v2", "timm_a1", "timm_a2", "timm_a3", "deit3", "dino")
MIXING = ("mix", "resnet50_v2", "timm_a1", "timm_a2", "timm_a3", "deit3")
SIZE = 24

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs the C++ kernels")


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return bench_script(monkeypatch, "recipes")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("recipes") / "data", classes=3, per_class=4)


def test_behind_decode_makes_the_loaders_pixels(data: Path) -> None:
    settings = BenchSettings(str(data), batch_size=4, size=SIZE, workers=1, threads=1)
    made = []
    for way in ("ours", "behind_decode"):
        stream = load(f"recipe_loaders.{way}:plain").open(settings)
        made.append([(images.clone(), labels.clone()) for images, labels in islice(stream, 4)])
        stream.close()
    for (images, labels), (others, same) in zip(*made, strict=True):
        torch.testing.assert_close(images, others, rtol=0, atol=1e-5)
        assert torch.equal(labels, same)


@pytest.mark.parametrize("name", ["rand_augment", "mix", "dino"])
def test_the_loader_takes_the_recipes(data: Path, name: str) -> None:
    way = load(f"recipe_loaders.ours:{name}")
    assert getattr(way, "exact_passes", True) == (name != "mix")
    stream = way.open(BenchSettings(str(data), batch_size=4, size=SIZE, workers=1, threads=1))
    images, labels = next(iter(stream))
    stream.close()
    assert images.shape == (4, 3, SIZE, SIZE)
    assert labels.shape == (4,)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_in_torchvision(data: Path, name: str) -> None:
    from recipe_loaders.behind_decode import Decoded
    from recipe_loaders.in_torchvision import collate
    from recipe_loaders.table import RECIPES
    from recipe_loaders.torchvision_references import Views

    torch.manual_seed(0)
    recipe = RECIPES[name].recipe(SIZE)
    plain = Decoded(str(data), RECIPES["plain"].recipe(SIZE)).__getitems__(range(8))
    samples = Decoded(str(data), recipe).__getitems__(range(8))
    assert [label for _, label in samples] == [label for _, label in plain]
    changed = [not torch.equal(views[0], other[0]) for (views, _), (other, _) in zip(samples, plain, strict=True)]
    assert any(changed) == (name not in ("plain", "mix"))
    views, labels = collate(recipe)(samples)
    sides = [SIZE] * 2 + [96] * 8 if name == "dino" else [SIZE]
    assert [tuple(view.shape) for view in views] == [(8, 3, side, side) for side in sides]
    assert labels.tolist() == [label for _, label in samples]
    assert torch.equal(views[0], torch.stack([made[0] for made, _ in samples])) == (name not in MIXING)
    pictures = Views(recipe)(Image.open(next(data.glob("*/*"))).convert("RGB"))
    assert [tuple(picture.shape) for picture in pictures] == [(3, side, side) for side in sides]
    assert {picture.dtype for picture in pictures} == {torch.float32}


def test_transforms_have_the_recipes_settings() -> None:
    from recipe_loaders.in_torchvision import augmentation

    some = augmentation(gpupipe.RandAugment(3, 7, 20, "bilinear", 128))
    assert (some.num_ops, some.magnitude, some.num_magnitude_bins) == (3, 7, 20)
    assert some.interpolation.value == "bilinear"
    assert some.fill == [128.0, 128.0, 128.0]
    jitter = augmentation(gpupipe.ColorJitter(0.4, (0.5, 2.0), None, 0.1))
    assert tuple(jitter.brightness) == pytest.approx((0.6, 1.4))
    assert (tuple(jitter.contrast), jitter.saturation) == ((0.5, 2.0), None)
    assert tuple(jitter.hue) == pytest.approx((-0.1, 0.1))
    blur = augmentation(gpupipe.GaussianBlur(5, (0.3, 0.7)))
    assert (list(blur.kernel_size), list(blur.sigma)) == ([5, 5], [0.3, 0.7])
    assert augmentation(gpupipe.RandomSolarize(100, 0.3)).threshold == 100
    assert augmentation(gpupipe.RandomGrayscale(0.3)).p == 0.3
    three = augmentation(gpupipe.ThreeAugment())
    assert [type(one) for one in three.transforms] == [v2.RandomGrayscale, v2.RandomSolarize, v2.GaussianBlur]
    nearest = augmentation(gpupipe.TimmRandAugment(7, magnitude_std=0.5))
    assert [one.p for one in nearest.transforms] == [0.5, 0.5]
    assert [one.transforms[0].magnitude for one in nearest.transforms] == [21, 21]


@pytest.mark.trainers("timm")
@pytest.mark.parametrize("name", NAMES)
def test_timms_options(data: Path, name: str) -> None:
    from recipe_loaders.table import RECIPES

    settings = BenchSettings(str(data), batch_size=4, size=SIZE, workers=1, threads=1)
    way = load(f"recipe_loaders.timm_options:{name}")
    if RECIPES[name].timm_lacks:
        assert way.available(settings) == RECIPES[name].timm_lacks
        return
    assert way.available(settings) is None
    stream = way.open(settings)
    transforms = stream.loader.dataset.transform.transforms
    kinds = {type(one).__name__ for one in transforms}
    policy = {"AutoAugment"} if name in ("auto_augment", "three_augment", "deit3") else set()
    policy |= {"RandAugment"} if name in ("rand_augment", "timm_a1", "timm_a2", "timm_a3") else set()
    assert {"RandAugment", "AutoAugment"} & kinds == policy
    assert ("RandomErasing" in kinds) == (name == "rand_augment")
    assert ("ColorJitter" in kinds) == (name in ("three_augment", "deit3"))
    assert (stream.mixup is not None) == (name in MIXING)
    crop = RECIPES[name].recipe(SIZE).crop
    assert crop.interpolation in str(transforms[0])
    if name == "mix":
        images, labels = next(iter(stream))
        assert images.shape == (4, 3, SIZE, SIZE)
        assert labels.shape == (4,)


def check_known(reference: str) -> None:
    """Whether there is such a contender; timm's can't be imported without timm."""
    try:
        load(reference)
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise


def test_tables(script: ModuleType, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"ours": 300, "behind_decode": 150, "torchvision_references": 60}

    def measure(
        references: list[str], settings: BenchSettings, logs: Path, report: object, **_: object
    ) -> list[Result]:
        assert settings.size == (32 if settings.batch_size == 8 else 224)
        made = []
        for reference in references:
            check_known(reference)
            rate = rates.get(reference.partition(":")[0].rpartition(".")[2])
            rounds = [Round(rate * n, n, 1.0) for n in (1, 2, 3)] if rate else []
            made.append(Result(reference, None if rate else "has no options", rounds=rounds))
        return made

    monkeypatch.setattr("in_turn.measure", measure)
    options = [str(data), "--out", str(tmp_path), "--size", "32", "--batch-size", "8"]
    assert script.main([*options, "--only", "plain,jitter"]) == 0
    with open(tmp_path / "recipes.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["contender"] for row in rows] == list(script.WAYS) * 2
    assert [row["to_behind"] for row in rows[:4]] == ["2.0", "1.0", "0.4", ""]
    text = (tmp_path / "results.md").read_text()
    assert "| crop + flip, 32 px | 300 (300 - 300) | 150 (150 - 150) | 60 (60 - 60) | - | 2.00 |" in text
    assert "- crop + flip, timm: has no options" in text
    content = json.loads((tmp_path / "recipes.json").read_text())
    assert list(content["results"]) == ["plain", "jitter"]
    assert len(content["results"]["plain"][0]["rounds"]) == 3
    assert script.main([*options, "--only", "plain,none"]) == 1
    del rates["ours"]
    assert script.main([*options, "--only", "plain"]) == 1
