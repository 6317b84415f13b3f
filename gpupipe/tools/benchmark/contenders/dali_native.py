"""A DALI pipeline as its documentation writes it: DALI reads, draws and shuffles by itself. For the CPU or the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import nvidia.dali
import torch

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.tools.benchmark.contenders import Batch, BatchStream, needs_cuda, needs_folder
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["DaliNativeCpu", "DaliNativeGpu"]

PREFETCH = 2  # DALI's default
dali: Any = nvidia.dali  # its stubs lack what DALI makes at run time
fn, types = dali.fn, dali.types


@dali.pipeline_def(exec_dynamic=True)  # type: ignore[untyped-decorator]
def training_pipeline(
    folder: str, size: int, decoder: dict[str, Any], crop_decode: bool, dtype: str
) -> tuple[Any, Any]:
    """The pipeline; `decoder` has the decoder's device and load. uint8 stays HWC, as it is decoded."""
    encoded, labels = fn.readers.file(file_root=folder, shuffle_after_epoch=True, name="reader")
    decoder = decoder | {"output_type": types.RGB, "adjust_orientation": False}
    box = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3], "num_attempts": 10}
    resize = {"size": [size, size], "interp_type": types.INTERP_LINEAR, "antialias": True}
    if crop_decode:
        images = fn.resize(fn.decoders.image_random_crop(encoded, **decoder, **box), **resize)
    else:
        images = fn.random_resized_crop(fn.decoders.image(encoded, **decoder), **box, **resize)
    mirror = fn.random.coin_flip()
    if dtype == "uint8":
        images = fn.crop_mirror_normalize(images, dtype=types.UINT8, output_layout="HWC", mirror=mirror)
    else:
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * m for m in IMAGENET_MEAN],
            std=[255 * s for s in IMAGENET_STD],
            mirror=mirror,
        )
    return images, labels.gpu() if decoder["device"] == "mixed" else labels


@dataclass
class NativeStream:
    """Batches of the pipeline, handed to torch without a copy."""

    pipeline: Any

    def __iter__(self) -> Iterator[Batch]:
        while True:
            images, labels = (torch.utils.dlpack.from_dlpack(output.as_tensor()) for output in self.pipeline.run())
            yield images, labels.squeeze(1).long()

    def close(self) -> None:
        """Drop the pipeline with its threads."""
        self.pipeline = None


@dataclass
class DaliNativeCpu:
    """readers.file, a decoder, resize, crop_mirror_normalize: all on the CPU.

    crop_decode: decoders.image_random_crop and resize; else decoders.image and random_resized_crop.
    """

    name: ClassVar[str] = "dali-native-cpu"
    crop_decode: bool = True

    def available(self, settings: BenchSettings) -> str | None:
        return needs_folder(settings)

    def cycle(self, settings: BenchSettings) -> int:
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """DALI's queue and the batch in the making."""
        return PREFETCH + 1

    def open(self, settings: BenchSettings) -> BatchStream:
        """Build the pipeline with `settings.threads` threads."""
        return self.started(settings, {"device": "cpu"}, None)

    def started(self, settings: BenchSettings, decoder: dict[str, Any], device: int | None) -> BatchStream:
        """The stream of a pipeline on a GPU, or without one."""
        pipeline = training_pipeline(
            settings.data,
            settings.size,
            decoder,
            self.crop_decode,
            settings.dtype,
            batch_size=settings.batch_size,
            num_threads=settings.threads,
            device_id=device,
            prefetch_queue_depth=PREFETCH,
            seed=1,
        )
        pipeline.build()
        return NativeStream(pipeline)


@dataclass
class DaliNativeGpu(DaliNativeCpu):
    """The same with decoding and all pixel work on the GPU; hw_decoder_load is that of DALI's decoders."""

    name: ClassVar[str] = "dali-native-gpu"
    hw_decoder_load: float = 0.65  # DALI's default

    def available(self, settings: BenchSettings) -> str | None:
        return needs_cuda() or super().available(settings)

    def open(self, settings: BenchSettings) -> BatchStream:
        """Build the pipeline with `settings.threads` threads beside the GPU's decoders."""
        return self.started(settings, {"device": "mixed", "hw_decoder_load": self.hw_decoder_load}, 0)
