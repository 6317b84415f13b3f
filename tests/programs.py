"""What published programs have of their own, written anew: the mixing of torchvision's references/classification for
v1, what its references for detection and segmentation pad with, and the transforms of DINO. They draw what those
draw, in the same order."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as v1
from torchvision.transforms import v2


class RandomMixUp(torch.nn.Module):
    def __init__(self, num_classes: int, p: float = 0.5, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.num_classes, self.p, self.alpha, self.inplace = num_classes, p, alpha, inplace

    def forward(self, batch: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = batch if self.inplace else batch.clone()
        target = torch.nn.functional.one_hot(target, self.num_classes).to(batch.dtype)
        if torch.rand(1).item() >= self.p:
            return batch, target
        others, other_targets = batch.roll(1, 0), target.roll(1, 0)
        share = self.mixed(batch, others, float(torch._sample_dirichlet(torch.tensor([self.alpha] * 2))[0]))
        return batch, target.mul_(share).add_(other_targets.mul_(1 - share))

    def mixed(self, batch: torch.Tensor, others: torch.Tensor, share: float) -> float:
        batch.mul_(share).add_(others.mul_(1 - share))
        return share


class RandomCutMix(RandomMixUp):
    def mixed(self, batch: torch.Tensor, others: torch.Tensor, share: float) -> float:
        high, wide = batch.shape[-2:]
        x, y = torch.randint(wide, (1,)), torch.randint(high, (1,))
        across, along = (int(0.5 * math.sqrt(1 - share) * side) for side in (wide, high))
        left, top = int((x - across).clamp(min=0)), int((y - along).clamp(min=0))
        right, bottom = int((x + across).clamp(max=wide)), int((y + along).clamp(max=high))
        batch[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
        return float(1 - (right - left) * (bottom - top) / (wide * high))


class GaussianBlur:
    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0) -> None:
        self.prob, self.radius_min, self.radius_max = p, radius_min, radius_max

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() <= self.prob:
            return image.filter(ImageFilter.GaussianBlur(random.uniform(self.radius_min, self.radius_max)))
        return image


class Solarization:
    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.solarize(image) if random.random() < self.p else image


class DataAugmentationDINO:
    def __init__(
        self, large: tuple[float, float], small: tuple[float, float], views: int, sizes: Any = (224, 96)
    ) -> None:
        colors = v1.Compose(
            [
                v1.RandomHorizontalFlip(),
                v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
                v1.RandomGrayscale(0.2),
            ]
        )
        floats = v1.Compose([v1.ToTensor(), v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])

        def view(size: int, scale: tuple[float, float], *blurred: Any) -> v1.Compose:
            crop = v1.RandomResizedCrop(size, scale, interpolation=Image.Resampling.BICUBIC)
            return v1.Compose([crop, colors, *blurred, floats])

        self.global_transfo1 = view(sizes[0], large, GaussianBlur(1.0))
        self.global_transfo2 = view(sizes[0], large, GaussianBlur(0.1), Solarization(0.2))
        self.local_crops_number = views
        self.local_transfo = view(sizes[1], small, GaussianBlur(0.5))

    def __call__(self, image: Image.Image) -> list[Any]:
        local = [self.local_transfo] * self.local_crops_number
        return [transform(image) for transform in (self.global_transfo1, self.global_transfo2, *local)]


class PadIfSmaller(v2.Transform):
    """What a program for segmentation puts before RandomCrop."""

    def __init__(self, size: int, fill: float = 0) -> None:
        super().__init__()
        self.size, self.fill = size, fill

    def forward(self, image: Any) -> Any:
        height, width = v2.functional.get_size(image)
        right, below = max(self.size - width, 0), max(self.size - height, 0)
        return v2.functional.pad(image, [0, 0, right, below], fill=self.fill) if right or below else image


class FixedSizeCrop(torch.nn.Module):
    """What a program for detection puts behind ScaleJitter; `from_left` turns to what is none."""

    def __init__(self, size: tuple[int, int], fill: Any = 0, from_left: bool = True) -> None:
        super().__init__()
        self.crop_height, self.crop_width = size
        self.fill, self.from_left = fill, from_left

    def forward(self, image: Any, target: Any = None) -> Any:
        height, width = v2.functional.get_size(image)
        place = torch.rand(1)
        down, right = (int(max(side, 0) * place) for side in (height - self.crop_height, width - self.crop_width))
        image = v2.functional.crop(image, down, right, min(height, self.crop_height), min(width, self.crop_width))
        height, width = v2.functional.get_size(image)
        below, beside = self.crop_height - height, self.crop_width - width
        sides = [0, 0, beside, below] if self.from_left else [beside, 0, 0, below]
        fill = [int(level) for level in self.fill] if isinstance(self.fill, tuple) else self.fill
        return v2.functional.pad(image, sides, fill=fill), target
