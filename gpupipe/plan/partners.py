"""Of which others a sample is made, and where each of its parts lies.

A sample has up to 16 parts, of which part 0 is its own; see `gpupipe.recipe.several`. Each draws as another view does,
so that what a part draws does not depend on the other parts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Crops
from gpupipe.kernels.philox import uniform
from gpupipe.plan.elementary import symmetric_beta
from gpupipe.plan.stream import BLEND, MOSAIC, PARTNER, PASTE, Stream, below
from gpupipe.recipe import CopyPaste, DetectionMixUp, Mosaic, Recipe
from gpupipe.recipe.several import BLENDED, PASTED, QUADRANTS

__all__ = ["arranged", "blending", "partners", "pasted"]

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]
PAGE_OF_BLOCKS = 255  # blocks of an operation behind its first, on each page


def partners(recipe: Recipe, seed: int, epoch: int, positions: Longs, size: int) -> Longs:
    """The positions, of an epoch of `size` positions, of the samples of which those at `positions` (N,) are made
    besides their own: (N, parts - 1), by the number of the part less one; -1 where a sample has no such part.

    The same arguments give the same on every machine, in any batch, in any order.
    """
    numbers = np.array(recipe.parts)
    stream = Stream(seed, epoch, np.repeat(positions, len(numbers)), np.tile(numbers, len(positions)))
    high, low = stream.words(PARTNER)[:2]
    drawn = ((high << np.uint64(32) | low) % np.uint64(size)).astype(np.int64).reshape(len(positions), -1)
    there = np.ones(drawn.shape, np.bool_)
    mosaic, mixup, paste = recipe.only(Mosaic), recipe.only(DetectionMixUp), recipe.only(CopyPaste)

    def happens(word: NDArray[np.uint64], p: float, lead: Longs) -> Flags:
        """Whether it happens to each part, as its leading part has drawn it."""
        flags: Flags = (uniform(word).reshape(drawn.shape) < p)[:, np.searchsorted(numbers, lead)]
        return flags

    if mosaic is not None:
        there &= (numbers % QUADRANTS == 0) | happens(stream.words(MOSAIC | 1)[1], mosaic.p, numbers & -QUADRANTS)
    if mixup is not None:
        there &= (numbers & BLENDED == 0) | happens(stream.words(BLEND)[0], mixup.p, numbers & PASTED)
    if paste is not None:
        there &= (numbers & PASTED == 0) | happens(stream.words(PASTE)[0], paste.p, 0 * numbers)
    found = np.full((len(positions), numbers[-1]), -1, np.int64)
    found[:, numbers[1:] - 1] = np.where(there, drawn, -1)[:, 1:]
    return found


def arranged(
    recipe: Recipe, crops: Crops, seed: int, epoch: int, positions: Longs, parts: Longs, sizes: Longs, field: int = 0
) -> Crops:
    """The crops of parts of samples, each in its place: `crops` are those that they would have alone.

    positions, parts: (N,), of each its sample's and its number. sizes: (N, 2), of the images. field: as for `cropping`.
    """
    mosaic = recipe.only(Mosaic)
    if mosaic is None:
        return crops
    size = np.array(crops.size)
    lead = parts & -QUADRANTS
    own = Stream(seed, epoch, positions, lead, field)
    down, right, scale, across = uniform(own.words(MOSAIC))
    along = uniform(own.words(MOSAIC | 1)[0])
    low, high = mosaic.scale
    factors = (low + scale * (high - low))[:, None]
    middles = (0.5 + mosaic.translate * (2 * np.stack([along, across], axis=1) - 1)) * size
    applied = uniform(Stream(seed, epoch, positions, lead).words(MOSAIC | 1)[1])  # one for all fields, see `partners`
    is_mosaic = (applied < mosaic.p)[:, None]
    # On a canvas: of a mosaic twice the size, where the images touch at a point; else the crop's own output.
    canvas = np.where(is_mosaic, 2 * size, size)
    point = ((0.5 + np.stack([down, right], axis=1)) * size).astype(np.int64)
    fitting = (size / sizes).min(axis=1, keepdims=True)
    resized = np.where(is_mosaic, np.minimum(np.ceil(sizes * fitting), size), crops.resized)
    before = np.stack([parts & 2, parts & 1], axis=1) == 0  # above, left

    def onto(places: Floats | Longs) -> Longs:
        """Places of the canvas in the output."""
        rounded: Longs = np.rint((places - canvas / 2) * factors + middles).astype(np.int64)
        return rounded

    scaled = np.maximum(np.rint(resized * factors), 1).astype(np.int64)
    starts = np.where(is_mosaic, onto(point) - np.where(before, scaled, 0), onto(-crops.anchors.astype(np.int64)))
    begin, end = (np.clip(onto(edge), 0, size) for edge in (0 * canvas, canvas))
    begin[crops.flips, 1], end[crops.flips, 1] = (size[1] - edge[crops.flips, 1] for edge in (end, begin))
    whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
    return replace(
        crops,
        windows=np.where(is_mosaic, whole, crops.windows).astype(np.int32),
        resized=scaled.astype(np.int32),
        anchors=(-starts).astype(np.int32),
        shown=np.concatenate([begin, end], axis=1).astype(np.int32),
    )


def blending(recipe: Recipe, seed: int, epoch: int, positions: Longs, lead: int) -> Floats:
    """How much of the samples at these positions is left where others are blended in, 0 to 1; lead: 0, or the part with
    which those begin whose objects are pasted."""
    mixup = recipe.only(DetectionMixUp)
    assert mixup is not None
    stream = Stream(seed, epoch, positions, lead)

    def words(blocks: range, rows: Longs) -> NDArray[np.uint64]:
        return stream.words(np.array([BLEND | 1 + block for block in blocks], np.uint64)[:, None], rows)

    return symmetric_beta(mixup.alpha, np.arange(len(positions)), words)


def pasted(seed: int, epoch: int, position: int, count: int, field: int = 0) -> Longs:
    """Which of so many objects are pasted onto the sample at that position, ascending."""
    stream = Stream(seed, epoch, np.array([position]), field=field)
    pages, blocks = np.divmod(np.arange(-(-count // 4), dtype=np.uint64), np.uint64(PAGE_OF_BLOCKS))
    words = stream.words((pages << np.uint64(24) | np.uint64(PASTE) | blocks + np.uint64(1))[:, None])
    drawn: Longs = np.unique(below(words.transpose(1, 0, 2).reshape(-1)[:count], count))
    return drawn
