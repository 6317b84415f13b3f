"""The floor: libjpeg-turbo decodes the crop's part of each file, held in memory, and nothing else is done.

Its batches are empty pictures: what it measures is the least that any loader on libjpeg-turbo must spend.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import gpupipe
from gpupipe.kernels import native
from gpupipe.plan import cropping
from gpupipe.sources.source import Encoded
from gpupipe.tools.benchmark.contenders import Batch, BatchStream
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import Peer, cache

__all__ = ["Floor", "FloorStream", "decode_windows"]

HELD = 4096  # images at most in memory
KERNELS = Path(__file__).parents[2] / "kernels" / "cpu"


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """floor.cpp, compiled when it has changed."""
    sources = [Path(__file__).with_suffix(".cpp"), KERNELS / "jpeg.c", KERNELS / "huffman.c"]
    built = cache() / "floor.so"
    if not built.exists() or built.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        built.parent.mkdir(parents=True, exist_ok=True)
        common = ["-O3", "-fPIC", "-pthread"]
        objects = []
        for source in sources[1:]:
            objects.append(built.with_name(f"{source.stem}.o"))
            subprocess.run(["gcc", *common, "-c", source, "-o", objects[-1]], check=True)
        subprocess.run(["g++", *common, "-shared", sources[0], *objects, "-ljpeg", "-o", built], check=True)
    return ctypes.CDLL(str(built))


def decode_windows(encoded: Sequence[Encoded], windows: NDArray[np.int32], threads: int) -> int:
    """Decode a window (top, left, height, width) of each image and throw it away. How many failed."""
    lengths = np.array([len(data) for data in encoded], dtype=np.int64)
    arrays = [native.addresses(encoded), lengths, np.ascontiguousarray(windows, np.int32)]
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
    return int(library().decode_windows(len(encoded), threads, *pointers))


@dataclass
class FloorStream:
    """Decodes batch after batch of the crops that gpupipe would draw."""

    settings: BenchSettings

    def __iter__(self) -> Iterator[Batch]:
        import torch

        settings = self.settings
        source = gpupipe.open_source(settings.data)
        held = np.arange(min(len(source), HELD))
        columns = source.fetch(held)
        encoded, sizes = columns["image"].data, columns["image"].sizes
        recipe = gpupipe.imagenet_train(settings.size)
        channels = (settings.batch_size, 3, settings.size, settings.size)
        images = torch.zeros(channels, dtype=getattr(torch, settings.dtype))
        images[:, :, :1] = 255 if settings.dtype == "uint8" else 2  # a range of values as the checks want it
        order = np.random.default_rng(0)
        rest = np.empty(0, np.int64)
        for step in count():
            while len(rest) < settings.batch_size:
                rest = np.concatenate([rest, order.permutation(held)])
            rows, rest = rest[: settings.batch_size], rest[settings.batch_size :]
            positions = np.arange(settings.batch_size) + step * settings.batch_size
            windows = cropping(recipe, 0, 0, positions, *sizes[rows, :2].T).windows
            decode_windows([encoded[row] for row in rows], windows, settings.threads)
            yield images, torch.from_numpy(columns["label"][rows])

    def close(self) -> None:
        """Nothing is left."""


class Floor(Peer):
    """Decoding alone."""

    name = "floor"

    def available(self, settings: BenchSettings) -> str | None:
        """A compiler and libjpeg-turbo's headers are needed."""
        if native.library() is None or shutil.which("g++") is None or shutil.which("gcc") is None:
            return "needs gcc, g++ and libjpeg-turbo's headers"
        return super().available(settings)

    def cycle(self, settings: BenchSettings) -> int:
        """One batch after the other."""
        return 1

    def queued(self, settings: BenchSettings) -> int:
        """Nothing is made ahead."""
        return 0

    def open(self, settings: BenchSettings) -> BatchStream:
        """The files are read with the first batch."""
        return FloorStream(settings)
