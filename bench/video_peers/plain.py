"""A dataset in a DataLoader, as it is written by hand: frames by Pillow, by torchvision or by torchcodec, then
torchvision's v2 transforms on the clip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, EndlessShuffle
from video_peers import FILES, READERS
from video_peers.data import CLIP

__all__ = ["read_clip", "stream"]


def read_clip(reader: str, path: Path, numbers: list[int] | None) -> torch.Tensor:
    """uint8 (frames, 3, height, width); numbers: of the frames, None: drawn."""
    if reader in READERS[FILES]:
        from torchcodec.decoders import VideoDecoder

        mode: Any = "approximate" if reader == "approximate" else "exact"
        decoder = VideoDecoder(str(path), num_ffmpeg_threads=1, seek_mode=mode)
        return decoder.get_frames_at(numbers or drawn(len(decoder))).data
    files = sorted(path.iterdir())
    chosen = [files[number] for number in numbers or drawn(len(files))]
    if reader == "torchvision":
        return torch.stack([decode_image(read_file(str(file)), ImageReadMode.RGB) for file in chosen])
    frames = []
    for file in chosen:
        with Image.open(file) as opened:
            frames.append(np.asarray(opened.convert("RGB")))
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


def drawn(count: int) -> list[int]:
    """Frames of a random clip."""
    frames, stride = CLIP
    first = int(torch.randint(count - frames * stride + 1, ()))
    return list(range(first, first + frames * stride, stride))


class Clips(Dataset[Any]):
    """Clips through PyTorchVideo's recipe in v2, and their labels."""

    def __init__(self, root: Path, reader: str, size: int) -> None:
        self.reader = reader
        self.paths = sorted(root.glob("*/*"))
        names = sorted({path.parent.name for path in self.paths})
        self.labels = [names.index(path.parent.name) for path in self.paths]
        self.transform = v2.Compose(
            [
                v2.RandomShortestSize(list(range(256, 321)), antialias=True),
                v2.RandomCrop(size),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize((0.45,) * 3, (0.225,) * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(read_clip(self.reader, self.paths[index], None)), self.labels[index]


def stream(root: Path, reader: str, size: int, clips: int, workers: int) -> Iterator[Any]:
    """Batches of clips and labels without end, in passes that are joined without a gap."""
    dataset = Clips(root, reader, size)
    loader: Any = DataLoader(
        dataset,
        batch_size=clips,
        sampler=EndlessShuffle(len(dataset)),
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTOR if workers else None,
        drop_last=True,
    )
    return iter(loader)
