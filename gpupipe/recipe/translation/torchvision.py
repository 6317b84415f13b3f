"""Recipes from torchvision's transforms, v1 and v2, and from its MixUp and CutMix in a collate_fn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpupipe.recipe.augmentations import (
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    RandomAdjustSharpness,
    RandomApply,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomChoice,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomSolarize,
)
from gpupipe.recipe.auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from gpupipe.recipe.checks import floats
from gpupipe.recipe.geometric import (
    ElasticTransform,
    RandomAffine,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
)
from gpupipe.recipe.operations import RandomErasing, RandomResizedCrop, Resize
from gpupipe.recipe.recipe import Recipe
from gpupipe.recipe.translation.collating import mixing_of
from gpupipe.recipe.translation.reading import Known, Reader, Reading
from gpupipe.recipe.translation.untouched import AS_IT_IS

__all__ = ["ALTERNATIVES", "TORCHVISION", "recipe_from_torchvision"]


def recipe_from_torchvision(transform: Any, collate_fn: Any = None) -> Recipe:
    """The recipe that does to RGB images what `transform` does, and to batches what `collate_fn` does.

    transform:  any of torchvision's, v1 or v2, also in Compose and torch.nn.Sequential, a weights' `transforms()`, and
                objects that only hand an image on to one, as the presets of torchvision's references do. Also DINO's
                own GaussianBlur and Solarization, where they do as those; Pillow's blur, a series of boxes, becomes
                torchvision's (0.6 levels apart in the mean).
    collate_fn: None, torch's `default_collate`, torchvision's MixUp, CutMix, its references' RandomMixUp and
                RandomCutMix, or a RandomChoice of both, or a function that does `return mixup(*default_collate(batch))`
                and no more. A last batch that is not full is not mixed.

    dtype follows the transform's: images or uint8 tensors give "uint8", floats "float32". On the torch engine what
    evaluates Pillow's images has the original's levels, to the bit (within 1, bicubic on noise of black and white up to
    30, where Pillow 13 resizes columns first, as it may where images are stretched or much higher than wide).
    Augmentations have those of torchvision's functions on uint8 tensors, which differ from Pillow's by a level or two
    (a hue's by up to 9), and are drawn from the same distributions, but by gpupipe's own keys, not torch's generator.

    Raises TranslationError for what would give other results: it names the transform, its setting, what comes nearest.
    """
    reading = Reading(TORCHVISION, ALTERNATIVES)
    reading.read(transform)
    return reading.recipe(mixing_of(collate_fn))


# Containers.


def _compose(reading: Reading, transforms: Iterable[Any]) -> None:
    reading.read_all(transforms)


def _apply(reading: Reading, transforms: Iterable[Any], p: float) -> None:
    reading.augment(RandomApply(tuple(reading.inside(transforms)), p))


def _choice(reading: Reading, transforms: Iterable[Any], p: Sequence[float] | None) -> None:
    options = [reading.inside([transform]) for transform in transforms]
    if not all(options):
        raise reading.refuse(
            "one of its options does nothing", "take RandomApply with RandomChoice of the others in it"
        )
    weights = None if p is None or len(set(p)) == 1 else tuple(p)
    single = [option[0] if len(option) == 1 else RandomApply(tuple(option), 1.0) for option in options]
    reading.augment(RandomChoice(tuple(single), weights))


def _preset(
    reading: Reading, crop_size: Any, resize_size: Any, mean: Any, std: Any, interpolation: Any, antialias: Any
) -> None:
    _resize(reading, resize_size, interpolation, None, antialias)
    _center_crop(reading, crop_size)
    reading.convert("float32")
    _normalize(reading, mean, std)


# Crops and flips.


def _random_resized_crop(
    reading: Reading, size: Any, scale: Any, ratio: Any, interpolation: Any, antialias: Any
) -> None:
    reading.crop_to(RandomResizedCrop(_pair(size), scale, ratio, _filter(reading, interpolation, antialias)))


def _resize(reading: Reading, size: Any, interpolation: Any, max_size: Any, antialias: Any) -> None:
    one = size if isinstance(size, int | None) else size[0] if len(size) == 1 else _pair(size)
    reading.resize_to(one, _filter(reading, interpolation, antialias), max_size=max_size)


def _random_resize(reading: Reading, min_size: int, max_size: int, interpolation: Any, antialias: Any) -> None:
    reading.resize_to((min_size, max_size), _filter(reading, interpolation, antialias), drawn=True)


def _random_shortest_size(
    reading: Reading, min_size: Any, max_size: int | None, interpolation: Any, antialias: Any
) -> None:
    if max_size is None:
        raise reading.refuse("sizes have no bound", "give max_size", max_size=max_size)
    reading.crop_to(Resize(tuple(min_size), max_size, _filter(reading, interpolation, antialias)))


def _scale_jitter(reading: Reading, target_size: Any, scale_range: Any, interpolation: Any, antialias: Any) -> None:
    size, how = _pair(target_size), _filter(reading, interpolation, antialias)
    if size[0] != size[1]:
        reason = "it takes the width first, FixedSizeCrop the height"
        raise reading.refuse(reason, "take a square", target_size=target_size)
    reading.resize_to(size, how, scale=tuple(scale_range))


def _center_crop(reading: Reading, size: Any) -> None:
    reading.center_crop(_pair(size))


def _pad(reading: Reading, padding: Any, fill: Any, padding_mode: str) -> None:
    reading.pad(_padding(reading, padding), _filling(reading, fill, padding_mode))


def _random_crop(reading: Reading, size: Any, padding: Any, pad_if_needed: bool, fill: Any, padding_mode: str) -> None:
    pads = bool(padding) or pad_if_needed
    width = _padding(reading, padding or 0) if pads else 0
    reading.random_crop(_pair(size), width, _filling(reading, fill, padding_mode) if pads else None, pad_if_needed)


def _zoom_out(reading: Reading, fill: Any, side_range: Any, p: float) -> None:
    reading.choose_by_boxes(zoom_out=tuple(side_range), p=p, fill=_color(reading, fill))


def _iou_crop(
    reading: Reading,
    min_scale: float,
    max_scale: float,
    min_aspect_ratio: float,
    max_aspect_ratio: float,
    sampler_options: Any,
    trials: int,
) -> None:
    reading.choose_by_boxes(
        min_scale=min_scale,
        max_scale=max_scale,
        min_aspect_ratio=min_aspect_ratio,
        max_aspect_ratio=max_aspect_ratio,
        sampler_options=tuple(sampler_options),
        trials=trials,
    )


def _padding(reading: Reading, padding: Any) -> int:
    """The same on each side."""
    sides = {padding} if isinstance(padding, int) else set(padding)
    if len(sides) > 1:
        raise reading.refuse("sides are padded differently", "give one number", padding=padding)
    return int(sides.pop())


def _filling(reading: Reading, fill: Any, mode: str) -> tuple[Any, str]:
    """The color, where one is seen, and the mode."""
    return _color(reading, fill) if mode == "constant" else 0, mode


def _color(reading: Reading, fill: Any) -> Any:
    """That of images, where it depends on the class; masks are padded with what their field ignores."""
    if isinstance(fill, dict):
        fill = _by_class(reading, ("Image", "Tensor", "PIL"), fill=fill)
    color = fill if fill is None or isinstance(fill, int | float) else tuple(fill) * (3 if len(fill) == 1 else 1)
    if reading.dtype == "float32" and color not in (0, None, (0, 0, 0)):
        raise reading.refuse("levels of images lie from 0 to 255", "put it before the conversion to floats", fill=fill)
    return color or 0


def _flip(reading: Reading, p: float) -> None:
    reading.flip_with(p)


def _vertical_flip(reading: Reading, p: float) -> None:
    reading.augment(RandomVerticalFlip(p))


def _rotation(reading: Reading, degrees: Any, interpolation: Any, expand: bool, center: Any, fill: Any) -> None:
    if expand:
        raise reading.refuse("sizes of what comes out differ", "take expand=False", expand=expand)
    _check_center(reading, center)
    reading.augment(RandomRotation(degrees, *_moved(reading, interpolation, fill)))


def _affine(
    reading: Reading, degrees: Any, translate: Any, scale: Any, shear: Any, interpolation: Any, fill: Any, center: Any
) -> None:
    _check_center(reading, center)
    reading.augment(RandomAffine(degrees, translate, scale, shear, *_moved(reading, interpolation, fill)))


def _perspective(reading: Reading, distortion_scale: float, p: float, interpolation: Any, fill: Any) -> None:
    reading.augment(RandomPerspective(distortion_scale, p, *_moved(reading, interpolation, fill)))


def _elastic(reading: Reading, alpha: Any, sigma: Any, interpolation: Any, fill: Any) -> None:
    if len(set(sigma)) > 1:
        raise reading.refuse("it blurs as much along as across", "give one number", sigma=sigma)
    reading.augment(ElasticTransform(tuple(alpha), sigma[0], *_moved(reading, interpolation, fill)))


def _check_center(reading: Reading, center: Any) -> None:
    if center is not None:
        raise reading.refuse("images turn about their middle", "take center=None", center=center)


def _pair(size: Any) -> tuple[int, int]:
    sides = [size] if isinstance(size, int) else list(size)
    return (sides[0], sides[-1])


def _filter(reading: Reading, interpolation: Any, antialias: Any) -> Any:
    name = _sampling(interpolation)
    if name not in ("bilinear", "bicubic"):
        raise reading.refuse("there is no such filter", "take bilinear or bicubic", interpolation=name)
    if antialias is not True:
        alternative = "take antialias=True, which Pillow's images are resized with anyway"
        raise reading.refuse("a recipe resizes with antialiasing", alternative, antialias=antialias)
    return name


def _sampling(interpolation: Any) -> Any:
    """The name of an InterpolationMode, of itself or of Pillow's number for it."""
    pillows = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
    return pillows.get(interpolation) or getattr(interpolation, "value", interpolation)


# Types and numbers.


def _to_tensor(reading: Reading) -> None:
    """The one step whose floats are of torch's default dtype."""
    import torch

    default = torch.get_default_dtype()
    if not reading.dtype and default is not torch.float32:
        alternative = "take PILToTensor() and ConvertImageDtype(torch.float32) in its place"
        raise reading.refuse(f"torch's default dtype is {_dtype(default)}, and a recipe's float32", alternative)
    _to(reading, "float32", "Tensor")


def _pil_to_tensor(reading: Reading) -> None:
    _to(reading, "uint8", "Tensor")


def _to_image(reading: Reading) -> None:
    _to(reading, "uint8", "")
    reading.kind = "Image"


def _to(reading: Reading, dtype: str, kind: str) -> None:
    """Tensors are passed on. What ToDtype has converted may be one, or a Pillow image, which that leaves as it is."""
    if not reading.dtype:
        reading.convert(dtype)
        reading.kind = kind
    elif not reading.kind:
        raise reading.refuse("a conversion before it leaves Pillow's images as they are", "put it before that")


def _to_pure_tensor(reading: Reading) -> None:
    if reading.dtype:
        reading.kind = "Tensor"


def _convert(reading: Reading, dtype: Any) -> None:
    reading.convert(_dtype(dtype))


def _to_dtype(reading: Reading, dtype: Any, scale: bool) -> None:
    wanted = dtype
    if isinstance(dtype, dict):
        wanted = _by_class(reading, ("Image", "Tensor"), dtype=dtype)
    if wanted is not None:
        reading.convert(_dtype(wanted), scale)


def _by_class(reading: Reading, kinds: tuple[str, ...], **setting: dict[Any, Any]) -> Any:
    """What a setting has for images of their class. kinds: those of which they may be, where that is unknown."""
    ((_, values),) = setting.items()
    named = {_class_name(key): value for key, value in values.items()}
    first, *others = (named.get(kind, named.get("others")) for kind in ((reading.kind,) if reading.kind else kinds))
    if any(other != first for other in others):
        raise reading.refuse("it depends on the image's class", "put ToImage() before it", **setting)
    return first


def _class_name(key: Any) -> str:
    """As `Reading.kind` names classes; Pillow's is "PIL"."""
    name = str(getattr(key, "__name__", key))
    return "PIL" if name == "Image" and key.__module__.startswith("PIL.") else name


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _normalize(reading: Reading, mean: Any, std: Any, inplace: bool = False) -> None:
    means, stds = (tuple(floats(value) or floats([value])) for value in (mean, std))
    if not {len(means), len(stds)} <= {1, 3}:
        raise reading.refuse("images have the channels R, G, B", "give three of each", mean=mean, std=std)
    reading.normalize_with(*(values * 3 if len(values) == 1 else values for values in (means, stds)))  # type: ignore[arg-type]


def _erasing(reading: Reading, p: float, scale: Any, ratio: Any, value: Any, inplace: bool) -> None:
    if value is not None and not isinstance(value, str) and len(floats(value)) == 1:
        (value,) = value
    reading.erase(RandomErasing(p, scale, ratio, "random" if value is None else value))


def _nothing(reading: Reading) -> None:
    """Images are RGB, and of no class."""


# Augmentations.


def _jitter(reading: Reading, brightness: Any, contrast: Any, saturation: Any, hue: Any) -> None:
    reading.augment(ColorJitter(brightness, contrast, saturation, hue))


def _distort(reading: Reading, brightness: Any, contrast: Any, saturation: Any, hue: Any, p: float) -> None:
    reading.augment(RandomPhotometricDistort(brightness, contrast, saturation, hue, p))


def _permute(reading: Reading) -> None:
    reading.augment(RandomChannelPermutation())


def _noise(reading: Reading, mean: float, sigma: float, clip: bool) -> None:
    if not clip:
        raise reading.refuse("a recipe's levels end at 0 and 255", "take clip=True", clip=clip)
    reading.augment(GaussianNoise(mean, sigma))


def _grayscale(reading: Reading, num_output_channels: int) -> None:
    if num_output_channels != 3:
        alternative = "take num_output_channels=3"
        raise reading.refuse("images keep three channels", alternative, num_output_channels=num_output_channels)
    if not reading.dtype:
        reason = "Pillow rounds gray levels, where tensors' are cut off"
        raise reading.refuse(reason, "put PILToTensor() before it, or take RandomGrayscale(p=1.0)")
    reading.augment(RandomGrayscale(1.0))


def _random_grayscale(reading: Reading, p: float) -> None:
    reading.augment(RandomGrayscale(p))


def _solarize(reading: Reading, threshold: float, p: float) -> None:
    reading.augment(RandomSolarize(threshold * 255 if reading.dtype == "float32" else threshold, p))


def _invert(reading: Reading, p: float) -> None:
    reading.augment(RandomInvert(p))


def _posterize(reading: Reading, bits: int, p: float) -> None:
    reading.augment(RandomPosterize(bits, p))


def _autocontrast(reading: Reading, p: float) -> None:
    reading.augment(RandomAutocontrast(p))


def _equalize(reading: Reading, p: float) -> None:
    reading.augment(RandomEqualize(p))


def _sharpness(reading: Reading, sharpness_factor: float, p: float) -> None:
    reading.augment(RandomAdjustSharpness(sharpness_factor, p))


def _blur(reading: Reading, kernel_size: Any, sigma: Any) -> None:
    wide, high = kernel_size
    if wide != high:
        raise reading.refuse("its kernel is not a square", "take one number", kernel_size=kernel_size)
    reading.augment(GaussianBlur(wide, tuple(sigma)))


def _rand_augment(
    reading: Reading, num_ops: int, magnitude: int, num_magnitude_bins: int, interpolation: Any, fill: Any
) -> None:
    reading.augment(RandAugment(num_ops, magnitude, num_magnitude_bins, *_moved(reading, interpolation, fill)))


def _aug_mix(
    reading: Reading,
    severity: int,
    mixture_width: int,
    chain_depth: int,
    alpha: float,
    all_ops: bool,
    interpolation: Any,
    fill: Any,
) -> None:
    if alpha != 1:
        raise reading.refuse("all shares are as likely", "take alpha=1.0", alpha=alpha)
    depth = chain_depth if chain_depth > 0 else -1
    reading.augment(AugMix(severity, mixture_width, depth, all_ops, *_moved(reading, interpolation, fill)))


def _trivial_augment(reading: Reading, num_magnitude_bins: int, interpolation: Any, fill: Any) -> None:
    reading.augment(TrivialAugmentWide(num_magnitude_bins, *_moved(reading, interpolation, fill)))


def _auto_augment(reading: Reading, policy: Any, interpolation: Any, fill: Any) -> None:
    reading.augment(AutoAugment(policy.value, *_moved(reading, interpolation, fill)))


def _moved(reading: Reading, interpolation: Any, fill: Any) -> tuple[Any, Any]:
    """The interpolation's name, and the fill."""
    name = _sampling(interpolation)
    if name not in ("nearest", "bilinear"):
        raise reading.refuse("pixels are moved by other filters", "take nearest or bilinear", interpolation=name)
    if isinstance(fill, dict):
        raise reading.refuse("it depends on the image's class", "give one color", fill=fill)
    return name, fill[0] if isinstance(fill, Sequence) and len(fill) == 1 else fill


READERS: dict[str, Reader] = {
    "Compose": _compose,
    "RandomApply": _apply,
    "RandomChoice": _choice,
    "ImageClassification": _preset,
    "RandomResizedCrop": _random_resized_crop,
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "RandomResize": _random_resize,
    "RandomShortestSize": _random_shortest_size,
    "RandomCrop": _random_crop,
    "Pad": _pad,
    "ScaleJitter": _scale_jitter,
    "RandomZoomOut": _zoom_out,
    "RandomIoUCrop": _iou_crop,
    "RandomHorizontalFlip": _flip,
    "RandomVerticalFlip": _vertical_flip,
    "RandomRotation": _rotation,
    "RandomAffine": _affine,
    "RandomPerspective": _perspective,
    "ElasticTransform": _elastic,
    "ToTensor": _to_tensor,
    "PILToTensor": _pil_to_tensor,
    "ToImage": _to_image,
    "ToPureTensor": _to_pure_tensor,
    "ConvertImageDtype": _convert,
    "ToDtype": _to_dtype,
    "Normalize": _normalize,
    "RandomErasing": _erasing,
    "Identity": _nothing,
    "RGB": _nothing,
    "ColorJitter": _jitter,
    "RandomPhotometricDistort": _distort,
    "RandomChannelPermutation": _permute,
    "GaussianNoise": _noise,
    "Grayscale": _grayscale,
    "RandomGrayscale": _random_grayscale,
    "RandomSolarize": _solarize,
    "RandomInvert": _invert,
    "RandomPosterize": _posterize,
    "RandomAutocontrast": _autocontrast,
    "RandomEqualize": _equalize,
    "RandomAdjustSharpness": _sharpness,
    "GaussianBlur": _blur,
    "RandAugment": _rand_augment,
    "TrivialAugmentWide": _trivial_augment,
    "AutoAugment": _auto_augment,
    "AugMix": _aug_mix,
}
TORCHVISION: Known = {
    "torch.nn.Sequential": _compose,
    "torch.nn.Identity": _nothing,
    **{f"torchvision.transforms.{name}": reader for name, reader in READERS.items()},
}

ALTERNATIVES = {
    "RandomOrder": f"ColorJitter has a random order of its own; else write one order, in Compose; {AS_IT_IS}",
    **dict.fromkeys(("MixUp", "CutMix"), "pass it as collate_fn, as it mixes batches"),
}
