"""SPDL with nvJPEG: SPDL's threads read files and hand batches to nvImageCodec, which decodes on the GPU.

SPDL's own nvJPEG functions are not in the wheels on PyPI (spdl_io 0.3 to 0.8 were looked at: `built_with_nvjpeg` says
False), and they shrink whole images, without a crop. nvImageCodec, which DALI brings, drives nvJPEG with its hardware
engines from Python, so this is what SPDL's pipeline reaches with nvJPEG. It needs `spdl_core` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import spdl.pipeline
import torch
from nvidia import nvimgcodec
from peers.common import Peer, images

from gpu.contenders.cropped import BatchDecoder, for_consumer
from gpupipe.decode.pixels import CPU_ONLY_DEVICE
from gpupipe.tools.benchmark.contenders import Batch, BatchStream, needs_cuda
from gpupipe.tools.benchmark.contenders.torch_loader import EndlessShuffle
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["SpdlNvjpeg"]

REQUIREMENTS = ("spdl_core",)
BUFFER = 2  # batches


class Decoding(BatchDecoder):
    """By nvImageCodec; each thread has a decoder of its own."""

    def __init__(self, settings: BenchSettings, device: str) -> None:
        super().__init__(settings, device)
        self._params = nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=nvimgcodec.ColorSpec.SRGB)

    def start(self) -> None:
        """The decoder too."""
        super().start()
        threads = max(1, self.settings.threads // 2)  # of nvImageCodec, for what the engines don't take
        if self.device == "cuda":
            self.thread.decoder = nvimgcodec.Decoder(device_id=0, max_num_cpu_threads=threads)
        else:
            backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]
            self.thread.decoder = nvimgcodec.Decoder(
                device_id=CPU_ONLY_DEVICE, max_num_cpu_threads=threads, backends=backends
            )

    def decoded(self, files: list[tuple[bytes, int]]) -> Batch:
        """All files in one call."""
        streams = [nvimgcodec.CodeStream(data) for data, _ in files]
        number = 0 if self.thread.stream is None else self.thread.stream.cuda_stream
        decoded = self.thread.decoder.decode(streams, params=self._params, cuda_stream=number)
        as_tensor = torch.from_dlpack if self.device == "cuda" else from_host
        images = self.thread.cropper([as_tensor(image).permute(2, 0, 1) for image in decoded])
        labels = torch.tensor([label for _, label in files])
        return images, labels.to(self.device, non_blocking=True)


def from_host(image: Any) -> torch.Tensor:
    """nvImageCodec asks for a GPU to hand over even what lies in host memory by DLPack."""
    return torch.from_numpy(np.asarray(image))


@dataclass
class SpdlStream:
    """The pipeline's batches."""

    pipeline: Any

    def __iter__(self) -> Iterator[Batch]:
        with self.pipeline.auto_stop():
            yield from map(for_consumer, self.pipeline)

    def close(self) -> None:
        """The pipeline stops with the iterator."""


@dataclass
class SpdlNvjpeg(Peer):
    """PipelineBuilder with threads that read and `decoders` threads that decode; `device` "cpu" is for trying it."""

    name: ClassVar[str] = "spdl-nvjpeg"
    decoders: int = 2
    device: str = "cuda"

    exact_passes: ClassVar[bool] = False  # files are handed on as they are read

    def available(self, settings: BenchSettings) -> str | None:
        """A GPU is needed, and an image folder."""
        return (needs_cuda() if self.device == "cuda" else None) or super().available(settings)

    def cycle(self, settings: BenchSettings) -> int:
        """One pipeline makes every batch."""
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """Its buffers and the batches in the making."""
        return BUFFER + self.decoders + 4

    def open(self, settings: BenchSettings) -> BatchStream:
        """Start the threads."""
        paths, labels = images(settings.data)
        readers = min(4, settings.threads)

        def read(index: int) -> tuple[bytes, int]:
            return Path(paths[index]).read_bytes(), labels[index]

        decoding = ThreadPoolExecutor(self.decoders)
        pipeline = (
            spdl.pipeline.PipelineBuilder()
            .add_source(iter(EndlessShuffle(len(paths))))
            .pipe(read, concurrency=readers)
            .aggregate(settings.batch_size)
            .pipe(Decoding(settings, self.device), concurrency=self.decoders, executor=decoding)
            .add_sink(BUFFER)
            .build(num_threads=readers, max_failures=0)  # by default it drops what fails
        )
        return SpdlStream(pipeline)
