"""SPDL: FFmpeg decodes, crops and resizes on the threads of one process; the box is drawn in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import spdl.io
import spdl.pipeline
import torch

from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import MEAN_255, STD_255, Peer, images, random_box

__all__ = ["Spdl"]

REQUIREMENTS = ("spdl",)
BUFFER = 2  # batches


def endless(paths: list[str], labels: list[int]) -> Iterator[tuple[str, int]]:
    """One permutation after another."""
    rng = np.random.default_rng(1)
    while True:
        for index in rng.permutation(len(paths)).tolist():
            yield paths[index], labels[index]


@dataclass
class SpdlStream:
    """The pipeline's batches."""

    pipeline: Any

    def __iter__(self) -> Iterator[Batch]:
        with self.pipeline.auto_stop():
            yield from self.pipeline

    def close(self) -> None:
        """The pipeline stops with the iterator."""


class Spdl(Peer):
    """PipelineBuilder with `settings.threads` threads."""

    name = "spdl"
    exact_passes = False  # images are handed on as they get ready

    def available(self, settings: BenchSettings) -> str | None:
        """An image folder is needed, and FFmpeg's libraries, which it loads at first use: this raises without them."""
        spdl.io.utils.get_ffmpeg_versions()
        return super().available(settings)

    def cycle(self, settings: BenchSettings) -> int:
        """One pipeline makes every batch."""
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """Its buffers and the batch in the making: 9 batches were seen ready after a pause."""
        return BUFFER + 7

    def open(self, settings: BenchSettings) -> BatchStream:
        """Start the threads."""
        rng, size = np.random.default_rng(2), settings.size
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN_255, STD_255))

        def load(sample: tuple[str, int]) -> tuple[Any, int]:
            packets = spdl.io.demux_image(sample[0])
            top, left, height, width = random_box(rng, packets.height, packets.width)
            flip = "hflip," if rng.random() < 0.5 else ""
            description = (
                f"crop={width}:{height}:{left}:{top}:exact=1,scale={size}:{size}:flags=bilinear,"
                f"{flip}format=pix_fmts=rgb24"
            )
            return spdl.io.decode_packets(packets, filter_desc=description), sample[1]

        def collate(samples: list[tuple[Any, int]]) -> Batch:
            buffer = spdl.io.convert_frames([frames for frames, _ in samples])
            batch = spdl.io.to_torch(buffer)
            labels = torch.tensor([label for _, label in samples])
            if settings.dtype == "uint8":
                return batch, labels
            return batch.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).sub_(mean).div_(
                std
            ), labels

        torch.set_num_threads(1)  # the pipeline's threads call it
        pipeline = (
            spdl.pipeline.PipelineBuilder()
            .add_source(endless(*images(settings.data)))
            .pipe(load, concurrency=settings.threads)
            .aggregate(settings.batch_size)
            .pipe(collate)
            .add_sink(BUFFER)
            .build(num_threads=settings.threads, max_failures=0)  # by default it drops what fails
        )
        return SpdlStream(pipeline)
