"""timm's create_loader with Pillow; uint8 is what its own collate function makes for its GPU prefetcher."""

from __future__ import annotations

from typing import Any

import torch
from timm.data import create_dataset, create_loader

from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, DataLoaderStream, EndlessShuffle
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import Peer

__all__ = ["Timm"]

REQUIREMENTS = ("timm",)


class Timm(Peer):
    """create_loader without colour jitter, as its training script uses it with the same recipe."""

    name = "timm"
    ahead = PREFETCH_FACTOR

    def open(self, settings: BenchSettings) -> BatchStream:
        """Its loader with a sampler that never ends."""
        as_uint8 = settings.dtype == "uint8"
        dataset = create_dataset("", root=settings.data, is_training=True)
        loader: Any = create_loader(
            dataset,
            settings.size,
            settings.batch_size,
            is_training=True,
            use_prefetcher=as_uint8,
            color_jitter=None,
            interpolation="bilinear",
            num_workers=settings.workers,
            device=torch.device("cpu"),
        )
        loader = loader.loader if as_uint8 else loader  # what its prefetcher would copy to a GPU and normalize there
        loader.batch_sampler.sampler = EndlessShuffle(len(dataset))
        return DataLoaderStream(loader, "cpu")
