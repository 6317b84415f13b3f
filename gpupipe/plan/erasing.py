"""Which box of each image is erased."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Erase
from gpupipe.kernels.philox import uniform
from gpupipe.plan.boxes import drawn_sides, first_fits, placed
from gpupipe.plan.stream import ERASE, Stream
from gpupipe.recipe import RandomErasing, Recipe

__all__ = ["erasing"]


def erasing(
    recipe: Recipe, seed: int, epoch: int, positions: NDArray[np.int64], view: int = 0, field: int = 0
) -> Erase | None:
    """What `kernels.finish` erases of the images at these positions of an epoch; None if the recipe erases nothing.

    positions: int64 (N,), global positions, 0 or more. view: which view of the samples, 0 to 255. field: which of their
    images, as for `cropping`.
    The same arguments give the same boxes on every machine, in any batch, in any order.
    """
    if recipe.erasing is None:
        return None
    stream = Stream(seed, epoch, positions, view, field)
    erased, _, *keys = stream.words(ERASE)
    boxes = np.zeros((len(positions), 4), np.int64)
    rows = np.flatnonzero(uniform(erased) < recipe.erasing.p)
    if len(rows):
        _draw(boxes, rows, recipe.erasing, recipe.crop.output_size, stream)
    constant = recipe.erasing.constant
    noise = np.stack(keys, axis=1).astype(np.uint32) if constant is None else None
    return Erase(boxes.astype(np.int32), constant, noise)


def _draw(
    boxes: NDArray[np.int64], rows: NDArray[np.int64], settings: RandomErasing, size: tuple[int, int], stream: Stream
) -> None:
    """torchvision's RandomErasing: up to ten tries for a box smaller than the image, else none."""
    tall, wide = size

    def attempt(tries: range, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        blocks = np.array([ERASE | 1 + number for number in tries], np.uint64)[:, None]
        area, ratio, down, right = stream.words(blocks, rows)
        width, height = drawn_sides(settings.scale, settings.ratio, tall * wide, uniform(area), uniform(ratio))
        fits = (height < tall) & (width < wide)
        return fits, placed(fits, (height, width), size, (down, right))

    first_fits(boxes, rows, attempt)
