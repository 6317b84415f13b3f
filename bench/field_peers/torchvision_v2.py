"""torchvision v2 on tv_tensors in a DataLoader, as its documentation has it for detection and segmentation."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import torch
from peers.common import Peer
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from field_peers.data import Samples, prepare
from field_peers.ours import FirstTwo
from gpupipe.tools.benchmark.contenders import BatchStream
from gpupipe.tools.benchmark.contenders.torch_loader import PREFETCH_FACTOR, EndlessShuffle
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["TorchvisionV2", "as_tensors"]

LISTS = ("boxes", "classes", "caption")


def as_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    """Images decoded, everything geometric as tv_tensors."""
    made = dict(sample)
    for name in {"image", "second"} & set(sample):
        made[name] = tv_tensors.Image(_pixels(sample[name]))
    if "mask" in sample:
        made["mask"] = tv_tensors.Mask(decode_image(torch.from_numpy(sample["mask"]), ImageReadMode.UNCHANGED))
    if "boxes" in sample:
        made["boxes"] = tv_tensors.BoundingBoxes(
            torch.from_numpy(sample["boxes"]), format="XYXY", canvas_size=made["image"].shape[-2:]
        )
        made["classes"] = torch.from_numpy(sample["classes"])
    return made


def _pixels(data: np.ndarray) -> torch.Tensor:
    if data.ndim == 3:  # a copy, as the file can't be written
        return torch.from_numpy(data.copy()).permute(2, 0, 1)
    return decode_image(torch.from_numpy(data), ImageReadMode.RGB)


class Transformed(Dataset[Any]):
    """The samples through random resized crop and flip."""

    def __init__(self, samples: Samples, size: int) -> None:
        self.samples = samples
        steps: list[Any] = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
        if samples.case == "boxes":
            steps.append(v2.SanitizeBoundingBoxes(labels_getter=itemgetter("classes")))
        self.transform = v2.Compose([*steps, v2.ToPureTensor()])

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.transform(as_tensors(self.samples[index]))


def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
    """What has one size is stacked, boxes and captions are lists."""
    lists = {name: [item[name] for item in items] for name in LISTS if name in items[0]}
    return default_collate([{key: item[key] for key in item.keys() - lists.keys()} for item in items]) | lists


class TorchvisionV2(Peer):
    """Each worker makes whole batches."""

    name = "torchvision v2, DataLoader"
    ahead = PREFETCH_FACTOR

    def __init__(self, case: str) -> None:
        self.case = case

    def prepare(self, settings: BenchSettings) -> bool:
        """Make what belongs to the images."""
        return prepare(settings.data)

    def open(self, settings: BenchSettings) -> BatchStream:
        """The workers start with the first batch."""
        dataset = Transformed(Samples(settings.data, self.case), settings.size)
        loader: Any = DataLoader(
            dataset,
            batch_size=settings.batch_size,
            sampler=EndlessShuffle(len(dataset)),
            num_workers=settings.workers,
            prefetch_factor=PREFETCH_FACTOR,
            collate_fn=collate,
            drop_last=True,
        )
        loader.close = lambda: None  # nothing is left once the iterator is gone
        return FirstTwo(loader)
