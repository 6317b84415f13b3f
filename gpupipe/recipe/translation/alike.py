"""Classes of programs' own, which can't be imported: known by their name and attributes, and by what they do when they
are tried beside a function that stands here, with the same random numbers."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpupipe.host.generators import drawing
from gpupipe.recipe.augmentations import Augmenting, GaussianBlur, RandomApply, RandomSolarize

__all__ = ["Padded", "augmentation_like", "mixing_like", "padding_like", "views_like"]

TRIALS = 12


def augmentation_like(transform: Any) -> Augmenting | None:
    """The augmentation that does what it does to Pillow's images: GaussianBlur and Solarization of DINO's utils.py, and
    what is like them. Pillow's blur is a series of boxes, the recipe's a Gaussian of three standard deviations."""
    names = type(transform).__name__, *sorted(getattr(transform, "__dict__", ()))
    if names == ("GaussianBlur", "prob", "radius_max", "radius_min") and _alike(transform, "prob", _blurred, _image()):
        blur = GaussianBlur(2 * math.ceil(3 * transform.radius_max) + 1, (transform.radius_min, transform.radius_max))
        return blur if transform.prob >= 1 else RandomApply((blur,), transform.prob)
    if names == ("Solarization", "p") and _alike(transform, "p", _solarized, _image()):
        return RandomSolarize(128, transform.p)
    return None


@dataclass(frozen=True)
class Padded:
    """What pads images that are smaller than (height, width) right and below with a color; and, if it `crops`, cuts
    larger ones, at a place that is as far down as right."""

    size: tuple[int, int]
    color: tuple[int, ...]
    crops: bool


def padding_like(transform: Any) -> Padded | None:
    """What it does to Pillow's images, as PadIfSmaller in v2_extras.py of torchvision's references/segmentation, and
    FixedSizeCrop in transforms.py of its references/detection."""
    name, own, image = type(transform).__name__, getattr(transform, "__dict__", {}), _image()
    sides = {"PadIfSmaller": ("size",), "FixedSizeCrop": ("crop_height", "crop_width")}.get(name, ())
    size: list[Any] = [own.get(side) for side in sides]
    if not size or not all(type(side) is int and side > 0 for side in size):
        return None
    tried = copy.copy(transform)
    for side, wanted in zip(sides, (20, 30), strict=False):  # the image is 24 x 16
        setattr(tried, side, wanted)
    try:
        with _numbered(TRIALS):
            color = np.asarray(_of_pair(tried(image)))[-1, -1].tolist()
        for trial in range(TRIALS):
            made = []
            for function in (tried, partial(_padded, sides, color)):
                with _numbered(trial):
                    made.append(_of_pair(function(image)))
            if not _same(*made):
                return None
    except Exception:  # code of the user's, which takes or returns something else
        return None
    return Padded((size[0], size[-1]), tuple(color), crops=len(sides) == 2)


def _of_pair(made: Any) -> Any:
    """The image of what may be an image and its target."""
    return made[0] if isinstance(made, tuple) else made


def _padded(sides: tuple[str, ...], color: list[int], image: Any) -> Any:
    import torch

    pixels = np.asarray(image)
    if len(sides) == 2:
        top = int(4 * torch.rand(1))
        pixels = pixels[top : top + 20]
    canvas = np.full((20, 30, 3) if len(sides) == 2 else (24, 20, 3), color, np.uint8)
    canvas[: pixels.shape[0], : pixels.shape[1]] = pixels
    return canvas


def mixing_like(transform: Any) -> str:
    """ "MixUp" or "CutMix" where it mixes a batch as torchvision's of that name, as RandomMixUp and RandomCutMix in
    transforms.py of its references/classification do, with `alpha` and `num_classes`, and with probability `p`."""
    name = {"RandomMixUp": "MixUp", "RandomCutMix": "CutMix"}.get(type(transform).__name__, "")
    if not name or not all(hasattr(transform, setting) for setting in ("alpha", "num_classes", "p")):
        return ""
    return name if _alike(transform, "p", partial(_mixed, name), *_batch()) else ""


def views_like(transform: Any) -> list[tuple[Any, int]]:
    """The transforms that it calls with an image, each so many times, for a list of what they make, as DINO's
    DataAugmentationDINO does it; none where it is no such thing."""
    parts, number = ("global_transfo1", "global_transfo2", "local_transfo"), "local_crops_number"
    own = getattr(transform, "__dict__", {})
    if not {*parts, number} <= own.keys() or type(own[number]) is not int:
        return []
    counts = dict(zip(parts, (1, 1, own[number]), strict=True))
    tried = copy.copy(transform)
    try:
        vars(tried).update({name: lambda image, name=name: (name, image) for name in parts})
        made = tried("image")
    except Exception:  # code of the user's, which does something else
        return []
    whole = type(made) is list and made == [(name, "image") for name in parts for _ in range(counts[name])]
    return [(own[name], count) for name, count in counts.items() if whole and count]


def _alike(transform: Any, probability: str, reference: Callable[..., Any], *given: Any) -> bool:
    """Whether the transform makes of that what the reference makes of its settings and that, with the same random
    numbers, as it is and where it always does something. The program's random numbers are put back."""
    always = copy.copy(transform)
    try:
        setattr(always, probability, 1.0)
        for trial in range(TRIALS):
            for tried in (transform, always):
                made = []
                for function in (tried, partial(reference, tried)):
                    with _numbered(trial):
                        made.append(function(*copy.deepcopy(given)))
                if not _same(*made):
                    return False
    except Exception:  # code of the user's, which takes or returns something else
        return False
    return True


@contextmanager
def _numbered(trial: int) -> Iterator[None]:
    """The random numbers of a trial, which torch draws on the CPU, whatever `torch.set_default_device` says."""
    import torch

    with torch.device("cpu"), drawing((trial, trial + 1, trial + 2, trial + 3)):
        yield


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(_same, found, expected))
    found, expected = np.asarray(found), np.asarray(expected)
    return found.shape == expected.shape and bool(np.allclose(found, expected, rtol=0, atol=1e-6))


def _image() -> Any:
    from PIL import Image

    levels = np.arange(24 * 16 * 3, dtype=np.uint32).reshape(24, 16, 3) * 2654435761 >> 24
    return Image.fromarray(levels.astype(np.uint8))


def _blurred(settings: Any, image: Any) -> Any:
    from PIL import ImageFilter

    if random.random() > settings.prob:
        return image
    return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(settings.radius_min, settings.radius_max)))


def _solarized(settings: Any, image: Any) -> Any:
    from PIL import ImageOps

    return ImageOps.solarize(image) if random.random() < settings.p else image


def _batch() -> tuple[Any, Any]:
    import torch

    return torch.linspace(0, 1, 3360, device="cpu").reshape(4, 3, 20, 14), torch.tensor([0, 1, 0, 0], device="cpu")


def _mixed(name: str, settings: Any, images: Any, labels: Any) -> Any:
    """Each with the one before it, all with one share and one box."""
    import torch

    soft = torch.nn.functional.one_hot(labels, settings.num_classes).to(images.dtype)
    if torch.rand(1).item() >= settings.p:
        return images, soft
    share = float(torch._sample_dirichlet(torch.tensor([settings.alpha, settings.alpha]))[0])
    others = images.roll(1, 0)
    if name == "MixUp":
        images = images * share + others * (1 - share)
    else:
        high, wide = images.shape[-2:]
        x, y, reach = int(torch.randint(wide, (1,))), int(torch.randint(high, (1,))), 0.5 * math.sqrt(1 - share)
        across, along = int(reach * wide), int(reach * high)
        box = np.s_[:, :, max(0, y - along) : y + along, max(0, x - across) : x + across]
        images[box] = others[box]
        share = 1 - images[box][0, 0].numel() / (wide * high)
    return images, soft * share + soft.roll(1, 0) * (1 - share)
