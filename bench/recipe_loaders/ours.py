"""gpupipe.Loader with the recipe, on its torch engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import gpupipe
from gpupipe.decode.choose import PREFETCH
from gpupipe.sources import open_source
from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.contenders.gpupipe_loader import many_passes
from gpupipe.tools.benchmark.measurement import BenchSettings
from recipe_loaders.table import Way, maker

__all__ = ["Ours"]


@dataclass
class PlainStream:
    """The loader's images, of the first view where there are several, and classes, of mixed ones the greater."""

    loader: Any

    def __iter__(self) -> Iterator[Batch]:
        for images, labels in self.loader:
            first = images if isinstance(images, torch.Tensor) else images[0]
            yield first, labels if labels.ndim == 1 else labels.argmax(1)

    def close(self) -> None:
        """End the loader's processes and threads."""
        self.loader.close()


class Ours(Way):
    """Shuffled passes without a gap."""

    name = "gpupipe"

    @property
    def exact_passes(self) -> bool:
        """Of mixed labels only the greater is counted."""
        return not self.entry.mixes

    def queued(self, settings: BenchSettings) -> int:
        """What the workers prefetch, and the batch that is being finished."""
        return settings.workers * PREFETCH["torch"] + 1

    def open(self, settings: BenchSettings) -> BatchStream:
        """Indexes the data at the first time."""
        source = open_source(settings.data)
        loader = gpupipe.Loader(
            source,
            self.entry.recipe(settings.size),
            batch_size=settings.batch_size,
            order=many_passes(len(source)),
            drop_last=True,
            num_workers=settings.workers,
            engine="torch",
            device="cpu",
        )
        return PlainStream(loader)


def __getattr__(recipe: str) -> Callable[[], Way]:
    return maker(Ours, recipe)
