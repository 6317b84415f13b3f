"""The program of operations that each image gets: of a recipe's augmentations, those that were drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels.crops import by_size
from gpupipe.kernels.philox import uniform
from gpupipe.plan import aug_mix, colors, geometric, policies, timm_policy
from gpupipe.plan.steps import Kind, Size, Steps, Words, beside, chosen
from gpupipe.plan.stream import Stream
from gpupipe.recipe import Augmenting, RandomApply, RandomChoice, Recipe, ThreeAugment, walk

__all__ = ["Augmentation", "augmentation"]


@dataclass(frozen=True)
class Augmentation:
    """What `kernels.augment` does to each of N images.

    ops:    int32 (N, K), numbers of `kernels.Op`; K depends on the recipe alone, IDENTITY stands where nothing is done.
    values: float32 (N, K, P), what each operation takes; P is 6 or, with a large blur, more.
    fill:   R, G, B from 0 to 255 of what affine operations leave empty; None for black.
    """

    ops: NDArray[np.int32]
    values: NDArray[np.float32]
    fill: tuple[float, float, float] | None


def augmentation(
    recipe: Recipe,
    seed: int,
    epoch: int,
    positions: NDArray[np.int64],
    view: int = 0,
    field: int = 0,
    run: slice = slice(None),
    sizes: NDArray[np.int32] | None = None,
) -> Augmentation | None:
    """The programs for the images at these positions of an epoch; None if the recipe has no augmentations.

    positions: int64 (N,), global positions, 0 or more. view: which view of the samples, 0 to 255. field: which of their
    images, as for `cropping`. run: the places of the recipe's operations that are wanted, as in `Recipe.runs`. sizes:
    int32 (N, 2), the height and width of each image; None: all have the crop's.
    The same arguments give the same programs in any batch, in any order.
    """
    wanted = _augmentations(recipe, run)
    nodes = list(walk(wanted))
    if not nodes:
        return None
    blocks, seen = [], Counter(type(one) for one in walk(_augmentations(recipe, slice(run.start or 0))))
    for operation in nodes:  # by the how-manieth of its kind it is, so that no other kind changes what it draws
        blocks.append(_counters(operation, seen[type(operation)]))
        seen[type(operation)] += 1
    words = Stream(seed, epoch, positions, view, field).words(np.concatenate(blocks)[:, None])
    turns = np.split(words, list(accumulate(map(len, blocks)))[:-1], axis=1)
    if sizes is None:
        ops, values = _sequence(wanted, iter(turns), recipe.crop.output_size, len(positions))
    else:
        parts = by_size(sizes)
        steps = [_sequence(wanted, (turn[..., rows] for turn in turns), size, len(rows)) for rows, size in parts]
        places = np.argsort(np.concatenate([rows for rows, _ in parts]))
        ops, values = (np.concatenate(part)[places] for part in zip(*steps, strict=True))
    if ops.shape[1] == 0:
        return None
    return Augmentation(np.ascontiguousarray(ops), np.ascontiguousarray(values), recipe.fill)


def _augmentations(recipe: Recipe, run: slice) -> tuple[Augmenting, ...]:
    return tuple(operation for operation in recipe.operations[run] if isinstance(operation, Augmenting))


KINDS: dict[type, Kind] = {
    **policies.KINDS,
    **timm_policy.KINDS,
    **colors.KINDS,
    **geometric.KINDS,
    **aug_mix.KINDS,
    RandomApply: Kind(8, lambda _: 1),
    RandomChoice: Kind(9, lambda _: 1),
    ThreeAugment: Kind(10, lambda _: 0),
}
assert len({kind.number for kind in KINDS.values()}) == len(KINDS), KINDS


def _counters(operation: Augmenting, occurrence: int) -> NDArray[np.uint64]:
    """An operation's blocks, as `Stream.words` takes them: sixteen kinds a page, fifteen of each."""
    kind = KINDS[type(operation)]
    page, low = divmod(kind.number, 16)
    number, blocks = 16 * (occurrence + 1) + low, kind.blocks(operation)
    assert max(page, number, blocks - 1) < 256, (operation, occurrence)
    first = page << 24 | number << 16
    return np.arange(first, first + blocks, dtype=np.uint64)


def _sequence(operations: Sequence[Augmenting], turns: Iterator[Words], size: Size, count: int) -> Steps:
    return beside([_steps(operation, turns, size, count) for operation in operations], count)


def _steps(operation: Augmenting, turns: Iterator[Words], size: Size, count: int) -> Steps:
    """The steps of one operation; `turns` are the words of it and of all that it is made of, in the order of `walk`."""
    words = next(turns)
    if isinstance(operation, ThreeAugment):
        return _steps(operation.choice, turns, size, count)
    if isinstance(operation, RandomApply):
        steps = _sequence(operation.operations, turns, size, count)
        nothing = beside([], count)
        return chosen([steps, nothing], (uniform(words[0, 0]) >= operation.p).astype(np.int64))
    if isinstance(operation, RandomChoice):
        options = [_steps(option, turns, size, count) for option in operation.operations]
        return chosen(options, _weighted(operation, uniform(words[0, 0])))
    draw = KINDS[type(operation)].draw
    assert draw is not None
    return draw(operation, words, size)


def _weighted(choice: RandomChoice, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which of the options each uniform number stands for."""
    weights = choice.p or (1.0,) * len(choice.operations)
    ends = np.array(list(accumulate(weights)))
    which: NDArray[np.int64] = np.searchsorted(ends[:-1], numbers * ends[-1], side="right")
    return which
