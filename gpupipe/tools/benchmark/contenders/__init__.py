"""What a contender is, and the contenders by name, one file for each way to load; nothing here imports them.

Every class has the shape of `Contender`. Names map to `module:class`; such a reference may also be given in place of a
name, so that a loader of one's own can take part: `gpupipe bench --only my_loaders:Mine`. Options of a contender, which
are the arguments of its class, stand behind a question mark: "dali-native-gpu?hw_decoder_load=0.5".
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

from gpupipe.errors import ConfigError
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = [
    *("BASELINE", "CONTENDERS", "Batch", "BatchStream", "Contender", "describe", "load", "needs_cuda", "needs_folder"),
    *("options", "reference"),
]

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


Batch = tuple[Any, Any]  # torch tensors, or NumPy arrays from those that do without torch


class BatchStream(Protocol):
    """Batches without end: whole passes over the data, each in its own random order, joined without a gap.

    Joined, because a sample set has few batches a pass: a training epoch of 5,000 has no such gap every third batch.
    """

    def __iter__(self) -> Iterator[Batch]:
        """Images and int64 labels (batch_size,).

        float32: (batch_size, 3, size, size), contiguous, normalized. uint8: the same shape, or channels last.
        """
        ...

    def close(self) -> None:
        """End threads and processes."""
        ...


class Contender(Protocol):
    """A way to load training batches: random resized crop (scale 0.08 to 1, ratio 3/4 to 4/3), flip, normalize.

    It may also have `prepare(settings) -> bool`, which brings `settings.data` into a format of its own before anything
    is measured and says whether there was something to do, and `exact_passes = False` where workers run through
    their own parts of the data, so that passes overlap.
    """

    name: str

    def available(self, settings: BenchSettings) -> str | None:
        """None, or why this machine or this data can't be used."""
        ...

    def cycle(self, settings: BenchSettings) -> int:
        """Batches after which production repeats: workers in turn finish about together, so whole turns are counted."""
        ...

    def queued(self, settings: BenchSettings) -> int:
        """The most batches that may lie ready: they are taken before a measurement starts."""
        ...

    def open(self, settings: BenchSettings) -> BatchStream:
        """Start the stream."""
        ...


def needs_folder(settings: BenchSettings) -> str | None:
    """Why the data can't be used by what reads image folders only."""
    return None if Path(settings.data).is_dir() else "reads image folders only"


def needs_cuda() -> str | None:
    """Why no GPU can be used; None where there is one."""
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


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
