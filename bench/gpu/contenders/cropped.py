"""What contenders do with decoded images of all sizes on a GPU, with torch: random resized crop and flip."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from peers.common import random_box
from torch.nn.functional import interpolate

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.tools.benchmark.contenders import Batch
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["BatchDecoder", "Cropper", "for_consumer"]


class Cropper:
    """Decoded uint8 (3, height, width) images to a batch as `settings` asks for, on their device and current stream.

    Each image costs a cast and a resize; the rest is done to the batch.
    """

    def __init__(self, settings: BenchSettings, seed: int) -> None:
        self.size = (settings.size, settings.size)
        self.dtype = settings.dtype
        self.rng = np.random.default_rng(seed)

    def __call__(self, images: Sequence[torch.Tensor]) -> torch.Tensor:
        """float32 (N, 3, size, size), normalized, or uint8."""
        batch = torch.cat([self.cut(image) for image in images])
        mirrored = torch.from_numpy(self.rng.random(len(images)) < 0.5).to(batch.device, non_blocking=True)
        batch = torch.where(mirrored.view(-1, 1, 1, 1), batch.flip(3), batch)
        if self.dtype == "uint8":
            return batch.round_().clamp_(0, 255).to(torch.uint8)
        mean, std = (
            torch.tensor(values, device=batch.device).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD)
        )
        return batch.div_(255).sub_(mean).div_(std)

    def cut(self, image: torch.Tensor) -> torch.Tensor:
        """A random box of it, resized: float32 (1, 3, size, size), 0 to 255."""
        top, left, height, width = random_box(self.rng, image.shape[1], image.shape[2])
        box = image[None, :, top : top + height, left : left + width].float()
        return interpolate(box, self.size, mode="bilinear", antialias=True)


class BatchDecoder:
    """Decodes batches on the threads of a pool, each with a cropper and a CUDA stream of its own (None on a CPU)."""

    def __init__(self, settings: BenchSettings, device: str) -> None:
        self.settings = settings
        self.device = device
        self.thread = threading.local()
        self._seeds = iter(range(1000))

    def __call__(self, files: Any) -> Batch:
        """The batch, ready."""
        if not hasattr(self.thread, "cropper"):
            self.start()
        stream = self.thread.stream
        with torch.cuda.stream(stream):  # None: nothing to switch to
            batch = self.decoded(files)
            if stream is not None:
                stream.synchronize()
        return batch

    def start(self) -> None:
        """Give this thread what it keeps."""
        self.thread.stream = torch.cuda.Stream() if self.device == "cuda" else None
        self.thread.cropper = Cropper(self.settings, next(self._seeds))

    def decoded(self, files: Any) -> Batch:
        """The batch, on the thread's stream."""
        raise NotImplementedError


def for_consumer(batch: Batch) -> Batch:
    """A batch that is ready, made on another stream: its memory is kept while the consumer's kernels run."""
    for tensor in batch:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream())
    return batch
