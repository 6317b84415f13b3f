"""Recipes from timm: of create_transform's arguments and of what it makes, their pixels and draws, and what is refused.

What is compared with are timm's own transforms and its own Mixup, on Pillow's images.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture
from PIL import Image
from scipy import stats
from test_draws import SURELY

import gpupipe
from gpupipe import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    MixUp,
    MixUpOrCutMix,
    Normalize,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Recipe,
    ResizeCenterCrop,
    ThreeAugment,
    TimmAugMix,
    TimmRandAugment,
)
from gpupipe.plan import cropping
from gpupipe.recipe.translation.timm import recipe_in_part

pytestmark = pytest.mark.trainers("timm")

SIZE = 48
TRAIN = {"input_size": (3, SIZE, SIZE), "is_training": True, "interpolation": "bilinear"}
PLAIN = (RandomResizedCrop(SIZE), RandomHorizontalFlip(), Normalize())
NO_COLOR = {"color_jitter": None}
THIRD = round(10 / 3, 12)

# What create_transform's arguments become, beside those of TRAIN.
CARRIED: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": (NO_COLOR, PLAIN),
    "crop": (
        {**NO_COLOR, "scale": (0.2, 0.9), "ratio": (0.5, 2.0), "interpolation": "bicubic", "hflip": 0.3},
        (RandomResizedCrop(SIZE, (0.2, 0.9), (0.5, 2.0), "bicubic"), RandomHorizontalFlip(0.3), Normalize()),
    ),
    "random filter": (
        {**NO_COLOR, "interpolation": "random"},
        (RandomResizedCrop(SIZE, interpolation="random"), *PLAIN[1:]),
    ),
    "no flip": ({**NO_COLOR, "hflip": 0.0}, (PLAIN[0], PLAIN[2])),
    "statistics": (
        {**NO_COLOR, "mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3)},
        (*PLAIN[:2], Normalize((0.5, 0.4, 0.3), (0.1, 0.2, 0.3))),
    ),
    "color jitter": ({}, (*PLAIN[:2], ColorJitter(0.4, 0.4, 0.4), PLAIN[2])),
    "color jitter with hue": (
        {"color_jitter": (0.1, 0.2, 0.3, 0.4), "color_jitter_prob": 0.8},
        (*PLAIN[:2], RandomApply((ColorJitter(0.1, 0.2, 0.3, 0.4),), 0.8), PLAIN[2]),
    ),
    "grayscale and blur": (
        {**NO_COLOR, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5},
        (*PLAIN[:2], RandomGrayscale(0.2), RandomApply((GaussianBlur(23, (0.1, 2.0)),), 0.5), PLAIN[2]),
    ),
    "erasing": (
        {**NO_COLOR, "re_prob": 0.25},
        (*PLAIN, RandomErasing(0.25, (0.02, 1 / 3), (0.3, THIRD))),
    ),
    "erasing with noise": (
        {**NO_COLOR, "re_prob": 0.25, "re_mode": "pixel"},
        (*PLAIN, RandomErasing(0.25, (0.02, 1 / 3), (0.3, THIRD), "random")),
    ),
    "prefetcher": (
        {**NO_COLOR, "re_prob": 0.25, "use_prefetcher": True},
        (*PLAIN, RandomErasing(0.25, (0.02, 1 / 3), (0.3, THIRD))),
    ),
    "RandAugment": (
        {"auto_augment": "rand-m6-mstd0.5-inc1"},
        (*PLAIN[:2], TimmRandAugment(6, magnitude_std=0.5), PLAIN[2]),
    ),
    "RandAugment by a random filter": (
        {"auto_augment": "rand-m6-mstd0.5-inc1", "interpolation": "random"},
        (
            RandomResizedCrop(SIZE, interpolation="random"),
            PLAIN[1],
            TimmRandAugment(6, magnitude_std=0.5, interpolation="random"),
            PLAIN[2],
        ),
    ),
    "RandAugment by a bicubic filter": (
        {"auto_augment": "rand-m6-p1.0", "interpolation": "bicubic"},
        (
            RandomResizedCrop(SIZE, interpolation="bicubic"),
            PLAIN[1],
            TimmRandAugment(6, increasing=False, p=1, interpolation="bicubic"),
            PLAIN[2],
        ),
    ),
    "AugMix": (
        {**NO_COLOR, "auto_augment": "augmix-m5-w4-d2"},
        (*PLAIN[:2], TimmAugMix(5, 4, 2), PLAIN[2]),
    ),
    "RandAugment, other settings": (
        {"auto_augment": "rand-m6-n3-p0.7", "mean": (0.5, 0.5, 0.5)},
        (
            *PLAIN[:2],
            TimmRandAugment(6, 3, increasing=False, p=0.7, fill=128),
            Normalize((0.5, 0.5, 0.5)),
        ),
    ),
    "RandAugment beyond its range": (
        {"auto_augment": "rand-m12"},
        (*PLAIN[:2], TimmRandAugment(10, increasing=False), PLAIN[2]),
    ),
    "vertical flip": (NO_COLOR | {"vflip": 0.3}, (*PLAIN[:2], gpupipe.RandomVerticalFlip(0.3), PLAIN[2])),
    "3-Augment": ({"auto_augment": "3a"}, (*PLAIN[:2], ThreeAugment(), ColorJitter(0.4, 0.4, 0.4), PLAIN[2])),
    "no augmentation": ({"no_aug": True, "input_size": SIZE}, (ResizeCenterCrop(SIZE, SIZE), Normalize())),
    "no augmentation, a pair": ({"no_aug": True}, (ResizeCenterCrop(SIZE, (SIZE, SIZE)), Normalize())),
    "evaluation": (
        {"is_training": False, "crop_pct": 0.9, "interpolation": "bicubic"},
        (ResizeCenterCrop(SIZE, 53, "bicubic"), Normalize()),
    ),
    "evaluation, squashed": (
        {"is_training": False, "crop_mode": "squash"},
        (ResizeCenterCrop(SIZE, (54, 54)), Normalize()),
    ),
}


@pytest.mark.parametrize(("arguments", "operations"), CARRIED.values(), ids=CARRIED.keys())
def test_what_is_carried(arguments: dict[str, Any], operations: Any) -> None:
    from timm.data import create_transform

    recipe = Recipe.from_timm(**TRAIN | arguments)
    assert recipe == Recipe(operations)
    if not arguments.get("use_prefetcher"):
        assert Recipe.from_timm(create_transform(**TRAIN | arguments)) == recipe
        if recipe.flip:
            assert Recipe.from_timm(create_transform(**TRAIN | arguments, separate=True)) == recipe


@pytest.mark.parametrize("setting", ["normalize", "use_prefetcher"])
def test_levels_stay_levels(setting: str) -> None:
    from timm.data import create_transform

    transform = create_transform(**TRAIN | NO_COLOR | {setting: setting == "use_prefetcher"})
    assert Recipe.from_timm(transform) == Recipe(PLAIN[:2], dtype="uint8")


def test_a_models_data_config() -> None:
    from timm import create_model
    from timm.data import resolve_data_config

    config = resolve_data_config(model=create_model("resnet18.a1_in1k", pretrained=False))
    assert Recipe.from_timm(**config) == gpupipe.timm_a_eval()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another filter": ({"interpolation": "lanczos"}, r"interpolation='lanczos'.*'bilinear', 'bicubic' or 'random'"),
    "rkrc": ({"train_crop_mode": "rkrc"}, r"train_crop_mode='rkrc or rkrr'.*train_crop_mode='rrc'"),
    "rkrr": ({"train_crop_mode": "rkrr"}, r"train_crop_mode='rkrc or rkrr'.*train_crop_mode='rrc'"),
    "RandAugment of other operations": ({"auto_augment": "rand-m9-tweights"}, r"RandAugment\(ops=.*leave '-t...' out"),
    "RandAugment of uniform levels": ({"auto_augment": "rand-m9-mstd101"}, r"magnitude_std=inf.*at most 100"),
    "RandAugment of higher levels": ({"auto_augment": "rand-m15-mmax20"}, r"magnitude_max=20.*leave '-mmax' out"),
    "AugMix, blended": (
        {"auto_augment": "augmix-m5-b1"},
        r"AugMixAugment\(alpha=1.0, blended=True\).*leave '-a' and '-b'",
    ),
    "AugMix of normal levels": ({"auto_augment": "augmix-m5-mstd0.5"}, r"AugMixAugment\(ops=.*leave '-mstd'"),
    "AutoAugment": ({"auto_augment": "original-mstd0.5"}, r"AutoAugment\(policy=.*PosterizeOriginal.*AutoAugment\(\)"),
    "3-Augment of random levels": ({"auto_augment": "3a-mstd0.5"}, r"AutoAugment\(policy=.*mstd=0.5.*'3a'"),
    "random color": ({"re_prob": 0.2, "re_mode": "rand"}, r"re_mode='rand'.*re_mode='pixel' or 'const'"),
    "several boxes": ({"re_prob": 0.2, "re_count": 3}, r"re_count=3.*re_count=1"),
    "a part of the batch": (
        {"re_prob": 0.2, "re_num_splits": 2, "use_prefetcher": True},
        r"re_num_splits=2.*re_prob=0.1",
    ),
    "TensorFlow": ({"tf_preprocessing": True, "use_prefetcher": True}, r"tf_preprocessing=True.*=False"),
    "NaFlex": ({"naflex": True}, r"RandomResizedCropToSequence.*naflex=False"),
    "patches": ({"patchify": True}, r"Patchify.*patchify=False"),
    "gray": ({"input_size": (1, 28, 28)}, r"input_size=\(1, 28, 28\).*three channels.*\(3, height, width\)"),
    "border": ({"is_training": False, "crop_mode": "border"}, r"crop_mode='border'.*crop_mode='center' or 'squash'"),
    "trimmed": ({"is_training": False, "crop_border_pixels": 4}, r"border_size=4.*crop_border_pixels=None"),
    "no square": ({"is_training": False, "input_size": (3, 48, 40)}, r"size=\(54, 45\).*'squash', or a square"),
}


def test_a_center_crop_that_pads() -> None:
    recipe = gpupipe.Recipe.from_timm(input_size=(3, 48, 48), is_training=False, crop_pct=1.2)
    assert recipe.crop == gpupipe.ResizeCenterCrop(48, 40, recipe.crop.interpolation, fill=0)


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(gpupipe.TranslationError, match=message) as raised:
        Recipe.from_timm(**TRAIN | arguments)
    assert raised.value.operation
    assert raised.value.alternative


def test_other_filters_of_policies_are_refused() -> None:
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.transforms import RandomResizedCropAndInterpolation

    crop = RandomResizedCropAndInterpolation(SIZE)
    for filters in (Image.Resampling.LANCZOS, (Image.Resampling.NEAREST, Image.Resampling.BICUBIC)):
        with pytest.raises(gpupipe.TranslationError, match=r"RandAugment\(interpolation=.*'bicubic' or 'random'"):
            Recipe.from_timm([crop, rand_augment_transform("rand-m9", {"interpolation": filters})])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Recipe.from_timm(auto_augment="4a", **TRAIN), "create_transform.*Unknown AA policy 4a"),
        (lambda: Recipe.from_timm(size=3), "create_transform.*'size'"),
        (lambda: Recipe.from_timm(interpolation="best"), "create_transform.*KeyError: 'best'"),
        (lambda: Recipe.from_timm(torch.nn.Identity(), hflip=1), "hflip of create_transform: pass one of both"),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=message):
        call()


# Mixing


def mixup(kind: str = "Mixup", **settings: Any) -> Any:
    from timm import data

    return getattr(data, kind)(**{"num_classes": 5} | settings)


@pytest.mark.parametrize(
    ("settings", "mixing"),
    [
        ({}, MixUp(5, 1.0, 1.0, 0.1, None)),
        ({"cutmix_alpha": 0.3, "mode": "pair"}, MixUpOrCutMix(5, 1.0, 0.3, 1.0, 0.5, 0.1, 2, "timm")),
        (
            {"mixup_alpha": 0.0, "cutmix_alpha": 0.3, "mode": "elem", "prob": 0.7, "label_smoothing": 0.0},
            CutMix(5, 0.3, 0.7, rounding="timm"),
        ),
        (
            {"cutmix_alpha": 1.0, "switch_prob": 0.2, "correct_lam": True},
            MixUpOrCutMix(5, 1, 1, 1, 0.2, 0.1, None, "timm"),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["Mixup", "FastCollateMixup"])
def test_what_mixup_becomes(kind: str, settings: dict[str, Any], mixing: Any) -> None:
    recipe = Recipe.from_timm(mixup=mixup(kind, **settings), **TRAIN | NO_COLOR)
    assert recipe == Recipe((*PLAIN, mixing))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: mixup("FastCollateMixup", mode="half"), r"FastCollateMixup\(mode='half'\).*mode='batch', 'pair' or"),
        (lambda: mixup(cutmix_minmax=(0.2, 0.8)), r"Mixup\(cutmix_minmax=\(0.2, 0.8\)\).*cutmix_alpha=1.0"),
        (lambda: mixup(cutmix_alpha=1.0, correct_lam=False), r"correct_lam=False.*correct_lam=True"),
        (lambda: mixup(multi_label=True), r"multi_label=True"),
        (lambda: vars(mixup()), r"mixup=\{.*pass a timm.data.Mixup"),
    ],
)
def test_mixing_that_is_refused(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(gpupipe.TranslationError, match=message):
        Recipe.from_timm(mixup=made(), **TRAIN)


def test_labels_of_another_default_dtype_are_refused() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        _, labels = mixup()(torch.zeros(2, 3, 4, 4), torch.tensor([0, 1]))
        with pytest.raises(gpupipe.TranslationError, match=r"Mixup can't .* its labels are of torch's default dtype"):
            Recipe.from_timm(mixup=mixup(), normalize=False, **TRAIN | NO_COLOR)
    finally:
        torch.set_default_dtype(torch.float32)
    assert labels.dtype == torch.float64


def test_erasing_after_mixing_is_refused() -> None:
    """The prefetcher erases what its collate_fn has mixed; Mixup mixes what the transform has erased."""
    with pytest.raises(gpupipe.TranslationError, match=r"FastCollateMixup with re_prob=0.2.*re_prob=0"):
        Recipe.from_timm(mixup=mixup("FastCollateMixup"), re_prob=0.2, **TRAIN)
    assert Recipe.from_timm(mixup=mixup(), re_prob=0.2, **TRAIN).mixing is not None


# Pixels and draws


def rendered(recipe: Recipe, files: list[bytes], count: int) -> np.ndarray:
    """All images of an epoch in turn."""
    data: Any = Numbered(count, files)
    with gpupipe.Loader(data, recipe, 8, engine="torch", num_workers=0, device="cpu", seed=5) as loader:
        return np.concatenate([images.numpy().copy() for images, _ in loader])


FORMS = [(97, 131), (64, 64), (60, 150), (200, 333), (50, 52)]
EVALUATIONS = [
    {"crop_pct": 0.95, "interpolation": "bicubic"},
    {"crop_pct": 1.0},
    {"interpolation": "bicubic", "input_size": 37},
    {"is_training": True, "no_aug": True, "input_size": 37},
]


@pytest.mark.parametrize("arguments", EVALUATIONS, ids=str)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_evaluation_has_timms_pixels(arguments: dict[str, Any], kind: str) -> None:
    from timm.data import create_transform

    files = [encode(picture(*form, seed), kind) for seed, form in enumerate(FORMS)]
    arguments = {"input_size": (3, SIZE, SIZE), "normalize": False} | arguments
    theirs = create_transform(**arguments)
    expected = np.stack([theirs(decoded(file)).numpy() for file in files])
    ours = rendered(Recipe.from_timm(**arguments), files, len(files))
    np.testing.assert_array_equal(ours, expected)
    arguments["normalize"] = True
    expected = np.stack([create_transform(**arguments)(decoded(file)).numpy() for file in files])
    ours = rendered(Recipe.from_timm(**arguments), files, len(files))
    np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_evaluation_of_squashed_images() -> None:
    from timm.data import create_transform

    files = [encode(picture(*form, seed), "PNG") for seed, form in enumerate([*FORMS, (150, 60)])]
    arguments = {"input_size": (3, SIZE, SIZE), "normalize": False, "crop_mode": "squash"}
    expected = np.stack([create_transform(**arguments)(decoded(file)).numpy() for file in files]).astype(float)
    ours = rendered(Recipe.from_timm(**arguments), files, len(files))
    assert np.abs(ours - expected).mean() < 0.5
    assert np.abs(ours - expected).max() <= 1  # Pillow turns the order of its passes round for some forms


def decoded(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB")


def statistics(images: np.ndarray) -> dict[str, np.ndarray]:
    """One number of each image, by what an operation would change."""
    flat = images.reshape(len(images), 3, -1)
    return {
        "red": flat[:, 0].mean(1),
        "blue": flat[:, 2].mean(1),
        "spread": flat.std((1, 2)),
        "saturation": (flat.max(1) - flat.min(1)).mean(1),
        "left to right": (images[..., : SIZE // 2].mean((1, 2, 3)) - images[..., SIZE // 2 :].mean((1, 2, 3))),
        "detail": np.abs(np.diff(images, axis=3)).mean((1, 2, 3)),
        "erased": (images == 0).all(1).mean((1, 2)),
    }


def timms(arguments: dict[str, Any], file: bytes, count: int) -> np.ndarray:
    """So many images that timm's transform makes of one."""
    from timm.data import create_transform

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  (timm draws from there)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        transform, image = create_transform(**arguments), decoded(file)
        return np.stack([transform(image).numpy() for _ in range(count)])


def same_distribution(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Of each of the statistics."""
    expected = statistics(theirs)
    for what, numbers in statistics(ours).items():
        assert stats.ks_2samp(numbers, expected[what]).pvalue > SURELY, what


DRAWN = [
    "AugMix",
    "crop",
    "random filter",
    "color jitter",
    "color jitter with hue",
    "grayscale and blur",
    "erasing",
    "RandAugment",
    "RandAugment by a random filter",
    "RandAugment by a bicubic filter",
    "3-Augment",
]


@pytest.mark.parametrize("name", DRAWN)
def test_training_images_are_distributed_as_timms(name: str) -> None:
    arguments = TRAIN | CARRIED[name][0]
    file, count = encode(picture(80, 104, 3), "PNG"), 400
    same_distribution(rendered(Recipe.from_timm(**arguments), [file], count), timms(arguments, file, count))


def test_boxes_and_filters_are_distributed_as_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.data import create_transform, transforms

    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(transforms.F, "resized_crop", lambda image, *given: (drawn.append(given), image)[1])
    random.seed(3)
    arguments = TRAIN | NO_COLOR | {"interpolation": "random", "hflip": 0.0, "normalize": False}
    theirs, image = create_transform(**arguments), Image.new("RGB", (200, 120))
    for _ in range(2000):
        theirs(image)
    cubic = [filters.value == "bicubic" for *_, filters in drawn]
    sides = np.full(2000, 120, np.int32), np.full(2000, 200, np.int32)
    ours = cropping(Recipe.from_timm(**arguments), 7, 0, np.arange(2000), *sides)
    for column, numbers in enumerate(ours.windows.T):
        assert stats.ks_2samp(numbers, [box[column] for box in drawn]).pvalue > SURELY
    for made in (cubic, ours.bicubic):
        assert stats.binomtest(int(sum(made)), 2000, 0.5).pvalue > SURELY


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("alphas", [(0.8, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_labels_are_mixed_as_timms(mode: str, alphas: tuple[float, float]) -> None:
    size, count, classes = 8, 200, 16
    settings = {"mixup_alpha": alphas[0], "cutmix_alpha": alphas[1], "mode": mode, "prob": 0.8, "num_classes": classes}
    np.random.seed(2)  # noqa: NPY002  (timm draws from there)
    theirs, labels = mixup(**settings), torch.arange(size)
    expected = np.stack([theirs(torch.zeros(size, 3, 16, 16), labels)[1].numpy() for _ in range(count)])
    recipe = Recipe.from_timm(mixup=mixup(**settings), **TRAIN | NO_COLOR | {"input_size": 16})

    class Eight(Numbered):
        def __getitem__(self, index: int) -> tuple[bytes, int]:
            return self.files[0], index % size

    data: Any = Eight(size * count, [encode(picture(20, 20), "PNG")])
    with gpupipe.Loader(data, recipe, size, engine="torch", num_workers=0, device="cpu") as loader:
        ours = np.stack([targets.numpy().copy() for _, targets in loader])
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours.sum(2), 1, atol=1e-5)
    own, their_own = (targets[:, np.arange(size), np.arange(size)] for targets in (ours, expected))
    for row in (0, 5):
        assert stats.ks_2samp(own[:, row], their_own[:, row]).pvalue > SURELY
    alike = {"batch": 1, "pair": size // 2, "elem": size}[mode]
    for targets in (own, their_own):  # so many shares in a batch, but for those that are not mixed
        assert max(len(np.unique(row.round(6))) for row in targets) <= alike


# What stays timm's own

JITTER = ColorJitter(0.4, 0.4, 0.4)
CHANGED = {"vflip": 0.2, "auto_augment": "augmix-m4"}
IN_PART: dict[str, tuple[dict[str, Any], str, Any]] = {
    "RandAugment": (
        {"interpolation": "bicubic", "auto_augment": "rand-m6-mstd0.5-tweights", "re_prob": 0.2},
        "RandAugment",
        (
            RandomResizedCrop(SIZE, interpolation="bicubic"),
            RandomHorizontalFlip(),
            Normalize(),
            RandomErasing(0.2, (0.02, 1 / 3), (0.3, THIRD)),
        ),
    ),
    "AugMix and jitter": (
        {"auto_augment": "augmix-m5-w4-d2-b1", "vflip": 0.3},
        "AugMixAugment",
        (*PLAIN[:2], gpupipe.RandomVerticalFlip(0.3), PLAIN[2]),
    ),
}


@pytest.mark.parametrize(("arguments", "names", "others"), IN_PART.values(), ids=IN_PART.keys())
def test_what_has_no_counterpart_stays_timms_own(arguments: dict[str, Any], names: str, others: Any) -> None:
    arguments = TRAIN | arguments
    recipe, told = recipe_in_part(None, arguments)
    assert told == names
    assert tuple(one for one in recipe.operations if not isinstance(one, gpupipe.PerImage)) == others
    assert recipe.fingerprint == recipe_in_part(None, arguments)[0].fingerprint
    assert recipe.fingerprint != recipe_in_part(None, arguments | CHANGED)[0].fingerprint
    file, count = encode(picture(80, 104, 3), "PNG"), 300
    before = random.getstate()
    ours = rendered(recipe, [file], count)
    assert random.getstate() == before
    assert len(np.unique(ours[:, 0, 9, 9])) > 20
    same_distribution(ours, timms(arguments, file, count))


@pytest.mark.parametrize(
    ("arguments", "mode", "message"),
    [
        ({"train_crop_mode": "rkrc"}, "batch", "train_crop_mode='rkrc or rkrr'"),
        ({"interpolation": "lanczos", "hflip": 0.0, "color_jitter": None}, "batch", "interpolation='lanczos'"),
        ({"is_training": False, "crop_mode": "border"}, "batch", "crop_mode='border'"),
        ({"auto_augment": "original", "re_prob": 0.1, "re_count": 3}, "batch", "re_count=3"),
        ({}, "half", "mode='half'"),
    ],
)
def test_what_is_no_augmentation_is_refused_even_so(arguments: dict[str, Any], mode: str, message: str) -> None:
    with pytest.raises(gpupipe.TranslationError, match=message):
        recipe_in_part(mixup("FastCollateMixup", mode=mode), TRAIN | arguments)
