"""kornia's augmentation classes, on float images from 0 to 1, which uint8 ones are first made into.

Its classes draw for themselves. Each image has its own magnitudes; RandAugment and TrivialAugment choose the operations
once for the whole batch, which is less than asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import cycle

import kornia.augmentation as K
import torch
from kornia.augmentation.auto import RandAugment, TrivialAugment

from augmenters.work import BLUR, JITTER, MEAN, STD, Finish, Lacking, Work

__all__ = ["Kornia"]

REQUIREMENTS = ("kornia",)

AUGMENTATIONS: dict[str, Callable[[], torch.nn.Module]] = {
    "RandAugment": lambda: RandAugment(2, 9),
    "TrivialAugmentWide": lambda: TrivialAugment(),
    "ColorJitter": lambda: K.ColorJitter(*JITTER, p=1.0),
    "GaussianBlur": lambda: K.RandomGaussianBlur((BLUR, BLUR), (0.1, 2.0), p=1.0),
    "ShearX": lambda: K.RandomShear((-5.14, 5.14), resample="nearest", p=1.0),  # degrees: tan(5.14) is 0.09
    "TranslateX": lambda: K.RandomTranslate((-0.13, 0.13), (0.0, 0.0), resample="nearest", p=1.0),
    "Rotate": lambda: K.RandomRotation(9.0, resample="nearest", p=1.0),
    "RotateBilinear": lambda: K.RandomRotation(9.0, p=1.0),
    "Brightness": lambda: K.RandomBrightness((0.73, 1.27), p=1.0),
    "Contrast": lambda: K.RandomContrast((0.73, 1.27), p=1.0),
    "Color": lambda: K.RandomSaturation((0.73, 1.27), p=1.0),
    "Hue": lambda: K.RandomHue((-0.1, 0.1), p=1.0),
    "Sharpness": lambda: K.RandomSharpness((0.73, 1.27), p=1.0),
    "Posterize": lambda: K.RandomPosterize((5.0, 5.0), p=1.0),
    "Solarize": lambda: K.RandomSolarize((0.7, 0.7), (0.0, 0.0), p=1.0),
    "AutoContrast": lambda: K.RandomAutoContrast(p=1.0),
    "Equalize": lambda: K.RandomEqualize(p=1.0),
    "Invert": lambda: K.RandomInvert(p=1.0),
    "Grayscale": lambda: K.RandomGrayscale(p=1.0),
}


class Kornia:
    """Modules called one after the other."""

    same = False
    per_image = False
    ahead = 0

    def open(self, work: Work, ring: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """uint8 to float, augmented, normalized, erased, mixed, cast."""
        batches = cycle([images.permute(0, 3, 1, 2).contiguous() for images in ring])
        modules: list[Callable[[torch.Tensor], torch.Tensor]] = []
        if work.policy is not None:
            if work.policy not in AUGMENTATIONS:
                raise Lacking(f"no {work.policy} by itself")
            modules.append(AUGMENTATIONS[work.policy]().to(ring[0].device))
        if work.finish is not None:
            modules += finishing(work.finish, len(ring[0]), ring[0].device)

        def call() -> torch.Tensor:
            images = next(batches).float() / 255
            for module in modules:
                images = module(images)
            return images

        return call


def finishing(form: Finish, count: int, device: torch.device) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """What follows the augmentation."""
    stages: list[Callable[[torch.Tensor], torch.Tensor]] = [K.Normalize(MEAN, STD).to(device)]
    if form.erase is not None:
        if form.erase.value is None:
            raise Lacking("erases with numbers only")
        stages.append(K.RandomErasing(p=1.0).to(device))
    if form.mix is not None:
        labels = torch.zeros(count, dtype=torch.int64, device=device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on how CutMix counts the share of labels
            kind = K.RandomCutMixV2 if (form.mix.weights == 1).all() else K.RandomMixUpV2
            mix = kind(data_keys=["input", "class"], p=1.0).to(device)
        stages.append(lambda images: mix(images, labels)[0])
    layout = torch.channels_last if form.channels_last else torch.contiguous_format
    stages.append(lambda images: images.to(form.dtype, memory_format=layout))
    return stages
