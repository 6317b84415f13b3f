"""What is measured: the numbers that a batch has drawn, once by torchvision's names and once as gpupipe's program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms import v2

from gpupipe.kernels import Erase, Mix, Op, affine_matrix, gaussian_weights
from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD

__all__ = [
    "BLUR",
    "JITTER",
    "MEAN",
    "STD",
    "Contender",
    "Draws",
    "Finish",
    "Lacking",
    "Work",
    "first_draw",
    "program",
    "works",
]

MEAN, STD = IMAGENET_MEAN, IMAGENET_STD
JITTER = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, hue
BLUR = 13  # pixels, as in ThreeAugment; its sigmas lie in 0.1 to 2
BINS, MAGNITUDE = 31, 9
LAYOUTS = {False: "NCHW", True: "channels_last"}

Draws = list[list[tuple[str, float]]]
"""For each image its steps: a name and a magnitude, as in torchvision's AutoAugment classes."""


class Lacking(Exception):
    """A library has no function for the work; the text says what."""


@dataclass(frozen=True)
class Finish:
    """What `gpupipe.kernels.finish` is asked for."""

    dtype: torch.dtype
    channels_last: bool
    erase: Erase | None = None
    mix: Mix | None = None


@dataclass(frozen=True)
class Work:
    """One line of the table: uint8 images to augmented ones, or to finished ones, or both in a row.

    policy: "RandAugment", "TrivialAugmentWide", "ColorJitter", the name of the only step, or None where nothing is
            augmented.
    """

    name: str
    policy: str | None
    draws: Draws | None
    finish: Finish | None

    def moved(self, images: int, size: int) -> int:
        """The fewest bytes that must be read and written: each input once, each output once."""
        values = images * size * size * 3
        return values + values * (self.finish.dtype.itemsize if self.finish else 1)


class Contender(Protocol):
    """A library that can do works."""

    same: bool
    """Whether it does the same arithmetic with the same draws, so that its output is compared."""
    per_image: bool
    """Whether each image has operations of its own."""
    ahead: int
    """How many batches it makes ahead."""

    def open(self, work: Work, ring: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """What does the work on the next batch of the ring, the first at first; uint8 (N, height, width, 3) each.

        It returns (N, height, width, 3) or (N, 3, height, width), finished as asked for. Augmented images may be left
        as float numbers from 0 to 1 where the library works on such. Raises Lacking.
        """
        ...


def works(images: int, size: int) -> list[Work]:
    """All works for batches of `images` squares: what matters most comes first."""
    rng = np.random.default_rng(0)
    policies = {
        "RandAugment": rand_augment(rng, images, size),
        "TrivialAugmentWide": trivial_augment_wide(rng, images, size),
        "ColorJitter": color_jitter(rng, images),
        "GaussianBlur": [[("GaussianBlur", rng.uniform(0.1, 2.0))] for _ in range(images)],
    }
    erase, mix, cut = random_boxes(rng, images, size), mixup(images), cutmix(images, size)
    forms = [Finish(dtype, last) for dtype in (torch.float32, torch.bfloat16) for last in (False, True)]
    made = []
    for form in (forms[0], forms[3]):
        both = Finish(form.dtype, form.channels_last, erase, mix)
        made.append(Work(f"whole: {form_name(form)}", "RandAugment", policies["RandAugment"], both))
    for form in forms:
        for extra, more in ((None, None), (erase, None), (None, mix)):
            made.append(finish_work(Finish(form.dtype, form.channels_last, extra, more)))
    keys = rng.integers(0, 2**32, (images, 2), dtype=np.uint32)
    made.append(finish_work(Finish(torch.float32, False, Erase(erase.boxes, None, keys))))
    made.append(finish_work(Finish(torch.float32, False, None, cut)))
    for name, draws in policies.items():
        made.append(Work(f"augment: {name}", name, draws, None))
    for name, magnitude, signed in SINGLE:
        draws = [[(name, magnitude * (rng.choice([-1, 1]) if signed else 1))] for _ in range(images)]
        made.append(Work(f"augment: {name} alone", name, draws, None))
    return made


def form_name(form: Finish) -> str:
    """As "float32 NCHW"."""
    return f"{str(form.dtype).removeprefix('torch.')} {LAYOUTS[form.channels_last]}"


def finish_work(finish: Finish) -> Work:
    """Nothing is augmented."""
    extras = []
    if finish.erase:
        extras.append("erase" if finish.erase.value else "erase with noise")
    if finish.mix:
        extras.append("CutMix" if (finish.mix.weights == 1).all() else "MixUp")
    return Work(" + ".join([f"finish: {form_name(finish)}", *extras]), None, None, finish)


# Each step alone: name, magnitude, and whether its sign is drawn. Magnitude 9 of 30 of RandAugment where it has one.
SINGLE = (
    ("ShearX", 0.09, True),
    ("TranslateX", 30.0, True),
    ("Rotate", 9.0, True),
    ("RotateBilinear", 9.0, True),
    ("Brightness", 0.27, True),
    ("Contrast", 0.27, True),
    ("Color", 0.27, True),
    ("Hue", 0.1, True),
    ("Sharpness", 0.27, True),
    ("Posterize", 5.0, False),
    ("Solarize", 0.7, False),
    ("SolarizeAdd", 33.0, False),
    ("AutoContrast", 0.0, False),
    ("Equalize", 0.0, False),
    ("Invert", 0.0, False),
    ("Grayscale", 0.0, False),
)


def rand_augment(rng: np.random.Generator, images: int, size: int) -> Draws:
    """RandAugment(2, 9) with torchvision's space of operations."""
    space = v2.RandAugment._AUGMENTATION_SPACE
    names = list(space)
    return [
        [(name, magnitude(rng, *space[name], MAGNITUDE, size)) for name in rng.choice(names, 2)] for _ in range(images)
    ]


def trivial_augment_wide(rng: np.random.Generator, images: int, size: int) -> Draws:
    """TrivialAugmentWide with torchvision's space of operations."""
    space = v2.TrivialAugmentWide._AUGMENTATION_SPACE
    names = list(space)
    return [
        [(name, magnitude(rng, *space[name], int(rng.integers(BINS)), size))]
        for name in rng.choice(names, images).tolist()
    ]


def magnitude(rng: np.random.Generator, magnitudes: Callable[..., object], signed: bool, at: int, size: int) -> float:
    """One of an operation's magnitudes, with a random sign where it has one."""
    of_bins = magnitudes(BINS, size, size)
    if not isinstance(of_bins, torch.Tensor):
        return 0.0
    return float(of_bins[at]) * (float(rng.choice([-1, 1])) if signed else 1.0)


def color_jitter(rng: np.random.Generator, images: int) -> Draws:
    """Four steps in random order."""
    names = ("Brightness", "Contrast", "Color", "Hue")
    made = []
    for _ in range(images):
        steps = [(name, float(rng.uniform(-limit, limit))) for name, limit in zip(names, JITTER, strict=True)]
        made.append([steps[at] for at in rng.permutation(len(steps))])
    return made


def random_boxes(rng: np.random.Generator, images: int, size: int) -> Erase:
    """A box in every image, which is the most work; areas and ratios of torchvision's RandomErasing."""
    area, ratio = rng.uniform(0.02, 0.33, images) * size * size, np.exp(rng.uniform(np.log(0.3), np.log(3.3), images))
    heights, widths = (np.clip(np.sqrt(one).astype(int), 1, size) for one in (area * ratio, area / ratio))
    tops, lefts = rng.integers(0, size - heights + 1), rng.integers(0, size - widths + 1)
    return Erase(np.stack([tops, lefts, heights, widths], axis=1).astype(np.int32))


def mixup(images: int) -> Mix:
    """Each with the one before, with one weight for all, as torchvision's MixUp."""
    partners = np.roll(np.arange(images, dtype=np.int32), 1)
    return Mix(partners, np.full(images, 0.7, np.float32), np.zeros((images, 4), np.int32))


def cutmix(images: int, size: int) -> Mix:
    """The same with one box for all, as torchvision's CutMix."""
    box = np.array([[size // 4, size // 3, size // 2, size // 2]], np.int32)
    return Mix(mixup(images).partners, np.ones(images, np.float32), np.repeat(box, images, axis=0))


def first_draw(work: Work) -> list[tuple[str, float]]:
    """The first image's steps: for those that draw once for all."""
    assert work.draws is not None
    return work.draws[0]


def program(draws: Draws, size: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The steps as `ops` and `values` of `gpupipe.kernels.augment`."""
    steps = [[operation(name, magnitude, size) for name, magnitude in row] for row in draws]
    ops = np.array([[op for op, _ in row] for row in steps], np.int32)
    values = np.zeros((*ops.shape, max(len(values) for row in steps for _, values in row)), np.float32)
    for row, some in enumerate(steps):
        for step, (_, numbers) in enumerate(some):
            values[row, step, : len(numbers)] = numbers
    return ops, values


def operation(name: str, magnitude: float, size: int) -> tuple[Op, NDArray[np.float32]]:
    """A step's operation and values, padded to six."""
    square = (size, size)
    degrees = math.degrees(math.atan(magnitude))
    matrices: dict[str, Callable[[], NDArray[np.float32]]] = {
        "ShearX": lambda: affine_matrix(square, shear=(degrees, 0.0), center=(0, 0)),
        "ShearY": lambda: affine_matrix(square, shear=(0.0, degrees), center=(0, 0)),
        "TranslateX": lambda: affine_matrix(square, translate=(int(magnitude), 0)),
        "TranslateY": lambda: affine_matrix(square, translate=(0, int(magnitude))),
        "Rotate": lambda: affine_matrix(square, angle=-magnitude),
    }
    if name == "RotateBilinear":
        return Op.AFFINE_BILINEAR, matrices["Rotate"]()
    if name in matrices:
        return Op.AFFINE_NEAREST, matrices[name]()
    if name == "GaussianBlur":
        return Op.GAUSSIAN_BLUR, gaussian_weights(BLUR, magnitude)
    op, value = {
        "Identity": (Op.IDENTITY, 0.0),
        "Brightness": (Op.BRIGHTNESS, 1 + magnitude),
        "Contrast": (Op.CONTRAST, 1 + magnitude),
        "Color": (Op.SATURATION, 1 + magnitude),
        "Hue": (Op.HUE, magnitude),
        "Sharpness": (Op.SHARPNESS, 1 + magnitude),
        "Posterize": (Op.POSTERIZE, float(int(magnitude))),
        "Solarize": (Op.SOLARIZE, 255 * magnitude),
        "SolarizeAdd": (Op.SOLARIZE_ADD, magnitude),
        "AutoContrast": (Op.AUTOCONTRAST, 0.0),
        "Equalize": (Op.EQUALIZE, 0.0),
        "Invert": (Op.INVERT, 0.0),
        "Grayscale": (Op.GRAYSCALE, 0.0),
    }[name]
    return op, np.array([value, 0, 0, 0, 0, 0], np.float32)
