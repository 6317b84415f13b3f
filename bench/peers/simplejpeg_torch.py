"""simplejpeg (libjpeg-turbo) decodes, torch resizes the crop as uint8 with antialiasing; behind a DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import simplejpeg
import torch
from torch.nn.functional import interpolate
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2.functional import normalize, to_dtype

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from gpupipe.tools.benchmark.contenders.torch_loader import ImageFolderContender
from gpupipe.tools.benchmark.measurement import BenchSettings
from peers.common import RATIO, SCALE

__all__ = ["SimplejpegTorch"]

REQUIREMENTS = ("simplejpeg",)


class SimplejpegTorch(ImageFolderContender):
    """ImageFolder + DataLoader with simplejpeg; reads JPEGs that are gray or RGB only."""

    name = "simplejpeg"

    def reader(self) -> Callable[[str], Any]:
        """The file's bytes."""
        return _read

    def transform(self, settings: BenchSettings) -> Callable[[Any], Any]:
        """From bytes to a tensor."""
        return partial(_image_of, settings.size, settings.dtype)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _image_of(side: int, dtype: str, data: bytes) -> torch.Tensor:
    image = torch.from_numpy(simplejpeg.decode_jpeg(data, "RGB")).permute(2, 0, 1)
    top, left, height, width = RandomResizedCrop.get_params(image, SCALE, RATIO)
    crop = image[None, :, top : top + height, left : left + width]
    image = interpolate(crop, (side, side), mode="bilinear", antialias=True)[0]
    image = image.flip(-1) if torch.rand(()) < 0.5 else image
    if dtype == "uint8":
        return image.contiguous()
    return normalize(to_dtype(image, torch.float32, scale=True), IMAGENET_MEAN, IMAGENET_STD)
