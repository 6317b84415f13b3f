"""The contenders, one file for each way to load; nothing here imports them.

Every class has the shape of `Contender` in base.py. Names map to `module:class`; such a reference may also be given
in place of a name, so that a loader of one's own can take part: `gpupipe bench --only my_loaders:Mine`. Options of a
contender, which are the arguments of its class, stand behind a question mark: "dali-native-gpu?hw_decoder_load=0.5".
"""

from __future__ import annotations

import ast
import importlib
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from gpupipe.errors import ConfigError

if TYPE_CHECKING:
    from gpupipe.tools.benchmark.contenders.contender import Contender

__all__ = ["BASELINE", "CONTENDERS", "describe", "load", "options", "reference"]

BASELINE = "torchvision-pillow"

PACKAGE = "gpupipe.tools.benchmark.contenders"
CONTENDERS = {
    "gpupipe-tuned": f"{PACKAGE}.gpupipe_loader:GpupipeTuned",
    "gpupipe-dali-gpu": f"{PACKAGE}.gpupipe_loader:GpupipeDaliGpu",
    "gpupipe-dali-cpu": f"{PACKAGE}.gpupipe_loader:GpupipeDaliCpu",
    "gpupipe-torch": f"{PACKAGE}.gpupipe_loader:GpupipeTorch",
    BASELINE: f"{PACKAGE}.torchvision_pillow:TorchvisionPillow",
    "torchvision-v2": f"{PACKAGE}.torchvision_v2:TorchvisionV2",
    "dali-native-cpu": f"{PACKAGE}.dali_native:DaliNativeCpu",
    "dali-native-gpu": f"{PACKAGE}.dali_native:DaliNativeGpu",
}

SUMMARIES = {
    "gpupipe-tuned": "gpupipe.Loader with what `gpupipe tune` has found on this machine",
    "gpupipe-dali-gpu": "gpupipe.Loader with DALI on the GPU",
    "gpupipe-dali-cpu": "gpupipe.Loader with DALI on the CPU",
    "gpupipe-torch": "gpupipe.Loader with the torch engine",
    BASELINE: "torchvision ImageFolder with Pillow + DataLoader (what the ratios refer to)",
    "torchvision-v2": "torchvision v2 transforms on tensors + DataLoader",
    "dali-native-cpu": "a hand-written DALI pipeline on the CPU",
    "dali-native-gpu": "a hand-written DALI pipeline on the GPU",
}


def reference(name: str) -> str:
    """The `module:class` of a contender's name, without its options; such a reference stands for itself.

    Raises ConfigError for a name that is unknown and for options that can't be read.
    """
    options(name)
    name = name.partition("?")[0]
    if name in CONTENDERS:
        return CONTENDERS[name]
    if ":" in name:
        return name
    raise ConfigError(f"no contender is called {name!r}; there are {', '.join(CONTENDERS)}, or give 'module:class'")


def options(name: str) -> dict[str, Any]:
    """What stands behind the question mark, as Python's literals, else words. Raises ConfigError for anything else."""
    text = name.partition("?")[2]
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text))
    except ValueError:
        raise ConfigError(f"{name!r}: write a contender's options as 'name?first=1&second=0.5'") from None
    return {key: _literal(value) for key, value in pairs}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def describe(name: str) -> str:
    """One line about the contender."""
    return SUMMARIES.get(name.partition("?")[0], "a contender of your own")


def load(name: str) -> Contender:
    """Import the contender's module and make one. Raises ImportError where a library that it needs is missing."""
    module, _, attribute = reference(name).partition(":")
    contender: Contender = getattr(importlib.import_module(module), attribute)(**options(name))
    return contender
