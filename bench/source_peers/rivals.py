"""What users of each kind of data have today: a dataset that decodes by torchvision, behind torch's DataLoader."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image
import torch
import webdataset
from peers.common import Peer
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms.v2.functional import pil_to_tensor

from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import (
    PREFETCH_FACTOR,
    DataLoaderStream,
    EndlessShuffle,
    TorchvisionV2,
)
from gpupipe.tools.benchmark.measurement import BenchSettings
from source_peers.kinds import prepare, stored

__all__ = ["Csv", "Formatted", "Hfds", "Rival", "Tar", "decoded"]

Sample = tuple[torch.Tensor, int]
"""An image, uint8 (3, height, width), and its label."""


def decoded(data: bytes) -> torch.Tensor:
    """By torchvision's decoder."""
    return decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)


class Transformed(Dataset[Any]):
    """Samples through a transform."""

    def __init__(self, samples: Sequence[Sample], transform: Callable[[Any], Any]) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        image, label = self.samples[index]
        return self.transform(image), label


class Rival(Peer):
    """`samples` reads what was written of a kind; random resized crop and flip are torchvision's, v2 on tensors."""

    kind: str
    ahead = PREFETCH_FACTOR

    def prepare(self, settings: BenchSettings) -> bool:
        """Write the data."""
        return prepare(settings.data, self.kind)

    def samples(self, place: Path) -> Sequence[Sample]:
        """All of them, decoded when they are asked for, in the order in which they were written."""
        raise NotImplementedError

    def open(self, settings: BenchSettings) -> BatchStream:
        """The workers start with the first batch."""
        samples = self.samples(stored(settings.data, self.kind))
        dataset = Transformed(samples, TorchvisionV2().transform(settings))
        return DataLoaderStream(
            DataLoader(
                dataset,
                batch_size=settings.batch_size,
                sampler=EndlessShuffle(len(dataset)),
                num_workers=settings.workers,
                prefetch_factor=PREFETCH_FACTOR,
                drop_last=True,
            ),
            "cpu",
        )


class OfRows(Sequence[Sample]):
    """The rows of a CSV file, as many training scripts have it."""

    def __init__(self, path: Path) -> None:
        with open(path, newline="") as file:
            self.rows = [(str(path.parent / row["image"]), int(row["label"])) for row in csv.DictReader(file)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        path, label = self.rows[index]
        return decode_image(read_file(path), ImageReadMode.RGB), label


class Csv(Rival):
    """A torch Dataset of a user's own."""

    name = "torch Dataset"
    kind = "csv"

    def samples(self, place: Path) -> Sequence[Sample]:
        """Read line by line."""
        return OfRows(place / "data.csv")


class InTurn(Sequence[Sample]):
    """The samples of shards as they come."""

    def __init__(self, shards: list[str]) -> None:
        self.stream = webdataset.WebDataset(shards, shardshuffle=False).to_tuple("jpg", "cls").map_tuple(decoded, int)

    def __len__(self) -> int:
        return sum(1 for _ in self.stream)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.stream)

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("samples of shards come in turn")


class Tar(Rival):
    """WebDataset(resampled=True), its way to a stream without end; batches are made in the workers."""

    name = "webdataset"
    kind = "tar"
    exact_passes = False

    def samples(self, place: Path) -> Sequence[Sample]:
        """In turn."""
        return InTurn(sorted(map(str, place.glob("*.tar"))))

    def open(self, settings: BenchSettings) -> BatchStream:
        """As its documentation has it."""
        transform = TorchvisionV2().transform(settings)
        shards = sorted(map(str, stored(settings.data, self.kind).glob("*.tar")))
        dataset = (
            webdataset.WebDataset(shards, resampled=True)
            .shuffle(500)
            .to_tuple("jpg", "cls")
            .map_tuple(partial(_transformed, transform), int)
            .batched(settings.batch_size)
        )
        return DataLoaderStream(webdataset.WebLoader(dataset, batch_size=None, num_workers=settings.workers), "cpu")


def _transformed(transform: Callable[[Any], Any], data: bytes) -> Any:
    return transform(decoded(data))


class Rows(Sequence[Sample]):
    """Rows of a dataset in torch's format."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        row = self.dataset[index]
        return row["image"], int(row["label"])


class Formatted(Rival):
    """Hugging Face's datasets, which decode by Pillow and give tensors."""

    name = "datasets"

    def __init__(self, kind: str = "parquet") -> None:
        self.kind = kind

    def samples(self, place: Path) -> Sequence[Sample]:
        """Of the table that the files are turned into, once, in a cache beside them."""
        from datasets import Dataset, Image

        rows = Dataset.from_parquet(str(place / "data/train-*.parquet"), cache_dir=str(place / "cache"))
        return Rows(rows.cast_column("image", Image(mode="RGB")).with_format("torch"))


class Read(Sequence[Sample]):
    """Samples of a reader of timm's, decoded as its datasets do."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Any) -> Any:
        file, label = self.reader[index]
        return pil_to_tensor(PIL.Image.open(file).convert("RGB")), label


class Hfds(Rival):
    """timm's reader of Hugging Face's datasets, of the files that were saved there."""

    name = "timm ReaderHfds"
    kind = "hugging-face"

    def samples(self, place: Path) -> Sequence[Sample]:
        """Of the table that the Parquet files beside it are turned into."""
        from timm.data.readers.reader_hfds import ReaderHfds

        return Read(ReaderHfds(str(place / "data"), root=str(place / "cache")))
