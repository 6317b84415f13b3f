"""gpupipe: a GPU-accelerated vision input pipeline on NVIDIA DALI, in the place of PyTorch's DataLoader."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpupipe.decode.decoders import Decoders
    from gpupipe.errors import (
        ConfigError,
        DataError,
        EngineUnavailableError,
        GpupipeError,
        LoaderTimeoutError,
        SampleError,
        StateError,
        WorkerError,
    )
    from gpupipe.loader.loader import Loader
    from gpupipe.order import (
        BlockShuffled,
        Order,
        Repeated,
        Sequential,
        Shuffled,
        Stratified,
        Subset,
        VirtualEpochs,
        Weighted,
        split,
    )
    from gpupipe.recipe import (
        AutoAugment,
        ColorJitter,
        CutMix,
        GaussianBlur,
        MixUp,
        MixUpOrCutMix,
        MultiCrop,
        Normalize,
        RandAugment,
        RandomApply,
        RandomChoice,
        RandomErasing,
        RandomGrayscale,
        RandomHorizontalFlip,
        RandomResizedCrop,
        RandomSolarize,
        Recipe,
        ResizeCenterCrop,
        ThreeAugment,
        TimmRandAugment,
        TrivialAugmentWide,
        deit3_eval,
        deit3_train,
        dino_eval,
        dino_train,
        imagenet_eval,
        imagenet_train,
        resnet50_v2_eval,
        resnet50_v2_train,
        timm_a_eval,
        timm_a_train,
    )
    from gpupipe.sources import open_source
    from gpupipe.trainers.transformers import TrainerLoader

__all__ = [
    "AutoAugment",
    "BlockShuffled",
    "ColorJitter",
    "ConfigError",
    "CutMix",
    "DataError",
    "Decoders",
    "EngineUnavailableError",
    "GaussianBlur",
    "GpupipeError",
    "Loader",
    "LoaderTimeoutError",
    "MixUp",
    "MixUpOrCutMix",
    "MultiCrop",
    "Normalize",
    "Order",
    "RandAugment",
    "RandomApply",
    "RandomChoice",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomSolarize",
    "Recipe",
    "Repeated",
    "ResizeCenterCrop",
    "SampleError",
    "Sequential",
    "Shuffled",
    "StateError",
    "Stratified",
    "Subset",
    "ThreeAugment",
    "TimmRandAugment",
    "TrainerLoader",
    "TrivialAugmentWide",
    "VirtualEpochs",
    "Weighted",
    "WorkerError",
    "deit3_eval",
    "deit3_train",
    "dino_eval",
    "dino_train",
    "imagenet_eval",
    "imagenet_train",
    "open_source",
    "resnet50_v2_eval",
    "resnet50_v2_train",
    "split",
    "timm_a_eval",
    "timm_a_train",
]

try:
    __version__ = version("gpupipe")
except PackageNotFoundError:  # used from a checkout that was not installed
    __version__ = "0+unknown"

# Where public names live. They are imported when they are first used, since torch takes a second to import, and
# `gpupipe doctor` has to start where torch can't be imported at all.
_HOMES = {
    "decode.decoders": ("Decoders",),
    "trainers.transformers": ("TrainerLoader",),
    "loader.loader": ("Loader",),
    "sources": ("open_source",),
    "order": (
        "BlockShuffled",
        "Order",
        "Repeated",
        "Sequential",
        "Shuffled",
        "Stratified",
        "Subset",
        "VirtualEpochs",
        "Weighted",
        "split",
    ),
    "recipe": (
        "AutoAugment",
        "ColorJitter",
        "CutMix",
        "GaussianBlur",
        "MixUp",
        "MixUpOrCutMix",
        "MultiCrop",
        "Normalize",
        "RandAugment",
        "RandomApply",
        "RandomChoice",
        "RandomErasing",
        "RandomGrayscale",
        "RandomHorizontalFlip",
        "RandomResizedCrop",
        "RandomSolarize",
        "Recipe",
        "ResizeCenterCrop",
        "ThreeAugment",
        "TimmRandAugment",
        "TrivialAugmentWide",
        "deit3_eval",
        "deit3_train",
        "dino_eval",
        "dino_train",
        "imagenet_eval",
        "imagenet_train",
        "resnet50_v2_eval",
        "resnet50_v2_train",
        "timm_a_eval",
        "timm_a_train",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name, "errors" if name in __all__ else None)
    if home is None:
        raise AttributeError(f"module 'gpupipe' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gpupipe.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
