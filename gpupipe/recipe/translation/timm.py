"""Recipes from timm: the arguments of its `create_transform`, or what that makes, and its Mixup."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError, TranslationError
from gpupipe.host.cache import digest
from gpupipe.host.generators import drawing
from gpupipe.recipe.augmentations import ThreeAugment
from gpupipe.recipe.auto_augment import TimmAugMix, TimmRandAugment
from gpupipe.recipe.checks import floats
from gpupipe.recipe.mixing import CutMix, Mixing, MixUp, MixUpOrCutMix
from gpupipe.recipe.operations import RandomResizedCrop
from gpupipe.recipe.own import PerImage
from gpupipe.recipe.recipe import Recipe
from gpupipe.recipe.translation.reading import Known, Reading
from gpupipe.recipe.translation.torchvision import ALTERNATIVES, TORCHVISION
from gpupipe.recipe.translation.untouched import AS_IT_IS, check_own, is_foreign

__all__ = ["recipe_from_timm", "recipe_in_part"]

TENSORS = ("timm.data.transforms.MaybeToTensor", "timm.data.transforms.MaybePILToTensor")

INTERPOLATION = "pass interpolation='bilinear', 'bicubic' or 'random' (train.py: --train-interpolation)"
RAND = "pass auto_augment='rand-m9-mstd0.5-inc1'"


def recipe_from_timm(transform: Any, mixup: Any, arguments: dict[str, Any]) -> Recipe:
    """The recipe that does what timm's transform does, or that which `create_transform` makes of the arguments.

    transform: as `create_transform` returns it, of one part or, for separate=True, three.
    mixup:     a Mixup or FastCollateMixup of timm's, or None. Labels then are mixed as its own.
    arguments: with use_prefetcher=True what the prefetcher does is in the recipe: normalizing and erasing.

    Evaluation has the pixels of timm's on Pillow's images to the bit, on the torch engine. What RandAugment and
    3-Augment do to pixels differs by less than a level in the mean (`TimmRandAugment`, `ThreeAugment`).

    Raises TranslationError for what would give other results, which names the setting and what comes nearest, and
    ConfigError for what `create_transform` itself does not take.
    """
    if transform is None:
        transform = _created(arguments)
    elif arguments:
        raise ConfigError(
            f"from_timm: a transform was passed, and {', '.join(arguments)} of create_transform: pass one of both"
        )
    reading = Reading(TIMM, ALTERNATIVES | NEAREST)
    reading.read_all(_parts(transform))
    return _mixed(reading, mixup)


def recipe_in_part(mixup: Any, arguments: dict[str, Any]) -> tuple[Recipe, str]:
    """The same of the arguments, where augmentations that have no counterpart stay timm's own, in a `PerImage`: as few
    as can be, after as many as can be; and their names.

    Raises TranslationError where it is the crop that can't be carried, erasing or mixing. (Before a recipe's crop a
    PerImage gets all of each image: with timm's crop in it that took as long as all of timm's transform.)
    """
    parts = list(_parts(_created(arguments)))
    end = next(at for at, part in enumerate(parts) if _name(part) in TENSORS)
    for start, stop in sorted(combinations(range(1, end + 1), 2), key=lambda span: (-span[0], span[1])):
        reading = Reading(TIMM, ALTERNATIVES | NEAREST)
        try:
            reading.read_all(parts[:start])
            reading.augment(_per_image(parts[start:stop]))  # type: ignore[arg-type]
            reading.read_all(parts[stop:])
            recipe = _mixed(reading, mixup)
        except TranslationError:
            continue
        return recipe, ", ".join(type(part).__name__ for part in parts[start:stop])
    return recipe_from_timm(None, mixup, arguments), ""


def _per_image(transforms: list[Any]) -> PerImage:
    import timm

    version = digest([repr(transforms), timm.__version__])
    return PerImage(OnPillow(tuple(transforms)), name="timm's own transforms", version=version)


class OnPillow:
    """timm's transforms of one image, which draw from the global generators: seeded for it, and put back."""

    def __init__(self, transforms: tuple[Any, ...]) -> None:
        self.transforms = transforms

    def __call__(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        from PIL import Image

        pixels: Any = Image.fromarray(image)
        with drawing(generator.integers(2**32, size=4).tolist()):
            for transform in self.transforms:
                pixels = transform(pixels)
        return np.array(pixels)


def _mixed(reading: Reading, mixup: Any) -> Recipe:
    mixing = None if mixup is None else _mixing(mixup)
    if reading.erasing is not None and type(mixup).__name__ == "FastCollateMixup":
        raise TranslationError(
            f"FastCollateMixup with re_prob={reading.erasing.p}",
            "timm's prefetcher erases boxes of mixed images, a recipe erases first",
            "pass re_prob=0 (train.py: --reprob 0), or let Mixup mix batches of a loader without prefetcher",
        )
    return reading.recipe(mixing)


def _created(arguments: dict[str, Any]) -> Any:
    """What timm makes of the arguments, with what its prefetcher would do."""
    from timm.data import create_transform

    try:
        given = inspect.signature(create_transform).bind(**arguments)
        given.apply_defaults()
        _check_arguments(**given.arguments)
        return create_transform(**arguments | {"use_prefetcher": False, "tf_preprocessing": False})
    except TranslationError:
        raise
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"timm's create_transform({arguments}) raised {type(error).__name__}: {error}") from error


def _check_arguments(
    input_size: Any, use_prefetcher: bool, tf_preprocessing: bool, re_prob: float, re_num_splits: int, **_: Any
) -> None:
    """Raise TranslationError for what can't be seen in the transform."""
    if isinstance(input_size, (tuple, list)) and len(input_size) == 3 and input_size[0] != 3:
        raise TranslationError(f"input_size={input_size}", "images have three channels", "pass (3, height, width)")
    if use_prefetcher and tf_preprocessing:
        raise TranslationError("tf_preprocessing=True", "TensorFlow does it", "pass tf_preprocessing=False")
    if use_prefetcher and re_prob and re_num_splits > 1:
        raise TranslationError(
            f"re_num_splits={re_num_splits}",
            "it erases nothing in the first part of each batch, and here each image is drawn by itself",
            f"pass re_num_splits=0 and re_prob={re_prob * (1 - 1 / re_num_splits):g}, which erases as many",
        )


def _parts(transform: Any) -> Iterator[Any]:
    """What it is made of; timm's RandomErasing as torchvision's, which keeps its parameters under their names."""
    from torchvision.transforms import Compose

    if isinstance(transform, (tuple, list)) or type(transform) is Compose:
        for part in getattr(transform, "transforms", transform):
            yield from _parts(part)
    else:
        yield _erasing(transform) if _name(transform) == "timm.data.random_erasing.RandomErasing" else transform


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _erasing(erasing: Any) -> Any:
    """Of one image; `num_splits` has a meaning for batches alone."""
    from torchvision.transforms import RandomErasing

    check_own(erasing)
    if erasing.rand_color:
        reason, alternative = "each box would have a random color", "pass re_mode='pixel' or 'const'"
        raise TranslationError(f"RandomErasing(re_mode={erasing.mode!r})", reason, alternative)
    if (erasing.min_count, erasing.max_count) != (1, 1):
        settings = f"min_count={erasing.min_count}, re_count={erasing.max_count}"
        raise TranslationError(f"RandomErasing({settings})", "a recipe erases one box", "pass re_count=1")
    low, high = (round(math.exp(end), 12) for end in erasing.log_aspect_ratio)
    area, value = (erasing.min_area, erasing.max_area), "random" if erasing.per_pixel else 0
    return RandomErasing(erasing.probability, area, (low, high), value)


# What stands in its transforms.


def _crop(reading: Reading, size: Any, scale: Any, ratio: Any, interpolation: Any) -> None:
    named = _filter(interpolation)
    if named not in ("bilinear", "bicubic", "random"):
        raise reading.refuse("there is no such filter", INTERPOLATION, interpolation=named)
    reading.crop_to(RandomResizedCrop(tuple(size), tuple(scale), tuple(ratio), named))


def _filter(interpolation: Any) -> Any:
    """The name of a filter, Pillow's or torchvision's; "random" for the pair that timm draws from."""
    if isinstance(interpolation, (tuple, list)):
        names = [_filter(each) for each in interpolation]
        return "random" if names == ["bilinear", "bicubic"] else names
    return interpolation.name.lower()


def _keep_ratio(
    reading: Reading,
    size: Any,
    longest: float,
    interpolation: Any,
    random_scale_prob: float,
    random_scale_range: Any,
    random_scale_area: Any,
    random_aspect_prob: float,
    random_aspect_range: Any,
) -> NoReturn:
    if random_scale_prob or random_aspect_prob:
        settings = {"train_crop_mode": "rkrc or rkrr", "random_scale_prob": random_scale_prob}
        raise reading.refuse("a recipe has no such crop", "pass train_crop_mode='rrc'", **settings)
    if longest:
        raise reading.refuse("a recipe does not pad", "pass crop_mode='center' or 'squash'", crop_mode="border")
    raise reading.refuse("the resize is for squares", "pass crop_mode='squash', or a square input_size", size=size)


def _normalize(reading: Reading, mean: Any, std: Any, inplace: bool) -> None:
    """timm's are float32 tensors; here they are the shortest numbers that these stand for."""
    shortest = [[float(str(np.float32(number))) for number in floats(numbers)] for numbers in (mean, std)]
    TORCHVISION["torchvision.transforms.Normalize"](reading, *shortest, inplace)


def _rand_augment(reading: Reading, ops: Any, num_layers: int, choice_weights: Any) -> None:
    from timm.data import auto_augment

    names, first = [op.name for op in ops], ops[0]
    increasing = names == auto_augment._RAND_INCREASING_TRANSFORMS
    if choice_weights is not None or not (increasing or names == auto_augment._RAND_TRANSFORMS):
        raise reading.refuse("it draws from other operations", "leave '-t...' out of auto_augment", ops=names)
    _check_ops(reading, ops, 0.45)
    if not math.isfinite(first.magnitude_std):
        raise reading.refuse(
            "it draws levels uniformly", "pass '-mstd' of at most 100", magnitude_std=first.magnitude_std
        )
    reading.augment(
        TimmRandAugment(
            min(first.magnitude, 10) if first.magnitude_std == 0 else first.magnitude,
            num_layers,
            magnitude_std=first.magnitude_std,
            increasing=increasing,
            p=first.prob,
            interpolation=_moving(reading, first),
            fill=first.kwargs["fillcolor"],
        )
    )


def _auto_augment(reading: Reading, policy: Any) -> None:
    drawn = [[(op.name, op.prob, op.magnitude, op.magnitude_std) for op in group] for group in policy]
    if drawn != THREE_AUGMENT:
        reason, alternative = "a recipe has another searched policy", f"{RAND}, '3a', or take gpupipe.AutoAugment()"
        raise reading.refuse(reason, alternative, policy=policy[:1])
    _check_functions(reading, [op for group in policy for op in group])
    reading.augment(ThreeAugment())


def _aug_mix(reading: Reading, ops: Any, alpha: float, width: int, depth: int, blended: bool) -> None:
    from timm.data import auto_augment

    names, first = [op.name for op in ops], ops[0]
    if alpha != 1 or blended:
        alternative = "leave '-a' and '-b' out of auto_augment"
        raise reading.refuse("shares are all as likely, and mixed at once", alternative, alpha=alpha, blended=blended)
    if names != auto_augment._AUGMIX_TRANSFORMS or not math.isinf(first.magnitude_std) or first.magnitude > 10:
        alternative = "leave '-mstd' out of auto_augment, and take '-m10' at most"
        raise reading.refuse("strengths are drawn uniformly up to 10", alternative, ops=[first])
    _check_ops(reading, ops, 0.3)
    depth = depth if depth > 0 else -1
    reading.augment(TimmAugMix(first.magnitude, width, depth, _moving(reading, first), first.kwargs["fillcolor"]))


def _check_ops(reading: Reading, ops: Any, translate: float) -> None:
    """The settings that have to be alike and that a recipe does not have."""
    first = ops[0]
    _check_functions(reading, ops)
    if len({str((op.prob, op.magnitude, op.hparams, op.kwargs)) for op in ops}) > 1:
        raise reading.refuse("its operations have different settings", "make them alike", ops=ops)
    if first.magnitude_max not in (None, 10):
        raise reading.refuse("levels end at 10", "leave '-mmax' out of auto_augment", magnitude_max=first.magnitude_max)
    share = first.hparams.get("translate_pct", 0.45)
    if share != translate:
        raise reading.refuse(f"images move by {translate}", "let create_transform set it", translate_pct=share)


def _check_functions(reading: Reading, ops: Any) -> None:
    """That operations do what timm's of their names do."""
    from timm.data import auto_augment

    for op in ops:
        check_own(op)
        functions = op.aug_fn, op.level_fn
        known = auto_augment.NAME_TO_OP[op.name], auto_augment.LEVEL_TO_ARG[op.name]
        if is_foreign(functions) or list(map(_unpacked, functions)) != list(map(_unpacked, known)):
            raise reading.refuse("it does something else than timm's of that name", AS_IT_IS, op=op.name)


def _unpacked(function: Any) -> Any:
    """A partial's parts, as two of the same are not equal."""
    return (function.func, function.args, function.keywords) if isinstance(function, partial) else function


def _moving(reading: Reading, op: Any) -> Any:
    """The name of the filter by which an operation moves pixels."""
    named = _filter(op.kwargs["resample"])
    if named not in ("nearest", "bilinear", "bicubic", "random"):
        raise reading.refuse("its operations move pixels by another filter", INTERPOLATION, interpolation=named)
    return named


def _trim(reading: Reading, border_size: int) -> NoReturn:
    raise reading.refuse(
        "a recipe keeps borders", "pass crop_border_pixels=None and a smaller crop_pct", border_size=border_size
    )


THREE_AUGMENT = [[("Solarize", 1.0, 5, 0)], [("Desaturate", 1.0, 10, 0)], [("GaussianBlurRand", 1.0, 10, 0)]]
TIMM: Known = {
    **TORCHVISION,
    "timm.data.transforms.RandomResizedCropAndInterpolation": _crop,
    "timm.data.transforms.ResizeKeepRatio": _keep_ratio,
    "timm.data.transforms.MaybeToTensor": TORCHVISION["torchvision.transforms.ToTensor"],
    "timm.data.transforms.MaybePILToTensor": TORCHVISION["torchvision.transforms.PILToTensor"],
    "torchvision.transforms.Normalize": _normalize,
    "timm.data.auto_augment.RandAugment": _rand_augment,
    "timm.data.auto_augment.AutoAugment": _auto_augment,
    "timm.data.auto_augment.AugMixAugment": _aug_mix,
    "timm.data.transforms.TrimBorder": _trim,
}
NEAREST = {
    "Patchify": "pass patchify=False, and cut the batch into patches in the model",
    "ResizeToSequence": "pass naflex=False",
    "RandomResizedCropToSequence": "pass naflex=False",
}


# Mixing.


def _mixing(mixup: Any) -> Mixing:
    """The operation that does what timm's Mixup does. Raises TranslationError."""
    import torch
    from timm.data import FastCollateMixup, Mixup

    if type(mixup) not in (Mixup, FastCollateMixup):
        raise TranslationError(f"mixup={mixup!r}", "it is no Mixup of timm's own", "pass a timm.data.Mixup")
    check_own(mixup)
    alike = {"batch": None, "pair": 2, "elem": 1}
    for setting, carried, alternative in (
        ("mode", mixup.mode in alike, "pass mode='batch', 'pair' or 'elem'"),
        ("cutmix_minmax", mixup.cutmix_minmax is None, "pass cutmix_alpha=1.0 in its place"),
        ("correct_lam", mixup.correct_lam or mixup.cutmix_alpha <= 0, "pass correct_lam=True"),
        ("multi_label", not mixup.multi_label, "let the training loop call Mixup"),
        ("mixup_enabled", mixup.mixup_enabled, "set loader.mixup_enabled = False"),
    ):
        if not carried:
            said = f"{type(mixup).__name__}({setting}={getattr(mixup, setting)!r})"
            raise TranslationError(said, "a recipe does not mix so", alternative)
    if torch.get_default_dtype() is not torch.float32:
        reason = f"its labels are of torch's default dtype, {torch.get_default_dtype()}, and a recipe's float32"
        raise TranslationError(type(mixup).__name__, reason, "call torch.set_default_dtype(torch.float32)")
    common: dict[str, Any] = {
        "num_classes": mixup.num_classes,
        "p": mixup.mix_prob,
        "label_smoothing": mixup.label_smoothing,
        "alike": alike[mixup.mode],
    }
    alphas = mixup.mixup_alpha, mixup.cutmix_alpha
    if alphas[1] <= 0:
        return MixUp(alpha=alphas[0], **common)
    if alphas[0] <= 0:
        return CutMix(alpha=alphas[1], rounding="timm", **common)
    return MixUpOrCutMix(
        mixup_alpha=alphas[0], cutmix_alpha=alphas[1], switch_p=mixup.switch_prob, rounding="timm", **common
    )
