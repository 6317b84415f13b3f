"""gpupipe: a GPU-accelerated vision input pipeline on NVIDIA DALI, in the place of PyTorch's DataLoader."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from gpupipe.errors import (
    ConfigError,
    DataError,
    EngineUnavailableError,
    GpupipeError,
    LoaderTimeoutError,
    SampleError,
    StateError,
)
from gpupipe.loader import Loader
from gpupipe.order import Order, Sequential, Shuffled, Subset, Weighted
from gpupipe.recipe import (
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Recipe,
    ResizeCenterCrop,
    imagenet_eval,
    imagenet_train,
)
from gpupipe.sources import open_source

__all__ = [
    "ConfigError",
    "DataError",
    "EngineUnavailableError",
    "GpupipeError",
    "Loader",
    "LoaderTimeoutError",
    "Normalize",
    "Order",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Recipe",
    "ResizeCenterCrop",
    "SampleError",
    "Sequential",
    "Shuffled",
    "StateError",
    "Subset",
    "Weighted",
    "imagenet_eval",
    "imagenet_train",
    "open_source",
]

try:
    __version__ = version("gpupipe")
except PackageNotFoundError:  # used from a checkout that was not installed
    __version__ = "0+unknown"
