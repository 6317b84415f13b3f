"""Whether gpupipe's clips are those that torchvision makes of the same frames."""

from __future__ import annotations

from pathlib import Path

import torch
from torchvision.transforms import v2

import gpupipe
from video_peers.data import CLIP, FIELDS
from video_peers.plain import read_clip

__all__ = ["Disagreement", "apart"]

LARGEST = 1.0  # gray levels, of an evaluation


class Disagreement(AssertionError):
    """The ways make different things, so that their speeds can't be compared."""


def apart(root: Path, reader: str, size: int) -> float:
    """By how many gray levels an evaluation's clips of the middles of all videos differ at most.

    Raises Disagreement where that is more than rounding is.
    """
    fields = FIELDS | {"video": gpupipe.Frames(clip=CLIP, sampling="even")}
    source = gpupipe.open_source(root, fields=fields)
    recipe = gpupipe.kinetics_eval(size, resize=size + 32, dtype="uint8")
    transform = v2.Compose([v2.Resize(size + 32, antialias=True), v2.CenterCrop(size)])
    largest = 0.0
    frames, stride = CLIP
    with gpupipe.Loader(source, recipe, 4, engine="torch", num_workers=0, rank=0, world_size=1) as loader:
        row = 0
        for batch in loader:
            for clip in batch["video"]:
                key = source.key(row)
                count = len(source.fetch(torch.tensor([row]).numpy())["video"][0])
                first = (count - (frames - 1) * stride - 1) // 2
                numbers = list(range(first, first + frames * stride, stride))
                wanted = transform(read_clip(reader, root / key, numbers))
                largest = max(largest, float((clip.float() - wanted.float()).abs().max()))
                row += 1
    if largest > LARGEST:
        raise Disagreement(f"{reader}: clips differ by {largest} gray levels, more than {LARGEST}")
    return largest
