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

CONTENDERS = {
    "gpupipe-tuned": (
        "gpupipe_loader:GpupipeTuned",
        "gpupipe.Loader with what `gpupipe tune` has found here",
    ),
    "gpupipe-dali-gpu": ("gpupipe_loader:GpupipeDaliGpu", "gpupipe.Loader with DALI on the GPU"),
    "gpupipe-dali-cpu": ("gpupipe_loader:GpupipeDaliCpu", "gpupipe.Loader with DALI on the CPU"),
    "gpupipe-torch": ("gpupipe_loader:GpupipeTorch", "gpupipe.Loader with the torch engine"),
    BASELINE: (
        "torch_loader:TorchvisionPillow",
        "torchvision ImageFolder with Pillow + DataLoader (what the ratios refer to)",
    ),
    "torchvision-v2": ("torch_loader:TorchvisionV2", "torchvision v2 transforms on tensors + DataLoader"),
    "dali-native-cpu": ("dali_native:DaliNativeCpu", "a hand-written DALI pipeline on the CPU"),
    "dali-native-gpu": ("dali_native:DaliNativeGpu", "a hand-written DALI pipeline on the GPU"),
}
"""Name -> module of this package and class, and a line about the contender."""


def reference(name: str) -> str:
    """The `module:class` of a contender's name, without its options; such a reference stands for itself.

    Raises ConfigError for a name that is unknown and for options that can't be read.
    """
    options(name)
    name = name.partition("?")[0]
    if name in CONTENDERS:
        return f"{__name__}.{CONTENDERS[name][0]}"
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
    return CONTENDERS.get(name.partition("?")[0], ("", "a contender of your own"))[1]


def load(name: str) -> Contender:
    """Import the contender's module and make one. Raises ImportError where a library that it needs is missing."""
    module, _, attribute = reference(name).partition(":")
    contender: Contender = getattr(importlib.import_module(module), attribute)(**options(name))
    return contender
