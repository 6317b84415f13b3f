"""With which neighbour, how much and where each image is mixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import Mix
from gpupipe.kernels.philox import uniform
from gpupipe.plan.elementary import symmetric_beta
from gpupipe.plan.stream import MIX, Stream, below
from gpupipe.recipe import Recipe

__all__ = ["Mixing", "mixing"]


@dataclass(frozen=True)
class Mixing:
    """How a batch is mixed.

    mix:    of the images, for `kernels.finish`.
    shares: float32 (N,), how much of each label is the image's own, for `kernels.soft_targets`.
    """

    mix: Mix
    shares: NDArray[np.float32]


def mixing(recipe: Recipe, seed: int, epoch: int, positions: NDArray[np.int64], full: bool) -> Mixing | None:
    """How the images at these positions of an epoch are mixed; None if the recipe mixes nothing.

    positions: int64 (N,), global positions. Those of a full batch follow each other and begin with an even one, so that
    position p finds its partner p ^ 1 in the batch, however batches are cut into ranks. full=False, for the last batch
    of an epoch where it is smaller, mixes nothing.
    The same arguments give the same numbers on every machine.
    """
    settings = recipe.mixing
    if settings is None:
        return None
    count = len(positions)
    partners = np.arange(count, dtype=np.int32)
    weights, shares = np.ones(count, np.float32), np.ones(count, np.float32)
    boxes = np.zeros((count, 4), np.int32)
    if full and count:
        assert count % 2 == positions[0] % 2 == 0, positions
        assert (np.diff(positions) == 1).all(), positions
        assert settings.alike is not None
        stream = Stream(seed, epoch, positions - positions % settings.alike)
        mixed, switch, down, right = stream.words(MIX)
        chosen = uniform(mixed) < settings.p
        cut = chosen & (uniform(switch) < settings.cut_p)
        lambdas = _lambdas(settings.alphas, stream, chosen & ~cut, cut)
        partners[chosen] ^= 1
        weights[chosen & ~cut] = shares[chosen & ~cut] = lambdas[chosen & ~cut]
        size, whole = recipe.crop.output_size, settings.rounding == "timm"
        boxes[cut], shares[cut] = _boxes(whole, lambdas[cut], size, (down[cut], right[cut]))
    return Mixing(Mix(partners, weights, boxes), shares)


def _lambdas(
    alphas: tuple[float, float], stream: Stream, blended: NDArray[np.bool_], cut: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """One lambda for each image; `alphas` are MixUp's and CutMix's."""

    def words(blocks: range, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return stream.words(np.array([MIX | 1 + block for block in blocks], np.uint64)[:, None], rows)

    out = np.ones(len(cut))
    for alpha, which in zip(alphas, (blended, cut), strict=True):
        rows = np.flatnonzero(which)
        if len(rows):
            out[rows] = symmetric_beta(alpha, rows, words)
    return out


def _boxes(
    whole: bool, lambdas: NDArray[np.float64], size: tuple[int, int], words: tuple[NDArray[np.uint64], ...]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """torchvision's CutMix, or timm's: boxes (N, 4) about a random pixel, cut at the image's border, and what they
    leave of it.

    whole: the sides are rounded down, as timm's, not their halves.
    """
    share = np.sqrt(1 - lambdas)
    starts, lengths = [], []
    for side, word in zip(size, words, strict=True):
        middle = below(word, side)
        length = (share * side).astype(np.int64) if whole else 2 * (share * side / 2).astype(np.int64)
        start, end = np.maximum(middle - length // 2, 0), np.minimum(middle + (length + 1) // 2, side)
        starts.append(start)
        lengths.append(end - start)
    shares = 1 - lengths[0] * lengths[1] / (size[0] * size[1])
    return np.stack([*starts, *lengths], axis=1).astype(np.int32), shares.astype(np.float32)
