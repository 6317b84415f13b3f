"""The contenders, one file for each way to load; nothing here imports them.

Every class has the shape of `Contender` in base.py. Names map to `module:class`; such a reference may also be given
in place of a name, so that a loader of one's own can take part: `gpupipe bench --only my_loaders:Mine`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gpupipe.errors import ConfigError

if TYPE_CHECKING:
    from gpupipe.benchmark.contenders.base import Contender

__all__ = ["BASELINE", "CONTENDERS", "describe", "load", "reference"]

BASELINE = "torchvision-pillow"

PACKAGE = "gpupipe.benchmark.contenders"
CONTENDERS = {
    "gpupipe-dali-gpu": f"{PACKAGE}.gpupipe_loader:GpupipeDaliGpu",
    "gpupipe-dali-cpu": f"{PACKAGE}.gpupipe_loader:GpupipeDaliCpu",
    "gpupipe-torch": f"{PACKAGE}.gpupipe_loader:GpupipeTorch",
    BASELINE: f"{PACKAGE}.torchvision_pillow:TorchvisionPillow",
    "torchvision-v2": f"{PACKAGE}.torchvision_v2:TorchvisionV2",
    "dali-native-cpu": f"{PACKAGE}.dali_native:DaliNativeCpu",
    "dali-native-gpu": f"{PACKAGE}.dali_native:DaliNativeGpu",
}

SUMMARIES = {
    "gpupipe-dali-gpu": "gpupipe.Loader with DALI on the GPU",
    "gpupipe-dali-cpu": "gpupipe.Loader with DALI on the CPU",
    "gpupipe-torch": "gpupipe.Loader with the torch engine",
    BASELINE: "torchvision ImageFolder with Pillow + DataLoader (what the ratios refer to)",
    "torchvision-v2": "torchvision v2 transforms on tensors + DataLoader",
    "dali-native-cpu": "a hand-written DALI pipeline on the CPU",
    "dali-native-gpu": "a hand-written DALI pipeline on the GPU",
}


def reference(name: str) -> str:
    """The `module:class` of a contender's name; such a reference stands for itself. Raises ConfigError if unknown."""
    if name in CONTENDERS:
        return CONTENDERS[name]
    if ":" in name:
        return name
    raise ConfigError(f"no contender is called {name!r}; there are {', '.join(CONTENDERS)}, or give 'module:class'")


def describe(name: str) -> str:
    """One line about the contender."""
    return SUMMARIES.get(name, "a contender of your own")


def load(name: str) -> Contender:
    """Import the contender's module and make one. Raises ImportError where a library that it needs is missing."""
    module, _, attribute = reference(name).partition(":")
    contender: Contender = getattr(importlib.import_module(module), attribute)()
    return contender
