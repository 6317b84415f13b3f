"""What operations of the user's own draw from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.plan.stream import ON_BATCH, PER_IMAGE, Stream
from gpupipe.recipe import OnBatch, Recipe

__all__ = ["own_words"]


def own_words(
    recipe: Recipe, at: int, seed: int, epoch: int, positions: NDArray[np.int64], view: int = 0, field: int = 0
) -> list[list[int]]:
    """Four random words of 32 bits for each of these positions of an epoch, to key a generator with.

    at: the place of the operation in the recipe; it draws by the how-manieth of its kind it is. positions, view, field:
    as for `cropping`.
    """
    kind = type(recipe.operations[at])
    number = (ON_BATCH if kind is OnBatch else PER_IMAGE) | sum(type(one) is kind for one in recipe.operations[:at])
    words: list[list[int]] = Stream(seed, epoch, positions, view, field).words(number).T.tolist()
    return words
