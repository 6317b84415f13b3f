"""gpupipe.Loader with the preset, on its torch engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from field_peers.data import CASES, Samples, prepare
from peers.common import Peer

import gpupipe
from gpupipe.decode.choose import PREFETCH
from gpupipe.recipe import MultiCrop, Recipe
from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.contenders.gpupipe_loader import many_passes
from gpupipe.tools.benchmark.measurement import BenchSettings
from preset_peers.table import PRESETS, Preset

__all__ = ["Ours", "first", "load", "source_of"]


def first(images: Any) -> Any:
    """Of several views, and of images of many sizes, the first."""
    return first(images[0]) if isinstance(images, list | tuple) else images


@dataclass
class Stream:
    """The loader's images, of the first view where there are several, and labels; the rest is made, too."""

    loader: gpupipe.Loader

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            images, labels = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch
            yield first(images), labels

    def close(self) -> None:
        """End the loader's processes and threads."""
        self.loader.close()


def source_of(folder: str, preset: Preset) -> Any:
    """An image folder itself, or with what is made to lie beside its images."""
    if preset.samples == "label":
        return gpupipe.open_source(folder)
    prepare(folder)
    image = gpupipe.Image(collate="list" if preset.recipe.view_recipes[0].crop.varies else "stack")
    fields = {"image": image, "label": gpupipe.Scalar()} | CASES[preset.samples].fields
    return gpupipe.open_source(Samples(folder, preset.samples), fields=fields)


def load(source: Any, recipe: Recipe | MultiCrop, batch_size: int, **options: Any) -> gpupipe.Loader:
    """On the CPU."""
    return gpupipe.Loader(source, recipe, batch_size, engine="torch", device="cpu", **options)


class Ours(Peer):
    """Shuffled passes without a gap."""

    name = "gpupipe"

    def __init__(self, preset: str) -> None:
        self.preset = PRESETS[preset]

    def queued(self, settings: BenchSettings) -> int:
        """What the workers prefetch, and the batch that is being finished."""
        return settings.workers * PREFETCH["torch"] + 1

    def open(self, settings: BenchSettings) -> BatchStream:
        """Start the workers."""
        source = source_of(settings.data, self.preset)
        options = {"order": many_passes(len(source)), "drop_last": True, "num_workers": settings.workers}
        return Stream(load(source, self.preset.recipe, settings.batch_size, **options))
