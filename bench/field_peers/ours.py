"""gpupipe.Loader on samples of several fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from peers.common import Peer

import gpupipe
from field_peers.data import CASES, Samples, prepare
from gpupipe.decode.choose import PREFETCH
from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.contenders.gpupipe_loader import many_passes
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["Ours", "load"]


@dataclass
class FirstTwo:
    """The images and labels of batches that are dicts, or that pair; the rest is made, too."""

    loader: Any

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            yield (batch["image"], batch["label"]) if isinstance(batch, dict) else batch

    def close(self) -> None:
        """End the loader's processes and threads."""
        self.loader.close()


class Ours(Peer):
    """Shuffled passes without a gap."""

    name = "gpupipe"

    def __init__(self, case: str) -> None:
        self.case = case

    def prepare(self, settings: BenchSettings) -> bool:
        """Make what belongs to the images."""
        return prepare(settings.data)

    def queued(self, settings: BenchSettings) -> int:
        """What the workers prefetch, and the batch that is being finished."""
        return settings.workers * PREFETCH["torch"] + 1

    def open(self, settings: BenchSettings) -> BatchStream:
        """Start the workers."""
        samples = Samples(settings.data, self.case)
        return FirstTwo(load(samples, settings, order=many_passes(len(samples)), num_workers=settings.workers))


def load(samples: Samples, settings: BenchSettings, **options: Any) -> gpupipe.Loader:
    """The loader."""
    fields = {"image": gpupipe.Image(), "label": gpupipe.Scalar()} | CASES[samples.case].fields
    return gpupipe.Loader(
        samples,
        gpupipe.imagenet_train(settings.size, dtype="uint8"),
        settings.batch_size,
        fields=fields,
        drop_last=True,
        engine="torch",
        device="cpu",
        **options,
    )
