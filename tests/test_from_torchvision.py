"""Recipes from torchvision's transforms: their pixels, their draws, and what is refused by name."""

from __future__ import annotations

import enum
import inspect
import io
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture
from PIL import Image, ImageFilter
from programs import FixedSizeCrop, GaussianBlur, PadIfSmaller, RandomCutMix, RandomMixUp, Solarization
from scipy import stats
from torch.utils.data import default_collate
from torchvision import models, transforms as v1, tv_tensors
from torchvision.transforms import _presets, v2

import gpupipe
from gpupipe.kernels import Op
from gpupipe.plan import augmentation, cropping, erasing, follow_boxes, follow_mask, mixing
from gpupipe.recipe.translation.torchvision import READERS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZE = gpupipe.Normalize(MEAN, STD)
SIZES = ((300, 400), (401, 300), (257, 333), (90, 400), (64, 64), (90, 61))
FILES = [encode(picture(height, width, seed), quality=92) for seed, (height, width) in enumerate(SIZES)]
CROP = (v2.Resize(72), v2.CenterCrop(64))
FLOATS = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True))

translated = gpupipe.Recipe.from_torchvision


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB")


def pixels(transform: Any, engine: str = "torch", files: list[bytes] = FILES) -> torch.Tensor:
    recipe, workers = translated(transform), 0 if engine == "torch" else 1
    data = Numbered(len(files), files)
    with gpupipe.Loader(data, recipe, len(files), num_workers=workers, device="cpu", engine=engine) as loader:
        return next(iter(loader))[0].clone()


def levels(images: torch.Tensor, normalized: bool) -> torch.Tensor:
    """As levels from 0 to 255, of normalized or other images."""
    if images.dtype == torch.uint8:
        return images.double()
    mean, std = (torch.tensor(numbers).double().view(3, 1, 1) for numbers in (MEAN, STD))
    floats = images.double()
    return 255 * (floats * std + mean if normalized else floats)


# What they become.


def test_a_training_transform() -> None:
    for lib in (v1, v2):
        convert = (v1.ToTensor(),) if lib is v1 else FLOATS
        transform = lib.Compose(
            [
                lib.RandomResizedCrop((96, 80), (0.2, 1), (0.5, 2), v1.InterpolationMode.BICUBIC),
                lib.RandomHorizontalFlip(0.3),
                lib.RandomApply([lib.ColorJitter(0.4, (0.5, 1.1), 0.3, 0.1)], 0.8),
                lib.RandomChoice([lib.RandomGrayscale(0.2), lib.GaussianBlur(5, 0.7)]),
                lib.Compose([lib.RandomSolarize(100, 0.1), lib.RandomInvert(0.4)]),
                lib.RandAugment(3, 7, 11, v1.InterpolationMode.BILINEAR, [9.0]),
                *convert,
                lib.Normalize(MEAN, STD),
                lib.RandomErasing(0.3, (0.1, 0.2), (0.5, 1.5), "random"),
            ]
        )
        assert translated(transform) == gpupipe.Recipe(
            (
                gpupipe.RandomResizedCrop((96, 80), (0.2, 1), (0.5, 2), "bicubic"),
                gpupipe.RandomHorizontalFlip(0.3),
                gpupipe.RandomApply((gpupipe.ColorJitter(0.4, (0.5, 1.1), 0.3, 0.1),), 0.8),
                gpupipe.RandomChoice((gpupipe.RandomGrayscale(0.2), gpupipe.GaussianBlur(5, 0.7))),
                gpupipe.RandomSolarize(100, 0.1),
                gpupipe.RandomInvert(0.4),
                gpupipe.RandAugment(3, 7, 11, "bilinear", 9),
                NORMALIZE,
                gpupipe.RandomErasing(0.3, (0.1, 0.2), (0.5, 1.5), "random"),
            )
        )


TRAIN = gpupipe.RandomResizedCrop(32)
TO_UINT8 = v2.PILToTensor()
HALF = v2.ToDtype(torch.float16, scale=True)
FIRST = v2.RandomResizedCrop(32)
NEAREST = v1.InterpolationMode.NEAREST


@pytest.mark.parametrize(
    ("transforms", "operations", "dtype"),
    [
        ([FIRST], (), "uint8"),
        ([FIRST, TO_UINT8], (), "uint8"),
        ([v2.ToImage(), FIRST, v2.ToPureTensor()], (), "uint8"),
        ([FIRST, v1.ToTensor()], (), "float32"),
        ([FIRST, TO_UINT8, v1.ConvertImageDtype(torch.float32)], (), "float32"),
        ([FIRST, v2.ToDtype(torch.float32, scale=True)], (), "float32"),  # of tensors, as its docs' first example
        ([FIRST, TO_UINT8, HALF], (), "float16"),
        ([FIRST, *FLOATS, v2.ToDtype(torch.bfloat16)], (), "bfloat16"),
        ([v2.ToImage(), FIRST, v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, True)], (), "float32"),
        ([TO_UINT8, FIRST, v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, True)], (), "uint8"),
        ([FIRST, *FLOATS, v1.Normalize([0.5], [0.25])], (gpupipe.Normalize((0.5,) * 3, (0.25,) * 3),), "float32"),
        ([FIRST, v2.RGB(), v2.Identity(), torch.nn.Identity(), TO_UINT8], (), "uint8"),
        ([FIRST, *FLOATS, v2.RandomHorizontalFlip(0.2)], (gpupipe.RandomHorizontalFlip(0.2),), "float32"),
        ([FIRST, *FLOATS, v2.RandomSolarize(0.5)], (gpupipe.RandomSolarize(127.5),), "float32"),
        ([FIRST, TO_UINT8, v2.RandomSolarize(99)], (gpupipe.RandomSolarize(99),), "uint8"),
        ([FIRST, v2.RandomChoice([v2.RandomGrayscale(), v2.GaussianBlur(3)], p=[1, 3])],
         (gpupipe.RandomChoice((gpupipe.RandomGrayscale(), gpupipe.GaussianBlur(3)), (0.25, 0.75)),), "uint8"),
        ([FIRST, v1.RandomChoice([v1.Compose([v1.RandomGrayscale(), v1.RandomInvert()]), v1.RandomInvert(1.0)])],
         (gpupipe.RandomChoice((
             gpupipe.RandomApply((gpupipe.RandomGrayscale(), gpupipe.RandomInvert()), 1.0),
             gpupipe.RandomInvert(1.0))),), "uint8"),
        ([FIRST, v1.RandomPosterize(4, 0.3), v2.RandomAutocontrast(0.1), v2.RandomEqualize(0.2), TO_UINT8],
         (gpupipe.RandomPosterize(4, 0.3), gpupipe.RandomAutocontrast(0.1), gpupipe.RandomEqualize(0.2)), "uint8"),
        ([FIRST, v2.RandomPhotometricDistort(hue=(-0.1, 0.2), p=0.3), v2.RandomChannelPermutation(), TO_UINT8],
         (gpupipe.RandomPhotometricDistort(hue=(-0.1, 0.2), p=0.3), gpupipe.RandomChannelPermutation()), "uint8"),
        ([FIRST, TO_UINT8, v2.GaussianNoise(0.1, 0.2)], (gpupipe.GaussianNoise(0.1, 0.2),), "uint8"),
        ([FIRST, v2.RandomAdjustSharpness(1.7, 0.4)], (gpupipe.RandomAdjustSharpness(1.7, 0.4),), "uint8"),
        ([FIRST, *FLOATS, v1.RandomVerticalFlip(0.3), v2.RandomHorizontalFlip(0.2)],
         (gpupipe.RandomHorizontalFlip(0.2), gpupipe.RandomVerticalFlip(0.3)), "float32"),
        ([FIRST, v1.RandomRotation(5), v2.RandomRotation([1, 2], v2.InterpolationMode.BILINEAR, fill=0)],
         (gpupipe.RandomRotation(5), gpupipe.RandomRotation((1, 2), "bilinear")), "uint8"),
        ([FIRST, v2.RandomApply([v1.RandomAffine(5, (0.1, 0.2), (0.5, 2), (1, 2, 3, 4), fill=(7, 8, 9))])],
         (gpupipe.RandomApply((
             gpupipe.RandomAffine(5, (0.1, 0.2), (0.5, 2), (1, 2, 3, 4), fill=(7, 8, 9)),)),), "uint8"),
        ([FIRST, v2.RandomPerspective(0.3, 0.4, fill=5), v1.RandomPerspective(interpolation=NEAREST, fill=5)],
         (gpupipe.RandomPerspective(0.3, 0.4, fill=5), gpupipe.RandomPerspective(interpolation="nearest", fill=5)),
         "uint8"),
        ([FIRST, v2.ElasticTransform([9.0, 3.0], 2.0, NEAREST, 7), v1.ElasticTransform(fill=7)],
         (gpupipe.ElasticTransform((9, 3), 2, "nearest", 7), gpupipe.ElasticTransform(fill=7)), "uint8"),
        ([FIRST, v2.AugMix(5, 4, 2, all_ops=False, fill=7)], (gpupipe.AugMix(5, 4, 2, False, fill=7),), "uint8"),
        ([FIRST, v1.AugMix(chain_depth=0)], (gpupipe.AugMix(),), "uint8"),
        ([FIRST, v2.AutoAugment(v1.AutoAugmentPolicy.SVHN, 2, 7)],
         (gpupipe.AutoAugment("svhn", "bilinear", 7),), "uint8"),
        ([FIRST, v1.TrivialAugmentWide(9, fill=(1, 2, 3))], (gpupipe.TrivialAugmentWide(9, fill=(1, 2, 3)),), "uint8"),
        ([FIRST, *FLOATS, v2.RandomErasing(value=[1, 2, 3]), v2.Normalize([0, 1, 1], [2, 1, 4])],
         (gpupipe.Normalize((0, 1, 1), (2, 1, 4)), gpupipe.RandomErasing(value=(0.5, 1, 0.5))), "float32"),
        ([FIRST, *FLOATS, v2.RandomErasing(inplace=True)], (gpupipe.RandomErasing(),), "float32"),
    ],
)  # fmt: skip
def test_what_transforms_become(transforms: list[Any], operations: tuple[Any, ...], dtype: str) -> None:
    expected = gpupipe.Recipe((TRAIN, *operations), dtype=dtype)
    for whole in (v2.Compose(transforms), v1.Compose(transforms)):
        assert translated(whole) == expected
    if all(isinstance(transform, torch.nn.Module) for transform in transforms):
        assert translated(torch.nn.Sequential(*transforms)) == expected


@pytest.mark.parametrize(
    ("transforms", "crop"),
    [
        ([v2.Resize(72), v2.CenterCrop((64, 60))], gpupipe.ResizeCenterCrop((64, 60), 72)),
        ([v2.Resize([72], 3), v1.CenterCrop(64)], gpupipe.ResizeCenterCrop(64, 72, "bicubic")),
        ([v1.Resize((72, 99)), v1.CenterCrop((64, 90))], gpupipe.ResizeCenterCrop((64, 90), (72, 99))),
        ([v1.Resize((48, 56))], gpupipe.ResizeCenterCrop((48, 56), (48, 56))),
        ([v1.Resize((48, 56)), v1.RandomGrayscale(0.0)], gpupipe.ResizeCenterCrop((48, 56), (48, 56))),
        ([v1.Resize(30), v1.CenterCrop(32)], gpupipe.ResizeCenterCrop(32, 30, fill=0)),
        ([v1.Resize((32, 31)), v1.CenterCrop(32)], gpupipe.ResizeCenterCrop(32, (32, 31), fill=0)),
        ([v2.Resize(32, max_size=50), v2.CenterCrop(20)], gpupipe.ResizeCenterCrop(20, 32, max_size=50, fill=0)),
        ([v2.Resize(None, max_size=50), v2.CenterCrop(50)], gpupipe.ResizeCenterCrop(50, None, max_size=50, fill=0)),
        ([v1.Resize(32, max_size=40)], gpupipe.Resize(32, 40)),
        ([v2.Resize(None, max_size=40), v2.RandomGrayscale(0.0)], gpupipe.Resize(None, 40)),
        (
            [v2.ScaleJitter((32, 32), (0.5, 1.5)), FixedSizeCrop((32, 32), (1.0, 2.5, 3.0)), v1.RandomHorizontalFlip()],
            gpupipe.ScaleJitter(32, (0.5, 1.5), (1, 2, 3)),
        ),
        (
            [v2.RandomResize(20, 60), v1.RandomHorizontalFlip(), PadIfSmaller(32, 7), v2.RandomCrop(32)],
            gpupipe.RandomCrop(32, resize=(20, 60), place="top_left", fill=7),
        ),
        ([PadIfSmaller(32), v2.RandomCrop(32)], gpupipe.RandomCrop(32, place="top_left")),
        ([v2.RandomShortestSize([20, 30], 40, "bicubic")], gpupipe.Resize((20, 30), 40, "bicubic")),
        ([v2.RandomShortestSize(20, 40)], gpupipe.Resize((20,), 40)),
        ([v1.RandomCrop(32, padding=4)], gpupipe.RandomCrop(32, padding=4, pad_if_needed=False)),
        (
            [v2.RandomCrop(32, padding=4, fill=[9], pad_if_needed=True)],
            gpupipe.RandomCrop(32, padding=4, fill=9),
        ),
        (
            [v2.Pad(2, (1, 2, 3)), v2.RandomCrop((32, 30))],
            gpupipe.RandomCrop((32, 30), padding=2, fill=(1, 2, 3), pad_if_needed=False),
        ),
        ([v2.Pad([3, 3]), v2.RandomCrop(32, 4)], gpupipe.RandomCrop(32, padding=7, pad_if_needed=False)),
        (
            [v1.RandomCrop(32, 4, padding_mode="reflect")],
            gpupipe.RandomCrop(32, padding=4, padding_mode="reflect", pad_if_needed=False),
        ),
        (
            [v2.Pad(2, padding_mode="symmetric"), v2.RandomCrop(32)],
            gpupipe.RandomCrop(32, padding=2, padding_mode="symmetric", pad_if_needed=False),
        ),
        (
            [v2.Pad(2, padding_mode="edge"), v2.RandomCrop(32, 4, padding_mode="edge")],
            gpupipe.RandomCrop(32, padding=6, padding_mode="edge", pad_if_needed=False),
        ),
        (
            [v2.PILToTensor(), v2.RandomCrop(32, 4, fill={torch.Tensor: 9, tv_tensors.Image: 8, "others": 7})],
            gpupipe.RandomCrop(32, padding=4, fill=9, pad_if_needed=False),
        ),
        ([v2.RandomResize(20, 60), v2.RandomCrop(32)], gpupipe.RandomCrop(32, resize=(20, 60), pad_if_needed=False)),
        ([v2.RandomResize(28, 60), v2.RandomCrop(32, 2)], gpupipe.RandomCrop(32, resize=(28, 60), padding=2)),
        ([v2.Resize(40, 3), v2.RandomCrop(32)], gpupipe.RandomCrop(32, resize=40, interpolation="bicubic")),
        (
            [
                *(v2.RandomResize(20, 80), v2.RandomHorizontalFlip(0.0)),
                v2.RandomCrop(48, pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 7}),
            ],
            gpupipe.RandomCrop(48, resize=(20, 80), fill=7),
        ),
        ([v2.RandomIoUCrop(trials=9), v2.Resize((30, 40))], gpupipe.RandomIoUCrop((30, 40), trials=9)),
        (
            [
                v2.ToImage(),
                v2.RandomZoomOut({tv_tensors.Image: (1, 2, 3), "others": 0}, (2, 3), 0.3),
                v2.RandomIoUCrop(0.2, 0.9, 0.4, 3, [0.5, 1.0]),
                v2.RandomHorizontalFlip(0.0),
                v2.Resize((30, 40)),
            ],
            gpupipe.RandomIoUCrop((30, 40), (2, 3), 0.3, 0.2, 0.9, 0.4, 3, (0.5, 1), fill=(1, 2, 3)),
        ),
    ],
)
def test_resized_images(transforms: list[Any], crop: Any) -> None:
    assert translated(v2.Compose(transforms)).crop == crop


# Evaluation has the original's pixels.


class Preset:
    """torchvision's references/classification/presets.py, for training and evaluation."""

    def __init__(self, train: bool, backend: str, lib: Any, policy: str | None = None) -> None:
        transforms: list[Any] = [v1.PILToTensor()] if backend == "tensor" else []
        if train:
            transforms += [lib.RandomResizedCrop(64, antialias=True), lib.RandomHorizontalFlip(0.5)]
            if policy == "ra":
                transforms.append(lib.RandAugment(interpolation=v1.InterpolationMode.BILINEAR, magnitude=9))
            elif policy == "ta_wide":
                transforms.append(lib.TrivialAugmentWide(interpolation=v1.InterpolationMode.BILINEAR))
            elif policy is not None:
                transforms.append(lib.AutoAugment(v1.AutoAugmentPolicy(policy), v1.InterpolationMode.BILINEAR))
        else:
            transforms += [lib.Resize(72, antialias=True), lib.CenterCrop(64)]
        transforms += [v1.PILToTensor()] if backend == "pil" else []
        to_float = v2.ToDtype(torch.float, scale=True) if lib is v2 else v1.ConvertImageDtype(torch.float)
        transforms += [to_float, lib.Normalize(mean=MEAN, std=STD)]
        transforms += [lib.RandomErasing(p=0.1)] if train else []
        transforms += [v2.ToPureTensor()] if lib is v2 else []
        self.transforms = lib.Compose(transforms)

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


@pytest.mark.parametrize("lib", [v1, v2])
@pytest.mark.parametrize("backend", ["pil", "tensor"])
def test_the_presets_of_the_references_for_training(lib: Any, backend: str) -> None:
    policies = {
        None: (),
        "ra": (gpupipe.RandAugment(interpolation="bilinear"),),
        "ta_wide": (gpupipe.TrivialAugmentWide(interpolation="bilinear"),),
        "imagenet": (gpupipe.AutoAugment(interpolation="bilinear"),),
    }
    for name, policy in policies.items():
        operations = (gpupipe.RandomHorizontalFlip(), *policy, NORMALIZE, gpupipe.RandomErasing(0.1))
        expected = gpupipe.Recipe((gpupipe.RandomResizedCrop(64), *operations))
        assert translated(Preset(True, backend, lib, name)) == expected


EVALUATIONS = {
    "references": Preset(False, "pil", v1),
    "references v2": Preset(False, "pil", v2),
    "resnet50": models.ResNet50_Weights.IMAGENET1K_V1.transforms(),
    "resnet50 v2": models.ResNet50_Weights.IMAGENET1K_V2.transforms(),
    "inception": models.Inception_V3_Weights.DEFAULT.transforms(),
    "efficientnet": models.EfficientNet_B0_Weights.DEFAULT.transforms(),
    "swag": models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1.transforms(),
    "uint8": v1.Compose([v1.Resize(72), v1.CenterCrop(64), v1.PILToTensor()]),
    "floats": v2.Compose([v2.Resize(80, v2.InterpolationMode.BICUBIC), v2.CenterCrop((70, 80)), *FLOATS]),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_have_the_originals_pixels(name: str) -> None:
    transform = EVALUATIONS[name]
    theirs = torch.stack([transform(opened(file)) for file in FILES])
    normalized = not isinstance(transform, v1.Compose | v2.Compose)
    for engine in ("torch", "dali"):
        ours = pixels(transform, engine)
        assert ours.dtype == theirs.dtype
        difference = (levels(ours, normalized) - levels(theirs, normalized)).abs()
        assert difference.mean() <= 0.5
        if engine == "torch":
            assert difference.max() < 1e-3  # of a level: the same ones, to the last bits of floats


@pytest.mark.parametrize("transforms", [[v1.Resize((70, 90), 3)], [v1.Resize((72, 80)), v1.CenterCrop(64)]])
def test_images_that_are_stretched(transforms: list[Any]) -> None:
    """Since version 13 Pillow may resize columns first, by a rule of its own, and each pass rounds."""
    files = [encode(picture(*size), kind="PNG") for size in ((700, 200), (200, 300), (100, 64))]
    transform = v1.Compose([*transforms, v1.PILToTensor()])
    theirs = torch.stack([transform(opened(file)) for file in files]).int()
    difference = (pixels(transform, files=files).int() - theirs).abs()
    assert difference.max() <= 1
    assert difference.float().mean() <= 0.2
    assert (pixels(transform, "dali", files).int() - theirs).abs().float().mean() <= 0.5


@pytest.mark.parametrize(
    "transform",
    [
        Preset(False, "tensor", v1),
        Preset(False, "tensor", v2),
        v2.Compose([*FLOATS, *CROP, v2.Normalize(MEAN, STD)]),
        v2.Compose([v2.ToImage(), *CROP, v2.Grayscale(3), FLOATS[1], v2.Normalize(MEAN, STD)]),
        v2.Compose([v2.ToImage(), v2.Resize((70, 90), 3), FLOATS[1], v2.Normalize(MEAN, STD)]),
        v2.Compose([v2.ToImage(), *CROP, v2.RandomSolarize(99, 1), v2.ColorJitter((1.2, 1.2)), *FLOATS,
                    v2.Normalize(MEAN, STD)]),
    ],
)  # fmt: skip
def test_pipelines_of_tensors(transform: Any) -> None:
    theirs = levels(torch.stack([transform(opened(file)) for file in FILES]), normalized=True)
    for engine in ("torch", "dali"):
        assert (levels(pixels(transform, engine), normalized=True) - theirs).abs().mean() <= 0.5


def test_all_weights_of_torchvision_are_translated() -> None:
    seen = {}
    for name in models.list_models():
        for weights in models.get_model_weights(name):
            preset = weights.transforms()
            seen[repr(preset)] = preset
    presets = [preset for preset in seen.values() if isinstance(preset, _presets.ImageClassification)]
    assert len(presets) > 20
    for preset in presets:
        recipe = translated(preset)
        crop = (preset.crop_size[0],) * 2
        assert recipe.crop == gpupipe.ResizeCenterCrop(crop, preset.resize_size[0], preset.interpolation.value)
        assert recipe.statistics == (tuple(preset.mean), tuple(preset.std))
    others = [preset for preset in seen.values() if not isinstance(preset, _presets.ImageClassification)]
    assert others
    for preset in others:
        with pytest.raises(gpupipe.TranslationError, match=type(preset).__name__):
            translated(preset)


def test_what_belongs_to_a_stretched_image_follows() -> None:
    recipe = translated(v2.Compose([v2.Resize((60, 40)), v2.CenterCrop((50, 36)), v2.ToImage()]))
    mask = np.random.default_rng(0).integers(0, 9, (90, 120)).astype(np.uint8)
    boxes = torch.tensor([[10.0, 20.0, 70.0, 80.0], [0.0, 0.0, 120.0, 90.0]])
    crops = cropping(recipe, 0, 0, np.arange(1), np.array([90], np.int32), np.array([120], np.int32))
    out = np.zeros((50, 36), np.uint8)
    follow_mask(mask, crops, 0, out)
    wrapped = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(90, 120))
    theirs = v2.Compose([v2.Resize((60, 40)), v2.CenterCrop((50, 36))])(tv_tensors.Mask(mask[None]), wrapped)
    np.testing.assert_array_equal(out, theirs[0][0])
    clamped = v2.ClampBoundingBoxes()(theirs[1])
    np.testing.assert_allclose(follow_boxes(boxes.numpy(), "xyxy", crops, 0, 0)[0], clamped, rtol=1e-5)


# Draws have the original's distributions.

DRAWS = 15000
POSITIONS = np.arange(DRAWS)


def same_distribution(ours: Any, theirs: Any) -> None:
    """Kolmogorov-Smirnov's test of two samples, rounded, so that what is equal but for float32 is a tie; seeds are
    fixed, so it gives the same on every run."""
    ours, theirs = (np.round(np.asarray(numbers, np.float64), 6) for numbers in (ours, theirs))
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3


def drawn(transform: Any, times: int = DRAWS) -> Iterator[Any]:
    """What the original draws, by a function of its own."""
    torch.manual_seed(0)
    return (transform() for _ in range(times))


@pytest.mark.parametrize(("height", "width"), [(120, 160), (100, 300)])
@pytest.mark.parametrize("settings", [{}, {"scale": (0.3, 0.6), "ratio": (0.4, 1.1)}])
def test_boxes_of_random_resized_crops(height: int, width: int, settings: dict[str, Any]) -> None:
    transform = v1.RandomResizedCrop(32, **settings)
    image = torch.zeros(3, height, width)
    theirs = np.array(list(drawn(lambda: transform.get_params(image, transform.scale, transform.ratio))))
    sizes = (np.full(DRAWS, side, np.int32) for side in (height, width))
    ours = cropping(translated(v1.Compose([transform, v1.ToTensor()])), 5, 1, POSITIONS, *sizes).windows
    for of in (
        lambda box: box[:, 2] * box[:, 3],
        lambda box: box[:, 3] / box[:, 2],
        lambda box: box[:, 0] / np.maximum(height - box[:, 2], 1),
        lambda box: box[:, 1] / np.maximum(width - box[:, 3], 1),
    ):
        same_distribution(of(ours), of(theirs))


def test_flips() -> None:
    recipe = translated(v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(0.3), v2.ToImage()]))
    sizes = np.full((2, DRAWS), 64, np.int32)
    image = torch.tensor([[[0, 1]]])
    theirs = drawn(lambda: v2.RandomHorizontalFlip(0.3)(image)[0, 0, 0])
    same_distribution(cropping(recipe, 5, 1, POSITIONS, *sizes).flips, list(theirs))


def program(*operations: Any) -> Any:
    recipe = translated(v1.Compose([v1.RandomResizedCrop(32), *operations, v1.PILToTensor()]))
    return augmentation(recipe, 5, 1, POSITIONS)


def test_factors_of_color_jitter() -> None:
    jitter = v2.ColorJitter(0.4, (0.5, 2.0), 0.7, 0.2)
    made = program(jitter)
    params = list(
        drawn(lambda: v1.ColorJitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue))
    )
    operations = (Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.HUE)
    for place, op in enumerate(operations):
        rows, steps = np.nonzero(made.ops == op)
        assert len(rows) == DRAWS
        same_distribution(made.values[rows, steps, 0], [one[1 + place] for one in params])
        same_distribution(steps, [one[0].tolist().index(place) for one in params])


def test_steps_of_a_photometric_distortion() -> None:
    distort = v2.RandomPhotometricDistort((0.8, 1.3), (0.5, 1.2), (0.6, 1.6), (-0.1, 0.2), 0.4)
    made = program(distort)
    params = list(drawn(lambda: distort.make_params([torch.zeros(3, 1, 1)])))
    operations = {Op.BRIGHTNESS: "brightness", Op.CONTRAST: "contrast", Op.SATURATION: "saturation", Op.HUE: "hue"}
    for op, name in operations.items():
        rows, steps = np.nonzero(made.ops == op)
        assert stats.binomtest(len(rows), DRAWS, 0.4).pvalue > 1e-3
        theirs = [one for one in params if one[f"{name}_factor"] is not None]
        same_distribution(made.values[rows, steps, 0], [one[f"{name}_factor"] for one in theirs])
        if op is Op.CONTRAST:  # as the second step, or as the fifth, never both
            assert len(set(rows)) == len(rows)
            same_distribution(steps == 1, [one["contrast_before"] for one in theirs])
    orders = [one["channel_permutation"] for one in params if one["channel_permutation"] is not None]
    permuted = made.ops[:, 5] == Op.CHANNELS
    assert stats.binomtest(int(permuted.sum()), DRAWS, 0.4).pvalue > 1e-3
    known = list(permutations(range(3)))
    same_distribution(made.values[permuted, 5, 0], [known.index(tuple(order.tolist())) for order in orders])
    assert made.ops.max(axis=0).tolist() == [*operations, Op.CONTRAST, Op.CHANNELS]


@pytest.mark.parametrize(
    ("transform", "op", "p"),
    [
        (v2.RandomGrayscale(0.3), Op.GRAYSCALE, 0.3),
        (v1.RandomSolarize(128, 0.2), Op.SOLARIZE, 0.2),
        (v1.RandomInvert(0.7), Op.INVERT, 0.7),
        (v2.RandomPosterize(3, 0.6), Op.POSTERIZE, 0.6),
        (v2.RandomAutocontrast(0.4), Op.AUTOCONTRAST, 0.4),
        (v2.RandomEqualize(0.2), Op.EQUALIZE, 0.2),
        (v1.RandomAdjustSharpness(2, 0.8), Op.SHARPNESS, 0.8),
        (v1.RandomApply([v1.GaussianBlur(3)], 0.4), Op.GAUSSIAN_BLUR, 0.4),
        (v2.RandomChoice([v2.RandomGrayscale(1), v2.RandomSolarize(9, 1)], p=[3, 1]), Op.SOLARIZE, 0.25),
        (v1.RandomChoice([v1.RandomGrayscale(0.5), v1.RandomSolarize(9, 1)]), Op.GRAYSCALE, 0.25),
    ],
)
def test_how_often_a_color_changes(transform: Any, op: Op, p: float) -> None:
    assert stats.binomtest(int((program(transform).ops == op).sum()), DRAWS, p).pvalue > 1e-3


def test_the_sigma_of_a_blur() -> None:
    blur = v1.GaussianBlur(7, (0.5, 3.0))
    sigmas = np.array(list(drawn(lambda: blur.get_params(0.5, 3.0))))
    point = torch.zeros(1, 7, 7)
    point[0, 3, 3] = 1
    grid = np.linspace(0.5, 3, 200)  # a blur takes a millisecond; in between the weight is all but a line
    weights = [v1.functional.gaussian_blur(point, 7, [sigma] * 2)[0, 3, 3].item() ** 0.5 for sigma in grid]
    same_distribution(program(blur).values[:, 0, 0], np.interp(sigmas, grid, weights))


@pytest.mark.parametrize("lib", [v1, v2])
def test_boxes_of_random_erasing(lib: Any) -> None:
    transform = lib.RandomErasing(1.0, (0.05, 0.4), (0.4, 2.0))
    image = torch.ones(1, 48, 64)
    crop = lib.RandomResizedCrop((48, 64))
    made = erasing(translated(v1.Compose([crop, v1.ToTensor(), transform])), 5, 1, POSITIONS)
    theirs = np.array([_zeros(one[0]) for one in drawn(lambda: transform(image))])
    for side in range(4):
        same_distribution(made.boxes[:, side], theirs[:, side])
    same_distribution(made.boxes[:, 2] * made.boxes[:, 3], theirs[:, 2] * theirs[:, 3])


def _zeros(image: torch.Tensor) -> tuple[int, int, int, int]:
    """The box of zeros in ones."""
    rows, columns = ((image == 0).any(dim=axis).nonzero().flatten() for axis in (1, 0))
    if not len(rows):
        return (0, 0, 0, 0)
    top, left = int(rows[0]), int(columns[0])
    return top, left, int(rows[-1]) - top + 1, int(columns[-1]) - left + 1


@pytest.mark.parametrize(("lib", "alpha"), [("MixUp", 0.2), ("MixUp", 1.0), ("CutMix", 1.0), ("CutMix", 0.6)])
def test_how_much_is_mixed(lib: str, alpha: float) -> None:
    how_much_is_mixed(getattr(v2, lib)(alpha=alpha, num_classes=2))


@pytest.mark.parametrize(
    "transform",
    [RandomMixUp(2, 0.4, 0.2), RandomMixUp(2, 1.0, 1.0), RandomCutMix(2, 0.7, 1.0), RandomCutMix(2)],
    ids=str,
)
def test_how_much_is_mixed_by_those_of_the_references(transform: Any) -> None:
    """As far as it is mixed at all."""
    how_much_is_mixed(transform)


def how_much_is_mixed(transform: Any) -> None:
    recipe = translated(TRAINED, transform)
    batches_of_two = replace(recipe, operations=(*recipe.operations[:-1], replace(recipe.mixing, alike=2)))
    made = mixing(batches_of_two, 5, 1, np.arange(2 * DRAWS), True)
    assert (made.shares[::2] == made.shares[1::2]).all()
    labels, images = torch.tensor([0, 1]), torch.zeros(2, 1, 32, 32)
    theirs = drawn(lambda: transform(images, labels)[1][0, 0].item())
    same_distribution(made.shares[::2], list(theirs))


# Transforms of Pillow's images that programs have of their own.


class Wider(GaussianBlur):
    """Something else under that name."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(self.radius_max + 1))


Wider.__name__ = "GaussianBlur"


def test_blur_and_solarization_of_pillows_images() -> None:
    """Drawn as often; the blurred levels are near Pillow's."""
    crop = v1.RandomResizedCrop(32)
    for own, expected in [
        (GaussianBlur(1.0), gpupipe.GaussianBlur(13, (0.1, 2.0))),
        (GaussianBlur(0.3, 0.5, 1.0), gpupipe.RandomApply((gpupipe.GaussianBlur(7, (0.5, 1.0)),), 0.3)),
        (Solarization(0.2), gpupipe.RandomSolarize(128, 0.2)),
        (v1.RandomApply([Solarization(0.2)], 0.5), gpupipe.RandomApply((gpupipe.RandomSolarize(128, 0.2),), 0.5)),
    ]:
        assert translated(v1.Compose([crop, own])).operations[1] == expected
    images = [Image.fromarray(picture(64, 64, number)) for number in range(3)]
    for sigma in (0.2, 0.7, 1.3, 2.0):
        for image in images:
            pillows = torch.from_numpy(np.array(image.filter(ImageFilter.GaussianBlur(sigma)))).permute(2, 0, 1)
            ours = v1.functional.gaussian_blur(v1.functional.pil_to_tensor(image), 13, sigma)
            assert (ours.float() - pillows.float()).abs().mean() < 1
    with pytest.raises(gpupipe.TranslationError, match="Wider can't be translated: a recipe has nothing like it"):
        translated(v1.Compose([crop, Wider()]))
    state = [random.getstate(), torch.get_rng_state()]
    translated(v1.Compose([crop, GaussianBlur(), *F32]), RandomMixUp(3))
    assert state[0] == random.getstate()
    assert torch.equal(state[1], torch.get_rng_state())


# Mixing in the collate_fn.

TRAINED = v2.Compose([v2.RandomResizedCrop(32), *FLOATS])
MIXUP, CUTMIX = v2.MixUp(alpha=0.2, num_classes=7), v2.CutMix(alpha=0.9, num_classes=7)
BOTH = v2.RandomChoice([MIXUP, CUTMIX])


def within(mixup_cutmix: Any) -> Callable[[Any], Any]:
    """As torchvision's references/classification/train.py has it."""

    def collate_fn(batch: Any) -> Any:
        return mixup_cutmix(*default_collate(batch))

    return collate_fn


def of_the_module(batch: Any) -> Any:
    return BOTH(*default_collate(batch))


class Collator:
    def __init__(self, mixing: Any) -> None:
        self.mixing = mixing

    def __call__(self, samples: Any) -> Any:
        return self.mixing(*default_collate(samples))


GRAY = v1.RandomGrayscale()
OURS = gpupipe.MixUpOrCutMix(7, 0.2, 0.9, alike=None)


@pytest.mark.parametrize(
    ("collate_fn", "expected"),
    [
        (None, None),
        (default_collate, None),
        (MIXUP, gpupipe.MixUp(7, 0.2, alike=None)),
        (CUTMIX, gpupipe.CutMix(7, 0.9, alike=None)),
        (RandomMixUp(7, 0.3, 0.2), gpupipe.MixUp(7, 0.2, 0.3, alike=None)),
        (RandomCutMix(7, inplace=True), gpupipe.CutMix(7, 1.0, 0.5, alike=None)),
        (within(v1.RandomChoice([RandomMixUp(7, 1.0, 0.2), RandomCutMix(7, 1.0, 0.9)])), OURS),
        (within(v1.RandomChoice([MIXUP, CUTMIX])), OURS),
        (v1.RandomChoice([CUTMIX, MIXUP], p=[3, 1]), gpupipe.MixUpOrCutMix(7, 0.2, 0.9, switch_p=0.75, alike=None)),
        (BOTH, OURS),
        (v2.RandomChoice([CUTMIX, MIXUP], p=[3, 1]), gpupipe.MixUpOrCutMix(7, 0.2, 0.9, switch_p=0.75, alike=None)),
        (v2.RandomChoice([MIXUP]), gpupipe.MixUp(7, 0.2, alike=None)),
        (within(v2.RandomChoice([CUTMIX])), gpupipe.CutMix(7, 0.9, alike=None)),
        (within(BOTH), OURS),
        (of_the_module, OURS),
        (lambda batch: BOTH(*default_collate(batch)), OURS),
        (Collator(BOTH), OURS),
        (Collator(BOTH).__call__, OURS),
    ],
)
def test_mixing(collate_fn: Any, expected: Any) -> None:
    assert translated(TRAINED, collate_fn).mixing == expected


ELSEWHERE = '''
class Wrapped:
    def __call__(self, picture):
        "Says what it does."
        return self.steps(picture)


def outer():
    choice = BOTH

    def collate(samples: list):
        """Says what it does."""
        return choice(*default_collate(samples))

    return collate
'''


def test_what_only_hands_on_is_seen_in_any_module() -> None:
    """With other flags of the compiler's, other names and docstrings."""
    names: dict[str, Any] = {"default_collate": default_collate, "BOTH": BOTH}
    exec(compile(ELSEWHERE, "elsewhere", "exec", dont_inherit=True), names)
    wrapped = names["Wrapped"]()
    wrapped.steps = TRAINED
    assert translated(v1.Lambda(wrapped), names["outer"]()) == translated(TRAINED, BOTH)


def hooked(transform: Any) -> Any:
    transform.register_forward_hook(lambda *_: None)
    return transform


def other_order(batch: Any) -> Any:
    images, labels = default_collate(batch)
    return BOTH(labels, images)


class Halved(RandomMixUp):
    """Something else under that name."""

    def mixed(self, batch: torch.Tensor, others: torch.Tensor, share: float) -> float:
        return super().mixed(batch, others, share / 2)


Halved.__name__ = "RandomMixUp"


def twice(batch: Any) -> Any:
    return BOTH(*default_collate(default_collate(batch)))


def sorting(batch: Any) -> Any:
    return sorted(*default_collate(batch))


def listed(batch: Any) -> Any:
    return BOTH(*list(batch))


def collated_otherwise(default_collate: Any) -> Callable[[Any], Any]:
    return lambda batch: BOTH(*default_collate(batch))


@pytest.mark.parametrize(
    ("collate_fn", "operation"),
    [
        (other_order, "collate_fn=other_order"),
        (twice, "collate_fn=twice"),
        (sorting, "collate_fn=sorting"),
        (listed, "collate_fn=listed"),
        (collated_otherwise(list), "collate_fn=collated_otherwise"),
        (within(list), "collate_fn=within.<locals>.collate_fn with type"),
        (within(v1.RandomChoice([GRAY])), "collate_fn=within.<locals>.collate_fn with RandomChoice, RandomGrayscale"),
        (
            within(v1.RandomChoice([RandomMixUp(7), Halved(7)])),
            "collate_fn=within.<locals>.collate_fn with RandomChoice, RandomMixUp, Ran",
        ),
        (Halved(7), "collate_fn=Halved"),
        (v1.RandomChoice([RandomMixUp(7, 1.0), RandomCutMix(7, 0.5)]), "RandomChoice of MixUp"),
        (hooked(RandomMixUp(7)), "RandomMixUp._forward_hooks"),
        (Collator(v2.Identity()), "collate_fn=Collator with Identity"),
        (list, "collate_fn=list"),
        (len, "collate_fn=len"),
        (v2.Resize(3), "collate_fn=Resize"),
        (v2.RandomChoice([MIXUP, v2.Identity()]), "collate_fn=RandomChoice"),
        (v2.RandomChoice([MIXUP, v2.MixUp(num_classes=7)]), "RandomChoice of MixUp"),
        (v2.RandomChoice([MIXUP, v2.CutMix(num_classes=8)]), "RandomChoice of MixUp"),
        (v2.MixUp(), "MixUp(num_classes=None)"),
        (within(v2.RandomChoice([hooked(v2.MixUp(num_classes=7))])), "MixUp._forward_hooks"),
        (v2.CutMix(num_classes=7, labels_getter=max), "CutMix(labels_getter="),
    ],
)
def test_a_collate_fn_that_is_not_read(collate_fn: Any, operation: str) -> None:
    with pytest.raises(gpupipe.TranslationError) as raised:
        translated(TRAINED, collate_fn)
    assert raised.value.operation.startswith(operation)
    assert raised.value.alternative


# What is refused.

U8, F32 = [v1.PILToTensor()], [v1.ToTensor()]
NORM = v1.Normalize(MEAN, STD)
BOX, FLIP, BLUR = v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.GaussianBlur(3)


class Flipped(v1.RandomHorizontalFlip):
    """A subclass, which may do what it wants."""


class Twice:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        return self.transform(image), self.transform(image)


def replaced() -> Any:
    transform = v2.RandomHorizontalFlip()
    transform.transform = MethodType(lambda self, image, params: image, transform)
    return transform


@pytest.mark.parametrize(
    ("transforms", "operation", "alternative"),
    [
        # Settings.
        ([v1.RandomResizedCrop(32, interpolation=0)], "RandomResizedCrop(interpolation='nearest')", "bilinear"),
        ([v2.RandomResizedCrop(32, antialias=False)], "RandomResizedCrop(antialias=False)", "antialias=True"),
        ([v2.RandomResizedCrop(32, antialias=None)], "RandomResizedCrop(antialias=None)", "antialias=True"),
        ([v1.RandomResizedCrop(32, scale=(0, 1))], "RandomResizedCrop", "from_dataloader"),
        ([v1.Resize(32, 1)], "Resize(interpolation='lanczos')", "bilinear"),
        ([v1.Resize(32)], "Resize(size=32)", "(height, width), or max_size"),
        ([v2.RandomShortestSize([20, 30])], "RandomShortestSize(max_size=None)", "give max_size"),
        ([v2.RandomShortestSize([20], 30), v2.RandomCrop(32)], "RandomCrop", "take one crop alone"),
        ([v2.Resize(32, antialias=False), v2.CenterCrop(32)], "Resize(antialias=False)", "antialias=True"),
        ([BOX, v1.Grayscale(1)], "Grayscale(num_output_channels=1)", "num_output_channels=3"),
        ([BOX, v1.Grayscale(3), *U8], "Grayscale", "PILToTensor"),
        ([BOX, v1.GaussianBlur((3, 5))], "GaussianBlur(kernel_size=(3, 5))", "one number"),
        ([BOX, *U8, v2.GaussianNoise(clip=False)], "GaussianNoise(clip=False)", "clip=True"),
        ([BOX, v1.RandAugment(interpolation=v1.InterpolationMode.BICUBIC)], "RandAugment(interpolation='b", "nearest"),
        ([BOX, v2.ElasticTransform(sigma=[2.0, 3.0])], "ElasticTransform(sigma=[2.0, 3.0])", "one number"),
        ([BOX, v2.AugMix(alpha=0.5)], "AugMix(alpha=0.5)", "alpha=1.0"),
        ([BOX, v2.AutoAugment(fill={"others": 3})], "AutoAugment(fill={'others': 3})", "one color"),
        ([BOX, v2.RandAugment(num_ops=101)], "RandAugment", "from_dataloader"),
        ([BOX, v2.RandAugment(magnitude=40)], "RandAugment", "from_dataloader"),
        ([BOX, v2.RandomSolarize(300.0)], "RandomSolarize", "from_dataloader"),
        ([BOX, *U8, v2.ToDtype(torch.float32)], "ToDtype(scale=False)", "scale=True"),
        ([BOX, *U8, v2.ToDtype(torch.int64)], "ToDtype(dtype='int64')", "float32"),
        (
            [v2.ToDtype(torch.float32, scale=True), BOX, v2.RandomSolarize(0.5), v2.ToTensor()],
            "ToTensor",
            "put it before",
        ),
        ([BOX, v2.ToDtype(torch.uint8, scale=True), v1.ToTensor()], "ToTensor", "put it before"),
        ([BOX, *U8, v1.ConvertImageDtype(torch.float64)], "ConvertImageDtype(dtype='float64')", "float32"),
        ([BOX, *F32, v1.ConvertImageDtype(torch.uint8)], "ConvertImageDtype(dtype='uint8')", "leave it out"),
        ([BOX, v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, True)], "ToDtype(dtype={", "ToImage"),
        ([BOX, *F32, v1.Normalize([0.5] * 4, [1] * 4)], "Normalize(mean=[0.5", "three of each"),
        ([BOX, *F32, v1.Normalize([0.5] * 3, [0, 1, 1])], "Normalize", "from_dataloader"),
        # Order.
        ([FLIP, v1.ToTensor()], "the transform", "Resize((height, width))"),
        ([v1.Resize(32)], "Resize(size=32)", "CenterCrop next"),
        ([v1.Resize(32), GRAY, v1.CenterCrop(32)], "Resize(size=32)", "CenterCrop next"),
        ([v1.CenterCrop(32)], "CenterCrop(size=(32, 32))", "Resize before it"),
        ([v1.Resize(30), *F32, NORM, v1.CenterCrop(32)], "CenterCrop(size=(32, 32))", "before Normalize"),
        ([v2.RandomResize(30, 40)], "RandomResize", "RandomCrop next"),
        ([v2.RandomResize(30, 40), v2.CenterCrop(32)], "CenterCrop(size=(32, 32))", "Resize before it"),
        ([v2.Resize((40, 50)), v2.RandomCrop(32)], "RandomCrop(size=(32, 32))", "shorter side alone"),
        ([v2.Resize(40, max_size=60), v2.RandomCrop(32)], "RandomCrop(size=(32, 32))", "shorter side alone"),
        ([BOX, v2.RandomCrop(32)], "RandomCrop", "one crop alone"),
        ([v2.Resize(40), *F32, NORM, v2.RandomCrop(32)], "RandomCrop(size=(32, 32))", "first"),
        ([v2.RandomCrop(32, [1, 2])], "RandomCrop(padding=[1, 1, 2, 2])", "one number"),
        ([v2.Pad(2, padding_mode="reflect"), v2.RandomCrop(8, 4, padding_mode="reflect")], "RandomCrop(", "pad once"),
        ([v2.Pad(4, 9), v2.RandomCrop(32, 4)], "RandomCrop(padding=4)", "pad once"),
        ([v2.Pad(4)], "Pad", "RandomCrop next"),
        ([v2.Pad(4), GRAY, v2.RandomCrop(32)], "Pad", "RandomCrop next"),
        ([*F32, v2.RandomCrop(32, 4, fill=0.5)], "RandomCrop(fill=0.5)", "before the conversion"),
        ([v2.RandomZoomOut(), v2.Resize((32, 32))], "Resize(size=(32, 32))", "RandomIoUCrop between"),
        ([v2.RandomIoUCrop(), v2.Resize(32)], "Resize", "one crop alone"),
        ([v2.RandomIoUCrop()], "RandomIoUCrop", "Resize((height, width)) next"),
        ([v2.RandomIoUCrop(), v2.RandomZoomOut(), v2.Resize((32, 32))], "RandomZoomOut", "one crop alone"),
        ([v2.ScaleJitter((32, 32))], "ScaleJitter", "FixedSizeCrop next"),
        ([v2.ScaleJitter((32, 32)), v2.RandomCrop(32)], "RandomCrop(size=(32, 32))", "shorter side"),
        ([v2.ScaleJitter((32, 32)), v2.CenterCrop(32)], "CenterCrop(size=(32, 32))", "Resize before it"),
        ([v2.ScaleJitter((32, 32)), FixedSizeCrop((32, 30))], "FixedSizeCrop(size=(32, 30))", "same size"),
        ([v2.ScaleJitter((32, 30)), FixedSizeCrop((32, 30))], "ScaleJitter(target_size=(32, 30))", "take a square"),
        ([v2.Resize(40), FixedSizeCrop((32, 32))], "FixedSizeCrop(size=(32, 32))", "put ScaleJitter"),
        ([FLIP, v2.ScaleJitter((32, 32)), FixedSizeCrop((32, 32))], "FixedSizeCrop(size=(32, 32))", "behind it"),
        (
            [v2.ScaleJitter((32, 32)), FixedSizeCrop((32, 32), from_left=False)],
            "programs.FixedSizeCrop",
            "gpupipe.PerImage",
        ),
        ([v2.RandomResize(20, 60), PadIfSmaller(32)], "PadIfSmaller", "RandomCrop next"),
        ([v2.RandomResize(20, 60), PadIfSmaller(32), v2.RandomCrop(30)], "RandomCrop(size=(30, 30))", "the same"),
        ([PadIfSmaller(32), v2.RandomCrop(32), FLIP], "RandomHorizontalFlip(p=0.5)", "before PadIfSmaller"),
        ([v1.Resize(40), FLIP, v1.CenterCrop(32)], "CenterCrop(size=(32, 32))", "before flip"),
        ([FLIP, BOX], "RandomResizedCrop(size=(32, 32))", "before the flip"),
        ([v1.Resize(40), BOX], "RandomResizedCrop", "one crop alone"),
        ([BOX, v1.Resize(40)], "Resize", "one crop alone"),
        ([v2.RandomCrop(32, 4, fill={tv_tensors.Image: 9, "others": 7})], "RandomCrop(fill={", "ToImage() before it"),
        ([v2.RandomCrop(32, 4, fill={Image.Image: 9, "others": 7})], "RandomCrop(fill={", "ToImage() before it"),
        ([BOX, v1.CenterCrop(30)], "CenterCrop(size=(30, 30))", "Resize before it"),
        ([GRAY, BOX], "RandomGrayscale", "after the crop"),
        ([*F32, NORM, BOX], "RandomResizedCrop", "first"),
        ([*F32, v1.RandomResizedCrop(32, interpolation=3)], "RandomResizedCrop(interpolation='bicubic')", "floats"),
        ([BOX, FLIP, FLIP], "RandomHorizontalFlip(p=0.5)", "one of both"),
        ([BOX, v1.RandAugment(), FLIP], "RandomHorizontalFlip(p=0.5)", "before RandAugment"),
        ([BOX, *F32, v1.RandomErasing(), FLIP], "RandomHorizontalFlip(p=0.5)", "before RandomErasing"),
        ([BOX, *F32, v1.RandAugment()], "RandAugment", "before the conversion to floats"),
        ([BOX, *F32, NORM, BLUR], "GaussianBlur", "before them"),
        ([BOX, *F32, v1.RandomErasing(), GRAY], "RandomGrayscale", "before them"),
        ([BOX, *U8, NORM], "Normalize", "scale=True"),
        ([BOX, *U8, v1.RandomErasing()], "RandomErasing", "scale=True"),
        ([BOX, *F32, NORM, NORM], "Normalize(mean=", "Normalize(mean=(0.596"),
        ([BOX, *F32, v1.RandomErasing(value="random"), NORM], "Normalize", "RandomErasing after it"),
        ([BOX, *F32, v1.RandomErasing(), v1.RandomErasing()], "RandomErasing", "one of both"),
        ([BOX, v2.ToImage(), HALF, NORM], "Normalize", "last"),
        ([BOX, v2.ToImage(), HALF, v2.RandomGrayscale()], "RandomGrayscale", "last"),
        ([v2.ToImage(), HALF, BOX], "RandomResizedCrop", "last"),
        ([BOX, v2.ToImage(), HALF, v2.ToDtype(torch.float32)], "ToDtype(dtype='float32')", "last"),
        # What stands in others.
        ([BOX, v1.RandomApply([FLIP])], "RandomHorizontalFlip", "out of that"),
        ([v1.RandomChoice([BOX, v1.Resize((32, 32))])], "RandomResizedCrop", "out of that"),
        ([BOX, v1.RandomApply([v1.ToTensor()])], "ToTensor", "out of that"),
        ([BOX, v2.RandomChoice([GRAY, v2.Identity()])], "RandomChoice", "RandomApply"),
        ([BOX, v1.RandomApply([v1.Lambda(len)])], "torchvision.transforms.transforms.Lambda", "from_dataloader"),
        # What can't be read.
        ([v1.Lambda(len)], "torchvision.transforms.transforms.Lambda", "from_dataloader"),
        ([v1.Lambda(v1.Lambda(len))], "torchvision.transforms.transforms.Lambda", "from_dataloader"),
        ([BOX, Flipped()], f"{__name__}.Flipped", "from_dataloader"),
        ([BOX, hooked(v2.RandomHorizontalFlip())], "RandomHorizontalFlip._forward_hooks", "from_dataloader"),
        ([BOX, replaced()], "RandomHorizontalFlip.transform", "from_dataloader"),
        ([BOX, lambda image: image], "builtins.function", "from_dataloader"),
        ([BOX, v1.functional.hflip], "builtins.function", "from_dataloader"),
        ([Twice(BOX)], f"{__name__}.Twice", "from_dataloader"),
        ([BOX, v1.RandomRotation(5, expand=True)], "RandomRotation(expand=True", "expand=False"),
        ([BOX, v2.RandomAffine(5, center=(1, 2))], "RandomAffine(center=(1, 2)", "center=None"),
        ([BOX, v2.RandomRotation(5, v2.InterpolationMode.BICUBIC)], "RandomRotation", "nearest or bilinear"),
        ([BOX, *F32, v2.RandomRotation(5)], "RandomRotation", "before the conversion"),
        ([BOX, v2.RandomRotation(5), FLIP], "RandomHorizontalFlip", "before RandomRotation"),
        ([BOX, v2.MixUp(num_classes=3)], "torchvision.transforms.v2._augment.MixUp", "collate_fn"),
    ],
)
def test_what_is_refused(transforms: list[Any], operation: str, alternative: str) -> None:
    with pytest.raises(gpupipe.TranslationError) as raised:
        translated(v1.Compose(transforms))
    assert raised.value.operation.startswith(operation)
    assert alternative in raised.value.alternative
    assert str(raised.value).startswith(f"{raised.value.operation} can't be translated: ")


# What was changed after it was made, which torchvision's follow in part.


def changed(transform: Any, **settings: Any) -> Any:
    for name, value in settings.items():
        setattr(transform, name, value)
    return transform


INVERT = [(("Invert", 1.0, None), ("Invert", 0.0, None))]
SPACE = {"Invert": (lambda *_: None, False)}
SHORTER = dict(list(v2.RandAugment._AUGMENTATION_SPACE.items())[:2])
STALE = {
    "policies": lambda: changed(v1.AutoAugment(), policies=INVERT),
    "_policies": lambda: changed(v2.AutoAugment(), _policies=INVERT),
    "_policies of another": lambda: changed(v2.AutoAugment(), policy=v1.AutoAugmentPolicy.SVHN),
    "_AUGMENTATION_SPACE": lambda: changed(v2.TrivialAugmentWide(), _AUGMENTATION_SPACE=SPACE),
    "_AUGMENTATION_SPACE of fewer": lambda: changed(v2.RandAugment(), _AUGMENTATION_SPACE=SHORTER),
    "_fill of rotated": lambda: changed(v2.RandomRotation((45, 45)), fill=255),
    "_fill of a crop": lambda: changed(v2.RandomCrop(90, pad_if_needed=True), fill=255),
    "_fill of moved": lambda: changed(v2.RandomAffine((45, 45)), fill=255),
    "_log_ratio of a crop": lambda: changed(v2.RandomResizedCrop(32, ratio=(1.0, 1.0)), ratio=(3.0, 3.0)),
    "_log_ratio of a box": lambda: changed(v2.RandomErasing(1.0, ratio=(1.0, 1.0)), ratio=(3.0, 3.0)),
    "size of v1": lambda: changed(v1.RandomResizedCrop(32, (0.5, 0.5), (2.0, 2.0)), size=24),
    "size of v2": lambda: changed(v2.RandomResizedCrop(32, (0.5, 0.5), (2.0, 2.0)), size=24),
    "_PARAMETER_MAX": lambda: changed(v2.AugMix(), _PARAMETER_MAX=5),
}
STALE_ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    **dict.fromkeys((v2.RandomRotation, v2.RandomAffine), (45,)),
    **dict.fromkeys((v2.RandomCrop, v1.RandomResizedCrop, v2.RandomResizedCrop), (32,)),
}


def placed(transform: Any) -> v1.Compose:
    if "Crop" in type(transform).__name__:
        return v1.Compose([transform, *F32])
    behind = isinstance(transform, v2.RandomErasing)
    return v1.Compose([v1.Resize((32, 32)), *([*F32, transform] if behind else [transform, *F32])])


@pytest.mark.parametrize("name", STALE)
def test_what_was_changed_afterwards_is_refused(name: str) -> None:
    transform = STALE[name]()
    with pytest.raises(gpupipe.TranslationError) as raised:
        translated(placed(transform))
    assert raised.value.operation == f"{type(transform).__name__}.{name.split()[0]}"
    assert "changed after" in raised.value.reason
    assert isinstance(translated(placed(type(transform)(*STALE_ARGUMENTS.get(type(transform), ())))), gpupipe.Recipe)


@pytest.mark.parametrize(
    ("first", "changes"),
    [
        ([v1.Resize((40, 44)), v1.CenterCrop(32)], [{}, {"size": (24, 28)}]),
        ([v1.Resize(40), v1.CenterCrop(32)], [{"size": 50}, {}]),
        ([v2.Resize((40, 44)), v2.ColorJitter((0.5, 0.5))], [{}, {"brightness": (1.5, 1.5)}]),
        ([v1.Resize((40, 44)), v1.RandomInvert(0.0)], [{"note": "of the program's"}, {"p": 1.0}]),
    ],
)
def test_what_they_follow_is_translated(first: list[Any], changes: list[dict[str, Any]]) -> None:
    """Beside what torchvision's make of it."""
    transform = v1.Compose([*(changed(one, **own) for one, own in zip(first, changes, strict=True)), *U8])
    theirs = torch.stack([transform(opened(file)) for file in FILES])
    assert (pixels(transform).int() - theirs.int()).abs().max() <= 2  # a level that the factor 1.5 makes of one


def test_torchvision_goes_on_with_what_it_had() -> None:
    """Why these are refused: the pixels are those of the old setting."""
    image = Image.fromarray(picture(64, 64))
    old, new = v2.RandomRotation((45, 45)), v2.RandomRotation((45, 45), fill=255)
    stale = changed(v2.RandomRotation((45, 45)), fill=255)(image)
    assert stale == old(image)
    assert stale != new(image)


@pytest.mark.parametrize("space", [SPACE, SHORTER], ids=["own", "fewer"])
@pytest.mark.parametrize("kind", [v2.RandAugment, v2.TrivialAugmentWide, v2.AutoAugment, v2.AugMix])
def test_other_operations_of_a_class_are_refused(kind: Any, space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = v1.Compose([v1.Resize((32, 32)), kind(), *F32])
    assert isinstance(translated(transform), gpupipe.Recipe)
    monkeypatch.setattr(kind, "_AUGMENTATION_SPACE", space)
    with pytest.raises(gpupipe.TranslationError, match=rf"{kind.__name__}\._AUGMENTATION_SPACE can't be translated"):
        translated(transform)


@pytest.mark.parametrize("kind", [v2.MixUp, v2.CutMix])
def test_an_alpha_that_was_changed_afterwards_is_refused(kind: Any) -> None:
    """torchvision's go on with the old distribution."""
    mixing = changed(kind(alpha=1000.0, num_classes=7), alpha=0.001)
    _, labels = mixing(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    assert 0.4 < labels[0, 0] < 0.95  # a box of CutMix's may reach beyond the image
    with pytest.raises(gpupipe.TranslationError, match=rf"{kind.__name__}\._dist can't be translated"):
        translated(TRAINED, mixing)


STATES = (
    random.getstate,
    lambda: torch.get_rng_state().tolist(),
    lambda: np.random.mtrand._rand.get_state()[1].tolist(),
)


def test_a_check_takes_no_random_numbers() -> None:
    before = [generator_state() for generator_state in STATES]
    translated(v1.Compose([BOX, v2.RandAugment(), v2.ElasticTransform(), *F32]), MIXUP)
    assert before == [generator_state() for generator_state in STATES]


def test_a_double_normalization_names_the_one_that_does_both() -> None:
    first, second = v1.Normalize((0.1, 0.2, 0.3), (0.5, 1, 2)), v1.Normalize((0.4, 0.3, 0.1), (2, 3, 4))
    with pytest.raises(gpupipe.TranslationError) as raised:
        translated(v1.Compose([BOX, *F32, first, second]))
    one = eval(raised.value.alternative.split(": ")[1], {"Normalize": v1.Normalize})
    image = torch.rand(3, 4, 4)
    torch.testing.assert_close(one(image), second(first(image)))


def test_an_unknown_parameter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later torchvision may have one."""

    def init(self: Any, p: float = 0.5, axis: int = 0) -> None:
        torch.nn.Module.__init__(self)
        self.p, self.axis = p, axis

    monkeypatch.setattr(v1.RandomHorizontalFlip, "__init__", init)
    with pytest.raises(gpupipe.TranslationError, match=r"RandomHorizontalFlip can't .* parameter 'axis' is unknown"):
        translated(v1.Compose([BOX, v1.RandomHorizontalFlip()]))


def test_errors_travel_between_processes() -> None:
    error = gpupipe.TranslationError("Resize", "it is large", "take a small one")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.operation, copy.reason, copy.alternative, str(copy)) == (*error.args, str(error))


# Every class of torchvision, so that a later one does not slip through.

ARGUMENTS = {
    "size": 8, "mean": [0.5] * 3, "std": [0.5] * 3, "kernel_size": 3, "threshold": 0.5, "lambd": len, "degrees": 10,
    "dtype": torch.float32, "padding": 1, "bits": 4, "sharpness_factor": 2, "quality": 50, "num_samples": 1,
    "format": "XYXY", "min_size": 4, "max_size": 8, "target_size": (8, 8), "transformation_matrix": torch.eye(3),
    "mean_vector": torch.zeros(3), "clamping_mode": None,
}  # fmt: skip
NEEDED = {"ToDtype": {"scale": True}, "Grayscale": {"num_output_channels": 3}, "RandomShortestSize": {"max_size": 9}}
CLASSES = [
    (lib, name)
    for lib in (v1, v2)
    for name, kind in inspect.getmembers(lib, inspect.isclass)
    if not issubclass(kind, enum.Enum)
]


def made(kind: type) -> Any:
    """One with its defaults, and with these arguments where it has none."""
    needed = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is deprecated is used as well
        arguments = {name: [v1.RandomGrayscale()] if name == "transforms" else ARGUMENTS[name] for name in needed}
        return kind(**arguments, **NEEDED.get(kind.__name__, {}))


@pytest.mark.parametrize(("lib", "name"), CLASSES, ids=lambda one: getattr(one, "__name__", one))
def test_every_class_is_translated_or_refused_by_name(lib: Any, name: str) -> None:
    transform = made(getattr(lib, name))
    before = {"CenterCrop": [v1.Resize(9)], "Resize": [], "RandomResizedCrop": [], "Grayscale": [BOX, *U8]}
    before |= {key: [BOX, *F32] for key in ("Normalize", "RandomErasing")}
    uncropped = (
        "RandomCrop",
        "RandomResize",
        "RandomShortestSize",
        "Pad",
        "RandomZoomOut",
        "RandomIoUCrop",
        "ScaleJitter",
    )
    before |= {key: [] for key in uncropped}
    behind = {"Resize": [v1.CenterCrop(8)], "RandomIoUCrop": [v1.Resize((8, 8))]}
    behind |= {"RandomZoomOut": [v2.RandomIoUCrop(), v1.Resize((8, 8))]}
    behind |= {key: [v1.RandomCrop(8)] for key in ("RandomResize", "Pad")} | {"ScaleJitter": [FixedSizeCrop((8, 8))]}
    whole = v1.Compose([*before.get(name, [BOX]), transform, *behind.get(name, [])])
    if name in READERS:
        assert isinstance(translated(whole), gpupipe.Recipe)
    else:
        with pytest.raises(gpupipe.TranslationError, match=rf"\.{name} can't be translated"):
            translated(whole)
