"""What each operation of a recipe drew for one image, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Job
from gpupipe.kernels import Crops, Op
from gpupipe.kernels.operations import ELASTIC
from gpupipe.plan import augmentation, blending, erasing
from gpupipe.recipe import (
    Augmenting,
    Crop,
    RandomErasing,
    RandomHorizontalFlip,
    Recipe,
)
from gpupipe.recipe.own import Own
from gpupipe.recipe.several import BLENDED, PASTED, QUADRANTS, DetectionMixUp, Mosaic, Several

if TYPE_CHECKING:
    from gpupipe.plan import Mixing

__all__ = ["Size", "box_in_words", "drawn_in_words", "mixed_in_words", "step_in_words"]

Size = tuple[int, int]
"""(height, width)."""
BEFORE = "drawn for what came before it"


def drawn_in_words(
    recipe: Recipe, job: Job, view: int, field: int, crops: Crops | None, size: Size, partners: Mapping[int, str]
) -> list[tuple[str, str]]:
    """The name of each operation and what it drew for the image of a job of one sample; mixing and what draws nothing
    are left out.

    crops: the image's, N = 1; None: not known, as a function of the user's changes the image before. size: its own.
    partners: the names of the samples of which it is made besides, by their part.
    """
    words = []
    sizes = None if crops is None else crops.sizes
    unknown = recipe.crop.varies and crops is None
    for at, operation in enumerate(recipe.operations):
        if isinstance(operation, Crop):
            said = BEFORE if crops is None else _crop_in_words(crops, size)
        elif isinstance(operation, Several):
            said = _several_in_words(recipe, operation, job, partners)
        elif isinstance(operation, RandomHorizontalFlip):
            said = "" if crops is None else "mirrored" if crops.flips[0] else "not mirrored"
        elif isinstance(operation, Augmenting):
            said = BEFORE if unknown else _augmented(recipe, at, job, view, field, sizes)
        elif isinstance(operation, RandomErasing):
            erase = erasing(recipe, job.seed, job.epoch, job.positions, view, field, sizes)
            assert erase is not None
            said = BEFORE if unknown else box_in_words(erase.boxes[0], "nothing") + " erased"
        elif isinstance(operation, Own):
            said = "your own, which tells nothing of what it drew"
        else:
            continue
        name = str(operation) if isinstance(operation, Own) else type(operation).__name__
        words.append((name, said or "not known"))
    return words


def box_in_words(box: Sequence[int] | NDArray[np.int32], none: str) -> str:
    """Of top, left, height and width."""
    top, left, height, width = (int(side) for side in box)
    return f"{height} x {width} pixels at top {top}, left {left}" if height and width else none


def _crop_in_words(crops: Crops, size: Size) -> str:
    top, left, height, width = crops.windows[0].tolist()
    (tall, wide), (down, right) = crops.resized[0].tolist(), crops.anchors[0].tolist()
    whole = (top, left, height, width) == (0, 0, *size)
    said = f"all of {height} x {width} pixels" if whole else box_in_words((top, left, height, width), "nothing")
    said += "" if whole else f" of {size[0]} x {size[1]}"
    said += f", resized to {tall} x {wide} ({'bicubic' if crops.bicubic[0] else 'bilinear'})"
    shown = crops.size_of(0)
    if (tall, wide) == shown and not (down or right):
        return said
    said += f", of that {box_in_words((down, right, *shown), 'nothing')}"
    outside = min(down, right) < 0 or down + shown[0] > tall or right + shown[1] > wide
    return said + (", filled where there is no image" if outside else "")


def _several_in_words(recipe: Recipe, operation: Several, job: Job, partners: Mapping[int, str]) -> str:
    if isinstance(operation, Mosaic):
        others = [partners[part] for part in range(1, QUADRANTS) if part in partners]
        return f"with {', '.join(others)}" if others else "it alone, scaled and shifted"
    if isinstance(operation, DetectionMixUp):
        share = blending(recipe, job.seed, job.epoch, job.positions[:1], 0)[0]
        return f"{share:.1%} of it, the rest of {partners[BLENDED]}" if BLENDED in partners else "not blended"
    return f"objects of {partners[PASTED]}" if PASTED in partners else "nothing pasted"


def _augmented(recipe: Recipe, at: int, job: Job, view: int, field: int, sizes: NDArray[np.int32] | None) -> str:
    """What one augmentation does: of its own, as each is drawn by itself."""
    drawn = augmentation(recipe, job.seed, job.epoch, job.positions, view, field, slice(at, at + 1), sizes)
    if drawn is None:
        return "nothing"
    steps = zip(drawn.ops[0].tolist(), drawn.values[0], strict=True)
    size = recipe.crop.output_size if sizes is None else tuple(sizes[0].tolist())
    return ", then ".join(step_in_words(Op(op), values, size) for op, values in steps if op != Op.IDENTITY) or "nothing"


def mixed_in_words(how: Mixing, row: int, partner: str) -> str:
    """How a row of a batch is mixed with the sample of that name."""
    if how.mix.partners[row] == row:
        return "not mixed"
    box = how.mix.boxes[row]
    if box[2] and box[3]:
        return f"{box_in_words(box, 'nothing')} are of {partner}"
    return f"{how.mix.weights[row]:.1%} of it, the rest of {partner}"


# Steps.

Values = NDArray[np.float32]


def step_in_words(op: Op, values: Values, size: Size) -> str:
    """One step of a program, for an image of that size."""
    told = WORDS.get(op)
    if told is not None:
        return told(values)
    if op.name.startswith("AFFINE"):
        return _affine_in_words(values, size)
    if op.name.startswith("PERSPECTIVE"):
        return _perspective_in_words(values, size)
    given = " ".join(f"{value:g}" for value in values[: int(np.flatnonzero(values).max(initial=-1)) + 1])
    return f"{op.name.lower().replace('_', ' ')} {given}".strip()


def _sigma(weights: Values) -> float:
    """Of the blur that has these weights, from the middle outwards."""
    return math.sqrt(0.5 / math.log(weights[0] / weights[1])) if len(weights) > 1 and weights[1] > 0 else 0.0


def _elastic_in_words(values: Values) -> str:
    right, down = 2 * values[:2]
    return f"pixels moved apart, alpha {right:g} and {down:g}, sigma {_sigma(values[ELASTIC:]):.2f}"


WORDS: dict[Op, Callable[[Values], str]] = {
    Op.BRIGHTNESS: lambda values: f"brightness x {values[0]:.2f}",
    Op.CONTRAST: lambda values: f"contrast x {values[0]:.2f}",
    Op.SATURATION: lambda values: f"saturation x {values[0]:.2f}",
    Op.HUE: lambda values: f"hue turned by {360 * values[0]:.0f} degrees",
    Op.SHARPNESS: lambda values: f"sharpness x {values[0]:.2f}",
    Op.POSTERIZE: lambda values: f"{values[0]:.0f} bits of each level kept",
    Op.SOLARIZE: lambda values: f"levels from {values[0]:.0f} on inverted",
    Op.SOLARIZE_ADD: lambda values: f"{values[0]:.0f} added to levels below 128",
    Op.GAUSSIAN_BLUR: lambda values: f"blurred, sigma {_sigma(values):.2f}",
    Op.AUTOCONTRAST: lambda _: "contrast stretched",
    Op.EQUALIZE: lambda _: "histogram flattened",
    Op.INVERT: lambda _: "inverted",
    Op.GRAYSCALE: lambda _: "gray",
    Op.CHANNELS: lambda values: f"channels in the order {', '.join(list(permutations('RGB'))[int(values[0])])}",
    **dict.fromkeys((Op.ELASTIC_NEAREST, Op.ELASTIC_BILINEAR), lambda values: _elastic_in_words(values)),
    Op.MIX_BEGIN: lambda values: f"{values[0]:.1%} of that kept",
    Op.MIX_ADD: lambda values: f"{values[0]:.1%} of that added, begun anew",
    Op.MIX_END: lambda values: f"{values[0]:.1%} of that added",
    Op.GAMMA: lambda values: f"raised to the power {values[0]:.2f}",
    Op.HSV: lambda values: (
        f"hue turned by {2 * values[0]:.0f} degrees, saturation x {values[1]:.2f}, value x {values[2]:.2f}"
    ),
    Op.HOLES: lambda values: f"{values[0]:.0f} boxes filled",
    Op.NOISE: lambda values: f"noise of {values[0]:.1f} levels in the mean, sigma {values[1]:.1f}",
}


def _affine_in_words(values: Values, size: Size) -> str:
    """An affine map, which says where each pixel comes from, by what it does to the image."""
    a, b, c, d, e, f = values[:6].astype(np.float64).tolist()
    forward = np.linalg.inv([[a, b], [d, e]])
    middle = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
    right, down = forward @ (middle - (c, f)) - middle
    parts = []
    if np.linalg.det(forward) < 0:
        parts.append("mirrored top to bottom")
        forward = forward @ np.diag([1, -1])
    (xx, xy), (yx, yy) = forward.tolist()
    if abs(xx - 1) < 1e-4 and abs(yy - 1) < 1e-4 and (abs(xy) < 1e-4 or abs(yx) < 1e-4):
        sheared = (("x", xy), ("y", yx))
        parts += [f"sheared along {axis} by {math.degrees(math.atan(by)):.1f} degrees" for axis, by in sheared if by]
    else:
        turn, across = math.degrees(math.atan2(yx, xx)), math.hypot(xx, yx)
        along, slant = (xx * yy - xy * yx) / across, (xx * xy + yx * yy) / across
        shear = math.degrees(math.atan(slant / along))
        side = "clockwise" if turn > 0 else "counterclockwise"
        parts += [f"turned by {abs(turn):.1f} degrees {side}"] * (abs(turn) >= 0.05)
        parts += [f"sheared by {shear:.1f} degrees"] * (abs(shear) >= 0.05)
        parts += [f"scaled by {across:.2f} and {along:.2f}"] * (max(abs(across - 1), abs(along - 1)) >= 0.005)
    if max(abs(right), abs(down)) >= 0.05:
        parts.append(f"moved by {right:.1f} pixels right and {down:.1f} down")
    return " and ".join(parts) or "left as it is"


def _perspective_in_words(values: Values, size: Size) -> str:
    """By where the image's corners come to lie, as torchvision's `perspective` has them."""
    forward = np.linalg.inv(np.append(values[:8].astype(np.float64), 1).reshape(3, 3))
    height, width = size
    corners = np.array([(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]) - 0.5
    moved = forward @ np.column_stack([corners, np.ones(4)]).T
    places = (f"({x:.0f}, {y:.0f})" for x, y in (moved[:2] / moved[2] + 0.5).T)
    return f"corners moved to {', '.join(places)}"
