"""Recipes from torchvision's transforms, v1 and v2, and from its MixUp and CutMix in a collate_fn."""

from __future__ import annotations

from typing import Any

from gpupipe.recipe.operations import Normalize, RandomErasing, RandomResizedCrop
from gpupipe.recipe.recipe import Recipe
from gpupipe.recipe.translation.reading import Known, Reader, Reading, refuse

__all__ = ["TORCHVISION", "recipe_from_torchvision"]


def recipe_from_torchvision(transform: Any, collate_fn: Any = None) -> Recipe:
    """The recipe that does what the transform does. Raises TranslationError, which names what can't be carried."""
    if collate_fn is not None:
        raise refuse(f"collate_fn={collate_fn!r}", "gpupipe does not know what it does")
    reading = Reading(TORCHVISION)
    reading.read(transform)
    return reading.recipe()


def _compose(reading: Reading, transforms: Any) -> None:
    reading.read_all(transforms)


def _filter(said: str, interpolation: Any, antialias: Any) -> Any:
    value = getattr(interpolation, "value", interpolation)
    if value not in ("bilinear", "bicubic"):
        raise refuse(f"{said}(interpolation={value!r})", "the filter is unknown", "take bilinear or bicubic")
    if antialias is not True:
        raise refuse(f"{said}(antialias={antialias!r})", "images are resized with antialiasing", "take antialias=True")
    return value


def _random_resized_crop(
    reading: Reading, size: Any, scale: Any, ratio: Any, interpolation: Any, antialias: Any
) -> None:
    name = "RandomResizedCrop"
    reading.set_crop(name, RandomResizedCrop(size, scale, ratio, _filter(name, interpolation, antialias)))


def _resize(reading: Reading, size: Any, interpolation: Any, max_size: Any, antialias: Any) -> None:
    size = size[0] if isinstance(size, (list, tuple)) and len(size) == 1 else size
    if max_size is not None or not isinstance(size, int):
        raise refuse(f"Resize(size={size!r}, max_size={max_size!r})", "only a shorter side is known", "give an int")
    reading.set_resize("Resize", size, _filter("Resize", interpolation, antialias))


def _center_crop(reading: Reading, size: Any) -> None:
    reading.center_crop("CenterCrop", tuple(size))


def _flip(reading: Reading, p: float) -> None:
    reading.set_flip("RandomHorizontalFlip", p)


def _to_tensor(reading: Reading) -> None:
    reading.dtype = "float32"


def _to_uint8(reading: Reading) -> None:
    reading.dtype = "uint8"


def _to_dtype(reading: Reading, dtype: Any, scale: bool = True) -> None:
    if str(dtype) != "torch.float32" or not scale:
        raise refuse(f"ToDtype({dtype}, scale={scale})", "only float32 in [0, 1] is known", "take scale=True")
    reading.dtype = "float32"


def _normalize(reading: Reading, mean: Any, std: Any, inplace: bool) -> None:
    reading.normalize = Normalize(tuple(mean), tuple(std))


def _erasing(reading: Reading, p: float, scale: Any, ratio: Any, value: Any, inplace: bool) -> None:
    value = "random" if value is None else value
    reading.erasing = RandomErasing(p, scale, ratio, value[0] if isinstance(value, list) else value)


def _nothing(reading: Reading) -> None:
    pass


READERS: dict[str, Reader] = {
    "Compose": _compose,
    "RandomResizedCrop": _random_resized_crop,
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "RandomHorizontalFlip": _flip,
    "ToTensor": _to_tensor,
    "PILToTensor": _to_uint8,
    "ToImage": _to_uint8,
    "ToPureTensor": _nothing,
    "ConvertImageDtype": _to_dtype,
    "ToDtype": _to_dtype,
    "Normalize": _normalize,
    "RandomErasing": _erasing,
}
TORCHVISION: Known = {f"torchvision.transforms.{name}": reader for name, reader in READERS.items()}
