"""torchvision's v2 functions: on the whole batch, which then has one draw, and image by image, each with its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle

import torch
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from augmenters.torch_batched import mixed
from augmenters.work import BLUR, JITTER, MEAN, STD, Finish, Lacking, Work, first_draw

__all__ = ["Batch", "Loop", "step"]

CLASSES = 1000  # of the targets that MixUp and CutMix make

STEPS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "Identity": lambda image, _: image,
    "ShearX": lambda image, by: sheared(image, (math.degrees(math.atan(by)), 0.0)),
    "ShearY": lambda image, by: sheared(image, (0.0, math.degrees(math.atan(by)))),
    "TranslateX": lambda image, by: F.affine(image, 0.0, [int(by), 0], 1.0, [0.0, 0.0]),
    "TranslateY": lambda image, by: F.affine(image, 0.0, [0, int(by)], 1.0, [0.0, 0.0]),
    "Rotate": lambda image, by: F.rotate(image, by),
    "RotateBilinear": lambda image, by: F.rotate(image, by, InterpolationMode.BILINEAR),
    "Brightness": lambda image, by: F.adjust_brightness(image, 1 + by),
    "Contrast": lambda image, by: F.adjust_contrast(image, 1 + by),
    "Color": lambda image, by: F.adjust_saturation(image, 1 + by),
    "Hue": lambda image, by: F.adjust_hue(image, by),
    "Sharpness": lambda image, by: F.adjust_sharpness(image, 1 + by),
    "Posterize": lambda image, by: F.posterize(image, int(by)),
    "Solarize": lambda image, by: F.solarize(image, 255 * by),
    "AutoContrast": lambda image, _: F.autocontrast(image),
    "Equalize": lambda image, _: F.equalize(image),
    "Invert": lambda image, _: F.invert(image),
    "Grayscale": lambda image, _: F.rgb_to_grayscale(image, 3),
    "GaussianBlur": lambda image, by: F.gaussian_blur(image, [BLUR, BLUR], [by, by]),
}


def sheared(image: torch.Tensor, degrees: tuple[float, float]) -> torch.Tensor:
    """Sheared about the left upper corner, as by torchvision's AutoAugment classes."""
    return F.affine(image, 0.0, [0, 0], 1.0, list(degrees), center=[0.0, 0.0])


def step(image: torch.Tensor, name: str, magnitude: float) -> torch.Tensor:
    """One step on uint8 (..., 3, height, width)."""
    if name not in STEPS:
        raise Lacking(f"no {name}")
    return STEPS[name](image, magnitude)


def planes(ring: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The batches as torchvision likes them: (N, 3, height, width), contiguous. This is not measured."""
    return [images.permute(0, 3, 1, 2).contiguous() for images in ring]


def layout(form: Finish) -> torch.memory_format:
    """Of the finished batch."""
    return torch.channels_last if form.channels_last else torch.contiguous_format


class Batch:
    """The transforms as classes, called on a batch: one draw for all of its images, which is less than asked for."""

    same = False
    per_image = False
    ahead = 0

    def open(self, work: Work, ring: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Two stages: uint8 to uint8, then to the wanted form."""
        batches = cycle(planes(ring))
        stages = []
        if work.draws is not None:
            stages.append(self._augmentation(work))
        if work.finish is not None:
            stages.append(self._finish(work.finish, len(ring[0]), ring[0].device))

        def call() -> torch.Tensor:
            images = next(batches)
            for stage in stages:
                images = stage(images)
            return images

        return call

    def _augmentation(self, work: Work) -> Callable[[torch.Tensor], torch.Tensor]:
        policies: dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
            "RandAugment": lambda: v2.RandAugment(2, 9),
            "TrivialAugmentWide": v2.TrivialAugmentWide,
            "ColorJitter": lambda: v2.ColorJitter(*JITTER),
            "GaussianBlur": lambda: v2.GaussianBlur(BLUR, (0.1, 2.0)),
        }
        if work.policy in policies:
            return policies[work.policy]()
        [(name, magnitude)] = first_draw(work)
        step(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), name, magnitude)
        return lambda images: step(images, name, magnitude)

    def _finish(self, form: Finish, count: int, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
        stages: list[Callable[[torch.Tensor], torch.Tensor]] = [
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
        if form.erase is not None:
            stages.append(v2.RandomErasing(1.0, value=0 if form.erase.value else "random"))
        if form.mix is not None:
            labels = torch.zeros(count, dtype=torch.int64, device=device)
            mix = (v2.CutMix if (form.mix.weights == 1).all() else v2.MixUp)(num_classes=CLASSES)
            stages.append(lambda images: mix(images, labels)[0])

        def call(images: torch.Tensor) -> torch.Tensor:
            for stage in stages:
                images = stage(images)
            return images.to(form.dtype, memory_format=layout(form))

        return call


class Loop:
    """The functions, image by image with each one's draws; the batch is mixed as a whole."""

    same = True
    per_image = True
    ahead = 0

    def open(self, work: Work, ring: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Steps, then normalization, for one image after the other."""
        batches, form, draws = cycle(planes(ring)), work.finish, work.draws
        for name in {name for row in draws or () for name, _ in row}:
            if name not in STEPS:
                raise Lacking(f"no {name}")

        def call() -> torch.Tensor:
            made = []
            for row, image in enumerate(next(batches)):
                for name, magnitude in draws[row] if draws else ():
                    image = step(image, name, magnitude)
                made.append(image if form is None else finished(image, row, form))
            out = torch.stack(made)
            if form is None:
                return out
            out = out if form.mix is None else mixed(out, form.mix)
            return out.to(form.dtype, memory_format=layout(form))

        return call


def finished(image: torch.Tensor, row: int, form: Finish) -> torch.Tensor:
    """One image normalized and erased."""
    exact = F.normalize(F.to_dtype(image, torch.float32, scale=True), list(MEAN), list(STD))
    if form.erase is None:
        return exact
    top, left, height, width = form.erase.boxes[row].tolist()
    if form.erase.value is None:
        value = torch.randn(3, height, width, device=exact.device)
    else:
        value = torch.tensor(form.erase.value, device=exact.device).view(3, 1, 1)
    return F.erase(exact, top, left, height, width, value, inplace=True)
