"""WebDataset shards, read by WebLoader workers, with torchvision's v2 transforms on tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import webdataset
from torchvision.io import ImageReadMode, decode_image

from gpupipe.sources import open_source
from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, DataLoaderStream, TorchvisionV2
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.pack import PackSettings, pack
from peers.common import Peer, convert, converted

__all__ = ["WebDatasetV2"]

REQUIREMENTS = ("webdataset",)
SHARDS = 16  # of any data set: enough for the workers to share


class WebDatasetV2(Peer):
    """WebDataset(resampled=True), its way to a stream without end."""

    name = "webdataset"
    ahead = PREFETCH_FACTOR
    exact_passes = False

    def prepare(self, settings: BenchSettings) -> bool:
        """Pack the folder into shards, byte for byte."""

        def write(target: Path) -> None:
            source = open_source(settings.data)
            pack(source, target, PackSettings(samples_per_shard=-(-len(source) // SHARDS)))

        return convert(settings.data, "shards", write)

    def open(self, settings: BenchSettings) -> BatchStream:
        """Batches are made in the workers."""
        image_of = partial(_image_of, TorchvisionV2().transform(settings))
        shards = sorted(str(path) for path in converted(settings.data, "shards").glob("*.tar"))
        dataset = (
            webdataset.WebDataset(shards, resampled=True)
            .shuffle(500)
            .to_tuple("jpg", "cls")
            .map_tuple(image_of, int)
            .batched(settings.batch_size)
        )
        return DataLoaderStream(webdataset.WebLoader(dataset, batch_size=None, num_workers=settings.workers), "cpu")


def _image_of(transform: Callable[[Any], Any], data: bytes) -> Any:
    return transform(decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB))
