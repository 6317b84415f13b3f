"""What all augmentations have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import Fill

__all__ = ["Augmenting", "common_fill", "walk"]


class Augmenting:
    """An operation on the pixels of one image, between flip and normalization.

    moves: whether it moves pixels, which masks, boxes and points can't follow; if so it has a `fill`.
    """

    moves: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Augmenting, ...]:
        """The operations that it is made of."""
        return ()


def walk(operations: Sequence[Augmenting]) -> Iterator[Augmenting]:
    """Every operation, each before those that it is made of."""
    for operation in operations:
        yield operation
        yield from walk(operation.parts)


def common_fill(operations: Sequence[Augmenting]) -> Fill:
    """The fill on which all operations that need one agree; ConfigError where they don't."""
    fills = {operation: operation.fill for operation in walk(operations) if operation.moves}  # type: ignore[attr-defined]
    if len(set(fills.values())) > 1:
        got = ", ".join(f"{type(operation).__name__}(fill={fill})" for operation, fill in fills.items())
        raise ConfigError(f"Recipe: its operations must fill with one color, but got {got}; set the same fill in all")
    return next(iter(fills.values()), None)
