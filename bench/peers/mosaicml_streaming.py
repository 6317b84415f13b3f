"""MosaicML's StreamingDataset: MDS shards with a `jpeg` column, which it decodes with Pillow, and torchvision's v1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, DataLoaderStream, TorchvisionPillow
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import Peer, convert, converted, images

__all__ = ["MosaicmlStreaming"]

REQUIREMENTS = ("mosaicml-streaming", "numpy<2.2")  # they do not go together with numpy 2.2 and later
EPOCH = 1_000_000  # images in an epoch: it stops between epochs


class Transformed(StreamingDataset):
    """A StreamingDataset of (image, label)."""

    def __init__(self, transform: Any, **options: Any) -> None:
        super().__init__(**options)
        self.transform = transform

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self.transform(sample["image"].convert("RGB")), sample["label"]


class MosaicmlStreaming(Peer):
    """StreamingDataset(shuffle=True) behind a DataLoader."""

    name = "mosaicml-streaming"
    ahead = PREFETCH_FACTOR
    exact_passes = False

    def prepare(self, settings: BenchSettings) -> bool:
        """Write the files' bytes into MDS shards."""

        def write(target: Path) -> None:
            with MDSWriter(out=str(target / "mds"), columns={"image": "jpeg", "label": "int"}) as writer:
                for path, label in zip(*images(settings.data), strict=True):
                    writer.write({"image": Image.open(path), "label": label})

        return convert(settings.data, "mds", write)

    def open(self, settings: BenchSettings) -> BatchStream:
        """One long epoch."""
        dataset = Transformed(
            TorchvisionPillow().transform(settings),
            local=str(converted(settings.data, "mds") / "mds"),
            shuffle=True,
            batch_size=settings.batch_size,
            epoch_size=EPOCH,
        )
        loader = DataLoader(dataset, settings.batch_size, num_workers=settings.workers, prefetch_factor=self.ahead)
        return DataLoaderStream(loader, "cpu")
