"""torchvision's GPU decoder: a DataLoader reads files, threads decode whole batches with nvJPEG and crop them there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from peers.common import Peer, images
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, read_file

from gpu.contenders.cropped import BatchDecoder, for_consumer
from gpupipe.tools.benchmark.contenders import Batch, BatchStream, needs_cuda
from gpupipe.tools.benchmark.contenders.torch_loader import EndlessShuffle
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["TorchvisionGpu"]

READERS = 4  # processes, which only read
PREFETCH_FACTOR = 2  # torch's default

Files = tuple[torch.Tensor, list[int], torch.Tensor]
"""The bytes of a batch's files in a row, their lengths, the labels: one tensor is quicker to hand over than many."""


class Encoded(Dataset[tuple[torch.Tensor, int]]):
    """The files' bytes and labels."""

    def __init__(self, folder: str) -> None:
        self.paths, self.labels = images(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return read_file(self.paths[index]), self.labels[index]


def collate(read: list[tuple[torch.Tensor, int]]) -> Files:
    """What the readers hand on."""
    files = [data for data, _ in read]
    return torch.cat(files), [len(data) for data in files], torch.tensor([label for _, label in read])


class Decoding(BatchDecoder):
    """With nvJPEG, by torchvision."""

    def decoded(self, files: Files) -> Batch:
        """All files in one call."""
        data, lengths, labels = files
        images = decode_jpeg(list(data.split(lengths)), mode=ImageReadMode.RGB, device=self.device)
        return self.thread.cropper(images), labels.to(self.device, non_blocking=True)


@dataclass
class TorchvisionGpuStream:
    """Batches in the order in which they were read, as many ahead as there are threads."""

    loader: DataLoader[Any]
    decode: Decoding
    threads: ThreadPoolExecutor
    ahead: int

    def __iter__(self) -> Iterator[Batch]:
        waiting: deque[Future[Batch]] = deque()
        for files in self.loader:
            waiting.append(self.threads.submit(partial(self.decode, files)))
            if len(waiting) > self.ahead:
                yield for_consumer(waiting.popleft().result())

    def close(self) -> None:
        """End the threads."""
        self.threads.shutdown(cancel_futures=True)


@dataclass
class TorchvisionGpu(Peer):
    """torchvision.io.decode_jpeg(list, device="cuda"); options: `threads` that call it, and `device`."""

    name: ClassVar[str] = "torchvision-gpu"
    threads: int = 2
    device: str = "cuda"

    def available(self, settings: BenchSettings) -> str | None:
        """A GPU is needed, and an image folder."""
        return (needs_cuda() if self.device == "cuda" else None) or super().available(settings)

    def cycle(self, settings: BenchSettings) -> int:
        """The decoder is what limits, not the readers' turns."""
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """What the threads have made."""
        return self.threads + 1

    def open(self, settings: BenchSettings) -> BatchStream:
        """Scan the folder; readers and threads start with the first batch."""
        dataset = Encoded(settings.data)
        loader = DataLoader(
            dataset,
            settings.batch_size,
            sampler=EndlessShuffle(len(dataset)),
            num_workers=min(READERS, settings.workers),
            prefetch_factor=PREFETCH_FACTOR,
            collate_fn=collate,
            drop_last=True,
        )
        decode = Decoding(settings, self.device)
        return TorchvisionGpuStream(loader, decode, ThreadPoolExecutor(self.threads), self.threads)
